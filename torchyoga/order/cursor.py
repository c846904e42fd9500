"""Where an iteration stands: epoch and position, what comes next, and the state that says so.

Note 12. Only the cursor counts.
Iterators ask it where to begin when their first item is wanted; it asks them what they have delivered.

Batches that come early are recorded as gaps, not as a list of batches.
The positions that are left are a few ranges, and the next iteration deals them first, to any number of ranks.

An iteration that is left after its first batch does not count.
Code that takes one batch to see what it looks like, and a loop that trains on one, do the same thing. Ranks
do not see each other, so one may look where others do not. So whatever comes next finds the cursor as if
there had been no look: an iteration that begins, one that goes on or ends, `set_epoch`. Until then a state
says that the batch was delivered, whoever asks for it. A loop that trains on single batches gets the same one
each time, as with DistributedSampler, unless `set_epoch` names other epochs; a warning says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

from ..errors import StateError
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..process.threads import renew_in_children
from . import contract
from .epoch import Epoch, Iteration, IterationOptions, Left, Skipped, Standing, rows_seen
from .place import Place, Shard, after, taken
from .state import Prefixes, State, carried, written

UNKNOWN = 2**62  # the length of an epoch that is not known yet

_ROW_BY_ROW = IterationOptions()
_MOST_LOOKS = 5  # at one batch, one after the other, before there is a warning

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _alone(method: _Method) -> _Method:
    """A method of a cursor for one thread at a time, when the cursor knows of all that was delivered."""

    @wraps(method)
    def locked(cursor: Cursor, *args: Any, **named: Any) -> Any:
        with cursor.lock:
            cursor.settle()
            return method(cursor, *args, **named)

    return cast(_Method, locked)


class Cursor:
    """The place an iteration has reached, and where the next one begins.

    Iterations are `Iteration`s: they begin where it says when their first item is requested, and it asks them
    how far they are. Making iterators and reading the state changes nothing. Any thread may ask for the
    state: code that moves several things, or reads them, holds the lock.

    Args:
        order: the order of the rows in every epoch; without a seed of its own if `draw` is given.
        shard: which of them this rank takes.
        start_offset: positions of the order, over all ranks, that the first iteration leaves out.
        fingerprint: of the dataset.
        draw: returns the seed; called when it is needed first, and for each epoch of an order that needs it.
            It is told whether the order does, or rows alone.
        unit: the name of what it counts, for messages.

    Attributes:
        lock: held by the thread that moves or reads where it stands.
        generation: grows with each load, so that iterators from before it can notice.
        latest: the iteration that has delivered last, if the cursor does not know how far it is.
        needs_seed: False if nothing depends on the seed, so that none is drawn.
        draws: whether the order depends on it.
        varies: True if each epoch has other batches.
        extra: further fields of a state.
        appended: when rows come that were appended since a state; None if that is to be said.
        prefixes: fingerprint and rows of the versions that the dataset begins with.
        pins: what identifies the dataset besides its fingerprint.
        arrangement: what made the order, if not each row comes once.
    """

    def __init__(
        self,
        order: contract.AnyOrder,
        shard: Shard,
        start_offset: int = 0,
        fingerprint: str | None = None,
        draw: Callable[[bool], int] | None = None,
        unit: str = "rows",
    ) -> None:
        offset = as_int("start_offset", start_offset, low=0)
        if offset and not order.length:
            raise ValueError(f"start_offset={offset}, but the dataset is empty; use 0")
        self.renew()
        renew_in_children(self)
        self._order = order
        self.shard = shard
        self.fingerprint = fingerprint
        self.generation = self._num_begun = 0
        self.latest: Iteration | None = None
        self.needs_seed = self.draws = bool(order.shuffle)
        self.varies = bool(order.shuffle) and order.reshuffle
        self._draw, self._unit = draw, unit
        self._has_drawn = False
        self._is_seeded = draw is None
        epochs, position = divmod(offset, order.length or 1)
        entry = Epoch(Place(epochs, position), None if position else 0)
        self._origin = entry  # where the delivered rows began
        self._at = Standing(entry, entry)
        self._looked: Iteration | None = None  # the look that came last, if nothing went on since
        self._loaded_epoch: int | None = None  # of a state, if no set_epoch came since
        self._rebase = 0  # what to add to the epochs of a trainer that counts from 0 again
        self._has_warned = self._is_left_for_good = False
        self.extra: contract.Saved = {}
        self.appended: contract.Appended | None = None
        self.prefixes: Prefixes = ()
        self.pins: Mapping[str, contract.Pin] = {}
        self.arrangement: contract.Arrangement | None = None

    def renew(self) -> None:
        """Makes a new lock, in a forked child: the old one may be held by a thread of the parent."""
        self.lock = threading.RLock()

    def __getstate__(self) -> contract.Saved:
        self.settle()
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: contract.Saved) -> None:
        self.__dict__.update(state)
        self.renew()
        renew_in_children(self)

    # -- the seed

    @property
    def order(self) -> contract.AnyOrder:
        """The order of the rows in every epoch. Draws its seed, if there is none yet."""
        if not self._is_seeded:
            self.fix_seed()
        return self._order

    @property
    def length(self) -> int:
        """Number of rows N."""
        return self._order.length

    def length_in(self, epoch: int) -> int:
        """Number of rows of an epoch: N, unless it was begun before rows were appended."""
        return self._order.length_in(epoch)

    @property
    def shuffle(self) -> contract.Shuffle:
        """How rows are shuffled: True, False or "block"."""
        return self._order.shuffle

    @property
    def locality(self) -> contract.Locality:
        """ "shard" if each rank has files of its own, otherwise "global"."""
        return "global" if self._order.shards is None else "shard"

    @property
    def seed(self) -> int | None:
        """The seed; None if it is still to be drawn."""
        return self._order.seed if self._is_seeded or not self.needs_seed else None

    def fix_seed(self) -> bool:
        """Draws the seed, if there is none yet; returns whether it did."""
        if self._draw is None or self._is_seeded or not self.needs_seed:
            return False
        self._order = self._order.changed(seed=self._draw(self.draws))
        self._is_seeded = self._has_drawn = True
        return True

    def draw_for(self, iteration: Iteration) -> None:
        """Draws a number where an iteration begins an epoch, as torch's loader does, and drops it.

        So random states that are saved and restored fit; what goes on within an epoch has drawn before. The
        seed counts as the number of the iteration that draws it.
        """
        if self._draw is not None and self.draws and not iteration.start.position:
            self._draw(True)

    def take_seed(self, seed: int) -> None:
        """Takes a seed in place of one that was drawn, if nothing has been delivered and no state loaded."""
        if self._has_drawn and not (self._num_begun or self.generation):
            self._order = self._order.changed(seed=seed)

    # -- the place

    def moved(self, iteration: Iteration) -> None:
        """Notes that an iteration has delivered more; it is asked how far it is when that is wanted.

        It need not be noted again as long as it is the `latest`.
        """
        with self.lock:
            self.settle()
            self.latest = iteration

    def settle(self) -> None:
        """Asks what has delivered how far it is."""
        with self.lock:
            # Forgotten before it says how far it is: what it delivers from now on is noted again.
            latest, self.latest = self.latest, None
            if latest is not None:
                self.reached(latest)

    @property
    @_alone
    def num_begun(self) -> int:
        """Iterations that have delivered anything since the last load."""
        return self._num_begun

    @property
    def epoch(self) -> int:
        """The current epoch, or the one about to begin."""
        return self._here().place.epoch

    @property
    def position(self) -> int:
        """Rows of that epoch that are delivered, over all ranks."""
        return self._here().place.position

    @_alone
    def _here(self) -> Epoch:
        return self._resting().now

    @_alone
    def deal(self, num_replicas: int, rank: int) -> None:
        """Makes this another rank, or a rank among another number of ranks."""
        at = self._resting()
        self.shard = replace(self.shard, num_replicas=num_replicas, rank=rank)
        before, epoch = self._order, at.now.place.epoch
        self._order = before.dealt(num_replicas)
        if at.running or (self.generation and at.now.place.position):
            self._order = contract.begun_in(self._order, before.order_in(epoch), epoch)

    def resize(self, length: int) -> None:
        """Gives an epoch another length: that of a foreign sampler is known when it is over."""
        self._order = self._order.changed(length=length)

    @_alone
    def begin(self, batch_size: int = 1, drop_last: bool = False, made: int | None = None) -> Place:
        """Where an iteration that begins now starts: here, or at the next epoch if this one is over.

        Args:
            batch_size: rows of the iteration's batches.
            drop_last: whether it leaves out a shorter last batch.
            made: `num_begun` when its iterator was made, if that is known.
        """
        return self._next(self._resting(made), batch_size, drop_last).place

    def _next(self, at: Standing, batch_size: int, drop_last: bool) -> Epoch:
        if at.bound:  # an epoch that set_epoch has named begins even if nothing is left of it
            return at.entry
        return at.now.next if at.running else self._rolled(at.now, batch_size, drop_last)

    def _rolled(self, epoch: Epoch, batch_size: int, drop_last: bool, shard: Shard | None = None) -> Epoch:
        """An epoch, or the next one if no rank has a batch left in it; see `Epoch.rolled`."""
        return epoch.rolled(self.length_in(epoch.place.epoch), shard or self.shard, batch_size, drop_last)

    @_alone
    def iteration(self, options: IterationOptions = _ROW_BY_ROW) -> Iteration:
        """An iteration that begins now, and has delivered nothing yet; see `begin`."""
        at = self._resting(options.made)
        entry = self._next(at, options.batch_size, options.drop_last)
        start = entry.place
        look, peeked, looks = self._looked if at is self._at else self._at.look, 0, 0
        if look and not (at.last and at.last.number > look.number) and look.start.epoch == start.epoch:
            peeked = max(0, look.now().place.position - start.position)
            looks = look.looks + 1 if look.start == start else 0
        length, seed = self.length_in(start.epoch), self.order.seed
        return Iteration(entry, length, self.shard, seed, options, self.generation, peeked, looks)

    def _resting(self, made: int | None = None) -> Standing:
        """Where an iteration that begins now finds the cursor: as if there had been no look.

        But if the other may go on, and this one's iterator was made before that had delivered anything
        (`made`, see `begin`), or it is not known when, the two run at the same time.
        """
        return self._without_looks(lambda look: look.is_held and (made is None or made < look.number))

    def _without_looks(self, stays: Callable[[Iteration], bool] = lambda _: False) -> Standing:
        """Where the cursor would stand, had there been no look since the last one that stays."""
        at = self._at
        while (look := at.look) and not stays(look):
            at = look.before or at
        return at

    def _going_on(self, iteration: Iteration) -> Standing:
        """Where an iteration that goes on finds the cursor: as if there had been no look since it began."""
        at = self._at
        if at.last is iteration or not iteration.number or at.look is None:
            return at
        at, self._looked = self._without_looks(lambda look: look is iteration), None
        return at if at.last is iteration else at._replace(left=iteration.left)

    def reached(self, iteration: Iteration) -> None:
        """An iteration has delivered more; nothing, if it does not count, or a state was loaded since."""
        if not iteration.options.counts or iteration.generation != self.generation:
            return
        with self.lock:
            if not iteration.is_begun:
                self.begun(iteration)
            at, now = self._going_on(iteration), iteration.now()
            place, is_last = now.place, at.last is iteration
            seen = at.seen if is_last else at.seen_by_all
            if not iteration.number:
                self._num_begun = iteration.number = self._num_begun + 1
            elif not is_last:
                _note_others(iteration, seen)
            iteration.reported = place.position
            now = now._replace(again=iteration.again)
            rolled = self._rolled(now, iteration.batch_size, iteration.drop_last, iteration.shard)
            running = rolled is now
            entry = iteration.entry if running else rolled
            self._at = Standing(rolled, entry, iteration, running, False, seen, at.left)

    @_alone
    def begun(self, iteration: Iteration) -> None:
        """Records the rows that an iteration leaves out when it begins, and those that come again in it."""
        if iteration.is_begun:
            return
        start, at = iteration.start, self._resting(iteration.options.made)
        if at is not self._at:
            self._looked = self._at.look
        elif at.last and not at.look:
            at.last.before = None  # it counts
        left = self._leave(at) if start.epoch > at.now.place.epoch else at.left
        held = tuple(one for one in left.open if isinstance(one, Iteration) and one.is_held)
        ended = [one for one in left.open if one not in held]
        left = left._replace(out=self._with_rests(left.out, ended, iteration), open=held)
        for one in ended:
            if isinstance(one, Iteration):
                one.leave()
        iteration.is_begun, iteration.before, iteration.left = True, at, left
        iteration.again += max(0, rows_seen(at.seen_by_all, start.epoch) - start.position)
        self._at = at._replace(left=left)

    def _leave(self, at: Standing) -> Left:
        """Another epoch is to begin within this one."""
        place, left = at.now.place, at.left
        if not place.position or place.epoch == left.epoch:
            return left
        one = at.last if at.last is not None and at.last.start.epoch == place.epoch else at.now
        return left._replace(open=(*left.open, one), epoch=place.epoch)

    def _left_out(self, epoch: int) -> Skipped:
        """The rows that a resume in an epoch leaves out of those before it, as iterators do not last."""
        left = self._at.left
        if not left.open:
            return left.out
        earlier = [one for one in left.open if _now(one).place.epoch < epoch]
        return self._with_rests(left.out, earlier, self._at.last or _ROW_BY_ROW)

    def _with_rests(
        self, out: Skipped, epochs: Iterable[Iteration | Epoch], iteration: Iteration | IterationOptions
    ) -> Skipped:
        """Rows that were left out, and those behind the places at which these epochs were left."""
        for one in epochs:
            now = _now(one)
            if rows := self._rest(now, iteration):
                # One that was left before may have gone on.
                out = Skipped(out.rows + rows, max(out.epoch, now.place.epoch))
        return out

    def _rest(self, now: Epoch, iteration: Iteration | IterationOptions) -> int:
        """Rows of the dataset that all ranks still have to deliver in an epoch, in `iteration`'s batches."""
        if self._rolled(now, iteration.batch_size, iteration.drop_last) is not now:
            return 0
        length, position = self.length_in(now.place.epoch), now.place.position
        return min(self.shard.end(length, position), length) - position

    @_alone
    def warn_of_rows_left_out(self, iteration: Iteration) -> None:
        """Warns, once, if an iteration that begins now leaves out the rest of the one before.

        Or if it gives a batch that was looked at again and again.
        """
        at, start = self._resting(iteration.options.made), iteration.start
        last, unit = at.last, self._unit
        if self._has_warned:
            return
        if self.varies and iteration.looks == _MOST_LOOKS and not iteration.options.may_be_left:
            self._has_warned = True
            warn_user(
                f"the last {_MOST_LOOKS} iterations were left after their first batch, so they did not "
                f"count: this one, too, begins epoch {start.epoch} at position {start.position}, with the "
                "same batch. To train on one batch of each epoch, call set_epoch(epoch) before it; to train "
                "on one batch after the other, keep one iterator; to look at a batch, call peek()"
            )
        left = _now(at.left.open[-1]) if at.left.open and self._is_left_for_good else None
        now = at.now if at.running else left
        if now is None or last is None or last.is_held or last.options.may_be_left:
            return
        rows, place = self._rest(now, iteration), now.place
        if rows and start.epoch != place.epoch:
            self._has_warned = True
            is_known = self.length < UNKNOWN
            of, others = (f" of {self.length_in(place.epoch)}", f"{rows} ") if is_known else ("", "")
            warn_user(
                f"the iteration before this one was left after {place.position}{of} {unit} "
                f"of epoch {place.epoch}; this one begins epoch {place.epoch + 1}, so the other "
                f"{others}{unit} are left out, as with torch's DataLoader. To go on where it was left, keep "
                "the iterator, or load its state_dict(); to look at a batch, call peek(); to begin that "
                f"epoch again, set_epoch({place.epoch})"
            )

    @_alone
    def leave(self, iteration: Iteration) -> None:
        """An iteration is left for good, whoever still holds it; its batches count, even a single one."""
        iteration.leave()
        self._is_left_for_good = True

    def finish(self, iteration: Iteration) -> None:
        """Counts all rows of an iteration as delivered, unless another one has moved on since it began."""
        if iteration.generation == self.generation and iteration.start == self.begin(
            iteration.batch_size, iteration.drop_last
        ):
            iteration.taken = iteration.num_steps
            self.reached(iteration)
            self.finished(iteration)

    @_alone
    def finished(self, iteration: Iteration) -> None:
        """An iteration has come to the end of its share of the epoch."""
        iteration.is_over = True
        self._at = at = self._going_on(iteration)
        # Not if its last item has rolled the epoch over already, or set_epoch has moved on since. An
        # iteration that had nothing to deliver has never reported, and may belong to the epoch after one of
        # which nothing was left.
        is_here = at.now.place.epoch == iteration.start.epoch
        if iteration is not at.last and not iteration.delivered:
            is_here = is_here or self.begin(iteration.batch_size, iteration.drop_last) == iteration.start
        if iteration.options.counts and is_here:
            seen = at.seen
            if iteration is not at.last:
                seen = at.seen_by_all
                _note_others(iteration, seen)
            self._at = at._replace(last=iteration, seen=seen).entered(iteration.entry.next)

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on this rank."""
        return self.shard.steps(self.length, 0, batch_size, drop_last)

    @_alone
    def steps_under_way(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the current epoch on this rank: those delivered, and those to come.

        Trainers compare it with the number of batches that they have saved. After a resume with other ranks
        or another batch size it differs from that of a whole epoch.
        """
        at = self._resting()
        if at.running and at.last:
            start, before = at.last.start, at.last.steps_before
        else:
            here = at.now if at.bound else self._rolled(at.now, batch_size, drop_last)
            start, before = here.place, here.steps
        length = self.length_in(start.epoch)
        if not start.position or before is None:
            return self.shard.steps(length, 0, batch_size, drop_last)
        return before + self.shard.steps(length, start.position, batch_size, drop_last)

    @_alone
    def steps_before(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch on this rank before the next one, as `steps_under_way` counts them.

        The next one is that of the iteration under way, or the first of an iteration that begins now.
        """
        at = self._resting()
        is_under_way = at.running and at.last and at.last.is_held
        here = at.now if is_under_way else self._next(at, batch_size, drop_last)
        if here.steps is not None:
            return here.steps
        length = self.length_in(here.place.epoch)
        whole = self.shard.steps(length, 0, batch_size, drop_last)
        return whole - self.shard.steps(length, here.place.position, batch_size, drop_last)

    def ahead(self, steps: int, batch_size: int = 1, drop_last: bool = False) -> Place:
        """The place after `steps` batches on this rank, over all epochs since the last load or set_epoch."""
        place = self._rolled(self._origin, batch_size, drop_last).place
        left = self.shard.steps(self.length_in(place.epoch), place.position, batch_size, drop_last)
        if steps >= left:
            whole = self.steps(batch_size, drop_last)
            if not whole:
                raise ValueError(f"an epoch has no batch of {batch_size} rows; use a smaller batch_size")
            epochs, steps = divmod(steps - left, whole)
            place = Place(place.epoch + 1 + epochs, 0)
        return after(place, self.shard, self.length_in(place.epoch), steps * batch_size)

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""
        if generation != self.generation:
            raise StateError(
                "a state was loaded after this iterator had begun, so its rows do not continue that state; "
                "call iter() again after load_state_dict()"
            )

    @_alone
    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin.

        If it is the current epoch, the next iteration begins it again where this process began it, even if
        nothing is left of it; but an iterator that goes on is kept, because a trainer may call this late. If
        the first epoch named after a load is smaller, the trainer counts from 0 again: the epoch stays, and
        later calls count from it.
        """
        wanted = as_int("epoch", epoch, low=0) + self._rebase
        look, here = self._at.look, self._without_looks().now.place.epoch
        if self._is_under_way(self._at, wanted):
            self._loaded_epoch = None
        # A trainer that has saved its count before the end of the epoch may be one epoch behind.
        if self._loaded_epoch is not None and wanted < here <= self._loaded_epoch + 1:
            self._rebase += here - wanted
            wanted = here
            warn_user(
                f"set_epoch({epoch}) came after loading a state, in epoch {wanted}: the trainer counts its "
                f"epochs anew, so its epoch {epoch} is taken as {wanted} from now on"
            )
        self._loaded_epoch = None
        named = self._named(self._without_looks(), wanted)
        if look is not None and look.is_held and wanted == look.start.epoch:
            look.before = named  # if it does not go on
            self._at = self._named(self._at, wanted)
        else:
            self._looked = look or self._looked
            self._at = named

    def _named(self, at: Standing, epoch: int) -> Standing:
        """Where it stands when set_epoch has named an epoch."""
        last = at.last
        if epoch == at.now.place.epoch:
            return at._replace(bound=True)
        if last is not None and self._is_under_way(at, epoch):
            return at._replace(now=last.now(), entry=last.entry, running=True, bound=True)
        self._origin = Epoch(Place(epoch, 0))
        return at._replace(left=self._leave(at)).entered(self._origin, bound=True)

    def _is_under_way(self, at: Standing, epoch: int) -> bool:
        """True if all of an epoch was delivered, but the holder of its iterator has not seen the end."""
        last = at.last
        if last is None or at.running or epoch != last.start.epoch or epoch != at.now.place.epoch - 1:
            return False
        return last.is_held and not last.is_over

    # -- the state

    @_alone
    def state_dict(self) -> contract.Saved:
        """The state after the rows delivered so far: small, JSON-able, the same on every rank."""
        at = self._at
        now, last = at.now, at.last
        # An epoch is over even if set_epoch has named it since; and one iteration may have gone on beside a
        # look before which the cursor stands here.
        if at.running and last and (at.bound or last.reported != now.place.position):
            now = self._rolled(last.now(), last.batch_size, last.drop_last, last.shard)
        return self._state(now).to_dict()

    @_alone
    def state_of(
        self,
        iteration: Iteration,
        then: Epoch | None = None,
        batch_size: int | None = None,
        drop_last: bool | None = None,
    ) -> contract.Saved:
        """The state after the rows that an iteration has delivered, whatever others have delivered since.

        Args:
            iteration: the iteration.
            then: how far it was, for the state at that time.
            batch_size: rows of the batches that others make of its rows; by default of its own.
            drop_last: whether they leave out a shorter last one; by default as it does.
        """
        now = iteration.now() if then is None else then
        size = iteration.batch_size if batch_size is None else batch_size
        drop_last = iteration.drop_last if drop_last is None else drop_last
        return self._state(self._rolled(now, size, drop_last, iteration.shard)).to_dict()

    def state_at(self, place: Place) -> contract.Saved:
        """The state of an iteration that has reached a place, by the last one that has delivered."""
        at = self._at
        known = at.last.now() if at.last and at.last.start.epoch == place.epoch else at.entry
        if known.place.epoch != place.epoch:
            known = Epoch(place)
        return self._state(known._replace(place=place, steps=None)).to_dict()

    def _state(self, now: Epoch) -> State:
        order, epoch = self.order, now.place.epoch
        pins = {**order.pins(epoch), **self.pins}
        left_out, length = self._left_out(epoch), order.length_in(epoch)
        grown = None if length == order.length else order.length
        return State(order.seed, length, pins, self.fingerprint, now, left_out, grown, self.extra)

    @_alone
    def receipt(self) -> contract.Saved:
        """The account of the last epoch in which this rank has delivered anything, for `prove`."""
        iteration = copy(self._at.last or self.iteration())
        length, now = iteration.length, iteration.now()
        place, shard = now.place, iteration.shard
        rows, weight = iteration.share
        # After the same step of all ranks it does not matter how later rows are dealt to them, or which of
        # these `drop` leaves out.
        dealt = replace(
            shard, run_length=1, remainder="keep" if shard.remainder == "drop" else shard.remainder
        )
        coming = taken(place, dealt, length, 0, dealt.count(length, place.position))
        state = self._state(now)
        return {
            **state.place_to_dict(),
            "rank": shard.rank,
            "num_replicas": shard.num_replicas,
            "rows": rows,
            "weight": f"{weight:x}",
            "steps": iteration.counted,
            "steps_to_come": iteration.num_steps - iteration.delivered,
            "coming": written(coming),
            "since": iteration.entry.place.position,
            "again": iteration.again,
            "peeked": iteration.peeked,
            "left_out": list(state.left_out.written),
        }

    @_alone
    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: contract.Appended | None = None
    ) -> None:
        """Continues from `state`: its place holds for the next iteration, whatever the ranks and batch size.

        Args:
            state: what `state_dict` returned, here or in any other process.
            strict: False takes only epoch and position, for a dataset that has changed on purpose. The seed
                is taken in any case, if none was given here.
            appended: when rows come that were appended since; by default as `appended` of the cursor says.

        Raises:
            StateError: the state is damaged, or of another dataset, length, seed or kind of shuffle.
        """
        if appended is not None:
            contract.check_appended(appended)
        saved = State.from_dict(state, only_place=not strict)
        first = order = self._order.whole if type(self._order) is contract.BegunOrder else self._order
        if strict:
            # If no seed was passed here, that of the state counts.
            seed = self._order.seed if self._draw is None else saved.seed
            when = self.appended if appended is None else appended
            if self.arrangement is not None:
                order, saved = self.arrangement.going_on(order, saved, when, self.fingerprint, self.pins)
            saved, first = carried(saved, order, self.fingerprint, self.prefixes, when, seed, self.pins)
            shards = saved.pins.get("shards")
            if type(shards) is int and saved.at.place.position:
                first = first.dealt(shards)
        entry = saved.at
        if not strict and entry.place.position and self._is_foreign(saved, order):
            entry = entry._replace(fault=1)  # so nothing is proved of the epoch: its first rows were others
        if first is not order:
            order = contract.BegunOrder(order, first, entry.place.epoch)
        if entry.place.position >= order.length_in(entry.place.epoch):
            entry = entry.next
        place = entry.place
        try:
            order.check_place(place.epoch, place.first)
        except ValueError as error:
            raise StateError(f"the state cannot be continued here: {error}") from error
        self._order = order
        if self._draw is not None:
            self._order, self._is_seeded = self._order.changed(seed=saved.seed), True
        self._origin = entry
        self._at = Standing(entry, entry, left=Left(saved.left_out))
        self._looked = None
        self._loaded_epoch = place.epoch
        self._rebase = self._num_begun = 0
        self.latest = None
        self.generation += 1

    def _is_foreign(self, saved: State, order: contract.AnyOrder) -> bool:
        """True if a state is of another order than the one here, whatever the rows are called."""
        try:
            saved = replace(saved, fingerprint=self.fingerprint)
            carried(saved, order, self.fingerprint, self.prefixes, None, self._order.seed, self.pins)
        except StateError:
            return True
        return False


def _now(one: Iteration | Epoch) -> Epoch:
    """How far an epoch is."""
    return one.now() if isinstance(one, Iteration) else one


def _note_others(iteration: Iteration, seen: Mapping[int, tuple[tuple[int, int], ...]]) -> None:
    """An iteration goes on after others have delivered, perhaps of the same epoch, from the same place on."""
    if iteration.number:
        place = iteration.entry.place
        others = rows_seen(seen, place.epoch, iteration.number) - place.position
        iteration.again = max(iteration.again, iteration.entry.again + others)
