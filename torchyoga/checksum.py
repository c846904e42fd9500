"""CRC-32 of a whole from the CRC-32s of its parts: a fingerprint that does not depend on where blocks end."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import BinaryIO

__all__ = ["combine_crc32", "crc32_of"]

_READ_BYTES = 2**20
_POLYNOMIAL = 0xEDB88320  # of zlib's CRC-32, bit-reversed


def crc32_of(file: BinaryIO) -> tuple[int, int]:
    """The CRC-32 of the rest of a file, and its bytes.

    Example:
        >>> import io
        >>> crc32_of(io.BytesIO(b"data layer")) == (zlib.crc32(b"data layer"), 10)
        True
    """
    crc = nbytes = 0
    while data := file.read(_READ_BYTES):
        crc, nbytes = zlib.crc32(data, crc), nbytes + len(data)
    return crc, nbytes


def combine_crc32(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two runs of bytes, one after the other, from those of each.

    Appending n bytes multiplies the first CRC by x^(8n) modulo the polynomial (Mark Adler, zlib's
    crc32_combine).

    Example:
        >>> import zlib
        >>> combine_crc32(zlib.crc32(b"data "), zlib.crc32(b"layer"), 5) == zlib.crc32(b"data layer")
        True
    """
    return _multiply(_power(second_bytes), first) ^ second


@lru_cache(maxsize=1024)
def _power(num_bytes: int) -> int:
    """x^(8 * num_bytes) modulo the polynomial; bit 31 is x^0."""
    power, square, exponent = 1 << 31, 1 << 30, 8 * num_bytes
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return power


def _multiply(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
