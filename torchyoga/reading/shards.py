"""Files in which rows of another library lie, mapped when a row of them is first wanted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import CorruptError, RemoteError
from ..files.regular import refuse_irregular
from ..formats.gather import Bytes, MappedFile, Memory
from ..formats.pages import Thermometer, Watch, merged, num_to_spare, usage, will_need
from ..process.buffers import BufferPool
from ..process.forks import renew_in_children
from ..process.numbers import distinct
from ..rows.types import Ints
from ..versions.location import Progress

_MOST_OPEN = 4096  # files mapped at once, if one batch does not need more, and the process has none to spare
_MOST_DOWNLOADS = 20  # of a file that other processes keep deleting
_LOOK_SHARE = 8  # this part of the mapped files is new before deleted ones are looked for


class ShardFiles(Protocol):
    """Files by number: on this machine, or downloaded when they are needed."""

    @property
    def name(self) -> str:
        """Where they are, for messages."""

    @property
    def nbytes(self) -> Sequence[int]:
        """The size of each, once it is on this machine."""

    @property
    def is_remote(self) -> bool:
        """True if a file has to be downloaded, or decompressed, before it can be read."""

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of the delivered rows; None if it does not matter."""

    def where(self, number: int) -> str:
        """The path or URL of a file, for messages."""

    def path(self, number: int) -> str:
        """The path of a file on this machine, of the size that it should have; waits for a download."""

    def is_here(self, number: int) -> bool:
        """True if `path` need not wait."""

    def begin(self, numbers: Iterable[int]) -> None:
        """Begins to download files that will be needed, and returns."""

    def note_use(self, numbers: Iterable[int]) -> None:
        """Records that files are being read: to make room, others should be deleted first."""

    def forget(self, number: int) -> None:
        """Deletes the local copy of a file behind a URL."""

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files before they are needed, given the file of each row that will be read, some rows at
        a time, and how many rows have been delivered."""


@dataclass(frozen=True)
class LocalShards:
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
    is_remote = False
    ahead_bytes: None = None

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

    def begin(self, numbers: Iterable[int]) -> None:
        """Does nothing: the files are local."""

    def note_use(self, numbers: Iterable[int]) -> None:
        """Does nothing: no files are deleted to make room."""

    def forget(self, number: int) -> None:
        """Does nothing: the file is not a copy."""

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
        self._mapped: dict[int, MappedFile] = {}
        self._watches: dict[int, Watch] = {}  # of files that other machines may cut
        self._num_new = 0  # since deleted ones were looked for
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child."""
        self._lock = threading.Lock()

    def hold(self, numbers: Ints) -> tuple[Memory, Ints]:
        """Memory that has these files, at least one, and (N,) the address at which each of them begins.

        Raises:
            CorruptError: a file is missing, cut, or not what it should be.
            RemoteError: it cannot be downloaded.
        """
        held = self._open
        origins = None if held is None else held.origins.take(numbers)
        if held is None or origins is None or not origins.all():
            held = self._opened(distinct(numbers).tolist())
            origins = held.origins.take(numbers)
        for number in self._watches and distinct(numbers).tolist():
            watch = self._watches.get(number)
            if watch is not None:
                watch.look()
        return held.memory, origins

    def bytes_of(self, number: int) -> tuple[Bytes, bool]:
        """A mapped file, and whether it may be kept: not if other machines may cut it, or if it is a copy, or
        one of very many."""
        for _ in range(_MOST_DOWNLOADS):
            self.hold(np.array([number]))
            file = self._mapped.get(number)
            if file is not None:  # else another thread has just made room for others
                is_one_of_few = len(self.files.nbytes) <= _MOST_OPEN
                return file.data, is_one_of_few and not (self.files.is_remote or self._watches)
        raise self._deleted(number)

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
        self.files.begin(number for number in numbers if number not in self._mapped)  # several at once
        with self._lock:
            mapped, held = self._mapped, self._open
            self.files.note_use(number for number in numbers if number in mapped)
            new = {number: self._map(number) for number in numbers if number not in mapped}
            if held is not None and not new:
                return held
            were_all = [file.pages.were_all for file in new.values()]
            self.warmth.after_opening(None if None in were_all else all(were_all))
            self._num_new += len(new)
            left = self._left(numbers, len(new))
            self._mapped = {**left, **new}
            if held is not None and len(left) == len(mapped):
                held.memory.extend([file.data for file in new.values()])
            else:
                memory = Memory([file.data for file in self._mapped.values()])
                held, new = _Mapped(memory, np.zeros(len(self.files.nbytes), np.int64)), self._mapped
            for number, file in new.items():
                held.origins[number] = file.address  # last: from now on threads read it
            self._open = held
            return held

    def _left(self, numbers: Sequence[int], num_new: int) -> dict[int, MappedFile]:
        """The mapped files that stay so: what was deleted takes space on the disk as long as it is mapped."""
        left = self._mapped
        if self.files.is_remote and _LOOK_SHARE * self._num_new >= len(left):
            self._num_new = 0
            wanted = set(numbers)
            left = {n: file for n, file in left.items() if n in wanted or self.files.is_here(n)}
        if len(left) + num_new > max(_MOST_OPEN, len(left) + num_to_spare()):
            wanted = set(numbers)
            left = {n: file for n, file in left.items() if n in wanted}
        return left

    def _map(self, number: int) -> MappedFile:
        nbytes = self.files.nbytes[number]
        for _ in range(_MOST_DOWNLOADS):
            path = self.files.path(number)
            try:
                file = MappedFile(path, nbytes)
            except CorruptError:
                if not self.files.is_remote:
                    raise
                self.files.forget(number)  # deleted again, to make room for another; or its size was changed
                continue
            try:
                self._check(number, file.data)
            except CorruptError as error:
                self.files.forget(number)
                raise CorruptError(f"{self.files.where(number)}: {error}") from error
            watch = Watch.where_needed(path, nbytes)
            if watch is not None:
                self._watches[number] = watch
            return file
        raise self._deleted(number)

    def _deleted(self, number: int) -> RemoteError:
        return RemoteError(
            f"file {number} of {self.files.name} was deleted {_MOST_DOWNLOADS} times before it was opened; "
            "set a larger cache_bytes"
        )
