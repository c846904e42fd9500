"""Rows that stay in the files of another library, which are mapped when a row of them is first wanted."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import CorruptError
from ..files.root import refuse_irregular
from ..formats.items import MappedRuns
from ..formats.mapped import Bytes, MappedFile, Memory, Thermometer, merged, usage, will_need
from ..process.buffers import BufferPool
from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..process.stages import Stage, timed
from ..process.threads import renew_in_children
from ..rows.block import Block, Data, check_parts
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints
from ..versions.location import OnThisMachine, Origin, Progress
from .dataref import DataRef
from .open_files import MappedFiles
from .readahead import Prefetch
from .stored_ref import StoredRef


class ShardFiles(Origin[int], Protocol):
    """Files by number: on this machine, or downloaded when they are needed; `path` gives one of its size."""

    @property
    def nbytes(self) -> Sequence[int]:
        """The size of each, once it is on this machine."""

    def where(self, number: int) -> str:
        """The path or URL of a file, for messages."""

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files before they are needed, given the file of each row that will be read, some rows at
        a time, and how many rows have been delivered."""


@dataclass(frozen=True)
class LocalShards(OnThisMachine):
    """Files of this machine.

    Attributes:
        name: for messages.
        paths: of the files; `nbytes`: their sizes when they were found.
        written: when they were written last, in ns, if they have to stay so.
    """

    name: str
    paths: tuple[str, ...]
    nbytes: tuple[int, ...]
    written: tuple[int, ...] = ()

    def where(self, number: int) -> str:
        """The path of a file."""
        return self.paths[number]

    def as_they_are(self) -> LocalShards:
        """The same files, which have to stay as they are now; CorruptError if one has another size."""
        return replace(
            self, written=tuple(self._found(number).st_mtime_ns for number in range(len(self.paths)))
        )

    def path(self, number: int) -> str:
        """The path of a file; CorruptError if it has changed since, or is gone."""
        self._found(number)
        return self.paths[number]

    def _found(self, number: int) -> os.stat_result:
        path, nbytes = self.paths[number], self.nbytes[number]
        try:
            about = os.stat(path)
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing; put it back, or write the dataset again") from None
        except OSError:
            refuse_irregular(path)  # such as a link to itself
            raise
        if about.st_size != nbytes:
            raise CorruptError(
                f"{path} has {about.st_size} bytes where {nbytes} are expected: it was cut or has changed; "
                "write it again, or open the dataset anew"
            )
        if self.written and about.st_mtime_ns != self.written[number]:
            raise CorruptError(f"{path} has changed since it was opened; open the dataset anew")
        return about

    def is_here(self, number: int) -> bool:
        """True."""
        return True

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Does nothing: the files are local."""


class _Mapped(NamedTuple):
    """Mapped files: their memory, and (all files,) the address at which each begins; 0 for the others."""

    memory: Memory
    origins: Ints


class MappedShards:
    """The files of one dataset in this process. All methods may be called by several threads.

    Args:
        files: where they are.
        check: called with the number and the bytes of a file when this process maps it; raises CorruptError
            if they are not such a file.

    Attributes:
        files: as passed.
        empty: makes memory for copies.
        warmth: whether they come from disk.
    """

    def __init__(self, files: ShardFiles, check: Callable[[int, Bytes], None]) -> None:
        self.files = files
        self.empty = BufferPool().empty
        self.warmth = Thermometer()
        self._check = check
        self._open: _Mapped | None = None
        self._mapped = MappedFiles(files, range(len(files.nbytes)))
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes a new lock in a forked child."""
        self._lock = threading.Lock()

    def hold(self, numbers: Ints) -> tuple[Memory, Ints]:
        """Memory that has these files, at least one, and (N,) the address at which each of them begins.

        Raises:
            CorruptError: a file is missing, cut, or not what it should be.
            RemoteError: it cannot be downloaded.
        """
        held = self._open
        if held is None or not held.origins.take(numbers).all():
            held = self._opened(distinct(numbers).tolist())
        if self._mapped.watches:
            self._mapped.look(distinct(numbers).tolist())
        return held.memory, held.origins.take(numbers)

    def has(self, numbers: Ints) -> bool:
        """True if these files can be held without a download."""
        held = self._open
        closed = distinct(numbers if held is None else numbers[held.origins.take(numbers) == 0])
        return not self.files.is_remote or all(map(self.files.is_here, closed.tolist()))

    def advise(self, starts: Ints, nbytes: Ints) -> None:
        """Asks the disk for runs of bytes at these addresses, which will be read."""
        some = nbytes > 0
        if not some.any():
            return
        before, starts = usage(), starts[some]
        will_need(*merged(starts, starts + nbytes[some]))
        self.warmth.after_advice(before, len(starts))

    def _opened(self, numbers: Sequence[int]) -> _Mapped:
        mapped = self._mapped
        self.files.begin(number for number in numbers if number not in mapped.open)  # several at once
        with self._lock:
            held, before = self._open, [*mapped.open]
            self.files.note_use(number for number in numbers if number in mapped.open)
            missing = [number for number in numbers if held is None or not held.origins[number]]
            if held is not None and not missing:
                return held
            new = {number: self._checked(number) for number in missing}
            were_all = [file.pages.were_all for file in new.values()]
            self.warmth.after_opening(None if None in were_all else all(were_all))
            gone = mapped.surplus(before, numbers, len(new))
            for number in gone:
                del mapped.open[number]
            if held is not None and not gone:
                held.memory.extend([file.data for file in new.values()])
            else:
                memory, new = Memory([file.data for file in mapped.open.values()]), mapped.open
                held = _Mapped(memory, np.zeros(len(self.files.nbytes), np.int64))
            for number, file in new.items():
                held.origins[number] = file.address  # last: from now on threads read it
            self._open = held
            return held

    def _checked(self, number: int) -> MappedFile:
        file = self._mapped.map(number, self.files.nbytes[number])
        try:
            self._check(number, file.data)
        except CorruptError as error:
            del self._mapped.open[number]
            self.files.forget(number)
            raise CorruptError(f"{self.files.where(number)}: {error}") from error
        return file


@dataclass(frozen=True, eq=False)
class FileLayout(ABC):
    """How the rows of some files lie in them; plain data, which pickles.

    Attributes:
        name: for messages.
        files: where they are.
        starts: (files + 1,) the row at which each file begins, and the number of rows.
        schema: what a row looks like.
        content: a name for the content of all rows.
    """

    name: str
    files: ShardFiles
    starts: Ints
    schema: Schema
    content: str

    @property
    def only_copies(self) -> bool:
        """True if threads of one process read as fast as processes; False where rows are parsed."""
        return False

    def check(self, number: int, data: Bytes) -> None:
        """Raises CorruptError unless a file of this number can hold these bytes; here it can hold any."""
        return

    @abstractmethod
    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory | None, Ints, Ints]:
        """Where rows (N,), at least one, lie: the memory, the address of each, and its bytes.

        Raises:
            CorruptError: a file is damaged; says which row.
        """

    @abstractmethod
    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns of rows (N,), at least one; CorruptError as `spans`."""

    def where(self, row: int) -> str:
        """The file and the place of a row, for messages."""
        file = int(self.starts.searchsorted(row, "right")) - 1
        return f"{self.files.where(file)}: record {row - int(self.starts[file])} (row {row})"


class InPlaceRef(StoredRef):
    """Rows of files that another library has written.

    Args:
        layout: how they lie there.
        of: the columns; all by default.
        shards: the files, if this process has them open.
    """

    def __init__(
        self, layout: FileLayout, of: Projection | None = None, shards: MappedShards | None = None
    ) -> None:
        schema = layout.schema if of is None else of.schema
        super().__init__(layout.name, schema, int(layout.starts[-1]))
        self._layout, self._of = layout, of
        self._columns = tuple(range(len(schema.columns))) if of is None else of.columns
        self._shards = shards or MappedShards(layout.files, layout.check)

    def __reduce__(self) -> tuple[object, ...]:
        return InPlaceRef, (self._layout, self._of)

    @property
    def file_starts(self) -> Ints:
        """The row at which each file begins."""
        return self._layout.starts

    @property
    def fingerprint(self) -> str:
        """A name for the content."""
        return self._layout.content if self._of is None else self._of.pinned(self._layout.content)

    @property
    def _only_copies(self) -> bool:
        """True if rows are bytes of files on this machine, as they lie there."""
        return self._layout.only_copies and not self._layout.files.is_remote

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row with all columns."""
        return sum(self._layout.files.nbytes) // max(1, len(self))

    @cached_property
    def _prefetch(self) -> Prefetch:
        """Reads pages and downloads files before their rows are taken."""
        return _Announced(self._layout, self._shards)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        return InPlaceRef(self._layout, of if self._of is None else self._of.then(of), self._shards)

    def _block(self, rows: Ints) -> Block:
        with timed(Stage.READ):
            before, warmth = usage(), self._shards.warmth
            if warmth.cold:
                self._shards.advise(*self._layout.spans(self._shards, rows)[1:])
            data = self._layout.gather(self._shards, rows, self._columns)
            if usage().faults > before.faults:
                warmth.after_fault()
        return Block(self._schema, len(rows), tuple(data))

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, end to end; nothing else of them is read."""
        if not self.schema.is_sequence or not len(rows):
            return super()._take_parts(rows, starts, stops)
        (data,) = self._layout.gather(self._shards, rows, self._columns)
        if not isinstance(data.runs, MappedRuns):
            return super()._take_parts(rows, starts, stops)
        check_parts(rows, np.diff(data.part("offsets")), starts, stops)
        size = data.dtype.itemsize
        return data.runs.parts(starts * size, stops * size, self._shards.empty).view(data.dtype)


def files_of(starts: Ints, rows: Ints) -> Ints:
    """(N,) the file of each row, given the row at which each file begins."""
    if len(starts) == 2:
        return np.zeros(len(rows), np.int64)
    return starts.searchsorted(rows, "right") - 1


class _Announced:
    """Makes rows ready before they are taken."""

    def __init__(self, layout: FileLayout, shards: MappedShards) -> None:
        self._layout, self._shards = layout, shards

    @property
    def is_cold(self) -> bool:
        return self._shards.warmth.cold

    @property
    def ahead_bytes(self) -> int | None:
        return self._layout.files.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        if not values and len(rows) and self._shards.has(files_of(self._layout.starts, rows)):
            self._shards.advise(*self._layout.spans(self._shards, rows)[1:])

    def probe(self) -> None:
        self._shards.warmth.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        starts = self._layout.starts
        self._layout.files.follow((files_of(starts, rows) for rows in order), progress)
