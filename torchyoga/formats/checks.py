"""Which stored bytes have been compared with their checksums, by any of several processes.

Note 5. What one process has checked, its workers need not check again.
The memory of the marks is shared with forked children, and passed to processes that are being spawned. A mark
is one byte, written after the comparison and never taken back, so nothing is locked and nothing gets lost;
one that is seen late only means another comparison.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from multiprocessing import context, reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files.checksum import crc32
from ..process.numbers import distinct, first_places
from ..rows.block import bounds_of, numbered_within
from ..rows.types import Ints
from .items import appended, with_columns

UNIT_BYTES = 4096  # at least; cold rows would otherwise wait for whole blocks


def unit_bytes_of(item_bytes: int) -> int:
    """The bytes of a unit: whole items, a page or more."""
    return max(1, item_bytes) * -(-UNIT_BYTES // max(1, item_bytes))


def num_units(nbytes: Ints, unit_bytes: Ints | int) -> Ints:
    """The number of units in each block of so many bytes."""
    return -(-nbytes // unit_bytes)


def unit_checksums(data: npt.NDArray[np.uint8], unit_bytes: int) -> npt.NDArray[np.uint32]:
    """(units,) CRC-32 of each unit of a block."""
    view = data.data
    starts = range(0, len(view), unit_bytes)
    return np.fromiter((crc32(view[i : i + unit_bytes]) for i in starts), "<u4", len(starts))


class Checks:
    """The blocks of one part of a column, over all open files, and which of them have been compared.

    A block has a checksum, and most have one for each of its units, runs of some 4 KiB: a block is done once
    it was compared as a whole, by this process or one that shares its marks, or once all its units were.
    Threads may mark at once: a mark that gets lost only means another comparison.

    Args:
        marks: shared with other processes.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._done = np.zeros(0, np.bool_)  # of each block
        self._bits = np.zeros(0, np.uint8)  # 1 for a unit that has been compared
        # For each block: its units, the first of them, and their bytes; how many of them are still to be
        # compared, or fewer; where other processes mark it, -1 for nowhere.
        self._table = np.zeros((5, 0), np.int64)
        self._counts, self._first, self._sizes, self._unseen, self._cells = self._table
        self._blocks = self._used = self._left = 0
        self.complete = True

    def append(
        self,
        counts: Ints,
        unit_bytes: Ints | int,
        cells: Ints | int = -1,
        done: npt.NDArray[np.bool_] | bool = False,
    ) -> None:
        """Adds blocks.

        Args:
            counts: (blocks,) units of each; a block of none is done.
            unit_bytes: (blocks,) of each unit; the last one of a block may be shorter.
            cells: (blocks,) where each is marked in the memory shared with others; -1 for nowhere.
            done: (blocks,) they need not be compared.
        """
        total, used = int(counts.sum()), self._blocks
        is_done = (counts == 0) | done
        self._bits = appended(self._bits, self._used, np.zeros(-(-total // 8), np.uint8))
        first = counts.cumsum() - counts + 8 * self._used
        self._table = with_columns(self._table, used, counts, first, unit_bytes, counts, cells)
        self._counts, self._first, self._sizes, self._unseen, self._cells = self._table
        self._done = appended(self._done, used, is_done)
        self._blocks += len(counts)
        self._used += -(-total // 8)
        left = len(counts) - int(np.count_nonzero(is_done))
        if left:
            self._left += left
            self.complete = False

    def open(self, blocks: Ints) -> Ints:
        """The blocks among these, each once, that are not done yet."""
        left = blocks[~self._done.take(blocks)]
        if not len(left):
            return left
        left = distinct(left)
        cells = self._cells.take(left)
        seen = (cells >= 0) & self._marks.cells.take(np.maximum(cells, 0)).astype(np.bool_)
        if not seen.any():
            return left
        self._close(left[seen])
        return left[~seen]

    def mark_blocks(self, blocks: Ints) -> None:
        """Marks whole blocks as compared; each may appear only once."""
        cells = self._cells.take(blocks)
        self._marks.cells[cells[cells >= 0]] = 1
        self._close(blocks)

    def _close(self, blocks: Ints) -> None:
        self._done[blocks] = True
        self._left -= len(blocks)
        if self._left <= 0:
            # Two threads may both have counted the same block.
            self._left = int((~self._done[: self._blocks]).sum())
            self.complete = not self._left

    # -- units

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
                units = np.repeat(units, counts) + numbered_within(counts)
        open_ = np.flatnonzero(~self._is_done(units, blocks))
        if not len(open_):
            return units[:0], blocks[:0]
        found, where = first_places(units[open_])
        return found, blocks[open_[where]]

    def places(self, units: Ints, blocks: Ints) -> tuple[Ints, Ints, Ints]:
        """For each unit: its index in its block, its first byte there, its size in bytes."""
        nth, size = units - self._first.take(blocks), self._sizes.take(blocks)
        return nth, nth * size, size

    def mark(self, units: Ints, blocks: Ints) -> None:
        """Marks units of these blocks as compared; each may appear only once."""
        np.bitwise_or.at(self._bits, units >> 3, (1 << (units & 7)).astype(np.uint8))
        np.subtract.at(self._unseen, blocks, 1)
        for block in distinct(blocks[self._unseen.take(blocks) <= 0]).tolist():
            # Two threads may both have counted the same unit.
            start = int(self._first[block])
            seen = self._seen(np.arange(start, start + int(self._counts[block])))
            self._unseen[block] = len(seen) - int(seen.sum())
            if seen.all() and not self._done[block]:
                self.mark_blocks(np.array([block]))

    def widened(self, blocks: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Bytes `low` to `high` of these blocks, widened to whole units that have not been compared yet."""
        sizes = self._sizes.take(blocks)
        done = self._is_done(self._first.take(blocks) + low // sizes, blocks)
        return np.where(done, low, low - low % sizes), np.where(done, high, high + -high % sizes)

    def _is_done(self, units: Ints, blocks: Ints) -> npt.NDArray[np.bool_]:
        return self._seen(units) | self._done.take(blocks)

    def _seen(self, units: Ints) -> npt.NDArray[np.bool_]:
        return (self._bits.take(units >> 3) >> (units & 7).astype(np.uint8) & 1).astype(np.bool_)


CELL = 2**16  # bytes of a file to a mark: blocks of that size or more do not begin in the same cell
_MOST_BYTES = 2**44  # of files that are marked, in 256 MiB
_NAME_BYTES = 8  # before the marks of each file: which file they are about


class Marks:
    """A mark for each 64 KiB of some files, at first unset.

    Pickled for a process that is being started, they are the same memory there, where the system can do that;
    else none is set there.

    Attributes:
        nbytes: (files,) size of each file.

    Example:
        >>> marks = Marks([2**20, 2**16])
        >>> first = marks.first_cell(1, ("a file",))
        >>> marks.cells[first] = 1
    """

    def __init__(self, nbytes: Sequence[int]) -> None:
        self.nbytes = tuple(nbytes)
        self._are_kept = sum(nbytes) <= _MOST_BYTES
        sizes = -(-np.array(nbytes if self._are_kept else (), np.int64) // CELL)
        spans = _NAME_BYTES + -(-sizes // _NAME_BYTES) * _NAME_BYTES
        self._starts = bounds_of(spans)[:-1]
        self._size = max(1, int(spans.sum()))
        self._descriptor = -1  # of the memory, once a process is started that shares it
        self._map(-1)

    def _map(self, descriptor: int) -> None:
        self.cells = np.frombuffer(mmap.mmap(descriptor, self._size), np.uint8)

    def first_cell(self, file: int, identity: tuple[object, ...]) -> int:
        """Where the marks of a file begin in `cells`; -1 if they are about another file, or there are none.

        Args:
            file: its number.
            identity: says which file it is, such as its inode and when it was changed.
        """
        if not self._are_kept:
            return -1
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=_NAME_BYTES).digest()
        wanted = int.from_bytes(digest, "little", signed=True) or 1
        start = int(self._starts[file])
        name = self.cells[start : start + _NAME_BYTES].view(np.int64)
        if not name[0]:
            name[0] = wanted
        # Looked at again: another process may have been first, with another file.
        return start + _NAME_BYTES if int(name[0]) == wanted else -1

    @staticmethod
    def can_be_passed() -> bool:
        """True while a process is being started that can have the same memory."""
        spawning = context.get_spawning_popen()
        return hasattr(spawning, "duplicate_for_child") and hasattr(os, "memfd_create")

    def __reduce__(self) -> tuple[object, ...]:
        if not self.can_be_passed():
            return Marks, (self.nbytes,)
        if self._descriptor < 0:
            self._give_descriptor()
        return _shared, (self.nbytes, reduction.DupFd(self._descriptor))

    def _give_descriptor(self) -> None:
        """Moves the marks to memory that has a descriptor; forked children keep the old one."""
        before = self.cells
        descriptor = os.memfd_create("torchyoga-marks", getattr(os, "MFD_CLOEXEC", 0))
        os.ftruncate(descriptor, self._size)
        self._map(descriptor)
        self._descriptor = descriptor
        self.cells |= before

    _close = staticmethod(os.close)  # modules may be gone when a process ends

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self._close(self._descriptor)


def _shared(nbytes: Sequence[int], passed: Any) -> Marks:
    """The marks of the process that starts this one, whose `reduction.DupFd` is passed."""
    found, descriptor = Marks(nbytes), int(passed.detach())
    try:
        found._map(descriptor)
    finally:
        os.close(descriptor)  # a mapping has its own
    return found
