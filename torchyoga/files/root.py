"""Regular files: opened for reading, or written and deleted below a folder of ours, never through a link.

Note 6. Anyone who may write into a folder can put a link where something is about to be written or deleted.
So a name is reached from the root down, folder by folder, and none of them may be a link; a file is made only
where nothing exists, and only files are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, TypeVar

from ..errors import CorruptError, YogaError

# Without O_NONBLOCK, opening a FIFO waits for a writer.
_NAMES = ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK")
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in _NAMES)
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",  # where links are not followed
}


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading a file; the caller closes it.

    Raises:
        CorruptError: it is a FIFO, a directory or anything else that is not a file.
        FileNotFoundError: nothing is there.
        OSError: it cannot be opened.
    """
    try:
        handle = os.open(path, _FLAGS)
    except OSError:
        refuse_irregular(path)  # a socket cannot be opened, nor can a directory on Windows
        raise
    try:
        check_regular(path, os.fstat(handle).st_mode)
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """All bytes of a file; errors as `open_regular`, and CorruptError if it has more than `most` bytes."""
    with open(open_regular(path), "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise CorruptError(f"{path} is larger than any manifest; remove the version and build it again")
    return found


def refuse_irregular(path: str | os.PathLike[str]) -> None:
    """Raises CorruptError if the path is something other than a file; nothing is opened."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptError(f"{path} is a link to itself where a file should be; remove it") from error
        return
    check_regular(path, mode)


def check_regular(path: str | os.PathLike[str], mode: int) -> None:
    """Raises CorruptError unless `mode`, as `os.stat` or `os.lstat` gives it, is that of a file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise CorruptError(f"{path} is {kind} where a file should be; remove it")


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


T = TypeVar("T")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what the system says of a disk that is full
_TRIES = 20  # to make a folder that other processes delete while it is empty
# Windows has no handles of folders, and needs a permission to make links.
HAS_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Entry(NamedTuple):
    """An entry of a folder, links not followed."""

    name: str
    is_file: bool
    is_folder: bool
    nbytes: int
    written: float  # seconds since 1970

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> Entry:
        """The entry that the system describes so."""
        kind = status.st_mode
        return cls(name, stat.S_ISREG(kind), stat.S_ISDIR(kind), status.st_size, status.st_mtime)


@dataclass(frozen=True)
class Root:
    """A folder, below which names such as `a/1/manifest.json` are never written or deleted through a link.

    Links on the way to the folder itself are followed. Every method raises YogaError where a link or a file
    is in the place of a folder, and OSError as the system does.

    Attributes:
        top: the folder.
        shared: the group may write files and folders made here; otherwise only the user may. The user's umask
            says whether others may read.
        private: other users may not even read.
        within: names start from this folder below `top`.
    """

    top: Path
    shared: bool = False
    private: bool = False
    within: str = ""

    @property
    def path(self) -> Path:
        """The folder from which names start."""
        return self.top / self.within

    @property
    def file_mode(self) -> int:
        """The mode of new files, before the umask."""
        return (0o600 if self.private else 0o644) | (0o060 if self.shared else 0)

    def at(self, name: str) -> Root:
        """A root for names that start from a folder below this one."""
        return replace(self, within=_joined(self.within, name))

    # -- reading

    def scan(self, name: str = "") -> list[Entry]:
        """The entries of a folder, by name; empty if there is no such folder."""
        found = []
        try:
            with self._folder(name) as folder, os.scandir(folder.listed) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        found.append(Entry.of(entry.name, entry.stat(follow_symlinks=False)))
        except FileNotFoundError:
            return []
        return sorted(found)

    def find(self, name: str) -> Entry | None:
        """The entry of a name; None if there is none."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (folder, last):
            return Entry.of(last, folder.stat(last))
        return None

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: there is none.
            CorruptError: it is larger than `limit` bytes, or is not a file.
        """
        with self._parent(name) as (folder, last):
            path = self.path / name
            if not stat.S_ISLNK(mode := folder.stat(last).st_mode):
                check_regular(path, mode)
            # Without waiting: opening a FIFO that was put there since would never end.
            handle = self._opened(folder, last, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            check_regular(path, os.fstat(handle).st_mode)
            data = file.read(limit + 1)
        if len(data) > limit:
            raise CorruptError(f"{self.path / name} is larger than {limit} bytes; remove it")
        return data

    # -- writing

    def make(self, name: str = "") -> None:
        """Makes a folder and those above it, unless they exist."""
        with contextlib.suppress(OSError), self._folder(name):
            if HAS_HANDLES:  # else it was not looked at
                return
        for left in reversed(range(_TRIES)):
            try:
                self._make_top()
                with self._folder(name, make=True):
                    return
            except FileNotFoundError:
                if not left:
                    raise
            except OSError as error:
                raise self._explained(error) from error

    def in_folder(self, name: str, call: Callable[[str], T]) -> T:
        """The result of a call with a name, whose folder is made if it is missing."""
        for left in reversed(range(_TRIES)):
            try:
                return call(name)
            except FileNotFoundError:
                if not left:
                    raise
                self.make(name.rpartition("/")[0])
        raise AssertionError("the last try returns or raises")

    def create(self, name: str) -> BinaryIO:
        """A new file, opened for writing; FileExistsError if the name is taken."""
        with self._parent(name) as (folder, last):
            return open(self._opened(folder, last, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")

    def fill(self, name: str, data: bytes) -> None:
        """Writes a new file, which is on the disk when this returns; FileExistsError if the name is taken."""
        with self.naming_errors(name), self.create(name) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def recreate(self, name: str) -> BinaryIO:
        """A new file, opened for writing, in place of any file of that name."""
        self.unlink(name)
        return self.create(name)

    def reopen(self, name: str) -> BinaryIO:
        """A file, made if it does not exist, opened for reading and for writing at its end."""
        with self._parent(name) as (folder, last):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
            handle = self._opened(folder, last, flags)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(handle)
            if status.st_nlink > 1:
                raise YogaError(f"{self.path / name} is a file that has other names (hard links); remove it")
            self._refuse(self.path / name, "a file")
        return open(handle, "a+b")

    def touch(self, name: str) -> Path:
        """The path of a file, which is made if it does not exist."""
        try:
            with self.naming_errors(name, is_any=True):
                self.create(name).close()
        except FileExistsError:
            found = self.find(name)
            if found is not None and not found.is_file:
                self._refuse(self.path / name, "a file")
        return self.path / name

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Holds the kernel's lock of a file, which is made if it does not exist; `filelock` knows the same.

        Gives False, without it, if another process or thread holds it, or where there are no such locks.
        """
        if fcntl is None:
            yield False
            return
        with self._parent(name) as (folder, last):
            handle = self._opened(folder, last, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0))
        _locks.add(handle)
        try:
            yield _has_locked(handle)
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have it open, too
            _locks.discard(handle)
            os.close(handle)

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file in one step; when this returns, the new one is on the disk."""
        self.prepare(name, data)
        self.commit(name)

    def prepare(self, name: str, data: bytes) -> None:
        """Writes the replacement of a file next to it, so that `commit` needs no space."""
        self.unlink(beside(name))
        try:
            self.fill(beside(name), data)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(beside(name))
            raise

    def commit(self, name: str) -> None:
        """Moves the file that `prepare` has written into place."""
        self.move(beside(name), name)
        self.sync(name.rpartition("/")[0])

    def move(self, name: str, to: str) -> None:
        """Renames a file, in place of another one if there is one."""
        with self._parent(name) as (folder, last), self._parent(to) as (other, new):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(other.stat(new).st_mode):
                    self._refuse(self.path / to, "a file")
            if folder.handle is None:
                os.replace(folder.place(last), other.place(new))
            else:
                os.replace(last, new, src_dir_fd=folder.handle, dst_dir_fd=other.handle)

    def link(self, name: str, to: str) -> None:
        """Gives a file a second name; FileExistsError if the name exists."""
        with self._parent(name) as (folder, last), self._parent(to) as (other, new):
            if folder.handle is None:
                os.link(folder.place(last), other.place(new))
            else:
                handles = {"src_dir_fd": folder.handle, "dst_dir_fd": other.handle}
                os.link(last, new, **handles, follow_symlinks=False)

    def sync(self, name: str = "") -> None:
        """Returns when the names in a folder are on the disk."""
        if os.name != "nt":  # Windows cannot open folders
            with self._folder(name) as folder:
                if folder.handle is not None:
                    os.fsync(folder.handle)

    def sync_way(self) -> None:
        """Returns when the folders from `top` down to the one from which names start are on the disk."""
        parts = _parts(self.within)
        for depth in range(len(parts)):
            replace(self, within="/".join(parts[:depth])).sync()

    # -- deleting

    def unlink(self, name: str) -> bool:
        """Deletes a file; False if there is none, or it is not a file."""
        try:
            with self._parent(name) as (folder, last):
                if not stat.S_ISREG(folder.stat(last).st_mode):
                    return False
                folder.call(os.unlink, last)
        except FileNotFoundError:
            return False
        return True

    def rmdir(self, name: str) -> bool:
        """Deletes an empty folder; False if there is none, or it is not empty."""
        try:
            with self._parent(name) as (folder, last):
                folder.call(os.rmdir, last)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                return False
            raise
        return True

    def remove_empty(self) -> None:
        """Deletes the folder from which names start and those above it, below `top`, as far as they are
        empty."""
        whole, name = replace(self, within=""), self.within
        while name and whole.rmdir(name):
            name = name.rpartition("/")[0]

    # -- the way down

    @contextlib.contextmanager
    def _parent(self, name: str) -> Iterator[tuple[_Folder, str]]:
        parts = _parts(name)
        with self._folder("/".join(parts[:-1])) as folder, self.naming_errors(name):
            yield folder, parts[-1]

    @contextlib.contextmanager
    def naming_errors(self, name: str, is_any: bool = False) -> Iterator[None]:
        """Errors say the whole path of a name, which is looked up in an open folder; some, or any, also what
        to do."""
        try:
            yield
        except OSError as error:
            is_bare = error.errno is not None and error.strerror == os.strerror(error.errno)
            if is_bare and (is_any or error.errno in _UNWRITABLE):
                raise self._explained(error) from error
            if error.filename == name.rpartition("/")[2]:
                error.filename = str(self.path / name)
            raise

    @contextlib.contextmanager
    def _folder(self, name: str, make: bool = False) -> Iterator[_Folder]:
        """A folder below the root; no folder on the way may be a link."""
        at = _Folder(str(self.top), _open_folder(self.top, None) if HAS_HANDLES else None)
        try:
            for part in _parts(_joined(self.within, name)) if self.within or name else ():
                if make:
                    self._make_one(at, part)
                above, at = at, self._deeper(at, part)
                above.close()
            yield at
        finally:
            at.close()

    def _deeper(self, at: _Folder, part: str) -> _Folder:
        path = f"{at.path}{os.sep}{part}"
        if at.handle is None:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                self._refuse(Path(path), "a folder")
            return _Folder(path, None)
        try:
            return _Folder(path, _open_folder(part, at.handle))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                self._refuse(Path(path), "a folder")
            error.filename = path
            raise

    def _make_one(self, at: _Folder, part: str) -> None:
        try:
            at.call(os.mkdir, part, mode=0o700 if self.private and not self.shared else 0o755)
        except FileExistsError:
            return
        if self.shared:
            made = self._deeper(at, part)
            try:
                self._share(made.path if made.handle is None else made.handle, 0o2070)
            finally:
                made.close()

    def _make_top(self) -> None:
        missing = [path for path in (self.top, *self.top.parents) if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700 if self.private and not self.shared else 0o755)
                if self.shared and path == self.top:
                    self._share(path, 0o2070)
                sync_folder(path.parent)

    def _share(self, place: str | int | Path, bits: int) -> None:
        """Gives the group its permissions, and takes those of other users away if the root is private."""
        mode = stat.S_IMODE(os.stat(place).st_mode) | bits
        with contextlib.suppress(PermissionError):  # another user has made it in the meantime
            os.chmod(place, mode & ~0o007 if self.private else mode)

    def _opened(self, folder: _Folder, name: str, flags: int) -> int:
        mode = 0o600 if self.private and not self.shared else 0o644
        try:
            handle = folder.call(os.open, name, flags | _NO_LINK, mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                self._refuse(Path(folder.path, name), "a file")
            error.filename = os.path.join(folder.path, name)
            raise
        if self.shared and flags & os.O_CREAT and os.name != "nt":
            self._share(handle, 0o060)
        return handle

    def _refuse(self, path: Path, wanted: str) -> NoReturn:
        with contextlib.suppress(OSError):
            target = os.readlink(path)
            raise YogaError(
                f"{path} is a link to {target}; torchyoga writes and deletes nothing through links below "
                f"{self.top}. Go to where it leads, or put {wanted} in its place"
            )
        raise YogaError(f"{path} is not {wanted}, and torchyoga has not made it; move it away")

    def _explained(self, error: OSError) -> OSError:
        mend = f"free some space on {self.top}, make it writable, or choose another directory"
        files = [path for path in (self.path, *self.path.parents) if path.is_file()]
        if files:
            mend = f"{files[0]} is a file: move it away, or choose another directory"
        return type(error)(
            error.errno, f"cannot write to the storage ({error.strerror}); {mend}", str(self.path)
        )


_locks: set[int] = set()  # descriptors


def _has_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    status = os.fstat(handle)
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1  # not one that was deleted meanwhile


def _leave_locks() -> None:
    """Leaves the locks to the parent, which may die before this child."""
    while _locks:
        os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@dataclass(frozen=True)
class _Folder:
    """A folder, held open if the system allows that: names are then looked up in it, even if it has moved."""

    path: str
    handle: int | None

    @property
    def listed(self) -> str | int:
        return self.path if self.handle is None else self.handle

    def place(self, name: str) -> str:
        return os.path.join(self.path, name)

    def call(self, function: Callable[..., T], name: str, *args: object, **kwargs: object) -> T:
        """Calls a function of `os` with a name in this folder."""
        if self.handle is None:
            return function(self.place(name), *args, **kwargs)
        return function(name, *args, dir_fd=self.handle, **kwargs)

    def stat(self, name: str) -> os.stat_result:
        return self.call(os.stat, name, follow_symlinks=False)

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)


def beside(name: str) -> str:
    """The name under which the replacement of a file is written first."""
    return f"{name}.new"


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on the disk, if we have the permission to ensure that."""
    if os.name != "nt":
        with contextlib.suppress(PermissionError):  # a folder may be writable without being readable
            handle = _open_folder(path, None)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _open_folder(name: str | Path, handle: int | None) -> int:
    return os.open(name, _FOLDER | (_NO_LINK if handle is not None else 0), dir_fd=handle)


def _joined(*names: str) -> str:
    return "/".join(name for name in names if name)


def _parts(name: str) -> list[str]:
    """The parts of a name; ValueError if one of them leads up or out of the folder."""
    parts = name.split("/")
    for part in parts:
        if part in ("", ".", "..") or os.sep in part or "\0" in part or (os.altsep or "/") in part:
            raise ValueError(f"{name!r} is not the name of a file below a folder")
    return parts
