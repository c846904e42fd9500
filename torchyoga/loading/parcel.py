"""A batch that a worker sends: pickled without its bytes, which lie in a slot of shared memory.

Note 15. Small batches travel several together. Plain tensors and arrays of numbers lie in the slot, and so do
long lists of bytes or of text, as one run; a list of tensors or of arrays of one dtype is described as a
whole. Whatever else torch can send (nested, sparse, views of one another, subclasses, objects) travels beside
it as torch sends it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.buffers import Slot, address_of
from ..rows.types import Array, Batch, Row, mapped
from .sealed import PLAIN, Plain, Sealed, is_plain
from .shared_memory import Memory, memory_of

_WORTH_A_RUN = 2**13  # bytes of text; less is pickled as quickly
_FEW = 4  # items, each described by itself

Leaf: TypeAlias = torch.Tensor | Array
_TextList: TypeAlias = list[bytes] | list[str] | tuple[bytes, ...] | tuple[str, ...]


class _Spot(Plain):
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

    def found(self, memory: Memory, is_copied: bool) -> Leaf:
        """The bytes that lie there."""
        if is_copied or isinstance(self.dtype, str) or 0 in self.shape:
            return _leaves(memory, self.dtype, [self.offset], [self.shape], is_copied)[0]
        # Half the time; a tensor of each batch has storage of its own, as from torch's workers.
        count = math.prod(self.shape)
        found = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset)
        return found if len(self.shape) == 1 else found.view(self.shape)


class _Spots(Plain):
    """Where the tensors of a list lie, or its arrays; all are of one dtype."""

    __slots__ = ("dtype", "is_tuple", "offsets", "shapes")

    def __init__(
        self, dtype: torch.dtype | str, offsets: list[int], shapes: list[tuple[int, ...]], is_tuple: bool
    ) -> None:
        self.dtype, self.offsets, self.shapes, self.is_tuple = dtype, offsets, shapes, is_tuple

    def __reduce__(self) -> tuple[type[_Spots], tuple[object, ...]]:
        return _Spots, (self.dtype, self.offsets, self.shapes, self.is_tuple)

    def found(self, memory: Memory, is_copied: bool) -> Sequence[Leaf]:
        """The list, or tuple."""
        leaves = _leaves(memory, self.dtype, self.offsets, self.shapes, is_copied)
        return tuple(leaves) if self.is_tuple else leaves


class _Texts(Plain):
    """Where a list of byte strings lies, or of text: the end of each, then all of them."""

    __slots__ = ("count", "is_str", "is_tuple", "nbytes", "offset")

    def __init__(self, offset: int, count: int, nbytes: int, is_str: bool, is_tuple: bool) -> None:
        self.offset, self.count, self.nbytes = offset, count, nbytes
        self.is_str, self.is_tuple = is_str, is_tuple

    def __reduce__(self) -> tuple[type[_Texts], tuple[int, int, int, bool, bool]]:
        return _Texts, (self.offset, self.count, self.nbytes, self.is_str, self.is_tuple)

    @staticmethod
    def put(items: _TextList, place: Slot) -> _Texts | None:
        """Copies them into a slot; None if they do not fit."""
        is_str = type(items[0]) is str
        # The ends of text are counted in characters, so that it can be cut after all of it is decoded.
        ends = [*itertools.accumulate(map(len, items))]
        parts = ["".join(items).encode("utf-8", "surrogatepass")] if is_str else items  # type: ignore[arg-type]
        nbytes, before = sum(map(len, parts)), 8 * len(ends)
        target = place.empty(before + nbytes)
        if target is None:
            return None
        target[:before].view(np.int64)[:] = ends
        view, start = target.data, before
        for part in parts:
            stop = start + len(part)
            view[start:stop] = part  # type: ignore[assignment]
            start = stop
        offset = address_of(target) - address_of(place.memory)
        return _Texts(offset, len(items), nbytes, is_str, type(items) is tuple)

    def found(self, memory: Memory, is_copied: bool) -> Sequence[bytes | str]:
        """The list, or tuple; always a copy."""
        start = self.offset + 8 * self.count
        ends = memory[self.offset : start].view(np.int64).tolist()
        bounds = itertools.pairwise([0, *ends])
        data = memory[start : start + self.nbytes].data
        items: list[bytes | str]
        if self.is_str:
            text = str(data, "utf-8", "surrogatepass")
            items = [text[first:last] for first, last in bounds]
        else:
            items = [data[first:last].tobytes() for first, last in bounds]
        return tuple(items) if self.is_tuple else items


_PLACED = {_Spot, _Spots, _Texts}


def _leaves(
    memory: Memory,
    dtype: torch.dtype | str,
    offsets: list[int],
    shapes: list[tuple[int, ...]],
    is_copied: bool,
) -> list[Leaf]:
    """Tensors or arrays that lie in a slot."""
    found: list[Leaf] = []
    kind = np.dtype(dtype) if isinstance(dtype, str) else dtype
    for offset, shape in zip(offsets, shapes, strict=True):
        data = memory[offset : offset + kind.itemsize * math.prod(shape)]
        if isinstance(kind, np.dtype):
            array = data.view(kind).reshape(shape)
            found.append(array.copy() if is_copied else array)
        else:
            tensor = torch.from_numpy(data).view(kind).view(shape)
            found.append(tensor.clone() if is_copied else tensor)
    return found


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
                found[id(leaf)] = leaf.found(memory, is_copied)
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

    Whatever is not an ordinary tensor, array of numbers or long list of text travels as torch sends it, and
    so do tensors that share memory, which must still do so. Without a place, all do.

    Raises:
        RuntimeError: torch cannot send a tensor that was computed from one that requires grad.
    """
    leaves: dict[int, Row] = {}
    times: Counter[int] = Counter()  # that a leaf is in the batch

    def note(leaf: Row) -> Row:
        if type(leaf) in PLAIN:
            return leaf
        leaves[id(leaf)] = leaf
        times[id(leaf)] += 1
        return leaf

    try:
        mapped(batch, note, _is_taken_whole)
    except RecursionError:
        return batch  # torch's pickler goes deeper, or says what is wrong
    sendable = {key: _as_torch_can_send(leaf) for key, leaf in leaves.items()}
    spots = {} if place is None else _spots(sendable, place)
    lists: dict[int, _Spots] = {}

    def replace(leaf: Row) -> Row:
        if type(leaf) in PLAIN:
            return leaf
        key = id(leaf)
        if key in spots or key in sendable:
            return spots.get(key) or sendable[key]
        return lists[key]

    def is_leaf(node: Sequence[Row]) -> bool:
        key = id(node)
        if key in leaves or key in lists:  # those that were taken whole above, or come again
            return True
        if type(node) in (list, tuple) and _is_worth_it(node, spots, times):
            alike: list[_Spot] = [spots[id(item)] for item in node]  # type: ignore[misc]
            offsets, shapes = [spot.offset for spot in alike], [spot.shape for spot in alike]
            lists[key] = _Spots(alike[0].dtype, offsets, shapes, type(node) is tuple)
        return key in lists

    found = mapped(batch, replace, is_leaf)
    return Parcel(ring, slot, found) if spots else found


def sendable(batch: Batch, count: int | None) -> Batch:
    """A batch that `packed` gave, pickled already if it holds anything that may not be pickled.

    Args:
        batch: batches, or a single row.
        count: how many batches; None for a single row.

    Raises:
        TypeError: something in it cannot be pickled.
    """
    contents = batch.contents if type(batch) is Parcel else batch
    with contextlib.suppress(RecursionError):  # the pickler goes deeper, or says what is wrong
        if is_plain(contents):
            return batch
    return Sealed(batch, count, contents)


def _is_worth_it(node: Sequence[Row], spots: dict[int, _Spot | _Texts], times: Counter[int]) -> bool:
    """True for a list of several things that lie in the slot, all of one dtype, each nowhere else."""
    if len(node) < _FEW:
        return False
    dtypes = set()
    for item in node:
        spot = spots.get(id(item))
        if type(spot) is not _Spot or times[id(item)] > 1:
            return False
        dtypes.add(spot.dtype)
    return len(dtypes) == 1


def _is_taken_whole(node: Sequence[Row]) -> bool:
    return _is_text(node) or _is_more_than_fields(node)


def _is_text(node: Sequence[Row]) -> TypeGuard[_TextList]:
    """True for a list of byte strings, or of text, that is long enough to travel in a slot."""
    if type(node) not in (list, tuple) or len(node) < _FEW:
        return False
    cls = type(node[0])
    if (cls is not bytes and cls is not str) or any(type(item) is not cls for item in node):
        return False
    nbytes = sum(map(len, node))
    # One text many times is pickled once.
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


def _spots(leaves: dict[int, Row], place: Slot) -> dict[int, _Spot | _Texts]:
    """Where in the slot leaves lie now, by their keys: those that arrive as they were from there."""
    start = address_of(place.memory)
    found: dict[int, _Spot | _Texts] = {}
    others: dict[int, Row] = {}
    for key, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            offset = leaf.data_ptr() - start if _is_plain(leaf) else -1
        elif type(leaf) is np.ndarray and _is_plain_array(leaf):
            offset = address_of(leaf) - start
        else:
            if type(leaf) in (list, tuple):
                texts = _Texts.put(leaf, place)
                if texts is not None:
                    found[key] = texts
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
