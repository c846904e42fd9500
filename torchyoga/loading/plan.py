"""The indices of one epoch from a place on, as torch's iterators take them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..order.iteration import Iteration
from ..process.stages import Stage, Stopwatch
from ..process.warned import warn_user
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..reading.stream import Window, windows_of
from ..rows.types import Index, MapStyle
from ..sampling.foreign import Keys
from ..sampling.indices import Indices
from ..sampling.trainers import Seeing
from .shared_memory import Ring
from .way import Way

__all__ = ["EpochIndices", "Job", "SingleRow"]


class SingleRow(NamedTuple):
    """A row that is not part of a batch; with its position, and what its random numbers come from."""

    number: Index
    position: int
    seed: int
    epoch: int


class Job(NamedTuple):
    """The rows of some batches; with their seed and epoch, and the slot of a ring they are to be put into."""

    window: Window
    firsts: list[int]  # the position at which each batch begins
    seed: int
    epoch: int
    ring: int
    slot: int
    step: int | None  # the number of the first batch, if they may come in any order


class EpochIndices:
    """The indices of one epoch from a place on, for torch's iterators to take as early as they like."""

    def __init__(
        self,
        indices: Indices,
        way: Way,
        batch_size: int,
        drop_last: bool,
        source: MapStyle,
        seen_by: Seeing | None = None,
    ) -> None:
        self.indices = indices
        self.iteration: Iteration | None = None  # the iteration that they are for
        self.way = way
        self.seen_by = seen_by  # is shown the rows of each batch
        self.ring: Ring | None = None
        self.source = source  # reads ahead what is announced to it
        self._size = batch_size, drop_last
        self.watch = Stopwatch()
        self._has_warned = False  # that they are much, compared with what is kept

    def __len__(self) -> int:
        return self.indices.num_steps(*self._size)

    def __iter__(self) -> Iterator[SingleRow | Job]:
        assert self.iteration is not None
        return self._jobs(self.iteration)

    @property
    def epoch(self) -> int:
        """The epoch that the iteration is in."""
        assert self.iteration is not None
        return self.iteration.start.epoch

    def _jobs(self, iteration: Iteration) -> Iterator[SingleRow | Job]:
        indices, epoch = self.indices, iteration.start.epoch
        firsts = indices.firsts(iteration)
        if self.way.is_single:
            for row in indices.rows(iteration):
                iteration.handed += 1
                yield SingleRow(row, next(firsts), indices.cursor.order.seed, epoch)
            return
        ring = self.ring
        if ring is not None:
            ring.begin()
        step = 0
        for window in self.windows(iteration, read_here=False, most=self.way.together):
            number = step if self.way.is_unordered else None
            key, slot = (ring.key, ring.send()) if ring else (0, -1)
            begun = list(islice(firsts, len(window.ends)))
            iteration.handed += len(window.ends)
            yield Job(window, begun, indices.cursor.order.seed, epoch, key, slot, number)
            step += len(window.ends)

    def windows(
        self,
        iteration: Iteration,
        read_here: bool = True,
        most: int | None = None,
        read_bytes: int | None = None,
    ) -> Iterator[Window]:
        """The batches in windows of about so many bytes, as they are read."""
        # Workers read, but all share the page cache: whoever knows the order can tell the kernel. Small
        # batches travel together, because every journey costs as much as reading some of them.
        if self.indices.is_known_ahead and isinstance(self.source, DataRef):
            most = self._fitting(self.source, most)
            found = windows_of(self.source, self.batches(iteration), read_here, most, read_bytes)
            return self._asked(found, iteration.steps_before)
        single = (Window(batch, [_size(batch)]) for batch in self.batches(iteration))
        return self._asked(single, iteration.steps_before)

    def _asked(self, windows: Iterator[Window], first: int | None) -> Iterator[Window]:
        """The windows, with the number of their first batch; how long they are thought about is measured."""
        while True:
            with self.watch.running(Stage.SAMPLER):
                window = next(windows, None)
            if window is None:
                return
            yield window._replace(first=first)
            first = None if first is None else first + len(window.ends)

    def _fitting(self, source: DataRef, most: int | None) -> int | None:
        """How many batches a window may have, so that all windows leave room for what is still to be read."""
        readahead = source._readahead
        if readahead is None or readahead.ahead_bytes is None or not readahead.row_bytes:
            return most
        bound, nbytes = readahead.ahead_bytes, self._size[0] * readahead.row_bytes * self.way.at_once
        if self.way.kind == "processes" and nbytes > 2 * bound and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"workers read {self.way.at_once} batches ahead, {nbytes / 1e6:.1f} MB, for which the cache "
                f"of {title_of(source)} is too small: files will be downloaded again and again. Set "
                f"cache_bytes={2 * nbytes + self._windows_bytes(source)}, which is twice that and two "
                "windows of files, or use smaller batches, a smaller prefetch_factor or fewer workers"
            )
        fitting = max(1, bound // nbytes)
        return fitting if most is None else min(most, fitting)

    def _windows_bytes(self, source: DataRef) -> int:
        """Bytes of two windows of files; of all rows, if they come in another order."""
        most = int(np.diff(source.file_starts).max(initial=0))
        rows = 2 * getattr(self.indices.cursor.order, "window", len(source)) * most
        return min(rows, len(source)) * source._row_bytes

    def batches(self, iteration: Iteration) -> Iterator[Index]:
        """The rows of each batch from the start of an iteration."""
        seen: list[list[Index]] = []
        if self.seen_by is not None:
            self.seen_by.seen_batch_indices = seen
        for batch in self.indices.batches(iteration, self.source):
            if self.seen_by is not None:
                seen.append(list(batch.whole) if isinstance(batch, Keys) else batch.tolist())
            yield batch

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "ring": None, "source": None, "iteration": None}


def _size(batch: Index) -> int:
    return batch.size if isinstance(batch, Keys) else len(batch)
