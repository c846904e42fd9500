"""Tutorials are notebooks, kept as Markdown: a build runs them, and shows what they print and draw.

Each has a process and a temporary folder of its own. One that fails ends the build with its error.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbclient
import nbformat
from outside import ROOT, write
from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DOCS = ROOT / "docs"
GENERATED = DOCS / "generated" / "tutorials"
TIMEOUT = 120  # seconds for a cell
_LOG = logging.getLogger("torchyoga.docs.notebooks")
_LOG.setLevel(logging.ERROR)
# Pictures are SVG, without the time at which they were drawn, with text as paths: the same on every machine.
SETTINGS = """
import matplotlib_inline.backend_inline
import matplotlib.pyplot
matplotlib_inline.backend_inline.set_matplotlib_formats("svg", metadata={"Date": None})
matplotlib.pyplot.rcParams.update({"svg.hashsalt": "torchyoga", "font.size": 9})
"""


def notebook(path: Path) -> nbformat.NotebookNode:
    """A tutorial as a notebook that has not run."""
    made = jupytext.reads(path.read_text(encoding="utf-8"), fmt="md")
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same in each build
    made.metadata = nbformat.from_dict({"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    return made


def executed(path: Path) -> nbformat.NotebookNode:
    """A tutorial as a notebook that ran in a process and a folder of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails; it holds the cell and the error.
    """
    made = notebook(path)
    draws = any("plt." in cell.source for cell in made.cells if cell.cell_type == "code")
    if draws:
        made.cells.insert(0, nbformat.v4.new_code_cell(SETTINGS))
    with tempfile.TemporaryDirectory() as folder:
        seen = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        client = nbclient.NotebookClient(
            made,
            timeout=TIMEOUT,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            log=_LOG,
        )
        client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(seen)})
    if draws:
        del made.cells[0]
    return made


def shown(made: nbformat.NotebookNode, name: str) -> str:
    """A notebook as Markdown, each cell followed by what it printed and drew."""
    parts, drawn = [], 0
    for cell in made.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        complaints = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        if complaints:
            raise ExtensionError(f"docs/tutorials/{name}.md writes to stderr: {complaints}\n{cell.source}")
        printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for output in cell.outputs:
            if "image/svg+xml" in output.get("data", {}):
                title = re.search(r'set_title\("([^"]+)"\)', cell.source)
                if title is None:
                    raise ExtensionError(f"a picture of docs/tutorials/{name}.md has no title: {cell.source}")
                write(GENERATED / f"{name}-{drawn}.svg", output["data"]["image/svg+xml"])
                parts.append(f"![{title[1]}](/generated/tutorials/{name}-{drawn}.svg)")
                drawn += 1
    return "\n\n".join(parts) + "\n"


def _is_tutorial(name: str) -> bool:
    return name.startswith("tutorials/")


def _run(app: Sphinx, env: BuildEnvironment, names: list[str]) -> None:
    """Runs the tutorials that are to be read, two at a time."""
    del env
    chosen = [name for name in names if _is_tutorial(name)]
    with ThreadPoolExecutor(2) as executor:
        ran = executor.map(lambda name: executed(DOCS / f"{name}.md"), chosen)
        app.torchyoga_ran = dict(zip(chosen, ran, strict=True))  # type: ignore[attr-defined]


def _show(app: Sphinx, name: str, source: list[str]) -> None:
    if not _is_tutorial(name):
        return
    made = app.torchyoga_ran[name]  # type: ignore[attr-defined]
    short = name.removeprefix("tutorials/")
    write(GENERATED / f"{short}.ipynb", nbformat.writes(notebook(DOCS / f"{name}.md")) + "\n")
    source[0] = shown(made, short)
    source[0] += (
        f"\nThis page is a notebook: {{download}}`{short}.ipynb </generated/tutorials/{short}.ipynb>`.\n"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs tutorials before pages are read, and puts their output into them."""
    app.connect("env-before-read-docs", _run)
    app.connect("source-read", _show, priority=100)  # before links are changed
    return {"parallel_read_safe": False}
