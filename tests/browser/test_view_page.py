"""The live view in a real browser."""

from __future__ import annotations

import datetime as dt
import io
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coding.decoders import file_of
from layout import HOSTILE, Open, check_layout, looks, reached_by_keys

import torchyoga as yoga

CLASSES = ["cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "Ankle boot", "yak"]


def sound(n: int) -> bytes:
    """A second of a tone, as a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes((8000 * np.sin(np.arange(8000) * (n % 20 + 5) / 20)).astype("<i2").tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    storage = yoga.Storage(tmp_path_factory.mktemp("view"))
    draw = np.random.default_rng(0)
    photo = file_of(draw.integers(0, 256, (60, 90, 3), np.uint8))
    rows = [
        {
            "image": draw.integers(0, 256, (28, 28), np.uint8),
            "photo": photo,
            "label": n % 10,
            "text": "word " * (n % 50),
            "name": "سلام عالم",
            "score": n / 7 if n % 5 else float("nan"),
            "when": dt.datetime(2024, 1, 1) + dt.timedelta(hours=n),
            "sound": sound(n),
            "id": n,
        }
        for n in range(300)
    ]
    storage.submit(rows, "pets", "1.0", message="the first", info={"classes": CLASSES}, progress=False)
    storage.submit(rows[:280], "pets", "1.1", progress=False)
    wide = {f"column {n:03}": draw.normal(size=30) for n in range(450)}
    storage.submit(wide, "wide", "1.0", progress=False)
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
    filtered = [
        f"{named[0]}&where=label+%3D+3",
        f"{named[0]}&where=label+%3D+3+or",
        f"{named[0]}&where=id+%3C+0",
    ]
    ordered = [f"{named[0]}&sort=score&order=descending", f"{named[0]}&draw=3"]
    others = [f"{named[0]}&layout=grid", f"{url}rows?id=wide&version=1.0"]
    return [url, f"{url}versions?id={id}", *named, *filtered, *ordered, *others]


def hostile_pages(url: str, opened: Open) -> list[str]:
    """The same, by the links of the start page."""
    start = opened(url, offline=False)
    links = "() => [...document.querySelectorAll('main a')].map(one => one.href)"
    (first, second) = [link for link in start.evaluate(links) if "script" in link][:2]
    return [first, second, second.replace("/rows?", "/row?") + "&row=0"]


def test_every_page_at_any_width(url: str, opened: Open, violations: Callable[[Any], list[str]]) -> None:
    for address in [*pages(url), *hostile_pages(url, opened)]:
        page = opened(address, allowed=url, offline=False)
        assert page.evaluate("document.scripts.length") == 0
        for width, scheme in looks(page, 390, 1440):
            check_layout(page, width, scheme)
            assert violations(page) == [], (address, width, scheme)
        page.close()


def test_from_the_start_to_an_image_and_back(url: str, opened: Open) -> None:
    page = opened(url, allowed=url, offline=False)
    page.get_by_role("link", name="pets").click()
    page.get_by_role("link", name="1.0", exact=True).click()
    assert page.inner_text("main [role=status]") == "Rows 0 to 49 of 300."
    shown = "() => [...document.images].map(one => one.complete && one.naturalWidth > 0 && one.alt != '')"
    assert page.evaluate(shown) == [True] * 100
    page.get_by_role("link", name="Next").first.click()
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


def test_a_click_on_a_name_sorts(url: str, opened: Open) -> None:
    page = opened(
        f"{url}rows?id=pets&version=1.0&where=label+in+(1,+%27Ankle+boot%27)", allowed=url, offline=False
    )
    firsts = []
    for _ in range(3):
        page.get_by_role("columnheader", name="score").get_by_role("link").first.click()
        page.wait_for_load_state()
        head = page.get_by_role("columnheader", name="score")
        firsts.append((head.get_attribute("aria-sort"), page.inner_text("tbody th")))
    assert firsts == [("ascending", "1"), ("descending", "298"), (None, "1")]
    assert "Ankle boot" in page.inner_text("tbody")


def test_random_rows_and_a_grid(url: str, opened: Open) -> None:
    page = opened(f"{url}rows?id=pets&version=1.0", allowed=url, offline=False)
    page.get_by_role("link", name="random rows").click()
    assert page.inner_text("main [role=status]") == "50 of 300 rows, drawn at random."
    page.get_by_role("link", name="grid of images").click()
    assert page.locator(".gallery li").count() == 50
    shown = "() => [...document.images].map(one => one.complete && one.naturalWidth > 0 && one.alt != '')"
    assert page.evaluate(shown) == [True] * 100
    assert "dog" in page.locator(".gallery li").nth(1).inner_text()
    page.locator(".gallery a").nth(4).click()
    assert page.inner_text("h1") == "Row 4"
    assert "gnu" in page.inner_text("main")


def test_sound_opens_in_the_player_of_the_browser(url: str, opened: Open) -> None:
    page = opened(f"{url}rows?id=pets&version=1.0", allowed=url, offline=False)
    page.locator("tbody a[href^='file?']").nth(3).click()
    page.wait_for_selector("video, audio", state="attached")
    player = "document.querySelector('video, audio')"
    is_ready = f"one => {{ const it = {player}; it.readyState > 1 ? one() : it.oncanplay = () => one(); }}"
    page.evaluate(f"() => new Promise({is_ready})")
    assert page.evaluate(f"[{player}.duration, {player}.error]") == [1, None]


def test_a_file_leads_to_the_view(url: str, opened: Open, tmp_path: Path) -> None:
    """From a file, which is another site to the browser."""
    file = tmp_path / "link.html"
    file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">')
    page = opened(file.as_uri(), allowed=("file://", url), offline=False)
    page.wait_for_url(url)
    assert "3 datasets" in page.inner_text("header")


def test_nothing_of_the_data_runs(url: str, opened: Open) -> None:
    for address in hostile_pages(url, opened):
        page = opened(address, allowed=url, offline=False)
        assert page.evaluate("document.scripts.length") == 0
        assert "<img src=x onerror=alert(1)>" in page.inner_text("body")
        assert "\u202e" not in page.inner_text("body")


def test_all_is_reached_by_keys(url: str, opened: Open) -> None:
    page = opened(f"{url}rows?id=pets&version=1.0", allowed=url, offline=False)
    reached = reached_by_keys(page)
    for wanted in ("where", "Find", "start", "Go", "Table of rows"):
        assert wanted in reached
    page.get_by_label("Row", exact=True).fill("123")
    page.keyboard.press("Enter")
    page.wait_for_url("**start=123")
    assert page.inner_text("main [role=status]") == "Rows 123 to 172 of 300."
