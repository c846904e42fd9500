"""A folder of this machine that keeps files of stores: shared by all its processes, bounded in bytes.

<folder>/files/<key>         whole, checked, never changed; its mtime is when it was last opened
<folder>/parts/<key>         on its way; what is there already is kept if the download is interrupted
<folder>/locks/<key>.lock    held by whoever downloads it; the kernel frees it when that process dies
<folder>/building/           versions being built for a store
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from .errors import RemoteError
from .regular import refuse_irregular

__all__ = ["Cache", "default_folder"]

_log = logging.getLogger("torchyoga")
_NOTICE_SECONDS = 5.0  # how long to wait for another process in silence
_LONGEST_STANDSTILL = 600.0  # seconds without a byte, after which waiting for another process ends
_ROOM_SECONDS = 600.0  # to wait for others that make room
_FORGOTTEN_SECONDS = 86400.0  # after which a download that nobody went on with is deleted


def default_folder() -> Path:
    """Where the user's caches are kept on this system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(base or "~/.cache").expanduser() / "torchyoga"


@dataclass(frozen=True)
class Cache:
    """The folder. All methods may be called by any number of threads and processes.

    What is deleted to make room stays readable for whoever has it mapped.

    Attributes:
        folder: where it is; made when something is first kept.
        limit: bytes to keep, or None for as many as the disk holds; the files that are on their way, or that
            are wanted at once, come on top.
    """

    folder: Path
    limit: int | None = None

    def find(self, key: str) -> Path | None:
        """The file, which counts as used now; None if it is not there, CorruptError if it is no file."""
        path = self.folder / "files" / key
        refuse_irregular(path)
        try:
            os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return path if path.exists() else None  # it may only be read, which is enough
        return path

    def has(self, key: str) -> bool:
        """True if the file is there."""
        return (self.folder / "files" / key).exists()

    def get(self, key: str, nbytes: int, download: Callable[[Path], None], what: str) -> Path:
        """The file; if it is not there, `download` writes it, while others that want it wait.

        Args:
            key: its name here.
            nbytes: its size.
            download: writes, or goes on writing, the file at a path, and checks it.
            what: the file, for messages.

        Raises:
            OSError: the disk is full, and nothing is left here that could be deleted.
            RemoteError: another process downloads it, and nothing has come for ten minutes.
        """
        part = self.folder / "parts" / key
        refuse_irregular(part)
        while (found := self.find(key)) is None:
            with self._lock(key, part, what) as is_held:
                if is_held and not self.has(key):
                    self._download(nbytes, download, part, what)
                    return self._keep(key, part)
        return found

    def _download(self, nbytes: int, download: Callable[[Path], None], part: Path, what: str) -> None:
        self._make(part.parent)
        self.make_room(nbytes)
        while True:
            try:
                download(part)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                if error.errno == errno.EFBIG or not self._delete_oldest():
                    raise OSError(
                        error.errno,
                        f"no space left for {what} ({nbytes / 1e6:.0f} MB); make room there, or choose "
                        "another cache_dir",
                        str(self.folder),
                    ) from error

    def adopt(self, key: str, path: Path) -> None:
        """Moves a finished file in, if it fits."""
        nbytes = path.stat().st_size
        if self.limit is not None and nbytes > self.limit:
            return
        self.make_room(nbytes)
        self._keep(key, path)

    def _keep(self, key: str, path: Path) -> Path:
        kept = self.folder / "files" / key
        self._make(kept.parent)
        os.utime(path)
        os.replace(path, kept)
        self.make_room(0, spared=kept)  # others may have come in the meantime
        return kept

    def make_room(self, nbytes: int, spared: Path | None = None) -> None:
        """Deletes what was not used for longest, but for one file, until so many more bytes fit."""
        for _, _, path in self._files("parts", before=time.time() - _FORGOTTEN_SECONDS):
            _delete(path)
        if self.limit is None:
            return
        with self._only_one("room"):
            files = self._files("files")
            total = sum(size for _, size, _ in files)
            for _, size, path in files:
                if total + nbytes <= self.limit:
                    return
                if path != spared and _delete(path):
                    total -= size

    def _delete_oldest(self) -> bool:
        """False if there is nothing to delete."""
        return any(_delete(path) for _, _, path in self._files("files"))

    def _files(self, kind: str, before: float = math.inf) -> list[tuple[int, int, Path]]:
        """What is kept: when it was last used, in nanoseconds, its size, its path; the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder / kind) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if status.st_mtime < before:
                        found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        return sorted(found)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"cannot keep files here ({error.strerror}); pass another cache_dir",
                str(self.folder),
            ) from error

    @contextlib.contextmanager
    def _lock(self, key: str, part: Path, what: str) -> Iterator[bool]:
        """Holds the lock of a key; gives False, without it, once somebody else has brought the file."""
        lock = self._filelock(key)
        started = moved = time.monotonic()
        notice, size = _NOTICE_SECONDS, -1
        while True:
            try:
                lock.acquire(timeout=0.5, poll_interval=0.02)
                break
            except filelock.Timeout:
                now = time.monotonic()
                if self.has(key):
                    yield False
                    return
                found = _size(part)
                if found != size:
                    size, moved = found, now
                if now - moved > _LONGEST_STANDSTILL:
                    raise RemoteError(
                        f"another process downloads {what}, but nothing has come for {now - moved:.0f} s; "
                        f"stop it (it holds {lock.lock_file})"
                    ) from None
                if now - started > notice:
                    _log.warning(
                        "waiting for another process, which downloads %s (%.0f s)", what, now - started
                    )
                    notice *= 2
        try:
            yield True
        finally:
            lock.release()

    @contextlib.contextmanager
    def _only_one(self, name: str) -> Iterator[None]:
        lock = self._filelock(name)
        try:
            lock.acquire(timeout=_ROOM_SECONDS, poll_interval=0.02)
        except filelock.Timeout:
            raise RemoteError(f"{lock.lock_file} is held by another process; stop that one") from None
        try:
            yield
        finally:
            lock.release()

    def _filelock(self, name: str) -> filelock.BaseFileLock:
        path = self.folder / "locks" / f"{name}.lock"
        self._make(path.parent)
        return filelock.FileLock(path, thread_local=False)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _delete(path: Path) -> bool:
    """False if it cannot be deleted, as what is open on Windows."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError:
        return False
    return True
