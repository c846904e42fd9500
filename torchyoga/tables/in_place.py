"""Columns of Arrow chunks, gathered from where they lie.

The buffers of all chunks are one range of addresses.
So rows of any chunks are copied by one gather a column, as from the files of a version; only values that
Arrow lays out in another way are converted, those of the rows that are wanted.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import CorruptError
from ..formats.items import MappedRuns
from ..formats.mapped import Memory
from ..process.buffers import address_of
from ..process.numbers import distinct
from ..rows.block import Data, bounds_of, interleaved_data
from ..rows.types import Array, Ints
from .buffers import Values, base_of, offset_dtype, without_views
from .forms import Bools, Encoded, Form, Held, Lists, Numbers, Structs, Texts

Empty = Callable[[int], Array]


class GatheredPart(ABC):
    """A field of a table: some of the columns of its rows."""

    @abstractmethod
    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """These rows of each of the columns.

        Args:
            chunks: (B,) the chunk of each row.
            places: (B,) which row of the chunk it is.
            present: (B,) False for rows that are to be 0 or empty; None if there are none.
        """


def part_of(form: Form, arrays: Sequence[pa.Array], empty: Empty) -> GatheredPart:
    """A field that is gathered in place where it can be, and converted where not.

    Args:
        form: of the field.
        arrays: its chunks.
        empty: makes memory for copies.
    """
    return _in_place(form, arrays, empty) or _Converted(form, arrays)


def _in_place(form: Form, arrays: Sequence[pa.Array], empty: Empty) -> GatheredPart | None:
    """A field that is gathered in place; None if that cannot be done."""
    if not isinstance(form, Held) or not form.is_free or not arrays:
        return None
    arrays = [form.prepare(array) for array in arrays]
    child = form.child
    found: GatheredPart | None = None
    has_nulls = any(array.null_count for array in arrays)
    if has_nulls and not form.is_nullable:
        return None
    if isinstance(child, Structs):
        parts = [
            part_of(field, [array.field(i) for array in arrays], empty)
            for i, field in enumerate(child.fields)
        ]
        found = _Struct(parts)
    elif isinstance(child, Texts):
        found = _texts(arrays, empty)
    elif isinstance(child, Encoded):
        held = [array.field("bytes") for array in arrays]
        found = None if any(array.null_count for array in held) else _texts(held, empty)
    elif isinstance(child, Numbers):
        found = _numbers(child, arrays, empty)
    elif isinstance(child, Lists) and child.is_array:
        found = _lists(child, arrays, empty)
    if found is None:
        return None
    return _Nullable(found, _BufferBits(arrays, 0, empty)) if form.is_nullable else found


def _memory(arrays: Sequence[pa.Array], nth: int) -> Memory | None:
    """The memory of one buffer of each array; None if there is nothing in any."""
    buffers = [array.buffers()[nth] for array in arrays]
    found = [np.frombuffer(buffer, np.uint8) for buffer in buffers if buffer is not None and buffer.size]
    return Memory(found) if found else None


@dataclass(frozen=True)
class _Struct(GatheredPart):
    parts: Sequence[GatheredPart]

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """The columns of all fields."""
        return [data for part in self.parts for data in part.take(chunks, places, present)]


@dataclass(frozen=True)
class _Nullable(GatheredPart):
    child: GatheredPart
    valid: _BufferBits

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """The child's columns, and where there is a value."""
        valid = self.valid.of(chunks, places)
        if present is not None:
            valid &= present
        return [*self.child.take(chunks, places, None if valid.all() else valid), Data(valid)]


class _BufferBits(GatheredPart):
    """Bits of a buffer; True in chunks without it."""

    def __init__(self, arrays: Sequence[pa.Array], nth: int, empty: Empty) -> None:
        buffers = [array.buffers()[nth] for array in arrays]
        self._bases = np.array([0 if buffer is None else buffer.address for buffer in buffers], np.int64)
        self._offsets = np.array([array.offset for array in arrays], np.int64)
        self._memory = _memory(arrays, nth)
        self._empty = empty

    def of(self, chunks: Ints, places: Ints) -> Bools:
        """(B,) the bits."""
        found = np.ones(len(chunks), np.bool_)
        if self._memory is None:
            return found
        bases, bits = self._bases.take(chunks), self._offsets.take(chunks) + places
        some = np.flatnonzero(bases)
        if len(some):
            held = self._memory.gather(bases[some] + (bits[some] >> 3), 1, self._empty)
            found[some] = (held >> (bits[some] & 7).astype(np.uint8)) & 1
        return found

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """The bits as a column of bools."""
        found = self.of(chunks, places)
        return [Data(found if present is None else found & present)]


@dataclass(frozen=True)
class _FixedRuns(GatheredPart):
    """Runs of equally many bytes.

    Args:
        memory: holds them; None if rows have no bytes.
        bases: (chunks,) where the first row of each chunk begins.
        width: bytes of a row.
        read: makes values of the bytes of all rows.
        empty: makes memory for copies.
    """

    memory: Memory | None
    bases: Ints
    width: int
    read: Callable[[Array, int], Array]
    empty: Empty

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """The values of these rows."""
        held: Array = np.empty(0, np.uint8)
        if self.memory is not None and len(chunks):
            held = self.memory.gather(self.bases.take(chunks) + places * self.width, self.width, self.empty)
        if present is not None:  # where nothing is, the bytes may be of no value
            held.reshape(len(chunks), self.width)[~present] = 0
        return [Data(self.read(held, len(chunks)))]


def _numbers(form: Numbers, arrays: Sequence[pa.Array], empty: Empty) -> GatheredPart | None:
    kind, shape = arrays[0].type, form.shape
    dtype = np.dtype(form.dtype)
    if not shape:
        if pa.types.is_boolean(kind):
            return _BufferBits(arrays, 1, empty)
        width = kind.bit_width // 8
        bases = np.array([base_of(array, 1, width) for array in arrays], np.int64)
        if isinstance(form.read, Values) and form.read.is_plain:
            return _FixedRuns(_memory(arrays, 1), bases, width, lambda held, count: held.view(dtype), empty)

        def read(held: Array, count: int) -> Array:
            values = form.read(pa.Array.from_buffers(kind, count, [None, pa.py_buffer(held)]))
            return values if values.flags.writeable else values.copy()

        return _FixedRuns(_memory(arrays, 1), bases, width, read, empty)
    if any(array.null_count and not pa.types.is_fixed_size_list(array.type) for array in arrays):
        return None
    if not _shares(form.read, arrays):
        return None
    held = [np.ascontiguousarray(form.read(array)) for array in arrays]
    bases = np.array([address_of(values) for values in held], np.int64)
    spans = [values.reshape(-1).view(np.uint8) for values in held if values.size]
    return _FixedRuns(
        Memory(spans) if spans else None,
        bases,
        dtype.itemsize * math.prod(shape),
        lambda found, count: found.view(dtype).reshape(count, *shape),
        empty,
    )


def _shares(read: Callable[[pa.Array], Array], arrays: Sequence[pa.Array]) -> bool:
    """True if values are read without a copy, as one row shows."""
    for array in arrays:
        if len(array):
            address = address_of(read(array.slice(0, 1)))
            held = [buffer for buffer in array.buffers() if buffer is not None]
            return any(buffer.address <= address < buffer.address + buffer.size for buffer in held)
    return False


class _Ragged(GatheredPart):
    """Runs of values that offsets cut.

    Args:
        arrays: the chunks, of texts or of lists.
        values: (chunks,) where the values of each begin.
        counts: (chunks,) how many there are.
        memory: holds the values; None if there are none.
        dtype: of a value.
        empty: makes memory for copies.
    """

    def __init__(
        self,
        arrays: Sequence[pa.Array],
        values: Ints,
        counts: Ints,
        memory: Memory | None,
        dtype: np.dtype[np.generic],
        empty: Empty,
    ) -> None:
        self._offset = np.dtype(offset_dtype(arrays[0].type))
        size = self._offset.itemsize
        self._offsets = np.array([base_of(array, 1, size) for array in arrays], np.int64)
        self._held = _memory(arrays, 1)
        self._values, self._counts, self._memory = values, counts, memory
        self._dtype, self._empty = dtype, empty

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """The values of these rows, still where they lie."""
        size = self._offset.itemsize
        if self._held is None or not len(chunks):
            return [Data(np.empty(0, self._dtype), np.zeros(len(chunks) + 1, np.int64))]
        places = self._offsets.take(chunks) + places * size
        ends = self._held.gather(places, 2 * size, self._empty).view(self._offset).reshape(-1, 2)
        starts = ends[:, 0].astype(np.int64)
        lengths = ends[:, 1] - starts
        is_outside = (starts < 0) | (lengths < 0) | (starts + lengths > self._counts.take(chunks))
        if is_outside.any():
            raise CorruptError("the offsets of an Arrow column lead outside of it; write the file again")
        if present is not None:
            lengths = lengths * present
        offsets = bounds_of(lengths)
        if self._memory is None or not offsets[-1]:
            return [Data(np.empty(0, self._dtype), offsets)]
        addresses = self._values.take(chunks) + starts * self._dtype.itemsize
        # An empty run may lie anywhere.
        addresses[lengths == 0] = addresses[int(np.argmax(lengths))]
        runs = MappedRuns(self._memory, addresses, lengths * self._dtype.itemsize)
        return [Data(None, offsets, runs=runs, dtype=self._dtype, empty=self._empty)]


def _texts(arrays: Sequence[pa.Array], empty: Empty) -> GatheredPart | None:
    kind = arrays[0].type
    if pa.types.is_fixed_size_binary(kind):
        return None
    buffers = [array.buffers()[2] for array in arrays]
    counts = np.array([0 if buffer is None else buffer.size for buffer in buffers], np.int64)
    values = np.array([0 if buffer is None else buffer.address for buffer in buffers], np.int64)
    return _Ragged(arrays, values, counts, _memory(arrays, 2), np.dtype(np.uint8), empty)


def _lists(form: Lists, arrays: Sequence[pa.Array], empty: Empty) -> GatheredPart | None:
    item = form.item
    if not isinstance(item, Held) or not isinstance(item.child, Numbers) or not item.is_free:
        return None
    read, is_fixed = item.child.read, pa.types.is_fixed_size_list(arrays[0].type)
    if item.child.shape or is_fixed or not isinstance(read, Values) or not read.is_plain:
        return None
    items = [item.prepare(array.values) for array in arrays]
    if any(values.null_count for values in items):
        return None
    dtype = np.dtype(item.child.dtype)
    values = np.array([base_of(array, 1, dtype.itemsize) for array in items], np.int64)
    counts = np.array(list(map(len, items)), np.int64)
    return _Ragged(arrays, values, counts, _memory(items, 1), dtype, empty)


class _Converted(GatheredPart):
    """A field that is converted as it is read."""

    def __init__(self, form: Form, arrays: Sequence[pa.Array]) -> None:
        self._form, self._arrays = form, arrays
        self._checked: set[int] = set()

    def take(self, chunks: Ints, places: Ints, present: Bools | None) -> list[Data]:
        """These rows of the field, converted."""
        for chunk in set(distinct(chunks).tolist()) - self._checked:
            array = self._arrays[chunk]
            _check(array.dictionary if isinstance(array, pa.DictionaryArray) else array)
            self._checked.add(chunk)
        try:
            return self._data(self._array(chunks, places), present)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            some = distinct(chunks).tolist()
            if len(some) == 1:
                raise
        except pa.ArrowIndexError as error:
            raise CorruptError(f"a dictionary of Arrow lacks a value: {error}; write it again") from error
        # Arrow does not join all dictionaries: not those with nulls, or of lists.
        pieces = []
        for chunk in some:
            which = np.flatnonzero(chunks == chunk)
            array = _taken(self._arrays[chunk], places[which])
            pieces.append((which, self._data(array, None if present is None else present[which])))
        return list(interleaved_data(pieces))

    def _data(self, array: pa.Array, present: Bools | None) -> list[Data]:
        return [owned(data) for data in self._form.data(without_views(array), present, None)]

    def _array(self, chunks: Ints, places: Ints) -> pa.Array:
        if len(self._arrays) == 1:
            return _taken(self._arrays[0], places)
        order = np.argsort(chunks, kind="stable")
        chunks, places = chunks[order], places[order]
        cuts = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(chunks)]
        pieces = [
            _taken(self._arrays[int(chunks[start])], places[start:stop])
            for start, stop in itertools.pairwise(cuts)
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        array = pieces[0] if len(pieces) == 1 else _joined(pieces)
        return _taken(array, back)


def _check(array: pa.Array) -> None:
    """Raises CorruptError if offsets within an array, which pyarrow's `take` trusts, lead elsewhere."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptError(f"a {array.type} of Arrow is damaged: {error}; write it again") from error


def owned(data: Data) -> Data:
    """The same in memory that may be written to, for tensors."""
    offsets = data.offsets if data.offsets is None or data.offsets.flags.writeable else data.offsets.copy()
    values = data.values if data.values.flags.writeable else data.values.copy()
    return Data(values, offsets, data.shapes)


def _taken(array: pa.Array, places: Ints) -> pa.Array:
    try:
        return array.take(pa.array(places))
    except pa.ArrowNotImplementedError:  # of views and of runs
        return pa.concat_arrays([array.slice(place, 1) for place in places.tolist()])


def _joined(pieces: Sequence[pa.Array]) -> pa.Array:
    if isinstance(pieces[0].type, pa.DictionaryType):  # each may have a dictionary of its own
        return pa.chunked_array(pieces).unify_dictionaries().combine_chunks()
    return pa.concat_arrays(pieces)
