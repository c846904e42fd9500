"""Slots of shared memory, made once, that worker processes fill and the training loop reads in place.

A batch is pickled without its bytes: they lie in the slot that went out with its indices. A slot is free
again when the last tensor over it is gone, so a batch stays as it is while it is held. A fork while a batch
is held gives it to the child as well, which no count here knows of: its slot is not used again. The memory
of a slot has no name, and ends with the last process that maps it.

Note 71. What travels in a slot, and when a slot is free.
Small batches travel several together. Plain tensors and arrays of numbers lie in the slot; whatever else
torch can send (nested, sparse, views of one another, subclasses, objects) travels with it as torch sends
it. A slot is free when the reference count of its array says so; only our own code gathers in one, because
what a user's code keeps there would be overwritten. A slot that is held during a fork is replaced by
another, and workers that are older open the new one by its name in `/proc`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import mmap
import os
import re
import weakref
from collections import deque
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.buffers import Slot, address_of, counts_can_be_trusted, held
from ..rows.tree import mapped
from ..rows.types import Array, Batch, Row

__all__ = ["Parcel", "Ring", "packed"]

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
        if self.memory(slot) is None:
            self._look_again()
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

    def _look_again(self) -> None:
        """Maps, in a worker, the slots as they are now, and releases those that are replaced.

        The worker may be older than a slot: it finds it by name among the open files of the ring's process.
        """
        wanted = re.compile(rf"/memfd:torchyoga-{self.key}-(\d+) \(deleted\)")
        folder = f"/proc/{self.process}/fd"
        found: dict[int, str] = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):  # closed meanwhile
                    match = wanted.fullmatch(os.readlink(f"{folder}/{name}"))
                    if match:
                        found[int(match[1])] = f"{folder}/{name}"
        newest = {number % len(self.slots): number for number in sorted(found)}
        for place, number in enumerate(self._numbers):
            if found and number not in found:
                self.slots[place] = None
            if place in newest and (number != newest[place] or self.slots[place] is None):
                self._numbers[place] = newest[place]
                self.slots[place] = _opened(found[newest[place]], wanted)

    def __getstate__(self) -> dict[str, object]:
        # A process that is being started maps what it needs.
        return {**self.__dict__, "slots": [None] * len(self.slots)}


def _mapped(descriptor: int) -> Memory:
    return np.frombuffer(mmap.mmap(descriptor, _SLOT_BYTES), np.uint8)


def _opened(path: str, wanted: re.Pattern[str]) -> Memory | None:
    """The memory of a descriptor of another process; None if it is something else by now, or not ready."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        is_right = wanted.fullmatch(os.readlink(f"/proc/self/fd/{descriptor}"))
        is_ready = os.fstat(descriptor).st_size == _SLOT_BYTES  # made a moment ago, it has no size yet
        return _mapped(descriptor) if is_right and is_ready else None
    except OSError:
        return None
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


class _Spot:
    """Where in a slot a tensor lies, or an array."""

    __slots__ = ("dtype", "offset", "shape")

    def __init__(self, offset: int, dtype: torch.dtype | str, shape: tuple[int, ...]) -> None:
        self.offset = offset
        self.dtype = dtype  # a torch dtype for a tensor, else a NumPy dtype string
        self.shape = shape

    def __reduce__(self) -> tuple[type[_Spot], tuple[int, torch.dtype | str, tuple[int, ...]]]:
        return _Spot, (self.offset, self.dtype, self.shape)

    @staticmethod
    def of(leaf: torch.Tensor | Array, offset: int) -> _Spot:
        """The spot of a tensor or an array."""
        dtype = leaf.dtype if isinstance(leaf, torch.Tensor) else leaf.dtype.str
        return _Spot(offset, dtype, tuple(leaf.shape))

    def found(self, memory: Memory) -> torch.Tensor | Array:
        """What lies there."""
        dtype = np.dtype(self.dtype) if isinstance(self.dtype, str) else self.dtype
        data = memory[self.offset : self.offset + dtype.itemsize * math.prod(self.shape)]
        if isinstance(dtype, np.dtype):
            return data.view(dtype).reshape(self.shape)
        return torch.from_numpy(data).view(dtype).view(self.shape)


class Parcel:
    """A batch whose tensors lie in a slot; what a worker sends."""

    def __init__(self, ring: int, slot: int, batch: Batch) -> None:
        self._ring = ring
        self._slot = slot
        self._batch = batch

    def unpacked(self) -> Batch:
        """The batch, over the memory of the slot; copied where it could not be known how long it is held."""
        memory = _rings[self._ring].memory(self._slot)
        assert memory is not None, "a slot that is under way is not replaced"
        is_copied = bool(_forks) or not _READS_IN_PLACE  # asked once `memory` is held
        found: dict[_Spot, torch.Tensor | Array] = {}

        def unpack(leaf: Row) -> Row:
            if type(leaf) is not _Spot:
                return leaf
            if leaf not in found:
                there = leaf.found(memory)
                if is_copied:
                    there = there.clone() if isinstance(there, torch.Tensor) else there.copy()
                found[leaf] = there
            return found[leaf]

        return mapped(self._batch, unpack, _is_more_than_fields)

    def pin_memory(self, device: object = None) -> Batch:
        """The batch in pinned memory; torch's pinning thread asks for it."""
        return pin_memory(self.unpacked(), device)  # type: ignore[no-untyped-call,unused-ignore]

    def __reduce__(self) -> tuple[type[Parcel], tuple[int, int, Batch]]:
        return Parcel, (self._ring, self._slot, self._batch)


def packed(batch: Batch, ring: int, slot: int, place: Slot | None) -> Batch:
    """A batch as a parcel: tensors that lie in `place` as they are, others copied into it while they fit.

    Whatever is not an ordinary tensor or array of numbers travels as torch sends it, and so do tensors that
    share memory, which must still do so. Without a place, all do.

    Raises:
        RuntimeError: torch cannot send a tensor that was computed from one that requires grad.
    """
    leaves: dict[int, Row] = {}
    try:
        mapped(batch, lambda leaf: leaves.setdefault(id(leaf), leaf), _is_more_than_fields)
    except RecursionError:
        return batch  # torch's pickler goes deeper, or says what is wrong
    sent = {key: _as_torch_can_send(leaf) for key, leaf in leaves.items()}
    spots = {} if place is None else _spots(sent, place)
    found = mapped(batch, lambda leaf: spots.get(id(leaf)) or sent[id(leaf)], _is_more_than_fields)
    return Parcel(ring, slot, found) if spots else found


def _as_torch_can_send(leaf: Row) -> Row:
    """The leaf, or an equal one."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.requires_grad and not leaf.is_leaf:
        # It raises. In torch's own thread it would too, and the batch would be waited for without end.
        reduce_tensor(leaf)  # type: ignore[no-untyped-call]
    if type(leaf) is torch.Tensor and not leaf.requires_grad and _has_bytes(leaf):
        return leaf.resolve_conj().resolve_neg()  # torch loses these on the way
    return leaf


def _has_bytes(tensor: torch.Tensor) -> bool:
    """True if its type, shape, strides and bytes are all there is."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_quantized)
        and tensor.device.type == "cpu"
    )


def _spots(leaves: dict[int, Row], place: Slot) -> dict[int, _Spot]:
    """Where in the slot leaves lie now, by their keys: those that arrive as they were from there."""
    start = address_of(place.memory)
    found: dict[int, _Spot] = {}
    others: dict[int, Row] = {}
    for key, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            offset = leaf.data_ptr() - start if _is_plain(leaf) else -1
        elif type(leaf) is np.ndarray and _is_plain_array(leaf):
            offset = address_of(leaf) - start
        else:
            continue
        if 0 <= offset < place.used:
            found[key] = _Spot.of(leaf, offset)
        else:
            others[key] = leaf
    shared = _overlapping([leaf for leaf in others.values() if isinstance(leaf, torch.Tensor)])
    for key, leaf in others.items():
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor and (id(leaf) in shared or not _is_plain(leaf)):
            continue
        target = place.empty(leaf.nbytes)
        if target is None:
            continue
        if is_tensor:
            # As bytes: torch cannot copy every one of its types.
            torch.from_numpy(target).copy_(leaf.reshape(-1).view(torch.uint8))
        else:
            target.view(leaf.dtype).reshape(leaf.shape)[...] = leaf
        found[key] = _Spot.of(leaf, address_of(target) - start)
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and _has_bytes(tensor)
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _is_plain_array(array: Array) -> bool:
    dtype = array.dtype
    return (
        array.size > 0
        and array.flags.c_contiguous
        and dtype.kind in "biufc"
        and dtype.isnative  # others are swapped on the way, as from torch's loader
        and np.dtype(dtype.str) == dtype
    )


def _overlapping(tensors: list[torch.Tensor]) -> set[int]:
    """The identities of tensors that share bytes with another."""
    if len(tensors) < 2:
        return set()
    extents = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _reach(tensor), id(tensor))
        for tensor in tensors
        if tensor.layout == torch.strided and not tensor.is_nested and tensor.numel()
    )
    found: set[int] = set()
    furthest, end = 0, 0
    for first, last, tensor in extents:
        if first < end:
            found |= {furthest, tensor}
        if last > end:
            furthest, end = tensor, last
    return found


def _reach(tensor: torch.Tensor) -> int:
    """The number of bytes from a tensor's first to its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(steps + 1) * tensor.itemsize


def _is_more_than_fields(found: tuple[Row, ...]) -> bool:
    """True for a namedtuple that cannot be made from its fields alone."""
    return _has_ways_of_its_own(type(found)) or bool(getattr(found, "__dict__", None))


@functools.lru_cache(256)
def _has_ways_of_its_own(cls: type) -> bool:
    plain = next((base for base in cls.__mro__ if tuple in base.__bases__), tuple)
    names = ("__new__", "__init__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__setstate__")
    return any(getattr(cls, name, None) is not getattr(plain, name, None) for name in names)
