"""What pages have in a browser at any width and in both schemes, and by keys alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Open = Callable[..., Any]
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(1)</script>\u202egpj"
_BEYOND = """() => [...document.querySelectorAll('body *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.right > innerWidth + 1 && !one.closest('.scroll, pre, svg, .skip');
}).map(one => one.tagName + '.' + one.className)"""
_ACTIVE = "document.activeElement"


def looks(page: Any, *widths: int) -> Iterator[tuple[int, str]]:
    """Gives a page, whose layout is all CSS, each width and each scheme."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            yield width, scheme


def check_layout(page: Any, width: int, scheme: str) -> None:
    """Nothing is wider than the page, which is light or dark."""
    assert page.evaluate("document.documentElement.scrollWidth") == width, page.url
    assert page.evaluate(_BEYOND) == [], page.url
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is (scheme == "light")


def reached_by_keys(page: Any) -> list[str]:
    """The labels, ids or texts of what tabs reach behind the link that skips the head, all outlined."""
    page.keyboard.press("Tab")
    assert page.evaluate(f"{_ACTIVE}.className") == "skip"
    assert page.evaluate(f"{_ACTIVE}.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate(f"{_ACTIVE}.id") == "main"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(f"{_ACTIVE} === document.body"):
            break
        named = f"{_ACTIVE}.getAttribute('aria-label') || {_ACTIVE}.id || {_ACTIVE}.innerText"
        reached.append(page.evaluate(named))
        assert page.evaluate(f"getComputedStyle({_ACTIVE}).outlineStyle") == "solid", reached
    return reached
