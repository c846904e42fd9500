"""The numbers of a source of a mixture -> pass over it and place in the pass, while the source grows.

A source gives its numbers 0, 1, 2, ... in passes of as many rows as it has. When rows are appended, later
passes have them too; those that join a pass under way are mixed with what is left of it, as in `grown.py`. So
a source is a few eras, and most have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import StateError
from ...process.distinct import distinct
from ...rows.types import Ints
from ..carry import Appended
from ..contract import Shuffle
from ..full import Order
from ..grown import Joins
from ..passes import EvenPasses, Passes, Strata, passes_over, rows_of_each
from ..state import MOST_JOINED

__all__ = ["Era", "Laid", "Turns", "begun_before", "read_era", "since", "turned_each", "turns_after"]

_MOST = 2**61
_MOST_ERAS = 16
_FEW = 64  # numbers of a source, on average, below which all sources are looked up together


class Era(NamedTuple):
    """Passes over a source of as many rows.

    Attributes:
        first: numbers of the source before it.
        turn: the number of its first pass.
        rows: rows of each pass.
        joined: if rows joined its only pass, (N, place) for each time: the rows before, and the place.
        tag: which version of the source it is over, if that is one of before: see `Version`.
    """

    first: int
    turn: int
    rows: int
    joined: tuple[tuple[int, int], ...] = ()
    tag: str = ""

    @property
    def told(self) -> str:
        """It as text, for states."""
        told = ".".join(map(str, (*self[:3], *(number for join in self.joined for number in join))))
        return f"{told}-{self.tag}" if self.tag else told

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
    text, _, tag = text.partition("-")
    parts = text.split(".")
    if len(parts) % 2 == 0 or not 3 <= len(parts) <= 3 + 2 * MOST_JOINED:
        raise ValueError("damaged passes")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise ValueError("damaged passes")
    first, turn, rows, *more = map(int, parts)
    joined = tuple(zip(more[::2], more[1::2], strict=True))
    sizes, places = [n for n, _ in joined] + [rows], [place for _, place in joined]
    is_sound = all(before < after for before, after in pairwise(sizes)) and places == sorted(places)
    is_sound = is_sound and all(0 < place < size for size, place in joined) and rows > 0
    if not is_sound or max(first, turn, rows) >= _MOST:
        raise ValueError("damaged passes")
    return Era(first, turn, rows, joined, tag)


def begun_before(eras: Sequence[Era], count: int, tag: str) -> tuple[Era, ...]:
    """The eras that had begun when a source had given so many numbers; the newest were over version `tag`."""
    return tuple(era if era.tag else era._replace(tag=tag) for era in eras if era.first < count)


def turns_after(
    eras: Sequence[Era], count: int, rows: int, appended: Appended, name: str, shuffle: Shuffle, tag: str = ""
) -> tuple[Era, ...]:
    """The eras of a source that has grown.

    Args:
        eras: those up to there.
        count: the numbers that it had given.
        rows: how many it has now.
        appended: when the new ones come: in the pass after the one under way, or in the rest of it.
        name: its name, for messages.
        shuffle: how it is shuffled.
        tag: of the version that it was, if rows of that have numbers of their own.

    Raises:
        StateError: rows cannot join the pass under way.
    """
    begun = begun_before(eras, count, tag)
    if not begun:
        return (Era(0, 0, rows),)
    last = begun[-1]
    turns, place = divmod(count - last.first, last.rows)
    begin, turn = last.first + turns * last.rows, last.turn + turns
    if not place:
        return (*begun, Era(begin, turn, rows))
    if appended == "next":
        return (*begun, Era(begin + last.rows, turn + 1, rows))
    if tag:
        raise StateError(
            f"documents were appended to the source {name!r}, and the rest of the pass over it is of packs "
            "or windows that were made without them, which they cannot join; pass appended='next'"
        )
    if shuffle == "block":
        raise StateError(
            f"rows were appended to the source {name!r}, and a block shuffle is laid out for a whole pass "
            "over it, which they cannot join; pass appended='next'"
        )
    joined = (*(last.joined if not turns else ()), (last.rows, place))
    if len(joined) > MOST_JOINED:
        raise StateError(
            f"rows have joined the pass over the source {name!r} {MOST_JOINED} times, and a state holds no "
            "more; pass appended='next'"
        )
    kept = begun if turns else begun[:-1]
    return (*kept, Era(begin, turn, rows, joined), Era(begin + rows, turn + 1, rows))


def since(eras: Sequence[Era], count: int) -> tuple[Era, ...]:
    """The eras that are needed once so many numbers have been given; those before only if they are few."""
    over = sum(later.first <= count for later in eras[1:]) if len(eras) > _MOST_ERAS else 0
    return tuple(eras[over:])


class Laid(NamedTuple):
    """A version of a source, for passes over it.

    Attributes:
        tag: its name in eras.
        files: where its files begin, if they matter.
        strata: how many rows it has of each size, if these are to come evenly.
    """

    tag: str = ""
    files: Ints | None = None
    strata: Strata = ()


class Turns:
    """A source in the order of each pass over it.

    Args:
        eras: its passes.
        shuffle: True, False or "block".
        window: files mixed with each other at once, if shuffle is "block".
        versions: it as it is, and as it was.
        unit: how many numbers there are for rows of each version; 0 if these are rows of all later ones.
        key: what the order depends on.
    """

    def __init__(
        self,
        eras: Sequence[Era],
        shuffle: Shuffle,
        window: int,
        versions: Sequence[Laid],
        unit: int,
        *key: int | str,
    ) -> None:
        self._eras, self._shuffle, self._window, self._key = eras, shuffle, window, key
        self._versions, self._unit = versions, unit
        self._firsts = [era.first for era in eras]
        self._passes: dict[tuple[int, int], Passes] = {}  # by version, and number of rows

    def version_of(self, era: Era) -> int:
        """Which of its versions passes are over."""
        if not era.tag:
            return 0
        return next((number for number, own in enumerate(self._versions) if own.tag == era.tag), 0)

    def rows(self, keys: Ints) -> tuple[Ints, Ints]:
        """The pass, and the row in it, of each number of the source (B,)."""
        era = self._eras[0]
        if len(self._eras) == 1 and not era.joined and not era.tag:
            passes, rows = np.divmod(keys - era.first, era.rows)
            passes += era.turn
            return passes, self._of(era).rows(passes, rows)
        passes, rows = np.empty_like(keys), np.empty_like(keys)
        for era, some in self._parts(np.searchsorted(self._firsts, keys, "right") - 1):
            turns, place = np.divmod(keys[some] - era.first, era.rows)
            passes[some] = turns = turns + era.turn
            of = self._of(era)
            if era.joined:
                rows[some] = self._joins(era).rows(place, partial(_in_pass, of.rows, era.turn))
            else:
                rows[some] = of.rows(turns, place) + self._unit * self.version_of(era)
        return passes, rows

    @property
    def even(self) -> tuple[Era, EvenPasses] | None:
        """All passes over it, if they are alike, and rows of each size come evenly."""
        if len(self._eras) > 1 or self._eras[0].joined or self._eras[0].tag:
            return None
        passes = self._of(self._eras[0])
        return (self._eras[0], passes) if isinstance(passes, EvenPasses) else None

    def keys(self, passes: Ints, rows: Ints) -> Ints:
        """The number of each row in a pass (B,); -1 where the pass does not have it."""
        keys = np.full(len(rows), -1, np.int64)
        for era, end in zip(self._eras, [*self._firsts[1:], None], strict=True):
            row = rows - self._unit * self.version_of(era)
            is_here = (row >= 0) & (row < era.rows) & (passes >= era.turn)
            if end is not None:
                is_here &= passes < era.turn - (era.first - end) // era.rows
            some = np.flatnonzero(is_here)
            if not len(some):
                continue
            turns, of = passes[some], self._of(era)
            if era.joined:
                place = self._joins(era).positions(row[some], partial(_in_pass, of.positions, era.turn))
            else:
                place = of.positions(turns, row[some])
            found = era.first + (turns - era.turn) * era.rows + place
            # What is left of a pass may have been made anew.
            keys[some] = found if end is None else np.where(found < end, found, -1)
        return keys

    def turn_at(self, key: int) -> int:
        """The pass that a number of the source is of."""
        era = self._eras[max(bisect_right(self._firsts, key) - 1, 0)]
        return era.turn + (key - era.first) // era.rows

    def _parts(self, which: Ints) -> Iterator[tuple[Era, Ints]]:
        """For each era that has some of these: it, and which ones."""
        if len(self._eras) == 1:
            yield self._eras[0], np.arange(len(which))
            return
        for number in distinct(which).tolist():
            yield self._eras[number], np.flatnonzero(which == number)

    def _of(self, era: Era) -> Passes:
        """The passes of an era, as they were before rows joined."""
        rows = era.joined[0][0] if era.joined else era.rows
        number = self.version_of(era)
        if (number, rows) not in self._passes:
            _, files, strata = self._versions[number]
            # Rows of different sizes, such as packs, are of all files, so only those of one size keep to
            # blocks.
            is_even = bool(strata) and (self._shuffle != "block" or len(strata) > 1)
            if files is not None and int(files[-1]) != rows:
                files = np.append(files[files < rows], rows)
            self._passes[number, rows] = (
                EvenPasses(strata, self._key if self._shuffle else None)
                if is_even
                else passes_over(rows, self._shuffle, self._window, files, *self._key)
            )
        return self._passes[number, rows]

    def _joins(self, era: Era) -> Joins:
        joining = Order(era.rows, 0, bool(self._shuffle)).joining
        return Joins.of(era.joined, era.rows, joining, "rows", *self._key, era.turn)


def _in_pass(turned: Callable[[Ints, Ints], Ints], turn: int, numbers: Ints) -> Ints:
    """Numbers looked up in one pass."""
    return turned(np.full(len(numbers), turn), numbers)


def turned_each(sources: Sequence[Turns], bounds: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """The pass, and the row in it, of each number (B,) of several sources.

    Args:
        sources: the sources.
        bounds: (sources + 1,) where the numbers of each begin: those of one come after the other.
        keys: the numbers.
    """
    passes, rows = np.empty_like(keys), np.empty_like(keys)
    even = [source.even for source in sources] if len(keys) < _FEW * len(sources) else []
    known = [one for one in even if one is not None]
    if known and len(known) == len(sources):
        first, turn, length = (np.repeat([era[n] for era, _ in known], np.diff(bounds)) for n in range(3))
        passes, places = np.divmod(keys - first, length)
        passes += turn
        return passes, rows_of_each([one for _, one in known], bounds, passes, places)
    for source, (begin, end) in zip(sources, pairwise(bounds.tolist()), strict=True):
        passes[begin:end], rows[begin:end] = source.rows(keys[begin:end])
    return passes, rows
