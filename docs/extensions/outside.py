"""Pages for files outside docs/ that pages link to: the README, the changelog, examples, the licence.

In the repository such a link leads to the file. In the site it leads to a page that shows the file.
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
WHOLE = {"README.md": "generated/readme", "CHANGELOG.md": "generated/changelog"}  # pages of Markdown
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
        if not target.is_file() or (target.suffix in (".svg", ".png")):
            return found[0]  # the build warns, if there is no such file
        return f"](/{_page_of(target)}.md{found[2] or ''})"

    return _outside_code(text, lambda part: _LINK.sub(link, part))


def _linked(text: str, folder: Path) -> Iterator[Path]:
    for part in _FENCE.split(text):
        if not part.startswith("```"):
            for target, _ in _LINK.findall(part):
                path = Path(os.path.normpath(folder / target))
                if path.is_file() and not (path.suffix in (".md", ".svg") and path.is_relative_to(DOCS)):
                    yield path


def _place(name: str) -> Path:
    """The folder of the file that a page was made of."""
    return ROOT if name in WHOLE.values() else (DOCS / name).parent


def _write_pages(app: Sphinx) -> None:
    del app
    texts = {(DOCS / f"{name}.md"): DOCS / name for name in [*pages(DOCS), "index"]}
    linked = {ROOT / name for name in WHOLE}
    for path in [*texts, *linked]:
        linked |= set(_linked(path.read_text(encoding="utf-8"), path.parent))
    for path in sorted(linked):
        name = _page_of(path)
        if name in WHOLE.values():
            write(
                DOCS / f"{name}.md", path.read_text(encoding="utf-8").replace("](docs/images/", "](/images/")
            )
            continue
        inside = path.relative_to(ROOT).as_posix()
        language = _LANGUAGES.get(path.suffix, "text")
        text = (
            f"---\norphan: true\n---\n\n# {inside}\n\n````{{literalinclude}} {os.path.relpath(path, DOCS)}\n"
        )
        text = text.replace(os.path.relpath(path, DOCS), "/" + Path(os.path.relpath(path, DOCS)).as_posix())
        write(DOCS / f"{name}.md", f"{text}:language: {language}\n````\n")


def _relink(app: Sphinx, name: str, source: list[str]) -> None:
    del app
    source[0] = relinked(source[0], _place(name))


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages before they are looked for, and turns links to files into links to pages."""
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _relink)
    return {"parallel_read_safe": True}
