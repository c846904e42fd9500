"""Single rows of an order, handed out at the speed of `itertools.chain`.

Note 27. A sampler's iterator is an `itertools.chain` over lists.
Their iterators know how much they have left: nothing counts rows, and a state is computed when it is asked
for.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import length_hint
from typing import cast

from ..errors import StateError
from ..order.iteration import Iteration
from ..order.place import chunks
from ..order.saved import Saved
from ..reading.dataref import DataRef
from ..versions.location import Progress
from .ordered import Begun, OrderedIndices
from .trainers import batches_of_torch

__all__ = ["RowIterator"]


class RowIterator(chain[int]):
    """One iteration of a sampler, at the speed of `itertools.chain` over lists.

    Nothing counts the rows: a list iterator knows how much it has left. So whoever wants to know where
    the iteration stands asks it, and compares with what it said before.
    """

    handed: Handed

    @staticmethod
    def of(indices: OrderedIndices) -> RowIterator:
        """An iterator whose iteration begins when its first row is asked for."""
        handed = Handed(indices)
        found = cast(RowIterator, RowIterator.from_iterable(handed.lists()))
        found.handed, handed.iterator = handed, weakref.ref(found)
        return found

    def state_dict(self) -> Saved:
        """The state after the rows that this iterator has handed out."""
        cursor, iteration = self.handed.indices.cursor, self.handed.settled()
        if iteration is None:
            return cursor.state_at(cursor.begin())
        iteration.is_saved = True
        return cursor.state_of(iteration)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues from a state; StateError once the first row has been handed out."""
        if self.handed.settled() is not None:
            raise StateError(
                "this iterator has begun already; load the state before the first row, or into the sampler"
            )
        self.handed.indices.load_state_dict(state)


class Handed:
    """What an iterator of single rows has handed out."""

    iterator: weakref.ref[RowIterator]

    def __init__(self, indices: OrderedIndices) -> None:
        self.indices = indices
        self.over = False
        self.reported = 0  # rows that the cursor knows of
        self._iteration: Iteration | None = None  # once it has begun
        self._handed: Iterator[int] = iter(())  # the list iterator under way
        self._rows: list[int] = []  # what it iterates over
        self._before = 0  # rows up to its end

    def lists(self) -> Iterator[Iterator[int]]:
        """The rows, as iterators over lists."""
        indices, cursor = self.indices, self.indices.cursor
        size, ahead, tasks = batches_of_torch()
        self._iteration = iteration = indices.begin(progress=self._progress())
        iteration.steps_before = None  # it hands out rows; others make batches of them
        iteration.hold(self.iterator())
        iteration.first_rows, iteration.asked = size * (1 + ahead), tasks
        indices.begun = Begun(iteration, tasks, self.settled)
        is_second = bool(indices.running)
        indices.running.append(self)
        readahead = indices.dataset.readahead if isinstance(indices.dataset, DataRef) else None
        for numbers in chunks(cursor.order, iteration.shard, iteration.start):
            wanted = numbers.tolist()
            steps = [wanted] if readahead is None else readahead.handed_out(wanted, numbers)
            for some in steps:
                cursor.check_generation(iteration.generation)
                self._before += len(some)
                self._rows, self._handed = some, iter(some)
                yield self._watched(self._handed) if is_second else self._handed
        cursor.check_generation(iteration.generation)
        indices.settle()
        if indices.latest in (self, None):
            cursor.finished(iteration)
            indices.latest = None
        self.over = True
        self.stop()

    def _watched(self, handed: Iterator[int]) -> Iterator[int]:
        """The same rows, reporting each to the sampler."""
        for row in handed:
            for other in self.indices.running:
                other.reported = other.taken
            self.indices.latest = self
            yield row

    def _progress(self) -> Progress:
        held = weakref.ref(self)
        return lambda: None if (handed := held()) is None else handed.taken

    @property
    def is_held(self) -> bool:
        """True if the iterator is still held."""
        return self.iterator() is not None

    @property
    def taken(self) -> int:
        """Rows handed out."""
        return self._before - length_hint(self._handed)

    def stop(self) -> None:
        """Hands out nothing more: a list iterator ends where its list does."""
        self._before = self.taken
        self._rows.clear()
        self._handed = iter(())

    def settled(self) -> Iteration | None:
        """The iteration as it stands; None before it has begun."""
        if self._iteration is not None:
            self._iteration.taken = self.taken
        return self._iteration

    def report(self) -> None:
        """Reports to the cursor."""
        iteration = self.settled()
        if iteration is not None and not self.over:
            iteration.report()
