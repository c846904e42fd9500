"""One iteration of an order: where it began, and what it has delivered."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping
from copy import copy
from typing import Protocol

from .contract import AnyOrder
from .place import Place, Ranges, after, taken
from .proof import PRIME, weight, weight_of_share, weight_until
from .saved import Saved
from .shard import Shard
from .state import Entry

__all__ = ["Iteration"]


class Account(Protocol):
    """An object that makes iterations and takes their reports: a `Cursor`."""

    generation: int
    shard: Shard

    def length_in(self, epoch: int) -> int:
        """Number of rows of an epoch."""

    @property
    def order(self) -> AnyOrder:
        """The order of the rows."""

    def reached(self, iteration: Iteration) -> None:
        """Takes note that an iteration has delivered more."""

    def share_before(self, entry: Entry) -> tuple[int, int]:
        """The rows, and their weight, that this rank accounts for of what was delivered before an entry."""

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""

    def state_of(self, iteration: Iteration) -> Saved:
        """The state after the rows that an iteration has delivered."""


class Iteration:
    """One iteration: where it began, and what it has delivered. It does not hold its iterator.

    Args:
        cursor: the cursor that has made it.
        entry: the place at which it begins, and what is known of the epoch up to there.
        batch_size: rows of its batches on each rank.
        drop_last: it leaves out a shorter last batch.
        in_order: False if batches may come in any order.

    Attributes:
        start: the place at which it began.
        entry: where this process began the epoch.
        steps_before: batches of the epoch before, on each rank; None if it is not known, or rows are counted.
        taken: batches delivered without gaps; `handed`: batches handed to workers.
        fault: the weight of rows that came too often in the epoch, minus that of rows that were lost.
        again: rows of the epoch that were delivered before it was begun again; `peeked`: rows that were
            looked at.
        counts: False if its batches will not be trained on, so that nothing is reported.
        first_rows: the size of a look at a first batch: one batch, or its rows if rows are counted.
        reported: rows over all ranks that the cursor knows of.
        asked: batches that torch has requested and not delivered, if rows are counted.
        is_over: True if its holder has seen the end.
        follows_peek: True if a first batch was looked at before; the cursor says so when it has made it.
        came_from: where the cursor stood, and what it knew there; it says so, too.
        is_begun: True if the cursor knows of it; `is_saved`: if a state was taken of it; `may_be_left`: if
            its caller leaves it early on purpose.
        source: where its indices come from, for the caller that has begun it.
    """

    follows_peek: bool
    came_from: Entry

    def __init__(
        self,
        cursor: Account,
        entry: Entry,
        batch_size: int,
        drop_last: bool,
        in_order: bool,
    ) -> None:
        self.cursor = cursor
        self.start, self.entry, self.generation = entry.place, entry, cursor.generation
        self.batch_size, self.drop_last = batch_size, drop_last
        self.shard = cursor.shard
        self.steps_before = entry.steps
        self.again, self.peeked, self.reported = entry.again, 0, 0
        self.counts, self.is_begun, self.is_saved, self.is_over = True, False, False, False
        self.first_rows = 1
        self.asked: Mapping[int, object] = {}
        self.may_be_left = False
        self.source: object = None
        self._holder: Callable[[], object] = _no_holder
        self._in_order = in_order
        self._previous: Iteration | None = None  # this iteration before it began again
        self._num_before = 0  # batches that it had delivered then
        self._begin(cursor.share_before(entry), entry.fault)

    def _begin(self, before: tuple[int, int], fault: int) -> None:
        """Nothing has been delivered from `start` on."""
        self._at_start = before, fault
        self._before, self.fault = before, fault  # rows, and their weight, before the start
        self.taken = self.handed = 0
        self._early: set[int] = set()  # batches that came before an earlier one
        self._lost: list[int] = []  # batches left out
        self._came = array("q")  # batches as they came, if in any order; -1 - n for batch n that was left out

    def deliver(self, step: int) -> None:
        """Batch number `step` has been delivered, in whatever order."""
        if not self._in_order:
            self._came.append(step)
        self._count_in(step)

    def _count_in(self, step: int) -> None:
        self._early.add(step)
        while self.taken in self._early:
            self._early.remove(self.taken)
            self.taken += 1

    def lose(self, step: int) -> None:
        """Batch number `step` has been left out, and will not come."""
        size = self.batch_size
        rows = [min(n * size, self._count) for n in (step, step + 1)]
        weights = [weight_of_share(self._seed, self.start, self.shard, self._length, n) for n in rows]
        lost = weights[1] - weights[0]
        self.fault -= lost
        self._before = self._before[0], self._before[1] - lost
        self._lost.append(step)
        if not self._in_order:
            self._came.append(-1 - step)
        self._count_in(step)

    def skip(self, steps: int) -> None:
        """Leaves out `steps` batches that were trained on before: they count as delivered."""
        place = after(self.start, self.shard, self._length, steps * self.batch_size)
        before = None if self.steps_before is None else self.steps_before + min(steps, self.num_steps)
        self.start, self.entry, self.steps_before = place, Entry(place, before), before
        self._begin((0, 0) if self.shard.rank else (place.position, weight_until(self._seed, place)), 0)

    def restart(self) -> None:
        """Begins again at its current place: its batches are counted from there on."""
        self._previous, self._num_before = copy(self), self.num_delivered
        share, fault, self.steps_before = self.share, self.fault, self.steps
        self.start = self.place
        self._begin(share, fault)

    def after(self, steps: int) -> Iteration:
        """This iteration as it was when `steps` batches had been delivered; those left out are not counted.

        Raises:
            ValueError: fewer have been delivered.
        """
        if not 0 <= steps <= self.num_delivered:
            raise ValueError(
                f"steps must be in 0..{self.num_delivered}, the batches that this iteration has delivered, "
                f"found {steps}"
            )
        then = self
        while then._previous is not None and steps <= then._num_before:
            then = then._previous
        return then._after_steps(steps - then._num_before)

    def _after_steps(self, steps: int) -> Iteration:
        """`after`, counted from where it began, or began again."""
        found = copy(self)
        found._begin(*self._at_start)
        if self._in_order:
            end = steps
            for step in self._lost:
                if step < end:
                    found.lose(step)
                    end += 1
            found._early.clear()
            found.taken = end
            return found
        left = steps
        for step in self._came if left else ():
            if step < 0:
                found.lose(-1 - step)
                continue
            found.deliver(step)
            left -= 1
            if not left:
                break
        return found

    @property
    def num_delivered(self) -> int:
        """Batches that this iteration has delivered; those left out are not counted."""
        return self._num_before + self.delivered - len(self._lost)

    def hold(self, iterator: object) -> None:
        """Records the iterator of this iteration, which lasts as long as the iterator is held."""
        self._holder = weakref.ref(iterator)

    @property
    def is_held(self) -> bool:
        """True if its iterator may go on."""
        return self._holder() is not None

    def __getstate__(self) -> Saved:
        return {**self.__dict__, "_holder": _no_holder, "asked": {}}

    def report(self) -> None:
        """Reports to the cursor, unless a state was loaded since."""
        if self.counts and self.generation == self.cursor.generation:
            self.cursor.reached(self)

    @property
    def progress(self) -> Callable[[], int | None]:
        """A function that returns the rows delivered or handed to workers, until the iteration is dropped."""
        held = weakref.ref(self)

        def rows() -> int | None:
            held_still = held()
            if held_still is None:
                return None
            return max(held_still.taken, held_still.handed) * held_still.batch_size

        return rows

    @property
    def num_steps(self) -> int:
        """Batches on this rank, from the start on."""
        return self.shard.steps(self._length, self.start.position, self.batch_size, self.drop_last)

    @property
    def rows_in_last_step(self) -> int:
        """Rows of the dataset in the last batches of all ranks; rows that `pad` adds are not counted."""
        before = (max(self.num_steps, 1) - 1) * self.batch_size * self.shard.num_replicas
        end = min(self.shard.end(self._length, self.start.position), self._length)
        return min(end - self.start.position - before, self.batch_size * self.shard.num_replicas)

    @property
    def steps(self) -> int | None:
        """Batches of the epoch delivered on each rank."""
        return None if self.steps_before is None else self.steps_before + self.delivered

    @property
    def delivered(self) -> int:
        """Batches delivered by this iteration, or rows where rows are counted."""
        return self.taken + len(self._early)

    @property
    def place(self) -> Place:
        """The place it has reached."""
        if self._in_order:
            return after(self.start, self.shard, self._length, self.taken * self.batch_size)
        start, world = self.start, self.shard.num_replicas
        rows, ahead = self._rows
        if not rows:
            return start
        left = self._gaps
        in_left = sum(map(len, start.left))
        if in_left:
            rest = in_left if start.share[1] > 1 else len(range(self.shard.rank, in_left, world))
            left += taken(start, self.shard, self._length, ahead, rest)
        share = start.share if world == 1 else (self.shard.rank, world)
        return Place(start.epoch, start.position + rows * world, left, share)

    @property
    def share(self) -> tuple[int, int]:
        """The rows that this rank accounts for in the epoch, and their weight."""
        rows, ahead = self._rows
        weighs = weight_of_share(self._seed, self.start, self.shard, self._length, ahead)
        missing = weight(self._seed, self.start.epoch, self._gaps)
        return self._before[0] + rows, (self._before[1] + weighs - missing) % PRIME

    @property
    def rows(self) -> int:
        """The rows that this rank accounts for in the epoch."""
        return self._before[0] + self._rows[0]

    @property
    def _rows(self) -> tuple[int, int]:
        """Rows delivered by this rank, and up to the last of them."""
        size, count = self.batch_size, self._count
        rows = ahead = min(self.taken * size, count)
        for step in tuple(self._early):  # another thread may ask for the state
            stop = min((step + 1) * size, count)
            rows += stop - step * size
            ahead = max(ahead, stop)
        return rows, ahead

    @property
    def _gaps(self) -> Ranges:
        """The positions of this rank's batches that others have overtaken."""
        found: Ranges = ()
        early = set(tuple(self._early))
        missing = [step for step in range(self.taken, max(early, default=0)) if step not in early]
        for step in missing:
            start = step * self.batch_size
            found += taken(self.start, self.shard, self._length, start, start + self.batch_size)
        return found

    @property
    def _count(self) -> int:
        return self.shard.count(self._length, self.start.position)

    @property
    def _length(self) -> int:
        return self.cursor.length_in(self.start.epoch)

    @property
    def _seed(self) -> int:
        return self.cursor.order.seed


def _no_holder() -> None:
    """The holder of an iteration, if none is known."""
