"""Arrays that lie in columns of bytes, as `numpy.save` or `numpy.savez_compressed` writes them -> columns."""

from __future__ import annotations

import io
import zipfile
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import CorruptError
from ...rows.data import Data
from ...rows.types import Array
from .unischema import Field

__all__ = ["arrays_of"]

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # bytes
_MOST_BYTES = 2**31  # of an unpacked array whose shape the schema does not say
_SLACK = 2**16
Header = tuple[np.dtype[np.generic], bool, tuple[int, ...]]


def arrays_of(column: pa.Array, field: Field, where: str) -> Data:
    """The arrays of a column of bytes; zeros, or none, where it is null.

    Args:
        column: of binary values.
        field: which codec they have, and what shape.
        where: the file and the group, for messages.

    Raises:
        CorruptError: a value is damaged, or not such as the schema says; names the row.
    """
    dtype, shape = np.dtype(field.dtype), field.shape
    if None not in shape:
        found = _equal(column, field, dtype)
        return Data(_one_by_one(column, field, dtype, where) if found is None else found)
    arrays = [np.empty((0,) * len(shape), dtype)] * len(column)
    for row, value in enumerate(_values(column)):
        if value is not None:
            arrays[row] = _array(value, field, dtype, f"{where}, column {field.name!r}, row {row}")
    offsets = np.zeros(len(arrays) + 1, "<i8")
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    values = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, dtype)
    if len(shape) == 1:
        return Data(values, offsets)
    return Data(values, offsets, np.array([array.shape for array in arrays], "<i8").reshape(-1, len(shape)))


def _values(column: pa.Array) -> list[memoryview | None]:
    return [None if value is None else memoryview(value) for value in column.to_pylist()]


def _equal(column: pa.Array, field: Field, dtype: np.dtype[np.generic]) -> Array | None:
    """The arrays of a column whose values have equal headers, which takes one copy; None for any other."""
    if field.codec != "ndarray" or column.null_count or not len(column):
        return None
    offsets = np.frombuffer(
        column.buffers()[1], np.int64 if pa.types.is_large_binary(column.type) else np.int32
    )
    ends = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    sizes = np.diff(ends)
    if not sizes[0] or (sizes != sizes[0]).any():
        return None
    table = np.frombuffer(column.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(len(column), -1)
    parsed = _header(table[0].data)
    if parsed is None:
        return None
    start, (found, is_fortran, shape) = parsed
    if (
        found != dtype
        or is_fortran
        or shape != field.shape
        or table.shape[1] != start + _nbytes(dtype, shape)
    ):
        return None
    if (table[:, :start] != table[0, :start]).any():
        return None
    return np.ascontiguousarray(table[:, start:]).view(dtype).reshape(len(column), *shape)


def _one_by_one(column: pa.Array, field: Field, dtype: np.dtype[np.generic], where: str) -> Array:
    found = np.zeros((len(column), *(extent or 0 for extent in field.shape)), dtype)
    for row, value in enumerate(_values(column)):
        if value is not None:
            found[row] = _array(value, field, dtype, f"{where}, column {field.name!r}, row {row}")
    return found


def _array(value: memoryview, field: Field, dtype: np.dtype[np.generic], where: str) -> Array:
    if field.codec == "npz":
        value = _unpacked(value, field, dtype, where)
    parsed = _header(value)
    if parsed is None:
        raise CorruptError(f"{where}: not an array as numpy.save writes it")
    start, (found, is_fortran, shape) = parsed
    is_like = len(shape) == len(field.shape) and all(
        want in (None, have) for want, have in zip(field.shape, shape, strict=True)
    )
    if found.newbyteorder("=") != dtype.newbyteorder("=") or not is_like:
        raise CorruptError(
            f"{where}: an array of {found} {shape}, where the schema says {dtype} {field.shape}"
        )
    if len(value) - start != _nbytes(found, shape):
        raise CorruptError(f"{where}: an array of {shape} with {len(value) - start} bytes")
    flat: npt.NDArray[np.generic] = np.frombuffer(value, found, offset=start)
    return flat.reshape(shape, order="F" if is_fortran else "C").astype(dtype, copy=False)


def _unpacked(value: memoryview, field: Field, dtype: np.dtype[np.generic], where: str) -> memoryview:
    """The only array of an `.npz` file; refused by the size in its header before it is unpacked."""
    most = _MOST_BYTES
    if None not in field.shape:
        most = _nbytes(dtype, tuple(extent or 0 for extent in field.shape)) + _SLACK
    try:
        with zipfile.ZipFile(io.BytesIO(value)) as packed:
            (info,) = packed.infolist()
            if info.file_size > most:
                raise CorruptError(f"{where}: {info.file_size} bytes unpacked, more than its shape needs")
            with packed.open(info) as file:
                return memoryview(file.read(most + 1))
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"{where}: not an array as numpy.savez_compressed writes it: {error}") from error
    except Exception as error:  # zlib.error
        raise CorruptError(f"{where}: damaged: {error}") from error


def _header(value: memoryview) -> tuple[int, Header] | None:
    """Where the values of an array begin, and its header; None if it is not one of numbers."""
    if bytes(value[:6]) != _MAGIC or len(value) < 12 or value[6] not in (1, 2, 3):
        return None
    width = 2 if value[6] == 1 else 4
    start = 8 + width + int.from_bytes(value[8 : 8 + width], "little")
    if start > min(len(value), _LONGEST_HEADER):
        return None
    text = bytes(value[:start])
    found = _headers.get(text)
    if found is None:
        file = io.BytesIO(text)
        try:
            np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
        except (ValueError, EOFError, SyntaxError, RecursionError, MemoryError):
            return None
        if dtype.hasobject or dtype.fields is not None or any(extent < 0 for extent in shape):
            return None
        found = dtype, is_fortran, shape
        if len(_headers) > 4096:
            _headers.clear()
        _headers[text] = found
    return start, found


def _nbytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * prod(shape)


_headers: dict[bytes, Header] = {}
