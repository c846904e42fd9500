"""The numbers of a source of a mixture -> pass over it and row there, while the source grows.

A source gives its numbers 0, 1, 2, ... in passes of as many rows as it has. When rows are appended, the next
passes have them, too. So a source is a few eras, and most have one. Each pass has an order of its own, and
many passes over a small source are computed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...process.digests import keyed_bytes, words_at
from ...process.numbers import distinct
from ...rows.types import Ints
from ..by_file import BlockOrder
from ..contract import AnyOrder, Shuffle
from ..full import Order

_MOST_ERAS = 16
_MOST_NUMBERS = 2**20  # sorted together
_MOST_SORTED, _SORTED_BITS = 4096, 12  # rows of a source whose passes are sorted


class Era(NamedTuple):
    """Passes over a source of as many rows.

    Attributes:
        first: numbers of the source before it.
        turn: the number of its first pass.
        rows: rows of each pass.
    """

    first: int
    turn: int
    rows: int

    def passes(self, count: int) -> float:
        """How often the source was read when it has given so many numbers, the last of them here."""
        return self.turn + (count - self.first) / self.rows if self.rows else 0.0

    def most(self, passes: float) -> float:
        """How many numbers the source gives in so many passes, the last of them here."""
        return self.first + (passes - self.turn) * self.rows


def turns_after(eras: Sequence[Era], count: int, rows: int) -> tuple[Era, ...]:
    """The eras of a source that has grown: the new rows come in the pass after the one under way.

    Args:
        eras: those up to there.
        count: the numbers that it had given.
        rows: how many it has now.
    """
    begun = tuple(era for era in eras if era.first < count)
    if not begun:
        return (Era(0, 0, rows),)
    last = begun[-1]
    turns = -(-(count - last.first) // last.rows)
    return (*begun, Era(last.first + turns * last.rows, last.turn + turns, rows))


def since(eras: Sequence[Era], count: int) -> tuple[Era, ...]:
    """The eras that are needed once so many numbers have been given; those before only if they are few."""
    over = sum(later.first <= count for later in eras[1:]) if len(eras) > _MOST_ERAS else 0
    return tuple(eras[over:])


class Turns:
    """A source in the order of each pass over it.

    Args:
        eras: its passes.
        shuffle: True, False or "block".
        window: files mixed with each other at once, if shuffle is "block".
        files: where its files begin, if shuffle is "block".
        key: what the order depends on.
    """

    def __init__(
        self,
        eras: Sequence[Era],
        shuffle: Shuffle,
        window: int,
        files: Ints | None,
        *key: int | str,
    ) -> None:
        self._eras, self._shuffle, self._window, self._key = eras, shuffle, window, key
        self._files = files
        self._firsts = [era.first for era in eras]
        self._passes: dict[int, _Passes] = {}  # by number of rows

    def rows(self, keys: Ints) -> tuple[Ints, Ints]:
        """The pass, and the row in it, of each number of the source (B,)."""
        if len(self._eras) == 1:
            return self._in(self._eras[0], keys)
        passes, rows = np.empty_like(keys), np.empty_like(keys)
        which = np.searchsorted(self._firsts, keys, "right") - 1
        for number in distinct(which).tolist():
            some = np.flatnonzero(which == number)
            passes[some], rows[some] = self._in(self._eras[number], keys[some])
        return passes, rows

    def _in(self, era: Era, keys: Ints) -> tuple[Ints, Ints]:
        numbers = keys - era.first
        passes = numbers // era.rows  # which is faster than NumPy's divmod
        places = numbers - passes * era.rows
        passes += era.turn
        return passes, self._of(era).turned(passes, places, forward=True)

    def keys(self, passes: Ints, rows: Ints) -> Ints:
        """The number of each row in a pass (B,); -1 where the pass does not have it."""
        keys = np.full(len(rows), -1, np.int64)
        for era, end in zip(self._eras, [*self._firsts[1:], None], strict=True):
            is_here = (rows >= 0) & (rows < era.rows) & (passes >= era.turn)
            if end is not None:
                is_here &= passes < era.turn - (era.first - end) // era.rows
            some = np.flatnonzero(is_here)
            if not len(some):
                continue
            turns = passes[some]
            place = self._of(era).turned(turns, rows[some], forward=False)
            keys[some] = era.first + (turns - era.turn) * era.rows + place
        return keys

    def turn_at(self, key: int) -> int:
        """The pass that a number of the source is of."""
        era = self._eras[max(bisect_right(self._firsts, key) - 1, 0)]
        return era.turn + (key - era.first) // era.rows

    def _of(self, era: Era) -> _Passes:
        """The passes of an era."""
        rows, files = era.rows, self._files
        if rows not in self._passes:
            if files is not None and int(files[-1]) != rows:
                files = np.append(files[files < rows], rows)
            self._passes[rows] = self._over(rows, files)
        return self._passes[rows]

    def _over(self, length: int, files: Ints | None) -> _Passes:
        """The passes over so many rows."""
        if not self._shuffle:
            return _EachPass(Order(length, shuffle=False))
        if length <= _MOST_SORTED:
            return _SortedPasses(length, int.from_bytes(keyed_bytes(8, "passes", *self._key), "little"))
        seed = int.from_bytes(keyed_bytes(8, "source", *self._key), "little")
        if files is not None:
            return _EachPass(BlockOrder(files, seed, "block", window=self._window))
        return _EachPass(Order(length, seed))


class _EachPass(NamedTuple):
    """Passes over rows, each of which is an epoch of an order."""

    order: AnyOrder

    def turned(self, passes: Ints, numbers: Ints, forward: bool) -> Ints:
        """The row at each position of a pass, or the position of each row."""
        turn = self.order.rows if forward else self.order.positions
        low, high = int(passes.min()), int(passes.max())
        if low == high or not self.order.shuffle:
            return turn(low, numbers)
        found = np.empty_like(numbers)
        for number in distinct(passes).tolist():
            some = np.flatnonzero(passes == number)
            found[some] = turn(number, numbers[some])
        return found


class _SortedPasses:
    """Passes over few rows: each is the order of their keyed hashes, many passes at once."""

    def __init__(self, length: int, key: int) -> None:
        self._length = length
        self._key = key
        self._last: tuple[int, Ints] | None = None  # a pass, and the row at each of its positions

    def turned(self, passes: Ints, numbers: Ints, forward: bool) -> Ints:
        """The row at each position of a pass, or the position of each row."""
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


_Passes = _EachPass | _SortedPasses
