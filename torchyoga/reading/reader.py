"""An open version: rows, by number, out of its mapped files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, thread_time

import numpy as np

from ..errors import BusyError, CorruptError, RemoteError
from ..files.checksum import crc32, crc32_of_all
from ..formats.checks import Marks
from ..formats.contract import Format, check_extents, format_named
from ..formats.items import Numbering
from ..formats.mapped import Thermometer, usage
from ..process.buffers import BufferPool
from ..process.numbers import distinct
from ..process.stages import Stage, is_timed, shift, timed
from ..process.threads import renew_in_children
from ..rows.block import Block, Data, bounds_of, check_parts, joined_runs
from ..rows.column import Column
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints
from ..versions.columns import ColumnGroup, parts_of
from ..versions.file_entry import FileEntry, Listed
from ..versions.location import Files, Folder
from .open_files import ColumnPart, FileShelf, MappedFiles, Opened

_MOST_AT_ONCE = 1024  # files mapped before a row of them is wanted
_MOST_ANNOUNCED = 256
_CHECKED_BYTES = 2**22  # of rows, at once
_COMPARED_SHARE = 4  # this part of the rows of a read may be read twice, to be compared with their checksums


class Reader:
    """Reads rows of some files of one schema; a file is opened, and downloaded if it is remote, when a row of
    it is first wanted.

    What is read is checked against its CRC-32 when it is first touched, unless `verify` is False.

    At most `most_open` files are mapped at once, or as many as one batch needs: then all others are closed.
    By default it is 4,096, or more as long as the process may have more mappings.

    All methods may be called from several threads, and after a fork: files never change once they are opened,
    and opening one twice does no harm.
    """

    def __init__(
        self,
        where: str | Files,
        schema: Schema,
        files: Sequence[FileEntry],
        verify: bool = True,
        format_of: Callable[[str], Format] = format_named,
        most_open: int | None = None,
        marks: Marks | None = None,
    ) -> None:
        self.where: Files = Folder(where) if isinstance(where, str) else where
        self.schema = schema
        self.files = tuple(files)
        self._written: Sequence[Schema] = ()
        self._first_mark = 0  # of its files, among those that the marks are of
        self._verify = verify
        self._marks = Marks([file.nbytes for file in self.files]) if marks is None else marks
        self._format_of = format_of
        self._files = MappedFiles(self.where, self.files, most_open)
        self._file_starts = bounds_of(file.whole.rows for file in self.files)
        self.num_rows = sum(file.rows for file in self.files)
        self._numbering = Numbering()  # of all rows in the files; its blocks are the files
        self._numbering.append(self._file_starts[:-1], int(self._file_starts[-1]))
        self._kept_before = self._rows_kept_before()
        self._shelf: FileShelf | None = None
        self._warmth = [Thermometer(self.num_rows) for column in schema.columns for _ in column.parts]
        self._whole = Projection(schema, tuple(range(len(schema.columns))))
        ends = list(itertools.accumulate((len(column.parts) for column in schema.columns), initial=0))
        self._parts = [range(*pair) for pair in itertools.pairwise(ends)]  # of each column
        # What was asked for, and not read yet: rows, and columns.
        self._announced: dict[tuple[tuple[int, int, int], tuple[int, ...]], bool] = {}
        self._pool = BufferPool()
        self.renew()
        renew_in_children(self)

    @staticmethod
    def of_group(
        where: str | Files,
        group: ColumnGroup,
        verify: bool = True,
        marks: Marks | None = None,
        first_mark: int = 0,
    ) -> Reader:
        """A reader of a group; of the files that `marks` are of, its own begin at `first_mark`."""
        found = Reader(where, group.schema, group.files, verify, marks=marks)
        found._written, found._first_mark = group.written, first_mark
        return found

    @staticmethod
    def of_file(path: str, group: ColumnGroup, entry: FileEntry) -> Reader:
        """A reader of a file of a group, wherever it lies."""
        folder, name = os.path.split(path)
        return Reader.of_group(folder, replace(group, files=Listed([replace(entry, name=name, of=None)])))

    def _rows_kept_before(self) -> Ints | None:
        """(D,) for each deleted row, how many that stay come before it; None if no row is deleted."""
        starts = self._file_starts.tolist()
        found = [
            start + file.deleted.rows
            for file, start in zip(self.files, starts, strict=False)
            if file.deleted is not None
        ]
        if not found:
            return None
        deleted = np.concatenate(found)
        return deleted - np.arange(len(deleted))

    def _stored(self, rows: Ints) -> Ints:
        """Where rows (N,) lie among all rows in the files, deleted ones included."""
        if self._kept_before is None:
            return rows
        return rows + np.searchsorted(self._kept_before, rows, side="right")

    @staticmethod
    def has(of: Projection | None) -> bool:
        """True: all columns are read alike."""
        return True

    def open(self, of: Projection | None = None) -> None:
        """Maps every file, or the last ones of very many: what is mapped stays readable if it is deleted.

        Files that would have to be downloaded are left where they are.
        """
        if self.where.is_remote:
            return
        with self._lock:
            for number in range(len(self.files))[-min(self._files.most, _MOST_AT_ONCE) :]:
                self._files.map(number, self.files[number].nbytes)

    def take(self, rows: Ints, of: Projection | None = None) -> Block:
        """The rows of these numbers, each in 0..num_rows-1, in this order, as one block.

        Args:
            rows: (N,) numbers of rows.
            of: the columns that are read; all by default.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """
        of = of or self._whole
        if not len(rows):
            return Block(of.schema, 0, tuple(_nothing(column) for column in of.schema.columns))
        try:
            with timed(Stage.READ):
                self._announce_now(rows, of)
                return self._taken(rows, of)
        except CorruptError as error:
            self._throw_away(error)
            raise

    def _throw_away(self, error: CorruptError) -> None:
        """Deletes the damaged copy of a remote file, so that it is downloaded again."""
        for number, file in list(self._files.open.items()) if self.where.is_remote else ():
            if file.path in str(error):
                with self._lock, contextlib.suppress(OSError):
                    if self._files.open.get(number) is file:  # else another thread has found it, too
                        self._shelf = None
                        del self._files.open[number]
                        self.where.forget(self.files[number])
                raise CorruptError(
                    f"{self.where.name}: the copy of {self.files[number].name} on this machine was damaged, "
                    "and has been deleted; read again to download it"
                ) from error

    def lengths(self, rows: Ints, number: int) -> Ints:
        """How many elements these rows of a ragged column have; its values are not read.

        Args:
            rows: (N,) numbers of rows, each in 0..num_rows-1.
            number: of the column.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """
        if not len(rows):
            return np.zeros(0, np.int64)
        column = self.schema.columns[number]
        try:
            shelf, items = self._ready(rows)
            offsets = shelf.columns[number][1]
            low, high = self._ends(column, offsets, items, offsets.items.blocks(items))
        except CorruptError as error:
            self._throw_away(error)
            raise
        return high - low

    def take_parts(self, rows: Ints, number: int, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, end to end: what lies from `starts` to before `stops` in each.

        Args:
            rows: (N,) numbers of rows, each in 0..num_rows-1.
            number: of the column.
            starts: (N,) the first element wanted of each.
            stops: (N,) the element after the last.

        Raises:
            IndexError: a row has fewer elements.
            CorruptError: a file is missing, cut or damaged.
        """
        column = self.schema.columns[number]
        try:
            before = usage()
            shelf, items = self._ready(rows)
            values, offsets, *_ = shelf.columns[number]
            blocks = offsets.items.blocks(items)
            if offsets.warmth.cold:
                offsets.advise(items, blocks)
            low, high = self._ends(column, offsets, items, blocks)
            check_parts(rows, high - low, starts, stops)
            # Neighbours lie side by side, so what begins in one row and ends in the next is one run.
            first, last = joined_runs(low + starts, low + stops)
            if values.warmth.cold:
                values.advise(first, values.items.blocks(first), last)
            values.check_runs(first, last)
            sizes = last - first
            if len(sizes) > 1 and bool((sizes == sizes[0]).all()):
                found = values.items.alike(first, int(sizes[0]), self._pool.empty)
            else:
                found = values.items.spans(first, last, self._pool.empty)
            if usage().faults > before.faults:
                for part in (values, offsets):
                    part.warmth.after_fault()
            return found.view(column.storage)
        except CorruptError as error:
            self._throw_away(error)
            raise

    def _taken(self, rows: Ints, of: Projection) -> Block:
        before, began = usage(), perf_counter() - thread_time() if is_timed() and self.is_cold(of) else None
        found = self._block(*self._ready(rows), of)
        if began is not None:  # while it did not compute, it waited for the disk
            shift(max(0.0, perf_counter() - thread_time() - began), Stage.READ, Stage.DISK)
        if usage().faults > before.faults:
            self._after_fault(of)
        return found

    def _after_fault(self, of: Projection) -> None:
        for warmth in self._warmths(of):  # advice will show which of them it was
            warmth.after_fault()

    def _block(self, shelf: FileShelf, items: Ints, of: Projection) -> Block:
        data: list[Data] = []
        known: dict[bytes, Ints] = {}  # the blocks of the rows, by how a part is cut into blocks
        for number in of.columns:
            column, parts = self.schema.columns[number], shelf.columns[number]
            if column.is_ragged:
                data.append(self._take_ragged(column, parts, items, _blocks(parts[1], items, known)))
            else:
                data.append(Data(self._take_fixed(column, parts[0], items, _blocks(parts[0], items, known))))
        return Block(of.schema, len(items), tuple(data))

    def _take_fixed(self, column: Column, part: ColumnPart, items: Ints, blocks: Ints) -> Array:
        assert column.shape is not None
        part.check(items, blocks)
        found = part.items.pick(items, self._pool.empty, blocks=blocks)
        shape = (len(items), *column.shape)
        return found.view(column.storage).reshape(shape) if found.size else np.empty(shape, column.storage)

    def _take_ragged(self, column: Column, parts: Sequence[ColumnPart], items: Ints, blocks: Ints) -> Data:
        values, offsets, *more = parts
        low, high = self._ends(column, offsets, items, blocks)
        lengths = high - low
        bounds = bounds_of(lengths)
        values.check_runs(low, high)
        runs = values.items.runs(low, high)
        found = None
        if runs is None:
            found = values.items.spans(low, high, self._pool.empty).view(column.storage)
        shapes = None
        if more:
            shapes = self._shapes(column, more[0], items, lengths)
        return Data(found, bounds, shapes, runs=runs, dtype=column.storage, empty=self._pool.empty)

    def _shapes(self, column: Column, part: ColumnPart, items: Ints, lengths: Ints) -> Ints:
        blocks = part.items.blocks(items)
        part.check(items, blocks)
        found = part.items.pick(items, self._pool.empty, blocks=blocks)
        shapes: Ints = found.view("<i8").reshape(len(items), column.ndim)
        known = np.where(shapes < 0, 1, shapes)
        # In floating point, which does not wrap around, before in integers, which are exact.
        sound = known.astype(float).prod(axis=1) < 2**53
        if not bool(sound.all() and (known.prod(axis=1) == lengths).all()):
            raise CorruptError(
                f"{self.where.name}: the shapes of column {column.name!r} do not fit its values"
            )
        return shapes

    def _ends(self, column: Column, part: ColumnPart, items: Ints, blocks: Ints) -> tuple[Ints, Ints]:
        found = part.ends(items, blocks, self._pool.empty)
        if found is None:
            raise CorruptError(
                f"{self.where.name}: the offsets of column {column.name!r} point outside their block"
            )
        return found

    # -- reading ahead

    def is_cold(self, of: Projection | None = None) -> bool:
        """True as long as these columns come from disk, so that announcing rows is worth its cost."""
        for warmth in self._warmths(of):  # noqa: SIM110 (any() takes five times as long, and this is asked often)
            if warmth.cold:
                return True
        return False

    def _warmths(self, of: Projection | None) -> Sequence[Thermometer]:
        """The thermometers of the parts of some columns."""
        if of is None or of is self._whole:
            return self._warmth
        return [self._warmth[n] for column in of.columns for n in self._parts[column]]

    def announce(self, rows: Ints, values: bool, of: Projection | None = None) -> None:
        """Asks the kernel to make these rows ready; what is known to be in memory is left out.

        Args:
            rows: as they will be taken.
            values: True for the values of ragged columns, whose offsets must come first; else all others.
            of: the columns that will be read; all by default.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """
        if not len(rows) or self._is_missing(rows):
            return
        of = of or self._whole
        with timed(Stage.DISK):
            self._advise(rows, values, of)

    def _advise(self, rows: Ints, values: bool, of: Projection) -> None:
        shelf, items = self._ready(rows)
        known: dict[bytes, Ints] = {}
        scattered = False
        for number in of.columns:
            column, parts = self.schema.columns[number], shelf.columns[number]
            for part in parts:
                if not part.warmth.cold or values != (column.is_ragged and part.name == "values"):
                    continue
                if not values:
                    scattered |= part.advise(items, _blocks(part, items, known))
                else:
                    low, high = self._ends(column, parts[1], items, _blocks(parts[1], items, known))
                    some = high > low
                    low, high = low[some], high[some]
                    scattered |= part.advise(low, part.items.blocks(low), high)
        if scattered:
            shelf.scatter()
        if values:
            self._announced[_name(rows), of.columns] = True
            for name in [*self._announced][:-_MOST_ANNOUNCED]:  # a copy: other threads announce, too
                self._announced.pop(name, None)

    def is_checked(self, of: Projection | None = None) -> bool:
        """True if all files are open, and these columns of them were compared with their checksums."""
        shelf = self._shelf
        if shelf is None or shelf.num_open < len(self.files):
            return False
        columns = (of or self._whole).columns
        return all(part.stored.checks.complete for column in columns for part in shelf.columns[column])

    def _announce_now(self, rows: Ints, of: Projection) -> None:
        """Announces rows that come from disk and are read next, unless they were announced before."""
        name = _name(rows), of.columns
        if self.is_cold(of) and not self._announced.pop(name, False):
            for values in (False, True):  # so that they are all read at once
                self.announce(rows, values, of)
            self._announced.pop(name, None)

    def _is_missing(self, rows: Ints) -> bool:
        """True if files of these rows must be downloaded first, which is left to `follow`."""
        if not self.where.is_remote:
            return False
        shelf = self._shelf
        rows = self._stored(rows)
        numbers = distinct(self._numbering.blocks(rows)).tolist() if len(self.files) > 1 else [0]
        closed = [self.files[n] for n in numbers if shelf is None or shelf.slots[n] < 0]
        return not all(map(self.where.is_here, closed))

    def probe(self) -> None:
        """Makes the next announcement find out whether rows come from disk."""
        for warmth in self._warmth:
            warmth.probe()

    # -- opening

    def _ready(self, rows: Ints) -> tuple[FileShelf, Ints]:
        """The shelf that the rows are read from, and their numbers there."""
        shelf, rows = self._shelf, self._stored(rows)
        if len(self.files) == 1:
            shelf = shelf or self._open([0])
            if self._files.watches:
                self._files.look([0])
            return shelf, rows
        files = self._numbering.blocks(rows)
        if shelf is None or (shelf.num_open < len(self.files) and int(shelf.slots.take(files).min()) < 0):
            shelf = self._open(distinct(files).tolist())
        if self._files.watches:
            self._files.look(distinct(files).tolist())
        return shelf, rows + shelf.shifts.take(files)

    def _open(self, numbers: Sequence[int]) -> FileShelf:
        """The shelf with these files, and some more."""
        shelf = self._shelf
        closed = [self.files[n] for n in numbers if shelf is None or shelf.slots[n] < 0]
        self.where.begin(closed)  # several at once, before any is waited for
        with self._lock:
            shelf = self._shelf
            missing = [number for number in numbers if shelf is None or shelf.slots[number] < 0]
            if shelf is not None and not missing:
                return shelf
            # Files read along with them are in use as well, and must not make room for them.
            self.where.note_use(self.files[number] for number in numbers if number not in missing)
            new = {number: self._opened(number) for number in missing}
            were_all = [opened.file.pages.were_all for opened in new.values()]
            for warmth in self._warmth:
                warmth.after_opening(None if None in were_all else all(were_all))
            if len(self.files) <= self._files.most and not self.where.is_remote:
                self._open_more(new, shelf)
            gone = self._files.surplus(() if shelf is None else shelf.files(), numbers, len(new))
            if shelf is not None and shelf.can_grow and not gone:
                shelf.add(new)
            else:
                kept = {} if shelf is None else shelf.files()
                files = {**{number: opened for number, opened in kept.items() if number not in gone}, **new}
                shelf = self._shelf = FileShelf(
                    self.schema, self._file_starts, files, self._warmth, self._marks
                )
            if len(self._files.open) > self._files.most or gone:
                for number in self._files.open.keys() - shelf.files().keys():
                    del self._files.open[number]
            return shelf

    def _open_more(self, new: dict[int, Opened], shelf: FileShelf | None) -> None:
        """Opens as many files as are open already, so that a long pass does so only a few times."""
        wanted = shelf.num_open if shelf is not None else 0
        for number in range(len(self.files)):
            if wanted <= 0:
                return
            if number not in new and (shelf is None or shelf.slots[number] < 0):
                with contextlib.suppress(CorruptError, OSError):  # raised when a row of it is wanted
                    new[number] = self._opened(number)
                    wanted -= 1

    def renew(self) -> None:
        """Makes a new lock in a forked child."""
        self._lock = threading.Lock()

    def _opened(self, number: int) -> Opened:
        entry = self.files[number]
        file = self._files.map(number, entry.nbytes)
        try:
            written = self.schema if entry.written is None else self._written[entry.written]
            extents = self._format_of(entry.format).read_extents(file.data, entry.index, written)
            check_extents(extents, written, entry.nbytes, entry.whole.rows)
            if written is not self.schema:
                places = {column.name: place for place, column in enumerate(written.columns)}
                columns = [places[column.name] for column in self.schema.columns]
                extents = [extents[part] for part in parts_of(written, columns)]
        except (CorruptError, ValueError) as error:
            raise CorruptError(f"{file.path}: {error}; remove the version and build it again") from error
        names = [f"{column.name}/{part}" for column in self.schema.columns for part in column.parts]
        marked = self._first_mark + number
        first_cell = self._marks.first_cell(marked, file.identity) if self._verify else -1
        is_checked = not self._verify or self.where.is_checked(entry)
        found = Opened(file, extents, names, is_checked, first_cell)
        found.refuse_long_parts()
        return found

    def open_all(self) -> None:
        """Raises CorruptError unless every file can be opened; reads none of the rows."""
        for number in range(len(self.files)):
            self._opened(number)
            del self._files.open[number]

    def verify_all(self) -> list[str]:
        """The damage, file by file; empty if there is none. Reads everything."""
        problems = []
        for number, entry in enumerate(self.files):
            try:
                with self._lock:
                    was_mapped = number in self._files.open
                    opened = self._opened(number)
                    if not was_mapped:
                        del self._files.open[number]
                opened.check_all()
                self._compare_checks(opened, entry.whole)
                if entry.deleted is not None:
                    self._compare_checks(
                        opened, entry, np.setdiff1d(np.arange(entry.whole.rows), entry.deleted.rows)
                    )
            except (CorruptError, OSError) as error:
                hindered = isinstance(error, (BusyError, RemoteError))
                if hindered or getattr(error, "errno", None) not in (None, errno.ENOENT, errno.EIO):
                    raise  # that says nothing about the file: a full disk, a permission, too many open files
                problems.append(f"{entry.name}: {error}")
        return problems

    def _compare_checks(self, opened: Opened, entry: FileEntry, rows: Ints | None = None) -> None:
        """Raises CorruptError unless rows of a file, all or some, are those that the manifest's checks
        cover."""
        total = sum(nbytes for nbytes, _ in entry.checks)
        if not total or (rows is None and _have_checks(opened, entry)):
            return  # rows without bytes have nothing to compare
        items = np.arange(entry.rows) if rows is None else rows
        found = self._checks_of(opened, entry.whole.rows, items, total)
        for name, check, expected in zip(opened.names, found, entry.checks, strict=True):
            if check != expected:
                raise CorruptError(
                    f"{opened.file.path}: {name} has {check[0]} bytes of the CRC-32 {check[1]:08x}, "
                    f"the manifest says {expected[0]} and {expected[1]:08x}; remove the version and build it "
                    "again"
                )

    def _checks_of(self, opened: Opened, num_rows: int, items: Ints, nbytes: int) -> list[tuple[int, int]]:
        """The checks of some rows of an open file, which have about `nbytes` bytes."""
        shelf = FileShelf(
            self.schema,
            np.array([0, num_rows]),
            {0: opened._replace(is_checked=True)},
            self._warmth,
            self._marks,
        )
        step = max(1, _CHECKED_BYTES * len(items) // max(1, nbytes))
        found = [(0, 0)] * len(opened.names)
        for start in range(0, len(items), step):
            block = self._block(shelf, items[start : start + step], self._whole)
            found = [
                (size + data.nbytes, crc32(data.data, crc))
                for (size, crc), data in zip(found, block.checked(), strict=True)
            ]
        return found

    def checks_without(self, number: int, deleted: Ints) -> tuple[tuple[int, int], ...]:
        """The checks of what remains of a file without some of its rows; the file is checked first.

        Args:
            number: of the file.
            deleted: (D,) rows to leave out: their numbers in the file as it was written.

        Raises:
            CorruptError: the file is missing, cut or damaged.
        """
        entry = self.files[number]
        alone = ColumnGroup(entry.group, self.schema, self._whole.columns, Listed([entry]), self._written)
        problems = Reader.of_group(self.where, alone).verify_all()
        if problems:
            raise CorruptError(f"{self.where.name}: {problems[0]}")
        items = np.delete(np.arange(entry.whole.rows), deleted)
        with self._lock:
            opened = self._opened(number)
        return tuple(self._checks_of(opened, entry.whole.rows, items, entry.nbytes))


class JointReader:
    """Reads rows of several readers, laid one after the other, at once: from one table of all their files."""

    def __init__(self) -> None:
        self._made: tuple[list[FileShelf | None], Reader] | None = None  # what the table was made of, and it

    def take(self, parts: Sequence[tuple[Reader, Projection | None]], rows: Ints) -> Block | None:
        """The rows of these numbers, as one block.

        Args:
            parts: readers, and the columns of each, which look alike; None for all.
            rows: (N,) numbers of rows of all of them, end to end.

        Returns:
            None while they must read by themselves, as files are downloaded, compressed, cut by others or not
            all open, or many of these rows are not compared with their checksums yet.
        """
        shelves, made = [reader._shelf for reader, _ in parts], self._made
        if made is None or made[0] != shelves:
            reader = _joined(parts)
            if reader is None:
                return None
            made = self._made = shelves, reader
        if not self._are_ready(parts, rows):
            return None
        found = made[1].take(rows)
        if made[1].is_cold():
            for reader, of in parts:
                reader._after_fault(of or reader._whole)
            self._made = None
        return found

    @staticmethod
    def _are_ready(parts: Sequence[tuple[Reader, Projection | None]], rows: Ints) -> bool:
        """Announces rows that come from disk, and lets readers that have not compared all of their files with
        the checksums read theirs, which compares them; False if that are many."""
        start, left = 0, len(rows) // _COMPARED_SHARE
        compared = []
        for reader, of in parts:
            is_checked = reader.is_checked(of)
            if not is_checked or reader.is_cold(of):
                own = rows[(rows >= start) & (rows < start + reader.num_rows)] - start
                if len(own) and is_checked:
                    reader._announce_now(own, of or reader._whole)
                elif len(own):
                    compared.append((reader, own, of))
                    left -= len(own)
                    if left < 0:
                        return False
            start += reader.num_rows
        for reader, own, of in compared:
            reader.take(own, of)
        return True


def _joined(parts: Sequence[tuple[Reader, Projection | None]]) -> Reader | None:
    """A reader of the files of several, if these are open and read as they lie; it compares no checksums."""
    opened: list[Opened] = []
    for reader, of in parts:
        shelf = reader._shelf
        if (
            shelf is None
            or shelf.num_open < len(reader.files)
            or reader.where.is_remote
            or reader._files.watches
        ):
            return None
        wanted = [part for column in (of or reader._whole).columns for part in shelf.columns[column]]
        if not all(part.is_mapped for part in wanted):
            return None
        numbers, files = [part.number for part in wanted], shelf.files()
        opened += [files[number].with_parts(numbers) for number in range(len(reader.files))]
    where, schema = parts[0][0].where, (parts[0][1] or parts[0][0]._whole).schema
    entries = [file for reader, _ in parts for file in reader.files]
    found = Reader(where, schema, entries, False, most_open=len(entries), marks=Marks(()))
    for warmth in found._warmth:
        warmth.after_opening(were_all=True)
    checked = {number: file._replace(is_checked=True) for number, file in enumerate(opened)}
    found._shelf = FileShelf(schema, found._file_starts, checked, found._warmth, found._marks)
    return found


def _have_checks(opened: Opened, entry: FileEntry) -> bool:
    """True if the blocks, whose own checksums were compared, combine to the manifest's checks as they are."""
    for name, extent, (nbytes, crc) in zip(opened.names, opened.extents, entry.checks, strict=True):
        if name.endswith("/offsets") or extent.decode is not None:
            return False  # what is checked is not what is stored
        sizes, crcs = extent.nbytes[:, None], extent.crcs[:, None].astype(np.uint32)
        if int(sizes.sum()) != nbytes or (nbytes and int(crc32_of_all(crcs, sizes)[0]) != crc):
            return False
    return True


def _name(rows: Ints) -> tuple[int, int, int]:
    """A key of an announcement."""
    return int(rows[0]), int(rows[-1]), len(rows)


def _blocks(part: ColumnPart, items: Ints, known: dict[bytes, Ints]) -> Ints:
    cut = part.items.numbering.cut
    found = known.get(cut)
    if found is None:
        found = known[cut] = part.items.blocks(items)
    return found


def _nothing(column: Column) -> Data:
    values = np.empty((0, *(column.shape or ())), column.storage)
    if not column.is_ragged:
        return Data(values)
    return Data(
        values, np.zeros(1, np.int64), np.empty((0, column.ndim), np.int64) if column.ndim != 1 else None
    )
