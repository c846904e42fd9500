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
    crcs: Crcs = _moved(words.copy(), np.uint32(_ALL)) ^ np.uint32(_ALL)
    return crcs


def by_numpy(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes, without any other package."""
    if not len(data):
        return 0
    count = 1 << (-(-len(data) // 8) - 1).bit_length()
    words = np.zeros(8 * count, np.uint8)  # zeros before the first byte change nothing
    words[-len(data) :] = np.frombuffer(data, np.uint8)
    crcs, zeros = _moved(words.reshape(-1, 8), 0), 8
    while len(crcs) > 1:
        crcs, zeros = _advanced(crcs[0::2], zeros) ^ crcs[1::2], 2 * zeros
    first = np.array([_ALL], np.uint32)
    for place in range(len(data).bit_length()):
        if len(data) >> place & 1:
            first = _advanced(first, 1 << place)
    return int(crcs[0] ^ first[0]) ^ _ALL


def _moved(words: npt.NDArray[np.uint8], before: Any) -> Crcs:
    """(N,) registers after each word (N, 8), from one before it on."""
    if before:
        words[:, :4] ^= np.array([before], "<u4").view(np.uint8)
    registers: Crcs = np.bitwise_xor.reduce(
        [_table(8 - place)[words[:, place]] for place in range(8)], axis=0
    )
    return registers


@cache
def _table(zeros: int) -> Crcs:
    """(256,) the register after a byte and zeros, `zeros` bytes in all."""
    crcs = np.arange(256, dtype=np.uint32)
    if zeros > 1:
        return _advanced(_table(1), zeros - 1)
    for _ in range(8):
        crcs = crcs >> np.uint32(1) ^ np.uint32(_CASTAGNOLI) * (crcs & np.uint32(1))
    return crcs


def _advanced(crcs: Crcs, zeros: int) -> Crcs:
    """Registers after so many bytes of zeros, a power of two or fewer than 8."""
    if zeros >= 8 and not zeros & zeros - 1:
        tables = _jumps(zeros)
        parts = crcs[..., None].astype("<u4").view(np.uint8)
        moved: Crcs = np.bitwise_xor.reduce([tables[n][parts[..., n]] for n in range(4)], axis=0)
        return moved
    for _ in range(zeros):
        crcs = crcs >> np.uint32(8) ^ _table(1)[crcs & np.uint32(255)]
    return crcs


@cache
def _jumps(zeros: int) -> list[Crcs]:
    """Four tables (256,) of what the bytes of a register are after so many zeros, a power of two."""
    values = [np.arange(256, dtype=np.uint32) << np.uint32(8 * n) for n in range(4)]
    if zeros == 8:
        for _ in range(8):
            values = [_advanced(some, 1) for some in values]
        return values
    half = zeros // 2
    return [_advanced(_advanced(some, half), half) for some in values]
