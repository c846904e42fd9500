"""Slots of shared memory, made once, that worker processes fill and the training loop reads in place.

A batch is pickled without its bytes: they lie in the slot that went out with its indices. A slot is free
again when the last tensor over it is gone, so a batch stays as it is while somebody holds it. The memory has
no name, and ends with the last process that maps it.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import sys
import weakref
from collections import deque
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from .buffers import Place, address_of
from .nest import mapped

__all__ = ["Parcel", "Ring", "packed"]

_SLOT_BYTES = 512 * 2**20  # of addresses; memory is taken when it is written
_NO_SLOT = -1
_keys = itertools.count()


class Ring:
    """Some slots of shared memory. Pickles on its way to a worker process, and only then."""

    def __init__(self, num_slots: int) -> None:
        descriptor = os.memfd_create("torchyoga", getattr(os, "MFD_CLOEXEC", 0))
        try:
            os.ftruncate(descriptor, num_slots * _SLOT_BYTES)
            self._map(descriptor, num_slots)
        except BaseException:
            os.close(descriptor)
            raise
        self.key = next(_keys)
        self.process = os.getpid()  # a forked child must not send batches in the slots of its parent
        self._sent: deque[int] = deque()  # the slots of the batches under way, in order
        _rings[self.key] = self

    def _map(self, descriptor: int, num_slots: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        maps = (mmap.mmap(descriptor, _SLOT_BYTES, offset=i * _SLOT_BYTES) for i in range(num_slots))
        self.slots = [np.frombuffer(found, np.uint8) for found in maps]

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
        """Whatever was under way is not any more."""
        self._sent.clear()

    def send(self) -> int:
        """The slot for the next batch; -1 if none is free."""
        for slot in range(len(self.slots)):
            if slot not in self._sent and _references(self.slots, slot) == _HELD_BY_NOBODY:
                break
        else:
            slot = _NO_SLOT
        self._sent.append(slot)
        return slot

    def arrived(self, slot: int | None = None) -> None:
        """The batch that was sent for first has come, or its error; or the one sent for in `slot`."""
        if slot is None:
            self._sent.popleft()
        else:
            self._sent.remove(slot)

    @property
    def is_idle(self) -> bool:
        """True if no batch is under way."""
        return not self._sent

    def place(self, slot: int) -> Place:
        """Where a worker is to put a batch."""
        return Place(self.slots[slot])

    def __reduce__(self) -> Any:
        return _opened, (reduction.DupFd(self._descriptor), len(self.slots))


def _references(slots: list[np.ndarray[Any, Any]], slot: int) -> int:
    return sys.getrefcount(slots[slot])


_HELD_BY_NOBODY = _references([np.empty(0, np.uint8)], 0)  # but the list, and what counts


def _opened(duplicate: Any, num_slots: int) -> Ring:
    ring = Ring.__new__(Ring)
    ring._map(duplicate.detach(), num_slots)
    return ring


_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()


class _Spot:
    """Where in a slot a tensor lies, or an array."""

    __slots__ = ("dtype", "offset", "shape")

    def __init__(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> None:
        self.offset = offset
        self.dtype = dtype  # of torch for a tensor, else a dtype string of NumPy
        self.shape = shape

    def __reduce__(self) -> Any:
        return _Spot, (self.offset, self.dtype, self.shape)

    def found(self, memory: np.ndarray[Any, Any]) -> Any:
        """What lies there."""
        dtype = np.dtype(self.dtype) if isinstance(self.dtype, str) else self.dtype
        data = memory[self.offset : self.offset + dtype.itemsize * math.prod(self.shape)]
        if isinstance(dtype, np.dtype):
            return data.view(dtype).reshape(self.shape)
        return torch.from_numpy(data).view(dtype).view(self.shape)


class Parcel:
    """A batch whose tensors lie in a slot; what a worker sends."""

    def __init__(self, ring: int, slot: int, batch: Any) -> None:
        self._ring = ring
        self._slot = slot
        self._batch = batch

    def unpacked(self) -> Any:
        """The batch, over the memory of the slot."""
        memory = _rings[self._ring].slots[self._slot]
        return mapped(self._batch, lambda leaf: leaf.found(memory) if type(leaf) is _Spot else leaf)

    def pin_memory(self, device: Any = None) -> Any:
        """The batch in pinned memory; torch's pinning thread asks for it."""
        return pin_memory(self.unpacked(), device)  # type: ignore[no-untyped-call,unused-ignore]

    def __reduce__(self) -> Any:
        return Parcel, (self._ring, self._slot, self._batch)


def packed(batch: Any, ring: int, slot: int, place: Place) -> Any:
    """A batch as a parcel: tensors that lie in `place` as they are, others copied into it while they fit."""
    spots = 0
    start = address_of(place.memory)

    def pack(leaf: Any) -> Any:
        nonlocal spots
        if type(leaf) is torch.Tensor and _is_plain(leaf):
            array, dtype, shape = None, leaf.dtype, tuple(leaf.shape)
            offset = leaf.data_ptr() - start
        elif (
            type(leaf) is np.ndarray and leaf.size and leaf.flags.c_contiguous and leaf.dtype.kind in "biufc"
        ):
            array, dtype, shape = leaf, leaf.dtype.str, leaf.shape
            offset = address_of(leaf) - start
        else:
            return leaf
        if not 0 <= offset < place.used:
            target = place.empty(leaf.nbytes)
            if target is None:
                return leaf
            offset = address_of(target) - start
            if array is None:
                torch.from_numpy(target).view(dtype).view(shape).copy_(leaf)
            else:
                target.view(array.dtype).reshape(shape)[...] = array
        spots += 1
        return _Spot(offset, dtype, shape)

    found = mapped(batch, pack)
    return Parcel(ring, slot, found) if spots else batch


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
