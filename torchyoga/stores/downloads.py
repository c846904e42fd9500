"""Files of stores, downloaded into the cache when they are needed, or some time before.

They are those of a version, or shards of another library, which may be compressed.

The process that downloads files knows the order.
A thread computes the order as the iteration does, and stays a quarter of the cache ahead of the rows that
were delivered, or handed to worker processes. Workers find their files in the cache, or wait for the process
that downloads them. The thread does not request files of rows again that were handed out: by then, those may
have been read and deleted. Workers are handed at most a quarter of the cache at once, or a batch each.

What the index of a library says about its shards is checked when they arrive: sizes, and hashes where it has
some.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import hashlib
import json
import math
import os
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
import xxhash

from ..errors import CorruptError, NotFoundError, RemoteError
from ..files.checksum import crc32, crc32_of
from ..files.root import open_regular, read_regular
from ..formats.contract import FORMATS, format_named
from ..process.digests import hexdigest
from ..process.messages import log, warn_user
from ..process.numbers import first_places
from ..process.stages import Stage, timed
from ..process.threads import begin_thread, renew_in_children
from ..reading.reader import Reader
from ..rows.types import Ints
from ..versions.columns import ColumnGroup
from ..versions.file_entry import FileEntry
from ..versions.location import MANIFEST, Progress, gone, list_bytes
from ..versions.manifest import LARGEST_MANIFEST, Manifest
from ..versions.names import encoded
from .cache import Cache
from .local import transfer_bar
from .objects import Objects

_AT_ONCE = 2, 4, 32  # files: at least; of `_LARGE` bytes and more, and of any size at first; at most
_LARGE = 2**20
_WORTH = 1.5  # times as long as it computes, another thread waits for the store if it is worth it
_MOST_DOWNLOADS = 100  # of a file that is deleted again and again before it can be read
_TRIES = 3  # of a file that arrives damaged
_AHEAD_SHARE = 4  # a file is downloaded this part of the cache's bound before it is needed
_POLL = 0.02  # seconds

EntryT = TypeVar("EntryT")


class Downloads(ABC, Generic[EntryT]):
    """Files of a store, by entries that a subclass knows.

    Args:
        remote: the store; see it for its options.
        cache: where the files are kept on this machine.

    Attributes:
        remote, cache: as passed.
    """

    is_remote = True
    _advice = "remove the version and publish it again"  # where a file stays damaged
    # Where the cache does not hold a few files.
    _smaller = "build the version again by Storage(..., file_bytes={nbytes})"

    def __init__(self, remote: Objects, cache: Cache) -> None:
        self.remote = remote
        self.cache = cache
        self.renew()
        renew_in_children(self)

    @property
    @abstractmethod
    def name(self) -> str:
        """The URL of all of them."""

    @abstractmethod
    def key(self, entry: EntryT) -> str:
        """The name of a file in the cache: no other file of any store has the same."""

    @abstractmethod
    def _name_of(self, entry: EntryT) -> str:
        """The name of a file in the store."""

    @abstractmethod
    def _size(self, entry: EntryT) -> int:
        """Bytes of a file in the cache."""

    def _sent(self, entry: EntryT) -> int:
        """Bytes of a file in the store."""
        return self._size(entry)

    @abstractmethod
    def _load(self, entries: Sequence[EntryT]) -> None:
        """Imports what `_arrived` needs."""

    @abstractmethod
    def _arrived(self, entry: EntryT, crc: int, path: Path) -> str | None:
        """The damage of a file that has arrived at a path, with this CRC-32; None if there is none."""

    @abstractmethod
    def _raise_what_happened(self, entry: EntryT) -> None:
        """Raises an error for a file that is not in the store."""

    def renew(self) -> None:
        """Forgets the threads, and the files that they were to download."""
        self._lock = threading.Lock()
        self._wanted: deque[tuple[EntryT, Future[None]]] = deque()
        self._under_way: dict[str, Future[None]] = {}
        self._threads, self._at_once = 0, _AT_ONCE[1]
        self._ending = threading.Event()
        self._plan: object = None
        self._downloaded: set[str] = set()
        self._checked: set[str] = set()

    def where(self, entry: EntryT) -> str:
        """The URL of a file, for messages."""
        return self.remote.where(self._name_of(entry))

    def is_here(self, entry: EntryT) -> bool:
        """True if the file is in the cache."""
        return self.cache.has(self.key(entry))

    def path(self, entry: EntryT) -> str:
        """The path of the file in the cache; waits until it is downloaded.

        Raises:
            NotFoundError: the version was removed or overwritten in the meantime.
            CorruptError: the file in the store is damaged.
            RemoteError: the store cannot be reached.
            OSError: the disk is full.
        """
        return self._once_here(entry, self.cache.find, partial(self._warn_of_small_cache, self._size(entry)))

    def _once_here(
        self, entry: EntryT, find: Callable[[str], Path | None], warn: Callable[[], None] | None = None
    ) -> str:
        """The path that `find` gives for a key of the cache, once the file is there."""
        key = self.key(entry)
        for _ in range(_MOST_DOWNLOADS):
            was_here = key in self._downloaded
            found = find(key)
            if found is not None:
                return str(found)
            if was_here and warn is not None:
                warn()
            with timed(Stage.DOWNLOAD):
                self._asked(entry, first=True).result()
        raise RemoteError(
            f"{self.where(entry)} was deleted {_MOST_DOWNLOADS} times from {self.cache.folder} before "
            "it could be read; set a larger cache_bytes"
        )

    def _warn_of_small_cache(self, nbytes: int) -> None:
        limit = self.cache.limit
        if limit is not None:
            self._warn(
                f"files are downloaded again while readers wait for them, because the cache keeps "
                f"{limit / 1e6:.0f} MB; set cache_bytes to the size of the dataset to download each file "
                f"once, or {self._about_once(nbytes)}"
            )

    def _about_once(self, nbytes: int) -> str:
        """Advice for files of so many bytes, of which the cache keeps some: how each comes once an epoch."""
        limit = self.cache.limit or 0
        window = limit // (_AHEAD_SHARE * max(1, nbytes))  # two of them, and twice what is read ahead
        if window:
            return f"shuffle='block', shuffle_window={window} to download it about once an epoch"
        smaller = self._smaller.format(nbytes=self.cache.file_bytes)
        return f"{smaller}, as the cache holds only {limit // max(1, nbytes)} of its files"

    def _warn(self, message: str) -> None:
        """Warns once for each version in a process and its forked children."""
        if self.name not in _WARNED:
            _WARNED.add(self.name)
            warn_user(f"{self.name}: {message}")

    @property
    def ahead_bytes(self) -> int | None:
        """Bytes that may be read ahead of the delivered rows, so that the cache keeps files until they are
        read."""
        return None if self.cache.limit is None else self.cache.limit // _AHEAD_SHARE

    def is_checked(self, entry: EntryT) -> bool:
        """True if this process has just downloaded it."""
        return self.key(entry) in self._checked

    def begin(self, entries: Iterable[EntryT]) -> None:
        """Begins to download files, several at once, in this order; `path` raises their errors."""
        for entry in entries:
            if not self.is_here(entry):
                self._asked(entry)

    def note_use(self, entries: Iterable[EntryT]) -> None:
        """Notes that open files are being read."""
        for entry in entries:
            self.cache.find(self.key(entry))

    @contextlib.contextmanager
    def held(self, entry: EntryT) -> Iterator[str]:
        """A path of the file that stays valid, whatever the cache deletes meanwhile."""
        with contextlib.ExitStack() as stack:

            def second_name(key: str) -> Path | None:
                with contextlib.suppress(FileNotFoundError):
                    return stack.enter_context(self.cache.held(key))
                return None

            yield self._once_here(entry, second_name)

    def forget(self, entry: EntryT) -> None:
        """Deletes the file from the cache."""
        self.cache.drop(self.key(entry))

    # -- ahead of time

    def _download_ahead(self, entries: Sequence[EntryT], order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of time, on a thread, as far as the cache has space."""
        plan = self._plan = object()
        self._downloaded.clear()  # downloading a file again in another epoch is not wasteful
        if not all(map(self.is_here, entries)):
            # Threads would import it: a child forked meanwhile would be left with a half-imported module.
            self._load(entries)
            begin_thread("torchyoga plan", self._follow, plan, entries, order, progress, stop=self._end)

    def _follow(
        self, plan: object, entries: Sequence[EntryT], order: Iterable[Ints], progress: Progress
    ) -> None:
        limit = self.cache.limit
        most = math.inf if limit is None else limit // _AHEAD_SHARE
        ahead: deque[tuple[int, int]] = deque()  # the first row that needs a file, and the file's bytes
        planned: set[int] = set()
        row = 0
        for numbers in order:
            different, firsts = first_places(numbers)
            for place in np.argsort(firsts).tolist():
                number, first = int(different[place]), row + int(firsts[place])
                if number in planned:
                    continue
                planned.add(number)
                nbytes = self._size(entries[number])
                while ahead and sum(size for _, size in ahead) + nbytes > most:
                    reached = progress()
                    if reached is None or self._plan is not plan:
                        return
                    if ahead[0][0] > reached:
                        time.sleep(_POLL)
                    while ahead and ahead[0][0] <= reached:
                        ahead.popleft()
                if self._plan is not plan:
                    return
                ahead.append((first, nbytes))
                # Readers ask for the files they read now; those read before may have been deleted since.
                if first >= (progress() or 0) and not self.is_here(entries[number]):
                    self._asked(entries[number])
            row += len(numbers)
            if len(planned) == len(entries):
                return

    # -- threads

    def _asked(self, entry: EntryT, first: bool = False) -> Future[None]:
        """A running download of the file, or a new one."""
        key = self.key(entry)
        with self._lock:
            future = self._under_way.get(key)
            if future is None:
                self._begin_thread()
                future = Future()
                (self._wanted.appendleft if first else self._wanted.append)((entry, future))
                self._under_way[key] = future
            elif first:
                for index, (_, waiting) in enumerate(self._wanted):
                    if waiting is future:
                        del self._wanted[index]
                        self._wanted.appendleft((entry, future))
                        break
            return future

    def _begin_thread(self) -> None:
        """Begins a thread, which waits for the lock, unless there are enough; call it before anything waits
        for the thread, for it may fail."""
        if self._threads < min(self._at_once, _AT_ONCE[2]):
            try:
                begin_thread("torchyoga download", self._work, stop=self._end)
            except RuntimeError:  # the system allows no more
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def _end(self) -> None:
        """Ends the threads: no file is begun, and those under way are left as far as they are."""
        self._plan = None
        self._ending.set()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._threads > self._at_once:
                    self._threads -= 1
                    return
                entry, future = self._wanted.popleft()
            error: BaseException | None = None
            began, busy = time.perf_counter(), time.thread_time()
            try:
                self._fetch(entry)
            except BaseException as found:
                error = found
            waited = (time.perf_counter() - began) / max(1e-6, time.thread_time() - busy)
            with self._lock:
                self._under_way.pop(self.key(entry), None)
                self._weigh(self._size(entry), waited)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

    def _weigh(self, nbytes: int, waited: float) -> None:
        """Chooses how many files are read at once; call it while holding the lock.

        Threads that wait for each other, as beside a near store, only take the interpreter's lock from the
        training loop; those that wait for a store that is far away cost nothing.

        Args:
            nbytes: of a file that was read.
            waited: seconds that took, for each second that the thread was computing.
        """
        fewest, usual, most = _AT_ONCE
        wanted = min(most, max(fewest, int(waited / _WORTH))) if nbytes < _LARGE else usual
        self._at_once += (wanted > self._at_once) - (wanted < self._at_once)
        if self._wanted and self._threads < self._at_once:
            with contextlib.suppress(RuntimeError):  # the system allows no more
                self._begin_thread()

    def _fetch(self, entry: EntryT) -> None:
        _check(self._ending)
        key = self.key(entry)
        self.cache.fill(key, self._size(entry), partial(self._download, entry), self.where(entry))
        self._downloaded.add(key)

    def _download(self, entry: EntryT, path: Path) -> None:
        """Writes the missing rest of a file, and checks the file."""
        name, key = self._name_of(entry), self.key(entry)
        for _ in range(_TRIES):
            with self.cache.part(key) as file:
                crc = self._append(name, entry, file)
            problem = self._arrived(entry, crc, path)
            if problem is None:
                self._checked.add(key)
                return
            log.warning("%s arrived damaged; downloading it again", self.remote.where(name))
            self.cache.drop(key)
        raise CorruptError(f"{self.remote.where(name)} is damaged: {problem}; {self._advice}")

    def _append(self, name: str, entry: EntryT, file: BinaryIO) -> int:
        """Writes the missing rest; returns the CRC-32 of the whole file."""
        part, nbytes = _PartFile(file, self._ending), self._sent(entry)
        if part.at > nbytes:
            part.restart()
        try:
            if part.at < nbytes:
                self.remote.stream(name, part, nbytes)
        except FileNotFoundError:
            self._raise_what_happened(entry)
            raise
        file.flush()
        return part.crc


class _PartFile:
    """The downloaded part of a file, open at its end.

    Attributes:
        at: number of bytes it has; `crc`: their CRC-32.
    """

    def __init__(self, file: BinaryIO, ending: threading.Event) -> None:
        self._file, self._ending = file, ending
        file.seek(0)
        self.crc, self.at = crc32_of(file)

    def add(self, piece: bytes) -> None:
        """Appends bytes; CancelledError if the process is ending."""
        _check(self._ending)
        self._file.write(piece)
        self.crc = crc32(piece, self.crc)
        self.at += len(piece)

    def restart(self) -> None:
        """Discards the bytes so far."""
        self._file.truncate(0)
        self._file.seek(0)
        self.crc = self.at = 0


def _check(ending: threading.Event) -> None:
    if ending.is_set():
        raise CancelledError("this process is ending; another one goes on with the download")


_WARNED: set[str] = set()  # names of versions


class VersionDownloads(Downloads[FileEntry]):
    """The files of one version, in a folder of a store.

    Pickles by the URL; see `Objects` for its options.

    Args:
        remote: the store.
        folder: the folder of the version in the store.
        cache: where the files are kept on this machine.
        groups: of columns, without their files, to check files without a checksum of their own.
    """

    def __init__(self, remote: Objects, folder: str, cache: Cache, groups: Sequence[ColumnGroup]) -> None:
        self._groups = groups
        self._folder = folder
        self._keys: dict[int, tuple[FileEntry, str]] = {}  # the key of each entry, which is needed often
        super().__init__(remote, cache)

    def __reduce__(self) -> tuple[object, ...]:
        return VersionDownloads, (self.remote, self._folder, self.cache, self._groups)

    @property
    def name(self) -> str:
        """The URL of the version."""
        return self.remote.where(self._folder)

    def manifest(self) -> bytes:
        """The text of the current manifest."""
        try:
            return self.remote.read(f"{self._folder}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            raise gone(self.name) from None

    def key(self, entry: FileEntry) -> str:
        """The name of a file in the cache: no other file of any store has the same."""
        known = self._keys.get(id(entry))
        if known is None or known[0] is not entry:
            # Of a file that versions share, the name is the same in each of them.
            where = self.remote.where(self._folder_of(entry))
            what = f"{where}/{json.dumps(entry.whole.to_json(), sort_keys=True)}"
            hashed = hexdigest(what)
            known = self._keys[id(entry)] = entry, f"{hashed}{Path(entry.name).suffix}"
        return known[1]

    def _folder_of(self, entry: FileEntry) -> str:
        if entry.of is None:
            return self._folder
        return f"{self._folder.rpartition('/')[0]}/{encoded('version', entry.of)}"

    def _name_of(self, entry: FileEntry) -> str:
        return f"{self._folder_of(entry)}/{entry.name}"

    def _size(self, entry: FileEntry) -> int:
        return entry.nbytes

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of time, on a thread, as far as the cache has space."""
        self._download_ahead(entries, order, progress)

    def _load(self, entries: Sequence[FileEntry]) -> None:
        for name in {entry.format for entry in entries} & set(FORMATS):
            format_named(name)

    def download_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Downloads every file of a version; ValueError if the cache cannot keep them all."""
        limit = self.cache.limit
        if limit is not None and manifest.nbytes > limit:
            raise ValueError(
                f"{self.name} has {manifest.nbytes} bytes, but the cache keeps cache_bytes={limit}; set at "
                "least that, or leave download=True out"
            )
        with transfer_bar(manifest, f"downloading {self.name}", progress) as bar:
            self.begin(manifest.each_file)
            for entry in manifest.each_file:
                self.path(entry)
                bar.update(entry.nbytes)
        missing = [entry for entry in manifest.each_file if not self.is_here(entry)]
        if missing:
            raise OSError(
                errno.ENOSPC,
                f"{len(missing)} of {len(manifest.each_file)} files of {self.name} had to be deleted again "
                "to make room; make room there, or choose another cache_dir",
                str(self.cache.folder),
            )

    def _arrived(self, entry: FileEntry, crc: int, path: Path) -> str | None:
        if entry.crc is not None:
            return None if crc == entry.crc else f"its CRC-32 is {crc:08x}, the manifest says {entry.crc:08x}"
        # Uploaded by other tools: its blocks have checksums.
        group = next(group for group in self._groups if group.number == entry.group)
        found = Reader.of_file(str(path), group, entry.whole).verify_all()
        return found[0] if found else None

    def _raise_what_happened(self, entry: FileEntry) -> None:
        now = Manifest.from_bytes(self.manifest()).located(partial(list_bytes, self))
        if entry.name in {file.name for file in (*now.lists, *now.files)}:
            whose = "its manifest" if entry.of is None else f"the manifest of {self.name}"
            raise CorruptError(
                f"{self.where(entry)} is missing though {whose} names it; remove the version and publish it "
                "again"
            )
        raise NotFoundError(f"{self.name} has been overwritten since this DataRef was made; fetch it again")


AS_IT_BEGINS = "as it begins"
HEAD = 2**16  # bytes of a file that show how it is compressed
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"
_TRIED = 256  # bytes of gzip or zlib that are decompressed to find out whether it is one
_ANY_ZLIB, _LEAST_ZLIB = 47, 8  # what zlib calls gzip or its own format; bytes of either at least
_RUN = 2**22  # bytes of a part of a file that are requested at once
_PYARROW = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}  # what pyarrow calls a compression
# Of LitData's frames: a magic, the version, 0, items, items of a frame, frames.
FRAMED = struct.Struct("<8s2H3I")
_FRAMED_MAGIC, _FRAME = b"LDFZ01\0\0", struct.Struct("<IIQII")
_XXHASHES = {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"}


@dataclass(frozen=True)
class StoredShard:
    """A file of rows, as an index of another library describes it.

    Attributes:
        name: its path below the folder.
        nbytes: its size when it can be read; where that shows only once it is unpacked, as `sent`.
        sent: its size in the store, where it may be compressed.
        compression: what it is decompressed with: zstd, br, snappy, gz or bz2, or "frames", LitData's frames
            of zstd; `AS_IT_BEGINS` for gzip, zlib or zstd, if it begins so; None if it is not compressed.
        hashes: of the file in the store, pairs of an algorithm and hex digits.
        raw_hashes: of what can be read.
        tag: by which the store tells it from later contents, see `ObjectInfo.state`; None if it has none.
        begin, whole: if it is a part of the file in the store, which byte is its first, and how many the file
            has; it is not compressed then.
    """

    name: str
    nbytes: int
    sent: int
    compression: str | None = None
    hashes: tuple[tuple[str, str], ...] = ()
    raw_hashes: tuple[tuple[str, str], ...] = ()
    tag: str | None = None
    begin: int = 0
    whole: int | None = None


class ShardDownloads(Downloads[int]):
    """Shards by number, downloaded into the cache of this machine; pickles by the URL.

    Args:
        remote: the folder.
        shards: below it.
        cache: where they are kept.
        nbytes: the size of each, decompressed, as far as more is known than the shards say.

    Attributes:
        nbytes: the size of each, decompressed.
    """

    _advice = "write the dataset again"
    _smaller = "write smaller files of about {nbytes} bytes"

    def __init__(
        self, remote: Objects, shards: Sequence[StoredShard], cache: Cache, nbytes: Sequence[int] = ()
    ) -> None:
        self._shards = tuple(shards)
        self.nbytes = list(nbytes or (shard.nbytes for shard in shards))
        super().__init__(remote, cache)

    def __reduce__(self) -> tuple[object, ...]:
        return ShardDownloads, (self.remote, self._shards, self.cache, self.nbytes)

    @property
    def name(self) -> str:
        """The URL of the folder."""
        return self.remote.url

    def head(self, number: int, count: int) -> bytes:
        """The first bytes of a shard that is not compressed; the others are not downloaded."""
        shard = self._shards[number]
        return self.remote.read_ranges(shard.name, [(0, count)], shard.nbytes)[0]

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads shards ahead of time, in the order in which rows of them will be read."""
        self._download_ahead(range(len(self._shards)), order, progress)

    def key(self, number: int) -> str:
        """The name of a shard in the cache."""
        return f"{hexdigest(f'{self.where(number)} {self._shards[number]!r}')}.shard"

    def _name_of(self, number: int) -> str:
        return self._shards[number].name

    def _size(self, number: int) -> int:
        return self.nbytes[number]

    def _sent(self, number: int) -> int:
        return self._shards[number].sent

    def _append(self, name: str, number: int, file: BinaryIO) -> int:
        shard = self._shards[number]
        if shard.hashes or shard.raw_hashes:
            return self._appended(name, number, file)
        # Nothing but the store can tell that all of it is of one writing, and of the one that was indexed.
        before = shard.tag
        if before is None:
            file.truncate(0)
            found = self.remote.find_one(name)
            before = None if found is None else found.state
        crc = self._appended(name, number, file)
        if not self._is_still(name, before):
            file.truncate(0)
            raise CorruptError(f"{self.where(number)} has changed since it was opened; open it again")
        return crc

    def _is_still(self, name: str, state: str | None) -> bool:
        """True if a file is as it was."""
        found = self.remote.find_one(name)
        if found is not None and found.state != state:
            # Some stores tell the same object in another way where they list a folder.
            folder, _, last = name.rpartition("/")
            found = self.remote.find(folder).get(last)
        return found is not None and found.state == state

    def _appended(self, name: str, number: int, file: BinaryIO) -> int:
        shard = self._shards[number]
        if shard.whole is None:
            return super()._append(name, number, file)
        at = file.seek(0, os.SEEK_END)
        if at > shard.sent:
            at = file.truncate(file.seek(0))
        try:
            while at < shard.sent:
                run = shard.begin + at, shard.begin + min(at + _RUN, shard.sent)
                (data,) = self.remote.read_ranges(name, [run], shard.whole)
                at += file.write(data)
        except FileNotFoundError:
            self._raise_what_happened(number)
        file.flush()
        return 0

    def _load(self, entries: Sequence[int]) -> None:
        for name in {self._shards[number].compression for number in entries} & {*_PYARROW, "frames"}:
            _pyarrow(str(name))

    def _raise_what_happened(self, number: int) -> None:
        raise CorruptError(f"{self.where(number)} is missing though the index names it; {self._advice}")

    def _arrived(self, number: int, crc: int, path: Path) -> str | None:
        shard = self._shards[number]
        if shard.compression == AS_IT_BEGINS:
            return self._unpack(number, path)
        if not (shard.compression or shard.hashes or shard.raw_hashes):
            return None
        try:
            data = read_regular(path, shard.sent)
            check_hashes(data, shard.hashes)
            if shard.compression:
                data = decompressed(data, shard.compression, shard.nbytes)
                with self.cache.part(self.key(number)) as file:
                    file.truncate(0)
                    file.write(data)
            check_hashes(data, shard.raw_hashes)
        except CorruptError as error:
            return str(error)
        return None

    def _unpack(self, number: int, path: Path) -> str | None:
        """Puts its contents in the place of a file that is compressed; returns what is wrong with it."""
        key = self.key(number)
        unfinished = f"{key.partition('.')[0]}-{0:08}.shard"
        with open(open_regular(path), "rb") as packed:
            how = packing_of(packed.read(HEAD))
            if how is None:
                return None
            packed.seek(0)
            try:
                with self.cache.root.recreate(f"parts/{unfinished}") as file:
                    file.writelines(unpacked(packed, how))
            except BaseException as error:
                self.cache.drop(unfinished)
                if isinstance(error, CorruptError):
                    return str(error)
                raise
        self.cache.root.move(f"parts/{unfinished}", f"parts/{key}")
        return None


def packing_of(head: bytes) -> str | None:
    """How a file that begins with these bytes is compressed, "zlib" for gzip, too; None if it is not."""
    if head.startswith(_ZSTD):
        return "zstd"
    if head.startswith(_GZIP) and len(head) < HEAD:  # no record of such a length is in so short a file
        return "zlib"
    if not head.startswith((_GZIP, b"x")) or len(head) < _LEAST_ZLIB:
        return None
    try:  # other data may begin so, too, such as the length of a record of TFRecord
        zlib.decompressobj(_ANY_ZLIB).decompress(head[:_TRIED], HEAD)
    except zlib.error:
        return None
    return "zlib"


def unpacked(file: BinaryIO, how: str) -> Iterator[bytes]:
    """The contents of a compressed file, in pieces; CorruptError if it is cut or damaged."""
    if how == "zstd":
        try:
            with _pyarrow(how).input_stream(file, compression=how) as stream:
                while piece := stream.read(_RUN):
                    yield piece
        except OSError as error:
            raise CorruptError(f"it is cut or damaged: {error}") from error
        return
    by, left = zlib.decompressobj(_ANY_ZLIB), b""
    try:
        while left := left or file.read(_RUN):
            if by.eof:  # another part follows, or zeros, with which tapes are filled up
                left = left.lstrip(b"\0")
                if not left:
                    continue
                by = zlib.decompressobj(_ANY_ZLIB)
            yield by.decompress(left, _RUN)
            left = by.unused_data if by.eof else by.unconsumed_tail
    except zlib.error as error:
        raise CorruptError(f"it is damaged: {error}") from error
    if not by.eof:
        raise CorruptError("it is cut: its compressed data has no end")


def check_hashes(data: bytes | memoryview, hashes: Sequence[tuple[str, str]]) -> None:
    """Raises CorruptError unless bytes have these hashes, pairs of an algorithm and hex digits."""
    for algorithm, expected in hashes:
        if algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake"):
            digits = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
        elif algorithm not in _XXHASHES:
            raise CorruptError(
                f"the index has hashes by {algorithm!r:.40}, not a known one; see verify=False"
            )
        else:
            digits = getattr(xxhash, algorithm)(data).hexdigest()
        if digits != expected.lower():
            raise CorruptError(f"its {algorithm} is {digits}, the index says {expected}")


def decompressed(data: bytes, name: str, nbytes: int) -> bytes:
    """So many bytes that were compressed by zstd, br, snappy, gz, bz2 or in LitData's frames.

    Raises:
        CorruptError: they are damaged, or decompress to another number of bytes; no more are kept in memory.
        ImportError: pyarrow is not installed.
    """
    try:
        if name == "br":  # whole buffers are given back however little was written to them
            pa = _pyarrow(name)
            with pa.input_stream(pa.BufferReader(data), compression="brotli") as stream:
                left, pieces = nbytes + 1, list[bytes]()
                while left > 0 and (piece := stream.read(min(left, _RUN))):
                    left -= len(piece)
                    pieces.append(piece)
                raw = b"".join(pieces)
        elif name == "frames":
            raw = _without_frames(data, nbytes)
        elif name == "snappy" and _snappy_size(data) != nbytes:
            raw = b""
        elif name in _PYARROW:
            raw = bytes(_pyarrow(name).decompress(data, decompressed_size=nbytes, codec=_PYARROW[name]))
        else:
            by = bz2.BZ2Decompressor() if name == "bz2" else zlib.decompressobj(wbits=31)
            raw = by.decompress(data, nbytes + 1)
            raw = raw if by.eof else b""
    except (OSError, ValueError, IndexError, struct.error, zlib.error, MemoryError) as error:
        raise CorruptError(f"it cannot be decompressed by {name}: {error}") from error
    if len(raw) != nbytes:
        raise CorruptError(f"decompressed by {name} it does not have the {nbytes} bytes that the index says")
    return raw


def _without_frames(data: bytes, nbytes: int) -> bytes:
    """A chunk of LitData's whose items were compressed some at a time, as it is without compression."""
    magic, version, _, items, _, frames = FRAMED.unpack_from(data)
    if magic != _FRAMED_MAGIC or version != 1:
        raise ValueError(f"it begins with {data[:10]!r}")
    ends = np.frombuffer(data, "<u4", items + 1, FRAMED.size).astype(np.int64)
    head = 4 * (items + 2)
    pieces = [struct.pack("<I", items), (ends + head).astype("<u4").tobytes()]
    at, done, left = FRAMED.size + ends.size * 4, 0, nbytes - head
    for number in range(frames):
        first, count, start, size, raw = _FRAME.unpack_from(data, at + number * _FRAME.size)
        left -= raw
        is_cut = left < 0 or start + size > len(data)
        if is_cut or first != done or ends[first + count] - ends[first] != raw:
            raise ValueError(f"its frame {number} is not the one of items {done} and those behind")
        done += count
        frame = data[start : start + size]
        pieces.append(bytes(_pyarrow("zstd").decompress(frame, decompressed_size=raw, codec="zstd")))
    if done != items:
        raise ValueError(f"its frames hold {done} of {items} items")
    return b"".join(pieces)


def _snappy_size(data: bytes) -> int:
    """How many bytes snappy says that it has compressed, in 7 bits of each byte; -1 if it says none."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            return size
    return -1


def _pyarrow(name: str) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError:
        raise ImportError(
            f"shards compressed by {name} need pyarrow; pip install 'torchyoga[arrow]'"
        ) from None
