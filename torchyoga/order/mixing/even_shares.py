"""Places dealt to sources by what their rows hold, so that every prefix has the shares to one row of each.

Packs are of different sizes, so their places are not those of equal rows. On an ideal line all sources go on
at once, each at its rate: there a row begins and ends at some point. Of the rows that would have begun there,
the one comes next that would end first. So no source is ever more than a row, the largest there is, off its
share of what came (J. Bennett and H. Zhang, "WF2Q: Worst-case Fair Weighted Fair Queueing", 1996), which no
rounding in a tree can promise: its nodes add up.

What comes next follows from how many rows each source has given, and from nothing else. So places are dealt
in chunks, which are kept as these few counts, and any place costs its chunk, once those before it are known.
States tell the counts of a chunk, so that those before it need not be dealt again when a run goes on.

Within cells places are then permuted by a key, as far as shares stay that close.
Even shares are regular, and ranks take every W-th place: see `mixed.py`. A permutation of a whole cell that
leaves the bound is tried anew in each half, and so on; in the end a place stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...process.distinct import distinct
from ...process.lazy import cached_property
from ...rows.data import bounds_of
from ...rows.types import Ints
from ..full import words_at
from ..passes import EvenPasses, Strata, held_by_each, sizes_of_each
from .turns import Era

__all__ = ["EvenShares", "Mark", "Measured", "chunk_size", "even_shares"]

Floats: TypeAlias = npt.NDArray[np.float64]
Mark: TypeAlias = tuple[int, tuple[int, ...]]
_CHUNK = 2048  # places dealt at once, if cells are no larger
_EACH = 16  # places of a chunk for each source, which is looked up once
_MOST_KEPT = 64  # chunks of which the places are kept
_AHEAD = 16  # rows of a source that are looked up at least
_EXACT = 1e-9  # of a row, which sums of floats may be off


class Measured(NamedTuple):
    """What the rows of a source hold.

    Attributes:
        eras: the passes over it.
        strata: of each of these, the rows of a pass by what they hold; empty where they count as the mean.
        mean: what a row holds on average, now.
    """

    eras: tuple[Era, ...]
    strata: tuple[Strata, ...]
    mean: float

    @property
    def simple(self) -> tuple[Era, Strata] | None:
        """The only passes over it, and what their rows hold, if these are known whole numbers."""
        if len(self.eras) > 1 or not self.strata or not self.strata[0]:
            return None
        is_whole = all(isinstance(size, int) for _, size in self.strata[0])
        return (self.eras[0], self.strata[0]) if is_whole else None

    def most(self, first: int = 0) -> float:
        """What a row holds at most, of the numbers from one on."""
        ends = [*(later.first for later in self.eras[1:]), first + 1]
        coming = [some for some, end in zip(self.strata, ends, strict=False) if end > first]
        return float(max((size for some in coming for _, size in some), default=self.mean))

    def held(self, first: int, count: int) -> Floats:
        """(count + 1,) what the numbers of the source from `first` on hold, up to each of them."""
        found = np.full(count + 1, self.mean)
        found[0] = 0
        for era, strata, begin, end in self._parts(first, first + count):
            if strata:
                places = (np.arange(begin, end) - era.first) % era.rows
                sizes = sizes_of_each([_even(strata)], bounds_of([len(places)]), places)
                found[1 + begin - first : 1 + end - first] = sizes
        return np.cumsum(found)

    def between(self, first: int, stop: int) -> float:
        """What the numbers of the source from one up to another hold."""
        total = 0.0
        for era, strata, begin, end in self._parts(first, stop):
            if not strata:
                total += (end - begin) * self.mean
            else:
                total += _up_to(strata, end - era.first) - _up_to(strata, begin - era.first)
        return total

    def _parts(self, first: int, stop: int) -> Iterator[tuple[Era, Strata, int, int]]:
        """The eras that have some of these numbers, what their rows hold, and from which one to which."""
        ends = [*(later.first for later in self.eras[1:]), stop]
        for era, strata, end in zip(self.eras, self.strata or ((),) * len(ends), ends, strict=True):
            if max(first, era.first) < min(stop, end):
                yield era, strata, max(first, era.first), min(stop, end)


@lru_cache(maxsize=1024)
def _even(strata: Strata) -> EvenPasses:
    return EvenPasses(strata, None)


@lru_cache(maxsize=4096)
def _up_to(strata: Strata, number: int) -> float:
    """What the first numbers of a source hold."""
    passes, place = divmod(number, sum(count for count, _ in strata))
    found = passes * sum(count * size for count, size in strata)
    rest: float = held_by_each([_even(strata)], np.array([place]))[0].item()
    return found + rest


def _up_to_each(even: Sequence[EvenPasses], rows: Ints, numbers: Ints) -> Ints:
    """How much so many of the first numbers of each source hold, of which a pass has `rows`."""
    passes, places = np.divmod(numbers, rows)
    return passes * held_by_each(even, rows) + held_by_each(even, places)


class _Chunk(NamedTuple):
    """Places that follow each other.

    Attributes:
        source, key: (C,) the source of each, and the number that it is there.
        before, after: (C,) what the source has given before it, and with it.
        held: what all sources have given before the first.
    """

    source: Ints
    key: Ints
    before: Floats
    after: Floats
    held: float


class EvenShares:
    """Places 0, 1, 2, ... dealt to some sources, by what their rows hold.

    Args:
        weights: (S,) whole numbers, the rows of each in proportion.
        measured: (S,) what they hold.
        counts: (S,) how many rows each has given before.
        cell: places that are permuted together, as far as that goes.
        start, rows: none are that lie in different epochs, of so many rows, if these begin at place `start`.
        mark: the number of a chunk, and (S,) how many rows each has given before it, if that is known.

    Example:
        >>> one, other = (Measured((Era(0, 0, 9),), (((9, size),),), size) for size in (4, 2))
        >>> shares = EvenShares((1, 2), (one, other), (0, 0), 1, 0, 6)
        >>> shares.dealt(np.arange(6), 0)[0].tolist(), shares.counts(np.array([3, 6])).tolist()
        ([1, 0, 1, 1, 0, 1], [[1, 2], [2, 4]])
    """

    def __init__(
        self,
        weights: Sequence[int],
        measured: Sequence[Measured],
        counts: Sequence[int],
        cell: int,
        start: int,
        rows: int,
        mark: Mark | None = None,
    ) -> None:
        rates = np.array([weight * one.mean for weight, one in zip(weights, measured, strict=True)])
        self._weights, self._rates = tuple(weights), rates / rates.sum()
        self._measured, self._cell, self._start, self._rows = tuple(measured), cell, start, rows
        self._size = chunk_size(len(rates), cell)
        every = zip(weights, measured, counts, strict=True)
        self._most = max(one.most(count) for weight, one, count in every if weight)
        self._own = tuple(number for number, weight in enumerate(weights) if weight)
        self._first = np.array(counts, np.int64)
        # Of each chunk from one on: how many rows each source has given before.
        self._runs = [(0, [self._first])]
        if mark is not None and mark[0]:
            self._runs.append((mark[0], [np.array(mark[1], np.int64)]))
        self._mark = mark
        self._chunk_of = lru_cache(_MOST_KEPT)(self._chunk_made)
        self._mixed_of = lru_cache(_MOST_KEPT)(self._mixed_made)

    def __reduce__(self) -> tuple[object, ...]:
        told = self._weights, self._measured, tuple(self._first.tolist())
        return even_shares, (*told, self._cell, self._start, self._rows, self._mark)

    def dealt(self, places: Ints, key: int) -> tuple[Ints, Ints]:
        """The source of each place (B,), and the number that it is there, permuted by a key."""
        source, number = np.empty_like(places), np.empty_like(places)
        which, within = np.divmod(places, self._size)
        for one in distinct(which).tolist():
            some = np.flatnonzero(which == one)
            own, keys = self._mixed_of(one, key)
            source[some], number[some] = own[within[some]], keys[within[some]]
        return source, number

    def places(self, source: int, numbers: Ints, key: int | None = None) -> Ints:
        """The places (B,) of numbers of a source: the inverse of `dealt`; without a key, unpermuted."""
        found = np.empty_like(numbers)
        in_run = np.searchsorted([int(run[1][0][source]) for run in self._runs[1:]], numbers, "right")
        for run in distinct(in_run).tolist():
            mine, (first, counts) = np.flatnonzero(in_run == run), self._runs[run]
            while counts[-1][source] <= int(numbers[mine].max()):
                self._deal_on(first, counts)
            begins = np.array([some[source] for some in counts])
            which = np.searchsorted(begins, numbers[mine], "right") - 1
            for one in distinct(which).tolist():
                some, chunk = mine[which == one], first + one
                of = self._chunk_of(chunk).source if key is None else self._mixed_of(chunk, key)[0]
                own = np.flatnonzero(of == source)
                found[some] = chunk * self._size + own[numbers[some] - begins[one]]
        return found

    def counts(self, places: Ints) -> Ints:
        """(S, B) how many rows each source has given before these places; exact where cells end."""
        found = np.empty((len(self._first), len(places)), np.int64)
        which, within = np.divmod(places, self._size)
        for one in distinct(which).tolist():
            begin = self._begin(one)
            for at in np.flatnonzero(which == one).tolist():
                own = self._chunk_of(one).source[: within[at]] if within[at] else within[:0]
                found[:, at] = begin + np.bincount(own, minlength=len(begin))
        return found

    def _begin(self, number: int) -> Ints:
        """How many rows each source has given before a chunk."""
        first, counts = next(run for run in reversed(self._runs) if run[0] <= number)
        while len(counts) <= number - first:
            self._deal_on(first, counts)
        return counts[number - first]

    def _deal_on(self, first: int, counts: list[Ints]) -> None:
        """One more chunk, behind those from `first` on."""
        last = len(counts) - 1
        given = np.bincount(self._chunk_of(first + last).source, minlength=len(self._first))
        if len(counts) == last + 1:
            counts.append(counts[last] + given)

    def _chunk_made(self, number: int) -> _Chunk:
        """The places of a chunk before they are permuted."""
        begin, rates = self._begin(number).tolist(), self._rates.tolist()
        held = self._all_held(begin)
        at, now = [0] * len(begin), sum(some[0] for some in held)
        base = now
        ready: list[tuple[float, int]] = []  # by where a row ends, on the ideal line
        coming = [(held[source][0] / rates[source], source) for source in self._own]
        heapify(coming)
        found: list[int] = []
        while len(found) < self._size:
            while coming and (coming[0][0] <= now or not ready):
                _, source = heappop(coming)
                heappush(ready, (held[source][at[source] + 1] / rates[source], source))
            _, source = heappop(ready)
            found.append(source)
            at[source] = place = at[source] + 1
            some = held[source]
            now += some[place] - some[place - 1]
            if place + 1 == len(some):
                held[source] += self._held(source, begin[source] + place)[1:]
            heappush(coming, (some[place] / rates[source], source))
        own, key = np.array(found), np.empty(self._size, np.int64)
        before, after = np.empty(self._size), np.empty(self._size)
        order = np.argsort(own, kind="stable")
        bounds = bounds_of(np.bincount(own, minlength=len(begin))).tolist()
        for source, (start, stop) in enumerate(pairwise(bounds)):
            places, line = order[start:stop], np.array(held[source][: stop - start + 1])
            key[places] = begin[source] + np.arange(stop - start)
            before[places], after[places] = line[:-1], line[1:]
        return _Chunk(own, key, before, after, base)

    def _all_held(self, begin: list[int]) -> list[list[float]]:
        """For each source, how much it has given since it began, up to each of its next rows."""
        simple, first, rows, even = self._simple
        held: dict[int, list[float]] = {}
        if simple:
            start = np.array(begin)[simple]
            ahead = np.array([self._ahead(source) for source in simple])
            bounds = bounds_of(ahead)
            numbers = np.arange(bounds[-1]) + np.repeat(start - first - bounds[:-1], ahead)
            held_there = bounds_of(sizes_of_each(even, bounds, numbers % np.repeat(rows, ahead)))
            before = _up_to_each(even, rows, start - first)
            before -= _up_to_each(even, rows, self._first[simple] - first)
            for number, (source, (low, high)) in enumerate(
                zip(simple, pairwise(bounds.tolist()), strict=True)
            ):
                line = held_there[low : high + 1] + (before[number] - held_there[low])
                held[source] = line.astype(np.float64).tolist()
        return [
            held[source] if source in held else self._held(source, begin[source])
            for source in range(len(begin))
        ]

    @cached_property
    def _simple(self) -> tuple[list[int], Ints, Ints, list[EvenPasses]]:
        """The sources of which all passes are alike, and known: their first numbers, rows, and passes."""
        found = [(source, self._measured[source].simple) for source in self._own]
        known = [(source, *one) for source, one in found if one is not None]
        first, rows = (np.array([era[n] for _, era, _ in known], np.int64) for n in (0, 2))
        return [source for source, *_ in known], first, rows, [_even(strata) for *_, strata in known]

    def _ahead(self, source: int) -> int:
        """How many rows of a source are looked up at once."""
        return int(self._rates[source] * self._size * 1.25) + _AHEAD

    def _held(self, source: int, first: int) -> list[float]:
        """What a source has given since it began, up to each of its next rows from one on."""
        if not self._rates[source]:
            return [self._measured[source].between(int(self._first[source]), first)]
        ahead = self._ahead(source)
        base = self._measured[source].between(int(self._first[source]), first)
        found: list[float] = (base + self._measured[source].held(first, ahead)).tolist()
        return found

    def _mixed_made(self, number: int, key: int) -> tuple[Ints, Ints]:
        """The sources of the places of a chunk, and their numbers there."""
        chunk = self._chunk_of(number)
        sizes = chunk.after - chunk.before
        now = np.cumsum(sizes) - sizes
        now += chunk.held
        order, is_left = np.arange(self._size), np.ones(self._size, np.bool_)
        words = words_at(key, number * self._size + order)
        size, rates = self._cell, self._rates
        while size > 1 and is_left.any():
            cells = order.reshape(-1, size)[is_left.reshape(-1, size)[:, 0]]
            new = np.take_along_axis(cells, np.argsort(words[cells], axis=1), 1)
            source = chunk.source[new]
            # The numbers of each source ascend with the places.
            by_new = np.argsort(source, axis=1, kind="stable")
            by_old = np.argsort(chunk.source[cells], axis=1, kind="stable")
            np.put_along_axis(new, by_new, np.take_along_axis(cells, by_old, 1), 1)
            end = now[cells[:, :1]] + np.cumsum(sizes[new], axis=1)
            share, begin = rates[source], end - sizes[new]
            off = np.maximum(chunk.after[new] - share * end, share * begin - chunk.before[new])
            fits = (off <= self._most * (1 + _EXACT)).all(axis=1)
            epochs = (cells[:, [0, -1]] + (self._start + number * self._size)) // self._rows
            fits &= epochs[:, 0] == epochs[:, 1]
            order[cells[fits]] = new[fits]
            is_left[cells[fits]] = False
            if size % 2:
                break
            size //= 2
        return chunk.source[order], chunk.key[order]


@lru_cache(maxsize=32)
def even_shares(
    weights: tuple[int, ...],
    measured: tuple[Measured, ...],
    counts: tuple[int, ...],
    cell: int,
    start: int,
    rows: int,
    mark: Mark | None = None,
) -> EvenShares:
    """The same for the same arguments, so that what it knows is kept; see `EvenShares`."""
    return EvenShares(weights, measured, counts, cell, start, rows, mark)


def chunk_size(num_sources: int, cell: int) -> int:
    """Places of a chunk of some sources: whole cells."""
    return max(max(_CHUNK, _EACH * num_sources) // cell, 1) * cell
