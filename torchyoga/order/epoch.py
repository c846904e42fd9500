"""How far an epoch is, and the iterations that move it, one value at a time."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .contract import Saved
from .place import Place, Ranges, Shard, after, taken
from .proof import PRIME, weight, weight_of_share, weight_until


class Epoch(NamedTuple):
    """How far an epoch is: where an iteration enters it, where one has come, what a state says.

    Attributes:
        place: the rows that have been consumed.
        steps: batches of the epoch up to there, on each rank; None if that is not known.
        fault: the weight of rows that came too often up to there, minus that of rows that were lost.
        again: rows of the epoch that were delivered before it was begun again.
    """

    place: Place
    steps: int | None = 0
    fault: int = 0
    again: int = 0

    @property
    def next(self) -> Epoch:
        """The start of the epoch that follows."""
        return Epoch(Place(self.place.epoch + 1, 0))

    def proof(self, seed: int) -> int:
        """The weight of the rows delivered by all ranks."""
        return (weight_until(seed, self.place) + self.fault) % PRIME

    def share_of(self, seed: int, rank: int) -> tuple[int, int]:
        """The rows, and their weight, that a rank accounts for: rank 0 for those of all ranks before."""
        return (0, self.fault) if rank else (self.place.position, self.proof(seed))

    def rolled(self, length: int, shard: Shard, batch_size: int = 1, drop_last: bool = False) -> Epoch:
        """This, or the start of the next epoch if no rank has a batch left in this one.

        A rank with one row less must not begin the next epoch while another still has its last.
        """
        position = self.place.position
        if not position or length - position >= shard.num_replicas * batch_size:
            return self
        return self if shard.steps(length, position, batch_size, drop_last, rank=0) else self.next


class Skipped(NamedTuple):
    """Rows that were left out because the next epoch was begun before the end of one.

    Attributes:
        rows: how many, of all epochs before.
        epoch: the last of these epochs.
    """

    rows: int = 0
    epoch: int = 0

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers for a state or a receipt; none if no rows were left out."""
        return tuple(self) if self.rows else ()


_MOST_SEEN = 16  # epochs

_Lost = Sequence[tuple[int, int]]  # batches that were left out, and the weight of each


@dataclass(frozen=True)
class IterationOptions:
    """How an iteration is asked for.

    Attributes:
        batch_size: rows of its batches on each rank.
        drop_last: it leaves out a shorter last batch.
        in_order: False if batches may come in any order.
        made: `Cursor.num_begun` when its iterator was made, if that is known.
        counts: False if its batches will not be trained on, so that nothing is reported.
        in_rows: rows of a first batch, if rows are counted, of which others make batches; 0 if batches are.
        asked: batches that torch has requested and not delivered, if it asks for them ahead.
        may_be_left: its caller leaves it early on purpose.
    """

    batch_size: int = 1
    drop_last: bool = False
    in_order: bool = True
    made: int | None = None
    counts: bool = True
    in_rows: int = 0
    asked: Mapping[int, object] = field(default_factory=dict)
    may_be_left: bool = False


class Left(NamedTuple):
    """The rows of epochs that were left before their end.

    Attributes:
        out: those that no iteration will give.
        open: the epochs whose rows may still come, since their iterators are held, or no other iteration has
            begun since: the iteration that was in each, or how far it was where a state stood.
        epoch: the epoch that was left last.
    """

    out: Skipped = Skipped()
    open: tuple[Iteration | Epoch, ...] = ()
    epoch: int | None = None


class Standing(NamedTuple):
    """Where a cursor stands, and how it came there, as one value.

    Attributes:
        now: how far the epoch is.
        entry: how far it was where this process began it; the same as `now` unless `running`.
        last: the iteration that has delivered last.
        running: True if it has left the place behind its beginning.
        bound: True if set_epoch has named the epoch, and nothing was delivered since.
        seen: by epoch, how far the two iterations had come that came furthest, over all ranks, and their
            numbers, when another one was the last.
        left: the rows of epochs that were left early.
    """

    now: Epoch
    entry: Epoch
    last: Iteration | None = None
    running: bool = False
    bound: bool = False
    seen: Mapping[int, tuple[tuple[int, int], ...]] = {}
    left: Left = Left()

    def entered(self, epoch: Epoch, bound: bool = False) -> Standing:
        """The same, at the beginning of an epoch."""
        return self._replace(now=epoch, entry=epoch, running=False, bound=bound)

    @property
    def look(self) -> Iteration | None:
        """The last iteration, if it has delivered a first batch only: see `cursor.py`.

        That batch may be the whole epoch, as long as no caller has seen the end.
        """
        last = self.last
        if last is None or last.before is None or not last.is_at_first_batch:
            return None
        is_ahead = bool(last.options.asked)
        is_whole = self.now.place == Place(last.start.epoch + 1, 0) and (not last.is_over or is_ahead)
        return last if self.running or is_whole else None

    @property
    def seen_by_all(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """`seen`, with the last iteration."""
        last = self.last
        if last is None:
            return self.seen
        epoch, mine = last.start.epoch, (last.reported, last.number)
        seen = {other: found for other, found in self.seen.items() if other != epoch}
        others = [one for one in self.seen.get(epoch, ()) if one[1] != last.number]
        seen[epoch] = tuple(sorted((mine, *others), reverse=True)[:2])
        return dict(list(seen.items())[-_MOST_SEEN:])


def rows_seen(seen: Mapping[int, tuple[tuple[int, int], ...]], epoch: int, besides: int = 0) -> int:
    """How many rows of an epoch iterations have delivered; all but the one of number `besides`."""
    return max((rows for rows, number in seen.get(epoch, ()) if not besides or number != besides), default=0)


class Iteration:
    """One iteration: where it began, and what it has delivered. It does not hold its iterator.

    Its iterator writes down what it delivers; a cursor asks for it, and notes what that means among others.

    Args:
        entry: how far the epoch is where this process began it.
        length: rows of the epoch.
        shard: which of them come on this rank.
        seed: that of the order.
        options: how it was asked for.
        generation: the cursor's, when it began.
        peeked: rows that were looked at before.
        looks: how many looks there were, one after the other.

    Attributes:
        in_order: batches come in order; on several ranks they always do, so that all have the same state.
        start: the place at which it began, or has begun again.
        taken: batches delivered from there on without gaps; `handed`: batches handed to workers.
        again: rows of the epoch that were delivered before it was begun again.
        number: how many iterations had delivered anything when this one did so first; 0 before.
        reported: rows over all ranks that the cursor knows of.
        is_begun: True if the cursor knows of it.
        is_over: True if its holder has seen the end.
        before: where the cursor stood when it began, as long as it may be a look.
        left: what the cursor knew of epochs that were left early when it began.
        source: where its indices come from, for the caller that has begun it.
    """

    taken: int
    _came: array[int]

    def __init__(
        self,
        entry: Epoch,
        length: int,
        shard: Shard,
        seed: int,
        options: IterationOptions,
        generation: int = 0,
        peeked: int = 0,
        looks: int = 0,
    ) -> None:
        self.entry, self.length, self.shard, self.seed = entry, length, shard, seed
        self.options, self.generation, self.peeked, self.looks = options, generation, peeked, looks
        self.batch_size, self.drop_last = options.batch_size, options.drop_last
        self.in_order = options.in_order or shard.num_replicas > 1
        self.again, self.number, self.reported = entry.again, 0, entry.place.position
        self.is_begun = self.is_over = False
        self.before: Standing | None = None
        self.left = Left()
        self.source: object = None
        self._holder: Callable[[], object] = _no_holder
        self._previous: Iteration | None = None  # this iteration before it began again
        self._num_before = 0  # batches that it had delivered then
        self._counted_before = 0  # the same, with those that were left out
        began = entry._replace(steps=None) if options.in_rows else entry
        self._begin(began, entry.share_of(seed, shard.rank))

    # -- written by its iterator

    def advance(self) -> None:
        """One batch more has been delivered."""
        self.taken += 1  # one step: no thread that asks for a state sees half of it

    def deliver(self, step: int) -> None:
        """Batch number `step` has been delivered, in whatever order."""
        if not self.in_order:
            self._came.append(step)
        self._early.add(step)
        self.taken = _joined(self.taken, self._early)

    def lose(self, step: int) -> None:
        """Batch number `step` has been left out, and will not come."""
        before, behind = (self._weight_of(min(n * self.batch_size, self._count)) for n in (step, step + 1))
        self._lost.append((step, behind - before))
        if not self.in_order:
            self._came.append(-1 - step)
        self._early.add(step)
        self.taken = _joined(self.taken, self._early)

    def skip(self, steps: int) -> None:
        """Leaves out `steps` batches that were trained on before: they count as delivered."""
        place = after(self.start, self.shard, self.length, steps * self.batch_size)
        before = None if self.steps_before is None else self.steps_before + min(steps, self.num_steps)
        self.entry = entry = Epoch(place, before)
        self._begin(entry, entry.share_of(self.seed, self.shard.rank))

    def restart(self) -> None:
        """Begins again at its current place: its batches are counted from there on."""
        self._previous, self._num_before = copy(self), self.num_delivered
        self._counted_before = self.counted
        self._begin(self.now(), self.share)

    def _begin(self, began: Epoch, share: tuple[int, int]) -> None:
        """Nothing has been delivered from here on."""
        self._began, self._share = began, share
        self.start = began.place
        self.taken = self.handed = 0
        self._early: set[int] = set()  # batches that came before an earlier one
        self._lost: list[tuple[int, int]] = []
        self._came = array("q")  # batches as they came, if in any order; -1 - n for batch n that was left out

    def hold(self, iterator: object) -> None:
        """Records the iterator of this iteration, which lasts as long as the iterator is held."""
        self._holder = weakref.ref(iterator)

    def leave(self) -> None:
        """It goes no further, and was not a look."""
        self.before, self.left, self._holder = None, Left(), _no_holder

    @property
    def is_held(self) -> bool:
        """True if its iterator may go on."""
        return self._holder() is not None

    def __getstate__(self) -> Saved:
        return {**self.__dict__, "_holder": _no_holder, "options": replace(self.options, asked={})}

    # -- how far it is

    def now(self) -> Epoch:
        """How far the epoch is by what it has delivered; another thread may deliver meanwhile."""
        return self._when(self.taken, tuple(self._early), self._lost)

    def after(self, steps: int) -> Epoch:
        """How far the epoch was when `steps` batches had been delivered; those left out are not counted.

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
        return then._after(steps - then._num_before)

    def _after(self, steps: int) -> Epoch:
        """`after`, counted from where it began, or began again."""
        lost: list[tuple[int, int]] = []
        if self.in_order:
            for step, weighs in self._lost:
                if step < steps:
                    lost.append((step, weighs))
                    steps += 1
            return self._when(steps, (), lost)
        done, early, weights = 0, set[int](), dict(self._lost)
        for came in self._came:
            if not steps:
                break
            steps -= came >= 0
            step = came if came >= 0 else -1 - came
            if came < 0:
                lost.append((step, weights[step]))
            early.add(step)
            done = _joined(done, early)
        return self._when(done, early, lost)

    def after_batches(self, steps: int, batch_size: int) -> Epoch:
        """How far the epoch was after the first `steps` batches that others have made of its rows."""
        place = after(self.start, self.shard, self.length, steps * batch_size)
        before = self.entry.steps
        return Epoch(place, None if before is None else before + steps, self._began.fault, self.again)

    def _when(self, done: int, early: Collection[int], lost: _Lost) -> Epoch:
        """How far the epoch is when `done` batches were delivered or left out, and `early` ones behind."""
        began, size = self._began, self.batch_size
        fault = began.fault - sum(weighs for _, weighs in lost)
        steps = None if began.steps is None else began.steps + done + len(early)
        if self.in_order:
            place = after(began.place, self.shard, self.length, done * size)
        else:
            place = self._place(done, early)
        return Epoch(place, steps, fault, self.again)

    def _place(self, done: int, early: Collection[int]) -> Place:
        """The place, if batches may come in any order."""
        start = self.start
        rows, ahead = self._rows(done, early)
        left = self._gaps(done, early)
        left += taken(start, self.shard, self.length, ahead, sum(map(len, start.left)))
        return Place(start.epoch, start.position + rows, left)

    @property
    def share(self) -> tuple[int, int]:
        """The rows that this rank accounts for in the epoch, and their weight."""
        done, early = self.taken, tuple(self._early)
        rows, ahead = self._rows(done, early)
        missing = weight(self.seed, self.start.epoch, self._gaps(done, early))
        missing += sum(weighs for _, weighs in self._lost)
        return self._share[0] + rows, (self._share[1] + self._weight_of(ahead) - missing) % PRIME

    def _rows(self, done: int, early: Collection[int]) -> tuple[int, int]:
        """Rows delivered by this rank from the start on, and up to the last of them."""
        size, count = self.batch_size, self._count
        rows = ahead = min(done * size, count)
        for step in early:
            stop = min((step + 1) * size, count)
            rows += stop - step * size
            ahead = max(ahead, stop)
        return rows, ahead

    def _gaps(self, done: int, early: Collection[int]) -> Ranges:
        """The positions of this rank's batches that others have overtaken."""
        found: Ranges = ()
        missing = [step for step in range(done, max(early, default=0)) if step not in early]
        for step in missing:
            start = step * self.batch_size
            found += taken(self.start, self.shard, self.length, start, start + self.batch_size)
        return found

    def _weight_of(self, rows: int) -> int:
        """The weight of the first rows of this rank from the start on."""
        return weight_of_share(self.seed, self.start, self.shard, self.length, rows)

    @property
    def _count(self) -> int:
        return self.shard.count(self.length, self.start.position)

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
        return self.shard.steps(self.length, self.start.position, self.batch_size, self.drop_last)

    @property
    def rows_in_last_step(self) -> int:
        """Rows of the dataset in the last batches of all ranks; rows that `pad` adds are not counted."""
        before = (max(self.num_steps, 1) - 1) * self.batch_size * self.shard.num_replicas
        end = min(self.shard.end(self.length, self.start.position), self.length)
        return min(end - self.start.position - before, self.batch_size * self.shard.num_replicas)

    @property
    def steps_before(self) -> int | None:
        """Batches of the epoch before the start, on each rank; None if not known, or if rows are counted."""
        return self._began.steps

    @property
    def delivered(self) -> int:
        """Batches delivered from the start on, or rows where rows are counted."""
        return self.taken + len(self._early)

    @property
    def num_delivered(self) -> int:
        """Batches that this iteration has delivered; those left out are not counted."""
        return self._num_before + self.delivered - len(self._lost)

    @property
    def counted(self) -> int:
        """Batches, or rows, that it has delivered or left out, however often it has begun again."""
        return self._counted_before + self.delivered

    @property
    def is_at_first_batch(self) -> bool:
        """True if it has delivered a first batch only."""
        options = self.options
        return 0 < self.counted <= (options.in_rows or 1) * (1 + len(options.asked))


def _joined(done: int, early: set[int]) -> int:
    """How many batches have come without gaps, with those that had come early."""
    while done in early:
        early.remove(done)
        done += 1
    return done


def _no_holder() -> None:
    """The holder of an iteration, if none is known."""
