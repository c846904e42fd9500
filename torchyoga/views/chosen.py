"""Rows by number, several times, in the order of a column, or of several DataRefs end to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MappingView, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..process.digests import hexdigest
from ..process.numbers import as_int
from ..reading.contract import row_numbers
from ..reading.dataref import DataRef
from ..rows.node import outermost, path_name
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Numbers, RowT
from .joined import JoinedRef
from .over import RowView
from .ragged import RaggedColumn
from .recoded import named_alike
from .row_map import RowMap, end_to_end
from .scan import scan

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
        """Those of the whole, for each time; of a million or more, some neighbours together."""
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
    """These rows, in this order; a row may come more than once. The first n and the rest are slices.

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

    With `descending` the largest value comes first. Either way NaN comes after numbers, and None last.

    The row numbers are kept in memory, 4 bytes each, 8 beyond 2**32 rows.

    Example:
        >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2])})
        >>> [int(row["x"]) for row in ref.order_by("x")]
        [1, 2, 3]
    """
    found: list[Array] = []
    masks: list[Array] = []
    for _, _, columns in scan(ref, [name]):
        values = columns[name]
        if isinstance(values, RaggedColumn) or values.ndim != 1:
            raise ValueError(f"order_by({name!r}) needs a column of one number or text a row")
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
    """All rows, so many times; a shuffle mixes them all.

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
        refs: of rows that look alike; a DataRef may come more than once. Codes with names, such as the labels
            of `image_folder`, mean the same in all rows: those of later DataRefs are changed where they do
            not.

    Raises:
        SchemaError: their rows differ; names the first column that does.
        ValueError: there are none.

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
