"""Which blocks of files have been compared with their checksums, by any of several processes.

Note 5. What one process has checked, its workers need not check again.
The memory of the marks is shared with forked children, and passed to processes that are being spawned. A mark
is one byte, written after the comparison and never taken back, so nothing is locked and nothing gets lost;
one that is seen late only means another comparison.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from ...rows.data import bounds_of

CELL = 2**16  # bytes of a file to a mark: blocks of that size or more do not begin in the same cell
_MOST_BYTES = 2**44  # of files that are marked, in 256 MiB
_NAME_BYTES = 8  # before the marks of each file: which file they are about


class Marks:
    """A mark for each 64 KiB of some files, at first unset.

    Pickled for a process that is being started, they are the same memory there, where the system can do that;
    else they begin anew.

    Attributes:
        nbytes: (files,) size of each file.

    Example:
        >>> marks = Marks([2**20, 2**16])
        >>> first = marks.first_cell(1, ("a file",))
        >>> marks.cells[first] = 1
    """

    def __init__(self, nbytes: Sequence[int]) -> None:
        self.nbytes = tuple(nbytes)
        self._are_kept = sum(nbytes) <= _MOST_BYTES
        sizes = -(-np.array(nbytes if self._are_kept else (), np.int64) // CELL)
        spans = _NAME_BYTES + -(-sizes // _NAME_BYTES) * _NAME_BYTES
        self._starts = bounds_of(spans)[:-1]
        self._size = max(1, int(spans.sum()))
        self._descriptor = -1  # of the memory, once a process is started that shares it
        self._map(-1)

    def _map(self, descriptor: int) -> None:
        self.cells = np.frombuffer(mmap.mmap(descriptor, self._size), np.uint8)

    def first_cell(self, file: int, identity: tuple[object, ...]) -> int:
        """Where the marks of a file begin in `cells`; -1 if they are about another file, or there are none.

        Args:
            file: its number.
            identity: says which file it is, such as its inode and when it was changed.
        """
        if not self._are_kept:
            return -1
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=_NAME_BYTES).digest()
        wanted = int.from_bytes(digest, "little", signed=True) or 1
        start = int(self._starts[file])
        name = self.cells[start : start + _NAME_BYTES].view(np.int64)
        if not name[0]:
            name[0] = wanted
        # Looked at again: another process may have been first, with another file.
        return start + _NAME_BYTES if int(name[0]) == wanted else -1

    @staticmethod
    def can_be_passed() -> bool:
        """True while a process is being started that can have the same memory."""
        spawning = context.get_spawning_popen()
        return hasattr(spawning, "duplicate_for_child") and hasattr(os, "memfd_create")

    def __reduce__(self) -> tuple[object, ...]:
        if not self.can_be_passed():
            return Marks, (self.nbytes,)
        if self._descriptor < 0:
            self._give_descriptor()
        return _shared, (self.nbytes, reduction.DupFd(self._descriptor))

    def _give_descriptor(self) -> None:
        """Moves the marks to memory that has a descriptor; forked children keep the old one."""
        before = self.cells
        descriptor = os.memfd_create("torchyoga-marks", getattr(os, "MFD_CLOEXEC", 0))
        os.ftruncate(descriptor, self._size)
        self._map(descriptor)
        self._descriptor = descriptor
        self.cells |= before

    _close = staticmethod(os.close)  # modules may be gone when a process ends

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self._close(self._descriptor)


def _shared(nbytes: Sequence[int], passed: Any) -> Marks:
    """The marks of the process that starts this one, whose `reduction.DupFd` is passed."""
    found, descriptor = Marks(nbytes), int(passed.detach())
    try:
        found._map(descriptor)
    finally:
        os.close(descriptor)  # a mapping has its own
    return found
