"""The facts about a dataset -> one page of HTML, without scripts and without anything from elsewhere.

A page of data cannot run what the data says.
All texts are escaped by the template, controls and what turns the direction of text are shown as escapes, and
the browser is told by a policy in the page that nothing may run or be loaded: no script at all, pictures from
the page itself, the one sheet of styles that has this hash. What a page shows is bounded, and halved until it
is under 2 MB, so that data cannot make it large either.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ...process.messages import bytes_text, count_of, escaped
from ...process.numbers import as_int
from ...reading.contract import title_of
from ...reading.dataref import DataRef
from ...reading.version_ref import VersionRef
from ...versions.lineage import Lineage
from ...versions.manifest import Manifest
from ..cells.text import shown
from . import facts

REPORT = "torchyoga.tools.report"
LARGEST_PAGE = 2 * 10**6  # bytes
_MOST_COLUMNS, _MOST_ROWS, _ROW_COLUMNS, _CELL = 200, 64, 40, 80
_MOST_INFO = 2000
_HALVINGS = 6


def report(
    ref: DataRef, path: str | os.PathLike[str] = "report.html", *, title: str | None = None, seed: int = 0
) -> Path:
    """Writes a page that shows what is in a dataset: one file under 2 MB, which works offline.

    It shows columns with their histograms, and 64 rows drawn at random with thumbnails of images. Of how a
    version was made it says the message and the time only; `yoga info` says more. The statistics are those
    that a version keeps; for other data up to 10,000 rows are read. Nothing in the data can run or load
    anything, and the same version gives the same bytes. Thumbnails need Pillow. See docs/measure.md.

    Args:
        ref: a version or any other DataRef.
        path: the file to write; it is replaced.
        title: of the page; by default id and version.
        seed: of the rows that are drawn.

    Returns:
        The path.

    Raises:
        TypeError: `ref` is not a DataRef.
        CorruptError: the version is damaged.

    Example:
        >>> ref = storage.submit([{"x": n, "label": n % 3} for n in range(99)], "shown", "1.0")
        >>> path = yoga.report(ref, tmp_path / "report.html")
        >>> "Histogram of x" in path.read_text(encoding="utf-8")
        True
    """
    if not isinstance(ref, DataRef):
        raise TypeError(
            f"report takes a DataRef, found {type(ref).__name__}; fetch a version, or wrap data of your own "
            "with from_arrays or storage.submit"
        )
    text = page_of(ref, title, as_int("seed", seed, low=0))
    target = Path(path)
    part = target.with_name(f".{target.name[:80]}-{os.getpid()}.part")  # renamed: no reader finds half of it
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, target)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(part):
            raise type(error)(error.errno, error.strerror, str(target)) from None
        raise
    return target


def page_of(ref: DataRef, title: str | None = None, seed: int = 0) -> str:
    """The page of a dataset."""
    some, total = facts.first_columns(ref, _MOST_COLUMNS)
    columns = facts.columns_of(some, total, seed)
    overview = _facts(ref, columns, title)
    most_columns, most_rows, row_columns = _MOST_COLUMNS, _MOST_ROWS, _ROW_COLUMNS
    for _ in range(_HALVINGS):
        sample = facts.sample_of(some, seed, most_rows, row_columns, _CELL)
        text = rendered(
            "report.html.jinja",
            facts=overview,
            columns=columns,
            cards=columns.cards[:most_columns],
            sample=sample,
        )
        if len(text.encode()) < LARGEST_PAGE:
            break
        most_columns, most_rows, row_columns = most_columns // 2, most_rows // 2, max(4, row_columns // 2)
    return text


def _facts(ref: DataRef, columns: facts.Columns, title: str | None) -> dict[str, Any]:
    """The head of the page: a title, a line under it, what is known by title, and the info as text."""
    found = {"rows": f"{len(ref):,}", "columns": f"{columns.total:,}" if columns.total else ""}
    name = escaped(title_of(ref).removeprefix("DataRef "))
    lead = [count_of(len(ref), "row")]
    if isinstance(ref, VersionRef):
        manifest, size = ref.manifest, bytes_text(ref.manifest.nbytes)
        name = f"{escaped(manifest.id)} {escaped(manifest.version)}"
        found |= {"size": size, "files": _files(manifest), "made": _day(manifest.created)}
        found["message"] = Lineage.of(manifest.lineage).message or ""
        lead.append(size)
    elif ref._row_bytes:
        found["size of a row"] = f"about {bytes_text(ref._row_bytes)}"
    if columns.total:
        lead.append(count_of(columns.total, "column"))
    found["fingerprint"] = ref.fingerprint or ""
    info = ref.info
    text = json.dumps(info, indent=2, ensure_ascii=False, sort_keys=True) if info else ""
    return {
        "title": shown(title, 200) if title is not None else name,
        "lead": " · ".join(lead),
        "facts": {key: shown(value, 200) for key, value in found.items() if value},
        "info": _first_lines(text, _MOST_INFO),
    }


def _first_lines(text: str, most: int) -> str:
    """The first so many characters of a text of several lines, and how many more there are."""
    cut = f"\n… {len(text) - most:,} more characters" if len(text) > most else ""
    return "\n".join(map(escaped, text[:most].splitlines())) + cut


@lru_cache(None)
def templates(*packages: str) -> jinja2.Environment:
    """The templates of packages, which escape all values."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(None)
def style(name: str = "report.css", package: str = REPORT) -> Markup:
    """A sheet of styles, which is of the package and no data."""
    source, _, _ = templates(package).loader.get_source(templates(package), name)  # type: ignore[union-attr]
    return Markup(source.strip())


def policy_of(css: str, images: str = "data:", forms: str = "'none'", more: str = "") -> str:
    """The content security policy of a page with one sheet of styles, and nothing else that could do
    anything; where images may come from, and forms lead, and more directives."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    from_styles = f"style-src 'sha256-{digest}'; base-uri 'none'"
    return f"default-src 'none'; img-src {images}; {from_styles}; form-action {forms}{more}"


def rendered(template: str, **values: object) -> str:
    """A template with values, all of which are escaped."""
    css = style()
    text = templates(REPORT).get_template(template).render(css=css, policy=policy_of(css), **values)
    # Halves of characters, which JSON may hold, cannot be written.
    return text.encode("utf-8", "backslashreplace").decode()


def _files(manifest: Manifest) -> str:
    """The number of files of a version, their formats, how many are shared, and the rows left out of them."""
    found = manifest.each_file
    shared = sum(file.of is not None for file in found)
    deleted = sum(file.deleted.count for file in found if file.deleted is not None)
    formats = ", ".join(sorted({file.format for file in found}))
    said = [f"{count_of(len(found), 'file')} ({formats})" if found else "0"]
    said += [f"{shared:,} of them shared with other versions"] if shared else []
    said += [f"{deleted:,} rows in them left out"] if deleted else []
    return ", ".join(said)


def _day(created: str) -> str:
    """The time of a manifest as people read it."""
    return escaped(created.replace("T", " ").removesuffix("Z"))[:40]
