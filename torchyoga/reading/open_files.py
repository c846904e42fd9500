"""The files of a version that are open: where the blocks of each part of each column lie.

Note 72. When too many files are open, a new shelf begins.
It begins with the files used last; readers of the old one finish on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..formats.contract import Extent
from ..mapped.checks import Checks, num_units
from ..mapped.gather import Bytes, MappedFile, Memory
from ..mapped.items import Decoded, Items, Mapped, Numbering, appended
from ..mapped.pages import Thermometer, merged, scatter, usage, will_need
from ..process.buffers import address_of, fresh
from ..rows.schema import Schema

__all__ = ["Opened", "Part", "Shelf"]

Ints = npt.NDArray[np.int64]
Empty = Callable[[int], Bytes]
_DECODED_BYTES = 256 * 2**20  # kept for one version, shared between its compressed columns
_WHOLE = 2**62  # bytes of a unit where a block has one checksum


class Opened(NamedTuple):
    """A file that is mapped, and where the parts of its columns lie."""

    file: MappedFile
    extents: Sequence[Extent]  # for each part
    names: Sequence[str]  # of the parts
    is_checked: bool = False  # whole, by this process, a moment ago

    def check(self, part: int, block: int, nth: int = 0, low: int = 0, high: int = _WHOLE) -> None:
        """Raises CorruptError unless bytes `low` to `high` of a block, its nth unit, are what was written."""
        extent = self.extents[part]
        offset, nbytes = int(extent.offsets[block]), int(extent.nbytes[block])
        expected = int(extent.crcs[block])
        if extent.units is not None and high < _WHOLE:
            assert extent.first_unit is not None
            expected = int(extent.units[int(extent.first_unit[block]) + nth])
        low, high = offset + low, offset + min(high, nbytes)
        if self.file.checksum(low, high - low) != expected:
            raise CorruptError(
                f"{self.file.path}: {self.names[part]} of block {block} (bytes {low} to {high}) is damaged: "
                "its checksum does not match; remove the version and build it again"
            )

    def check_all(self) -> None:
        """Raises CorruptError unless every block and every unit is what was written."""
        for part, extent in enumerate(self.extents):
            for block in range(len(extent.offsets)):
                self.check(part, block)
                if extent.units is not None:
                    size = extent.unit_bytes
                    for nth in range(int(num_units(extent.nbytes[block : block + 1], size)[0])):
                        self.check(part, block, nth, nth * size, (nth + 1) * size)


class _Stored:
    """The blocks of one part of a column as they are stored, over all open files; checked when first read."""

    def __init__(self, part: int, stride: int, memory: Memory) -> None:
        self.checks = Checks()
        self._memory = memory
        # For each block: where it lies, its checksum, and where its units' checksums lie, if it has any.
        self.addresses = self.nbytes = self._crcs = self._crc_addresses = np.zeros(0, np.int64)
        self._part = part
        self._stride = stride
        self._opened: list[Opened] = []
        self.first_block = self._table = np.zeros(1, np.int64)  # of each file, and of one more
        self._starts = np.zeros(0, np.int64)

    def append(self, opened: Opened, verify: bool, starts: Ints) -> None:
        """Adds a file; `starts` are the numbers of the first items of its blocks."""
        extent = opened.extents[self._part]
        self._opened.append(opened)
        used = int(self.first_block[-1])
        self._starts = appended(self._starts, used, starts)
        self._table = appended(self._table, len(self._opened), np.array([used + len(extent.offsets)]))
        self.first_block = self._table[: len(self._opened) + 1]
        self.addresses = appended(self.addresses, used, extent.offsets + opened.file.address)
        self.nbytes = appended(self.nbytes, used, extent.nbytes)
        self._crcs = appended(self._crcs, used, extent.crcs)
        is_checked = opened.is_checked or not verify
        if extent.units is None or extent.first_unit is None:
            told = np.zeros(len(extent.offsets), np.int64)
            self.checks.append(np.ones(len(extent.offsets), np.int64), _WHOLE, is_checked)
        else:
            told = address_of(extent.units) + 4 * extent.first_unit
            self.checks.append(num_units(extent.nbytes, extent.unit_bytes), extent.unit_bytes, is_checked)
        self._crc_addresses = appended(self._crc_addresses, used, told)

    def touch(self, items: Ints, blocks: Ints, last: Ints | None = None) -> None:
        """Checks the items, or those from each to before `last`, unless that has been done."""
        if self.checks.complete:
            return
        low = (items - self._starts.take(blocks)) * self._stride
        high = None if last is None else (last - self._starts.take(blocks)) * self._stride
        self.check(*self.checks.missing(blocks, low, high))

    def check(self, units: Ints, blocks: Ints) -> None:
        """Checks these units of these blocks."""
        if not len(units):
            return
        nth, low, size = self.checks.places(units, blocks)
        # Not file by file: in a shuffle, every unit of a batch may be in another one.
        expected = self._crcs.take(blocks)
        told = self._crc_addresses.take(blocks)
        some = np.flatnonzero(told)
        if len(some):
            found = self._memory.gather(told[some] + 4 * nth[some], 4, fresh)
            expected[some] = found.view("<u4")
        starts = self.addresses.take(blocks) + low
        sizes = np.minimum(size, self.nbytes.take(blocks) - low)
        for i, crc in enumerate(self._memory.checksums(starts, sizes)):
            if crc != expected[i]:
                self.checks.mark(units[:i])
                file, within = self.file_of(int(blocks[i]))
                self._opened[file].check(self._part, within, int(nth[i]), int(low[i]), int(low[i] + size[i]))
        self.checks.mark(units)

    def file_of(self, block: int) -> tuple[int, int]:
        """The place of the file of a block among the open ones, and its number there."""
        file = int(self.first_block.searchsorted(block, "right")) - 1
        return file, block - int(self.first_block[file])

    def decode(self, block: int, piece: int, out: Bytes) -> None:
        """Writes the items of a block into `out`."""
        numbers = np.array([block])
        if not self.checks.complete:
            self.check(*self.checks.missing(numbers, np.zeros(1, np.int64)))
        file, within = self.file_of(block)
        extent, data = self._opened[file].extents[self._part], self._opened[file].file.data
        offset, nbytes = int(extent.offsets[within]), int(extent.nbytes[within])
        assert extent.decode is not None
        try:
            extent.decode(within, data[offset : offset + nbytes], out[: extent.block_bytes])
        except CorruptError as error:
            raise CorruptError(f"block {block}: {error}; remove the version and build it again") from error


class Part:
    """One part of a column, over all files that are open.

    Attributes:
        items: rows; for the values of a ragged column, elements. Numbered as in `Numbering`.
        stored: it does not refer back here: a mapped file is released as soon as nobody reads it.
        warmth: whether it comes from disk.
    """

    def __init__(self, number: int, name: str, size: int, warmth: Thermometer, memory: Memory) -> None:
        self.number = number
        self.name = name
        self.size = size
        self.warmth = warmth
        self.stored = _Stored(number, size, memory)
        self.items: Items
        self._lows = self._highs = np.zeros(0, np.int64)

    def fill(self, opened: Sequence[Opened], verify: bool, memory: Memory, capacity: int) -> None:
        """Takes the first files; `capacity` in bytes, for what is decoded."""
        extents = [found.extents[self.number] for found in opened]
        if all(extent.decode for extent in extents):
            starts, lengths = zip(*((e.starts[:-1], int(e.starts[-1])) for e in extents), strict=True)
            most = max(extent.block_bytes for extent in extents)
            self.items = Decoded(starts, lengths, 1, self.size, self.stored.decode, most, capacity)
        elif not any(extent.decode for extent in extents):
            self.items = Mapped(1, self.size, memory, self.stored.touch)
        else:
            raise CorruptError("some of the files are compressed and some are not; no writer does that")
        for slot, found in enumerate(opened):
            self.append(slot, found, verify)

    def append(self, slot: int, opened: Opened, verify: bool) -> None:
        """Takes one more file, into this slot."""
        extent = opened.extents[self.number]
        starts, run = extent.starts[:-1], slot * Numbering.RUN
        if int(extent.starts[-1]) >= Numbering.RUN:
            raise CorruptError(f"{opened.file.path} says that it holds {int(extent.starts[-1])} items")
        used = int(self.stored.first_block[-1])
        addresses = extent.offsets + opened.file.address
        if extent.lows is not None and extent.highs is not None:
            self._lows = appended(self._lows, used, extent.lows + run)
            self._highs = appended(self._highs, used, extent.highs + run)
        self.stored.append(opened, verify, starts + run)
        if isinstance(self.items, Mapped):
            self.items.append(starts, int(extent.starts[-1]), addresses[:, None])

    def ends(self, rows: Ints, blocks: Ints, empty: Empty) -> tuple[Ints, Ints] | None:
        """First and last element of each row, for offsets; None if they point outside their block."""
        assert isinstance(self.items, Mapped), "no format compresses offsets"
        begin = self.items.addresses(rows, blocks)
        following = begin + 8 >= self.stored.addresses.take(blocks) + self.stored.nbytes.take(blocks)
        if following.any():
            first, last = self._apart(rows, blocks, begin, following, empty)
        else:
            if not self.stored.checks.complete:
                self.stored.touch(rows, blocks, rows + 2)
            first, last = self.items.memory.gather(begin, 16, empty).view("<i8").reshape(-1, 2).T
        low = self._lows.take(blocks)
        # Compared before anything is added: hostile numbers must not wrap around.
        if not bool(((first >= 0) & (first <= last) & (last <= self._highs.take(blocks) - low)).all()):
            return None
        return low + first, low + last

    def _apart(
        self, rows: Ints, blocks: Ints, begin: Ints, following: npt.NDArray[np.bool_], empty: Empty
    ) -> Ints:
        """(2, N) the offsets of each row and of the next, if some of the next are in the following block."""
        assert isinstance(self.items, Mapped)
        end, after = begin + 8, blocks[following] + 1
        end[following] = self.stored.addresses[after]
        if not self.stored.checks.complete:
            self.stored.touch(rows, blocks, rows + np.where(following, 1, 2))
            self.stored.touch(self.items.numbering.starts[after], after)
        found = self.items.memory.gather(np.concatenate([begin, end]), 8, empty)
        return found.view("<i8").reshape(2, -1).astype(np.int64, copy=False)

    def advise(self, items: Ints, blocks: Ints, last: Ints | None = None) -> bool:
        """Asks for the bytes of items, or of those from each to before `last`; True if they lie scattered."""
        before = usage()
        starts, ends = merged(*self._reach(items, blocks, last))
        will_need(starts, ends)
        self.warmth.after_advice(before, len(items))
        return 2 * len(starts) > len(items)

    def _reach(self, items: Ints, blocks: Ints, last: Ints | None) -> tuple[Ints, Ints]:
        """Where the memory begins and ends that must be read for these items."""
        if isinstance(self.items, Decoded):
            wanted = self.items.absent(blocks)
            starts = self.stored.addresses.take(wanted)
            return starts, starts + self.stored.nbytes.take(wanted)
        first = self.items.numbering.starts.take(blocks)
        low = (items - first) * self.size
        if last is not None:
            high = (last - first) * self.size
        else:
            high = low + (2 * self.size if self.name == "offsets" else self.size)
        if not self.stored.checks.complete:
            low, high = self.stored.checks.widened(blocks, low, high)
        begin = self.stored.addresses.take(blocks)
        return begin + low, begin + np.minimum(high, self.stored.nbytes.take(blocks))


class Shelf:
    """Some open files. Threads read while one of them adds a file.

    Attributes:
        slots: (all files,) the slot of each; -1 if it is not open.
        shifts: (all files,) what makes the number of a row of the file the number of an item.
        columns: the parts of each column.
    """

    def __init__(
        self,
        schema: Schema,
        file_starts: Ints,
        files: Mapping[int, Opened],
        verify: bool,
        warmth: Sequence[Thermometer],
    ) -> None:
        opened = tuple(files.values())
        self._files = dict(files)
        self._file_starts = file_starts
        self._verify = verify
        self._memory = Memory([found.file.data for found in opened])
        self._num_scattered = 0  # files whose pages are read one by one
        decoded = sum(extent.decode is not None for extent in opened[0].extents)
        self.can_grow = not decoded
        capacity = _DECODED_BYTES // max(1, decoded)
        parts = enumerate(warmth)
        self.columns = tuple(
            tuple(
                Part(number, name, size, found, self._memory)
                for name, size in zip(column.parts, column.part_bytes, strict=True)
                for number, found in [next(parts)]
            )
            for column in schema.columns
        )
        for column in self.columns:
            for part in column:
                part.fill(opened, verify, self._memory, capacity)
        self.slots = np.full(len(file_starts) - 1, -1)
        self.shifts = np.zeros(len(file_starts) - 1, np.int64)
        for slot, number in enumerate(files):
            self._place(number, slot)

    def _place(self, number: int, slot: int) -> None:
        self.shifts[number] = slot * Numbering.RUN - self._file_starts[number]
        self.slots[number] = slot  # last: from now on threads find it

    @property
    def num_open(self) -> int:
        """How many files are open."""
        return len(self._files)

    def add(self, number: int, opened: Opened) -> None:
        """Adds a file; only if `can_grow`."""
        slot = len(self._files)
        self._memory.extend([opened.file.data])
        for column in self.columns:
            for part in column:
                part.append(slot, opened, self._verify)
        self._place(number, slot)
        self._files[number] = opened  # last: from now on threads take it as open

    def files(self) -> dict[int, Opened]:
        """The open files by their numbers."""
        return dict(self._files)

    def scatter(self) -> None:
        """Notes that rows come in no order, so that the kernel does not read what follows them."""
        if self._num_scattered < len(self._files):
            for opened in tuple(self._files.values())[self._num_scattered :]:
                scatter(opened.file.data)
                self._num_scattered += 1
