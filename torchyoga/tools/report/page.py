"""What is known of a dataset -> one page of HTML, without scripts and without anything from elsewhere.

Note 131. A page of data cannot run what the data says.
All texts are escaped by the template, controls and what turns the direction of text are shown as escapes, and
the browser is told by a policy in the page that nothing may run or be loaded: no script at all, pictures from
the page itself, the one sheet of styles that has this hash. What a page shows is bounded, and halved until it
is under 2 MB, so that data cannot make it large either.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache

import jinja2
from markupsafe import Markup

from ...reading.dataref import DataRef
from ...reading.version_ref import VersionColumns, VersionRef
from ..cells.text import shown, visible
from .columns import Columns, columns_of, first_columns
from .drawn import Drawn, drawn_of
from .history import History, day, history_of
from .sample import Sample, sample_of
from .words import number, size

__all__ = ["LARGEST_PAGE", "page_of", "policy_of", "rendered", "style"]

LARGEST_PAGE = 2 * 10**6  # bytes
_MOST_COLUMNS, _MOST_ROWS, _ROW_COLUMNS, _CELL = 200, 64, 40, 80
_MOST_INFO = 2000
_HALVINGS = 6


@dataclass(frozen=True)
class _Facts:
    """What is said first: a title, a line under it, and by title, what there is."""

    title: str
    lead: str
    facts: dict[str, str]
    info: str


def page_of(
    ref: DataRef, order: object = None, meter: object = None, title: str | None = None, seed: int = 0
) -> str:
    """The page of a dataset."""
    some, total = first_columns(ref, _MOST_COLUMNS)
    columns = columns_of(some, total, seed)
    history = history_of(ref) if isinstance(ref, (VersionRef, VersionColumns)) else None
    drawn = None if order is None else drawn_of(order, len(ref), seed)
    facts = _facts(ref, columns, title)
    measured = None if meter is None else [visible(line) for line in str(meter).splitlines()[:200]]
    most_columns, most_rows, row_columns = _MOST_COLUMNS, _MOST_ROWS, _ROW_COLUMNS
    for _ in range(_HALVINGS):
        sample = sample_of(some, seed, most_rows, row_columns, _CELL)
        text = _page(facts, columns, most_columns, sample, drawn, history, measured)
        if len(text.encode()) < LARGEST_PAGE:
            break
        most_columns, most_rows, row_columns = most_columns // 2, most_rows // 2, max(4, row_columns // 2)
    return text


def _page(
    facts: _Facts,
    columns: Columns,
    most_columns: int,
    sample: Sample,
    drawn: Drawn | None,
    history: History | None,
    meter: list[str] | None,
) -> str:
    return rendered(
        "report.html.jinja",
        facts=facts,
        columns=columns,
        cards=columns.cards[:most_columns],
        sample=sample,
        drawn=drawn,
        history=history,
        meter=meter,
    )


def _facts(ref: DataRef, columns: Columns, title: str | None) -> _Facts:
    found = {"rows": f"{len(ref):,}", "columns": f"{columns.total:,}" if columns.total else ""}
    name = f"{type(ref).__name__}"
    lead = [f"{len(ref):,} rows"]
    if isinstance(ref, (VersionRef, VersionColumns)):
        manifest = ref.manifest
        name = f"{visible(manifest.id)} {visible(manifest.version)}"
        found |= {
            "size": size(manifest.nbytes),
            "files": number(len(manifest.files)),
            "made": day(manifest.created),
        }
        lead += [size(manifest.nbytes)]
        found["where"] = ref.location.name if isinstance(ref, VersionColumns) else ""
    elif ref.row_bytes:
        found["size of a row"] = f"about {size(ref.row_bytes)}"
    if columns.total:
        lead.append(f"{columns.total:,} {'column' if columns.total == 1 else 'columns'}")
    if ref.fingerprint is not None:
        found["fingerprint"] = ref.fingerprint
    info = ref.info
    text = json.dumps(info, indent=2, ensure_ascii=False, sort_keys=True) if info else ""
    cut = f"\n… {len(text) - _MOST_INFO:,} more characters" if len(text) > _MOST_INFO else ""
    return _Facts(
        shown(title, 200) if title is not None else name,
        " · ".join(lead),
        {key: shown(value, 200) for key, value in found.items() if value},
        "\n".join(visible(line) for line in text[:_MOST_INFO].splitlines()) + cut,
    )


@lru_cache(None)
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("torchyoga.tools.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(None)
def style(name: str = "report.css") -> Markup:
    """A sheet of styles, which is of the package and no data."""
    source, _, _ = _templates().loader.get_source(_templates(), name)  # type: ignore[union-attr]
    return Markup(source.strip())


def policy_of(css: str) -> str:
    """The content security policy of a page with one sheet of styles, and nothing else that could do
    anything."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def rendered(template: str, **values: object) -> str:
    """A template with values, all of which are escaped."""
    css = style()
    text = _templates().get_template(template).render(css=css, policy=policy_of(css), **values)
    # Halves of characters, which JSON may hold, cannot be written.
    return text.encode("utf-8", "backslashreplace").decode()
