"""A path into an open file, or into an error that says what is there instead."""

from __future__ import annotations

import errno
import os
import stat

from ..errors import CorruptError

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
