"""Memory that is used again once nobody holds it: fresh pages cost as much as filling them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["BufferPool", "Place", "address_of", "fresh", "is_placing", "placing"]

_ALIGNMENT = 64  # bytes; as torch's own allocator gives
_MOST_BYTES = 2**30
_WORTH_KEEPING = 64 * 1024  # bytes; below this malloc reuses memory by itself


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where an array begins in memory."""
    found: int = array.__array_interface__["data"][0]
    return found


def fresh(nbytes: int) -> np.ndarray[Any, Any]:
    """An uninitialised array (nbytes,) of uint8, of no pool."""
    return np.empty(nbytes, np.uint8)


class Place:
    """A run of memory in which buffers are to lie, one after the other."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory
        self.used = 0

    def empty(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """The next (nbytes,) of uint8; None if there is not so much left."""
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        if start + nbytes > self.memory.size:
            return None
        self.used = start + nbytes
        return self.memory[start : self.used]


_place: Place | None = None


def is_placing() -> bool:
    """True within `placing`."""
    return _place is not None


@contextlib.contextmanager
def placing(place: Place) -> Iterator[None]:
    """Meanwhile all pools of this process hand out memory of `place`, while there is some.

    For a process of one thread, such as a worker that fills shared memory.
    """
    global _place
    _place = place
    try:
        yield
    finally:
        _place = None


class BufferPool:
    """Hands out arrays of bytes, and takes each back when the last array or tensor over it is gone.

    Views, and tensors made from them, hold a reference to the array that owns the memory; so its reference
    count tells exactly whether anybody still can see it.

    Args:
        capacity: bytes that the pool keeps for reuse, or four buffers if those are more, but less than
            1 GiB; what is handed out beyond is ordinary memory.
    """

    def __init__(self, capacity: int = 64 * 2**20) -> None:
        self.capacity = capacity
        self._kept: list[np.ndarray[Any, Any]] = []

    def empty(self, nbytes: int) -> np.ndarray[Any, Any]:
        """An uninitialised array (nbytes,) of uint8 that nobody else holds."""
        if _place is not None:
            found = _place.empty(nbytes)
            if found is not None:
                return found
        if nbytes < _WORTH_KEEPING:
            return np.empty(nbytes, np.uint8)
        for buffer in tuple(self._kept):
            # Held by the list, its copy and the loop; by no view, and no other thread's loop.
            if nbytes <= buffer.size <= 2 * nbytes and sys.getrefcount(buffer) == _HELD_BY_NOBODY:
                return buffer[:nbytes]
        buffer = np.empty(nbytes, np.uint8)
        # As many as are in use at once: one being filled, some read ahead, one held.
        most = max(self.capacity, min(4 * nbytes, _MOST_BYTES))
        self._make_room(most - nbytes)
        if nbytes <= most:
            self._kept.append(buffer)
        return buffer[:]

    def _make_room(self, most: int) -> None:
        while self._kept and sum(buffer.size for buffer in self._kept) > most:
            self._kept.pop(0)


def _held_by_nobody() -> int:
    """What `sys.getrefcount` says there of a buffer in no use; Python's versions count differently."""
    kept = [np.empty(0, np.uint8)]
    for buffer in tuple(kept):
        found = sys.getrefcount(buffer)
    return found


_HELD_BY_NOBODY = _held_by_nobody()
