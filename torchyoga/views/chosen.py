"""Rows by number, by a condition, several times, in another order, or of several DataRefs end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.exceptions import note_batch
from ..process.numbers import as_int, distinct
from ..reading.contract import row_numbers, title_of
from ..reading.dataref import DataRef
from ..reading.instead import CALLS, advised
from ..rows.node import outermost, path_name
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints, Numbers, RowT
from .joined import JoinedRef, RowMap, end_to_end
from .over import RowView
from .recoded import named_alike
from .scan import scan, single_values

_MOST_ROWS = 2**62
_MOST_RUNS = 2**20  # about; each takes 8 bytes wherever the order is known


class RepeatedRef(RowView):
    """All rows of another DataRef, so many times: what `ref.repeat(times)` is.

    Args:
        whole: the other DataRef.
        times: how often; 0 or more.
    """

    def __init__(self, whole: DataRef, times: int) -> None:
        super().__init__(whole, times)
        self.times = as_int("times", times, low=0)
        if len(whole) * self.times > _MOST_ROWS:
            raise ValueError(f"{times} times {len(whole)} rows are more than 2**62")

    def __len__(self) -> int:
        return len(self.whole) * self.times

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind these rows."""
        return numbers % len(self.whole)

    @property
    def file_starts(self) -> Ints:
        """The whole's, for each time; of a million or more, some neighbours together."""
        begins, times = self.whole.file_starts[:-1], self.times
        begins = begins[:: max(1, -(-len(begins) * times // _MOST_RUNS))]
        step = max(1, -(-times // _MOST_RUNS))
        found = np.arange(0, times, step)[:, None] * len(self.whole) + begins
        return np.append(found.reshape(-1), len(self))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and how often."""
        return hexdigest(f"{whole} times {self.times}")

    def _title(self) -> str:
        return f"{super()._title()} {self.times} times"


def select(ref: DataRef[RowT], rows: Iterable[int] | Numbers) -> DataRef[RowT]:
    """The rows with these numbers, in this order; a row may come more than once. The first n are `ref[:n]`.

    Args:
        rows: an array, a tensor, a list, or anything that gives ints, such as a generator.

    Raises:
        IndexError: there is no such row.

    Example:
        >>> [int(row["x"]) for row in yoga.from_arrays({"x": np.arange(9)}).select([7, 0, 0, -1])]
        [7, 0, 0, 8]
    """
    given: Any = list(rows) if isinstance(rows, (Iterator, MappingView)) else rows
    return JoinedRef([ref], RowMap(end_to_end([row_numbers(given, len(ref))], len(ref))))


def order_by(ref: DataRef[RowT], name: str, descending: bool = False) -> DataRef[RowT]:
    """All rows in the order of a column of numbers or text; rows with equal values stay in their order.

    The row numbers are kept in memory, 4 bytes each, 8 beyond 2**32 rows.

    Args:
        name: a column of one number or text a row.
        descending: True puts the largest value first. NaN comes after all numbers, and None last, either way.

    Raises:
        KeyError: there is no such column.
        TypeError: its values cannot be compared.
        ValueError: it holds several values a row.

    Example:
        >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2])})
        >>> [int(row["x"]) for row in ref.order_by("x")]
        [1, 2, 3]
    """
    if not isinstance(name, str):
        raise TypeError(
            f"order_by takes the name of one column, found {name!r:.100}; to sort by several, sort by the "
            'last one first: ref.order_by("time").order_by("sensor")'
        )
    found: list[Array] = []
    masks: list[Array] = []
    refusal = f"order_by({name!r}) needs a column of one number or text a row"
    for _, values in single_values(ref, name, refusal):
        found.append(np.asarray(values))
        masks.append(_last(values))
    values = np.concatenate(found or [np.zeros(0)])
    last = np.concatenate(masks or [np.zeros(0, np.int8)])
    there = np.flatnonzero(last == 0) if last.any() else None
    values = values if there is None else values[there]
    try:
        if descending:  # rows of equal values stay in their order
            order = len(values) - 1 - np.argsort(values[::-1], kind="stable")[::-1]
        else:
            order = np.argsort(values, kind="stable")
    except TypeError as error:  # of objects only
        kinds = sorted({type(value).__name__ for value in values.tolist()})
        raise TypeError(
            f"order_by({name!r}) needs a column of numbers or text, which can be compared; it holds "
            f"{', '.join(kinds)}"
        ) from error
    if there is not None:
        order = np.concatenate([there[order], np.flatnonzero(last == 1), np.flatnonzero(last == 2)])
    return JoinedRef([ref], RowMap(end_to_end([order], len(ref))))


def repeat(ref: DataRef[RowT], times: int) -> RowView[RowT]:
    """All rows, `times` times, one pass after the other; a shuffle mixes all of them.

    Example:
        >>> [int(row["x"]) for row in yoga.from_arrays({"x": np.arange(2)}).repeat(3)]
        [0, 1, 0, 1, 0, 1]
    """
    return RepeatedRef(ref, times)


def _last(values: Array) -> npt.NDArray[np.int8]:
    """(B,) 2 for None, 1 for NaN and for times that are none, 0 for all else."""
    found = np.zeros(len(values), np.int8)
    if values.dtype == object:
        found[[value is None for value in values]] = 2
        return found
    if values.dtype.kind in "fcmM":
        found[np.asarray(values != values)] = 1
    mask = getattr(values, "mask", None)  # of NumPy's masked arrays
    if mask is not None:
        found[mask] = 2
    return found


def concat(refs: Sequence[DataRef]) -> DataRef:
    """The rows of several DataRefs, one after the other, as one DataRef.

    Args:
        refs: DataRefs with the same columns; one may come more than once. Codes with names, such as the
            labels of `image_folder`, mean the same in all rows: if they differ, those of later DataRefs are
            changed.

    Raises:
        SchemaError: their rows differ; the message names the first column that does.
        ValueError: `refs` is empty.

    Example:
        >>> low, high = yoga.from_arrays({"x": np.arange(3)}), yoga.from_arrays({"x": np.arange(7, 9)})
        >>> [int(row["x"]) for row in yoga.concat([low, high])]
        [0, 1, 2, 7, 8]
    """
    if isinstance(refs, DataRef) or not isinstance(refs, Iterable):
        raise TypeError(f"concat takes a list of DataRefs, such as [one, other], found {refs!r:.80}")
    found = list(refs)
    for number, ref in enumerate(found):
        if not isinstance(ref, DataRef):
            raise TypeError(f"concat takes DataRefs; number {number} is a {type(ref).__name__}")
    if not found:
        raise ValueError("concat needs at least one DataRef")
    found = in_one_order(found)
    check_alike(found, [f"DataRef {number}" for number in range(len(found))])
    kept = [ref for ref in found if len(ref)] or found[:1]
    return JoinedRef(kept, RowMap(range(sum(map(len, kept)))))


def in_one_order(refs: Sequence[DataRef]) -> list[DataRef]:
    """The DataRefs; those that have the columns of the first one with a schema have them in its order, and
    all have the same codes for the same names."""
    refs = named_alike(refs)
    first = next((ref.schema for ref in refs if len(ref) and ref.schema is not None), None)
    found = []
    for ref in refs:
        if first is not None and ref.schema is not None and ref.schema != first:
            whole = Projection(ref.schema, tuple(range(len(ref.schema.columns))))
            of = whole.ordered([column.name for column in first.columns])
            ref = ref._projected(of) if of.schema == first else ref
        found.append(ref)
    return found


def check_alike(refs: Sequence[DataRef], names: Sequence[str]) -> None:
    """Raises SchemaError if the rows of two DataRefs differ; names the first column that does.

    Args:
        refs: those without rows are not looked at.
        names: what each is called.
    """
    known = [(name, ref.schema) for name, ref in zip(names, refs, strict=True) if len(ref)]
    schemas = [(name, schema) for name, schema in known if schema is not None]
    for name, schema in schemas[1:]:
        if schema != schemas[0][1]:
            raise SchemaError(_difference(*schemas[0], name, schema))


def _difference(one: str, first: Schema, two: str, other: Schema) -> str:
    """The differences between the rows of two DataRefs of these names."""
    values = [{path_name(path): node.kind for path, node in outermost(each.tree)} for each in (first, other)]
    if list(values[0]) != list(values[1]):
        names = [list(each)[:20] for each in values]
        return f"{one} has the columns {names[0]}, {two} {names[1]}; take the same of each, by columns()"
    for name, kind in values[0].items():
        if "nullable" in (kind, values[1][name]) and kind != values[1][name]:
            has, lacks = (one, two) if kind == "nullable" else (two, one)
            return (
                f"{name!r} may be None in {has}, but not in {lacks}; use filled({{{name!r}: ...}}) of {has}"
            )
    for a, b in zip(first.columns, other.columns, strict=False):
        if a != b:
            return f"{one} has {a}, {two} has {b}; make them alike before, as by map_batches"
    return f"the rows of {one} and {two} nest differently; their columns are {list(values[0])[:20]}"


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
        selection. Without files the runs are of 4096 rows, as the runs of the whole are.
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
        names: a column, which the condition gets as an array (B, ...), or a list of columns, which it gets as
            a dict of arrays. A ragged column has `lengths`, `offsets` and `values`, each read when it is
            first used, and `any` and `all`, which turn a bool for each value into one for each row. Text is
            an array of objects.
        condition: a function of these arrays that returns a bool for each row, (B,).

    Raises:
        KeyError: there is no such column.
        ValueError: the condition returns something else; the message says for which rows.

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
            + ("" if mask.shape else "; names in a list give it a dict of columns")
        )
    return mask
