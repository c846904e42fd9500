"""The documentation site: built offline without a warning, complete, and no link in it leads nowhere."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

import torchyoga
from docs import ROOT, TUTORIALS, blocks
from torchyoga.process.lazy import cached_property

pytest.importorskip("sphinx", reason="the site needs `pip install torchyoga[docs]`")
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Without a network, where that is allowed: a page that would be fetched fails.
_OFFLINE = ["unshare", "--net", "--map-root-user"]


def extension(name: str) -> ModuleType:
    """A module of docs/extensions/."""
    folder = str(DOCS / "extensions")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


class Page(HTMLParser):
    """What tests look at in a page: names to which links lead, links, other files, its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.files: list[str] = []
        self.without_alt = 0
        self._texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.words = _words("".join(self._texts))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.ids |= {value for value in (found.get("id"), found.get("name")) if value}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        source = found.get("src") or (found.get("href") if tag == "link" else None)
        if source:
            self.files.append(source)
        self.without_alt += tag == "img" and not found.get("alt")


def _is_offline_possible() -> bool:
    try:
        return subprocess.run([*_OFFLINE, "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


def _with_loopback(command: list[str]) -> list[str]:
    """The command in a network that has nothing but this machine, which tutorials use."""
    if not _is_offline_possible():
        return command
    up = "import fcntl, os, socket, struct, sys; s = socket.socket();"
    up += "fcntl.ioctl(s, 0x8914, struct.pack('16sh', b'lo', 1)); os.execvp(sys.argv[1], sys.argv[1:])"
    return [*_OFFLINE, sys.executable, "-c", up, *command]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, once for all processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    with FileLock(f"{folder}.lock", timeout=550):
        if not (folder / "done").exists():
            finished = subprocess.run(
                _with_loopback(command), cwd=ROOT, capture_output=True, text=True, timeout=500
            )
            assert finished.returncode == 0, finished.stdout + finished.stderr[-5000:]
            (folder / "done").touch()
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def _inside(links: list[str]) -> Iterator[tuple[str, str]]:
    """Path and anchor of each link that stays on this machine."""
    for link in links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc and not link.startswith("data:"):
            yield unquote(parts.path), unquote(parts.fragment)


@pytest.mark.rest
def test_links_within_the_site_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for file, anchor in _inside(page.links + page.files):
            target = Path(os.path.normpath(path.parent / file)) if file else path
            if not target.is_file():
                broken.append(f"{path.name}: {file}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                broken.append(f"{path.name}: {file}#{anchor}")
    assert not broken, broken


@pytest.mark.rest
def test_nothing_is_loaded_from_elsewhere_and_every_picture_says_what_it_shows(
    pages: dict[Path, Page],
) -> None:
    for path, page in pages.items():
        assert not [file for file in page.files if urlsplit(file).netloc], path
        assert not page.without_alt, path


@pytest.mark.rest
def test_every_page_is_in_the_sidebar(site: Path, pages: dict[Path, Page]) -> None:
    shown = {os.path.normpath(file) for file, _ in _inside(pages[site / "index.html"].links)}
    written = extension("contents").pages(DOCS)
    assert len(written) > 20
    for name in [*written, "generated/readme", "generated/changelog"]:
        assert f"{name}.html" in shown, name


@pytest.mark.rest
def test_every_public_name_has_an_entry_with_its_source(site: Path, pages: dict[Path, Page]) -> None:
    names = extension("reference").public_names()
    assert {f"torchyoga.{name}" for name in torchyoga.__all__} - {
        "torchyoga.codecs",
        "torchyoga.errors",
    } <= set(names)
    reference = site / "generated" / "reference"
    entries = {path: page for path, page in pages.items() if path.is_relative_to(reference)}
    for name in names:
        found = [path for path, page in entries.items() if name in page.ids]
        assert len(found) == 1, f"{name} has entries in {found}"
    sources = {link for page in entries.values() for link in page.links if "_modules/" in link}
    without = [name for name in names if not any(_leads_to(link, name) for link in sources)]
    assert without == ["torchyoga.compat.yogadl.Submittable"]  # another name for Any


def _entries() -> Iterator[tuple[str, str]]:
    """Name and docstring of each entry of the reference, and of what is in it."""
    reference = extension("reference")
    for group in reference.GROUPS.values():
        if group.module in reference.FRAMEWORKS:
            continue
        for name in [*(f"{group.module}.{name}" for name in group.names), *group.results]:
            module, _, last = name.rpartition(".")
            thing = getattr(reference.located(module), last)
            yield name, inspect.getdoc(thing) or ""
            for member in dir(thing) if inspect.isclass(thing) else ():
                found = inspect.getattr_static(thing, member)
                if type(found).__name__ == "_Method":  # a function that is found when it is first looked at
                    found = getattr(thing, member)
                if isinstance(found, (property, cached_property)) or inspect.isroutine(found):
                    yield f"{name}.{member}", inspect.getdoc(found) or ""


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


@pytest.mark.rest
def test_no_entry_of_the_reference_is_torn(site: Path, pages: dict[Path, Page]) -> None:
    seen, torn = 0, []
    reference = site / "generated" / "reference"
    entries = {id: page for path, page in pages.items() if path.is_relative_to(reference) for id in page.ids}
    for name, docstring in _entries():
        if name in entries and docstring and not docstring.startswith("Special type"):  # Any
            seen += 1
            beginning = docstring.partition("\n\n")[0]
            if _words(beginning) not in entries[name].words:
                torn.append(f"{name}: {beginning}")
    assert seen > 250
    assert not torn, torn


def test_what_comes_back_is_not_torn_at_a_colon() -> None:
    # Napoleon takes what is before one in the first line for a type; of properties, an extension prevents it.
    for path in (ROOT / "torchyoga").rglob("*.py"):
        for line in re.findall(r"^ +(?:Returns|Yields):\n(.+)", path.read_text(), re.MULTILINE):
            assert not re.search(r":(?=\s|$)", re.sub("`[^`]*`", "", line)), f"{path}: {line}"


def _leads_to(link: str, name: str) -> bool:
    path, _, anchor = link.partition("#")
    module = path.partition("_modules/")[2].removesuffix(".html").replace("/", ".")
    package = name.rpartition(".")[0].replace("torchyoga.codecs", "torchyoga.coding")
    return anchor == name.rpartition(".")[2] and module.startswith(package)


@pytest.mark.rest
def test_a_first_program_is_on_the_start_page_and_a_tutorial_is_one_click_away(
    site: Path, pages: dict[Path, Page]
) -> None:
    assert "tutorials/digits.html" in pages[site / "index.html"].links
    assert "load_state_dict" in (site / "index.html").read_text()
    assert "index.html" in {Path(link).name for link in pages[site / "search.html"].links}


@pytest.mark.rest
def test_tutorials_show_what_they_printed_and_can_be_taken_along(site: Path) -> None:
    for tutorial in TUTORIALS:
        text = (site / "tutorials" / f"{tutorial.stem}.html").read_text()
        assert "highlight-text" in text, tutorial
        assert list(site.rglob(f"{tutorial.stem}.ipynb")), tutorial
    assert "all 138 losses are equal" in (site / "tutorials" / "digits.html").read_text()
    assert (site / "tutorials" / "language.html").read_text().count("<img") == 1


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    sync_api: Any = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield (browser := playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]))
        browser.close()


@pytest.mark.rest
def test_the_search_finds_pages_in_a_browser_without_a_server(site: Path, browser: Any) -> None:
    elsewhere, errors = [], []
    page = browser.new_page()
    page.on("request", lambda request: elsewhere.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for words, expected in (("shuffle_quality", "loading.html"), ("loss spike", "resume.html")):
        page.goto(f"file://{site}/search.html?q={words.replace(' ', '+')}")
        page.wait_for_selector("#search-results li a", timeout=30_000)
        page.wait_for_function("() => /found|matching/i.test(document.body.innerText)", timeout=30_000)
        found = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.href)")
        assert any(expected in link for link in found), (words, found)
    page.goto(f"file://{site}/index.html")
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= width, f"the start page is {wide} wide on a screen of {width}"
    assert not errors
    assert not [url for url in elsewhere if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.rest
def test_no_page_is_endless_and_its_code_can_be_copied(site: Path, browser: Any) -> None:
    high, copied = {}, {}
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    for path in sorted(set(site.rglob("*.html")) - set(site.glob("tutorials/*"))):
        page.goto(f"file://{path}")
        high[path.name] = page.evaluate("() => document.documentElement.scrollHeight")
    page.goto(f"file://{site}/index.html")
    for kind in ("console", "python"):
        page.click(f"div.highlight-{kind} button.copy", force=True)
        page.wait_for_selector(f"div.highlight-{kind} button.copy:text('Copied')")
        copied[kind] = page.evaluate("() => navigator.clipboard.readText()")
    assert not {name: height for name, height in high.items() if height > 12_000}
    assert copied["console"] == "pip install .\n"
    assert copied["python"].rstrip() == blocks(DOCS / "index.md", "python")[0].rstrip()


def test_what_users_call_comes_first_on_the_page_of_a_class_and_the_contract_last() -> None:
    reference = extension("reference")
    main = reference.class_pages("torchyoga.DataRef")["DataRef"]
    shown = re.findall(r"DataRef\.(\w+)", main)
    assert shown.index("where") < shown.index("schema") < shown.index("take")
    assert "in_epoch" in main.partition("A DataRef of your own")[2]
    for name in reference.PAGES_OF:
        pages = reference.class_pages(name).values()
        said = [one for page in pages for one in re.findall(rf"{re.escape(name)}\.(\w+)", page)]
        assert sorted(said) == sorted(reference.members(getattr(torchyoga, name.rpartition(".")[2])))


def test_to_stop_and_resume_is_the_second_chapter_of_the_guide() -> None:
    assert extension("contents").sections(DOCS)["Guide"][:2] == ["data", "resume"]


def test_every_public_name_is_in_one_group_of_the_reference() -> None:
    extension("reference").check()


@pytest.mark.parametrize("change", ["missing", "twice", "unknown"])
def test_a_name_in_no_group_is_named(change: str) -> None:
    reference = extension("reference")
    group = reference.GROUPS["loading"]
    names = {"missing": group.names[1:], "twice": [*group.names, "Storage"], "unknown": [*group.names, "x"]}
    message = {
        "missing": "DataLoader is in no group",
        "twice": "Storage is in 2 groups",
        "unknown": "x is in",
    }
    groups = {**reference.GROUPS, "loading": reference.Group(*group[:3], names[change])}
    with pytest.raises(reference.ConfigError, match=f"torchyoga.{message[change]}"):
        reference.check(groups)


def test_a_new_page_comes_into_the_contents(tmp_path: Path) -> None:
    for name in ("index", "data", "brand-new", "measure", "_build/x", "generated/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md").write_text("# Page\n")
    found = extension("contents").sections(tmp_path)
    assert found["Guide"] == ["data"]
    assert found["Tools and more"] == ["measure", "brand-new"]
    assert "Tutorials" not in found


def test_links_to_files_of_the_repository_lead_to_pages() -> None:
    outside = extension("outside")
    text = "[a](../README.md#more) [b](data.md) [c](../examples/views.py) [d](https://x.y/z.md) "
    text += "![e](images/order.svg)\n```python\n[f](../README.md)\n```\n"
    assert outside.relinked(text, DOCS) == (
        "[a](/generated/readme.md#more) [b](/data.md) [c](/generated/files/examples/views.py.md) "
        "[d](https://x.y/z.md) ![e](images/order.svg)\n```python\n[f](../README.md)\n```\n"
    )
    assert outside.relinked("[a](../examples)", DOCS) == "[a](/generated/files/examples.md)"
    assert outside.relinked("[a](docs/data.md)", ROOT) == "[a](/data.md)"


@pytest.mark.rest
def test_a_tutorial_is_a_notebook_and_complaints_are_errors(tmp_path: Path) -> None:
    notebooks = extension("notebooks")
    page = tmp_path / "small.md"
    page.write_text("# Small\n\nText.\n\n```python\nprint(1 + 1)\n```\n")
    made = notebooks.executed(page)
    assert [cell.cell_type for cell in made.cells] == ["markdown", "code"]
    assert notebooks.shown(made, "small").endswith("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n")
    page.write_text("```python\nimport sys\n_ = sys.stderr.write('oh')\n```\n")
    with pytest.raises(notebooks.ExtensionError, match=r"small\.md writes to stderr: \['oh'\]"):
        notebooks.shown(notebooks.executed(page), "small")


def test_each_library_to_move_from_has_a_table() -> None:
    _, *parts = re.split(r"^## ", (DOCS / "moving.md").read_text(), flags=re.MULTILINE)
    assert len(parts) == 9
    for part in parts:
        table = r"^\| .+ \| torchyoga \|\n\|---\|---\|\n(\| .+ \|\n){3}"
        assert re.search(table, part, re.MULTILINE), part[:20]


def test_what_is_called_evidence_is_a_file_of_tests() -> None:
    named = re.findall(r"\]\((\.\./tests/[^)]+)\)", (DOCS / "guarantees.md").read_text())
    assert len(set(named)) > 25
    for path in named:
        assert "def test_" in (DOCS / path).read_text(), path
