"""Pages for files outside docs/: the README and its neighbours, and what pages link to, such as examples.

In the repository such a link leads to the file. In the site it leads to a page that shows the file, or lists
the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contents import pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"
# The README, the changelog and what else is Markdown beside them, as pages.
WHOLE = {path.name: f"generated/{path.stem.lower()}" for path in sorted(ROOT.glob("*.md"))}
_PICTURES = (".svg", ".png")
_LINK = re.compile(r"(?<!!)\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".cfg": "ini", ".toml": "toml", ".yml": "yaml", ".md": "markdown"}


def write(path: Path, text: str) -> None:
    """Writes a page if it has changed, so that the next build reads only what did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _page_of(target: Path) -> str:
    """The page of the site that shows a file of the repository."""
    inside = target.relative_to(ROOT).as_posix()
    if inside in WHOLE:
        return WHOLE[inside]
    if target.suffix == ".md" and target.is_relative_to(DOCS):
        return target.relative_to(DOCS).with_suffix("").as_posix()
    return f"generated/files/{inside}"


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def relinked(text: str, folder: Path) -> str:
    """A page's text whose links to files of the repository lead to pages; `folder` is where it lies."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[1]))
        if not target.exists() or target.suffix in _PICTURES:
            return found[0]  # the build warns, if there is no such file
        return f"](/{_page_of(target)}.md{found[2] or ''})"

    return _outside_code(text, lambda part: _LINK.sub(link, part))


def _linked(text: str, folder: Path) -> Iterator[Path]:
    for part in _FENCE.split(text):
        if not part.startswith("```"):
            for target, _ in _LINK.findall(part):
                path = Path(os.path.normpath(folder / target))
                is_page = path.suffix in (".md", *_PICTURES) and path.is_relative_to(DOCS)
                if path.exists() and not is_page:
                    yield path


def _place(name: str) -> Path:
    """The folder of the file that a page was made of."""
    return ROOT if name in WHOLE.values() else (DOCS / name).parent


def _shown(path: Path) -> str:
    """The page for a file or folder, as Markdown."""
    inside = path.relative_to(ROOT).as_posix()
    if inside in WHOLE:
        text = path.read_text(encoding="utf-8").replace("](docs/images/", "](/images/")
        text = text.replace('="docs/images/', '="../_static/')  # of pictures in HTML
        return (
            re.sub("^# .*", "# README", text, count=1, flags=re.MULTILINE) if inside == "README.md" else text
        )
    title = f"---\norphan: true\n---\n\n# {inside}\n\n"
    if path.is_dir():
        return title + "".join(
            f"- `{found.name}`\n" for found in sorted(path.iterdir()) if found.name[0] != "."
        )
    language = _LANGUAGES.get(path.suffix, "text")
    source = Path(os.path.relpath(path, DOCS)).as_posix()
    return f"{title}````{{literalinclude}} /{source}\n:language: {language}\n````\n"


def _write_pages(app: Sphinx) -> None:
    del app
    linked = {ROOT / name for name in WHOLE}
    for path in [*linked, *(DOCS / f"{name}.md" for name in [*pages(DOCS), "index"])]:
        linked |= set(_linked(path.read_text(encoding="utf-8"), path.parent))
    chosen = {DOCS / f"{_page_of(path)}.md": path for path in sorted(linked)}
    for page, path in chosen.items():
        write(page, _shown(path))
    for page in {*GENERATED.glob("*.md"), *(GENERATED / "files").rglob("*.md")} - set(chosen):
        page.unlink()  # of an earlier build


def _relink(app: Sphinx, name: str, source: list[str]) -> None:
    del app
    source[0] = relinked(source[0], _place(name))


def _scroll(app: Sphinx, name: str, template: str, context: dict[str, str], tree: object) -> None:
    """A page that shows a file is as high as the window."""
    del template, context, tree
    if name.startswith(("_modules/", "generated/files/")):
        app.add_css_file("source.css")


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages before they are looked for, and turns links to files into links to pages."""
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _relink)
    app.connect("html-page-context", _scroll)
    return {"parallel_read_safe": True}
