"""A source in the order of each pass over it, many passes at once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..process.distinct import distinct
from ..rows.types import Ints
from .by_file import BlockOrder
from .contract import AnyOrder, Shuffle
from .full import Order, keyed_bytes, words_at

_MOST_NUMBERS = 2**20  # sorted together
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
