"""Whole columns of a DataRef, as arrays of many rows at once; ragged where rows differ in length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..process.lazy import cached_property, torch
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..rows.block import Data, bounds_of, leaf_values, node_values
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.node import WRAPPERS, Node
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints

Mask = npt.NDArray[np.bool_]


class RaggedColumn:
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
        values: (elements of all rows,) the rows, one after the other.
        lengths: (B,) elements of each row.

    Attributes:
        lengths: (B,) elements of each row.

    Raises:
        ValueError: a length is below 0, or the lengths do not sum to the number of values.

    Example:
        >>> boxes = yoga.RaggedColumn(np.array([7, 8, 9]), [1, 0, 2])
        >>> boxes.offsets.tolist(), boxes.any(boxes.values > 8).tolist()
        ([0, 1, 1, 3], [False, False, True])
    """

    def __init__(self, values: Array, lengths: npt.ArrayLike) -> None:
        self.lengths: Ints = np.asarray(lengths, np.int64)
        found = np.asarray(values)
        total = int(self.lengths.sum()) if self.lengths.ndim == 1 else -1
        if self.lengths.ndim != 1 or found.ndim != 1 or (self.lengths < 0).any() or total != len(found):
            raise ValueError(
                f"the lengths, of shape {self.lengths.shape}, must be at least 0 and sum to the number of "
                f"values; they sum to {total}, the values have shape {found.shape}"
            )
        self._values = found

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def offsets(self) -> Ints:
        """(B + 1,) where each row begins in `values`, and where the last one ends."""
        return bounds_of(self.lengths)

    @property
    def values(self) -> Array:
        """(elements of all rows,) the rows, one after the other."""
        return self._values

    def any(self, are: npt.ArrayLike) -> Mask:
        """(B,) which rows have an element for which `are`, as long as `values`, is True.

        Example:
            >>> rows = [{"boxes": np.arange(n)} for n in (1, 3)]
            >>> schema = yoga.Schema.of(rows[0], ragged=["boxes"])
            >>> ref = storage.submit(rows, "boxes", "1", schema=schema)
            >>> len(ref.where("boxes", lambda y: y.any(y.values == 2)))
            1
        """
        return self._counted(are) > 0

    def all(self, are: npt.ArrayLike) -> Mask:
        """(B,) which rows have only elements for which `are` is True; a row without any, too."""
        found: Mask = self._counted(are) == self.lengths
        return found

    def _counted(self, are: npt.ArrayLike) -> Ints:
        found = np.asarray(are)
        if found.dtype != np.bool_ or found.shape != (int(self.offsets[-1]),):
            raise ValueError(
                f"any() and all() take a bool for each of the {self.offsets[-1]} values, found {found.dtype} "
                f"of shape {found.shape}"
            )
        counts = bounds_of(found)
        return np.diff(counts[self.offsets])


_ROWS, _LENGTHS, _BYTES = 2**16, 2**18, 2**25  # at once, at most
_RAGGED_BYTES = 2**15  # of a ragged value, where they are not known
_TEXTS = {"str", "bytes", "numpy.str", "numpy.bytes", "none"}


class _ReadLater(RaggedColumn):
    """Some rows of a ragged column of a DataRef; the values are read when they are looked at."""

    def __init__(self, ref: DataRef, rows: Ints) -> None:
        self._ref = in_epoch(ref, 0, 0)
        self._rows = rows
        self.lengths = self._ref.lengths(rows)

    @cached_property
    def values(self) -> Array:
        """(elements of all rows,) the rows, one after the other."""
        block = block_of(self._ref.take(self._rows), self._ref.schema)
        return plain(block.schema.columns[0], block.data[0].values)


Scanned: TypeAlias = Array | RaggedColumn


def scan(
    ref: DataRef, names: Sequence[str], step: int | None = None
) -> Iterator[tuple[int, int, Mapping[str, Scanned]]]:
    """All rows of some columns, thousands at once, in order: first row, row after the last, columns.

    A column of numbers is an array (B, ...), masked where it may be None; of text an array (B,) of objects; a
    ragged one, or one of lists of numbers, a `RaggedColumn`; lists of anything else are objects, too. Rows
    that are made with random numbers are those of epoch 0 with seed 0. `step` is how many rows come at once.

    Raises:
        KeyError: there is no such column.
        TypeError: it is not known what a row looks like.
        ValueError: a name is that of a container of columns.
    """
    if not names:
        raise ValueError("name at least one column")
    schema = known_schema(ref)
    if schema is None:
        return  # a version without rows
    # Not by `ref[name]` or `columns`, which subclasses may have made something else of.
    places = {name: Projection.at(schema, name) for name in names}
    for name, place in places.items():
        if place.schema.tree.kind not in ("leaf", *WRAPPERS):
            inside = [f"{name}/{column.name}" for column in place.schema.columns]
            raise ValueError(f"{name!r} holds several columns; name one of {', '.join(inside)[:500]}")
    ragged = {name: ref._projected(place) for name, place in places.items() if _has_lengths(place.schema)}
    together = [name for name in names if name not in ragged]
    of = Projection.of(schema, together) if together else None  # of packs, with the lengths of documents
    fixed = None if of is None else ref._projected(of)
    read = [*ragged.values(), *([fixed] if fixed is not None else [])]
    step = step or rows_at_once(read, schema)
    for start in range(0, len(ref), step):
        rows = np.arange(start, min(start + step, len(ref)))
        found: dict[str, Scanned] = {name: _ReadLater(one, rows) for name, one in ragged.items()}
        if of is not None and fixed is not None:
            block = block_of(in_epoch(fixed, 0, 0).take(rows), fixed.schema)
            pieces = dict(zip(of.columns, zip(block.schema.columns, block.data, strict=True), strict=True))
            for name in together:
                tree, columns = places[name].schema.tree, places[name].columns
                found[name] = as_given(tree, [pieces[number] for number in columns], len(rows))
        yield start, start + len(rows), found


def single_values(ref: DataRef, name: str, refusal: str) -> Iterator[tuple[int, Array]]:
    """The values of a column, one of each row, thousands at once: the first row, and those from there on.

    Raises:
        KeyError: there is no such column.
        ValueError: it holds several values a row; says `refusal`.
    """
    for start, _, columns in scan(ref, [name]):
        values = columns[name]
        if isinstance(values, RaggedColumn) or values.ndim != 1:
            raise ValueError(refusal)
        yield start, values


def has_none(values: Array) -> bool:
    """True if a value of some rows that `scan` gave is None."""
    masked = bool(np.ma.getmaskarray(values).any())
    return masked or (values.dtype == object and None in values.tolist())


def lengths_of(column: DataRef) -> Ints:
    """(N,) how many elements each row of a ragged column has; of a cached version only offsets are read.

    Rows that are made with random numbers are those of epoch 0 with seed 0.

    Raises:
        TypeError: it is not a ragged column.
    """
    source, count = in_epoch(column, 0, 0), len(column)
    found = np.empty(count, np.int64)
    step = max(1, min(_LENGTHS, _BYTES // (column._row_bytes or _RAGGED_BYTES)))
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        found[rows] = source.lengths(rows)
    return found


def rows_at_once(refs: Iterable[DataRef], schema: Schema) -> int:
    """How many rows to read of each of some columns; `schema` is that of whole rows."""
    unsaid = sum(_RAGGED_BYTES if column.is_ragged else column.row_bytes for column in schema.columns)
    return max(1, min(_ROWS, _BYTES // max(1, *(ref._row_bytes or unsaid for ref in refs))))


def _has_lengths(schema: Schema) -> bool:
    return schema.tree.kind == "leaf" and is_of_lengths(schema.columns[0])


def as_given(node: Node, pieces: Sequence[tuple[Column, Data]], num_rows: int) -> Scanned:
    """Columns of a leaf or a wrapper as functions get them; see `scan`."""
    column, data = pieces[0]
    child = node.children[0] if node.children else node
    is_one = child.kind == "leaf" and not is_text(column)
    if node.kind == "leaf" or (node.kind == "varying" and is_one):
        if is_of_lengths(column) and (data.shapes is None or node.kind == "leaf"):
            return RaggedColumn(plain(column, data.values), np.diff(data.part("offsets")))
        if node.kind == "leaf":
            return array_of(column, data, num_rows)
    if node.kind == "nullable" and is_one and not column.is_ragged:
        mask = ~pieces[1][1].values
        if data.values.ndim > 1:
            mask = np.broadcast_to(mask.reshape(-1, *(1,) * (data.values.ndim - 1)), data.values.shape)
        return np.ma.MaskedArray(plain(column, data.values), mask)
    found = np.empty(num_rows, object)
    for i, value in enumerate(node_values(node, iter(pieces), num_rows)):
        found[i] = value  # not all at once: NumPy would make rows of lists of one length
    return found


def is_of_lengths(column: Column) -> bool:
    """True for a column of arrays of different lengths, which text is not."""
    return column.is_ragged and not is_text(column)


def is_text(column: Column) -> bool:
    """True for a column of text, or of None."""
    return column.kind in _TEXTS


def array_of(column: Column, data: Data, num_rows: int) -> Array:
    """(B, ...) a column that is not ragged as an array; text as objects."""
    if column.kind not in _TEXTS:
        return plain(column, data.values)
    found = np.empty(num_rows, object)
    found[:] = leaf_values(column, data, num_rows)
    return found


def plain(column: Column, values: Array) -> Array:
    """The values as NumPy knows them: torch's kinds, such as bfloat16, as float32; decimals as float64."""
    if column.meaning.scale is not None:
        decimals: Array = values / 10**column.meaning.scale
        return decimals
    if column.kind == "tensor" and not hasattr(np, column.dtype):
        return torch.from_numpy(values).view(getattr(torch, column.dtype)).float().numpy()
    return values
