"""Reading ahead for rows of a view each of which is made of several rows, any number of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ...reading.readahead import Prefetch
from ...versions.location import Progress

__all__ = ["Grouped"]

Ints = npt.NDArray[np.int64]
Members = Callable[[Ints], tuple[Ints, Ints]]


class Grouped:
    """Makes the rows ready of which rows of a view are made.

    Args:
        whole: what makes rows of the other DataRef ready.
        members: numbers of rows of the view (B,) -> how many rows each is made of (B,), and these, end to
            end.
        with_values: which of these rows are read whole, so that their ragged values are wanted, too; all by
            default.
    """

    def __init__(
        self, whole: Prefetch, members: Members, with_values: Callable[[Ints], Ints] | None = None
    ) -> None:
        self._whole = whole
        self._members = members
        self._with_values = with_values

    @property
    def is_cold(self) -> bool:
        """What `whole` says."""
        return self._whole.is_cold

    @property
    def ahead_bytes(self) -> int | None:
        """What `whole` says."""
        return self._whole.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        """Makes the rows behind these ready."""
        _, wanted = self._members(rows)
        if values and self._with_values is not None:
            wanted = self._with_values(wanted)
        self._whole.announce(wanted, values)

    def probe(self) -> None:
        """Finds out anew whether rows come from disk."""
        self._whole.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of an iteration over the view."""
        followed = _Followed(order, progress, self._members)
        self._whole.follow(followed, followed.progress)


class _Followed:
    """The rows behind an order of rows of a view, and how many of them have been delivered."""

    def __init__(self, order: Iterable[Ints], progress: Progress, members: Members) -> None:
        self._order = order
        self._progress = progress
        self._members = members
        self._done = 0, 0  # rows of the view before those that are kept, and rows behind them
        self._kept: deque[Ints] = deque()  # how many rows are behind the first, the first two, ...

    def __iter__(self) -> Iterator[Ints]:
        for numbers in self._order:
            counts, rows = self._members(numbers)
            self._kept.append(np.cumsum(counts))
            yield rows

    def progress(self) -> int | None:
        """How many rows have been delivered; None when the iteration is over."""
        reached = self._progress()
        if reached is None:
            return None
        before, given = self._done
        while self._kept and before + len(self._kept[0]) <= reached:
            ends = self._kept.popleft()
            before, given = before + len(ends), given + int(ends[-1] if len(ends) else 0)
            self._done = before, given
        inside = reached - before
        return given + (int(self._kept[0][inside - 1]) if self._kept and inside > 0 else 0)
