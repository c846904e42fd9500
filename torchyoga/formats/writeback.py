"""A growing file -> the disk, while it grows: so that little is left to write when it is synced."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

__all__ = ["Writeback"]

_STRETCH = 8 * 2**20  # bytes
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE


class Writeback:
    """Asks the system now and then to begin writing a file; only Linux can be asked.

    Nothing is durable because of this: it saves time when the file is synced.
    """

    def __init__(self, path: str) -> None:
        """For the file at `path`, which is empty; `close` it."""
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if _sync_range else None
        self._asked = self._grown = 0

    def grow(self, nbytes: int) -> None:
        """Takes note of about so many more bytes in the file."""
        self._grown += nbytes
        if self._handle is None or self._grown < _STRETCH or _sync_range is None:
            return
        end = os.fstat(self._handle).st_size
        _sync_range(self._handle, self._asked, end - self._asked, _START_WRITING)
        self._asked, self._grown = end, 0

    def close(self) -> None:
        """Closes its descriptor of the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _found() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_range = _found()
