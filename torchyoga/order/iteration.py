"""One iteration of an order: where it began, and what it has delivered."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from .contract import AnyOrder
from .place import Place, Ranges, after, taken
from .proof import PRIME, weight, weight_of_share, weight_until
from .saved import Saved
from .shard import Shard
from .state import EpochEntry, Skipped

__all__ = ["Iteration", "Left", "LeftAt", "Reporting", "IterationOptions", "Standing"]

_MOST_SEEN = 16  # epochs


class Reported(Protocol):
    """An object that makes iterations and takes their reports: a `Cursor`."""

    generation: int
    shard: Shard

    def length_in(self, epoch: int) -> int:
        """Number of rows of an epoch."""

    @property
    def order(self) -> AnyOrder:
        """The order of the rows."""

    def reached(self, iteration: Iteration, now: Iteration | None = None) -> None:
        """Takes note that an iteration has delivered more."""

    def share_before(self, entry: EpochEntry) -> tuple[int, int]:
        """The rows, and their weight, that this rank accounts for of what was delivered before an entry."""

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""

    def state_of(self, iteration: Iteration) -> Saved:
        """The state after the rows that an iteration has delivered."""


class Reporting(Protocol):
    """An iteration that reports to the cursor how far it is."""

    def report(self) -> None:
        """Reports to the cursor."""


class LeftAt(NamedTuple):
    """Where an epoch was left, and by which iteration; None if it was a state that stood there."""

    place: Place
    by: Iteration | None

    @property
    def is_held(self) -> bool:
        """True if the iteration may go on."""
        return self.by is not None and self.by.is_held

    @property
    def now(self) -> Place:
        """Where it is left by now."""
        return self.place if self.by is None else copy(self.by).place  # another thread may deliver meanwhile

    def end(self) -> None:
        """The iteration goes no further."""
        if self.by is not None:
            self.by.leave()


class Left(NamedTuple):
    """The rows of epochs that were left before their end.

    Attributes:
        out: those that no iteration will give.
        open: where epochs were left whose rows may still come: their iterators are held, or no other
            iteration has begun since.
        epoch: the epoch that was left last.
    """

    out: Skipped = Skipped()
    open: tuple[LeftAt, ...] = ()
    epoch: int | None = None


class Standing(NamedTuple):
    """Where a cursor stands, and how it came there, as one value.

    Attributes:
        place: rows delivered up to there.
        entry: where this process began the epoch.
        steps: batches of the epoch up to the place, on each rank; None if that is not known.
        last: the iteration that has delivered last.
        running: True if it has left the place behind its beginning.
        bound: True if set_epoch has named the epoch, and nothing was delivered since.
        seen: rows that iterations before the last have delivered, over all ranks, by epoch.
        left: the rows of epochs that were left early.
    """

    place: Place
    entry: EpochEntry
    steps: int | None
    last: Iteration | None = None
    running: bool = False
    bound: bool = False
    seen: Mapping[int, int] = {}
    left: Left = Left()

    def entered(self, place: Place) -> Standing:
        """The same, at the beginning of an epoch."""
        return self._replace(place=place, entry=EpochEntry(place), steps=0, running=False, bound=False)

    @property
    def look(self) -> Iteration | None:
        """The last iteration, if it has delivered a first batch only: see `cursor.py`.

        That batch may be the whole epoch, as long as no caller has seen the end.
        """
        last = self.last
        if last is None or last.before is None or not last.is_at_first_batch:
            return None
        is_ahead = bool(last.options.asked)
        is_whole = self.place == Place(last.start.epoch + 1, 0) and (not last.is_over or is_ahead)
        return last if self.running or is_whole else None

    @property
    def seen_by_all(self) -> Mapping[int, int]:
        """`seen`, with what the last iteration has delivered."""
        if self.last is None:
            return self.seen
        place = self.last.place
        seen = {epoch: rows for epoch, rows in self.seen.items() if epoch != place.epoch}
        seen[place.epoch] = max(self.seen.get(place.epoch, 0), place.position)
        return dict(list(seen.items())[-_MOST_SEEN:])

    def entry_of(self, start: Place) -> EpochEntry:
        """The entry of the epoch in which an iteration starts."""
        if self.last is not None and start == self.last.entry.place:
            return self.last.entry
        return self.entry if start.epoch == self.entry.place.epoch else EpochEntry(start)


@dataclass(frozen=True)
class IterationOptions:
    """How an iteration is asked for.

    Attributes:
        batch_size: rows of its batches on each rank.
        drop_last: it leaves out a shorter last batch.
        in_order: False if batches may come in any order.
        made: `Cursor.num_begun` when its iterator was made, if that is known.
        counts: False if its batches will not be trained on, so that nothing is reported.
        in_rows: rows are counted, of which others make batches.
        first_rows: the size of a first batch: one batch, or its rows if rows are counted.
        asked: batches that torch has requested and not delivered, if it asks for them ahead.
        may_be_left: its caller leaves it early on purpose.
    """

    batch_size: int = 1
    drop_last: bool = False
    in_order: bool = True
    made: int | None = None
    counts: bool = True
    in_rows: bool = False
    first_rows: int = 1
    asked: Mapping[int, object] = field(default_factory=dict)
    may_be_left: bool = False


class Iteration:
    """One iteration: where it began, and what it has delivered. It does not hold its iterator.

    Its iterator tells it what it delivers; the cursor, what becomes of it among others.

    Args:
        cursor: the cursor that has made it.
        entry: the place at which it begins, and what is known of the epoch up to there.
        options: how it was asked for.
        peeked: rows that were looked at before.
        looks: how many looks there were, one after the other.

    Attributes:
        start: the place at which it began.
        entry: where this process began the epoch.
        steps_before: batches of the epoch before, on each rank; None if it is not known, or rows are counted.
        taken: batches delivered without gaps; `handed`: batches handed to workers.
        fault: the weight of rows that came too often in the epoch, minus that of rows that were lost.
        again: rows of the epoch that were delivered before it was begun again.
        number: how many iterations had reported when this one did so first; 0 before.
        reported: rows over all ranks that the cursor knows of.
        is_over: True if its holder has seen the end.
        before: where the cursor stood when it began, as long as it may be a look.
        left: what the cursor knew of epochs that were left early when it began.
        is_begun: True if the cursor knows of it.
        source: where its indices come from, for the caller that has begun it.
    """

    def __init__(
        self, cursor: Reported, entry: EpochEntry, options: IterationOptions, peeked: int = 0, looks: int = 0
    ) -> None:
        self.cursor, self.options, self.peeked, self.looks = cursor, options, peeked, looks
        self.batch_size, self.drop_last = options.batch_size, options.drop_last
        self.start, self.entry, self.generation = entry.place, entry, cursor.generation
        self.shard = cursor.shard
        self.steps_before = None if options.in_rows else entry.steps
        self.again, self.number, self.reported = entry.again, 0, 0
        self.is_begun = self.is_over = False
        self.before: Standing | None = None
        self.left = Left()
        self.source: object = None
        self._holder: Callable[[], object] = _no_holder
        self._previous: Iteration | None = None  # this iteration before it began again
        self._num_before = 0  # batches that it had delivered then
        self._counted_before = 0  # the same, with those that were left out
        self._begin(cursor.share_before(entry), entry.fault)

    # -- written by the cursor

    def begin(self, before: Standing, left: Left, again: int) -> None:
        """The cursor knows of it: where it stood, what was left early, and what comes again."""
        self.is_begun, self.before, self.left = True, before, left
        self.again += again

    def note(self, number: int, reported: int, again: int) -> None:
        """It has reported, as iteration number `number`, that so many rows are delivered."""
        self.number, self.reported, self.again = number, reported, again

    def stand_after(self, before: Standing | None) -> None:
        """Where the cursor stands if this was a look; None if it was none."""
        self.before = before

    def leave(self) -> None:
        """It goes no further, and was no look."""
        self.before, self.left, self._holder = None, Left(), _no_holder

    def end(self) -> None:
        """Its holder has seen the end."""
        self.is_over = True

    # -- written by its iterator

    def draw_from(self, source: object) -> None:
        """Its indices come from there."""
        self.source = source

    def hand(self, steps: int) -> None:
        """So many batches more are handed to workers."""
        self.handed += steps

    def advance(self) -> None:
        """One batch more has been delivered."""
        self.taken += 1  # one step: no thread that asks for a state sees half of it

    def advance_to(self, taken: int) -> None:
        """So many batches have been delivered from the start on."""
        self.taken = taken

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
        if not self.options.in_order:
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
        if not self.options.in_order:
            self._came.append(-1 - step)
        self._count_in(step)

    def skip(self, steps: int) -> None:
        """Leaves out `steps` batches that were trained on before: they count as delivered."""
        place = after(self.start, self.shard, self._length, steps * self.batch_size)
        before = None if self.steps_before is None else self.steps_before + min(steps, self.num_steps)
        self.start, self.entry, self.steps_before = place, EpochEntry(place, before), before
        self._begin((0, 0) if self.shard.rank else (place.position, weight_until(self._seed, place)), 0)

    def restart(self) -> None:
        """Begins again at its current place: its batches are counted from there on."""
        self._previous, self._num_before = copy(self), self.num_delivered
        self._counted_before = self.counted
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
        if self.options.in_order:
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
        return {**self.__dict__, "_holder": _no_holder, "options": replace(self.options, asked={})}

    def report(self) -> None:
        """Reports to the cursor, unless a state was loaded since."""
        if self.options.counts and self.generation == self.cursor.generation:
            self.cursor.reached(self, copy(self))  # another thread may deliver meanwhile

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
    def counted(self) -> int:
        """Batches, or rows, that it has delivered or left out, however often it has begun again."""
        return self._counted_before + self.delivered

    @property
    def is_at_first_batch(self) -> bool:
        """True if it has delivered a first batch only."""
        options = self.options
        return 0 < self.counted <= options.first_rows * (1 + len(options.asked))

    @property
    def place(self) -> Place:
        """The place it has reached."""
        if self.options.in_order:
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
