"""The contents of the site: which pages there are, by section, in the order of the sidebar.

A page of docs/ that no section names comes into "Tools and more", so that a new page is never out of reach.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS = {
    "Begin": ["install", "moving"],
    "Tutorials": ["tutorials/digits", "tutorials/cluster", "tutorials/language", "tutorials/robotics"],
    "How to": ["howto/script"],
    "Guide": [
        "data",
        "resume",
        "caching",
        "views",
        "mixtures",
        "packing",
        "remote",
        "trainers",
        "frameworks",
    ],
    "How it works": ["guarantees", "performance", "design", "generated/format"],
    "Tools and more": ["commands", "measure"],
    "Reference": ["generated/commands/index", "generated/reference/*"],
    "The project": [
        "generated/readme",
        "generated/changelog",
        "generated/contributing",
        "generated/security",
        "generated/code_of_conduct",
    ],
}
REST = "Tools and more"


def pages(docs: Path) -> list[str]:
    """Names of all pages that are written by hand, but for the start page."""
    found = [path.relative_to(docs) for path in docs.rglob("*.md")]
    names = [
        path.with_suffix("").as_posix() for path in found if path.parts[0] not in ("_build", "generated")
    ]
    return sorted(name for name in names if name != "index")


def sections(docs: Path) -> dict[str, list[str]]:
    """Pages by section: those that exist, and all others in the section for the rest."""
    existing = pages(docs)
    known = {name for names in SECTIONS.values() for name in names}
    chosen = {
        title: [name for name in names if name in existing or name.startswith("generated/")]
        for title, names in SECTIONS.items()
    }
    chosen[REST] += [name for name in existing if name not in known]
    return {title: names for title, names in chosen.items() if names}


def _add(app: Sphinx, name: str, source: list[str]) -> None:
    if name != "index":
        return
    for title, names in sections(Path(app.srcdir)).items():
        entries = "\n".join(f"/{name}" for name in names)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{entries}\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the contents to the start page, which stays plain Markdown in the repository."""
    app.connect("source-read", _add)
    return {"parallel_read_safe": True}
