"""Reading ahead: rows that are known to be wanted are made ready some time before they are taken.

A sampler announces to its DataRef what it will hand out.
So a plain DataLoader reads small batches several at once, too. A wrong guess costs a comparison.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import CorruptError
from ..rows.types import Ints, Row
from ..versions.location import Progress

_AHEAD_BYTES = 16 * 2**20  # on their way from the disk at once
_MOST_ROWS = 4096
_MOST_DOUBLED = 12  # times that more windows are announced
_PAGE = 4096
_STEP_BYTES = 16 * 2**20  # of rows that a sampler hands out between two announcements
_READ_BYTES = 3 * 2**20
MOST_BATCHES = 16
# Where other processes read, it cannot be seen here whether they wait: that is found out after so many
_PROBE = 64  # windows
_PROBE_OF_SAMPLER = 8  # steps
_Members = Callable[[Ints], tuple[Ints, Ints]]


class Prefetch(Protocol):
    """The means to make the rows of one DataRef ready before they are taken."""

    @property
    def is_cold(self) -> bool:
        """True as long as rows come from disk, so that announcing them is worth its cost."""

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of what is delivered; None if it does not matter."""

    def announce(self, rows: Ints, values: bool) -> None:
        """Makes these rows ready: first all but the values of ragged columns, later those alone.

        The values of a ragged row lie where its offsets say, so those must be in memory first.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """

    def probe(self) -> None:
        """Makes the next announcement find out whether rows come from disk."""

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of an iteration, in place of the one before.

        Args:
            order: row numbers in the order in which they will be taken, some at a time.
            progress: how many rows the iteration has given so far; None when it is over.
        """


class Translated:
    """A Prefetch for rows of a view.

    Args:
        whole: that of the rows that the view shows.
        rows: numbers of rows in the view -> those of the whole.
    """

    def __init__(self, whole: Prefetch, rows: Callable[[Ints], Ints]) -> None:
        self._whole = whole
        self._rows = rows

    @property
    def is_cold(self) -> bool:
        """The same of `whole`."""
        return self._whole.is_cold

    @property
    def ahead_bytes(self) -> int | None:
        """The same of `whole`."""
        return self._whole.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        """Makes the rows behind these ready."""
        self._whole.announce(self._rows(rows), values)

    def probe(self) -> None:
        """Finds out again whether rows come from disk."""
        self._whole.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of an iteration over the view."""
        self._whole.follow((self._rows(rows) for rows in order), progress)


class Grouped(Translated):
    """Makes the rows ready of which rows of a view are made.

    Args:
        whole: what makes rows of the other DataRef ready.
        members: numbers of rows of the view (B,) -> how many rows each is made of (B,), and these, end to
            end.
        with_values: which of these rows are read whole, so that their ragged values are wanted, too; all by
            default.
    """

    def __init__(
        self, whole: Prefetch, members: _Members, with_values: Callable[[Ints], Ints] | None = None
    ) -> None:
        super().__init__(whole, lambda rows: members(rows)[1])
        self._members = members
        self._with_values = with_values

    def announce(self, rows: Ints, values: bool) -> None:
        """Makes the rows behind these ready."""
        _, wanted = self._members(rows)
        if values and self._with_values is not None:
            wanted = self._with_values(wanted)
        self._whole.announce(wanted, values)

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of an iteration over the view."""
        followed = Followed(order, progress, self._members)
        self._whole.follow(followed, followed.progress)


class Followed:
    """The rows behind an order of rows of a view, and how many of them have been delivered."""

    def __init__(self, order: Iterable[Ints], progress: Progress, members: _Members) -> None:
        self._order = order
        self._progress = progress
        self._members = members
        self._done = 0, 0  # rows of the view before those that are kept, and rows behind them
        self._kept: deque[Ints] = deque()  # how many rows are behind the first, the first two, ...

    def __iter__(self) -> Iterator[Ints]:
        for numbers in self._order:
            counts, rows = self._members(numbers)
            self._kept.append(np.cumsum(counts))
            if len(rows):
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


class _TakenAhead(NamedTuple):
    """Rows that were read before they were asked for; `start` is the index of the first."""

    start: int
    rows: Sequence[Row]


_NOTHING = _TakenAhead(0, ())


class ReadAhead:
    """Reads the rows of one DataRef before they are wanted.

    Args:
        row_bytes: bytes of an average row; 0 if that is not known: then each batch is read by itself.
        prefetch: makes rows ready; None for rows that are always in memory.
        most_batches: how many batches may be read at once.
    """

    def __init__(
        self, row_bytes: int, prefetch: Prefetch | None = None, most_batches: int = MOST_BATCHES
    ) -> None:
        self.row_bytes = row_bytes
        self.most_batches = most_batches
        self.prefetch = prefetch
        self._wanted: list[int] = []  # what a sampler hands out; compared by identity first, which is fast
        self._numbers = np.empty(0, np.int64)  # the same numbers
        self._next = 0  # the index of the number after those that were asked for
        self._announced = {False: 0, True: 0}  # how many numbers: without the values, with them
        self._steps = 0
        self._taken = _NOTHING

    @property
    def is_cold(self) -> bool:
        """True as long as rows come from disk."""
        return self.prefetch is not None and self.prefetch.is_cold

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of what is delivered; None if it does not matter."""
        return None if self.prefetch is None else self.prefetch.ahead_bytes

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of an iteration: see `Prefetch.follow`."""
        if self.prefetch is not None:
            self.prefetch.follow(order, progress)

    def batches_of_read(self, num_rows: int, read_bytes: int | None = None) -> int:
        """How many batches of so many rows to read at once, because every read has a fixed cost.

        One, where the size of a row is not known.
        """
        together = (read_bytes or _READ_BYTES) // max(1, self.row_bytes * num_rows) if self.row_bytes else 1
        return min(max(1, together), MOST_BATCHES, self.most_batches)

    # -- for readers of batch after batch

    def announced(
        self, windows: Iterable[Ints], read_here: bool = True, slowly: bool = False
    ) -> Iterator[Ints]:
        """The windows of rows, in order; some of those that follow have been announced.

        Args:
            windows: rows as they will be taken.
            read_here: False if other processes take them: then it cannot be seen here whether they wait.
            slowly: True to announce only few at first, where it takes long to say which rows come.
        """
        prefetch = self.prefetch
        if prefetch is None:
            yield from windows
            return
        numbers = iter(windows)
        waiting: deque[tuple[Ints, bool]] = deque()  # windows, and whether their values have been announced
        step = announced = 0  # of the windows that wait, so many have been announced without their values
        while True:
            if not read_here and step % _PROBE == 0:
                prefetch.probe()
            step += 1
            if prefetch.is_cold:
                most = 2 ** min(step - 1, _MOST_DOUBLED) if slowly else 2**_MOST_DOUBLED
                depth = min(most, 1 + self._depth(len(waiting[0][0]) if waiting else 1))
                while len(waiting) < depth and (rows := next(numbers, None)) is not None:
                    waiting.append((rows, False))
                    depth = min(most, 1 + self._depth(len(rows)))
                for index in range(announced, len(waiting)):
                    self._announce(waiting[index][0], values=False)
                announced = len(waiting)
                for index in range(1 + len(waiting) // 2):
                    if index < len(waiting) and not waiting[index][1]:
                        self._announce(waiting[index][0], values=True)
                        waiting[index] = waiting[index][0], True
            elif not waiting:
                rows = next(numbers, None)
                if rows is not None:
                    waiting.append((rows, False))
            if not waiting:
                return
            announced = max(0, announced - 1)
            yield waiting.popleft()[0]

    def _depth(self, num_rows: int) -> int:
        """How many windows of so many rows to be ahead."""
        rows = min(_MOST_ROWS, _AHEAD_BYTES // max(_PAGE, self.row_bytes))
        return max(1, -(-rows // max(1, num_rows)))

    def _announce(self, rows: Ints, values: bool) -> None:
        """Announces one window. Rows that cannot be read are ignored here; `take` will raise."""
        if self.prefetch is not None:
            with contextlib.suppress(CorruptError, OSError):
                self.prefetch.announce(rows, values)

    # -- for a sampler, whose rows are taken elsewhere

    def handed_out(self, wanted: list[int], numbers: Ints) -> Iterator[list[int]]:
        """Row numbers as a sampler hands them out, in steps; those that follow are read ahead.

        Args:
            wanted: the numbers, which `rows` will be asked for.
            numbers: the same numbers, as an array.
        """
        self._wanted, self._numbers = wanted, numbers
        self._next = self._steps = 0
        self._announced = {False: 0, True: 0}
        self._taken = _NOTHING
        size = max(1, len(wanted))
        if self.row_bytes:
            size = min(2048, max(64, _STEP_BYTES // self.row_bytes))
        for start in range(0, len(wanted), size):
            stop = min(start + size, len(wanted))
            self._approach(start, stop)
            yield wanted[start:stop]

    def rows(self, indices: list[int], take: Callable[[Ints], Sequence[Row]]) -> Sequence[Row] | None:
        """The rows of these numbers if a sampler has handed them out next, else None.

        Any other rows do not come from here, so a wrong guess costs a comparison and no more.
        """
        start, taken = self._next, self._taken
        stop = start + len(indices)
        if self._wanted[start:stop] != indices:
            self._find(indices)
            return None
        if not taken.start <= start <= stop <= taken.start + len(taken.rows):
            size = len(indices) * self.batches_of_read(len(indices))
            self._announce_from(start, size)
            try:
                taken = self._taken = _TakenAhead(start, take(self._numbers[start : start + size]))
            except Exception:
                return None  # it may be a later batch that fails; this one is read by itself
        self._next = stop
        if stop == taken.start + len(taken.rows):
            self._taken = _NOTHING  # nothing of it is wanted again
        return taken.rows[start - taken.start : stop - taken.start]

    def _announce_from(self, start: int, size: int) -> None:
        """Announces the windows from `start` on, as they will be read."""
        if not self.is_cold:
            return
        depth = self._depth(size)
        for values, windows in ((False, 1 + depth), (True, 1 + (depth + 1) // 2)):
            first = max(start, self._announced[values])
            first += (start - first) % size
            while first < min(start + windows * size, len(self._numbers)):
                self._announce(self._numbers[first : first + size], values)
                first += size
            self._announced[values] = first

    def _approach(self, start: int, stop: int) -> None:
        """Notes that the numbers between these indices are about to be handed out."""
        if self.prefetch is None or not start or self._next:
            return  # whoever reads here is ahead of this
        # Another process reads, such as a worker of torch's DataLoader.
        if self._steps % _PROBE_OF_SAMPLER == 0:
            self.prefetch.probe()
        self._steps += 1
        if self.prefetch.is_cold:
            self._announce(self._numbers[stop : 2 * stop - start], values=False)
            self._announce(self._numbers[start:stop], values=False)
            self._announce(self._numbers[start:stop], values=True)

    def _find(self, indices: list[int]) -> None:
        """Continues after a batch that began in the numbers before these."""
        if self._next == 0 and indices and indices[-1] in self._wanted[: len(indices)]:
            self._next = self._wanted.index(indices[-1]) + 1
