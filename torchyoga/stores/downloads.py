"""The files of a version in a store, downloaded into the cache when they are needed, or some time before.

The process that downloads files knows the order.
A thread computes the order as the iteration does, and stays a quarter of the cache ahead of the rows that
were delivered, or handed to worker processes. Workers find their files in the cache, or wait for the process
that downloads them. The thread does not request files of rows again that were handed out: by then, those may
have been read and deleted. Workers are handed at most a quarter of the cache at once, or a batch each.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import json
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import CorruptError, NotFoundError, RemoteError
from ..files.checksum import crc32, crc32_of
from ..formats.contract import FORMATS, format_named
from ..process.digests import hexdigest
from ..process.distinct import first_places
from ..process.forks import renew_in_children
from ..process.stages import Stage, timed
from ..process.warned import warn_user
from ..reading.reader import Reader
from ..rows.types import Ints
from ..versions.columns import ColumnGroup
from ..versions.file_entry import FileEntry
from ..versions.location import MANIFEST, Progress, list_bytes
from ..versions.manifest import LARGEST_MANIFEST, Manifest
from ..versions.names import encoded
from .cache import Cache
from .local import transfer_bar
from .objects import Found, Remote

__all__ = ["Downloads"]

_log = logging.getLogger("torchyoga")
_AT_ONCE = 4  # files
_RUN, _RUNS = 8 * 2**20, 2  # bytes of a request, and requests at once, for each file
_MOST_DOWNLOADS = 20  # of a file that is deleted again and again before it can be read
_TRIES = 3  # of a file that arrives damaged
_AHEAD_SHARE = 4  # a file is downloaded this part of the cache's bound before it is needed
_POLL = 0.02  # seconds
# Rows for each file, and in all, that show how many files are read at once.
_ROWS_WEIGHED, _MOST_WEIGHED = 16, 2**20


class Downloads:
    """The files of one version, in a folder of a store.

    Pickles by the URL; see `Remote` for its options.

    Args:
        remote: the store.
        folder: the folder of the version in the store.
        cache: where the files are kept on this machine.
        groups: of columns, without their files, to check files without a checksum of their own.
        lease_seconds: as in `Mirror`, for what is kept beside the version.

    Attributes:
        remote: the store; `cache`, `lease_seconds`: as passed.
    """

    is_remote = True

    def __init__(
        self,
        remote: Remote,
        folder: str,
        cache: Cache,
        groups: Sequence[ColumnGroup],
        lease_seconds: float = 60.0,
    ) -> None:
        self._groups = groups
        self.remote = remote
        self._folder = folder
        self.cache = cache
        self.lease_seconds = lease_seconds
        self._keys: dict[int, tuple[FileEntry, str]] = {}  # the key of each entry, which is needed often
        self._listed: dict[str, dict[str, Found]] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forgets the threads, and the files that they were to download."""
        self._lock, self._listing = threading.Lock(), threading.Lock()
        self._wanted: deque[tuple[FileEntry, Future[None]]] = deque()
        self._under_way: dict[str, Future[None]] = {}
        self._threads = 0
        self._plan: object = None
        self._downloaded: set[str] = set()
        self._checked: set[str] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return Downloads, (self.remote, self._folder, self.cache, self._groups, self.lease_seconds)

    @property
    def name(self) -> str:
        """The URL of the version."""
        return self.remote.where(self._folder)

    def manifest(self) -> bytes:
        """The text of the current manifest."""
        try:
            return self.remote.read(f"{self._folder}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            raise NotFoundError(
                f"{self.name} has been removed since this DataRef was made; fetch or build it again"
            ) from None

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

    def _where(self, entry: FileEntry) -> str:
        """The URL of a file, for messages."""
        return self.remote.where(f"{self._folder_of(entry)}/{entry.name}")

    def is_here(self, entry: FileEntry) -> bool:
        """True if the file is in the cache."""
        return self.cache.has(self.key(entry))

    def path(self, entry: FileEntry) -> str:
        """The path of the file in the cache; waits until it is downloaded.

        Raises:
            NotFoundError: the version was removed or overwritten in the meantime.
            CorruptError: the file in the store is damaged.
            RemoteError: the store cannot be reached.
            OSError: the disk is full.
        """
        return self._awaited_path(entry, self._warn_of_small_cache)

    def _awaited_path(self, entry: FileEntry, warn: Callable[[], None] | None = None) -> str:
        key = self.key(entry)
        for _ in range(_MOST_DOWNLOADS):
            was_here = key in self._downloaded
            found = self.cache.find(key)
            if found is not None:
                return str(found)
            if was_here and warn is not None:
                warn()
            with timed(Stage.DOWNLOAD):
                self._asked(entry, first=True).result()
        raise self._deleted(entry)

    def _deleted(self, entry: FileEntry) -> RemoteError:
        return RemoteError(
            f"{self._where(entry)} was deleted {_MOST_DOWNLOADS} times from {self.cache.folder} before "
            "it could be read; set a larger cache_bytes"
        )

    def _warn_of_small_cache(self) -> None:
        limit = self.cache.limit
        if limit is not None:
            self._warn(
                f"files are downloaded again while readers wait for them, because the cache keeps "
                f"{limit / 1e6:.0f} MB; set cache_bytes to the size of the dataset to download each file "
                "once, or shuffle='block' to do so about once an epoch"
            )

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

    def is_checked(self, entry: FileEntry) -> bool:
        """True if this process has just downloaded it."""
        return self.key(entry) in self._checked

    def begin(self, entries: Iterable[FileEntry]) -> None:
        """Begins to download files, several at once, in this order; `path` raises their errors."""
        for entry in entries:
            if not self.is_here(entry):
                self._asked(entry)

    def note_use(self, entries: Iterable[FileEntry]) -> None:
        """Notes that open files are being read."""
        for entry in entries:
            self.cache.find(self.key(entry))

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

    @contextlib.contextmanager
    def held(self, entry: FileEntry) -> Iterator[str]:
        """A path of the file that stays valid, whatever the cache deletes meanwhile."""
        key = self.key(entry)
        with contextlib.ExitStack() as stack:
            for _ in range(_MOST_DOWNLOADS):
                self._awaited_path(entry)
                with contextlib.suppress(FileNotFoundError):  # deleted again, to make room for another
                    path = stack.enter_context(self.cache.held(key))
                    break
            else:
                raise self._deleted(entry)
            yield str(path)

    def forget(self, entry: FileEntry) -> None:
        """Deletes the file from the cache."""
        self.cache.drop(self.key(entry))

    # -- ahead of time

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of time, on a thread, as far as the cache has space."""
        plan = self._plan = object()
        self._downloaded.clear()  # downloading a file again in another epoch is not wasteful
        if not all(map(self.is_here, entries)):
            # Threads would import these: a child forked meanwhile would be left with a half-imported module.
            for name in {entry.format for entry in entries} & set(FORMATS):
                format_named(name)
            order = self._weighed(entries, order)
            work = partial(self._follow, plan, entries, order, progress)
            thread = threading.Thread(target=work, name="torchyoga plan", daemon=True)
            _planning.add(thread)
            thread.start()

    def _weighed(self, entries: Sequence[FileEntry], order: Iterable[Ints]) -> Iterable[Ints]:
        """This order; warns if it reads from more files at once than the cache keeps."""
        limit, total = self.cache.limit, sum(entry.nbytes for entry in entries)
        if limit is None or total <= limit or self.name in _WARNED:
            return order
        left = iter(order)
        seen: list[Ints] = []
        wanted = min(_MOST_WEIGHED, _ROWS_WEIGHED * len(entries))
        while sum(len(numbers) for numbers in seen) < wanted and (numbers := next(left, None)) is not None:
            seen.append(numbers)
        if seen:
            # A file that is read both before and after some row is needed at that row.
            joined = np.concatenate(seen)
            before, after = np.array_split(joined[:wanted], 2)
            at_once = np.intersect1d(before, after).tolist()
            nbytes = sum(entries[number].nbytes for number in at_once)
            if nbytes > limit:
                self._warn_of_width(len(at_once), nbytes, total, limit)
        return itertools.chain(seen, left)

    def _warn_of_width(self, num_files: int, nbytes: int, total: int, limit: int) -> None:
        wide = 2 * nbytes > total
        advice = (
            f"set cache_bytes to the size of the dataset ({total} bytes) to download each file once, or "
            "shuffle='block' to do so about once an epoch"
            if wide
            else f"set cache_bytes to twice that ({2 * nbytes} bytes), or shuffle_window to fewer files"
        )
        self._warn(
            f"this order reads from {num_files} files of {nbytes / 1e6:.1f} MB at once, but the cache keeps "
            f"cache_bytes={limit}. Files deleted while they are read still take their space on the disk, "
            f"and files wanted again later are downloaded again; {advice}"
        )

    def _follow(
        self, plan: object, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress
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
                nbytes = entries[number].nbytes
                while ahead and sum(size for _, size in ahead) + nbytes > most:
                    reached = progress()
                    if reached is None or self._plan is not plan or _ending.is_set():
                        return
                    if ahead[0][0] > reached:
                        time.sleep(_POLL)
                    while ahead and ahead[0][0] <= reached:
                        ahead.popleft()
                if self._plan is not plan or _ending.is_set():
                    return
                ahead.append((first, nbytes))
                # Readers ask for the files they read now; those read before may have been deleted since.
                if first >= (progress() or 0) and not self.is_here(entries[number]):
                    self._asked(entries[number])
            row += len(numbers)
            if len(planned) == len(entries):
                return

    # -- threads

    def _asked(self, entry: FileEntry, first: bool = False) -> Future[None]:
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
        if self._threads < _AT_ONCE:
            try:
                threading.Thread(target=self._work, name="torchyoga download", daemon=True).start()
            except RuntimeError:  # the system allows no more
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._threads -= 1
                    return
                entry, future = self._wanted.popleft()
            error: BaseException | None = None
            try:
                self._fetch(entry)
            except BaseException as found:
                error = found
            with self._lock:
                self._under_way.pop(self.key(entry), None)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

    def _fetch(self, entry: FileEntry) -> None:
        key = self.key(entry)
        self._check_size(entry)  # before other files are deleted for it
        self.cache.get(key, entry.nbytes, partial(self._download, entry), self._where(entry))
        self._downloaded.add(key)

    def _download(self, entry: FileEntry, path: Path) -> None:
        """Writes the missing rest of a file, and checks the file."""
        name, key = f"{self._folder_of(entry)}/{entry.name}", self.key(entry)
        for _ in range(_TRIES):
            with self.cache.part(key) as file:
                crc = self._append(name, entry, file)
            problem = self._problem(entry, crc, path)
            if problem is None:
                self._checked.add(key)
                return
            _log.warning("%s arrived damaged; downloading it again", self.remote.where(name))
            self.cache.drop(key)
        raise CorruptError(
            f"{self.remote.where(name)} is damaged: {problem}; remove the version and publish it again"
        )

    def _problem(self, entry: FileEntry, crc: int, path: Path) -> str | None:
        if entry.crc is not None:
            return None if crc == entry.crc else f"its CRC-32 is {crc:08x}, the manifest says {entry.crc:08x}"
        # Uploaded by other tools: its blocks have checksums.
        group = next(group for group in self._groups if group.number == entry.group)
        found = Reader.of_file(str(path), group, entry.whole).verify_all()
        return found[0] if found else None

    def _check_size(self, entry: FileEntry) -> None:
        folder = self._folder_of(entry)
        name = f"{folder}/{entry.name}"
        listed = self._files_in_store(folder)
        if not listed and self.remote.is_s3:
            return  # it lists nothing; what it answers to the download says as much
        found = listed.get(entry.name) or self.remote.find_one(name)
        if found is None:
            self._raise_what_happened(entry)
        elif found.nbytes not in (None, entry.nbytes):
            raise self.remote.other_size(name, found, entry.nbytes)

    def _files_in_store(self, folder: str) -> dict[str, Found]:
        """The files in a folder of the store: one request for all rather than one for each."""
        with self._listing:
            found = self._listed.get(folder)
            if found is None:
                try:
                    found = self.remote.find(folder)
                except RemoteError:
                    found = {}  # permission to read does not include permission to list
                self._listed[folder] = found
            return found

    def _raise_what_happened(self, entry: FileEntry) -> None:
        now = Manifest.from_bytes(self.manifest()).located(partial(list_bytes, self))
        if entry.name in {file.name for file in (*now.lists, *now.files)}:
            whose = "its manifest" if entry.of is None else f"the manifest of {self.name}"
            raise CorruptError(
                f"{self._where(entry)} is missing though {whose} names it; remove the version and publish it "
                "again"
            )
        raise NotFoundError(f"{self.name} has been overwritten since this DataRef was made; fetch it again")

    def _append(self, name: str, entry: FileEntry, file: BinaryIO) -> int:
        """Writes the missing rest; returns the CRC-32 of the whole file."""
        part = _PartFile(file)
        if part.at > entry.nbytes:
            part.restart()
        try:
            if self.remote.streams and part.at < entry.nbytes:
                self.remote.stream(name, part, entry.nbytes)
            while part.at < entry.nbytes:
                bounds = [
                    (start, min(start + _RUN, entry.nbytes))
                    for start in range(part.at, min(part.at + _RUNS * _RUN, entry.nbytes), _RUN)
                ]
                runs = self.remote.read_ranges(name, bounds, entry.nbytes)
                if len(runs[0]) == entry.nbytes:  # the whole file, whatever was asked for
                    part.restart()
                for run in runs:
                    part.add(run)
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

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._file = file
        self.crc, self.at = crc32_of(file)

    def add(self, piece: bytes) -> None:
        """Appends bytes."""
        self._file.write(piece)
        self.crc, self.at = crc32(piece, self.crc), self.at + len(piece)

    def restart(self) -> None:
        """Begins anew."""
        self._file.truncate(0)
        self._file.seek(0)
        self.crc = self.at = 0


_WARNED: set[str] = set()  # names of versions
_planning: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = threading.Event()


@atexit.register
def _stop_planning() -> None:
    """Ends the threads: none may be inside NumPy when the interpreter exits."""
    _ending.set()
    for thread in tuple(_planning):
        thread.join(5)
