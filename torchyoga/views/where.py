"""A condition on columns -> the rows of a DataRef for which it holds, in their order there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.distinct import distinct
from ..process.noted import note_batch
from ..reading.dataref import Condition, DataRef, RowView, title_of
from ..rows.types import Ints
from .scan import scan
from .selection import Selection

__all__ = ["SelectedRef", "where"]

Mask = npt.NDArray[np.bool_]
_FEW_ROWS = 256  # of a file; more would take the files of a whole window out of a small cache


class SelectedRef(RowView):
    """Some rows of another DataRef, in ascending order: what `ref.where(...)` is.

    Args:
        whole: the other DataRef.
        selection: which of its rows.
        splits: the splits by a key whose parts it is of, and which part of each.
    """

    def __init__(self, whole: DataRef, selection: Selection, splits: tuple[str, ...] = ()) -> None:
        super().__init__(whole, selection, splits)
        self.selection = selection
        self.splits = splits

    def __len__(self) -> int:
        return len(self.selection)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind these rows."""
        return self.selection.rows(numbers)

    def places_of(self, rows: Ints) -> Ints:
        """Where rows of the whole come here; -1 for those that were not selected."""
        return self.selection.places(rows)

    @property
    def file_starts(self) -> Ints:
        """Where the rows of each file begin; files of which few rows are selected are together with the next.

        A block shuffle mixes a few of these runs at a time, so it would mix hardly any rows of a sparse
        selection. Without files the runs are of 4096 rows, as those of the whole are.
        """
        whole = self.whole.file_starts
        if np.array_equal(whole, equal_runs(len(self.whole))):
            return equal_runs(len(self))
        starts = distinct(np.append(self.selection.before(whole), 0))
        # The first of those in each stretch of so many rows; all, where the runs are longer.
        stretch = max(1, min(_FEW_ROWS, len(self.whole) // (2 * max(1, len(whole) - 1))))
        is_first = np.diff(starts[:-1] // stretch, prepend=-1) > 0
        return np.append(starts[:-1][is_first], len(self))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and of which rows are selected."""
        return hexdigest(f"{whole} selected {self.selection.pin}")

    def _title(self) -> str:
        return f"rows selected of {super()._title()}"


def where(ref: DataRef, names: str | Sequence[str], condition: Condition) -> SelectedRef:
    """The rows for which a condition on some columns holds; nothing but those columns is read.

    See `DataRef.where`.
    """
    if type(ref) is not SelectedRef:
        return SelectedRef(ref, Selection.of_masks(mask for _, mask in _masks(ref, names, condition)))
    # Both conditions at once, so that no row number is looked up twice.
    kept = (ref.rows_at(start + np.flatnonzero(mask)) for start, mask in _masks(ref, names, condition))
    return SelectedRef(ref.whole, Selection.of_rows(kept, len(ref.whole)), ref.splits)


def _masks(ref: DataRef, names: str | Sequence[str], condition: Condition) -> Iterator[tuple[int, Mask]]:
    """The first row of each run of rows, and which of them hold."""
    wanted = [names] if isinstance(names, str) else list(names)
    for start, stop, columns in scan(ref, wanted):
        given: Any = columns[wanted[0]] if isinstance(names, str) else columns
        try:
            held = _held(condition, given)
        except Exception as error:
            first, last = _narrowed(ref, names, condition, start, stop)
            note_batch(error, range(first, last), title_of(ref), doing="a condition of")
            raise
        yield start, _checked(held, start, stop)


def _narrowed(
    ref: DataRef, names: str | Sequence[str], condition: Condition, start: int, stop: int
) -> tuple[int, int]:
    """The first row for which a condition raises when it gets that row alone; all, if there is none."""
    first, last = start, stop
    while last - first > 1:
        middle = (first + last) // 2
        is_before = _raises(ref[first:middle], names, condition)
        first, last = (first, middle) if is_before else (middle, last)
    return (first, last) if _raises(ref[first:last], names, condition) else (start, stop)


def _raises(ref: DataRef, names: str | Sequence[str], condition: Condition) -> bool:
    try:
        for _, _, columns in scan(ref, [names] if isinstance(names, str) else list(names)):
            _held(condition, columns[names] if isinstance(names, str) else columns)
    except Exception:
        return True
    return False


def _held(condition: Condition, given: object) -> object:
    """The answer of the condition for some rows."""
    try:
        return condition(given)
    except ValueError as error:
        if "truth value of an array" not in str(error):
            raise
        raise ValueError(
            "the condition is called with arrays of many rows, which `and`, `or`, `not`, `if` and x < y < z "
            "cannot take; use &, | and ~ with parentheses, as in (x > 3) & (x < 9), and np.where for `if`"
        ) from error


def _checked(found: object, start: int, stop: int) -> Mask:
    if hasattr(found, "mask") and hasattr(found, "filled"):
        found = found.filled(False)  # of NumPy's masked arrays: nothing is known of what is masked
    mask = np.asarray(found)
    if mask.dtype != np.bool_ or mask.shape != (stop - start,):
        raise ValueError(
            f"the condition must return a bool for each row: for rows {start} to {stop - 1} an array of "
            f"shape ({stop - start},); it returned "
            + (f"{mask.dtype} of shape {mask.shape}" if mask.dtype != object else f"{found!r:.100}")
        )
    return mask
