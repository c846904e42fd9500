"""The items of one array, by number, wherever their blocks lie: mapped, or decoded when they are wanted."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .gather import Bytes, Memory, address_of

__all__ = ["Decoded", "Items", "Mapped"]

Ints = npt.NDArray[np.int64]
Empty = Callable[[int], Bytes]


class Items(ABC):
    """The items of one array, in blocks of consecutive ones; each item in one or more pieces of equal size.

    Args:
        starts: (blocks,) the first item of each block, in order; a block may be empty.
        num_items: of all blocks.
        pieces: runs of bytes that an item consists of; more than one where blocks are cut across the items.
        stride: bytes from a piece of one item to the same piece of the next item of the block.
    """

    def __init__(self, starts: Ints, num_items: int, pieces: int, stride: int) -> None:
        self.starts = starts
        self.num_items = num_items
        self.pieces = pieces
        self.stride = stride
        lengths = np.diff(starts, append=num_items)
        even = len(lengths) > 0 and bool((lengths[:-1] == lengths[0]).all()) and lengths[-1] <= lengths[0]
        self._block_items = int(lengths[0]) if even else 0  # of every block but the last, if that is so
        self._most_blocks = 2**62  # that can be read at once

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """What all addresses lie in."""

    @abstractmethod
    def _hold(self, blocks: Ints) -> Ints:
        """(all blocks, pieces) where item 0 would lie, did it belong to the block.

        True of these blocks until `_let_go`; (all blocks,) if items are of one piece.
        """

    def _let_go(self) -> None:  # noqa: B027
        """The items are copied."""

    def blocks(self, items: Ints) -> Ints:
        """The block of each item."""
        if self._block_items:
            return items // self._block_items
        return self.starts.searchsorted(items, "right") - 1

    def pick(
        self,
        items: Ints,
        empty: Empty,
        offset: int = 0,
        size: int | None = None,
        blocks: Ints | None = None,
    ) -> Bytes:
        """Copies of these items, one after the other, as bytes.

        Args:
            items: (N,) numbers of items.
            empty: makes the array for the copies, if they are large.
            offset: where to begin in each piece.
            size: how many bytes of each piece, all by default.
            blocks: (N,) the block of each, if it is known.
        """
        size = self.stride if size is None else size
        if not len(items) or not size:
            return np.empty(0, np.uint8)
        if blocks is None:
            blocks = self.blocks(items)
        if len(items) > self._most_blocks:
            touched = len(np.unique(blocks))
            if touched > self._most_blocks:
                return self._pick_in_turns(items, empty, offset, size)
        addresses = items * self.stride
        origins = self._hold(blocks)
        try:
            if self.pieces == 1:
                addresses += origins.take(blocks)
            else:
                addresses = (addresses[:, None] + origins.take(blocks, 0)).reshape(-1)
            if offset:
                addresses += offset
            return self.memory.gather(addresses, size, empty)
        finally:
            self._let_go()

    def _pick_in_turns(self, items: Ints, empty: Empty, offset: int, size: int) -> Bytes:
        # Item after item in their order, so that a block is wanted once, as few blocks at a time as fit.
        order = np.argsort(items, kind="stable")
        row = size * self.pieces
        out = empty(row * len(items))
        table = out.reshape(-1, row)
        for start in range(0, len(items), self._most_blocks):
            turn = order[start : start + self._most_blocks]
            table[turn] = self.pick(items[turn], empty, offset, size).reshape(-1, row)
        return out

    def spans(self, first: Ints, last: Ints, empty: Empty) -> Bytes:
        """Copies of the items `first[i]` to `last[i] - 1`, run after run, as bytes; items are of one piece.

        Args:
            first: (N,) numbers of items.
            last: (N,) likewise, none before its first.
            empty: makes the array for the copies.
        """
        out = empty(int((last - first).sum()) * self.stride)
        some = last > first
        first, last = first[some], last[some]
        if not len(first):
            return out
        blocks, ends = self.blocks(first), self.blocks(last - 1)
        if not bool((blocks == ends).all()):
            first, last, blocks = self._cut(first, last, blocks, ends)
        done = 0
        for start in range(0, len(first), self._most_blocks):
            turn = slice(start, start + self._most_blocks)
            sizes = (last[turn] - first[turn]) * self.stride
            stop = done + int(sizes.sum())
            origins = self._hold(blocks[turn])
            try:
                addresses = first[turn] * self.stride + origins.take(blocks[turn])
                self.memory.gather_runs(addresses, sizes, out[done:stop])
            finally:
                self._let_go()
            done = stop
        return out

    def _cut(self, first: Ints, last: Ints, blocks: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """The same runs, cut where blocks end."""
        counts = ends - blocks + 1
        run = np.repeat(np.arange(len(first)), counts)
        nth = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        within = blocks[run] + nth
        stops = np.append(self.starts[1:], self.num_items)
        begin = np.where(nth == 0, first[run], self.starts[within])
        return begin, np.minimum(last[run], stops[within]), within


class Mapped(Items):
    """Items that lie in memory as they are.

    Args:
        addresses: (blocks, pieces) where each piece of the first item of each block begins.
        memory: what they lie in.
        touch: called with the blocks that are about to be read.
    """

    def __init__(
        self,
        starts: Ints,
        num_items: int,
        addresses: Ints,
        stride: int,
        memory: Memory,
        touch: Callable[[Ints], None] | None = None,
    ) -> None:
        super().__init__(starts, num_items, addresses.shape[1], stride)
        self.addresses = addresses
        self._memory = memory
        zero = addresses - (starts * stride)[:, None]
        self._zero = zero if self.pieces > 1 else zero.reshape(-1)
        self._touch = touch

    @property
    def memory(self) -> Memory:
        """What all addresses lie in."""
        return self._memory

    def _hold(self, blocks: Ints) -> Ints:
        if self._touch is not None:
            self._touch(blocks)
        return self._zero


_decoded: weakref.WeakSet[Decoded] = weakref.WeakSet()


def _after_fork() -> None:
    # Threads that held these locks are not in the child to release them.
    for items in _decoded:
        items._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Decoded(Items):
    """Items whose blocks are decoded as a whole when one is wanted, and kept while there is room.

    The least recently used blocks make room. Threads take turns. A forked child goes on with its own copy.

    Args:
        decode: writes the given piece of the given block into an array of `piece_bytes`.
        piece_bytes: of the largest piece of a block, decoded.
        capacity: bytes to keep at most; at least one block is kept.
    """

    def __init__(
        self,
        starts: Ints,
        num_items: int,
        pieces: int,
        stride: int,
        decode: Callable[[int, int, Bytes], None],
        piece_bytes: int,
        capacity: int,
    ) -> None:
        super().__init__(starts, num_items, pieces, stride)
        count = len(starts) * pieces
        slots = min(count, max(pieces, capacity // max(1, piece_bytes)))
        self._most_blocks = max(1, slots // pieces)
        self._decode = decode
        self._arena: Bytes = np.empty((slots, piece_bytes), np.uint8)  # pages come into being when written
        self._memory = Memory([self._arena.reshape(-1)])
        self._slot_of = np.full(count, -1)
        self._held_in = np.full(slots, -1)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0
        self._zero = np.zeros(count, np.int64)  # of each piece of each block
        self._lock = threading.Lock()
        _decoded.add(self)

    @property
    def memory(self) -> Memory:
        """Where decoded blocks are kept."""
        return self._memory

    def _hold(self, blocks: Ints) -> Ints:
        self._lock.acquire()  # until the items are copied, nobody may use the slots for others
        try:
            self._make_present(np.unique(blocks))
        except BaseException:
            self._lock.release()
            raise
        return self._zero if self.pieces == 1 else self._zero.reshape(-1, self.pieces)

    def _let_go(self) -> None:
        self._lock.release()

    def _make_present(self, wanted: Ints) -> None:
        if self.pieces > 1:
            wanted = (wanted[:, None] * self.pieces + np.arange(self.pieces)).reshape(-1)
        self._clock += 1
        slots = self._slot_of[wanted]
        missing = wanted[slots < 0]
        self._used[slots[slots >= 0]] = self._clock
        if len(missing):
            oldest = np.argpartition(self._used, len(missing) - 1)[: len(missing)]
            for piece, slot in zip(missing.tolist(), oldest.tolist(), strict=True):
                self._load(piece, slot)

    def _load(self, piece: int, slot: int) -> None:
        held = self._held_in[slot]
        self._held_in[slot] = -1
        if held >= 0:
            self._slot_of[held] = -1
        block, nth = divmod(piece, self.pieces)
        self._decode(block, nth, self._arena[slot])
        # Known only now that it is whole: decoding may fail, or a thread elsewhere may fork.
        self._zero[piece] = address_of(self._arena[slot]) - self.starts[block] * self.stride
        self._held_in[slot] = piece
        self._slot_of[piece] = slot
        self._used[slot] = self._clock
