"""A dataset -> a small table for notebooks."""

from __future__ import annotations

from html import escape

from ...process.messages import escaped
from ...reading.dataref import DataRef
from .columns import ColumnCard, columns_of, first_columns
from .page import rendered
from .sample import RowSample, is_remote, keeps_stats, sample_of

_MOST_COLUMNS, _MOST_ROWS, _ROW_COLUMNS = 20, 5, 10
_MOST_BYTES = 2**24  # of a row, for which five are read


def notebook_page(ref: DataRef) -> str:
    """The table of a dataset in a notebook: its columns and a few rows; its text, if that cannot be made.

    Statistics are those that a version keeps; nothing is counted, and nothing is downloaded.
    """
    try:
        return _page(ref)
    except Exception as error:  # of any kind: a notebook shows a dataset wherever it is named
        said = f"{type(error).__name__}: {escaped(str(error))[:300]}"
        return f"<pre>{escape(_text(ref))}\n{escape(said)}</pre>"


def _page(ref: DataRef) -> str:
    some, total = first_columns(ref, _MOST_COLUMNS)
    cards: tuple[ColumnCard, ...] = columns_of(some, total, 0).cards if keeps_stats(some) else ()
    if not cards and some.schema is not None:
        cards = columns_of(some[:0], total, 0).cards
    notes = []
    sample = RowSample((), ())
    if is_remote(ref):
        notes.append("Rows are not shown, since files might have to be downloaded.")
    elif ref._row_bytes > _MOST_BYTES:
        notes.append("Rows are not shown, since they are large.")
    else:
        sample = sample_of(some, 0, _MOST_ROWS, _ROW_COLUMNS, 40)
        notes += sample.notes
    if total > len(cards) > 0:
        notes.insert(0, f"The first {len(cards)} of {total:,} columns.")
    return rendered(
        "notebook.html.jinja", text=_text(ref), rows=f"{len(ref):,}", cards=cards, sample=sample, notes=notes
    )


def _text(ref: DataRef) -> str:
    try:
        return escaped(repr(ref))[:400]
    except Exception:  # of any kind, as above
        return f"<{type(ref).__name__}>"
