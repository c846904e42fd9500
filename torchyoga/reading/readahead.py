"""Rows that are known to be wanted next: small batches are read several at once, ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .announce import Announced, Announcer

__all__ = ["Lookahead", "batches_of_read", "batches_per_read"]

Ints = npt.NDArray[np.int64]
_PROBE = 8  # approaches after which it is found out anew whether rows come from disk
_READ_BYTES = 3 * 2**20
_MOST_BATCHES = 16


def batches_per_read(batch_bytes: int) -> int:
    """How many batches of this size to read at once, for every read has a fixed cost."""
    return min(_MOST_BATCHES, max(1, _READ_BYTES // max(1, batch_bytes)))


def batches_of_read(source: Any, num_rows: int) -> int:
    """How many batches of so many rows to read at once; one, where it is not known what a row has."""
    row_bytes = getattr(source, "row_bytes", 0)
    return batches_per_read(row_bytes * num_rows) if row_bytes else 1


class _Window(NamedTuple):
    start: int
    rows: Sequence[Any]


_NOTHING = _Window(0, ())


class Source(Announced, Protocol):
    """What rows are read from."""

    def take(self, rows: Ints) -> Sequence[Any]:
        """The rows of these numbers."""


class Lookahead:
    """Some row numbers in the order in which a sampler hands them out, and the rows read ahead of it.

    Whoever asks for anything else gets nothing from here, so a wrong guess costs a comparison and no more.

    Args:
        source: what rows are read from; it is told of those that follow.
        wanted: the numbers, as they are handed out; compared by identity first, which is fast.
        numbers: the same, as an array.
    """

    def __init__(self, source: Source, wanted: list[int], numbers: Ints) -> None:
        self._source = source
        self._announcer = Announcer(source)
        self._wanted = wanted
        self._numbers = numbers
        self._next = 0
        self._told = {False: 0, True: 0}  # up to where the source was told
        self._approaches = 0
        self._window = _NOTHING

    def rows(self, indices: list[int]) -> Sequence[Any] | None:
        """The rows of these numbers if they are the next in the order, else None."""
        start, window = self._next, self._window
        stop = start + len(indices)
        if self._wanted[start:stop] != indices:
            self._find(indices)
            return None
        if not window.start <= start <= stop <= window.start + len(window.rows):
            size = len(indices) * batches_of_read(self._source, len(indices))
            self._tell(start, size)
            try:
                window = self._window = _Window(start, self._source.take(self._numbers[start : start + size]))
            except Exception:
                return None  # it may be a later batch that fails; this one is read by itself
        self._next = stop
        if stop == window.start + len(window.rows):
            self._window = _NOTHING  # nothing of it is wanted again
        return window.rows[start - window.start : stop - window.start]

    def _tell(self, start: int, size: int) -> None:
        """Tells the source of the windows from `start` on, as they will be read."""
        if not self._source.is_cold:
            return
        depth = self._announcer.depth(size)
        for values, windows in ((False, 1 + depth), (True, 1 + (depth + 1) // 2)):
            place = max(start, self._told[values])
            place += (start - place) % size
            while place < min(start + windows * size, len(self._numbers)):
                self._announcer.tell(self._numbers[place : place + size], values)
                place += size
            self._told[values] = place

    def approach(self, start: int, stop: int) -> None:
        """The numbers between these places are about to be handed out."""
        if not start or self._next:
            return  # who reads here is ahead of this
        # Somebody else reads, such as a worker process of torch's DataLoader.
        if self._approaches % _PROBE == 0:
            self._source.probe()
        self._approaches += 1
        if self._source.is_cold:
            self._announcer.tell(self._numbers[stop : 2 * stop - start], values=False)
            self._announcer.tell(self._numbers[start:stop], values=False)
            self._announcer.tell(self._numbers[start:stop], values=True)

    def _find(self, indices: list[int]) -> None:
        """Sets out again behind a batch that began in the numbers before these."""
        if self._next == 0 and indices and indices[-1] in self._wanted[: len(indices)]:
            self._next = self._wanted.index(indices[-1]) + 1
