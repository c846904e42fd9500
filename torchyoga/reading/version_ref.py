"""A published version as a DataRef."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ..errors import CorruptError, NotFoundError
from ..formats.checks import Marks
from ..process.lazy import cached_property
from ..process.messages import bytes_text
from ..rows.block import Block, Data, Rows, bounds_of
from ..rows.schema import Projection, Schema
from ..rows.statistics import TableStats
from ..rows.types import Array, Ints, Json, Row
from ..versions.columns import ColumnGroup, parts_of
from ..versions.location import Files, Folder, Progress, list_bytes
from ..versions.manifest import Manifest
from .dataref import DataRef
from .readahead import Prefetch
from .reader import JointReader, Reader

_LOOKS = 10  # attempts, at a version that others keep converting


class VersionRef(DataRef):
    """A published version, with all of its columns or some; the row numbers are the same.

    It pickles by its path, and survives fork, spawn, forkserver and threads.
    """

    is_thread_safe = True

    def __init__(
        self, where: str | Files, manifest: Manifest, verify: bool = True, marks: Marks | None = None
    ) -> None:
        folder = Folder(where) if isinstance(where, str) else where
        self._version = _Version(folder, manifest, verify, marks)
        self._of: Projection | None = None  # of all columns; None is the whole

    @property
    def location(self) -> Files:
        """Where the files lie."""
        return self._version.where

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self._version.manifest

    def download(self, progress: bool | None = None) -> None:
        """Downloads all files of a version in a store now, with a progress bar.

        Raises:
            ValueError: they are more than the cache may keep.
            RemoteError: the store cannot be reached.
        """
        self.location.download_all(self.manifest, progress)

    def open(self) -> Reader | GroupedReader:
        """Maps the files, unless this process has done so; readers that have them open keep them."""
        return self._version.open(self._of)

    def __len__(self) -> int:
        return self.manifest.num_rows

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows."""
        return self.manifest.file_starts

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None for a version without rows."""
        return self.manifest.schema if self._of is None else self._of.schema

    @property
    def fingerprint(self) -> str:
        """A name for the content, wherever and however it is kept: of the version and the columns."""
        whole, of = self.manifest.fingerprint, self._of
        return whole if of is None else of.pinned(whole)

    @property
    def info(self) -> Json:
        """The info that was kept with the version."""
        return copy.deepcopy(self.manifest.info)

    @property
    def _keeps_rows(self) -> bool:
        """False: each batch is gathered into new memory."""
        return False

    @property
    def _only_copies(self) -> bool:
        """True if the files are on this machine, and not compressed."""
        return self._version.only_copies

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        of = self._of
        return Rows(self._version.open(of).take(rows, of)) if len(rows) else []

    def lengths(self, rows: Ints) -> Ints:
        """How many elements rows of a ragged column have; its values are not read."""
        number = self._ragged_column
        if number is None:
            return super().lengths(rows)  # says what is wrong
        return self._version.open(self._of).lengths(rows, number)

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, end to end; nothing else of them is read."""
        number = self._ragged_column
        if number is None or not len(rows):
            return super()._take_parts(rows, starts, stops)
        return self._version.open(self._of).take_parts(rows, number, starts, stops)

    @property
    def _ragged_column(self) -> int | None:
        """The number of the ragged column that each row is a value of; None if rows are not."""
        schema, of = self.schema, self._of
        if schema is None or not schema.is_sequence:
            return None
        return 0 if of is None else of.columns[0]

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read, compared or asked for."""
        found = VersionRef.__new__(VersionRef)
        found._version = self._version
        found._of = of if self._of is None else self._of.then(of)
        return found

    @cached_property
    def _prefetch(self) -> Prefetch:
        """Reads pages and downloads files before their rows are taken."""
        return _Prefetch(self._version, self._of)

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of an average row, as its columns are stored."""
        if self._of is None:
            return self.manifest.nbytes // max(1, len(self))
        found = 0
        for group in self.manifest.column_groups:
            wanted = [place for place, column in enumerate(group.columns) if column in self._of.columns]
            parts = parts_of(group.schema, wanted)
            found += sum(piece.checks[part][0] for piece in group.files.pieces for part in parts)
        return found // max(1, len(self))

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """Fingerprint and rows of the versions that rows were appended to.

        Of some columns: those of the version, cut down to the columns; and with all columns: the rows are the
        same ones.
        """
        manifest, of = self.manifest, self._of
        if of is None:
            return manifest.prefixes
        whole = [(manifest.fingerprint, len(self)), *manifest.prefixes]
        parents = [parent for parent in manifest.parents if parent.is_prefix]
        columns = [parent.numbers_of(of.columns) for parent in parents]
        return whole + [
            (replace(of, columns=numbers).pinned(parent.fingerprint), parent.rows)
            for parent, numbers in zip(parents, columns, strict=True)
            if numbers is not None
        ]

    def _title(self) -> str:
        return f"DataRef {self.manifest.id!r} {self.manifest.version!r}"

    def _counted(self) -> str:
        size = f", {bytes_text(self.manifest.nbytes)}" if self._of is None else ""
        return f"{super()._counted()}{size}"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (*self._version.reopening(), self._of)


def kept_stats(ref: DataRef) -> TableStats | None:
    """The statistics that were kept with a version, of the columns that `ref` has; None if none were."""
    if not isinstance(ref, VersionRef) or not ref.manifest.stats:
        return None
    return ref.manifest.known_stats(ref._of)


class Versions:
    """Some versions whose rows look alike, laid one after the other, to be read at once."""

    def __init__(self) -> None:
        self._firsts: dict[object, int] = {}  # the number of the first row of each
        self._refs: list[VersionRef] = []
        self._num_rows = 0
        self._reader = JointReader()

    def first_row(self, ref: DataRef) -> int | None:
        """The number of the first row of a version, which joins them; None for others, or other rows."""
        if type(ref) is not VersionRef:
            return None
        key = ref._version, ref._of and ref._of.columns
        if key not in self._firsts:
            if not len(ref) or (self._refs and self._refs[0].schema != ref.schema):
                return None
            self._refs.append(ref)
            self._firsts[key] = self._num_rows
            self._num_rows += len(ref)
        return self._firsts[key]

    def take(self, rows: Ints) -> Rows | None:
        """The rows of these numbers; None while the versions are better read by themselves."""
        parts = []
        for ref in self._refs:
            reader = ref._version.open(ref._of)
            if isinstance(reader, GroupedReader):
                return None
            parts.append((reader, ref._of))
        block = self._reader.take(parts, rows)
        return None if block is None else Rows(block)


class _Version:
    """The files of a version, opened when a row is first wanted.

    A VersionRef and its `ReadAhead` share it, so that neither holds the other.
    """

    def __init__(self, where: Files, manifest: Manifest, verify: bool, marks: Marks | None = None) -> None:
        self.where = where
        self.manifest = manifest
        self.verify = verify
        self._given = marks
        if not manifest.lists:  # now: processes that are forked before the first row is read share it, too
            _ = self.marks
        self._reader: Reader | GroupedReader | None = None

    @cached_property
    def marks(self) -> Marks:
        """Which rows have been checked, by any process that shares them."""
        found = self._new_marks()
        # If it was converted since, those given are of other files.
        return self._given if self._given is not None and self._given.nbytes == found.nbytes else found

    def _new_marks(self) -> Marks:
        files = (file for group in self.manifest.column_groups for file in group.files)
        return Marks(tuple(file.nbytes for file in files) if self.verify else ())

    def open(self, of: Projection | None = None) -> Reader | GroupedReader:
        """The reader of this process, with the files of some columns, or of all, open."""
        if self._reader is None or not self._reader.has(of):
            for left in reversed(range(_LOOKS)):
                reader = self._reader or self._new_reader()
                try:
                    reader.open(of)
                    break
                except CorruptError:
                    # Damaged; or overwritten, removed or converted since, perhaps more than once?
                    now = _manifest_of(self.where, self.manifest.fingerprint)
                    if now.build == self.manifest.build or not left:
                        raise
                    self.manifest, self._reader = now, None
                    self.marks = self._new_marks()
            self._reader = reader
        return self._reader

    def _new_reader(self) -> Reader | GroupedReader:
        assert self.manifest.schema is not None, "only an empty dataset has no schema"
        groups, where, verify, marks = self.manifest.column_groups, self.where, self.verify, self.marks
        firsts = dict(zip([group.number for group in groups], _bounds_of_files(groups), strict=False))

        def opened(group: ColumnGroup) -> Reader:
            return Reader.of_group(where, group, verify, marks, firsts[group.number])

        return opened(groups[0]) if len(groups) == 1 else GroupedReader(self.manifest.schema, groups, opened)

    def reopening(self) -> tuple[Files, str, bool, Marks | None]:
        """The call with which another process opens it."""
        marks = self.marks if self.marks.can_be_passed() else None
        return self.where, self.manifest.fingerprint, self.verify, marks

    @property
    def only_copies(self) -> bool:
        firsts = [group.files[0] for group in self.manifest.column_groups if len(group.files)]
        return not self.where.is_remote and all(file.index.get("compression") is None for file in firsts)


class _Prefetch:
    """Makes rows of a version ready, with all of their columns or some."""

    def __init__(self, version: _Version, of: Projection | None) -> None:
        self._version = version
        self._of = of

    @property
    def is_cold(self) -> bool:
        return self._version.manifest.num_rows > 0 and self._version.open(self._of).is_cold(self._of)

    @property
    def ahead_bytes(self) -> int | None:
        return self._version.where.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        self._version.open(self._of).announce(rows, values, self._of)

    def probe(self) -> None:
        if self._version.manifest.num_rows:
            self._version.open(self._of).probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        manifest, where, of = self._version.manifest, self._version.where, self._of
        if not where.is_remote or not manifest.num_rows:
            return
        groups = [group for group in manifest.column_groups if of is None or {*group.columns} & {*of.columns}]
        firsts = _bounds_of_files(groups)

        def numbers(rows: Ints) -> Ints:  # of the files of each row, those of all groups side by side
            found = [np.searchsorted(group.file_starts, rows, side="right") - 1 for group in groups]
            return np.stack([some + first for some, first in zip(found, firsts, strict=False)], 1).reshape(-1)

        def reached() -> int | None:
            found = progress()
            return None if found is None else found * len(groups)

        files = tuple(itertools.chain.from_iterable(group.files for group in groups))
        where.follow(files, map(numbers, order), reached)


def _bounds_of_files(groups: Sequence[ColumnGroup]) -> list[int]:
    """Where the files of each group begin among those of all, and how many there are."""
    return bounds_of(np.array([len(group.files) for group in groups])).tolist()  # type: ignore[no-any-return]


def _reopened(
    where: Files, fingerprint: str, verify: bool, marks: Marks | None, of: Projection | None
) -> DataRef:
    whole = VersionRef(where, _manifest_of(where, fingerprint), verify, marks)
    return whole if of is None else whole._projected(of)


def _manifest_of(where: Files, fingerprint: str) -> Manifest:
    """The present manifest; NotFoundError if it is of other rows."""
    manifest = Manifest.from_bytes(where.manifest()).located(partial(list_bytes, where))
    if manifest.fingerprint != fingerprint:  # converted to another format, it has the same
        raise NotFoundError(f"{where.name} has been overwritten since this DataRef was made; fetch it again")
    return manifest


# Columns of a group, and their places in the block.
_Side: TypeAlias = tuple[Reader, Projection, Sequence[int]]


class GroupedReader:
    """Reads rows of several groups of columns, as a `Reader` does of one.

    A group is opened when a column of it is first wanted.

    Args:
        schema: of the rows.
        groups: of columns.
        opened: makes a reader of one.
    """

    def __init__(
        self, schema: Schema, groups: Sequence[ColumnGroup], opened: Callable[[ColumnGroup], Reader]
    ) -> None:
        self.schema = schema
        self._groups = groups
        self._opened = opened
        self._readers: dict[int, Reader] = {}
        self._places = {
            column: (group, place) for group in groups for place, column in enumerate(group.columns)
        }
        self._known: dict[tuple[int, ...], list[_Side]] = {}

    @cached_property
    def _whole(self) -> Projection:
        return Projection(self.schema, tuple(range(len(self.schema.columns))))

    def _reader(self, group: ColumnGroup) -> Reader:
        found = self._readers.get(group.number)
        if found is None:
            found = self._opened(group)
            found.open()
            self._readers[group.number] = found
        return found

    def _sides(self, of: Projection | None) -> list[_Side]:
        """The groups in which some columns lie, opened."""
        columns = (of or self._whole).columns
        found = self._known.get(columns)
        if found is None:
            found = []
            for group in self._groups:
                wanted = [at for at, column in enumerate(columns) if self._places[column][0] is group]
                numbers = tuple(self._places[columns[at]][1] for at in wanted)
                if wanted:
                    # What a reader gives is taken apart here, so nobody looks at this schema.
                    found.append((self._reader(group), Projection(self.schema, numbers), wanted))
            self._known[columns] = found
        return found

    def has(self, of: Projection | None) -> bool:
        """True if the groups in which some columns lie are open."""
        return (of or self._whole).columns in self._known

    def open(self, of: Projection | None) -> None:
        """Opens the groups in which some columns lie, or all, as `Reader.open`."""
        self._sides(of)

    def take(self, rows: Ints, of: Projection | None = None) -> Block:
        """The rows of these numbers, as `Reader.take`."""
        of = of or self._whole
        data: list[Data | None] = [None] * len(of.columns)
        for reader, some, wanted in self._sides(of):
            found = reader.take(rows, some) if len(rows) else reader.take(rows).projected(some)
            for at, part in zip(wanted, found.data, strict=True):
                data[at] = part
        return Block(of.schema, len(rows), tuple(part for part in data if part is not None))

    def lengths(self, rows: Ints, number: int) -> Ints:
        """How many elements rows of a ragged column have, as `Reader.lengths`."""
        group, place = self._places[number]
        return self._reader(group).lengths(rows, place)

    def take_parts(self, rows: Ints, number: int, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, as `Reader.take_parts`."""
        group, place = self._places[number]
        return self._reader(group).take_parts(rows, place, starts, stops)

    def is_cold(self, of: Projection | None = None) -> bool:
        """As `Reader.is_cold`."""
        return any(reader.is_cold(some) for reader, some, _ in self._sides(of))

    def announce(self, rows: Ints, values: bool, of: Projection | None = None) -> None:
        """Asks the kernel to make rows ready, as `Reader.announce`."""
        for reader, some, _ in self._sides(of):
            reader.announce(rows, values, some)

    def probe(self) -> None:
        """As `Reader.probe`, of what is open."""
        for reader in self._readers.values():
            reader.probe()
