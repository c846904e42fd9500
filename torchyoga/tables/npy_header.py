"""The header of an array that numpy.save wrote -> its dtype and its shape."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TypeAlias

import numpy as np

LONGEST_HEADER = 10_000  # bytes
_MAGIC = b"\x93NUMPY"
_Header: TypeAlias = tuple[np.dtype[np.generic], bool, tuple[int, ...]]


def npy_header(value: bytes | memoryview) -> tuple[int, _Header] | None:
    """Where the values of an array begin, and its dtype, whether it is in Fortran's order, and its shape.

    None if it is not an array of numbers.

    Args:
        value: the array, or its first `LONGEST_HEADER` bytes.
    """
    if bytes(value[:6]) != _MAGIC or len(value) < 12 or value[6] not in (1, 2, 3):
        return None
    width = 2 if value[6] == 1 else 4
    start = 8 + width + int.from_bytes(value[8 : 8 + width], "little")
    # A dtype such as "<M8[s/0]" makes NumPy end the process; those that it writes have no slash.
    if start > min(len(value), LONGEST_HEADER) or b"/" in bytes(value[:start]):
        return None
    found = _header_in(bytes(value[:start]))
    return None if found is None else (start, found)


@lru_cache(4096)
def _header_in(text: bytes) -> _Header | None:
    file = io.BytesIO(text)
    try:
        version = np.lib.format.read_magic(file)
        is_short = version[0] == 1
        read = np.lib.format.read_array_header_1_0 if is_short else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except Exception:  # of any kind: a damaged header is read as Python's text
        return None
    if dtype.hasobject or dtype.fields is not None or any(extent < 0 for extent in shape):
        return None
    return dtype, is_fortran, shape
