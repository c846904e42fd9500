"""Memory that is reused once nothing refers to it, because fresh pages cost as much as filling them.

Batches lie in memory that is reused once nothing refers to it.
The reference count of the owning array shows that. Counts are read in C only, because how much a variable
adds to a count depends on Python's version and optimizer. If counts cannot be trusted (in a free-threaded
Python, where a reference may be taken between look and use; in a Python that counts in another way, as a test
at import shows), buffers are fresh memory, and batches are copied out of their slots.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = np.ndarray[Any, Any]  # of any shape and dtype
Ints: TypeAlias = npt.NDArray[np.int64]
Seeds: TypeAlias = npt.NDArray[np.uint64]
_ALIGNMENT = 64  # bytes, like torch's own allocator
_MOST_BYTES = 2**30
_WORTH_KEEPING = 64 * 1024  # bytes; below this malloc reuses memory by itself


def address_of(array: Array) -> int:
    """The address of an array's first byte."""
    found: int = array.__array_interface__["data"][0]
    return found


def fresh(nbytes: int) -> Array:
    """An uninitialised array (nbytes,) of uint8 that belongs to no pool."""
    return np.empty(nbytes, np.uint8)


def held(arrays: Iterable[object]) -> list[bool]:
    """For each array, True if anything but this collection refers to it or to a view of it.

    Reliable if `counts_can_be_trusted`, for arrays that no variable of the caller refers to meanwhile.
    """
    # All in C: how much a variable or a subscript adds to a count depends on Python's version and optimizer.
    return [count != _HELD_BY_NOTHING for count in map(sys.getrefcount, arrays)]


def counts_can_be_trusted() -> bool:
    """True if `held` is reliable; otherwise memory is not reused and batches are copied.

    False in a free-threaded Python, where another thread may take a reference between the look and the use;
    in a Python that counts in another way than CPython; and if the environment has TORCHYOGA_REUSE_MEMORY=0.
    """
    return _TRUSTED


def _counts_are_right() -> bool:
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe: list[Array] = [np.empty(64, np.uint8)]
    found = held(probe)
    view = probe[0][8:]
    found += held(probe)
    view = view.view(np.int64).reshape(7, 1)[1:]
    found += held(probe)
    exported = memoryview(view.data)
    del view
    found += held(probe)
    del exported
    return [*found, *held(probe)] == [False, True, True, True, False]


class Slot:
    """A piece of memory that is handed out as buffers, one after the other."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.used = 0

    def empty(self, nbytes: int) -> Array | None:
        """The next (nbytes,) of uint8; None if not enough is left."""
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        if start + nbytes > self.memory.size:
            return None
        self.used = start + nbytes
        return self.memory[start : self.used]


_place: Slot | None = None


def is_placing() -> bool:
    """True within `placing`."""
    return _place is not None


class placing:
    """Within the `with` statement all pools of this process hand out memory of `place`, as long as it lasts.

    It is for a process of one thread, such as a worker that fills shared memory.
    """

    def __init__(self, place: Slot) -> None:
        self._of = place

    def __enter__(self) -> None:
        global _place
        _place = self._of

    def __exit__(self, *_: object) -> None:
        global _place
        _place = None


class BufferPool:
    """Hands out arrays of bytes, and takes each back when the last array or tensor over it is gone.

    Views, and tensors made from them, hold a reference to the array that owns the memory; so its reference
    count shows exactly whether it is still in use. Where counts cannot be trusted, all memory is fresh.

    Args:
        capacity: bytes that the pool keeps for reuse, or four buffers if those are more, but less than
            1 GiB; buffers beyond that are ordinary memory.
    """

    def __init__(self, capacity: int = 64 * 2**20) -> None:
        self.capacity = capacity
        self._kept: list[Array] = []

    def empty(self, nbytes: int) -> Array:
        """An uninitialised array (nbytes,) of uint8 that nothing else refers to."""
        if _place is not None:
            found = _place.empty(nbytes)
            if found is not None:
                return found
        if nbytes < _WORTH_KEEPING or not _TRUSTED:
            return np.empty(nbytes, np.uint8)
        for _ in range(len(self._kept)):
            # A buffer off the list belongs to this thread alone, so its count cannot change between look and
            # use.
            ours = self._oldest()
            is_free = bool(ours) and nbytes <= ours[0].size <= 2 * nbytes and not held(ours)[0]
            found = ours[0][:nbytes] if is_free else None
            self._kept += ours
            if found is not None:
                return found
        buffer = np.empty(nbytes, np.uint8)
        # As many as are in use at the same time: one being filled, some read ahead, one with the user.
        most = max(self.capacity, min(4 * nbytes, _MOST_BYTES))
        while self._kept and sum(buffer.size for buffer in self._kept) > most - nbytes:
            self._oldest()
        if nbytes <= most:
            self._kept.append(buffer)
        return buffer[:]

    def _oldest(self) -> list[Array]:
        """Takes the least recently checked buffer off the list; empty if other threads were quicker."""
        try:
            return [self._kept.pop(0)]
        except IndexError:
            return []


# The references of the list and of the counting itself.
_HELD_BY_NOTHING = next(map(sys.getrefcount, [np.empty(0, np.uint8)]))
_TRUSTED = os.environ.get("TORCHYOGA_REUSE_MEMORY") != "0" and _counts_are_right()
