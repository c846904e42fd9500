"""Slots of shared memory, made once, that worker processes fill and the training loop reads in place.

A slot is free again when the last tensor over it is gone, so a batch stays as it is while it is held. A fork
while a batch is held gives it to the child as well, which no count here knows of: its slot is not used again.
The memory of a slot has no name, and ends with the last process that maps it.

Note 15. A slot is free when the reference count of its array says so.
Only our own code gathers in one, because what a user's code keeps there would be overwritten. A slot that is
held during a fork is replaced by another, and workers that are older open the new one by its name in `/proc`.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import weakref
from collections import deque
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..process.buffers import Slot, counts_can_be_trusted, held

_SLOT_BYTES = 512 * 2**20  # of address space; memory is taken when it is written
_NO_SLOT = -1
_keys = itertools.count()

Memory: TypeAlias = npt.NDArray[np.uint8]


class Ring:
    """Some slots of shared memory. Pickles on its way to a worker process, and only then.

    A slot is named by a number; one that takes the place of another has a number of its own, the same modulo
    `num_slots`.

    Attributes:
        slots: the memory that is in each place now; None where it is no longer mapped.
        process: the one whose ring it is; a forked child must not send batches in the slots of its parent.
    """

    def __init__(self, num_slots: int) -> None:
        self.key = next(_keys)
        self.process = os.getpid()
        self._numbers = list(range(num_slots))
        self.slots: list[Memory | None] = [self._new_memory(number) for number in self._numbers]
        self._sent: deque[int] = deque()  # the slots of the batches under way, in order
        _rings[self.key] = self

    @staticmethod
    def made(num_slots: int) -> Ring | None:
        """A ring, or None where there is no such memory: then batches travel as torch sends them."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            return Ring(num_slots)
        except OSError:
            return None

    def begin(self) -> None:
        """Forgets whatever was under way."""
        self._sent.clear()

    def send(self) -> int:
        """The slot for the next batch; -1 if none is free."""
        slot = self._free_slot()
        self._sent.append(slot)
        return slot

    def arrived(self, slot: int | None = None) -> None:
        """Notes that the batch asked for first has come, or its error; or the one asked for in `slot`."""
        if slot is None:
            self._sent.popleft()
        else:
            self._sent.remove(slot)

    @property
    def is_idle(self) -> bool:
        """True if no batch is under way."""
        return not self._sent

    def memory(self, slot: int) -> Memory | None:
        """The memory of a slot; None if it has been replaced, or is not known here."""
        place = slot % len(self.slots)
        return self.slots[place] if self._numbers[place] == slot else None

    def place(self, slot: int) -> Slot | None:
        """Where a worker is to put a batch; None if it cannot reach the slot."""
        at = slot % len(self.slots)
        if self.memory(slot) is None:
            self.slots[at] = None  # a worker releases what has been replaced
            self.slots[at], self._numbers[at] = self._elsewhere(slot), slot
        memory = self.memory(slot)
        return None if memory is None else Slot(memory)

    def give_up_held(self) -> None:
        """Never uses slots again that are still held; others take their places when they are wanted."""
        if self.process == os.getpid():
            for place, is_held in enumerate(held(self.slots)):
                if is_held:
                    self.slots[place] = None

    def _free_slot(self) -> int:
        if self.process != os.getpid():
            return _NO_SLOT
        is_held = held(self.slots) if _READS_IN_PLACE else [memory is None for memory in self.slots]
        for place, number in enumerate(self._numbers):
            if not is_held[place] and number not in self._sent:
                return number
        for place, memory in enumerate(self.slots):
            if memory is None:
                with contextlib.suppress(OSError):
                    number = self._numbers[place] + len(self.slots)
                    self.slots[place] = self._new_memory(number)
                    self._numbers[place] = number
                    return number
        return _NO_SLOT

    def _new_memory(self, number: int) -> Memory:
        descriptor = os.memfd_create(f"torchyoga-{self.key}-{number}", getattr(os, "MFD_CLOEXEC", 0))
        try:
            os.ftruncate(descriptor, _SLOT_BYTES)
            return _mapped(descriptor)
        finally:
            os.close(descriptor)  # a mapping has its own

    def _elsewhere(self, slot: int) -> Memory | None:
        """A slot that is newer than this worker, by its name among the open files of the ring's process."""
        folder, name = f"/proc/{self.process}/fd", f"/memfd:torchyoga-{self.key}-{slot} (deleted)"
        with contextlib.suppress(OSError):
            for number in os.listdir(folder):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"{folder}/{number}") == name:
                        return _opened(f"{folder}/{number}", name)
        return None

    def __getstate__(self) -> dict[str, object]:
        # A process that is being started maps what it needs.
        return {**self.__dict__, "slots": [None] * len(self.slots)}


def _mapped(descriptor: int) -> Memory:
    return np.frombuffer(mmap.mmap(descriptor, _SLOT_BYTES), np.uint8)


def _opened(path: str, name: str) -> Memory | None:
    """The memory of a descriptor of another process; None if it is something else by now, or not ready."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        is_right = os.readlink(f"/proc/self/fd/{descriptor}") == name
        is_ready = os.fstat(descriptor).st_size == _SLOT_BYTES  # made a moment ago, it has no size yet
        return _mapped(descriptor) if is_right and is_ready else None
    finally:
        os.close(descriptor)


_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()
_forks: list[None] = []  # under way; a list, as appending is atomic


def _before_fork() -> None:
    # In this order: whoever unpacks a batch meanwhile is either seen to hold it, or sees this and copies it.
    _forks.append(None)
    _give_up_held()


def _after_fork() -> None:
    _give_up_held()  # again: an interrupt may have ended the first look
    _forks.pop()


def _give_up_held() -> None:
    for reference in _rings.valuerefs():
        ring = reference()
        if ring is not None:
            ring.give_up_held()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forks.clear)


def _tensors_count() -> bool:
    """True if a tensor, or its memory alone, holds the array that it was made from."""
    probe = [np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)]
    found = held(probe)
    tensor = torch.from_numpy(probe[0][64:128]).view(torch.float32).view(4, 4)
    found += held(probe)
    storage = tensor[1:].untyped_storage()
    del tensor
    found += held(probe)
    del storage
    return [*found, *held(probe)] == [False, True, True, False]


_READS_IN_PLACE = counts_can_be_trusted() and _tensors_count()


def memory_of(ring: int, slot: int) -> tuple[Memory, bool]:
    """The memory of a slot under way; True if a batch has to be copied, as its holders could not be known.

    Args:
        ring: the key of a ring of this process.
        slot: a slot of it that has not been replaced.
    """
    memory = _rings[ring].memory(slot)
    assert memory is not None, "a slot that is under way is not replaced"
    return memory, bool(_forks) or not _READS_IN_PLACE  # asked once `memory` is held
