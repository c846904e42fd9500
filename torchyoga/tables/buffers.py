"""Arrow arrays -> NumPy arrays over the same memory, whatever their offsets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import CorruptError, SchemaError
from ..rows.types import Array, Ints


def values_of(array: pa.Array, dtype: str) -> Array:
    """(N,) the values of an array whose values lie one after the other."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * np.dtype(dtype).itemsize)


def bits_of(array: pa.Array) -> Array:
    """(N,) the values of an array of bools."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, np.bool_)
    first, rest = divmod(array.offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : first + (rest + len(array) + 7) // 8]
    return np.unpackbits(packed, bitorder="little", count=rest + len(array))[rest:].view(np.bool_)


@dataclass(frozen=True)
class Values:
    """Reads values as one dtype and gives them as another.

    Args:
        dtype: in which they lie.
        target: dtype of the result; the same by default.
        times: what they are multiplied by.
        over: what they are divided by.
    """

    dtype: str
    target: str = ""
    times: int = 1
    over: int = 1

    def __call__(self, array: pa.Array) -> Array:
        """(N,) the values."""
        values, target = values_of(array, self.dtype), np.dtype(self.target or self.dtype)
        if self.times != 1 or self.over != 1:
            values = values.astype("<i8") * self.times // self.over
        if values.dtype.itemsize < target.itemsize:
            values = values.astype("<i8")
        return values.view(target)

    @property
    def is_plain(self) -> bool:
        """True if values are given as they lie."""
        same = np.dtype(self.dtype).itemsize == np.dtype(self.target or self.dtype).itemsize
        return self.times == self.over == 1 and same


def base_of(array: pa.Array, nth: int, width: int) -> int:
    """The address at which the array's first value begins in a buffer of `width` bytes a value."""
    buffer = array.buffers()[nth]
    return 0 if buffer is None else int(buffer.address) + array.offset * width


def days_of(array: pa.Array) -> Array:
    """(N,) dates, of an array of date32."""
    return values_of(array, "<i4").astype("<M8[D]")


def decimals_of(array: pa.Array) -> Array:
    """(N,) decimals of at most 18 digits without their points.

    Raises:
        CorruptError: one has more.
    """
    words = array.type.bit_width // 64
    if words < 1:
        return values_of(array, "<i4").astype("<i8")
    parts = values_of(array, f"V{8 * words}").view("<i8").reshape(len(array), words)
    low = parts[:, 0]
    beyond = (parts[:, 1:] != (low >> 63)[:, None]).any(axis=1)
    if beyond.any() and (beyond & np.asarray(array.is_valid())).any():
        raise CorruptError(f"a {array.type} has more digits than its type allows; write the column again")
    return low


def runs_of(array: pa.Array) -> tuple[Ints, Array]:
    """(N + 1,) where each text begins, from 0 on, and the bytes of all texts."""
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        values = _bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
        return np.arange(len(array) + 1) * width, values
    offsets = _offsets(array)
    start, stop = int(offsets[0]), int(offsets[-1])
    return offsets - start if start else offsets, _bytes(array.buffers()[2])[start:stop]


def lists_of(array: pa.Array) -> tuple[Ints, pa.Array]:
    """(N + 1,) where each list begins, from 0 on, and the items of all lists."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return np.arange(len(array) + 1) * size, _fixed_items(array)
    offsets = _offsets(array)
    start, stop = int(offsets[0]), int(offsets[-1])
    return offsets - start if start else offsets, array.values.slice(start, stop - start)


def offset_dtype(kind: pa.DataType) -> str:
    """The dtype of the offsets of texts, bytes or lists."""
    types = pa.types
    is_large = types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    return "<i8" if is_large else "<i4"


def _offsets(array: pa.Array) -> Ints:
    buffer, dtype = array.buffers()[1], np.dtype(offset_dtype(array.type))
    if buffer is None or not len(array):
        return np.zeros(1, np.int64)
    at = array.offset * dtype.itemsize
    found = np.frombuffer(buffer, dtype, len(array) + 1, at).astype(np.int64, copy=False)
    if int(found[0]) < 0 or bool((found[1:] < found[:-1]).any()):
        raise CorruptError(f"the offsets of a {array.type} do not ascend; write the column again")
    return found


def _bytes(buffer: pa.Buffer | None) -> Array:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _fixed_items(array: pa.Array) -> pa.Array:
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def fixed_of(array: pa.Array) -> pa.Array:
    """The innermost values of lists of a fixed size, those below nulls too."""
    while pa.types.is_fixed_size_list(array.type):
        array = _fixed_items(array)
    return array


def tensors_of(array: pa.Array, shape: tuple[int, ...], read: Callable[[pa.Array], Array]) -> Array:
    """The values of N arrays of one shape, which lie as lists in lists.

    Raises:
        SchemaError: some have another shape.
    """
    found = len(array)
    for extent in shape:
        offsets, array = lists_of(array)
        if bool((np.diff(offsets) != extent).any()):
            raise SchemaError(f"an array of the shape {shape} was expected, and a list has another length")
    if array.null_count:
        raise SchemaError(f"an array of the shape {shape} holds {array.null_count} nulls; fill them")
    assert len(array) == found * math.prod(shape)
    return read(array)


def without_views(array: pa.Array) -> pa.Array:
    """The same values with texts that are views as large texts, within others too.

    Arrow cannot filter what has views, and takes no rows of it.
    """
    kind = type_without_views(array.type)
    return array if kind == array.type else array.cast(kind)


def type_without_views(kind: pa.DataType) -> pa.DataType:
    """The type that `without_views` makes of another."""
    return retyped(kind, _without_view)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    return kind  # lists that are views are put into order later, as Arrow's cast heeds no offset of theirs


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type that an extension type is kept as; any other is its own."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def is_list(kind: pa.DataType) -> bool:
    """True for lists of any length and of one; views of lists are not."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def retyped(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type whose values that hold no others have the types that `change` makes of theirs."""
    types = pa.types

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(retyped(field.type, change))

    if types.is_struct(kind):
        return pa.struct([within(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_fixed_size_list(kind):
        return pa.list_(within(kind.value_field), kind.list_size)
    if types.is_map(kind):
        return pa.map_(within(kind.key_field), within(kind.item_field), kind.keys_sorted)
    if types.is_list(kind) or types.is_large_list(kind):
        item = within(kind.value_field)
        return pa.list_(item) if types.is_list(kind) else pa.large_list(item)
    return change(kind)


def num_leaves(of: pa.DataType) -> int:
    """How many of Parquet's columns hold values of a type."""
    of = storage_type(of)
    if pa.types.is_dictionary(of):
        return 1
    return sum(num_leaves(of.field(i).type) for i in range(of.num_fields)) if of.num_fields else 1
