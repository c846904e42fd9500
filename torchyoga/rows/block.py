"""Rows <-> Block: many rows as one array a column, N rows first; ragged columns as values and offsets.

Ragged values are not copied until they are needed.
Byte strings, packed and padded batches are then made by one copy.

Lists of varying length are made for all rows at once.
The items of all rows are one list, made of whole columns; then it is cut into those of each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..process.buffers import fresh
from ..process.lazy import torch
from .column import MOST_EMPTY, Column, as_text, decode, text_of
from .node import WRAPPERS, Node
from .schema import Projection, Schema
from .types import Array, Ints, Row, RowT


def bounds_of(lengths: Array | Iterable[int]) -> Ints:
    """(N + 1,) where each of several runs begins, laid end to end, and where the last one ends.

    Args:
        lengths: N of the runs; of an array, of any shape.

    Example:
        >>> bounds_of([2, 0, 3]).tolist()
        [0, 2, 2, 5]
    """
    if not isinstance(lengths, np.ndarray):
        lengths = np.fromiter(lengths, np.int64)
    found = np.zeros(lengths.size + 1, np.int64)
    lengths.cumsum(dtype=np.int64, out=found[1:])
    return found


class Runs(Protocol):
    """Runs of bytes that lie somewhere, one a row."""

    nbytes: Ints

    def slice(self, start: int, stop: int) -> Runs:
        """The runs start..stop-1."""

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        """Writes each into `out` where `starts` says; one after the other by default."""

    def texts(self) -> list[bytes]:
        """Each run as bytes."""


class _JoinedRuns:
    """Runs that are several others each.

    Args:
        runs: the others.
        bounds: (N + 1,) where those of each begin.
    """

    def __init__(self, runs: Runs, bounds: Ints) -> None:
        self._runs = runs
        self._bounds = bounds
        self.nbytes = np.diff(bounds_of(runs.nbytes)[bounds])

    def slice(self, start: int, stop: int) -> Runs:
        bounds = self._bounds[start : stop + 1]
        first, last = bounds[[0, -1]].tolist() if len(bounds) else (0, 0)
        return _JoinedRuns(self._runs.slice(first, last), bounds - first)

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        if starts is None:
            self._runs.copy(out)
            return
        each = self._runs.nbytes
        before = bounds_of(each)
        shift = np.fromiter(starts, np.int64) - before[self._bounds[:-1]]
        self._runs.copy(out, (before[:-1] + np.repeat(shift, np.diff(self._bounds))).tolist())

    def texts(self) -> list[bytes]:
        found, ends = self._runs.texts(), self._bounds.tolist()
        return [b"".join(found[start:stop]) for start, stop in pairwise(ends)]


class Data:
    """The rows of one column.

    Fixed: `values` has shape (N, *row). Ragged: row i is `values[offsets[i]:offsets[i + 1]]`, reshaped to the
    entries of `shapes[i]` (N, ndim) that are not -1, where the column keeps shapes.

    Args:
        values: all values; or None, if they still lie in `runs` and are copied when they are wanted.
        runs: the values of each row of a ragged column.
        dtype: dtype of the values in the runs.
        empty: makes memory for the copies.
    """

    __slots__ = ("_dtype", "_empty", "_values", "offsets", "runs", "shapes")

    def __init__(
        self,
        values: Array | None,
        offsets: Array | None = None,
        shapes: Array | None = None,
        *,
        runs: Runs | None = None,
        dtype: np.dtype[np.generic] | None = None,
        empty: Callable[[int], Array] | None = None,
    ) -> None:
        self.offsets = offsets
        self.shapes = shapes
        self.runs = runs
        self._values = values
        self._dtype = dtype
        self._empty = empty or fresh

    def __reduce__(self) -> tuple[object, ...]:
        # Runs are addresses in memory of this process.
        return Data, (self.values, self.offsets, self.shapes)

    @property
    def values(self) -> Array:
        """The values of all rows."""
        if self._values is None:
            assert self.runs is not None
            out = self._empty(int(self.part("offsets")[-1]) * self.dtype.itemsize)
            self.runs.copy(out)
            self._values = out.view(self.dtype)
        return self._values

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the values."""
        dtype = self._dtype if self._values is None else self._values.dtype
        assert dtype is not None
        return dtype

    def padded(self, width: int, fill: object) -> Array:
        """(N, width) the values of each row of a ragged column, cut or filled up."""
        assert self.offsets is not None
        num_rows = len(self.offsets) - 1
        dtype = self.dtype
        out = self._empty(num_rows * width * dtype.itemsize).view(dtype).reshape(num_rows, width)
        lengths = np.diff(self.offsets)
        if self.runs is not None and int(lengths.max(initial=0)) <= width:
            step = width * dtype.itemsize
            out[...] = fill
            self.runs.copy(out.reshape(-1).view(np.uint8), [row * step for row in range(num_rows)])
            return out
        out[...] = fill
        for i, (start, length) in enumerate(zip(self.offsets.tolist(), lengths.tolist())):  # noqa: B905
            length = min(length, width)
            out[i, :length] = self.values[start : start + length]
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        values = self._values.nbytes if self._values is not None else int(self.runs.nbytes.sum())  # type: ignore[union-attr]
        return values + sum(part.nbytes for part in (self.offsets, self.shapes) if part is not None)

    def slice(self, start: int, stop: int) -> Data:
        """The rows start..stop-1, over the same memory."""
        if self.offsets is None:
            return Data(self.values[start:stop])
        offsets = self.offsets[start : stop + 1]
        shapes = None if self.shapes is None else self.shapes[start:stop]
        runs = None if self.runs is None else self.runs.slice(start, stop)
        values = None if self._values is None else self._values[offsets[0] : offsets[-1]]
        return Data(values, offsets - offsets[0], shapes, runs=runs, dtype=self._dtype, empty=self._empty)

    def joined(self, bounds: Ints) -> Data:
        """As many rows as there are between bounds (N + 1,), each of what these rows hold, end to end.

        It is for a column of one dimension; nothing is copied.
        """
        offsets = self.part("offsets")
        runs = None
        if self._values is None:
            assert self.runs is not None
            runs = _JoinedRuns(self.runs, bounds)
        return Data(self._values, offsets[bounds], runs=runs, dtype=self._dtype, empty=self._empty)

    def row(self, i: int) -> Array:
        """The values of one row of a ragged column; the others are not copied for it."""
        assert self.offsets is not None
        if self._values is None:
            return self.slice(i, i + 1).values
        return self._values[self.offsets[i] : self.offsets[i + 1]]

    def copy(self, out: Array, starts: Iterable[int]) -> None:
        """Writes the bytes of each row of a ragged column into `out` (uint8) where `starts` says."""
        if self.runs is not None:
            self.runs.copy(out, starts)
            return
        data = self.values.reshape(-1).view(np.uint8)
        ends = pairwise((self.part("offsets") * self.values.itemsize).tolist())
        for to, (start, stop) in zip(starts, ends, strict=True):
            out[to : to + stop - start] = data[start:stop]

    def texts(self) -> list[bytes]:
        """The bytes of each row of a ragged column."""
        if self.runs is not None:
            return self.runs.texts()
        data = self.values.reshape(-1).view(np.uint8).data
        ends = (self.part("offsets") * self.values.itemsize).tolist()
        return [bytes(data[start:stop]) for start, stop in pairwise(ends)]

    def part(self, name: str) -> Array:
        """One of `Column.parts`."""
        found = getattr(self, name)
        assert isinstance(found, np.ndarray)
        return found


_LONG = 64  # elements of an average run, from which on slices beat a fancy index


def numbered_within(sizes: Ints) -> Ints:
    """0, 1, 2, ... within each of several runs, end to end.

    Args:
        sizes: (N,) of the runs.

    Example:
        >>> numbered_within(np.array([2, 0, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def taken_runs(values: Array, first: Ints, last: Ints) -> Array:
    """The elements from `first[i]` to before `last[i]` of each run, end to end; a copy.

    Example:
        >>> taken_runs(np.arange(9), np.array([5, 0]), np.array([7, 1])).tolist()
        [5, 6, 0]
    """
    sizes = last - first
    if int(sizes.sum()) > _LONG * len(sizes):
        slices = zip(first.tolist(), last.tolist(), strict=True)
        return np.concatenate([values[start:stop] for start, stop in slices])
    found: Array = values[np.repeat(first, sizes) + numbered_within(sizes)]
    return found


def joined_runs(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The same runs, those that continue each other as one; all of one size if that can be.

    Args:
        first: (N,) the first element of each.
        last: (N,) the element after its last.

    Example:
        >>> joined_runs(np.array([5, 7, 0, 9, 13]), np.array([7, 9, 4, 13, 17]))
        (array([ 5,  0,  9, 13]), array([ 9,  4, 13, 17]))
    """
    some = last > first
    first, last = first[some], last[some]
    most = len(first)
    if most < 2:
        return first, last
    is_begun = np.append(True, first[1:] != last[:-1])
    first, last = first[is_begun], last[np.append(is_begun[1:], True)]
    sizes = last - first
    size = int(sizes.min())
    counts, rest = np.divmod(sizes, size)
    if len(counts) > 1 and not rest.any() and len(counts) < int(counts.sum()) <= most:
        first = np.repeat(first, counts) + size * numbered_within(counts)
        last = first + size
    return first, last


def put_runs(out: Array, starts: Ints, values: Array, sizes: Ints) -> None:
    """Writes runs that lie end to end in `values` to their `starts` in `out`.

    Example:
        >>> out = np.zeros(5, np.int64)
        >>> put_runs(out, np.array([3, 0]), np.array([7, 8, 9]), np.array([2, 1]))
        >>> out.tolist()
        [9, 0, 0, 7, 8]
    """
    if len(values) > _LONG * len(sizes):
        done = 0
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            out[start : start + size] = values[done : done + size]
            done += size
        return
    out[np.repeat(starts, sizes) + numbered_within(sizes)] = values


def check_parts(rows: Ints, lengths: Ints, starts: Ints, stops: Ints) -> None:
    """Raises IndexError unless each row (N,) of so many elements has those from its start to its stop."""
    wrong = (starts < 0) | (stops < starts) | (stops > lengths)
    if wrong.any():
        nth = int(np.flatnonzero(wrong)[0])
        raise IndexError(
            f"elements {starts[nth]} to {stops[nth]} of row {rows[nth]}, which has {lengths[nth]} elements"
        )


Piece: TypeAlias = tuple[Column, Data]


def array_of(column: Column, data: Data, i: int) -> Array:
    """Row `i` of a column as an array over the block's memory."""
    if data.offsets is None:
        return data.values[i, ...]  # unlike [i] an array even without dimensions, of the same dtype
    values = data.row(i)
    if data.shapes is None:
        return values
    shape = [extent for extent in data.shapes[i].tolist() if extent >= 0]
    try:
        return values.reshape(shape)
    except ValueError:
        raise CorruptError(
            f"column {column.name!r}: {len(values)} values do not have the shape {shape}; remove the version "
            "and build it again"
        ) from None


def leaf_values(column: Column, data: Data, num_rows: int) -> list[Row]:
    """All rows of a column, as the values that went in."""
    if column.kind in ("int", "float", "bool", "complex"):
        listed: list[Row] = data.values.tolist()
        return listed
    if column.kind in ("bytes", "str"):  # straight from where they lie
        texts = data.texts()
        return texts if column.kind == "bytes" else list(map(as_text, texts))
    return [_decoded(column, array_of(column, data, i)) for i in range(num_rows)]


def _decoded(column: Column, array: Array) -> Row:
    return decode(column.kind, column.dtype, array, column.meaning)


def node_values(node: Node, pieces: Iterator[Piece], num_rows: int) -> list[Row]:
    """All rows of a part of the tree, as the values that went in.

    Args:
        node: the part.
        pieces: its columns, and those that follow.
        num_rows: of the block.

    Raises:
        CorruptError: its columns contradict each other.
    """
    if node.kind == "leaf":
        return leaf_values(*next(pieces), num_rows)
    if node.kind == "nullable":
        found = node_values(node.children[0], pieces, num_rows)
        valid: list[bool] = next(pieces)[1].values.tolist()
        return [value if there else None for value, there in zip(found, valid, strict=True)]
    if node.kind == "varying":
        items, counts = _items(node.children[0], pieces, num_rows)
        return cut(items, counts.tolist())
    return list(nested(node, [node_values(child, pieces, num_rows) for child in node.children], num_rows))


def nested(node: Node, children: Sequence[list[Row]], count: int, marked: Any = None) -> Iterator[Row]:
    """As many containers as `count` over the values of their children; of the type `marked`, if any."""
    rows: Iterator[tuple[Row, ...]] = zip(*children, strict=True) if children else repeat((), count)
    if node.kind == "dict":
        make = marked or dict
        return (make(zip(node.keys, row, strict=True)) for row in rows)
    if node.kind == "namedtuple":
        return map(tuple.__new__, repeat(marked or node.row_type), rows)
    return map(marked or {"list": list, "tuple": tuple}[node.kind], rows)


def _items(node: Node, pieces: Iterator[Piece], num_rows: int) -> tuple[list[Row], Ints]:
    """The items of the lists of all rows, and how many each row has."""
    if node.kind == "leaf":
        return _leaf_items(*next(pieces), num_rows)
    if node.kind == "texts":
        column, data = next(pieces)
        lengths, counts = _lengths_of(next(pieces)[1], np.diff(data.part("offsets")))
        return [text_of(column.kind, text) for text in cut(data.values.tobytes(), lengths)], counts
    if node.kind == "nullable":
        child = node.children[0]
        held = _items(child, pieces, num_rows) if child.num_leaves else None
        data = next(pieces)[1]
        own = np.diff(data.part("offsets"))
        found, counts = held or (node_values(child, iter(()), int(own.sum())), own)
        _check_counts(counts, own)
        valid: list[bool] = data.values.tolist()
        return [value if there else None for value, there in zip(found, valid, strict=True)], counts
    if node.kind == "varying":
        found, counts = _items(node.children[0], pieces, num_rows)
        lengths, outer = _lengths_of(next(pieces)[1], counts)
        return cut(found, lengths), outer
    parts: list[tuple[Node, list[Row] | None]] = []
    counts_of: Ints | None = None
    for child in node.children:
        if not child.num_leaves:
            parts.append((child, None))
            continue
        found, own = _items(child, pieces, num_rows)
        if counts_of is not None:
            _check_counts(counts_of, own)
        counts_of = own
        parts.append((child, found))
    assert counts_of is not None, "a list of what has no leaves is refused"
    total = int(counts_of.sum())
    made = [node_values(child, iter(()), total) if found is None else found for child, found in parts]
    return list(nested(node, made, total)), counts_of


def _leaf_items(column: Column, data: Data, num_rows: int) -> tuple[list[Row], Ints]:
    if column.ndim == 1:
        counts = np.diff(data.part("offsets"))
        if column.kind in ("int", "float", "bool", "complex"):
            return data.values.tolist(), counts
        values = data.values
        return [_decoded(column, values[i, ...]) for i in range(len(values))], counts
    listed = [array_of(column, data, i) for i in range(num_rows)]
    if any(row.ndim < 1 or (len(row) > MOST_EMPTY and not row.size) for row in listed):
        raise CorruptError(f"column {column.name!r} holds no lists; remove the version and build it again")
    found = [_decoded(column, row[i, ...]) for row in listed for i in range(len(row))]
    return found, np.array([len(row) for row in listed], np.int64)


def _lengths_of(data: Data, held: Ints) -> tuple[list[int], Ints]:
    """The lengths of all items, and how many each row has; CorruptError unless they sum to what it holds."""
    offsets, lengths = data.part("offsets"), data.values
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > held.sum()):
        raise CorruptError("the lengths of items contradict the items; remove the version and build it again")
    sums = bounds_of(lengths)
    _check_counts(held, np.diff(sums[offsets - offsets[0]]))
    listed: list[int] = lengths.tolist()
    return listed, np.diff(offsets)


def _check_counts(one: Ints, other: Ints) -> None:
    if not np.array_equal(one, other):
        raise CorruptError("columns of a list contradict each other; remove the version and build it again")


def cut(items: Any, lengths: Iterable[int]) -> list[Any]:
    """Lists, or texts, of these lengths that lie end to end."""
    return [items[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


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

    def projected(self, of: Projection) -> Block:
        """Some of the columns, over the same memory."""
        return Block(of.schema, self.num_rows, tuple(self.data[number] for number in of.columns))


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
    """A row that is not a container, in the class by which `default_collate` knows it."""
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


def interleaved(blocks: Sequence[tuple[Ints, Block]], empty: Callable[[int], Array] = fresh) -> Block:
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
    pieces: Sequence[tuple[Ints, Sequence[Data]]], empty: Callable[[int], Array] = fresh
) -> tuple[Data, ...]:
    """The data of some columns, given in pieces, each with the places that its rows are to take."""
    count = sum(len(places) for places, _ in pieces)
    columns = zip(*([(places, one) for one in data] for places, data in pieces), strict=True)
    return tuple(_interleaved(column, count, empty) for column in columns)


def _interleaved(pieces: Sequence[tuple[Ints, Data]], count: int, empty: Callable[[int], Array]) -> Data:
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
