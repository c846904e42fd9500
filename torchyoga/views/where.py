"""A condition on columns -> the rows of a DataRef for which it holds, in their order there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.exceptions import note_batch
from ..process.numbers import distinct
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..reading.instead import CALLS, advised
from ..rows.types import Ints, RowT
from .over import RowView
from .row_map import RowMap, end_to_end
from .scan import scan

Condition: TypeAlias = Callable[[Any], npt.ArrayLike]  # columns, as arrays of rows, to a bool for each row
Mask = npt.NDArray[np.bool_]
_FEW_ROWS = 256  # of a file; more would take the files of a whole window out of a small cache


class SelectedRef(RowView):
    """Some rows of another DataRef, in ascending order: what `ref.where(...)` is.

    Args:
        whole: the other DataRef.
        rows: which of its rows, in ascending order.
        splits: the splits by a key whose parts it is of, and which part of each.
    """

    def __init__(self, whole: DataRef, rows: RowMap, splits: tuple[str, ...] = ()) -> None:
        super().__init__(whole, rows, splits)
        self.rows = rows
        self.splits = splits

    def __len__(self) -> int:
        return len(self.rows)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind these rows."""
        return self.rows.rows(numbers)

    @property
    def file_starts(self) -> Ints:
        """Where the rows of each file begin; files of which few rows are selected are together with the next.

        A block shuffle mixes a few of these runs at a time, so it would mix hardly any rows of a sparse
        selection. Without files the runs are of 4096 rows, as those of the whole are.
        """
        whole = self.whole.file_starts
        if np.array_equal(whole, equal_runs(len(self.whole))):
            return equal_runs(len(self))
        starts = distinct(np.append(self.rows.before(whole), 0))
        # The first of those in each stretch of so many rows; all, where the runs are longer.
        stretch = max(1, min(_FEW_ROWS, len(self.whole) // (2 * max(1, len(whole) - 1))))
        is_first = np.diff(starts[:-1] // stretch, prepend=-1) > 0
        return np.append(starts[:-1][is_first], len(self))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and of which rows are selected."""
        return hexdigest(f"{whole} selected {self.rows.pin}")

    def _title(self) -> str:
        return f"rows selected of {super()._title()}"


@advised
def where(ref: DataRef[RowT], names: str | Sequence[str], condition: Condition) -> RowView[RowT]:
    """The rows for which a condition on some columns holds, in their order; only these columns are read.

    The condition is called with thousands of rows at once, so it should work on arrays. The numbers of the
    rows are kept in memory, 4 bytes each, 8 beyond 2**32 rows.

    Args:
        names: a column, which the condition gets as an array (B, ...), or several, as a dict of arrays.
            Of a ragged column it gets `lengths`, `offsets` and `values`, each read when looked at, and
            `any` and `all`, which turn a bool for each value into one for each row. Text is an array of
            objects.
        condition: returns a bool for each row, (B,).

    Raises:
        KeyError: there is no such column.
        ValueError: the condition returns something else; the message gives the rows.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(9), "y": np.arange(9) % 3})
        >>> [int(row["x"]) for row in ref.where("y", lambda y: y == 2)]
        [2, 5, 8]
        >>> [int(row["x"]) for row in ref.where(["x", "y"], lambda c: c["x"] < 3 * c["y"])]
        [1, 2, 5]
    """
    if not callable(condition):
        raise TypeError(
            f"where takes a function as its condition, found {condition!r:.80}; write {CALLS['where']}"
        )
    found = (start + np.flatnonzero(mask) for start, mask in _masks(ref, names, condition))
    if type(ref) is not SelectedRef:
        return SelectedRef(ref, RowMap(end_to_end(found, len(ref))))
    # Both conditions at once, so that no row number is looked up twice.
    whole, kept = ref.whole, map(ref.rows_at, found)
    return SelectedRef(whole, RowMap(end_to_end(kept, len(whole))), ref.splits)


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
