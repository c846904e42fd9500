"""Batches as a worker sends them: pickled where errors can be raised, and without bytes that lie in a slot.

Note 15. Small batches travel several together. Plain tensors and arrays of numbers lie in the slot, and so do
long lists of bytes, as one run. Whatever else torch can send (nested, sparse, views of one another,
subclasses, objects) travels beside it as torch sends it.

torch's queue pickles on a thread of its own. If that fails, the thread prints the error, and the training
loop waits without end. Numbers, text and arrays of numbers never fail; a batch with anything else in it is
pickled before the queue gets it, once, and travels as bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import math
import os
import pickle
from collections.abc import Collection, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.buffers import Slot, address_of
from ..process.raised import Raised
from ..rows.types import Array, Batch, Row, mapped
from .shared_memory import Memory, memory_of

# Types whose objects can always be pickled.
_PLAIN: set[type] = {type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.Size}
_PLAIN |= {np.bool_, np.str_, np.bytes_, np.datetime64, np.timedelta64}
_PLAIN |= {cls for cls in np.sctypeDict.values() if issubclass(cls, np.number)}


class _Plain:
    """A class whose objects can always be pickled: all that inherit from it are in `_PLAIN`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _PLAIN.add(cls)


class _Sealed:
    """A pickled batch; pickling it gives the batch itself on the other side.

    Args:
        batch: batches, or a parcel of them.
        count: how many batches there are.
        contents: what to look for the cause in, if it cannot be pickled.

    Raises:
        TypeError: it cannot be pickled; says what in it cannot.
    """

    def __init__(self, batch: Batch, count: int, contents: Batch) -> None:
        buffer = io.BytesIO()
        try:
            ForkingPickler(buffer).dump(batch)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"a batch cannot be sent from a worker process: there is {_culprit(contents)} in it, which "
                f"cannot be pickled ({error}); return tensors, arrays or plain data, or use num_workers=0"
            ) from error
        except (OSError, RuntimeError) as error:
            if (lack := _lack_of_files(error)) is None:
                raise
            raise lack from error
        self._data = buffer.getvalue()
        self._count = count

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self._data, self._count)


def _opened(data: bytes, count: int) -> Batch:
    """The batches; or for each the error, if they cannot be unpickled."""
    try:
        return ForkingPickler.loads(data)
    except Exception as error:
        lack = _lack_of_files(error)
        if lack is None and isinstance(error, (OSError, EOFError, MemoryError)):
            raise  # the worker has ended, or the system lacks something: torch says what
        return [Raised(lack or error, "when what a worker process has sent was unpickled")] * count


def _lack_of_files(error: Exception) -> RuntimeError | None:
    """What to say where the system opens no more files for this process; None if it is another error."""
    is_one = any(sign in str(error) for sign in ("ancdata", os.strerror(errno.EMFILE)))
    return too_many_files(error) if is_one else None


def too_many_files(reason: object) -> RuntimeError:
    """What to say where the system opens no more files for a process."""
    return RuntimeError(
        "a batch cannot be sent from a worker process: each of its tensors takes an open file, and there are "
        f"too many ({reason}); increase the limit (`ulimit -n` in the shell), call "
        "torch.multiprocessing.set_sharing_strategy('file_system') at the beginning of your code, keep fewer "
        "batches, or collate their rows to fewer tensors"
    )


def is_plain(node: Row) -> bool:
    """True for what can always be pickled, and nested as it is: numbers, text, arrays of numbers.

    Args:
        node: any nesting, which does not contain itself.
    """
    cls: type = type(node)
    if cls is dict:
        return _are_plain(node) and _are_plain(node.values())
    if cls is list or cls is tuple:
        return _are_plain(node)
    if cls in _PLAIN:
        return True
    if cls is np.ndarray:
        return node.dtype.kind in "biufcSUmM" and node.dtype.metadata is None
    return isinstance(node, tuple) and _has_fields_only(cls) and _are_plain(node)


def _are_plain(nodes: Collection[Row]) -> bool:
    return _PLAIN.issuperset(map(type, nodes)) or all(map(is_plain, nodes))


def _culprit(batch: Batch) -> str:
    """The part of a batch that cannot be pickled: the innermost of those that have a place in it."""
    for part in _parts(batch):
        try:
            ForkingPickler.dumps(part)
        except Exception:
            return _culprit(part)
    return f"a {type(batch).__name__}"


def _parts(node: Row) -> Iterable[Row]:
    if type(node) is dict:
        return [*node, *node.values()]
    if isinstance(node, (list, tuple)):
        return node
    return ()


@functools.lru_cache(256)
def _has_fields_only(cls: type) -> bool:
    """True for a namedtuple that is pickled as its class and its fields."""
    ways = ("__reduce__", "__reduce_ex__", "__getstate__")
    are_plain = all(getattr(cls, name, None) is getattr(tuple, name, None) for name in ways)
    return hasattr(cls, "_fields") and are_plain and _can_be_named(cls)


@functools.lru_cache(256)
def _can_be_named(cls: type) -> bool:
    """True for a class that can be pickled: not one within a function."""
    try:
        ForkingPickler.dumps(cls)
    except Exception:
        return False
    return True


_WORTH_A_RUN = 2**16  # bytes; less is pickled as quickly
_FEW = 4  # items

Leaf: TypeAlias = torch.Tensor | Array


class _Spot(_Plain):
    """Where in a slot a tensor lies, or an array."""

    __slots__ = ("dtype", "offset", "shape")

    def __init__(self, offset: int, dtype: torch.dtype | str, shape: tuple[int, ...]) -> None:
        self.offset = offset
        self.dtype = dtype  # a torch dtype for a tensor, else a NumPy dtype string
        self.shape = shape

    def __reduce__(self) -> tuple[type[_Spot], tuple[int, torch.dtype | str, tuple[int, ...]]]:
        return _Spot, (self.offset, self.dtype, self.shape)

    @staticmethod
    def of(leaf: Leaf, offset: int) -> _Spot:
        """The spot of a tensor or an array."""
        dtype = leaf.dtype if isinstance(leaf, torch.Tensor) else leaf.dtype.str
        return _Spot(offset, dtype, tuple(leaf.shape))

    def unpacked(self, memory: Memory, is_copied: bool) -> Leaf:
        """The bytes that lie there."""
        count = math.prod(self.shape)
        if isinstance(self.dtype, str):
            kind = np.dtype(self.dtype)
            data = memory[self.offset : self.offset + kind.itemsize * count]
            array = data.view(kind).reshape(self.shape)
            return array.copy() if is_copied else array
        # A tensor of each batch has storage of its own, as from torch's workers.
        tensor = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset)
        tensor = tensor if len(self.shape) == 1 else tensor.view(self.shape)
        return tensor.clone() if is_copied else tensor


class _Blobs(_Plain):
    """Where a list of byte strings lies: the end of each, then all of them."""

    __slots__ = ("count", "is_tuple", "nbytes", "offset")

    def __init__(self, offset: int, count: int, nbytes: int, is_tuple: bool) -> None:
        self.offset, self.count, self.nbytes, self.is_tuple = offset, count, nbytes, is_tuple

    def __reduce__(self) -> tuple[type[_Blobs], tuple[int, int, int, bool]]:
        return _Blobs, (self.offset, self.count, self.nbytes, self.is_tuple)

    @staticmethod
    def put(items: Sequence[bytes], place: Slot) -> _Blobs | None:
        """Copies them into a slot; None if they do not fit."""
        ends = [*itertools.accumulate(map(len, items))]
        nbytes, before = ends[-1], 8 * len(ends)
        target = place.empty(before + nbytes)
        if target is None:
            return None
        target[:before].view(np.int64)[:] = ends
        view, start = target.data, before
        for item in items:
            stop = start + len(item)
            view[start:stop] = item
            start = stop
        offset = address_of(target) - address_of(place.memory)
        return _Blobs(offset, len(items), nbytes, type(items) is tuple)

    def unpacked(self, memory: Memory, is_copied: bool) -> Sequence[bytes]:
        """The list, or tuple; always a copy."""
        start = self.offset + 8 * self.count
        ends = memory[self.offset : start].view(np.int64).tolist()
        data = memory[start : start + self.nbytes].data
        items = [data[first:last].tobytes() for first, last in itertools.pairwise([0, *ends])]
        return tuple(items) if self.is_tuple else items


_PLACED = {_Spot, _Blobs}


def _is_flat(batch: Batch) -> bool:
    """True for a dict of what lies in a slot, and of nothing else."""
    return type(batch) is dict and all(type(leaf) in _PLACED for leaf in batch.values())


class Parcel:
    """A batch whose tensors lie in a slot; what a worker sends.

    Attributes:
        contents: the batch, with descriptions of what lies in the slot.
    """

    def __init__(self, ring: int, slot: int, contents: Batch) -> None:
        self._ring = ring
        self._slot = slot
        self.contents = contents

    def unpacked(self) -> Batch:
        """The batch, over the memory of the slot; copied where it could not be known how long it is held."""
        memory, is_copied = memory_of(self._ring, self._slot)
        found: dict[int, Row] = {}

        def unpack(leaf: Row) -> Row:
            if type(leaf) not in _PLACED:
                return leaf
            if id(leaf) not in found:
                found[id(leaf)] = leaf.unpacked(memory, is_copied)
            return found[id(leaf)]

        contents = self.contents
        if type(contents) is list and all(map(_is_flat, contents)):
            return [{key: unpack(leaf) for key, leaf in batch.items()} for batch in contents]
        return mapped(contents, unpack, _is_more_than_fields)

    def pin_memory(self, device: object = None) -> Batch:
        """The batch in pinned memory; torch's pinning thread asks for it."""
        return pin_memory(self.unpacked(), device)  # type: ignore[no-untyped-call,unused-ignore]

    def __reduce__(self) -> tuple[type[Parcel], tuple[int, int, Batch]]:
        return Parcel, (self._ring, self._slot, self.contents)


def packed(batch: Batch, ring: int, slot: int, place: Slot | None) -> Batch:
    """A batch as a parcel: tensors that lie in `place` as they are, others copied into it while they fit.

    Whatever is not an ordinary tensor, array of numbers or long list of bytes travels as torch sends it, and
    so do tensors that share memory, which must still do so. Without a place, all do.

    Raises:
        RuntimeError: torch cannot send a tensor that was computed from one that requires grad.
    """
    leaves: dict[int, Row] = {}

    def note(leaf: Row) -> Row:
        if type(leaf) not in _PLAIN:
            leaves[id(leaf)] = leaf
        return leaf

    try:
        mapped(batch, note, _is_taken_whole)
    except RecursionError:
        return batch  # torch's pickler goes deeper, or says what is wrong
    sendable = {key: _as_torch_can_send(leaf) for key, leaf in leaves.items()}
    spots = {} if place is None else _spots(sendable, place)

    def replace(leaf: Row) -> Row:
        return leaf if type(leaf) in _PLAIN else spots.get(id(leaf)) or sendable[id(leaf)]

    found = mapped(batch, replace, lambda node: id(node) in leaves)
    return Parcel(ring, slot, found) if spots else found


def sendable(batch: Batch, count: int) -> Batch:
    """A batch that `packed` gave, pickled already if it holds anything that may not be pickled.

    Args:
        batch: batches.
        count: how many.

    Raises:
        TypeError: something in it cannot be pickled.
    """
    contents = batch.contents if type(batch) is Parcel else batch
    with contextlib.suppress(RecursionError):  # the pickler goes deeper, or says what is wrong
        if is_plain(contents):
            return batch
    return _Sealed(batch, count, contents)


def _is_taken_whole(node: Sequence[Row]) -> bool:
    return _are_blobs(node) or _is_more_than_fields(node)


def _are_blobs(node: Sequence[Row]) -> TypeGuard[Sequence[bytes]]:
    """True for a list of byte strings that is long enough to travel in a slot."""
    if type(node) not in (list, tuple) or len(node) < _FEW or any(type(item) is not bytes for item in node):
        return False
    nbytes = sum(map(len, node))
    # What is there many times is pickled once.
    return nbytes >= _WORTH_A_RUN and 2 * sum(map(len, {id(item): item for item in node}.values())) >= nbytes


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


def _spots(leaves: dict[int, Row], place: Slot) -> dict[int, _Spot | _Blobs]:
    """Where in the slot leaves lie now, by their keys: those that arrive as they were from there."""
    start = address_of(place.memory)
    found: dict[int, _Spot | _Blobs] = {}
    others: dict[int, Row] = {}
    for key, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            offset = leaf.data_ptr() - start if _is_ordinary(leaf) else -1
        elif type(leaf) is np.ndarray and _is_ordinary_array(leaf):
            offset = address_of(leaf) - start
        else:
            if type(leaf) in (list, tuple):
                blobs = _Blobs.put(leaf, place)
                if blobs is not None:
                    found[key] = blobs
            continue
        if 0 <= offset < place.used:
            found[key] = _Spot.of(leaf, offset)
        else:
            others[key] = leaf
    shared = _overlapping([leaf for leaf in others.values() if isinstance(leaf, torch.Tensor)])
    for key, leaf in others.items():
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor and (id(leaf) in shared or not _is_ordinary(leaf)):
            continue
        target = place.empty(leaf.nbytes)
        if target is None:
            continue
        if is_tensor:
            # As bytes: torch cannot copy every one of its types. A single value may have any stride.
            torch.from_numpy(target).copy_(leaf.as_strided((leaf.numel(),), (1,)).view(torch.uint8))
        else:
            target.view(leaf.dtype).reshape(leaf.shape)[...] = leaf
        found[key] = _Spot.of(leaf, address_of(target) - start)
    return found


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and _has_bytes(tensor)
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _is_ordinary_array(array: Array) -> bool:
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


def _is_more_than_fields(found: Sequence[Row]) -> bool:
    """True for a namedtuple that cannot be made from its fields alone."""
    if type(found) in (list, tuple):
        return False
    return _has_ways_of_its_own(type(found)) or bool(getattr(found, "__dict__", None))


@functools.lru_cache(256)
def _has_ways_of_its_own(cls: type) -> bool:
    plain = next((base for base in cls.__mro__ if tuple in base.__bases__), tuple)
    names = ("__new__", "__init__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__setstate__")
    return any(getattr(cls, name, None) is not getattr(plain, name, None) for name in names)
