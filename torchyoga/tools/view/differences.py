"""Two versions of a dataset -> a page of the rows and columns that differ."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...caching.comparing.diff import Diff, diff
from ...reading.dataref import DataRef
from ...rows.projection import Projection
from ..cells.text import visible
from .answer import Refused, link, number_in
from .filter import plain_name
from .rows import Values, rows_of
from .shelf import OpenRef
from .table import MOST_COLUMNS, TableCell, cells_of

__all__ = ["Differences", "differences_page"]

_MOST_KEPT, _MOST_RUNNING = 8, 4
_SECONDS_TO_WAIT = 1.0  # for a comparison, before a page says that it is running
_MOST_SHOWN = 20  # rows that were added, removed or changed, each
_SECONDS_OF_PICTURES = 2.0


@dataclass(eq=False)
class _Pending:
    """A comparison that runs, or has ended."""

    is_done: threading.Event = field(default_factory=threading.Event)
    result: Diff | None = None
    error: Exception | None = None


class Differences:
    """Comparisons of versions, one at a time, each in a thread of its own; the newest are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], _Pending] = OrderedDict()

    def of(self, old: OpenRef, new: OpenRef, keys: Sequence[str]) -> Diff | None:
        """The differences; None as long as they are being sought.

        Raises:
            Refused: too many others are running.
            Exception: what `diff` raises.
        """
        name = (*(side.whole.fingerprint or side.build for side in (old, new)), *keys)
        with self._lock:
            known = self._known.get(name)
            if known is None:
                running = [one for one in self._known.values() if not one.is_done.is_set()]
                if len(running) >= _MOST_RUNNING:
                    raise Refused(503, "other versions are being compared; try again when that has ended")
                known = self._known[name] = _Pending()
                threading.Thread(
                    target=self._compare, args=(known, old, new, keys), name="torchyoga diff", daemon=True
                ).start()
            self._known.move_to_end(name)
            for one in [one for one in self._known if self._known[one].is_done.is_set()][:-_MOST_KEPT]:
                del self._known[one]
        if not known.is_done.wait(_SECONDS_TO_WAIT):
            return None
        if known.error is not None:
            with self._lock:
                self._known.pop(name, None)  # the next look tries again
            raise known.error
        return known.result

    def _compare(self, known: _Pending, old: OpenRef, new: OpenRef, keys: Sequence[str]) -> None:
        try:
            with self._turn:
                known.result = diff(_only_read(old.whole), _only_read(new.whole), list(keys) or None)
        except Exception as error:  # told to whoever looks
            known.error = error
        finally:
            known.is_done.set()


def _only_read(ref: DataRef) -> DataRef:
    """The same columns of a version, beside which a comparison would keep the hashes of its rows."""
    schema = ref.schema
    if schema is None or not schema.columns:
        return ref
    return ref.projected(Projection(schema, tuple(range(len(schema.columns)))))


def differences_page(
    differences: Differences, sides: Mapping[str, OpenRef], values: Mapping[str, str]
) -> dict[str, Any]:
    """Values for the template of the page of differences.

    Args:
        differences: finds them.
        sides: the old and the new version, by these names.
        values: the parameters of the address.

    Raises:
        Refused: a column of the key is not there, or a key occurs twice.
    """
    old, new = sides["old"], sides["new"]
    keys = [part.strip() for part in values.get("key", "").split(",") if part.strip()]
    here: dict[str, Any] = {name: values.get(name) or None for name in ("id", "old", "new", "key")}
    places = {side: {"id": values["id"], "version": values[side]} for side in ("old", "new")}
    try:
        result = differences.of(old, new, [_in_schema(new, name) for name in keys])
    except (KeyError, ValueError) as error:
        raise Refused(400, str(error.args[0] if isinstance(error, KeyError) else error)) from error
    if result is None:
        return {"is_running": True, "lines": [], "sections": [], "changed": None}
    sections = []
    for title, side, numbers in (("added", "new", result.added), ("removed", "old", result.removed)):
        start = min(number_in(values, title, 0), max(0, len(numbers) - 1))
        some = numbers[start : start + _MOST_SHOWN].tolist()
        rows, until = _rows(sides[side], some), time.monotonic() + _SECONDS_OF_PICTURES
        cells = [
            (number, cells_of(sides[side], number, row[:MOST_COLUMNS], places[side], until)[0])
            for number, row in zip(some, rows, strict=True)
        ]
        if cells:
            sections.append(_section(title, cells, places[side], start, len(numbers), here))
    return {
        "is_running": False,
        "lines": [visible(line) for line in str(result).split("\n")],
        "is_same": result.same,
        "sections": sections,
        "changed": _changed(result, old, new, places, values, here) if len(result.changed) else None,
    }


def _in_schema(opened: OpenRef, name: str) -> str:
    """The name of a column as its schema writes it."""
    by_name = dict(zip(map(visible, opened.shown_names), opened.names, strict=True))
    return by_name.get(name, name)


def _rows(opened: OpenRef, numbers: Sequence[int]) -> list[Values]:
    cut = opened.window(0, MOST_COLUMNS)
    return rows_of(cut(opened.ref), numbers, opened.held)


def _section(
    title: str,
    rows: Sequence[tuple[int, list[TableCell]]],
    place: Mapping[str, str],
    start: int,
    total: int,
    here: Mapping[str, Any],
) -> dict[str, Any]:
    columns = list(dict.fromkeys(cell.column for _, cells in rows for cell in cells))
    return {
        "title": title,
        "columns": columns,
        "rows": [
            {
                "number": number,
                "link": link("row", **place, row=number),
                "by_name": {cell.column: cell for cell in cells},
            }
            for number, cells in rows
        ],
        **_paged(title, start, total, here),
    }


def _paged(title: str, start: int, total: int, here: Mapping[str, Any]) -> dict[str, Any]:
    stop = min(total, start + _MOST_SHOWN)
    return {
        "start": start,
        "stop": stop,
        "total": total,
        "before": link("diff", **{**here, title: max(0, start - _MOST_SHOWN) or None}) if start else None,
        "after": link("diff", **{**here, title: stop}) if stop < total else None,
    }


def _changed(
    result: Diff,
    old: OpenRef,
    new: OpenRef,
    places: Mapping[str, Mapping[str, str]],
    values: Mapping[str, str],
    here: Mapping[str, Any],
) -> dict[str, Any]:
    """The rows that have the same key and other values: each value that differs, before and after."""
    start = min(number_in(values, "changed", 0), len(result.changed) - 1)
    pairs = result.changed[start : start + _MOST_SHOWN].tolist()
    before = _rows(old, [pair[0] for pair in pairs])
    after = _rows(new, [pair[1] for pair in pairs])
    keys, until = {plain_name(name) for name in result.key}, time.monotonic() + _SECONDS_OF_PICTURES
    rows, columns = [], dict.fromkeys(map(visible, keys))
    for (first, second), one, other in zip(pairs, before, after, strict=True):
        was = dict(one)
        cells = {}
        old_cells = {cell.column: cell for cell in cells_of(old, first, one, places["old"], until)[0]}
        for (name, value), cell in zip(
            other, cells_of(new, second, other, places["new"], until)[0], strict=True
        ):
            differs = name not in was or not _same(was[name], value)
            if differs or name in keys:
                cells[cell.column] = (old_cells.get(cell.column), cell, differs)
                columns[cell.column] = None
        links = (link("row", **places["old"], row=first), link("row", **places["new"], row=second))
        rows.append({"old": first, "new": second, "links": links, "by_name": cells})
    return {"columns": list(columns), "rows": rows, **_paged("changed", start, len(result.changed), here)}


def _same(one: Any, other: Any) -> bool:
    """Whether two values of rows are equal, bit by bit where they are arrays."""
    if isinstance(one, (np.ndarray, np.generic)) or hasattr(one, "numpy"):
        mine, theirs = np.asarray(one), np.asarray(other)
        return (
            mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
        )
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:  # of any kind: the values are a user's own
        return False
