"""Which stored bytes have been compared with their checksums, unit by unit, and the comparison."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from .items import appended

__all__ = ["UNIT_BYTES", "Checks", "num_units", "unit_bytes_of", "unit_checksums"]

Ints = npt.NDArray[np.int64]
UNIT_BYTES = 4096  # at least; cold rows would otherwise wait for whole blocks


def unit_bytes_of(item_bytes: int) -> int:
    """The bytes of a unit: whole items, a page or more."""
    return max(1, item_bytes) * -(-UNIT_BYTES // max(1, item_bytes))


def num_units(nbytes: Ints, unit_bytes: int) -> Ints:
    """The number of units in each block of so many bytes."""
    return -(-nbytes // unit_bytes)


def unit_checksums(data: npt.NDArray[np.uint8], unit_bytes: int) -> npt.NDArray[np.uint32]:
    """(units,) CRC-32 of each unit of a block."""
    view = data.data
    starts = range(0, len(view), unit_bytes)
    return np.fromiter((zlib.crc32(view[i : i + unit_bytes]) for i in starts), "<u4", len(starts))


class Checks:
    """The units of the blocks of one part of a column, over all open files, with a bit for each.

    A unit is a run of bytes of a block with its own checksum. It is compared when a process first reads an
    item of it. Threads may mark units at once: a mark that gets lost only means another comparison.
    """

    def __init__(self) -> None:
        self._bits = np.zeros(0, np.uint8)  # 1 for a unit that has been compared
        self._first = np.zeros(0, np.int64)  # the first unit of each block
        self._sizes = np.zeros(0, np.int64)  # bytes of a unit in each block
        self._blocks = self._used = self._left = 0
        self.complete = True

    def append(self, counts: Ints, unit_bytes: int, done: bool = False) -> None:
        """Adds blocks of `counts` units each; `done` if they need not be compared."""
        total = int(counts.sum())
        bits = np.full(-(-total // 8), 255 if done else 0, np.uint8)
        if total % 8:
            bits[-1] |= 255 << total % 8 & 255  # bits beyond the last unit count as done
        first = 8 * self._used + np.cumsum(counts) - counts
        self._bits = appended(self._bits, self._used, bits)
        self._sizes = appended(self._sizes, self._blocks, np.full(len(counts), unit_bytes))
        self._first = appended(self._first, self._blocks, first)
        self._blocks += len(counts)
        self._used += len(bits)
        if not done:
            self._left += total
            self.complete = self.complete and not total

    def missing(self, blocks: Ints, low: Ints, high: Ints | None = None) -> tuple[Ints, Ints]:
        """The units between bytes `low` and `high` of these blocks that have not been compared yet.

        Args:
            blocks: (N,) numbers of blocks.
            low: (N,) first byte within each block.
            high: (N,) end within each block; by default, the end of the unit of `low`.

        Returns:
            The number of each unit, and its block.
        """
        first, sizes = self._first.take(blocks), self._sizes.take(blocks)
        units = first + low // sizes
        if high is not None:
            some = high > low
            last = first + (high - 1) // sizes
            counts = np.where(some, last - units + 1, 0)
            if bool((counts != 1).any()):
                blocks = np.repeat(blocks, counts)
                before = np.repeat(np.cumsum(counts) - counts, counts)
                units = np.repeat(units, counts) + np.arange(len(before)) - before
        open_ = np.flatnonzero(~self._is_done(units))
        if not len(open_):
            return units[:0], blocks[:0]
        found, where = np.unique(units[open_], return_index=True)
        return found, blocks[open_[where]]

    def places(self, units: Ints, blocks: Ints) -> tuple[Ints, Ints, Ints]:
        """For each unit: its index in its block, its first byte there, its size in bytes."""
        nth, size = units - self._first.take(blocks), self._sizes.take(blocks)
        return nth, nth * size, size

    def mark(self, units: Ints) -> None:
        """Marks units as compared; each may appear only once."""
        np.bitwise_or.at(self._bits, units >> 3, (1 << (units & 7)).astype(np.uint8))
        self._left -= len(units)
        if self._left <= 0:
            # Two threads may both have counted the same unit.
            used = self._bits[: self._used]
            self._left = int((used != 255).sum())
            self.complete = not self._left

    def widened(self, blocks: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Bytes `low` to `high` of these blocks, widened to whole units that have not been compared yet."""
        sizes = self._sizes.take(blocks)
        done = self._is_done(self._first.take(blocks) + low // sizes)
        return np.where(done, low, low - low % sizes), np.where(done, high, high + -high % sizes)

    def _is_done(self, units: Ints) -> npt.NDArray[np.bool_]:
        return (self._bits.take(units >> 3) >> (units & 7).astype(np.uint8) & 1).astype(np.bool_)
