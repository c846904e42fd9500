"""Position -> row number and back, for rows that lie in files: block-local shuffle, and whole files per rank.

A block shuffle needs a few files at a time. The files come in random order, and the rows of each are permuted
and cut into K slices. Cell j of the epoch holds, permuted, slice k of the file that came k files before, for
each of the K files of the window. So each file is needed for K cells in a row, and with each cell one file
begins and one ends. All permutations are keyed bijections as in `full`, with keys for each file and cell; so
a position is turned into its row, and back, from a table of a few numbers for each file and slice.

Note 11. A block shuffle is made of keyed bijections, a small one for each file and cell.
With a buffer that is filled and drawn from, one could not turn any position into its row, and back. The
window slides, instead of shuffling groups of files one after the other: so not all files are exchanged at the
same time, and a reader needs one new file at a time.

Its Feistel network has two digits, the high one of any radix.
That of the full shuffle has two halves of bits. A file has any size, and a walk through a domain up to twice
as large would cost more than the network. The full shuffle keeps its own network, because sums modulo a radix
are slower than operations on bits. The fewer bits a digit has, the more rounds there are.

Without shuffle, shards are runs of the files as they lie.
With shuffle, they are runs of the files in an order that depends on the seed only, so that a rank's cache is
useful in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..process.digests import hexdigest, keyed_bytes, keyed_words, random_words, words_at
from ..process.numbers import as_int, distinct
from ..rows.block import bounds_of
from ..rows.types import Ints
from .contract import AnyOrder, Pin, Shuffle, are_outside, checked_rows, within

_Digits = npt.NDArray[np.unsignedinteger]  # 32 bits wide, or 64

_RUN = 4096  # rows treated as a file where the dataset has no files
_MOST_RUNS = 65536  # each takes memory
MOST_WINDOW = 1024  # each file of a window takes memory
_MOST_ROWS = 2**52  # of a file; times the window, they still fit int64
MOST_SHARDS = 2**20
_MIN_BITS = 4  # the fewest of the numbers of a network
_CHUNK = 32768  # positions computed at once, so that they stay in the processor's cache


@dataclass(frozen=True, eq=False)
class BlockOrder(AnyOrder):
    """The order of the rows in every epoch, over all ranks; unlike `Order` it depends on where files begin.

    Args:
        starts: (files + 1,) the row at which each file begins, and the number of rows N.
        seed: any int; together with the epoch it makes the keys.
        shuffle: "block" for a block shuffle; True for all rows of a shard, False for rows in order.
        reshuffle: False gives every epoch the order of epoch 0.
        window: files mixed with each other at once.
        shards: None for one order of all files. A number W deals the files to W shards: their rows, laid end
            to end in an order that the seed alone decides, are cut into W runs that differ by a row at most,
            and position p is row p // W of run p % W. Without shuffle the files are laid as they are.

    Example:
        >>> order = BlockOrder([0, 4, 8, 12], seed=7, window=2)
        >>> rows = order.rows(epoch=0, positions=np.arange(12))
        >>> sorted(rows.tolist()) == list(range(12))
        True
        >>> order.positions(epoch=0, rows=rows).tolist() == list(range(12))
        True
    """

    starts: Ints
    seed: int = 0
    shuffle: Shuffle = "block"
    reshuffle: bool = True
    window: int = 8
    shards: int | None = None
    length: int = field(init=False)
    files: str = field(init=False)  # the same if two orders have the same files

    def __post_init__(self) -> None:
        starts = _checked(self.starts)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "length", int(starts[-1]))
        object.__setattr__(self, "seed", as_int("seed", self.seed))
        object.__setattr__(self, "window", as_int("shuffle_window", self.window, low=1, high=MOST_WINDOW))
        if self.shards is not None:
            as_int("shards", self.shards, low=1, high=MOST_SHARDS)
        object.__setattr__(self, "files", hexdigest(starts.astype("<i8").tobytes(), size=8))

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch.

        Past N they wrap around; with shards, to the front of the rank's own rows. ValueError below 0.
        """
        found = np.asarray(positions, np.int64)
        if not self.length or not found.size:
            return found
        if are_outside(found, self.length):
            found = np.where(found < self.length, found, self._wrapped(found))
        return _mapped(self._plan(epoch).rows, found)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        found = checked_rows(rows, self.length)
        return _mapped(self._plan(epoch).positions, found) if found.size else found

    def dealt(self, num_replicas: int) -> BlockOrder:
        """This order for so many ranks: with as many shards, if it has any."""
        return self if self.shards in (None, num_replicas) else replace(self, shards=num_replicas)

    def prefix(self, rows: int) -> BlockOrder | None:
        """This order of the first rows, as it was before others came; None if files were laid anew."""
        if rows > self.length:
            return None
        if np.array_equal(self.starts, equal_runs(self.length)):
            return replace(self, starts=equal_runs(rows))
        starts = self.starts[: int(np.searchsorted(self.starts, rows)) + 1]
        return replace(self, starts=starts) if int(starts[-1]) == rows else None

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        found: dict[str, Pin] = {"shuffle": self.kind, "files": self.files}
        if self.shuffle == "block":
            found["window"] = self.window
        if self.shards is not None:
            found["shards"] = self.shards
        return found

    def units(self, epoch: int) -> Iterator[tuple[Ints, int]]:
        """For each shard, the rows of its files in the order of the epoch, and how many are mixed at once."""
        plan = self._plan(epoch)
        for shard in range(len(plan.layout.shard_starts) - 1):
            some = slice(*np.searchsorted(plan.unit_shard, [shard, shard + 1]).tolist())
            sizes = plan.unit_size[some]
            yield sizes, min(self.window, len(sizes))

    def _wrapped(self, positions: Ints) -> Ints:
        """The positions that come again for those past N; ValueError for one below 0."""
        world = self.shards or 1
        counts = np.diff(_borders(self.length, world))[positions % world]
        own = positions // world % np.maximum(counts, 1) * world + positions % world
        return np.where(counts > 0, own, within(positions, self.length))

    def _plan(self, epoch: int) -> _Plan:
        key = as_int("epoch", epoch) if self.reshuffle and self.shuffle else 0
        return _plan(self, key)


def equal_runs(length: int) -> Ints:
    """Where files of 4096 rows, or a few more in huge datasets, would begin, and the length.

    Example:
        >>> equal_runs(10_000).tolist()
        [0, 4096, 8192, 10000]
    """
    run = max(_RUN, -(-length // _MOST_RUNS))
    return np.append(np.arange(0, length, run, dtype=np.int64), length)


def _checked(starts: npt.ArrayLike) -> Ints:
    found = np.asarray(starts)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"file_starts must be row numbers (files + 1,), found {starts!r:.100}")
    sizes = np.diff(found)
    if not len(found) or found[0] or (sizes < 0).any() or (sizes > _MOST_ROWS).any():
        raise ValueError(
            f"file_starts must begin with 0 and rise by at most 2**52, found {found[:8].tolist()!r:.100}"
        )
    return distinct(found.astype(np.int64))  # without files that have no rows


class _Line(NamedTuple):
    """All rows in a line, the same in every epoch: files, or pieces of those that shards cut.

    Attributes:
        shard_starts: (W + 1,) where the run of each shard begins.
        row: (P,) the first row of each piece; `size`: how many it has; `shard`: the shard it belongs to.
    """

    shard_starts: Ints
    row: Ints
    size: Ints
    shard: Ints


@lru_cache(maxsize=4)
def _layout(order: BlockOrder) -> _Line:
    first, sizes = order.starts[:-1], np.diff(order.starts)
    if order.shards is not None and order.shuffle:
        shuffled = np.argsort(random_words(_word("files", order.seed), len(sizes)), kind="stable")
        first, sizes = first[shuffled], sizes[shuffled]
    ends = np.cumsum(sizes)
    borders = _borders(order.length, order.shards or 1)
    cuts = distinct(np.concatenate([borders, ends]))
    line = cuts[:-1]
    file = np.searchsorted(ends, line, "right")
    row = first[file] + line - (ends - sizes)[file]
    return _Line(borders, row, np.diff(cuts), np.searchsorted(borders, line, "right") - 1)


def _borders(length: int, world: int) -> Ints:
    """Where each of W runs begins, and the length: run r is as long as range(r, length, W)."""
    ranks = np.arange(world + 1, dtype=np.int64)
    return ranks * (length // world) + np.minimum(ranks, length % world)


class _Plan:
    """An epoch: line of positions -> cells -> slots -> units -> rows, and back.

    Cells, slots and units are kept in arrays. A unit is a file, or a shard's piece of one. A
    slot is a run of one unit's rows within a cell; slots lie in the line before their cell is permuted.
    """

    def __init__(self, order: BlockOrder, epoch: int) -> None:
        self.in_units: Permutations | None = None
        self.in_cells: Permutations | None = None
        self.layout = layout = _layout(order)
        self.world = len(layout.shard_starts) - 1
        is_block = order.shuffle == "block"
        units = np.arange(len(layout.size))
        if is_block:
            units = np.lexsort((random_words(_word("units", order.seed, epoch), len(units)), layout.shard))
        self.unit_size, self.unit_row = layout.size[units], layout.row[units]
        self.unit_shard = layout.shard[units]
        # By row, for the way back.
        self.by_row = np.argsort(self.unit_row)
        self.first_row = self.unit_row[self.by_row]
        if is_block:
            self._cut(order.window)
            self.in_units = Permutations(self.unit_size, "unit", order.seed, epoch)
        else:
            # A cell for each shard, and a slot for each unit.
            self.slot_unit = np.arange(len(units))
            self.slot_start = bounds_of(self.unit_size)[:-1]
            self.slot_cell, self.slot_shift = self.unit_shard, -self.slot_start
            self.unit_slot, self.unit_slices = self.slot_unit, np.ones(len(units), np.int64)
            self.slots = 1
            self.cell_start = layout.shard_starts
        if order.shuffle:
            self.in_cells = Permutations(np.diff(self.cell_start), "cell", order.seed, epoch)

    def _cut(self, window: int) -> None:
        """Cuts the units into slices, and puts these into cells."""
        per_shard = np.bincount(self.unit_shard)
        slices = np.minimum(per_shard, window)
        cells = np.maximum(per_shard + slices - 1, 0)
        self.slots = width = int(slices.max(initial=1))
        # Unit u begins in cell `first`, after the cells in which only the last units of other shards end.
        first = np.arange(len(self.unit_size)) + (bounds_of(cells) - bounds_of(per_shard))[self.unit_shard]
        self.unit_slices = count = slices[self.unit_shard]
        self.unit_slot = first * width
        num_cells = int(cells.sum())
        size = np.zeros((num_cells, width), np.int64)
        unit, inner = np.zeros_like(size), np.zeros_like(size)
        for k in range(width):
            some = np.flatnonzero(k < count)
            start, stop = (_slice_start(self.unit_size[some], k + end, count[some]) for end in (0, 1))
            size[first[some] + k, k] = stop - start
            unit[first[some] + k, k] = some
            inner[first[some] + k, k] = start
        starts = bounds_of(size)
        self.slot_start, self.slot_unit = starts[:-1], unit.reshape(-1)
        self.slot_shift = inner.reshape(-1) - self.slot_start
        self.slot_cell = np.repeat(np.arange(num_cells), width)
        self.cell_start = starts[::width]

    def rows(self, positions: Ints) -> Ints:
        """The row at each position."""
        line = positions
        if self.world > 1:
            line = self.layout.shard_starts[positions % self.world] + positions // self.world
        if self.in_cells is not None:
            cell = np.searchsorted(self.cell_start, line, "right") - 1
            line = self.in_cells.within(line, self.cell_start, cell, forward=True)
        slot = np.searchsorted(self.slot_start, line, "right") - 1  # the last that begins there or before
        unit = self.slot_unit[slot]
        inner = line + self.slot_shift[slot]
        if self.in_units is not None:
            inner = self.in_units.turned(inner, unit, forward=True)
        return self.unit_row[unit] + inner

    def positions(self, rows: Ints) -> Ints:
        """The position of each row."""
        unit = self.by_row[np.searchsorted(self.first_row, rows, "right") - 1]
        inner = rows - self.unit_row[unit]
        slot = self.unit_slot[unit]
        if self.in_units is not None:
            inner = self.in_units.turned(inner, unit, forward=False)
            k = ((inner + 1) * self.unit_slices[unit] - 1) // self.unit_size[unit]
            slot = slot + k * (self.slots + 1)
        line = inner - self.slot_shift[slot]
        if self.in_cells is not None:
            line = self.in_cells.within(line, self.cell_start, self.slot_cell[slot], forward=False)
        if self.world == 1:
            return line
        shard = self.unit_shard[unit]
        return (line - self.layout.shard_starts[shard]) * self.world + shard


@lru_cache(maxsize=4)
def _plan(order: BlockOrder, epoch: int) -> _Plan:
    return _Plan(order, epoch)


class Permutations:
    """A keyed bijection of 0..size-1 for each of many sizes.

    A Feistel network over two digits, the low one of some bits and the high one of as many values as it takes
    to hold the size. That is hardly more than the size, so few numbers need a walk (see `order`). The smaller
    the digits, the more rounds.
    """

    def __init__(self, sizes: Ints, *key: int | str) -> None:
        self._set(sizes, _words_of(key), np.arange(len(sizes)))

    @classmethod
    def of_each(
        cls, sizes: Ints, numbers: Ints, keys: Sequence[tuple[int | str, ...]], which: Ints
    ) -> Permutations:
        """One for each of B numbers: the permutation number `numbers` of those that one of the keys makes.

        Args:
            sizes: (B,) of these permutations.
            numbers: (B,) which they are of their key.
            keys: what differs.
            which: (B,) the key of each.
        """
        found = cls.__new__(cls)
        found._set(sizes, np.stack(list(map(_words_of, keys)), 1)[:, which], numbers)
        return found

    def _set(self, sizes: Ints, words: _Digits, numbers: Ints) -> None:
        """Sets what rounds do, from (3 + rounds,) words of a key, or from those of each number."""
        multiply, add, swap = (words_at(word, numbers + 1) for word in words[:3])
        # Rounds alone may make even permutations only; this says whether 0 and 1 are exchanged before.
        self._swaps = (swap & np.uint64(1)).astype(bool) & (sizes > 1)
        own, keys = [multiply | np.uint64(1), add], words[3:] | np.uint64(1)
        self._sizes = sizes
        self._low = np.maximum(np.frexp(np.maximum(sizes - 1, 0))[1], _MIN_BITS).astype(np.int64) // 2
        high = np.maximum(-(-sizes >> self._low), 1 << _MIN_BITS // 2)
        self._has_ones = bool((sizes == 1).any())  # a walk would find their 0 after 64 steps
        self._long = high.astype(np.uint64), own, keys
        self._short = high.astype(np.uint32), [some.astype(np.uint32) for some in own], keys.astype(np.uint32)

    def within(self, line: Ints, starts: Ints, which: Ints, forward: bool) -> Ints:
        """Numbers of a line permuted within the runs of it that begin at `starts`."""
        start = starts[which]
        return start + self.turned(line - start, which, forward)

    def turned(self, numbers: Ints, which: Ints, forward: bool) -> Ints:
        """Each number, permuted by the permutation that `which` names."""
        lows = self._low[which]
        kinds = range(int(lows.min()), int(lows.max()) + 1)
        if len(kinds) == 1:
            return self._walk(numbers, which, kinds[0], forward)
        out = np.empty_like(numbers)
        for kind in kinds:
            some = np.flatnonzero(lows == kind)
            if some.size:
                out[some] = self._walk(numbers[some], which[some], kind, forward)
        return out

    def _walk(self, numbers: Ints, which: Ints, low: int, forward: bool) -> Ints:
        sizes = self._sizes[which]
        if forward:
            numbers = self._swapped(numbers, which)
        mixed = self._feistel(numbers, which, low, forward)
        if self._has_ones:
            mixed[sizes == 1] = 0
        outside = np.flatnonzero(mixed >= sizes)
        while outside.size:
            again = self._feistel(mixed[outside], which[outside], low, forward)
            mixed[outside] = again
            outside = outside[again >= sizes[outside]]
        return mixed if forward else self._swapped(mixed, which)

    def _swapped(self, numbers: Ints, which: Ints) -> Ints:
        some = np.flatnonzero(numbers < 2)
        some = some[self._swaps[which[some]]]
        if some.size:
            numbers = numbers.copy()
            numbers[some] ^= 1
        return numbers

    def _rounds(self, which: Ints, low: int) -> list[tuple[_Digits, ...]]:
        """The factors, summands and factors of each round."""
        _, own, keys = self._short if low < 16 else self._long
        mine: list[_Digits] = [some[which] for some in own]
        rounds = keys[: _num_rounds(low)]
        return [(mine[0], mine[1], last) for last in (rounds if keys.ndim == 1 else rounds[:, which])]

    def _feistel(self, numbers: Ints, which: Ints, low: int, forward: bool) -> Ints:
        is_short = low < 16
        word: type[np.unsignedinteger] = np.uint32 if is_short else np.uint64
        width = 32 if is_short else 64
        radix, half = (self._short if is_short else self._long)[0][which], word(width // 2)
        values = numbers.astype(word)
        digits = [values >> word(low), values & word((1 << low) - 1)]
        hashed, shifted = np.empty_like(values), values
        rounds = list(enumerate(self._rounds(which, low)))
        for index, (multiply, add, remultiply) in rounds if forward else reversed(rounds):
            target = index % 2
            np.multiply(digits[1 - target], multiply, out=hashed)
            hashed += add
            np.right_shift(hashed, word(width // 2 - 1), out=shifted)
            hashed ^= shifted
            hashed *= remultiply
            if target:
                hashed >>= word(width - low)
                digits[1] ^= hashed
                continue
            hashed >>= half
            hashed *= radix
            hashed >>= half
            # Modulo the radix: of two numbers a radix apart, one has wrapped around and is huge.
            if forward:
                digits[0] += hashed
                np.subtract(digits[0], radix, out=shifted)
            else:
                digits[0] -= hashed
                np.add(digits[0], radix, out=shifted)
            np.minimum(digits[0], shifted, out=digits[0])
        digits[0] <<= word(low)
        digits[0] |= digits[1]
        return np.asarray(digits[0], np.int64)


@lru_cache(maxsize=4096)
def _words_of(key: tuple[int | str, ...]) -> _Digits:
    """The words of a key: of all permutations, and of each round."""
    return keyed_words(3 + _num_rounds(_MIN_BITS // 2), "block 2", *key)


def _num_rounds(low: int) -> int:
    """Rounds for digits of so many bits: enough to leave 2^-12 of the bias that `full` names, at least 8."""
    return max(8, 4 + 2 * -(-12 // low))


def _mapped(function: Callable[[Ints], Ints], numbers: Ints) -> Ints:
    flat = np.ascontiguousarray(numbers).reshape(-1)
    if flat.size <= _CHUNK:
        return np.asarray(function(flat), np.int64).reshape(numbers.shape)
    found = [function(flat[start : start + _CHUNK]) for start in range(0, flat.size, _CHUNK)]
    return np.concatenate(found).reshape(numbers.shape)


def _slice_start(sizes: Ints, k: int, slices: Ints) -> Ints:
    """The value `size * k // slices`, whatever the size."""
    return sizes // slices * k + sizes % slices * k // slices


def _word(*key: int | str) -> int:
    return int.from_bytes(keyed_bytes(8, "block", *key), "little")
