"""Rows by number, in the order of a column, or of several DataRefs end to end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..reading.dataref import DataRef
from ..rows.node import outermost, path_name
from ..rows.schema import Schema
from ..rows.types import Array
from .joined import JoinedRef
from .ragged import RaggedColumn
from .row_map import RowMap
from .scan import scan

__all__ = ["check_alike", "concat", "order_by", "select"]

Ints = npt.NDArray[np.int64]


def select(ref: DataRef, rows: Ints) -> DataRef:
    """These rows, each in 0..len - 1, in this order: see `DataRef.select`."""
    return JoinedRef([ref], RowMap([_small(rows.copy(), len(ref))]))


def order_by(ref: DataRef, name: str, descending: bool = False) -> DataRef:
    """All rows in the order of a column: see `DataRef.order_by`."""
    found: list[Array] = []
    for _, _, columns in scan(ref, [name]):
        values = columns[name]
        if isinstance(values, RaggedColumn) or values.ndim != 1:
            raise ValueError(f"order_by({name!r}) needs a column of one number or text a row")
        found.append(values)
    values = np.concatenate([np.zeros(0), *found]) if not found else np.concatenate(found)
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
    return JoinedRef([ref], RowMap([_small(order, len(ref))]))


def _small(numbers: Ints, total: int) -> Ints:
    """The same numbers, in 32 bits if there are no larger ones."""
    return numbers.astype(np.uint32) if total <= 2**32 else numbers


def concat(refs: Sequence[DataRef]) -> DataRef:
    """The rows of several DataRefs, one after the other, as one DataRef.

    Args:
        refs: of rows that look alike; a DataRef may come more than once.

    Raises:
        SchemaError: their rows differ; names the first column that does.
        ValueError: there are none.

    Example:
        >>> low, high = yoga.from_arrays({"x": np.arange(3)}), yoga.from_arrays({"x": np.arange(7, 9)})
        >>> [int(row["x"]) for row in yoga.concat([low, high])]
        [0, 1, 2, 7, 8]
    """
    if isinstance(refs, DataRef):
        raise TypeError("concat takes a list of DataRefs, such as [one, other]")
    found = list(refs)
    for number, ref in enumerate(found):
        if not isinstance(ref, DataRef):
            raise TypeError(f"concat takes DataRefs; number {number} is a {type(ref).__name__}")
    if not found:
        raise ValueError("concat needs at least one DataRef")
    check_alike(found, [f"DataRef {number}" for number in range(len(found))])
    kept = [ref for ref in found if len(ref)] or found[:1]
    return JoinedRef(kept, RowMap([range(sum(map(len, kept)))]))


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
    """What differs between the rows of two DataRefs of these names."""
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
            return f"{one} has {a}, {two} has {b}"
    return f"the rows of {one} and {two} nest differently; their columns are {list(values[0])[:20]}"
