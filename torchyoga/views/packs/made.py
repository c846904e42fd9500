"""Positions and labels of the tokens of packs, made when the batch is.

They take more memory than the tokens, so they are made of one batch at a time, in memory that the processor
has in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from ...process.numbers import distinct
from ...rows.data import Data, bounds_of
from ...rows.types import Array, Ints

_LONG = 256  # tokens of a document, on average, from which a copy of a list of numbers is faster than sums
_MOST_COUNTED = 2**20
_CHUNK = 2**14  # tokens
_counted = [np.arange(2**13)]  # the positions of a document


class Made:
    """Numbers of 8 bytes for each token of packs.

    Args:
        lengths: (S,) tokens of each document.
        bounds: (N + 1,) where the documents of each pack begin.
        write: writes the numbers of all tokens into an array, given this.
        tokens: of each pack, if the numbers are made of them.

    Attributes:
        ends: (S + 1,) where the tokens of each document begin.
        nbytes: (N,) of each pack.
    """

    def __init__(
        self, lengths: Ints, bounds: Ints, write: Callable[[Made, Ints], None], tokens: Data | None = None
    ) -> None:
        self.lengths, self._bounds, self._write, self.tokens = lengths, bounds, write, tokens
        self.ends = bounds_of(lengths)
        self.nbytes = 8 * np.diff(self.ends[bounds])

    def slice(self, start: int, stop: int) -> Made:
        """The numbers of the packs start..stop-1."""
        bounds = self._bounds[start : stop + 1]
        tokens = None if self.tokens is None else self.tokens.slice(start, stop)
        return Made(self.lengths[bounds[0] : bounds[-1]], bounds - bounds[0], self._write, tokens)

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        """Writes the numbers of each pack into `out` where `starts` says; end to end by default."""
        if starts is None:
            self._write(self, out.view(np.int64))
            return
        for to, numbers in zip(starts, self._each(), strict=True):
            out[to : to + numbers.nbytes] = numbers.view(np.uint8)

    def texts(self) -> list[bytes]:
        """The bytes of each pack."""
        return [numbers.tobytes() for numbers in self._each()]

    def _each(self) -> list[Ints]:
        made = np.empty(int(self.ends[-1]), np.int64)
        self._write(self, made)
        return [made[start:stop] for start, stop in pairwise(self.ends[self._bounds].tolist())]


def write_positions(first: int, made: Made, out: Ints) -> None:
    """Writes the position of each token in its document, counted from `first`."""
    longest, ends = int(made.lengths.max(initial=0)) + first, made.ends
    if longest <= _MOST_COUNTED and len(out) >= _LONG * len(made.lengths):
        source, target = _counted_to(longest).view(np.uint8).data, out.view(np.uint8).data
        for start, stop in pairwise((8 * ends).tolist()):
            target[start:stop] = source[8 * first : 8 * first + stop - start]
        return
    # Some documents at a time, so that what is computed stays in the processor's cache.
    cuts = distinct(np.searchsorted(ends, np.append(np.arange(0, len(out), _CHUNK), len(out))))
    for low, high in pairwise(cuts.tolist()):
        start, stop = ends[[low, high]].tolist()
        before = np.repeat(ends[low:high] - (start + first), made.lengths[low:high])
        np.subtract(_counted_to(stop - start)[: stop - start], before, out=out[start:stop])


def _counted_to(count: int) -> Ints:
    """At least the numbers 0 to count - 1; few that are asked for often are kept."""
    if count > _MOST_COUNTED:
        return np.arange(count)
    found = _counted[0]
    if len(found) < count:  # not looked up again: another thread may have kept fewer meanwhile
        found = _counted[0] = np.arange(2 * count)
    return found


def write_labels(ignored: int, shifted: bool, made: Made, out: Ints) -> None:
    """Writes the tokens, but the first of each document is ignored.

    If they are shifted, it is the token that follows each, and the last of each document is ignored.
    """
    assert made.tokens is not None
    values, some = made.tokens.values, made.lengths > 0
    if shifted:
        out[:-1] = values[1:]
        out[made.ends[1:][some] - 1] = ignored
    else:
        out[...] = values
        out[made.ends[:-1][some]] = ignored
