"""Files of records: how many, the offset of each, and in a record the sizes of its values before these.

MDS and LitData write such.
Sizes must add up to the offsets, so that a flipped bit in either is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import CorruptError, SchemaError
from ...formats.items import MappedRuns
from ...formats.mapped import Bytes, Memory
from ...process.lazy import cached_property
from ...process.numbers import spread
from ...reading.in_place_ref import FileLayout, MappedShards, files_of
from ...rows.block import Data, bounds_of
from ...rows.collector import block_of
from ...rows.column import PLAIN, Column, Meaning, first_not_text
from ...rows.node import Node
from ...rows.schema import Schema, schema_under
from ...rows.types import Array, Ints, Row
from ...stores.downloads import check_hashes

_COUNT = 4  # bytes of the number of records, of an offset and of a size
_MOST_BYTES = 2**40  # of an array
_SAMPLES = 64  # records that show what arrays look like
UNKNOWN = Schema.of(b"")  # until more is known


class ValuePart(NamedTuple):
    """Values of some records where they lie in memory.

    Attributes:
        memory: holds them.
        addresses: (N,) where each begins.
        nbytes: (N,) the size of each.
        empty: makes memory for copies.
    """

    memory: Memory
    addresses: Ints
    nbytes: Ints
    empty: Callable[[int], Bytes]

    def head(self, places: Ints, offset: int, nbytes: int, dtype: str) -> Array:
        """(places, ...) some bytes of each of these values as numbers; CorruptError if one has less."""
        short = self.nbytes[places] < offset + nbytes
        if short.any():
            raise BadValue(int(places[short.argmax()]), "it has fewer bytes than it says")
        if not nbytes:
            return np.empty((len(places), 0), dtype)
        read = self.memory.gather(self.addresses[places] + offset, nbytes, self.empty)
        return read.view(dtype).reshape(len(places), -1)

    def runs(self, offsets: Ints | int = 0) -> MappedRuns:
        """The values from so many bytes on."""
        return MappedRuns(self.memory, self.addresses + offsets, self.nbytes - offsets)


class BadValue(CorruptError):
    """Damage of one of the values of a `ValuePart`."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


class RecordValue(Protocol):
    """How the values lie that records have in one place."""

    @property
    def size(self) -> int | None:
        """Bytes of each; None if they differ."""

    @property
    def schema(self) -> Schema:
        """A value's looks."""

    def read(self, part: ValuePart) -> Sequence[Data]:
        """The columns of at least one value; CorruptError or SchemaError says what is wrong with one."""


def leaf(
    kind: str, dtype: str, shape: tuple[int, ...] | None = (), ndim: int = 0, meaning: Meaning = PLAIN
) -> Schema:
    """The schema of values of one column; a ragged one has the shape None."""
    return schema_under(
        Node("leaf"), [Column("", kind, dtype, shape, len(shape) if shape else ndim, meaning)]
    )


def _nested(tree: Node, values: Iterator[RecordValue]) -> Node:
    """A tree with those of the values in place of its leaves."""
    if tree.kind == "leaf":
        return next(values).schema.tree
    return Node(tree.kind, tree.keys, tuple(_nested(child, values) for child in tree.children))


@dataclass(frozen=True)
class FixedValue:
    """Numbers, or arrays of one shape, as they lie in memory."""

    schema: Schema

    @property
    def size(self) -> int:
        """Bytes of each."""
        return self.schema.columns[0].row_bytes

    def read(self, part: ValuePart) -> Sequence[Data]:
        """Copies."""
        (column,) = self.schema.columns
        assert column.shape is not None, "FixedValue are of one shape"
        read = part.memory.gather(part.addresses, self.size, part.empty)
        return [Data(read.view(column.storage).reshape(len(part.addresses), *column.shape))]


@dataclass(frozen=True)
class RunValue:
    """Bytes, text, or arrays of one dimension, of any length."""

    schema: Schema
    size: None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.schema.columns[0].storage.itemsize

    def read(self, part: ValuePart) -> Sequence[Data]:
        """Runs of bytes, which are copied when they are wanted."""
        dtype = self.schema.columns[0].storage
        lengths, rest = np.divmod(part.nbytes, self.itemsize)
        if rest.any():
            raise BadValue(
                int(rest.argmax()), f"{part.nbytes[rest.argmax()]} bytes are no whole number of {dtype}"
            )
        runs = part.runs()
        bad = first_not_text(runs.texts()) if self.schema.columns[0].kind == "str" else None
        if bad is not None:
            raise BadValue(bad, "it is not text of UTF-8; write the file again, or pass columns= without it")
        return [Data(None, bounds_of(lengths), runs=runs, dtype=dtype, empty=part.empty)]


class ArrayGroup(NamedTuple):
    """Arrays that say of themselves what they are, and have one dtype and as many dimensions.

    Attributes:
        places: (M,) which values they are.
        dtype: of their elements.
        head: bytes before the first element.
        shapes: (M, dimensions).
    """

    places: Ints
    dtype: str
    head: int
    shapes: Array


@dataclass(frozen=True)
class ArrayValue:
    """Arrays of any shape, before whose elements lies what they are.

    Attributes:
        schema: of one ragged column.
        groups: what the arrays of a part are.
        may_round: True if the dtype was asked for, even where it has fewer digits than an int.
    """

    schema: Schema
    groups: Callable[[ValuePart], Iterator[ArrayGroup]]
    may_round: bool = False
    size: None = None

    def learned(
        self, where: str, name: str, dtype: npt.DTypeLike | None, ndim: int | None, part: ValuePart
    ) -> ArrayValue:
        """How arrays are read, as some of them show it.

        Args:
            where: the records, for messages.
            name: of the value.
            dtype: of the arrays, if it is known.
            ndim: the most dimensions that they have, if that is known.
            part: some of them.
        """
        groups = [(np.dtype(group.dtype), group.shapes.shape[1]) for group in self.groups(part)]
        found, kinds = {kind for kind, _ in groups}, {dimensions for _, dimensions in groups}
        own = np.result_type(*found) if dtype is None else np.dtype(dtype)
        if dtype is None and not all(_holds(own, one) for one in found):
            raise SchemaError(
                f"{where}: {name!r} has arrays of {sorted(map(str, found))}, and {own} has not all of "
                f"their digits; pass dtypes={{{name!r}: {str(own)!r}}} if it should hold them"
            )
        most = max(kinds) if ndim is None else ndim
        if 0 in kinds:  # of one dimension are only columns all of whose arrays are
            most = max(most, 2)
        kind = self.schema.columns[0].kind
        try:
            looks = leaf(kind, own.name if kind == "tensor" else own.str, None, most)
        except ValueError as error:
            raise ValueError(
                f"{where}: {name!r} cannot be arrays of {own} with {most} dimensions: {error}"
            ) from error
        return replace(self, schema=looks, may_round=dtype is not None)

    def read(self, part: ValuePart) -> Sequence[Data]:
        """Runs of bytes; copies if some are of another dtype than the column."""
        (column,) = self.schema.columns
        count, dtype = len(part.addresses), column.storage
        shapes, heads = np.full((count, column.ndim), -1, np.int64), np.zeros(count, np.int64)
        others: list[tuple[int, np.dtype[np.generic]]] = []
        for group in self.groups(part):
            own, ndim = np.dtype(group.dtype), group.shapes.shape[1]
            if ndim > column.ndim or ndim < column.ndim == 1:
                raise SchemaError(
                    f"an array of {ndim} dimensions, where others have {column.ndim}; pass ndims="
                )
            sizes = group.shapes.astype(np.float64).prod(1) * own.itemsize
            wrong = (sizes != part.nbytes[group.places] - group.head) | (group.shapes > _MOST_BYTES).any(1)
            if wrong.any():
                nth = int(wrong.argmax())
                raise BadValue(
                    int(group.places[nth]), f"an array of shape {group.shapes[nth].tolist()} and dtype {own}"
                )
            shapes[group.places, :ndim] = group.shapes
            heads[group.places] = group.head
            if own != dtype:
                if not (np.can_cast(own, dtype, "safe") if self.may_round else _holds(dtype, own)):
                    raise SchemaError(
                        f"an array of {own}, where others are of {dtype}; pass "
                        f"dtypes= with {np.result_type(own, dtype)} for it"
                    )
                others += [(int(place), own) for place in group.places]
        lengths = np.where(shapes < 0, 1, shapes).prod(1)
        runs, offsets = part.runs(heads), bounds_of(lengths)
        kept = None if column.ndim == 1 else shapes
        if not others:
            return [Data(None, offsets, kept, runs=runs, dtype=dtype, empty=part.empty)]
        values = np.empty(int(offsets[-1]), dtype)
        kinds = dict(others)
        for place, text in enumerate(runs.texts()):
            values[offsets[place] : offsets[place + 1]] = np.frombuffer(text, kinds.get(place, dtype))
        return [Data(values, offsets, kept)]


def _holds(dtype: np.dtype[Any], own: np.dtype[Any]) -> bool:
    """True if a dtype has all values of another; a float64 has not all of an int64."""
    is_rounded = own.kind in "iu" and own.itemsize > 4 and dtype.kind in "fc"
    return np.can_cast(own, dtype, "safe") and not is_rounded


@dataclass(frozen=True)
class DecodedValue:
    """Values that a function makes of their bytes; it raises ValueError if it cannot."""

    schema: Schema
    function: Callable[[bytes], Row]
    size: None = None

    def read(self, part: ValuePart) -> Sequence[Data]:
        """The results of the function."""
        rows = []
        for place, text in enumerate(part.runs().texts()):
            try:
                rows.append(self.function(text))
            except (ValueError, ArithmeticError, IndexError) as error:
                raise BadValue(place, f"{error}") from error
        return block_of(rows, self.schema).data


@dataclass(frozen=True, eq=False)
class Records(FileLayout):
    """Rows that are records of files.

    Attributes:
        values: of a record, by name; those that rows do not show are None.
        sizes: the size of each value, where records do not say it.
        hashes: of each file, to be compared when it is mapped; none for files that were compared before.
        is_bare: records are one value, without its size.
    """

    values: dict[str, RecordValue | None]
    sizes: tuple[int | None, ...]
    hashes: tuple[tuple[tuple[str, str], ...], ...] = ()
    is_bare: bool = False

    @property
    def only_copies(self) -> bool:
        """True if no value has to be decoded."""
        return not any(isinstance(value, DecodedValue) for value in self.values.values())

    def check(self, number: int, data: Bytes) -> None:
        """Compares the number of records, and the hashes."""
        rows = int(self.starts[number + 1] - self.starts[number])
        said = int(data[:_COUNT].view("<u4")[0]) if len(data) >= _COUNT else -1
        low = _COUNT * (rows + 2)
        if said != rows or len(data) < low:
            raise CorruptError(f"it says {said} records in {len(data)} bytes, the index says {rows}")
        ends = data[_COUNT:low].view("<u4")
        if self.is_bare and (ends[0] != low or ends[-1] != len(data) or (ends[1:] < ends[:-1]).any()):
            raise CorruptError("the places of its records are damaged; write the file again")
        if self.hashes:
            check_hashes(data.data, self.hashes[number])

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns; only the values that they are of are read."""
        read: dict[int, Data] = {}
        first = 0
        for (name, value), part in zip(self.values.items(), self._parts(shards, rows), strict=True):
            if value is None:
                continue
            last = first + len(value.schema.columns)
            if any(first <= number < last for number in columns):
                try:
                    read.update(enumerate(value.read(part), first))
                except BadValue as error:
                    raise self._damage(rows, name, error) from error
                except SchemaError as error:
                    raise SchemaError(f"{self.name}: one of rows {rows[:3]}..., {name}: {error}") from error
            first = last
        return [read[number] for number in columns]

    def rows_of(self, tree: Node, learn: Mapping[str, Callable[[ValuePart], RecordValue]]) -> Records:
        """The same records with rows that nest as a tree does; its leaves are the values, in their order.

        Args:
            tree: how they nest.
            learn: functions of some values, of those that only records can show how to read: of all files of
                this machine, or of the first that has rows.
        """
        values = dict(self.values)
        last = int(self.starts.searchsorted(0, "right")) if self.files.is_remote else -1
        rows = spread(int(self.starts[min(last, len(self.starts) - 1)]), _SAMPLES)
        if learn and len(rows):
            parts = self._parts(MappedShards(self.files, self.check), rows)
            for name, part in zip(self.values, parts, strict=True):
                try:
                    if name in learn:
                        values[name] = learn[name](part)
                except BadValue as error:
                    raise self._damage(rows, name, error) from error
        shown = [value for value in values.values() if value is not None]
        columns = (column for value in shown for column in value.schema.columns)
        return replace(self, values=values, schema=schema_under(_nested(tree, iter(shown)), columns))

    def _damage(self, rows: Ints, name: str, error: BadValue) -> CorruptError:
        return CorruptError(f"{self.where(int(rows[error.place]))}, {name}: {error}")

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints]:
        """(files,) where the first record of each can begin, and its size."""
        return _COUNT * (np.diff(self.starts) + 2), np.array(self.files.nbytes, np.int64)

    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory, Ints, Ints]:
        """Where records lie in memory."""
        files = files_of(self.starts, rows)
        memory, origins = shards.hold(files)
        local = rows - self.starts.take(files)
        ends = memory.gather(origins + _COUNT * (1 + local), 2 * _COUNT, shards.empty).view("<u4")
        first, last = ends[::2].astype(np.int64), ends[1::2].astype(np.int64)
        low, most = self._bounds
        wrong = (first < low.take(files)) | (last < first) | (last > most.take(files))
        if wrong.any():
            nth = int(wrong.argmax())
            raise CorruptError(
                f"{self.where(int(rows[nth]))}: its offsets, {first[nth]} to {last[nth]}, are damaged; "
                "write the file again"
            )
        return memory, origins + first, last - first

    def _parts(self, shards: MappedShards, rows: Ints) -> Iterator[ValuePart]:
        """Each value of records."""
        memory, addresses, left = self.spans(shards, rows)
        if self.is_bare:
            yield ValuePart(memory, addresses, left, shards.empty)
            return
        said = [place for place, size in enumerate(self.sizes) if size is None]
        head = _COUNT * len(said)
        sizes = np.empty((len(rows), len(self.sizes)), np.int64)
        sizes[:] = [size or 0 for size in self.sizes]
        wrong = left < head
        if wrong.any():
            nth = int(wrong.argmax())
            raise CorruptError(f"{self.where(int(rows[nth]))} has {left[nth]} bytes; write the file again")
        if head:
            sizes[:, said] = memory.gather(addresses, head, shards.empty).view("<u4").reshape(len(rows), -1)
        ends = sizes.cumsum(1) + head
        wrong = ends[:, -1] != left
        for place, value in enumerate(self.values.values()):
            if value is not None and value.size is not None:
                wrong |= sizes[:, place] != value.size
        if wrong.any():
            nth = int(wrong.argmax())
            raise CorruptError(
                f"{self.where(int(rows[nth]))}: the sizes of its values, {sizes[nth].tolist()}, do not make "
                f"the {left[nth]} bytes that it has; write the file again"
            )
        for place in range(len(self.sizes)):
            yield ValuePart(
                memory, addresses + ends[:, place] - sizes[:, place], sizes[:, place], shards.empty
            )


# -- images: pixels as Pillow holds them, and lists of files

_MODES = {"1": 1, "L": 1, "P": 1, "I": 1, "F": 1, "I;16": 1, "LA": 2, "PA": 2, "La": 2}
_MODES |= {"RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBX": 4, "RGBa": 4, "CMYK": 4}
_MODE_DTYPES = {"1": "|b1", "I": "<i4", "F": "<f4", "I;16": "<u2"}
_LISTS = Schema.of([b""], ragged=["value"])


def pixels(part: ValuePart) -> Iterator[ArrayGroup]:
    """The heads of Pillow's images: width, height, the mode and its length."""
    heads = part.head(np.arange(len(part.addresses)), 0, 12, "<u4").astype(np.int64)
    for length in np.unique(heads[:, 2]).tolist():
        own = np.flatnonzero(heads[:, 2] == length)
        if not 0 < length < 16:
            raise CorruptError(f"an image whose mode has {length} letters; write the file again")
        modes = [bytes(letters) for letters in part.head(own, 12, length, "u1")]
        for mode in sorted(set(modes)):
            text = mode.decode("latin-1")
            if text not in _MODES or text == "1":
                raise SchemaError(f"an image of mode {text!r}; write images as png, or leave the column out")
            places = own[[mode == other for other in modes]]
            shapes = np.stack([heads[places, 1], heads[places, 0]], 1)
            if _MODES[text] > 1:
                shapes = np.append(shapes, np.full((len(places), 1), _MODES[text]), 1)
            yield ArrayGroup(places, _MODE_DTYPES.get(text, "|u1"), 12 + length, shapes)


def images(before: int) -> DecodedValue:
    """Lists of files of images, after so many bytes that mean nothing."""
    return DecodedValue(_LISTS, partial(_files_in, before))


def _files_in(before: int, data: bytes) -> list[bytes]:
    """Files: how many, their sizes, and these, after so many bytes that mean nothing."""
    start = before + 4
    count = int.from_bytes(data[before:start], "little")
    if start + 4 * count > len(data):
        raise ValueError(f"a list that says {count} images has {len(data)} bytes")
    ends = bounds_of(np.frombuffer(data, "<u4", count, start)) + start + 4 * count
    if int(ends[-1]) != len(data):
        raise ValueError(f"a list of images that take {ends[-1]} bytes has {len(data)}")
    return [data[a:b] for a, b in pairwise(ends.tolist())]
