"""The numbers of a source of a mixture -> pass over it and place in the pass, while the source grows.

A source gives its numbers 0, 1, 2, ... in passes of as many rows as it has. When rows are appended, the next
passes have them, too. So a source is a few eras, and most have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...process.distinct import distinct
from ...rows.types import Ints
from ..contract import Shuffle
from ..passes import Passes, passes_over

__all__ = ["Era", "Turns", "read_era", "since", "turns_after"]

_MOST = 2**61
_MOST_ERAS = 16


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

    @property
    def told(self) -> str:
        """It as text, for states."""
        return ".".join(map(str, self))

    def passes(self, count: int) -> float:
        """How often the source was read when it has given so many numbers, the last of them here."""
        return self.turn + (count - self.first) / self.rows if self.rows else 0.0

    def most(self, passes: float) -> float:
        """How many numbers the source gives in so many passes, the last of them here."""
        return self.first + (passes - self.turn) * self.rows


def read_era(text: str) -> Era:
    """The era that `told` tells.

    Raises:
        ValueError: it is damaged.
    """
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise ValueError("damaged passes")
    era = Era(*map(int, parts))
    if not era.rows or max(era) >= _MOST:
        raise ValueError("damaged passes")
    return era


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
        self._passes: dict[int, Passes] = {}  # by number of rows

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
        passes, places = np.divmod(keys - era.first, era.rows)
        passes += era.turn
        return passes, self._of(era).rows(passes, places)

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
            place = self._of(era).positions(turns, rows[some])
            keys[some] = era.first + (turns - era.turn) * era.rows + place
        return keys

    def turn_at(self, key: int) -> int:
        """The pass that a number of the source is of."""
        era = self._eras[max(bisect_right(self._firsts, key) - 1, 0)]
        return era.turn + (key - era.first) // era.rows

    def _of(self, era: Era) -> Passes:
        """The passes of an era."""
        rows, files = era.rows, self._files
        if rows not in self._passes:
            if files is not None and int(files[-1]) != rows:
                files = np.append(files[files < rows], rows)
            self._passes[rows] = passes_over(rows, self._shuffle, self._window, files, *self._key)
        return self._passes[rows]
