"""A folder of this machine that keeps files of stores, and indices of files, for all its processes.

<folder>/files/<key>         whole, checked, never changed; its mtime is when it was last opened
<folder>/parts/<key>         being downloaded; kept if the download is interrupted
<folder>/locks/<key>.lock    held by the process that downloads it; the kernel frees it when that dies
<folder>/checking/<name>/    a cache for one check
<folder>/building/           versions being built for a store

The cache does not count the readers of a file.
To make room, the cache deletes the files that were opened longest ago; processes that have one mapped go on
reading it, and release it when they next open a file. So processes that die leave nothing behind.

An index is a few arrays of numbers and a little JSON, kept under the place of its file, so that the index of
a file that was written again replaces the older one. It is read only if it is whole, and of the file as it is
now; else, or if the cache cannot be read, it is made again, without a message.

A kept index is the magic, a uint32 of the bytes of its head, the head in JSON, the arrays one after the
other, each of them from a multiple of 8 bytes on, and the CRC-32 of all before it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import filelock

from ..errors import BusyError, YogaError
from ..files.checksum import crc32
from ..files.root import FULL, Entry, Root, check_regular, open_regular
from ..process.digests import hexdigest
from ..process.lazy import cached_property, np
from ..process.messages import log
from ..rows.types import Array, Json
from ..versions.names import CACHED
from .address import is_url
from .kinds import ObjectInfo

_NOTICE_SECONDS = 5.0  # how long to wait for another process in silence
_LONGEST_STANDSTILL = 600.0  # seconds without a byte, after which waiting for another process ends
_ROOM_SECONDS = 600.0  # to wait for other processes that make room
_FORGOTTEN_SECONDS = 86400.0  # after which a download that no process continued is deleted
_LOOK_SECONDS = 3600.0  # between looks for such
_INDEX = ".index"  # of files of another library: a hundredth of their size, made by reading all of them
_INDEX_WORTH = 7 * 86400.0  # seconds, by which an index counts as used later than it was
_INDEX_SECONDS = 90 * 86400.0  # without use, after which it is deleted
_CHECK = "torchyoga-"  # begins the names of their folders
_CHECK_SECONDS = 7 * 86400.0  # after which a check has ended, or was killed
_looked: dict[str, float] = {}  # when this process last looked through each cache
# A download of 64 MiB hides the delay of a store. 32 files are two windows of a block shuffle, of eight files
# each by default, what is downloaded ahead, a quarter of the bound, and as much again.
_FILE_BYTES, _FILES_HELD = 2**26, 32
# Files with any other name are not ours, because the user may choose any folder as the cache. The second part
# belongs to the second name that a file has while it is held.
_SUFFIX = f"({'|'.join(CACHED)})"
_KEY = re.compile(rf"[0-9a-f]{{32}}(-[0-9a-f]{{8}})?\.{_SUFFIX}")


def default_folder() -> Path:
    """The folder where this system keeps the user's caches."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "torchyoga"


@dataclass(frozen=True)
class Cache:
    """The folder. All methods may be called by any number of threads and processes.

    A file that is deleted to make room stays readable for processes that have it mapped. Nothing is written
    or deleted through links, and a link is never taken for a file.

    Attributes:
        folder: where it is; made when something is first kept.
        limit: bytes to keep, or None for as many as the disk holds; files that are being downloaded, or that
            are needed at the same time, come on top.
        shared: the group may read and write it; otherwise only the user may do either.
    """

    folder: Path
    limit: int | None = None
    shared: bool = False

    @property
    def file_bytes(self) -> int:
        """Bytes of a file that suits it, as it keeps whole files."""
        return _FILE_BYTES if self.limit is None else max(1, min(_FILE_BYTES, self.limit // _FILES_HELD))

    @property
    def root(self) -> Root:
        """Where everything is written and deleted."""
        return Root(self.folder, self.shared, private=True)

    def path(self, kind: str, key: str) -> Path:
        """Where a file lies, or would lie, in one of the folders."""
        return Path(self._place(kind, key))

    def _place(self, kind: str, key: str) -> str:
        # As text, because this is called for every file again and again.
        return f"{self._base}{os.sep}{kind}{os.sep}{key}"

    @cached_property
    def _base(self) -> str:
        return str(self.root.path)

    def find(self, key: str) -> Path | None:
        """The file, which counts as used now; None if it is missing, CorruptError if it is not a file."""
        if not self.has(key):
            return None
        path = self._place("files", key)
        try:
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)
        except FileNotFoundError:
            return None
        except OSError:
            pass  # we may only read it, which is enough
        return Path(path)

    def has(self, key: str) -> bool:
        """True if the file is in the cache; CorruptError if something else has its name."""
        return self._is_there("files", key)

    def _is_there(self, kind: str, key: str) -> bool:
        path = self._place(kind, key)
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._advised(error) from error
        check_regular(path, mode)
        return True

    def fill(self, key: str, nbytes: int, download: Callable[[Path], None], what: str) -> None:
        """Downloads a file, unless it is here; other callers that need it wait meanwhile.

        It may have been deleted again when this returns, to make room for others.

        Args:
            key: its name here.
            nbytes: its size.
            download: writes the file at a path, or continues it, and checks it.
            what: the file, for messages.

        Raises:
            OSError: the disk is full, and nothing is left in the cache that could be deleted; or the folder
                cannot be written.
            YogaError: there are links in the folder.
            BusyError: another process is downloading it, and nothing has arrived for ten minutes.
        """
        self._is_there("parts", key)
        if self.has(key):
            return
        with self._lock(key, what) as is_held:
            if not is_held:
                return
            try:
                if not self.has(key):
                    self._download(key, nbytes, download, what)
                    self._keep(key, f"parts/{key}")
            except FileNotFoundError:  # the store's, unless somebody has emptied the folder
                if self.root.find(f"parts/{key}") is not None:
                    raise
            finally:  # a process that waits for the lock sees that it is gone, and makes another
                self._delete(f"locks/{key}.lock")

    def _download(self, key: str, nbytes: int, download: Callable[[Path], None], what: str) -> None:
        self.make("parts")
        self.delete_forgotten()
        self.make_room(nbytes)
        tries: int | None = None  # each but the last deletes one; files are counted when the disk is full
        while True:
            try:
                download(self.path("parts", key))
                return
            except OSError as error:
                if error.errno not in FULL:
                    raise
                tries = len(self._files("files")) if tries is None else tries - 1
                if error.errno == errno.EFBIG or tries <= 0 or not self._delete_oldest():
                    full = error
                    break
        self._delete(f"parts/{key}")  # it would only keep the disk full
        raise OSError(
            full.errno,
            f"no space left for {what} ({nbytes / 1e6:.0f} MB); make room there, or choose another cache_dir",
            str(self.folder),
        ) from full

    def delete_forgotten(self) -> None:
        """Deletes downloads that no process has continued for a day, and indices that were not used for 90
        days, as nothing else bounds those of files of this machine; looks for them once an hour."""
        now = time.time()
        if abs(now - _looked.get(self._base, 0.0)) < _LOOK_SECONDS:
            return
        _looked[self._base] = now
        for entry in self._files("parts", before=now - _FORGOTTEN_SECONDS):
            self._delete(f"parts/{entry.name}")
        for entry in self._files("files", before=now - _INDEX_SECONDS):
            if entry.name.endswith(_INDEX):
                self._delete(f"files/{entry.name}")

    def part(self, key: str) -> BinaryIO:
        """The downloaded part of a file, opened for reading and for writing at its end."""
        with self._advising():
            return self.root.reopen(f"parts/{key}")

    def drop(self, key: str) -> None:
        """Deletes a file, and its downloaded part."""
        self._delete(f"files/{key}")
        self._delete(f"parts/{key}")

    @contextlib.contextmanager
    def held(self, key: str) -> Iterator[Path]:
        """A second name of a file, which stays if the file is deleted; FileNotFoundError if it is gone."""
        stem, _, suffix = key.partition(".")
        name = f"{stem}-{secrets.token_hex(4)}.{suffix}"
        self.make("parts")
        self.find(key)  # used now, so that its second name is not taken for a forgotten download
        with self._advising():
            self.root.link(f"files/{key}", f"parts/{name}")
        try:
            yield self.path("parts", name)
        finally:
            self._delete(f"parts/{name}")

    def adopt(self, key: str, name: str) -> None:
        """Moves a finished file into the cache, if it fits; `name` is its name in the folder."""
        found = self.root.find(name)
        if found is None or (self.limit is not None and found.nbytes > self.limit):
            return
        self.make_room(found.nbytes)
        self._keep(key, name)

    def _keep(self, key: str, name: str) -> None:
        with self._advising():
            os.utime(f"{self._base}{os.sep}{name}")
            self.root.in_folder(f"files/{key}", partial(self.root.move, name))
        self.make_room(0, spared=key)  # other files may have arrived in the meantime

    def make_room(self, nbytes: int, spared: str | None = None) -> None:
        """Deletes the files that were not used for the longest time, except one, until `nbytes` more bytes
        fit."""
        if self.limit is None:
            return
        with self._alone_making_room():
            files = self._files("files")
            total = sum(entry.nbytes for entry in files)
            for entry in files:
                if total + nbytes <= self.limit:
                    return
                if entry.name != spared and self._delete(f"files/{entry.name}"):
                    total -= entry.nbytes

    def _delete_oldest(self) -> bool:
        """False if there is nothing to delete."""
        return any(self._delete(f"files/{entry.name}") for entry in self._files("files"))

    def _delete(self, name: str) -> bool:
        """False if it cannot be deleted, such as a file open on Windows, or one behind a link."""
        try:
            return self.root.unlink(name)
        except (OSError, YogaError):
            return False

    def _files(self, kind: str, before: float = math.inf) -> list[Entry]:
        """The files in the cache, those to delete first at the front: the oldest, indices a week later."""
        found = (entry for entry in self.root.scan(kind) if entry.is_file and _KEY.fullmatch(entry.name))
        return sorted(
            (entry for entry in found if entry.written < before),
            key=lambda entry: (
                entry.written + _INDEX_WORTH * entry.name.endswith(_INDEX),
                entry.nbytes,
                entry.name,
            ),
        )

    # -- for checks

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Cache]:
        """An empty cache of its own for a check, deleted at the end; or by a check a week later, if this
        process dies."""
        self.make("checking")
        before = time.time() - _CHECK_SECONDS
        for left in self.root.scan("checking"):
            if left.name.startswith(_CHECK) and left.is_folder and left.written < before:
                shutil.rmtree(self.path("checking", left.name), ignore_errors=True)
        place = str(self.path("checking", ""))
        # A reader may still have a file open when the check ends.
        with tempfile.TemporaryDirectory(prefix=_CHECK, dir=place, ignore_cleanup_errors=True) as folder:
            yield Cache(Path(folder), 0)

    # -- folders and locks

    def make(self, name: str) -> None:
        """Makes a folder in it; OSError says what to do if that is not allowed."""
        with self._advising():
            self.root.make(name)

    @contextlib.contextmanager
    def _advising(self) -> Iterator[None]:
        """Adds what to do where the system refuses."""
        try:
            yield
        except (YogaError, TimeoutError, FileNotFoundError):
            raise
        except OSError as error:
            raise self._advised(error) from error

    def _advised(self, error: OSError) -> OSError:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return type(error)(
            error.errno, f"cannot keep files here ({reason}); pass another cache_dir", str(self.folder)
        )

    @contextlib.contextmanager
    def _lock(self, key: str, what: str) -> Iterator[bool]:
        """Holds the lock of a key; gives False, without it, once another process has downloaded the file."""
        with contextlib.ExitStack() as stack:
            name = f"locks/{key}.lock"
            with self._advising():
                is_held = self.root.in_folder(name, lambda name: stack.enter_context(self.root.locked(name)))
            if is_held:
                yield True
                return
        lock = self._filelock(key)
        started = moved = time.monotonic()
        notice, size = _NOTICE_SECONDS, -1
        while True:
            try:
                self._acquire(lock, 0.5)
                break
            except filelock.Timeout:
                now = time.monotonic()
                if self.has(key):
                    yield False
                    return
                part = self.root.find(f"parts/{key}")
                found = -1 if part is None else part.nbytes
                if found != size:
                    size, moved = found, now
                if now - moved > _LONGEST_STANDSTILL:
                    raise BusyError(
                        f"another process is downloading {what}, but nothing has arrived for "
                        f"{now - moved:.0f} s; stop it (it holds {lock.lock_file})"
                    ) from None
                if now - started > notice:
                    log.warning("waiting for another process that downloads %s (%.0f s)", what, now - started)
                    notice *= 2
        try:
            yield True
        finally:
            lock.release()

    @contextlib.contextmanager
    def _alone_making_room(self) -> Iterator[None]:
        """Holds the lock for making room; BusyError if another process holds it for too long."""
        lock = self._filelock("room")
        try:
            self._acquire(lock, _ROOM_SECONDS)
        except filelock.Timeout:
            raise BusyError(f"{lock.lock_file} is held by another process; stop that process") from None
        try:
            yield
        finally:
            lock.release()

    def _acquire(self, lock: filelock.BaseFileLock, seconds: float) -> None:
        with self._advising():
            lock.acquire(timeout=seconds, poll_interval=0.02)

    def _filelock(self, name: str) -> filelock.BaseFileLock:
        with self._advising():
            path = self.root.in_folder(f"locks/{name}.lock", self.root.touch)
            return filelock.FileLock(path, thread_local=False)


_MAGIC = b"yogaidx1"
_MOST_HEAD = 2**26  # bytes
_NUMBERS = re.compile(r"[<|][iuf][1248]")
_MOST = 16  # bytes of an index for each of its file: none is larger, so what claims to be is damaged
_ALIGNED = 8


@dataclass(frozen=True)
class FileIndex:
    """An index of a file.

    Attributes:
        arrays: numbers, by name: signed, unsigned or floats, of any shape; read only if they were kept.
        info: whatever else it says, as JSON has it.
    """

    arrays: Mapping[str, Array]
    info: Json = field(default_factory=dict)


@dataclass(frozen=True)
class IndexOf:
    """Which file an index is of.

    Attributes:
        where: its path or URL.
        nbytes: its size.
        tag: what tells it from later contents of its name and size; None if nothing does, and then no index
            of it is kept.
        kind: the kind of index and its version, such as "tfrecord 1": another one is another index.
    """

    where: str
    nbytes: int
    tag: str | None
    kind: str

    @staticmethod
    def file(path: str | os.PathLike[str], kind: str) -> IndexOf:
        """Of a file of this machine as it is now; OSError if there is none."""
        about = os.stat(path)
        # The second time also changes where a copy has got the first one of its original.
        return IndexOf(os.path.abspath(path), about.st_size, f"{about.st_mtime_ns} {about.st_ctime_ns}", kind)

    @staticmethod
    def remote(url: str, about: ObjectInfo, nbytes: int, kind: str) -> IndexOf:
        """Of an object of a store, as the store describes it."""
        return IndexOf(url, nbytes, about.state, kind)

    @property
    def key(self) -> str:
        """The name of the index in a cache."""
        return f"{hexdigest(self.kind, chr(0), os.fsencode(self.where))}.index"


def cache_of(cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None) -> Cache:
    """The cache of these arguments, by default that of the user; nothing is made there."""
    folder = default_folder() if cache_dir is None else Path(cache_dir).expanduser().absolute()
    return Cache(folder, cache_bytes)


def kept_index(
    of: IndexOf,
    make: Callable[[], FileIndex],
    cache: Cache,
    check: Callable[[FileIndex], object] = lambda _: None,
) -> FileIndex:
    """The index of a file: as it is kept in a cache, or made now and kept there.

    Any number of processes may ask for it: each of those that find none makes it. One that is damaged, of
    another kind or of the file as it was before is made again; a cache that cannot be read or written is no
    error. If the file changes while the index is made, that is not kept.

    Args:
        of: the file, as it was found: `IndexOf.file(path, kind)`, `IndexOf.remote(url, about, nbytes, kind)`.
        make: reads the file; its errors are passed on, and nothing is kept then.
        cache: `cache_of(cache_dir, cache_bytes)`, or that of `ShardDownloads`. An index counts
            among its files.
        check: raises a ValueError, TypeError or KeyError for an index that `make` cannot have made.

    Example:
        >>> _ = (tmp_path / "x.txt").write_text("one\\ntwo")
        >>> of = IndexOf.file(tmp_path / "x.txt", "ends of lines 1")
        >>> made = lambda: FileIndex({"ends": np.array([3, 7])}, {"lines": 2})
        >>> for _ in range(2):  # the second one is read
        ...     index = kept_index(of, made, cache_of(tmp_path / "cache", None))
        >>> index.arrays["ends"].tolist(), index.info
        ([3, 7], {'lines': 2})
    """
    if of.tag is None:
        return make()
    with contextlib.suppress(
        OSError, YogaError, ValueError, TypeError, KeyError, OverflowError, RecursionError
    ):
        path = cache.find(of.key)
        if path is not None:
            with open(open_regular(path), "rb") as file:
                kept = _read(file, of)
            check(kept)
            return kept
    made = make()
    check(made)
    with contextlib.suppress(OSError, YogaError):
        if is_url(of.where) or of == IndexOf.file(of.where, of.kind):  # else it has changed since
            _keep(of, made, cache)
    return made


def _read(file: BinaryIO, of: IndexOf) -> FileIndex:
    """The index in a file; ValueError, TypeError or KeyError if it is damaged, or not of this."""
    nbytes = os.fstat(file.fileno()).st_size
    if not len(_MAGIC) + 8 <= nbytes <= _MOST_HEAD + _MOST * of.nbytes:
        raise ValueError("an index of another size")
    data = memoryview(file.read(nbytes))
    (crc,) = struct.unpack("<I", data[-4:])
    if data[: len(_MAGIC)] != _MAGIC or len(data) != nbytes or crc32(data[:-4]) != crc:
        raise ValueError("a damaged index")
    (length,) = struct.unpack_from("<I", data, len(_MAGIC))
    at = len(_MAGIC) + 4 + length
    head = json.loads(bytes(data[at - length : at]))
    if head["of"] != asdict(of):
        raise ValueError("an index of another file")
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if not _NUMBERS.fullmatch(dtype):
            raise ValueError(f"numbers of {dtype!r:.20}")
        count = int(np.prod([1, *shape], dtype=object))
        if count < 0:
            raise ValueError(f"an array of {count} numbers")
        arrays[name] = np.frombuffer(data[:-4], dtype, count, at).reshape(shape)
        at += arrays[name].nbytes + -arrays[name].nbytes % _ALIGNED
    return FileIndex(arrays, dict(head["info"]))


def _keep(of: IndexOf, index: FileIndex, cache: Cache) -> None:
    arrays = {name: np.asarray(array, order="C") for name, array in index.arrays.items()}
    shapes = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    if not all(_NUMBERS.fullmatch(array.dtype.str) for array in arrays.values()):
        raise TypeError(f"an index of arrays of numbers can be kept, not of {shapes!r:.200}")
    head = json.dumps({"of": asdict(of), "arrays": shapes, "info": index.info}).encode()
    head += b" " * (-(len(_MAGIC) + 4 + len(head)) % _ALIGNED)
    pieces: list[bytes | memoryview] = [_MAGIC + struct.pack("<I", len(head)) + head]
    for array in arrays.values():
        pieces += [array.reshape(-1).view("u1").data, bytes(-array.nbytes % _ALIGNED)]
    if len(head) > _MOST_HEAD or sum(map(len, pieces)) > _MOST_HEAD + _MOST * of.nbytes:
        return
    crc = 0
    name = f"parts/{of.key.partition('.')[0]}-{secrets.token_hex(4)}.index"
    try:
        with cache.root.in_folder(name, cache.root.create) as file:
            for piece in pieces:
                file.write(piece)
                crc = crc32(piece, crc)
            file.write(struct.pack("<I", crc))
        cache.adopt(of.key, name)
        cache.delete_forgotten()
    finally:
        cache.root.unlink(name)
