"""A real browser for pages: Chromium, driven by playwright, without a network; skips where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_BAD = ("error", "warning")
AXE = Path(__file__).parents[2] / ".axe" / "package" / "axe.min.js"
Open = Callable[..., Any]


def _chromium(driver: Any) -> str | None:
    """The program: what CHROMIUM names, Debian's, or playwright's own."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [shutil.which("chromium"), shutil.which("chromium-browser")]
    return next((path for path in [*found, driver.executable_path] if path and os.path.exists(path)), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        path = _chromium(started.chromium)
        if path is None:
            pytest.skip("there is no Chromium; install it, or name it in CHROMIUM")
        # Where the user is root, as in containers, its sandbox does not start.
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Open]:
    """Call it with a URL: a page, of which every error and foreign request fails the test.

    `allowed` begins the URLs that may be requested, one or several, by default that of the page; `offline` is
    True unless the page has a server.
    """
    contexts, wrong = [], []

    def open_page(url: str, allowed: str | tuple[str, ...] | None = None, offline: bool = True) -> Any:
        given = url if allowed is None else allowed
        starts = (*((given,) if isinstance(given, str) else given), "data:")
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, offline=offline)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.partition("#")[0].startswith(starts)
                else wrong.append(f"request: {asked.url}")
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def violations() -> Callable[[Any], list[str]]:
    """Call it with a page: what axe-core says keeps people out."""
    if not AXE.is_file():
        pytest.skip("axe-core is not here; make test-browser downloads it with npm")
    source = AXE.read_text(encoding="utf-8")

    def found(page: Any) -> list[str]:
        if not page.evaluate("'axe' in window"):
            page.evaluate(f"() => {{ {source}\n }}")  # not as a script, which the policy of the page forbids
        result = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {node['target']}"
            for one in result["violations"]
            for node in one["nodes"]
        ]

    return found
