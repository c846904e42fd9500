"""Files that are mapped, and where the blocks of each part of each column of a version lie in them.

Note 5. Whole blocks are checked where they are in memory, units where they come from disk.
A whole block costs a hundredth of its units' calls, but reading 4 MiB for a row of a cold file would cost a
hundred times as much as the row. A few rows of a large dataset shall not pay for whole blocks either: bytes
checked in blocks are kept below a multiple of what was asked for.

When too many files are open, a new shelf begins.
It begins with the files of one batch; readers of the old one finish on that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, RemoteError
from ..formats import mapped
from ..formats.checks import CELL, Checks, Marks, num_units
from ..formats.contract import Extent
from ..formats.items import Cut, Decoded, Items, Mapped, Numbering, appended, with_columns
from ..formats.mapped import Bytes, MappedFile, Memory, Thermometer, Watch
from ..process.buffers import address_of, fresh
from ..rows.schema import Schema
from ..rows.types import Ints
from ..versions.location import KeyT, Origin

Empty = Callable[[int], Bytes]
_DECODED_BYTES = 256 * 2**20  # kept for one version, shared between its compressed columns
_WHOLE = 2**62  # bytes of a unit where a block has one checksum
_MIXED = "some of the files are compressed and some are not; no writer does that"
_FIRST_WAIT = 8  # reads before a block that was not in memory is asked about again
# What may be checked in whole blocks: some at first, some for each row and byte that is read, and how much of
# that is kept for a later read.
_FIRST_CREDIT, _ROW_CREDIT, _BYTE_CREDIT, _MOST_CREDIT = 2**25, 2**13, 32, 2**28


_MOST_OPEN = 4096  # files mapped at once, if one batch does not need more, and the process has none to spare
_MOST_DOWNLOADS = 20  # of a file that other processes keep deleting
_LOOK_SHARE = 8  # this part of the mapped files is new before deleted ones are looked for


class MappedFiles(Generic[KeyT]):
    """Files by number, each mapped when it is first wanted. Whoever calls its methods holds a lock.

    Args:
        origin: where they come from.
        keys: by which `origin` knows each.
        most: how many may be mapped at once; by default 4,096, or more as long as the process may have more
            mappings.

    Attributes:
        open: those that are mapped.
        watches: of mapped files that other machines may cut.
    """

    def __init__(self, origin: Origin[KeyT], keys: Sequence[KeyT], most: int | None = None) -> None:
        self.open: dict[int, MappedFile] = {}
        self.watches: dict[int, Watch] = {}
        self._origin, self._keys, self._most = origin, keys, most
        self._num_new = 0  # since deleted ones were looked for

    @property
    def most(self) -> int:
        """How many may be mapped now."""
        return self._most or max(_MOST_OPEN, len(self.open) + mapped.num_to_spare())

    def map(self, number: int, nbytes: int) -> MappedFile:
        """A file of so many bytes.

        Raises:
            CorruptError: it is missing, or has another size.
            RemoteError: it cannot be downloaded.
        """
        found = self.open.get(number)
        for _ in range(0 if found else _MOST_DOWNLOADS):
            path = self._origin.path(self._keys[number])
            try:
                found = self.open[number] = MappedFile(path, nbytes)
                watch = Watch.where_needed(path, nbytes)
                if watch is not None:
                    self.watches[number] = watch
                break
            except CorruptError:
                if not self._origin.is_remote:
                    raise
                # Deleted again, to make room for another; or its size was changed.
                self._origin.forget(self._keys[number])
        if found is None:
            raise RemoteError(
                f"file {number} of {self._origin.name} was deleted {_MOST_DOWNLOADS} times before it was "
                "opened; set a larger cache_bytes"
            )
        return found

    def look(self, numbers: Iterable[int]) -> None:
        """Raises CorruptError if one of these files has been cut: to read it would end the process."""
        for number in numbers:
            watch = self.watches.get(number)
            if watch is not None:
                watch.look()

    def surplus(self, held: Collection[int], wanted: Collection[int], num_new: int) -> set[int]:
        """The files to close, by their numbers: all of `held` but `wanted`, if there are too many.

        Else the deleted ones among these: while they are mapped, their space is not freed. They are looked
        for once an eighth of the mapped ones is new, else to map one would cost more the more are mapped.

        Args:
            held: numbers of files, without new ones.
            wanted: those that are read now.
            num_new: how many were mapped for that.
        """
        self._num_new += num_new
        others = set(held) - set(wanted)
        if len(held) + num_new > self.most:
            return others
        if not self._origin.is_remote or _LOOK_SHARE * self._num_new < len(held):
            return set()
        self._num_new = 0
        return {number for number in others if not self._origin.is_here(self._keys[number])}


class Opened(NamedTuple):
    """A file that is mapped, and where the parts of its columns lie."""

    file: MappedFile
    extents: Sequence[Extent]  # for each part
    names: Sequence[str]  # of the parts
    is_checked: bool = False  # its bytes need not be compared with checksums
    first_cell: int = -1  # of its marks; -1 if it has none

    def refuse_long_parts(self) -> None:
        """Raises CorruptError if a part says that it has more items than can be numbered."""
        for extent in self.extents:
            if extent.starts[-1] >= Numbering.RUN:
                raise CorruptError(f"{self.file.path} says that it holds {int(extent.starts[-1])} items")

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

    def with_parts(self, numbers: Sequence[int]) -> Opened:
        """The file with these parts only."""
        extents, names = [self.extents[n] for n in numbers], [self.names[n] for n in numbers]
        return self._replace(extents=extents, names=names)

    def check_all(self) -> None:
        """Raises CorruptError unless every block and every unit is what was written."""
        for part, extent in enumerate(self.extents):
            for block in range(len(extent.offsets)):
                self.check(part, block)
                if extent.units is not None:
                    size = extent.unit_bytes
                    for nth in range(int(num_units(extent.nbytes[block : block + 1], size)[0])):
                        self.check(part, block, nth, nth * size, (nth + 1) * size)


def _unit_places(extent: Extent) -> Ints:
    """(blocks,) the address of the checksum of each block's first unit; 0 if it has none."""
    if extent.units is None or extent.first_unit is None:
        return np.zeros(len(extent.offsets), np.int64)
    return address_of(extent.units) + 4 * extent.first_unit


def _cut(extents: Sequence[Extent], slot: int, counts: Ints, cuts: dict[bytes, Cut]) -> Cut:
    starts = np.concatenate([extent.starts[:-1] for extent in extents])
    num_items = np.array([extent.starts[-1] for extent in extents])
    key = counts.tobytes() + num_items.tobytes() + starts.tobytes()
    found = cuts.get(key)
    if found is None:
        found = cuts[key] = Cut(slot, starts, counts, num_items)
    return found


class _Stored:
    """The blocks of one part of a column as they are stored, over all open files; checked when first read."""

    def __init__(self, part: int, stride: int, memory: Memory, marks: Marks, warmth: Thermometer) -> None:
        self.checks = Checks(marks)
        self._memory = memory
        self._warmth = warmth
        self._credit = _FIRST_CREDIT
        self._damaged: set[int] = set()  # blocks some of whose bytes are not what was written
        self._reads = 0
        self._absent: dict[int, tuple[int, int]] = {}  # block -> read at which to ask again, and since when
        # For each block: where it lies, its checksum, where its units' checksums lie, if it has any, and its
        # first item.
        self._columns = np.zeros((5, 0), np.int64)
        self.addresses, self.nbytes, self._crcs, self._crc_addresses, self._starts = self._columns
        self._part = part
        self._stride = stride
        self._opened: list[Opened] = []
        self.first_block = self._table = np.zeros(1, np.int64)  # of each file, and of one more

    def extend(self, opened: Sequence[Opened], slot: int, cuts: dict[bytes, Cut]) -> Cut:
        """Adds the blocks of files, which take the slots from `slot` on; returns how they are cut.

        Args:
            opened: the files.
            slot: of the first.
            cuts: those known, as many columns are cut alike.
        """
        used, num_before = int(self.first_block[-1]), len(self._opened)
        extents = [each.extents[self._part] for each in opened]
        counts = np.array([len(extent.offsets) for extent in extents])
        of_block = np.arange(len(opened)).repeat(counts)  # the file of each block
        offsets = np.concatenate([extent.offsets for extent in extents])
        nbytes = np.concatenate([extent.nbytes for extent in extents])
        addresses = offsets + np.array([each.file.address for each in opened])[of_block]
        # Smaller blocks might share a cell with others.
        cells = np.array([each.first_cell for each in opened])[of_block]
        cells = np.where((cells >= 0) & (nbytes >= CELL), cells + offsets // CELL, -1)
        sizes = np.array([_WHOLE if extent.units is None else extent.unit_bytes for extent in extents])
        unit_bytes = sizes[of_block]
        units = np.where(unit_bytes == _WHOLE, 1, num_units(nbytes, unit_bytes))
        are_checked = np.array([each.is_checked for each in opened])[of_block]
        self._opened += opened
        self._table = appended(self._table, num_before + 1, counts.cumsum() + used)
        self.first_block = self._table[: len(self._opened) + 1]
        self.checks.append(units, unit_bytes, cells, are_checked)
        cut = _cut(extents, slot, counts, cuts)
        crcs = np.concatenate([extent.crcs for extent in extents])
        places = np.concatenate([_unit_places(extent) for extent in extents])
        self._columns = with_columns(self._columns, used, addresses, nbytes, crcs, places, cut.items)
        self.addresses, self.nbytes, self._crcs, self._crc_addresses, self._starts = self._columns
        return cut

    def check(self, items: Ints, blocks: Ints, last: Ints | None = None) -> None:
        """Raises CorruptError unless the items of these blocks are what was written.

        Args:
            items: (N,) numbers of items.
            blocks: (N,) the block of each.
            last: (N,) items to stop before, if more than one is read from each on.
        """
        left = self.checks.open(blocks)
        if not len(left):
            return
        self._reads += 1
        count = len(items) if last is None else int((last - items).sum())
        affordable = self._credit + _ROW_CREDIT * len(items) + _BYTE_CREDIT * count * self._stride
        self._credit = min(affordable, _MOST_CREDIT)
        here = left[: int(np.cumsum(self.nbytes.take(left)).searchsorted(self._credit, "right"))]
        whole = [block for block in here.tolist() if block not in self._damaged and self._is_in_memory(block)]
        if whole:
            self._credit -= int(self.nbytes.take(whole).sum())
            self._check_whole(np.array(whole))
        if len(whole) < len(left) or self._damaged:
            low = (items - self._starts.take(blocks)) * self._stride
            high = None if last is None else (last - self._starts.take(blocks)) * self._stride
            self._check_units(*self.checks.missing(blocks, low, high))

    def _is_in_memory(self, block: int) -> bool:
        """True if reading a whole block will not wait for the disk, as far as can be known."""
        nbytes = int(self.nbytes[block])
        if nbytes < CELL:
            return True  # reading it costs no more than reading a row of it
        pages = self._opened[self.file_of(block)[0]].file.pages
        if pages.were_all and not self._warmth.cold:
            return True
        again, since = self._absent.get(block, (0, self._reads))
        if self._reads < again:
            return False
        found = pages.are_there(int(self.addresses[block]), nbytes)
        if found is None:
            return not self._warmth.cold
        if not found:  # asked again later and later, as asking takes its time
            self._absent[block] = 2 * self._reads - since + _FIRST_WAIT, since
        return found

    def _check_whole(self, blocks: Ints) -> None:
        """Checks blocks, each given once, as a whole; leaves damaged ones, some of whose rows are sound."""
        found = self._memory.checksums(self.addresses.take(blocks), self.nbytes.take(blocks))
        sound = found == self._crcs.take(blocks)
        self._damaged.update(blocks[~sound].tolist())
        self.checks.mark_blocks(blocks[sound])

    def _check_units(self, units: Ints, blocks: Ints) -> None:
        if not len(units):
            return
        nth, low, size = self.checks.places(units, blocks)
        # Not file by file: in a shuffle, every unit of a batch may be in another one.
        expected = self._crcs.take(blocks)
        places = self._crc_addresses.take(blocks)
        some = np.flatnonzero(places)
        if len(some):
            expected[some] = self._memory.gather(places[some] + 4 * nth[some], 4, fresh).view("<u4")
        starts = self.addresses.take(blocks) + low
        sizes = np.minimum(size, self.nbytes.take(blocks) - low)
        wrong = np.flatnonzero(self._memory.checksums(starts, sizes) != expected)
        sound = int(wrong[0]) if len(wrong) else len(units)
        self.checks.mark(units[:sound], blocks[:sound])
        for i in wrong.tolist():
            file, within = self.file_of(int(blocks[i]))
            self._opened[file].check(self._part, within, int(nth[i]), int(low[i]), int(low[i] + size[i]))

    def file_of(self, block: int) -> tuple[int, int]:
        """The place of the file of a block among the open ones, and its number there."""
        file = int(self.first_block.searchsorted(block, "right")) - 1
        return file, block - int(self.first_block[file])

    def decode(self, block: int, piece: int, out: Bytes) -> None:
        """Writes the items of a block into `out`."""
        numbers = np.array([block])
        if not self.checks.complete:
            self._check_units(*self.checks.missing(self.checks.open(numbers), np.zeros(1, np.int64)))
        number, within = self.file_of(block)
        extent, file = self._opened[number].extents[self._part], self._opened[number].file
        offset, nbytes = int(extent.offsets[within]), int(extent.nbytes[within])
        assert extent.decode is not None
        try:
            extent.decode(within, file.data[offset : offset + nbytes], out[: extent.block_bytes])
        except CorruptError as error:
            advice = "remove the version and build it again"
            raise CorruptError(f"{file.path}: block {within}: {error}; {advice}") from error


class ColumnPart:
    """One part of a column, over all files that are open.

    Attributes:
        items: rows; for the values of a ragged column, elements. Numbered as in `Numbering`.
        stored: it does not refer back here: a mapped file is released as soon as nobody reads it.
        warmth: whether it comes from disk.
    """

    def __init__(
        self, number: int, name: str, size: int, warmth: Thermometer, memory: Memory, marks: Marks
    ) -> None:
        self.number = number
        self.name = name
        self.size = size
        self.warmth = warmth
        self.stored = _Stored(number, size, memory, marks, warmth)
        self.items: Items
        self._lows = self._highs = np.zeros(0, np.int64)

    def fill(self, opened: Sequence[Opened], cuts: dict[bytes, Cut], memory: Memory, capacity: int) -> None:
        """Takes the first files; `capacity` in bytes, for what is decoded."""
        extents = [each.extents[self.number] for each in opened]
        if all(extent.decode for extent in extents):
            starts, lengths = zip(*((e.starts[:-1], int(e.starts[-1])) for e in extents), strict=True)
            most = max(extent.block_bytes for extent in extents)
            self.items = Decoded(starts, lengths, 1, self.size, self.stored.decode, most, capacity)
        elif not any(extent.decode for extent in extents):
            self.items = Mapped(1, self.size, memory)
        else:
            raise CorruptError(_MIXED)
        self.extend(opened, 0, cuts)

    def extend(self, opened: Sequence[Opened], slot: int, cuts: dict[bytes, Cut]) -> None:
        """Takes more files, see `_Stored.extend`."""
        used = at = int(self.stored.first_block[-1])
        cut = self.stored.extend(opened, slot, cuts)
        for place, each in enumerate(opened, slot):
            extent = each.extents[self.number]
            if extent.lows is not None and extent.highs is not None:
                first = place << Numbering.RUN_BITS  # the number of the first item of the file
                self._lows = appended(self._lows, at, extent.lows + first)
                self._highs = appended(self._highs, at, extent.highs + first)
                at += len(extent.lows)
        if isinstance(self.items, Mapped):
            self.items.extend(cut, self.stored.addresses[used : used + len(cut.items), None])

    @property
    def is_mapped(self) -> bool:
        """True if it is read as it lies in the files."""
        return isinstance(self.items, Mapped)

    def check(self, items: Ints, blocks: Ints, last: Ints | None = None) -> None:
        """Raises CorruptError unless items, or those from each to before `last`, are what was written.

        What is compressed is checked when it is decoded.
        """
        if not self.stored.checks.complete and isinstance(self.items, Mapped):
            self.stored.check(items, blocks, last)

    def check_runs(self, first: Ints, last: Ints) -> None:
        """Checks runs of items, from each to before its `last`, wherever blocks end."""
        if not self.stored.checks.complete and isinstance(self.items, Mapped):
            first, last, blocks = self.items.pieces_of(first, last)
            self.stored.check(first, blocks, last)

    def ends(self, rows: Ints, blocks: Ints, empty: Empty) -> tuple[Ints, Ints] | None:
        """First and last element of each row, for offsets; None if they point outside their block."""
        assert isinstance(self.items, Mapped), "no format compresses offsets"
        begin = self.items.addresses(rows, blocks)
        following = begin + 8 >= self.stored.addresses.take(blocks) + self.stored.nbytes.take(blocks)
        if following.any():
            first, last = self._apart(rows, blocks, begin, following, empty)
        else:
            self.check(rows, blocks, rows + 2)
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
        self.check(rows, blocks, rows + np.where(following, 1, 2))
        self.check(self.items.numbering.starts[after], after)
        found = self.items.memory.gather(np.concatenate([begin, end]), 8, empty)
        return found.view("<i8").reshape(2, -1).astype(np.int64, copy=False)

    def advise(self, items: Ints, blocks: Ints, last: Ints | None = None) -> bool:
        """Asks for the bytes of items, or of those from each to before `last`; True if they lie scattered."""
        before = mapped.usage()
        starts, ends = mapped.merged(*self._reach(items, blocks, last))
        mapped.will_need(starts, ends)
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


class FileShelf:
    """Some open files. Threads read while one of them adds a file.

    Attributes:
        memory: of all open files.
        slots: (all files,) the slot of each; -1 if it is not open.
        shifts: (all files,) what makes the number of a row of the file the number of an item.
        columns: the parts of each column.
    """

    def __init__(
        self,
        schema: Schema,
        file_starts: Ints,
        files: Mapping[int, Opened],
        warmth: Sequence[Thermometer],
        marks: Marks,
    ) -> None:
        opened = tuple(files.values())
        self._files = dict(files)
        self._file_starts = file_starts
        self.memory = Memory([found.file.data for found in opened])
        self._num_scattered = 0  # files whose pages are read one by one
        decoded = sum(extent.decode is not None for extent in opened[0].extents)
        self.can_grow = not decoded
        capacity = _DECODED_BYTES // max(1, decoded)
        parts, cuts = enumerate(warmth), dict[bytes, Cut]()
        self.columns = tuple(
            tuple(
                ColumnPart(number, name, size, found, self.memory, marks)
                for name, size in zip(column.parts, column.part_bytes, strict=True)
                for number, found in [next(parts)]
            )
            for column in schema.columns
        )
        for column in self.columns:
            for part in column:
                part.fill(opened, cuts, self.memory, capacity)
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

    def add(self, files: Mapping[int, Opened]) -> None:
        """Adds files; only if `can_grow`."""
        if any(extent.decode for each in files.values() for extent in each.extents):
            raise CorruptError(_MIXED)  # before anything is changed
        slot, opened, cuts = len(self._files), tuple(files.values()), dict[bytes, Cut]()
        self.memory.extend([each.file.data for each in opened])
        for column in self.columns:
            for part in column:
                part.extend(opened, slot, cuts)
        for place, number in enumerate(files, slot):
            self._place(number, place)
        self._files.update(files)  # last: from now on threads take them as open

    def files(self) -> dict[int, Opened]:
        """The open files by their numbers."""
        return dict(self._files)

    def scatter(self) -> None:
        """Notes that rows come in no order, so that the kernel does not read what follows them."""
        if self._num_scattered < len(self._files):
            for opened in tuple(self._files.values())[self._num_scattered :]:
                mapped.scatter(opened.file.data)
                self._num_scattered += 1
