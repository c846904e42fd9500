"""Columns of packs that are made of others, once they are wanted: positions, and labels.

They take more memory than the tokens, so they are made of one batch at a time, in memory that the processor
has in its cache.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ...process.distinct import distinct
from ...rows.data import Data
from ...rows.types import Array

__all__ = ["Labels", "Positions"]

Ints = npt.NDArray[np.int64]
_LONG = 256  # tokens of a document, on average, from which a copy of a list of numbers is faster than sums
_MOST_COUNTED = 2**20
_CHUNK = 2**14  # tokens
_counted = [np.arange(2**13)]  # the positions of a document


class _Made(ABC):
    """Numbers of 8 bytes for each token of packs.

    Args:
        lengths: (S,) tokens of each document.
        bounds: (N + 1,) where the documents of each pack begin.
    """

    def __init__(self, lengths: Ints, bounds: Ints) -> None:
        self._lengths, self._bounds = lengths, bounds
        self._ends = np.append(0, np.cumsum(lengths))
        self.nbytes = 8 * np.diff(self._ends[bounds])  # of each pack

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        """Writes the numbers of each pack into `out` where `starts` says; end to end by default."""
        if starts is None:
            self._make(out.view(np.int64))
            return
        made = np.empty(int(self._ends[-1]), np.int64)
        self._make(made)
        data, ends = made.view(np.uint8), (8 * self._ends[self._bounds]).tolist()
        for to, (start, stop) in zip(starts, itertools.pairwise(ends), strict=True):
            out[to : to + stop - start] = data[start:stop]

    def texts(self) -> list[bytes]:
        """The bytes of each pack."""
        made = np.empty(int(self._ends[-1]), np.int64)
        self._make(made)
        return [made[start:stop].tobytes() for start, stop in itertools.pairwise(self._ends[self._bounds])]

    @abstractmethod
    def _make(self, out: Ints) -> None:
        """Writes the numbers of all tokens."""

    def _cut(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """The documents of some packs."""
        bounds = self._bounds[start : stop + 1]
        return self._lengths[bounds[0] : bounds[-1]], bounds - bounds[0]


class Positions(_Made):
    """The position of each token in its document, of packs."""

    def __init__(self, lengths: Ints, bounds: Ints, first: int) -> None:
        super().__init__(lengths, bounds)
        self._first = first

    def slice(self, start: int, stop: int) -> Positions:
        """Those of the packs start..stop-1."""
        return Positions(*self._cut(start, stop), self._first)

    def _make(self, out: Ints) -> None:
        longest, ends = int(self._lengths.max(initial=0)) + self._first, self._ends
        if longest <= _MOST_COUNTED and len(out) >= _LONG * len(self._lengths):
            source, target = _counted_to(longest).view(np.uint8).data, out.view(np.uint8).data
            first = 8 * self._first
            for start, stop in itertools.pairwise((8 * ends).tolist()):
                target[start:stop] = source[first : first + stop - start]
            return
        # Some documents at a time, so that what is computed stays in the processor's cache.
        cuts = distinct(np.searchsorted(ends, np.append(np.arange(0, len(out), _CHUNK), len(out))))
        for first, last in itertools.pairwise(cuts.tolist()):
            start, stop = ends[[first, last]].tolist()
            before = np.repeat(ends[first:last] - (start + self._first), self._lengths[first:last])
            np.subtract(_counted_to(stop - start)[: stop - start], before, out=out[start:stop])


def _counted_to(count: int) -> Ints:
    """At least the numbers 0 to count - 1; few that are asked for often are kept."""
    if count > _MOST_COUNTED:
        return np.arange(count)
    found = _counted[0]
    if len(found) < count:  # not looked up again: another thread may have kept fewer meanwhile
        found = _counted[0] = np.arange(2 * count)
    return found


class Labels(_Made):
    """A copy of the tokens of packs, in which the first of each document is ignored."""

    def __init__(self, lengths: Ints, bounds: Ints, tokens: Data, ignored: int) -> None:
        super().__init__(lengths, bounds)
        self._tokens, self._ignored = tokens, ignored

    def slice(self, start: int, stop: int) -> Labels:
        """Those of the packs start..stop-1."""
        return Labels(*self._cut(start, stop), self._tokens.slice(start, stop), self._ignored)

    def _make(self, out: Ints) -> None:
        out[...] = self._tokens.values
        out[self._ends[:-1]] = self._ignored
