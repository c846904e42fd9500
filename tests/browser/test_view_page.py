"""The live view in a real browser."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import torchyoga as yoga

Open = Callable[..., Any]
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(1)</script>\u202egpj"
_BEYOND = """() => [...document.querySelectorAll('body *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.right > innerWidth + 1 && !one.closest('.scroll, pre, svg, .skip');
}).map(one => one.tagName + '.' + one.className)"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    storage = yoga.Storage(tmp_path_factory.mktemp("view"))
    draw = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (60, 90, 3), np.uint8)).save(file, "JPEG")
    rows = [
        {
            "image": draw.integers(0, 256, (28, 28), np.uint8),
            "photo": file.getvalue(),
            "label": n % 10,
            "text": "word " * (n % 50),
            "name": "سلام عالم",
            "score": n / 7 if n % 5 else float("nan"),
        }
        for n in range(300)
    ]
    storage.submit(rows, "pets", "1.0", message="the first", progress=False)
    hostile = [
        {HOSTILE: HOSTILE, "image": b"\xff\xd8\xff none", "label": HOSTILE[:50], "x": float("nan")}
        for _ in range(60)
    ]
    storage.submit(hostile, HOSTILE[:-4], "1.0", message=HOSTILE, progress=False)
    storage.tag("pets", "prod", "1.0")
    with yoga.view(storage) as shown:
        yield shown.url


def pages(url: str) -> list[str]:
    """A page of each kind, of data that is as one wishes and of hostile data."""
    id = "pets"
    named = [f"{url}rows?id={id}&version=1.0", f"{url}row?id={id}&version=1.0&row=7"]
    values = [f"{url}value?id={id}&version=1.0&row=7&column={column}" for column in (0, 1, 3)]
    return [url, f"{url}versions?id={id}", *named, f"{named[0]}&where=label+%3D+3", *values]


def hostile_pages(url: str, opened: Open) -> list[str]:
    """The same, by the links of the start page."""
    start = opened(url, offline=False)
    links = "() => [...document.querySelectorAll('main a')].map(one => one.href)"
    (first, second) = [link for link in start.evaluate(links) if "script" in link][:2]
    return [first, second, second.replace("/rows?", "/row?") + "&row=0"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_at_any_width(
    url: str, opened: Open, violations: Callable[[Any], list[str]], scheme: str
) -> None:
    for address in [*pages(url), *hostile_pages(url, opened)]:
        for width in (360, 1440):
            page = opened(address, width, scheme, allowed=url, offline=False)
            assert page.evaluate("document.documentElement.scrollWidth") == width, address
            assert page.evaluate(_BEYOND) == [], address
            light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert light is (scheme == "light")
            assert page.evaluate("document.scripts.length") == 0
            assert violations(page) == [], (address, width)
            page.close()


def test_from_the_start_to_an_image_and_back(url: str, opened: Open) -> None:
    page = opened(url, allowed=url, offline=False)
    page.get_by_role("link", name="pets").click()
    page.get_by_role("link", name="1.0", exact=True).click()
    assert page.inner_text("main [role=status]") == "Rows 0 to 49 of 300."
    shown = "() => [...document.images].map(one => one.complete && one.naturalWidth > 0 && one.alt != '')"
    assert page.evaluate(shown) == [True] * 100
    page.get_by_role("link", name="Next").click()
    assert page.inner_text("main [role=status]") == "Rows 50 to 99 of 300."
    page.get_by_role("link", name="53", exact=True).click()
    assert page.inner_text("h1") == "Row 53"
    assert page.evaluate(shown) == [True, True]
    page.get_by_role("link", name="Rows from here").click()
    assert page.inner_text("main [role=status]").startswith("Rows 53 to")
    page.get_by_role("link", name="pets").first.click()
    assert page.inner_text("h1") == "pets"


def test_a_filter_is_typed(url: str, opened: Open) -> None:
    page = opened(f"{url}rows?id=pets&version=1.0", allowed=url, offline=False)
    page.get_by_label("Filter", exact=True).fill("label = 3")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=label*")
    assert page.inner_text("main [role=status]") == "30 rows found; looked at 300 of 300."
    assert page.locator("tbody tr").count() == 30
    page.get_by_label("Filter", exact=True).fill("label is 3")
    page.keyboard.press("Enter")
    page.wait_for_url("**label+is*")
    assert "is not a filter" in page.inner_text("#how")
    page.get_by_role("link", name="all rows").click()
    assert page.inner_text("main [role=status]") == "Rows 0 to 49 of 300."


def test_nothing_of_the_data_runs(url: str, opened: Open) -> None:
    for address in hostile_pages(url, opened):
        page = opened(address, allowed=url, offline=False)
        assert page.evaluate("document.scripts.length") == 0
        assert "<img src=x onerror=alert(1)>" in page.inner_text("body")
        assert "\u202e" not in page.inner_text("body")


def test_all_is_reached_by_keys(url: str, opened: Open) -> None:
    page = opened(f"{url}rows?id=pets&version=1.0", allowed=url, offline=False)
    page.keyboard.press("Tab")
    first = "document.activeElement"
    assert page.evaluate(f"{first}.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{first}.id") == "main"
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(f"{first}.getAttribute('aria-label') || {first}.id || {first}.innerText")
        )
    for wanted in ("where", "Find", "start", "Go", "Table of rows"):
        assert wanted in reached
    page.get_by_label("Row", exact=True).fill("123")
    page.keyboard.press("Enter")
    page.wait_for_url("**start=123")
    assert page.inner_text("main [role=status]") == "Rows 123 to 172 of 300."
