"""A growing file -> the disk, while it grows: so that little is left to write when it is synced."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_STRETCH = 8 * 2**20  # bytes
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_Ask = Callable[[int, int, int, int], int]  # with a descriptor, where to begin, how many bytes and what to do


def _found() -> _Ask | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call: _Ask = function
    return call


sync_range = _found()  # the system's call; None where there is none


class Writeback:
    """Asks the system now and then to begin writing a file; only Linux can be asked.

    Nothing is durable because of this: it saves time when the file is synced.
    """

    def __init__(self, path: str, stretch: int = _STRETCH, ask: _Ask | None = sync_range) -> None:
        """For the file at `path`, which is empty; `close` it. It asks after each `stretch` of bytes."""
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if ask else None
        self._asked = self._grown = 0
        self._stretch, self._ask = stretch, ask

    def grow(self, nbytes: int) -> None:
        """Takes note of about so many more bytes in the file."""
        self._grown += nbytes
        if self._handle is None or self._grown < self._stretch or self._ask is None:
            return
        end = os.fstat(self._handle).st_size
        self._ask(self._handle, self._asked, end - self._asked, _START_WRITING)
        self._asked, self._grown = end, 0

    def close(self) -> None:
        """Closes its descriptor of the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
