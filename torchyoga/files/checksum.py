"""CRC-32, the checksum of all that is stored, also of a whole from its parts; and CRC-32C, that of TFRecord.

The CRC-32 is isal's where it is installed, else zlib's.
The values are the same. isal computes 5 to 40 GB/s with the vector instructions of a processor, 784 bytes or
megabytes at a time; Python's zlib makes 1 to 4.

The CRC-32C (Castagnoli) is google-crc32c's where it is installed, else made by NumPy.
NumPy makes it of words of 8 bytes, all at once: CRCs without their first and last inversion are linear, so
that of a run is the sum of those of its words, each moved on by the zeros that follow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # no wheel for this system; only slower
    from zlib import crc32 as crc32
from ..process.lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Crcs = npt.NDArray[np.uint32]
else:
    Crcs = Any

_READ_BYTES = 2**20
_POLYNOMIAL = 0xEDB88320  # of zlib's CRC-32, bit-reversed


def crc32_of(file: BinaryIO) -> tuple[int, int]:
    """The CRC-32 of the rest of a file, and the number of its bytes.

    Example:
        >>> import io
        >>> crc32_of(io.BytesIO(b"data layer")) == (crc32(b"data layer"), 10)
        True
    """
    crc = nbytes = 0
    while data := file.read(_READ_BYTES):
        crc, nbytes = crc32(data, crc), nbytes + len(data)
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


def crc32_of_all(crcs: Crcs, sizes: npt.NDArray[np.int64]) -> Crcs:
    """(P,) the CRC-32 of runs of bytes, one after the other, from those of each; for P columns together.

    It combines rows as `combine_crc32` does, in a thousandth of the time.

    Args:
        crcs: (N, P) CRC-32 of each run.
        sizes: (N, P) bytes of each run; fewer than 2**62 in a column.

    Example:
        >>> import zlib
        >>> crcs = np.array([[zlib.crc32(b"data ")], [zlib.crc32(b"layer")]], np.uint32)
        >>> crc32_of_all(crcs, np.array([[5], [5]])).tolist() == [zlib.crc32(b"data layer")]
        True
    """
    after = np.cumsum(sizes[::-1], axis=0)[::-1] - sizes  # bytes that follow each run
    found, place = crcs.astype(np.uint32), 0
    while after.any():
        digits = after & 255
        if digits.any():
            found = _products(_powers(place)[digits], found)
        after, place = after >> 8, place + 1
    whole: Crcs = np.bitwise_xor.reduce(found, axis=0)
    return whole


@lru_cache(maxsize=8)
def _powers(place: int) -> Crcs:
    """(256,) x^(8 * d * 256^place) modulo the polynomial, for each digit d."""
    found = [1 << 31]
    for _ in range(255):
        found.append(_multiply(found[-1], _power(256**place)))
    return np.array(found, np.uint32)


def _products(a: Crcs, b: Crcs) -> Crcs:
    """The product of each pair, as `_multiply` computes it."""
    product, one = np.zeros_like(b), np.uint32(1)
    for bit in range(31, -1, -1):
        product ^= b * (a >> np.uint32(bit) & one)
        b = b >> one ^ np.uint32(_POLYNOMIAL) * (b & one)
    return product


_CASTAGNOLI, _ALL = 0x82F63B78, 0xFFFFFFFF  # the first is bit-reversed
_MASK = 0xA282EAD8
_FOR_ONES = tuple(b"Td\x1fd")  # bytes that make a register of zeros one of ones, as a CRC begins with


@cache
def crc32c() -> Callable[[bytes | npt.NDArray[np.uint8]], int]:
    """The function that computes it of bytes, or of an array of them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where it has no compiled part, which is asked for below
            import google_crc32c
    except ImportError:
        return by_numpy
    value: Callable[[bytes | npt.NDArray[np.uint8]], int] = google_crc32c.value
    return value if google_crc32c.implementation == "c" else by_numpy


def masked(crcs: Any) -> Any:
    """CRCs as TFRecord stores them: masked, since the CRC of bytes that hold their own CRC is weak.

    Args:
        crcs: an int, or an array of uint32.
    """
    return ((crcs >> 15 | crcs << 17) + _MASK) & _ALL


def crc32c_of_words(words: npt.NDArray[np.uint8]) -> Crcs:
    """(N,) the CRC-32C of each run of 8 bytes (N, 8).

    Example:
        >>> crc32c_of_words(np.frombuffer(b"12345678", np.uint8)[None]).tolist() == [crc32c()(b"12345678")]
        True
    """
    inverted = words.copy()
    inverted[:, :4] ^= 255
    crcs: Crcs = _registers(inverted) ^ np.uint32(_ALL)
    return crcs


def by_numpy(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes, without any other package."""
    before = 8 + -len(data) % 8
    words = np.zeros(before + len(data), np.uint8)  # zeros before the first byte change nothing
    words[before - 4 : before] = _FOR_ONES
    words[before:] = np.frombuffer(data, np.uint8)
    crcs, zeros = _registers(words.reshape(-1, 8)), 8
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs, zeros = _moved(crcs[0::2], zeros) ^ crcs[1::2], 2 * zeros
    return int(crcs[0]) ^ _ALL


def _registers(words: npt.NDArray[np.uint8]) -> Crcs:
    """(N,) the register after each word (N, 8), if it was zero before."""
    parts = [table[words[:, 7 - zeros]] for zeros, table in enumerate(_tables())]
    registers: Crcs = np.bitwise_xor.reduce(parts, axis=0)
    return registers


@cache
def _tables() -> list[Crcs]:
    """Eight tables (256,): the register after a byte and 0 to 7 zeros."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = first >> np.uint32(1) ^ np.uint32(_CASTAGNOLI) * (first & np.uint32(1))
    found = [first]
    while len(found) < 8:
        found.append(found[-1] >> np.uint32(8) ^ first[found[-1] & np.uint32(255)])
    return found


def _moved(crcs: Crcs, zeros: int) -> Crcs:
    """Registers after so many bytes of zeros."""
    parts = crcs[..., None].astype("<u4").view(np.uint8)
    moved: Crcs = np.bitwise_xor.reduce([_jumps(zeros)[n][parts[..., n]] for n in range(4)], axis=0)
    return moved


@cache
def _jumps(zeros: int) -> list[Crcs]:
    """Four tables (256,): what each byte of a register becomes after 8, 16, 32, ... zeros."""
    if zeros == 8:
        return _tables()[:3:-1]
    return [_moved(some, zeros // 2) for some in _jumps(zeros // 2)]
