"""A dataset, a first row and a condition -> the rows of a page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from ...reading.dataref import DataRef
from ...reading.in_epoch import in_epoch
from ..cells.flat import bytes_of, flat
from .filter import Filter

__all__ = ["MOST_LOOKED", "Found", "found_from", "names_of", "row_of"]

MOST_LOOKED = 20_000  # rows, for one page
_MOST_SECONDS = 3.0
_MOST_BYTES = 2**26  # read for one page; a row that is larger is read nevertheless
_AT_ONCE = 1024  # rows
Values = list[tuple[str, object]]


@dataclass(frozen=True)
class Found:
    """The rows of a page.

    Attributes:
        rows: the number of each, and its values by name.
        start: the first row that was looked at; `stop`: the first that was not.
    """

    rows: tuple[tuple[int, Values], ...]
    start: int
    stop: int


def row_of(ref: DataRef, number: int, held: AbstractContextManager[object] | None = None) -> Values:
    """The values of one row by name."""
    (row,) = _taken(ref, [number], held)
    return row


def names_of(ref: DataRef, held: AbstractContextManager[object] | None = None) -> list[str]:
    """The names of the values of rows: those of the first one, and of the schema."""
    schema = ref.schema
    names = [] if schema is None else [one.name for one in schema.columns if not one.name.endswith("}")]
    found = [name for name, _ in row_of(ref, 0, held)] if len(ref) else []
    return list(dict.fromkeys([*found, *names]))


def found_from(
    ref: DataRef,
    start: int,
    most: int,
    condition: Filter | None = None,
    shown: DataRef | None = None,
    held: AbstractContextManager[object] | None = None,
) -> Found:
    """The rows from one on that meet a condition.

    Args:
        ref: the dataset.
        start: the first row to look at.
        most: rows; fewer if they are large, or if a bounded number of them had to be looked at.
        condition: on a column; only that one is read to find the rows.
        shown: the same rows with the columns that are shown.
        held: held while rows are taken.
    """
    shown = ref if shown is None else shown
    if condition is None:
        return _read(shown, range(start, min(start + most, len(ref))), start, len(ref), held)
    narrow = _narrow(ref, condition.column)
    at_once = max(1, min(_AT_ONCE, _MOST_BYTES // 8 // max(1, narrow.row_bytes)))
    end, until = min(len(ref), start + MOST_LOOKED), time.monotonic() + _MOST_SECONDS
    numbers: list[int] = []
    at = start
    while at < end and len(numbers) < most and (at == start or time.monotonic() < until):
        chunk = range(at, min(at + at_once, end))
        for number, row in zip(chunk, _taken(narrow, chunk, held), strict=True):
            at = number + 1
            if any(condition.holds(value) for name, value in row if name == condition.column):
                numbers.append(number)
                if len(numbers) == most:
                    break
    return _read(shown, numbers, start, at, held)


def _read(
    ref: DataRef,
    numbers: Sequence[int],
    start: int,
    stop: int,
    held: AbstractContextManager[object] | None,
) -> Found:
    """Rows, until they are too many bytes."""
    step = max(1, min(16, _MOST_BYTES // 8 // max(1, ref.row_bytes)))
    rows: list[tuple[int, Values]] = []
    read = 0
    for begin in range(0, len(numbers), step):
        part = numbers[begin : begin + step]
        if read > _MOST_BYTES:
            return Found(tuple(rows), start, part[0])
        for number, row in zip(part, _taken(ref, part, held), strict=True):
            rows.append((number, row))
            read += sum(bytes_of(value) for _, value in row)
    if isinstance(numbers, range):  # all of them, and no more
        stop = numbers.stop
    return Found(tuple(rows), start, max(start, stop))


def _narrow(ref: DataRef, column: str) -> DataRef:
    schema = ref.schema
    if schema is None or column not in {one.name for one in schema.columns}:
        return ref
    return ref.columns([column])


def _taken(ref: DataRef, numbers: Sequence[int], held: AbstractContextManager[object] | None) -> list[Values]:
    with held or nullcontext():
        rows = in_epoch(ref, 0, 0).take(np.array(numbers, np.int64))
        return [flat(row) for row in rows]
