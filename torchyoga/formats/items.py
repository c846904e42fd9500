"""The items of one array, by number, wherever their blocks lie: mapped, or decoded on demand.

Decoded chunks lie in one arena of equal slots per column.
So decoded rows are gathered by address, too.

Items of all open files are numbered by file and place.
So a file can be added without renumbering the items of another.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..process.buffers import address_of
from ..process.numbers import distinct
from ..process.threads import renew_in_children
from ..rows.block import joined_runs, numbered_within
from ..rows.types import Array, Ints
from .mapped import Bytes, Memory

Empty = Callable[[int], Bytes]
_CUT_BYTES = 16


class Cut:
    """How some runs of items are cut into blocks; computed once for all arrays that are cut alike.

    Args:
        run: the number of the first of these runs.
        starts: the first item of each block within its run, run after run.
        counts: (runs,) blocks of each.
        num_items: (runs,) length of each.

    Attributes:
        first: (runs,) the first block of each.
        items: the number of the first item of each block.
        are_even: True if the blocks of each run are of one size, but for a shorter last one.
        sizes: (runs,) that size, in items.
        digest: equal for runs of the same numbers that are cut alike.
    """

    def __init__(self, run: int, starts: Ints, counts: Ints, num_items: Ints) -> None:
        self.counts = counts
        self.first = counts.cumsum() - counts
        runs = np.arange(run, run + len(counts)) << Numbering.RUN_BITS
        self.items = starts + runs.repeat(counts)
        numbers = counts.tobytes() + self.items.tobytes()
        self.digest = hashlib.blake2b(numbers, digest_size=_CUT_BYTES).digest()
        self.sizes, self.are_even = np.zeros(len(counts), np.int64), bool(counts.all())
        if self.are_even:
            last = self.first + counts - 1
            lengths = np.empty(len(starts), np.int64)
            np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
            lengths[last] = num_items - starts[last]
            self.sizes = lengths[self.first]
            differ = lengths != self.sizes.repeat(counts)
            differ[last] = lengths[last] > self.sizes
            self.are_even = bool(self.sizes.all()) and not differ.any()


class Numbering:
    """The block that an item is in, for one run of items or several, such as files.

    Items of the first run are numbered from 0, those of the next from `RUN`, and so on.
    """

    RUN_BITS = 44
    RUN = 1 << RUN_BITS

    def __init__(self) -> None:
        self.starts = np.zeros(0, np.int64)  # the first item of each block
        self.cut = b""  # equal for numberings that cut the same items into the same blocks
        self.num_runs = 0
        self._table = self.starts
        # For each run: items of a block, 0 if its blocks differ; its first block.
        self._sizes = self._first_block = np.zeros(0, np.int64)
        self._even = True

    def append(self, starts: Ints, num_items: int) -> None:
        """Adds a run, given the first item of each of its blocks and its length."""
        self.extend(Cut(self.num_runs, starts, np.array([len(starts)]), np.array([num_items])))

    def extend(self, cut: Cut) -> None:
        """Adds runs; they are the next ones."""
        used, runs = len(self.starts), self.num_runs
        self.cut = hashlib.blake2b(self.cut + cut.digest, digest_size=_CUT_BYTES).digest()
        self._table = appended(self._table, used, cut.items)
        self.starts = self._table[: used + len(cut.items)]
        self._even = self._even and cut.are_even
        self._first_block = appended(self._first_block, runs, cut.first + used)
        self._sizes = appended(self._sizes, runs, cut.sizes)
        self.num_runs += len(cut.counts)

    def blocks(self, items: Ints) -> Ints:
        """The block of each item."""
        if not self._even:
            return self.starts.searchsorted(items, "right") - 1
        if self.num_runs == 1:
            return items // int(self._sizes[0])
        run = items >> self.RUN_BITS
        return self._first_block.take(run) + (items & self.RUN - 1) // self._sizes.take(run)

    def end_within(self, blocks: Ints, last: Ints) -> bool:
        """True if no run of items that begins in one of these blocks continues in the next."""
        following = np.minimum(blocks + 1, len(self.starts) - 1)
        return bool(((last <= self.starts.take(following)) | (blocks == len(self.starts) - 1)).all())


def appended(table: Array, used: int, rows: Array) -> Array:
    """`table` with `rows` after its first `used` ones; the table itself, if there is room.

    Earlier rows stay where they are, for threads that are reading them.
    """
    needed = used + len(rows)
    if needed > len(table):
        larger = np.empty((max(needed, 2 * len(table)), *rows.shape[1:]), rows.dtype)
        larger[:used] = table[:used]
        table = larger
    table[used:needed] = rows
    return table


def with_columns(table: Ints, used: int, first: Ints, *others: Ints | int) -> Ints:
    """(columns, N) what `appended` makes, of several columns of numbers at once.

    Args:
        table: (columns, N) numbers.
        used: how many of each column are in use.
        first: (M,) what is added to the first column.
        others: (M,) what is added to each of the others, or one number for all.
    """
    needed = used + len(first)
    if needed > table.shape[1]:
        larger = np.empty((len(table), max(needed, 2 * table.shape[1])), np.int64)
        larger[:, :used] = table[:, :used]
        table = larger
    for column, values in zip(table, (first, *others), strict=True):
        column[used:needed] = values
    return table


class MappedRuns:
    """Runs of bytes of different lengths, where they lie in mapped files.

    Attributes:
        addresses: (N,) the first byte of each run.
        nbytes: (N,) length of each run in bytes.
    """

    def __init__(self, memory: Memory, addresses: Ints, nbytes: Ints) -> None:
        self.addresses, self.nbytes = addresses, nbytes
        self._memory = memory

    def __len__(self) -> int:
        return len(self.nbytes)

    def slice(self, start: int, stop: int) -> MappedRuns:
        """The runs from `start` to before `stop`."""
        return MappedRuns(self._memory, self.addresses[start:stop], self.nbytes[start:stop])

    def copy(self, out: Bytes, starts: Iterable[int] | None = None) -> None:
        """Writes each run into `out` at its `starts`; by default one after the other."""
        self._memory.gather_runs(self.addresses, self.nbytes, out, starts)

    def texts(self) -> list[bytes]:
        """The runs as bytes."""
        return self._memory.texts(self.addresses, self.nbytes)

    def parts(self, starts: Ints, stops: Ints, empty: Empty) -> Bytes:
        """Copies of the bytes from `starts` to before `stops` of each run, end to end.

        Neighbours that lie side by side are one run.
        """
        first, last = joined_runs(self.addresses + starts, self.addresses + stops)
        sizes = last - first
        if len(sizes) > 1 and bool((sizes == sizes[0]).all()):
            return self._memory.gather(first, int(sizes[0]), empty)
        out = empty(int(sizes.sum()))
        self._memory.gather_runs(first, sizes, out)
        return out


class Items(ABC):
    """The items of one array, in blocks of consecutive items, each in one or more pieces of equal size.

    Args:
        numbering: says which block an item is in; a block may be empty.
        pieces: number of runs of bytes in an item; more than one where blocks are cut across the items.
        stride: bytes from a piece of one item to the same piece of the next item of the block.
    """

    def __init__(self, numbering: Numbering, pieces: int, stride: int) -> None:
        self.numbering = numbering
        self.pieces = pieces
        self.stride = stride
        self._most_blocks = 2**62  # that can be read at once
        self._turn: AbstractContextManager[Any] = nullcontext()  # within it, origins stay valid

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """The memory of all addresses."""

    @abstractmethod
    def _hold(self, blocks: Ints) -> Ints:
        """(all blocks, pieces) the address that item 0 would have if it belonged to the block.

        Valid within `_turn`, and for these blocks. (all blocks,) if items have one piece.
        """

    def blocks(self, items: Ints) -> Ints:
        """The block of each item."""
        return self.numbering.blocks(items)

    def pick(
        self, items: Ints, empty: Empty, offset: int = 0, size: int | None = None, blocks: Ints | None = None
    ) -> Bytes:
        """Copies of these items, one after the other, as bytes.

        Args:
            items: (N,) numbers of items.
            empty: makes the array for the copies, if they are large.
            offset: first byte to copy in each piece.
            size: how many bytes of each piece to copy, all by default.
            blocks: (N,) the block of each item, if known.
        """
        size = self.stride if size is None else size
        if not len(items) or not size:
            return np.empty(0, np.uint8)
        if blocks is None:
            blocks = self.blocks(items)
        if len(items) > self._most_blocks:
            touched = len(distinct(blocks))
            if touched > self._most_blocks:
                return self._pick_in_turns(items, empty, offset, size)
        addresses = items * self.stride
        with self._turn:
            origins = self._hold(blocks)
            if self.pieces == 1:
                addresses += origins.take(blocks)
            else:
                addresses = (addresses[:, None] + origins.take(blocks, 0)).reshape(-1)
            if offset:
                addresses += offset
            return self.memory.gather(addresses, size, empty)

    def _pick_in_turns(self, items: Ints, empty: Empty, offset: int, size: int) -> Bytes:
        # In the order of the items, so that each block is wanted once, and only as many at a time as fit.
        order = np.argsort(items, kind="stable")
        row = size * self.pieces
        out = empty(row * len(items))
        table = out.reshape(-1, row)
        for start in range(0, len(items), self._most_blocks):
            turn = order[start : start + self._most_blocks]
            table[turn] = self.pick(items[turn], empty, offset, size).reshape(-1, row)
        return out

    def spans(self, first: Ints, last: Ints, empty: Empty) -> Bytes:
        """Copies of the items `first[i]` to `last[i] - 1`, run after run, as bytes; items have one piece.

        Args:
            first: (N,) numbers of items.
            last: (N,) numbers of items, none smaller than its first.
            empty: makes the array for the copies.
        """
        out = empty(int((last - first).sum()) * self.stride)
        first, last, blocks = self.pieces_of(first, last)
        done = 0
        for start in range(0, len(first), self._most_blocks):
            turn = slice(start, start + self._most_blocks)
            sizes = (last[turn] - first[turn]) * self.stride
            stop = done + int(sizes.sum())
            with self._turn:
                origins = self._hold(blocks[turn])
                addresses = first[turn] * self.stride + origins.take(blocks[turn])
                self.memory.gather_runs(addresses, sizes, out[done:stop])
            done = stop
        return out

    def alike(self, first: Ints, count: int, empty: Empty) -> Bytes:
        """Copies of the `count` items from each `first` on, run after run, as `spans` gives them."""
        return self.spans(first, first + count, empty)

    def runs(self, first: Ints, last: Ints) -> MappedRuns | None:
        """The runs of `spans`, not copied; None if some are cut, or stay only while they are held."""
        return None

    def places(self, items: Ints, blocks: Ints) -> Ints | None:
        """(N,) the address of each item of these blocks; None if items are in pieces, or encoded."""
        return None

    def pieces_of(self, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
        """The runs of `spans`, cut where blocks end, without empty ones: first, last and block of each."""
        some = last > first
        first, last = first[some], last[some]
        blocks, ends = self.blocks(first), self.blocks(last - 1)
        if bool((blocks == ends).all()):
            return first, last, blocks
        counts = ends - blocks + 1
        run = np.repeat(np.arange(len(first)), counts)
        nth = numbered_within(counts)
        within = blocks[run] + nth
        stops = np.append(self.numbering.starts[1:], 2**62)
        begin = np.where(nth == 0, first[run], self.numbering.starts[within])
        return begin, np.minimum(last[run], stops[within]), within


class Mapped(Items):
    """Items that lie in memory, not encoded.

    Args:
        pieces, stride: see `Items`.
        memory: holds them.
    """

    def __init__(self, pieces: int, stride: int, memory: Memory) -> None:
        super().__init__(Numbering(), pieces, stride)
        self._memory = memory
        self._zero = np.zeros((0, pieces) if pieces > 1 else 0, np.int64)

    def append(self, starts: Ints, num_items: int, addresses: Ints) -> None:
        """Adds a run of items.

        Args:
            starts: (blocks,) the first item of each block within the run.
            num_items: of the run.
            addresses: (blocks, pieces) where each piece of the first item of each block begins.
        """
        run = self.numbering.num_runs
        self.extend(Cut(run, starts, np.array([len(starts)]), np.array([num_items])), addresses)

    def extend(self, cut: Cut, addresses: Ints) -> None:
        """Adds runs of items, the next ones; `addresses` as for `append`."""
        used = len(self.numbering.starts)
        # Modulo 2**64, like all arithmetic here: products of large numbers wrap around and back again.
        zero = addresses - (cut.items * self.stride)[:, None]
        self._zero = appended(self._zero, used, zero if self.pieces > 1 else zero.reshape(-1))
        self.numbering.extend(cut)  # last: from now on threads find the blocks

    @property
    def memory(self) -> Memory:
        """The memory of all addresses."""
        return self._memory

    def addresses(self, items: Ints, blocks: Ints) -> Ints:
        """The addresses of items of these blocks, or what they would be; for items of one piece."""
        return items * self.stride + self._zero.take(blocks)

    def places(self, items: Ints, blocks: Ints) -> Ints | None:
        """(N,) the address of each item of these blocks; None if items are in pieces."""
        return self.addresses(items, blocks) if self.pieces == 1 else None

    def alike(self, first: Ints, count: int, empty: Empty) -> Bytes:
        """Copies of the `count` items from each `first` on, as rows of one size: faster than runs."""
        blocks = self.blocks(first)
        following = np.minimum(blocks + 1, len(self.numbering.starts) - 1)
        is_whole = (first + count <= self.numbering.starts.take(following)) | (following == blocks)
        whole = np.flatnonzero(is_whole)
        if not len(whole) or not count:
            return super().alike(first, count, empty)
        addresses = self.addresses(first, blocks)
        addresses[~is_whole] = addresses[whole[0]]  # written over below
        out = self.memory.gather(addresses, count * self.stride, empty)
        if len(whole) < len(first):
            cut = np.flatnonzero(~is_whole)
            out.reshape(len(first), -1)[cut] = super().alike(first[cut], count, empty).reshape(len(cut), -1)
        return out

    def runs(self, first: Ints, last: Ints) -> MappedRuns | None:
        """The runs of `spans`, not copied; None if some are cut."""
        some = last > first
        if not some.all():
            if not some.any():
                return None
            first = np.where(some, first, first[some][0])  # an empty run lies anywhere
            last = np.where(some, last, first)
        blocks = self.blocks(first)
        if not self.numbering.end_within(blocks, last):
            return None
        return MappedRuns(self._memory, self.addresses(first, blocks), (last - first) * self.stride)

    def _hold(self, blocks: Ints) -> Ints:
        return self._zero


class Decoded(Items):
    """Items whose blocks are decoded as a whole when an item is wanted, and kept while there is room.

    The least recently used blocks make room. Threads take turns. A forked child goes on with its own copy.

    Args:
        starts: for each run, the first item of each block within it.
        num_items: number of items of each run.
        pieces, stride: see `Items`.
        decode: writes the given piece of the given block into an array of `piece_bytes`.
        piece_bytes: size of the largest piece of a block, decoded.
        capacity: bytes to keep at most; at least one block is kept.
    """

    def __init__(
        self,
        starts: Sequence[Ints],
        num_items: Sequence[int],
        pieces: int,
        stride: int,
        decode: Callable[[int, int, Bytes], None],
        piece_bytes: int,
        capacity: int,
    ) -> None:
        super().__init__(Numbering(), pieces, stride)
        counts = np.array([*map(len, starts)])
        self.numbering.extend(Cut(0, np.concatenate(starts), counts, np.array(num_items)))
        count = len(self.numbering.starts) * pieces
        slots = min(count, max(pieces, capacity // max(1, piece_bytes)))
        self._most_blocks = max(1, slots // pieces)
        self._decode = decode
        self._arena: Bytes = np.empty((slots, piece_bytes), np.uint8)  # pages are allocated when written
        self._memory = Memory([self._arena.reshape(-1)])
        self._slot_of = np.full(count, -1)
        self._held_in = np.full(slots, -1)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0
        self._zero = np.zeros(count, np.int64)  # of each piece of each block
        self.renew()
        renew_in_children(self)

    @property
    def memory(self) -> Memory:
        """The memory of decoded blocks."""
        return self._memory

    def absent(self, blocks: Ints) -> Ints:
        """The blocks among these that would have to be decoded now."""
        found = distinct(blocks)
        return found[self._slot_of.take(found * self.pieces) < 0]

    def _hold(self, blocks: Ints) -> Ints:
        self._make_present(distinct(blocks))
        return self._zero if self.pieces == 1 else self._zero.reshape(-1, self.pieces)

    def renew(self) -> None:
        """Makes a new lock in a forked child."""
        self._turn = threading.Lock()  # until items are copied, nobody may use their slots for others

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
        # Recorded only when it is whole: decoding may fail, or another thread may fork.
        self._zero[piece] = address_of(self._arena[slot]) - self.numbering.starts[block] * self.stride
        self._held_in[slot] = piece
        self._slot_of[piece] = slot
        self._used[slot] = self._clock
