"""CRC-32C (Castagnoli): the checksum of TFRecord. By google-crc32c where it is installed, else by NumPy.

NumPy makes it of words of 8 bytes, all at once: CRCs without their first and last inversion are linear, so
that of a run is the sum of those of its words, each moved on by the zeros that follow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..process.lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Crcs = npt.NDArray[np.uint32]
else:
    Crcs = Any

_POLYNOMIAL, _ALL = 0x82F63B78, 0xFFFFFFFF  # the first is bit-reversed
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
    """CRCs as TFRecord stores them, so that a CRC of bytes that hold one is no trap.

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
        crcs = crcs >> np.uint32(1) ^ np.uint32(_POLYNOMIAL) * (crcs & np.uint32(1))
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
