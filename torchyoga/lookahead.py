"""Rows that are known to be wanted next: small batches are read several at once, ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .columns import Rows

__all__ = ["Lookahead", "batches_per_read"]

_READ_BYTES = 2**20
_MOST_BATCHES = 16


def batches_per_read(batch_bytes: int) -> int:
    """How many batches of this size to read at once, for every read has a fixed cost."""
    return min(_MOST_BATCHES, max(1, _READ_BYTES // max(1, batch_bytes)))


class _Window(NamedTuple):
    start: int
    rows: Sequence[Any]


_NOTHING = _Window(0, ())


class Lookahead:
    """Some row numbers in the order in which a sampler hands them out, and the rows read ahead of it.

    Whoever asks for anything else gets nothing from here, so a wrong guess costs a comparison and no more.

    Args:
        take: reads rows by number.
        wanted: the numbers, as they are handed out; compared by identity first, which is fast.
        numbers: the same, as an array.
    """

    def __init__(
        self,
        take: Callable[[npt.NDArray[np.int64]], Sequence[Any]],
        wanted: list[int],
        numbers: npt.NDArray[np.int64],
    ) -> None:
        self._take = take
        self._wanted = wanted
        self._numbers = numbers
        self._next = 0
        self._batches = 1
        self._window = _NOTHING

    def rows(self, indices: list[int]) -> Sequence[Any] | None:
        """The rows of these numbers if they are the next in the order, else None."""
        start, window = self._next, self._window
        stop = start + len(indices)
        if self._wanted[start:stop] != indices:
            self._find(indices)
            return None
        if not window.start <= start <= stop <= window.start + len(window.rows):
            end = start + len(indices) * self._batches
            try:
                window = self._window = _Window(start, self._take(self._numbers[start:end]))
            except Exception:
                return None  # it may be a later batch that fails; this one is read by itself
            if isinstance(window.rows, Rows):
                self._batches = batches_per_read(window.rows.block.nbytes * len(indices) // len(window.rows))
        self._next = stop
        if stop == window.start + len(window.rows):
            self._window = _NOTHING  # nothing of it is wanted again
        return window.rows[start - window.start : stop - window.start]

    def _find(self, indices: list[int]) -> None:
        """Sets out again behind a batch that began in the numbers before these."""
        if self._next == 0 and indices and indices[-1] in self._wanted[: len(indices)]:
            self._next = self._wanted.index(indices[-1]) + 1
