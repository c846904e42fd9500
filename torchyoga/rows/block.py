"""Rows <-> Block: many rows as one array a column, N rows first; ragged columns as values and offsets."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..process.buffers import fresh
from ..process.lazy import torch
from .data import Data, bounds_of
from .node import WRAPPERS
from .schema import Schema
from .types import Array, Row, RowT
from .values import array_of, nested, node_values

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Block:
    """N consecutive or gathered rows, as columns."""

    schema: Schema
    num_rows: int
    data: tuple[Data, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(data.nbytes for data in self.data)

    def checked(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of each part of each column that a manifest's checks cover: for offsets, the lengths."""
        for column, data in zip(self.schema.columns, self.data, strict=True):
            for name in column.parts:
                # Offsets depend on where blocks end; the lengths of rows do not.
                array = np.diff(data.part(name)) if name == "offsets" else data.part(name)
                yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def slice(self, start: int, stop: int) -> Block:
        """The rows start..stop-1, over the same memory."""
        return Block(self.schema, stop - start, tuple(data.slice(start, stop) for data in self.data))


class RowTuple(tuple):  # type: ignore[type-arg]
    """A tuple row that default_collate knows to come from one block."""


class RowList(list):  # type: ignore[type-arg]
    """A list row; see `RowTuple`."""


class RowDict(dict):  # type: ignore[type-arg]
    """A dict row; see `RowTuple`."""


class RowPack(RowDict):
    """A row that is a pack of documents; see `RowTuple`.

    Attributes:
        schema: of such rows, so that batches of packs that were picked out of theirs are alike.
    """

    schema: Schema

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)


class RowArray(np.ndarray):
    """A row that is an array itself; see `RowTuple`."""


@cache
def row_tensor() -> type[torch.Tensor]:
    """The class of rows that are tensors themselves, see `RowTuple`; rows of other kinds need no torch."""

    class RowTensor(torch.Tensor):
        __torch_function__: Any = torch._C._disabled_torch_function_impl  # results are plain tensors

        def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
            # Outside this process such a row is what went in.
            return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    return RowTensor


class RowInt(int):
    """A row that is a number itself; see `RowTuple`."""


class RowFloat(float):
    """A row that is a number itself; see `RowTuple`."""


class RowStr(str):
    """A row that is text itself; see `RowTuple`."""

    __slots__ = ()


class RowBytes(bytes):
    """A row that is bytes itself; see `RowTuple`."""


class RowNamed:
    """Mixed into a namedtuple row; see `RowTuple`."""


_CONTAINERS = {"dict": RowDict, "list": RowList, "tuple": RowTuple}
_MARKED = {int: RowInt, float: RowFloat, str: RowStr, bytes: RowBytes, list: RowList}
_EXACT: dict[type, Any] = {marked: exact for exact, marked in _MARKED.items()}
_EXACT |= {RowDict: dict, RowPack: dict, RowTuple: tuple}
ROW_TYPES: tuple[type, ...] = (*_EXACT, RowArray, RowNamed)


@lru_cache(maxsize=256)
def _named_row_type(cls: type) -> Any:
    made: Any = type(cls.__name__, (RowNamed, cls), {"__slots__": (), "__module__": cls.__module__})
    # Outside this process such a row is what went in.
    made.__reduce__ = lambda self: (_itself, (plain_row(self),))
    return made


def _itself(row: Row) -> Row:
    return row


def plain_row(row: Row) -> Row:
    """A row of `Rows` as the exact type that went in."""
    cls: Any = type(row)
    if cls in _EXACT:
        return _EXACT[cls](row)
    if issubclass(cls, RowNamed):
        return tuple.__new__(cls.__mro__[2], tuple(row))
    if cls is RowArray:
        return row.view(np.ndarray)
    return row.as_subclass(torch.Tensor) if cls is row_tensor() else row


def _marked_row(value: Row) -> Row:
    """A row that is no container of columns, as `default_collate` knows it."""
    cls = type(value)
    if cls is np.ndarray:
        return value.view(RowArray)
    if cls.__name__ == "Tensor":  # torch is not loaded to look at others
        return value.as_subclass(row_tensor())
    return _MARKED[cls](value) if cls in _MARKED else value


class Rows(Sequence[RowT]):
    """The rows of a block, made when they are looked at.

    Their top containers are subclasses of what went in, so that `default_collate` finds the whole block
    through them and never takes it apart; see `rows/collate.py`.
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    def __len__(self) -> int:
        return self.block.num_rows

    @overload
    def __getitem__(self, index: SupportsIndex) -> RowT: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RowT]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Row:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return Rows(self.block.slice(start, max(start, stop)))
            return [self[i] for i in range(start, stop, step)]
        i = range(len(self))[index]
        return next(iter(Rows(self.block.slice(i, i + 1))))

    def __iter__(self) -> Iterator[RowT]:
        schema = self.block.schema
        tree, pieces = schema.tree, zip(schema.columns, self.block.data, strict=True)
        if schema.packed:
            for row in node_values(tree, pieces, len(self)):
                pack: Any = RowPack(row)
                pack.schema = schema
                yield pack
        elif tree.kind == "leaf" or tree.kind in WRAPPERS:
            yield from map(_marked_row, node_values(tree, pieces, len(self)))
        else:
            children = [node_values(child, pieces, len(self)) for child in tree.children]
            marked = _CONTAINERS.get(tree.kind) or _named_row_type(tree.row_type)
            yield from nested(tree, children, len(self), marked)

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def exact(self) -> list[RowT]:
        """All rows, of exactly the types that went in."""
        pieces = zip(self.block.schema.columns, self.block.data, strict=True)
        return node_values(self.block.schema.tree, pieces, len(self))


def exact_rows(rows: Sequence[_Item]) -> list[_Item]:
    """A list of rows, of exactly the types that went in."""
    return rows.exact() if isinstance(rows, Rows) else list(rows)


def joined(blocks: Sequence[Block]) -> Block:
    """The rows of several blocks of the same schema, one after the other; at least one block."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    data = tuple(map(_joined, zip(*(block.data for block in blocks), strict=True)))
    return Block(first.schema, sum(block.num_rows for block in blocks), data)


def _joined(pieces: Sequence[Data]) -> Data:
    values = np.concatenate([piece.values for piece in pieces], dtype=pieces[0].dtype)  # of any byte order
    if pieces[0].offsets is None:
        return Data(values)
    lengths = [np.diff(piece.part("offsets")) for piece in pieces]
    offsets = bounds_of(np.concatenate(lengths)).astype("<i8", copy=False)
    if pieces[0].shapes is None:
        return Data(values, offsets)
    return Data(values, offsets, np.concatenate([piece.part("shapes") for piece in pieces]))


def interleaved(
    blocks: Sequence[tuple[npt.NDArray[np.int64], Block]], empty: Callable[[int], Array] = fresh
) -> Block:
    """The rows of several blocks of the same schema as one block; at least one block.

    Args:
        blocks: each with the places that its rows are to take; all places together are 0..N-1.
        empty: makes memory for so many bytes.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> one, other = block_of([{"x": 1}, {"x": 2}]), block_of([{"x": 3}])
        >>> Rows(interleaved([(np.array([0, 2]), one), (np.array([1]), other)])).exact()
        [{'x': 1}, {'x': 3}, {'x': 2}]
    """
    data = interleaved_data([(places, block.data) for places, block in blocks], empty)
    return Block(blocks[0][1].schema, sum(block.num_rows for _, block in blocks), data)


def interleaved_data(
    pieces: Sequence[tuple[npt.NDArray[np.int64], Sequence[Data]]], empty: Callable[[int], Array] = fresh
) -> tuple[Data, ...]:
    """The data of some columns, given in pieces, each with the places that its rows are to take."""
    count = sum(len(places) for places, _ in pieces)
    columns = zip(*([(places, one) for one in data] for places, data in pieces), strict=True)
    return tuple(_interleaved(column, count, empty) for column in columns)


def _interleaved(
    pieces: Sequence[tuple[npt.NDArray[np.int64], Data]], count: int, empty: Callable[[int], Array]
) -> Data:
    first = pieces[0][1]
    if first.offsets is None:
        shape = (count, *first.values.shape[1:])
        values = empty(math.prod(shape) * first.dtype.itemsize).view(first.dtype).reshape(shape)
        for places, piece in pieces:
            values[places] = piece.values
        return Data(values)
    lengths = np.empty(count, np.int64)
    for places, piece in pieces:
        lengths[places] = np.diff(piece.part("offsets"))
    offsets = bounds_of(lengths).astype("<i8", copy=False)
    out = empty(int(offsets[-1]) * first.dtype.itemsize)
    for places, piece in pieces:
        piece.copy(out, (offsets[places] * first.dtype.itemsize).tolist())
    if first.shapes is None:
        return Data(out.view(first.dtype), offsets)
    shapes = np.empty((count, first.shapes.shape[1]), "<i8")
    for places, piece in pieces:
        shapes[places] = piece.part("shapes")
    return Data(out.view(first.dtype), offsets, shapes)


def equal_blocks(one: Block, other: Block, rows: Collection[int]) -> bool:
    """True if both hold the same bytes in these rows."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    pairs = list(zip(one.schema.columns, one.data, other.data, strict=True))
    return all(
        array_of(c, a, i).shape == array_of(c, b, i).shape
        and array_of(c, a, i).tobytes() == array_of(c, b, i).tobytes()
        for c, a, b in pairs
        for i in rows
    )
