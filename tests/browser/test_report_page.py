"""The report page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layout import HOSTILE, Open, check_layout, looks, reached_by_keys

import torchyoga as yoga

SECTIONS = ["overview", "columns", "rows"]
_LAID_OUT = """() => {
  const names = [];
  for (const one of document.querySelectorAll('main section'))
    if (one.getBoundingClientRect().height > 40 && one.querySelector('h2').innerText) names.push(one.id);
  return names;
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """URLs of a page of images, one of texts and numbers, one of hostile data."""
    folder = tmp_path_factory.mktemp("pages")
    storage = yoga.Storage(folder / "storage")
    draw = np.random.default_rng(0)
    images = [
        {"image": draw.integers(0, 256, (28, 28), np.uint8), "label": n % 10, "note": "seen " * (n % 9)}
        for n in range(300)
    ]
    texts = [
        {"id": n, "text": "word " * (n % 50), "price": n / 7, "stars": n % 5, "name": "سلام عالم"}
        for n in range(300)
    ]
    hostile = [
        {
            HOSTILE: HOSTILE,
            "image": np.array([[n]], np.uint8),
            "label": f"{HOSTILE[:50]}{n % 3}",
            "x": float("nan"),
        }
        for n in range(90)
    ]
    found = {}
    for name, rows in {"images": images, "texts": texts, "hostile": hostile}.items():
        id = HOSTILE[:-4] if name == "hostile" else name
        ref = storage.submit(rows, id, "1.0", message=id, info={"classes": [id] * 10})
        path = yoga.report(ref, folder / f"{name}.html")
        found[name] = path.as_uri()
    return found


@pytest.mark.parametrize("name", ["images", "texts", "hostile"])
def test_every_section_at_any_width(pages: dict[str, str], opened: Open, name: str) -> None:
    page = opened(pages[name])
    for width, scheme in looks(page, 360, 768, 1440):
        assert page.evaluate(_LAID_OUT) == SECTIONS
        check_layout(page, width, scheme)


def test_pictures_are_shown_and_have_words(pages: dict[str, str], opened: Open) -> None:
    page = opened(pages["images"])
    shown = page.evaluate(
        "() => [...document.images].map(one => one.complete && one.naturalWidth > 0 && one.alt != '')"
    )
    assert shown == [True] * 64
    named = "one => one.getAttribute('aria-label') || one.ariaHidden"
    assert all(page.evaluate(f"() => [...document.querySelectorAll('svg')].map({named})"))


def test_nothing_of_the_data_runs(pages: dict[str, str], opened: Open) -> None:
    page = opened(pages["hostile"])
    assert page.evaluate("document.scripts.length") == 0
    assert "<img src=x onerror=alert(1)>" in page.inner_text("h1")
    assert "\\u202egpj" in page.inner_text("#rows")
    assert f"{HOSTILE[:-4]}\\u202egpj" in page.inner_text("#columns tbody")
    assert page.evaluate("[...document.images].every(one => one.src.startsWith('data:image/'))")


def test_all_is_reached_by_keys(pages: dict[str, str], opened: Open) -> None:
    reached = reached_by_keys(opened(pages["texts"]))
    tables = ["Table of columns", "Table of rows"]
    assert [label for label in reached if label in tables] == tables
    assert "Info kept with it" in reached


@pytest.mark.parametrize("name", ["images", "texts", "hostile"])
def test_axe_finds_nothing(
    pages: dict[str, str], opened: Open, violations: Callable[[Any], list[str]], name: str
) -> None:
    page = opened(pages[name])
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for look in looks(page, 360, 1440):
        assert violations(page) == [], look
