"""A source in the order of each pass over it, many passes at once.

A mixture counts what its rows hold, such as tokens, and packs are not all equally full. Were they shuffled
freely, the tokens of a prefix would wander off its share, as a random walk does. So the rows of each size are
dealt evenly, by the rounding of `Proportions`, in a tree over the sizes in their order: each node is off by
half a row at most, and what it confuses are rows of like sizes. Which row of a size comes follows from a
keyed bijection of these in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ..process.distinct import distinct
from ..rows.data import bounds_of
from ..rows.types import Ints
from .by_file import BlockOrder, Permutations
from .contract import AnyOrder, Shuffle
from .full import ORDER_VERSION, Order, keyed_bytes, words_at
from .mixing.proportions import MOST_WEIGHT

__all__ = [
    "EvenPasses",
    "Passes",
    "Strata",
    "passes_over",
    "held_by_each",
    "rows_of_each",
    "sizes_of_each",
    "strata_of",
]

Strata: TypeAlias = tuple[tuple[int, float], ...]  # how many rows there are of each size, and the size

_MOST_NUMBERS = 2**20  # sorted together
_MOST_SIZES = 2**12  # of rows, that come evenly
_MOST_SORTED, _SORTED_BITS = 4096, 12  # rows of a source whose passes are sorted


def passes_over(length: int, shuffle: Shuffle, window: int, files: Ints | None, *key: int | str) -> Passes:
    """The passes over a source.

    Args:
        length: its rows.
        shuffle: True, False or "block".
        window: files mixed with each other at once, if shuffle is "block".
        files: where its files begin, if shuffle is "block".
        key: what the order depends on.
    """
    if not shuffle:
        return _AsTheyLie()
    if length <= _MOST_SORTED:
        return _SortedPasses(length, int.from_bytes(keyed_bytes(8, "passes", *key), "little"))
    seed = int.from_bytes(keyed_bytes(8, "source", *key), "little")
    if shuffle == "block":
        assert files is not None
        return _Ordered(BlockOrder(files, seed, "block", window=window))
    return _Ordered(Order(length, seed))


class Passes(Protocol):
    """A source in the order of each pass over it."""

    def rows(self, passes: Ints, positions: Ints) -> Ints:
        """The row at each position of a pass."""

    def positions(self, passes: Ints, rows: Ints) -> Ints:
        """The position of each row in a pass."""


class _AsTheyLie:
    """Rows as they lie, in every pass."""

    def rows(self, passes: Ints, positions: Ints) -> Ints:
        return positions

    def positions(self, passes: Ints, rows: Ints) -> Ints:
        return rows


class _Ordered:
    """Passes in the epochs of an order."""

    def __init__(self, order: AnyOrder) -> None:
        self._order = order

    def rows(self, passes: Ints, positions: Ints) -> Ints:
        return self._turned(self._order.rows, passes, positions)

    def positions(self, passes: Ints, rows: Ints) -> Ints:
        return self._turned(self._order.positions, passes, rows)

    def _turned(self, turn: _Turning, passes: Ints, numbers: Ints) -> Ints:
        low, high = int(passes.min()), int(passes.max())
        if low == high:
            return turn(low, numbers)
        found = np.empty_like(numbers)
        for number in distinct(passes).tolist():
            some = np.flatnonzero(passes == number)
            found[some] = turn(number, numbers[some])
        return found


class _Turning(Protocol):
    def __call__(self, epoch: int, numbers: npt.ArrayLike, /) -> Ints: ...


class _SortedPasses:
    """Passes over few rows: each is the order of their keyed hashes, many passes at once."""

    def __init__(self, length: int, key: int) -> None:
        self._length = length
        self._key = key
        self._last: tuple[int, Ints] | None = None  # a pass, and the row at each of its positions

    def rows(self, passes: Ints, positions: Ints) -> Ints:
        return self._looked_up(passes, positions, forward=True)

    def positions(self, passes: Ints, rows: Ints) -> Ints:
        return self._looked_up(passes, rows, forward=False)

    def _looked_up(self, passes: Ints, numbers: Ints, forward: bool) -> Ints:
        if len(passes) and int(passes.min()) == int(passes.max()):
            last = self._last
            if last is None or last[0] != passes[0]:
                last = self._last = int(passes[0]), self._sorted(passes[:1])[0].astype(np.uint16)
            rows = last[1] if forward else np.argsort(last[1])
            return rows[numbers].astype(np.int64)
        wanted = distinct(passes)
        which = np.searchsorted(wanted, passes)
        found = np.empty_like(numbers)
        step = max(1, _MOST_NUMBERS // self._length)
        for start in range(0, len(wanted), step):
            rows = self._sorted(wanted[start : start + step])
            if not forward:
                rows = np.argsort(rows, axis=1)
            some = np.flatnonzero((which >= start) & (which < start + step))
            found[some] = rows[which[some] - start, numbers[some]]
        return found

    def _sorted(self, passes: Ints) -> Ints:
        """(P, n) the rows of each of these passes."""
        low, rows = np.uint64(_SORTED_BITS), np.arange(self._length)
        words = words_at(self._key, passes[:, None] * self._length + rows) >> low << low
        words |= rows.astype(np.uint64)
        words.sort(axis=1)
        found: Ints = (words & np.uint64(2**_SORTED_BITS - 1)).astype(np.int64)
        return found


def strata_of(sizes: Sequence[int], costs: Sequence[int]) -> Strata:
    """How many rows there are of each of some costs, if rows of like costs follow each other; else nothing.

    Args:
        sizes: rows of each of some runs.
        costs: what a row of each costs, in order.

    Example:
        >>> strata_of([3, 1, 2], [8, 8, 5]), strata_of([1, 1, 1], [5, 8, 6])
        (((4, 8), (2, 5)), ())
    """
    total = np.asarray(sizes, np.int64)
    each = np.asarray(costs, np.int64)
    changes = np.diff(each)
    if not len(total) or total.sum() > MOST_WEIGHT or not ((changes >= 0).all() or (changes <= 0).all()):
        return ()
    firsts = np.append(0, np.flatnonzero(changes) + 1)
    found = zip(np.add.reduceat(total, firsts).tolist(), each[firsts].tolist(), strict=True)
    return tuple(found) if len(firsts) <= _MOST_SIZES else ()


class EvenPasses:
    """A source in the order of each pass over it.

    Args:
        strata: (K,) how many rows of each size it has, one size after the other, and the size.
        key: what the order depends on; none for rows as they lie.

    Example:
        >>> passes = EvenPasses(((6, 8), (3, 5)), ("packs", 7))
        >>> rows = passes.rows(np.zeros(9, np.int64), np.arange(9))
        >>> (rows >= 6).tolist(), sorted(rows.tolist()) == list(range(9))
        ([False, True, False, False, True, False, False, True, False], True)
    """

    def __init__(self, strata: Strata, key: tuple[int | str, ...] | None) -> None:
        self._sizes = np.array([rows for rows, _ in strata], np.int64)
        self.held = np.array([size for _, size in strata])
        self._starts = bounds_of(self._sizes)
        self._key = key

    def rows(self, passes: Ints, positions: Ints) -> Ints:
        """The row at each position of a pass."""
        first, last = np.zeros(len(positions), np.int64), np.full(len(positions), len(self._sizes))
        place, size = _dealt(positions, self._starts, first, last)
        return self._turned(passes, self._starts[size] + place, size, True)

    def positions(self, passes: Ints, rows: Ints) -> Ints:
        """The position of each row in a pass."""
        size = np.searchsorted(self._starts, rows, "right") - 1
        place = self._turned(passes, rows, size, False) - self._starts[size]
        first, last = np.zeros(len(rows), np.int64), np.full(len(rows), len(self._sizes), np.int64)
        way = []
        while int((last - first).max(initial=1)) > 1:
            middle = np.where(last - first > 1, (first + last) // 2, last)
            way.append((first, middle, last))
            is_left = size < middle
            first, last = np.where(is_left, first, middle), np.where(is_left, middle, last)
        for first, middle, last in reversed(way):
            total = self._starts[last] - self._starts[first]
            share = self._starts[middle] - self._starts[first]
            is_left = size < middle
            weight = np.where(is_left, share, total - share)
            rest = np.where(is_left, total // 2, total - 1 - total // 2)
            # The smallest k of which floor((k w + rest) / R) is above the place.
            rounds, left = np.divmod(place + 1, weight)
            place = rounds * total - (rest - left * total) // weight - 1
        return place

    def _turned(self, passes: Ints, rows: Ints, sizes: Ints, forward: bool) -> Ints:
        """Rows that change places with others of their size."""
        if self._key is None:
            return rows
        found = np.empty_like(rows)
        for number in distinct(passes).tolist():
            some = np.flatnonzero(passes == number)
            within = Permutations(ORDER_VERSION, self._sizes, "even", *self._key, number).within
            found[some] = within(rows[some], self._starts, sizes[some], forward=forward)
        return found


def sizes_of_each(some: Sequence[EvenPasses], bounds: Ints, positions: Ints) -> Ints:
    """(B,) the sizes of the rows that come at positions of passes over several sources.

    Args:
        some: the passes over each source.
        bounds: (sources + 1,) where the positions of each begin: those of one come after the other.
        positions: in a pass.
    """
    begins, which, starts = _laid(some, bounds)
    _, size = _dealt(positions, starts, begins[which], begins[which + 1])
    return np.concatenate([source.held for source in some])[size]


def held_by_each(some: Sequence[EvenPasses], places: Ints) -> Ints:
    """(sources,) what the rows hold that come at the first positions of a pass, so many of each source."""
    begins, _, starts = _laid(some, bounds_of([0] * len(some)))
    first, last, count = begins[:-1], begins[1:], places
    while len(first) < begins[-1]:
        middle = np.where(last - first > 1, (first + last) // 2, last)
        total = starts[last] - starts[first]
        left = (count * (starts[middle] - starts[first]) + total // 2) // total
        both = np.stack([first, middle], 1), np.stack([middle, last], 1), np.stack([left, count - left], 1)
        is_there = (both[1] > both[0]).reshape(-1)
        first, last, count = (one.reshape(-1)[is_there] for one in both)
    return np.add.reduceat(count * np.concatenate([source.held for source in some]), begins[:-1])


def rows_of_each(some: Sequence[EvenPasses], bounds: Ints, passes: Ints, positions: Ints) -> Ints:
    """The rows (B,) at positions of passes over several sources; see `sizes_of_each`."""
    begins, which, starts = _laid(some, bounds)
    place, size = _dealt(positions, starts, begins[which], begins[which + 1])
    before = starts[size] - starts[begins[which]]
    keys = [source._key for source in some]
    if None in keys:
        assert not any(keys), "all sources are shuffled, or none"
        return before + place
    # Those of one pass over one source have a key.
    changes = (np.diff(which) != 0) | (np.diff(passes) != 0)
    firsts = np.append(0, np.flatnonzero(changes) + 1)
    own = [
        ("even", *(keys[number] or ()), turn)
        for number, turn in zip(which[firsts].tolist(), passes[firsts].tolist(), strict=True)
    ]
    of_key = bounds_of(changes.astype(np.int64))
    sizes = starts[size + 1] - starts[size]
    turned = Permutations.of_each(sizes, size - begins[which], own, of_key)
    return before + turned.turned(place, np.arange(len(place)), True)


def _laid(some: Sequence[EvenPasses], bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Sizes of several sources laid end to end.

    Returns:
        Where the sizes of each source begin; which source each position is of; where rows of each size begin.
    """
    begins = bounds_of([len(source._sizes) for source in some])
    starts = bounds_of(np.concatenate([source._sizes for source in some]))
    return begins, np.repeat(np.arange(len(some)), np.diff(bounds)), starts


def _dealt(positions: Ints, starts: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The place among the rows of its size of what comes at each position of a pass, and the size.

    Args:
        positions: (B,) in a pass.
        starts: where the rows of each size begin.
        first: (B,) the first size of the source.
        last: (B,) the size after its last.
    """
    place = positions.astype(np.int64)
    for _ in range(int((last - first).max(initial=1)).bit_length()):
        middle = np.where(last - first > 1, (first + last) // 2, last)
        before_all = starts[first]
        share, total = starts[middle] - before_all, starts[last] - before_all
        before, after = ((k * share + total // 2) // total for k in (place, place + 1))
        is_left = after > before
        place = np.where(is_left, before, place - before)
        first, last = np.where(is_left, first, middle), np.where(is_left, middle, last)
    return place, first
