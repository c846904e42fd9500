"""Memory that is used again once nobody holds it: fresh pages cost as much as filling them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["BufferPool"]

_WORTH_KEEPING = 64 * 1024  # bytes; below this malloc reuses memory by itself


class BufferPool:
    """Hands out arrays of bytes, and takes each back when the last array or tensor over it is gone.

    Views, and tensors made from them, hold a reference to the array that owns the memory; so its reference
    count tells exactly whether anybody still can see it.

    Args:
        capacity: bytes that the pool keeps for reuse; what is handed out beyond is ordinary memory.
    """

    def __init__(self, capacity: int = 64 * 2**20) -> None:
        self.capacity = capacity
        self._kept: list[np.ndarray[Any, Any]] = []

    def empty(self, nbytes: int) -> np.ndarray[Any, Any]:
        """An uninitialised array (nbytes,) of uint8 that nobody else holds."""
        if nbytes < _WORTH_KEEPING:
            return np.empty(nbytes, np.uint8)
        for buffer in tuple(self._kept):
            # Held by the list, its copy, the loop and getrefcount's argument; by no view, and no other
            # thread's loop.
            if nbytes <= buffer.size <= 2 * nbytes and sys.getrefcount(buffer) == 4:
                return buffer[:nbytes]
        buffer = np.empty(nbytes, np.uint8)
        self._make_room(nbytes)
        if nbytes <= self.capacity:
            self._kept.append(buffer)
        return buffer[:]

    def _make_room(self, nbytes: int) -> None:
        while self._kept and sum(buffer.size for buffer in self._kept) + nbytes > self.capacity:
            self._kept.pop(0)
