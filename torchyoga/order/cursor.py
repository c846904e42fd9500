"""Where an iteration stands: epoch and position, what comes next, and the state that says so.

Note 36. Batches that come early are recorded as gaps, not as a list of batches.
The positions that are left are a few ranges, and the next iteration deals them first, to any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import StateError
from ..process.warned import warn_user
from .carry import Appended, Prefixes, carried, check_appended
from .contract import AnyOrder, Locality, Shuffle
from .full import ORDER_VERSION, as_int
from .grown import Grown
from .iteration import Iteration
from .place import Place, after, num_steps_left, taken
from .proof import PRIME, weight_until
from .saved import Saved
from .shard import Shard
from .state import Entry, LeftOut, Share, State, written

__all__ = ["UNKNOWN", "Cursor"]

UNKNOWN = 2**62  # the length of an epoch that is not known yet

_MOST_SEEN = 16  # epochs


class Cursor:
    """The place an iteration has reached, and where the next one begins.

    Iterations are `Iteration`s: they ask it for their start when their first item is requested, and report
    with `reached()`. Making iterators and reading the state changes nothing.

    Args:
        order: the order of the rows in every epoch; without a seed of its own if `draw` is given.
        shard: which of them this rank takes.
        start_offset: rows over all ranks that the first iteration leaves out.
        fingerprint: of the dataset.
        draw: returns the seed; called once, when the first iteration begins or the seed is needed.
        unit: the name of what it counts, for messages.

    Attributes:
        generation: grows with each load, so that iterators from before it can notice.
        num_begun: iterations that have delivered anything since the last load.
        needs_seed: False if nothing depends on the seed, so that none is drawn.
        extra: further fields of a state.
        appended: when rows come that were appended since a state; None if that is to be said.
        prefixes: fingerprint and rows of the versions that the dataset begins with.
    """

    def __init__(
        self,
        order: AnyOrder,
        shard: Shard,
        start_offset: int = 0,
        fingerprint: str | None = None,
        draw: Callable[[], int] | None = None,
        unit: str = "rows",
    ) -> None:
        offset = as_int("start_offset", start_offset, low=0)
        if offset and not order.length:
            raise ValueError(f"start_offset={offset}, but the dataset is empty; use 0")
        self._order = order
        self.shard = shard
        self.fingerprint = fingerprint
        self.generation = self.num_begun = 0
        self.needs_seed = bool(order.shuffle)
        self._draw, self._unit = draw, unit
        self._has_drawn = False
        self._is_seeded = draw is None
        epochs, position = divmod(offset, order.length or 1)
        self._place = Place(epochs, position)
        self._origin = self._place  # where the delivered rows began
        self._steps = None if position else 0  # batches of the epoch up to the place, on each rank
        self._entry = Entry(self._place, self._steps)  # where this process began the epoch
        self._last: Iteration | None = None  # the iteration that has delivered last
        self._running = False  # an iteration has left self._place behind its beginning
        self._bound = False  # set_epoch has named the epoch, and nothing was delivered since
        self._loaded_epoch: int | None = None  # of a state, if no set_epoch came since
        self._has_forgotten = False  # True if a look at a first batch was undone
        self._rebase = 0  # what to add to the epochs of a trainer that counts from 0 again
        self._seen: dict[int, int] = {}  # epoch -> rows delivered, over all ranks, of the last few epochs
        self._left_out = LeftOut()
        self._left: Place | None = None  # where an epoch was left, if no other epoch has begun since
        self._were_left: set[int] = set()
        self._has_warned = False
        self.extra: Saved = {}
        self.appended: Appended | None = None
        self.prefixes: Prefixes = ()

    # -- the seed

    @property
    def order(self) -> AnyOrder:
        """The order of the rows in every epoch. Draws its seed, if there is none yet."""
        if not self._is_seeded:
            self.fix_seed()
        return self._order

    @order.setter
    def order(self, order: AnyOrder) -> None:
        self._order = order

    @property
    def length(self) -> int:
        """Number of rows N."""
        return self._order.length

    def length_in(self, epoch: int) -> int:
        """Number of rows of an epoch: N, unless it was begun before rows were appended."""
        return self._order.length_in(epoch)

    @property
    def shuffle(self) -> Shuffle:
        """How rows are shuffled: True, False or "block"."""
        return self._order.shuffle

    @property
    def locality(self) -> Locality:
        """ "shard" if each rank has files of its own, otherwise "global"."""
        return "global" if self._order.shards is None else "shard"

    @property
    def seed(self) -> int | None:
        """The seed; None if it is still to be drawn."""
        return self._order.seed if self._is_seeded or not self.needs_seed else None

    def fix_seed(self) -> None:
        """Draws the seed, once; a number is drawn even if the seed is that of a loaded state."""
        if self._draw is None or self._has_drawn or not self.needs_seed:
            return
        self._has_drawn = True
        seed = self._draw()
        if not self._is_seeded:
            self._order = self._order.changed(seed=seed)
            self._is_seeded = True

    def take_seed(self, seed: int) -> None:
        """Takes a seed in place of one that was drawn, if nothing has been delivered and no state loaded."""
        if self._has_drawn and not (self.num_begun or self.generation):
            self._order = self._order.changed(seed=seed)

    # -- the place

    @property
    def epoch(self) -> int:
        """The current epoch, or the one about to begin."""
        return self._place.epoch

    @property
    def position(self) -> int:
        """Rows of that epoch that are delivered, over all ranks."""
        return self._place.position

    def deal(self, num_replicas: int, rank: int) -> None:
        """Makes this another rank, or a rank among another number of ranks."""
        self.shard = replace(self.shard, num_replicas=num_replicas, rank=rank)
        self._order = self._order.dealt(num_replicas, self._place.epoch if self._running else None)

    def resize(self, length: int) -> None:
        """Gives an epoch another length: that of a foreign sampler is known when it is over."""
        self._order = self._order.changed(length=length)

    def begin(self, batch_size: int = 1, drop_last: bool = False, made: int | None = None) -> Place:
        """Where an iteration that begins now starts: here, or at the next epoch if this one is over.

        Args:
            batch_size: rows of the iteration's batches.
            drop_last: whether it leaves out a shorter last batch.
            made: `num_begun` when its iterator was made, if that is known.
        """
        place = self._place
        if self._bound:  # an epoch that set_epoch has named begins even if nothing is left of it
            return self._entry.place if self._running else place
        if self._last is not None and self.has_peeked(made):
            return self._last.entry.place
        return Place(place.epoch + 1, 0) if self._running else self.rolled(place, batch_size, drop_last)

    def iteration(
        self,
        batch_size: int = 1,
        drop_last: bool = False,
        in_order: bool = True,
        made: int | None = None,
    ) -> Iteration:
        """An iteration that begins now, and has delivered nothing yet; see `begin`.

        Args:
            batch_size: rows of its batches.
            drop_last: whether it leaves out a shorter last batch.
            in_order: False if its batches may come in any order.
            made: see `begin`.

        Raises:
            StateError: the state that was loaded needs batches of another size.
        """
        start = self.begin(batch_size, drop_last, made)
        entry = self.entry_of(start)
        if start.share[1] > 1 and batch_size != entry.batch_size:
            raise StateError(
                f"the state was saved with in_order=False on several ranks and batches of {entry.batch_size} "
                "rows; another batch size would give the ranks unequal shares. Found "
                f"batch_size={batch_size}; change it when the epoch is over"
            )
        begun = Iteration(self, entry, batch_size, drop_last, in_order)
        begun.follows_peek = self.has_looked or self._has_forgotten
        begun.came_from = self._here()
        return begun

    def _here(self) -> Entry:
        """What is known of the epoch where this stands, as a state that was saved now would say."""
        if self._place == self._entry.place:
            return self._entry
        return self._state_at(self._place, self._steps, None).entry

    def entry_of(self, start: Place) -> Entry:
        """The entry of the epoch in which an iteration starts."""
        last = None if self._last is None else self._last.entry
        if last is not None and start == last.place:
            return last
        return self._entry if start.epoch == self._entry.place.epoch else Entry(start)

    def has_peeked(self, made: int | None = None) -> bool:
        """True if only a first batch was delivered here, to be looked at before the training loop begins.

        A caller that drops an iteration after one batch, without a state, has not trained on it. But if the
        next iterator was made before that (`made`, see `begin`), the two run at the same time.
        """
        iteration = self._last
        if iteration is None or self.num_begun != 1 or not self.has_looked:
            return False
        return not (iteration.is_held if made is None else made == 0)

    @property
    def has_looked(self) -> bool:
        """True if the last iteration has delivered a first batch only, and no state was taken after it.

        That batch may be the whole epoch, as long as no caller has seen the end.
        """
        iteration = self._last
        if iteration is None or iteration.is_saved or not 0 < iteration.delivered <= iteration.first_rows:
            return False
        is_whole = self._place == Place(iteration.start.epoch + 1, 0) and (
            not iteration.is_over or bool(iteration.asked)
        )
        return self._running or is_whole

    def reached(self, iteration: Iteration) -> None:
        """An iteration has delivered more."""
        self.begun(iteration)
        place = iteration.place
        if not iteration.reported:
            self.num_begun += 1
        elif iteration is not self._last:
            # It goes on after others have delivered.
            others = self._seen.get(place.epoch, 0) - iteration.reported
            iteration.again = max(iteration.again, iteration.entry.again + others)
        iteration.reported = place.position
        rolled = self.rolled(
            place, iteration.batch_size, iteration.drop_last, iteration.shard, iteration.rows
        )
        self._bound = False
        self._place, self._running = rolled, rolled == place
        self._steps = iteration.steps
        self._entry = iteration.entry if self._running else Entry(rolled)
        self._last = iteration
        self._note_seen(place)

    def begun(self, iteration: Iteration) -> None:
        """Records the rows that an iteration leaves out when it begins, and those that come again in it."""
        if iteration.is_begun:
            return
        iteration.is_begun, self._has_forgotten = True, False
        before = self._seen.get(iteration.start.epoch, 0) - iteration.start.position
        if before > 0 and iteration.follows_peek:
            iteration.peeked = before
        elif before > 0:
            iteration.again += before
        if iteration.start.epoch > self._place.epoch:
            self._leave()
        if self._left is not None:
            rows = self._rest(self._left, iteration)
            self._left_out = LeftOut(self._left_out.rows + rows, self._left.epoch) if rows else self._left_out
            self._left = None

    def _leave(self) -> None:
        """Another epoch is to begin within this one."""
        place, iteration = self._place, self._last
        if iteration is not None and self.has_looked and (self.num_begun == 1 or not self._order.shuffle):
            place = iteration.entry.place  # nothing of it was trained on
        is_held = iteration is not None and iteration.is_held and iteration.start.epoch == place.epoch
        if place.position and not is_held and place.epoch not in self._were_left:
            self._were_left = {place.epoch}
            self._left = place

    def _rest(self, place: Place, iteration: Iteration) -> int:
        """Rows of the dataset that all ranks still have to deliver in an epoch, in `iteration`'s batches."""
        if self.rolled(place, iteration.batch_size, iteration.drop_last).epoch != place.epoch:
            return 0
        length = self.length_in(place.epoch)
        return min(self.shard.end(length, place.position), length) - place.position

    def _note_seen(self, place: Place) -> None:
        self._seen[place.epoch] = max(self._seen.pop(place.epoch, 0), place.position)
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def warn_of_rows_left_out(self, iteration: Iteration) -> None:
        """Warns, once, if an iteration that begins now leaves out the rest of the one before."""
        last = self._last
        if not self._running or self._has_warned or last is None or last.is_held or last.may_be_left:
            return
        if self.has_looked and not self._order.shuffle:
            return  # a look at the first rows: the next pass begins with them again
        rows = self._rest(self._place, iteration)
        if rows and iteration.start.epoch != self._place.epoch:
            self._has_warned = True
            unit, is_known = self._unit, self.length < UNKNOWN
            of, others = (f" of {self.length_in(self._place.epoch)}", f"{rows} ") if is_known else ("", "")
            warn_user(
                f"the iteration before this one was left after {self._place.position}{of} {unit} "
                f"of epoch {self._place.epoch}; this one begins epoch {self._place.epoch + 1}, so the other "
                f"{others}{unit} are left out, as with torch's DataLoader. To go on where it was left, keep "
                "the iterator, or load its state_dict(); to look at a batch, call peek(); to begin that "
                f"epoch again, set_epoch({self._place.epoch})"
            )

    def finished(self, iteration: Iteration) -> None:
        """An iteration has come to the end of its share of the epoch."""
        iteration.is_over = True
        # Not if its last item has rolled the epoch over already, or set_epoch has moved on since. An
        # iteration that had nothing to deliver has never reported, and may belong to the epoch after one of
        # which nothing was left.
        is_here = self._place.epoch == iteration.start.epoch
        if iteration is not self._last and not iteration.delivered:
            is_here = is_here or self.begin(iteration.batch_size, iteration.drop_last) == iteration.start
        if iteration.counts and is_here:
            self._note_seen(iteration.place)
            self._enter(Place(iteration.start.epoch + 1, 0))
            self._last = iteration

    def _enter(self, place: Place) -> None:
        """An epoch is about to begin."""
        self._place, self._entry = place, Entry(place)
        self._running = self._bound = False
        self._steps = 0

    def rolled(
        self,
        place: Place,
        batch_size: int = 1,
        drop_last: bool = False,
        shard: Shard | None = None,
        rows: int | None = None,
    ) -> Place:
        """`place`, or the start of the next epoch if no rank has rows left in this one.

        Args:
            place: a place.
            batch_size: rows of the iteration's batches.
            drop_last: whether it leaves out a shorter last batch.
            shard: that of the iteration; by default this cursor's.
            rows: rows that this rank has delivered itself, if `place` belongs to it alone.
        """
        length, shard = self.length_in(place.epoch), shard or self.shard
        if not place.position or length - place.position >= shard.num_replicas * batch_size:
            return place
        # Over all ranks: a rank with one row less must not begin the next epoch while another still has its
        # last.
        if place.share[1] == 1:
            left = shard.steps(length, place.position, batch_size, drop_last, rank=0)
        else:
            rows = self._entry.share[0] if rows is None else rows
            left = num_steps_left(place, shard, length, rows, batch_size, drop_last)
        return place if left else Place(place.epoch + 1, 0)

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on this rank."""
        return self.shard.steps(self.length, 0, batch_size, drop_last)

    def steps_under_way(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the current epoch on this rank: those delivered, and those to come.

        Trainers compare it with the number of batches that they have saved. After a resume with other ranks
        or another batch size it differs from that of a whole epoch.
        """
        iteration = self._last if self._running else None
        here = self._place if self._bound else self.rolled(self._place, batch_size, drop_last)
        start = iteration.start if iteration else here
        before = iteration.steps_before if iteration else self.entry_of(start).steps
        if not start.position or before is None:
            return self.shard.steps(self.length_in(start.epoch), 0, batch_size, drop_last)
        return before + self.shard.steps(self.length_in(start.epoch), start.position, batch_size, drop_last)

    def ahead(self, steps: int, batch_size: int = 1, drop_last: bool = False) -> Place:
        """The place after `steps` batches on this rank, over all epochs since the last load or set_epoch."""
        place = self.rolled(self._origin, batch_size, drop_last)
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

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin.

        If it is the current epoch, the next iteration begins it again where this process began it, even if
        nothing is left of it; but an iterator that goes on is kept, because a trainer may call this late. If
        the first epoch named after a load is smaller, the trainer counts from 0 again: the epoch stays, and
        later calls count from it.
        """
        wanted = as_int("epoch", epoch, low=0) + self._rebase
        self._forget_look(wanted)
        if self._is_under_way(wanted):
            self._loaded_epoch = None
        # A trainer that has saved its count before the end of the epoch may be one epoch behind.
        if self._loaded_epoch is not None and wanted < self.epoch <= self._loaded_epoch + 1:
            self._rebase += self.epoch - wanted
            wanted = self.epoch
            warn_user(
                f"set_epoch({epoch}) came after loading a state, in epoch {wanted}: the trainer counts its "
                f"epochs anew, so its epoch {epoch} is taken as {wanted} from now on"
            )
        self._loaded_epoch = None
        iteration = self._last
        if wanted == self.epoch:
            self._bound = True
        elif iteration is not None and self._is_under_way(wanted):
            self._place, self._entry, self._steps = iteration.place, iteration.entry, iteration.steps
            self._running = self._bound = True
        else:
            self._leave()
            self._origin = Place(wanted, 0)
            self._enter(self._origin)
            self._bound = True

    def _is_under_way(self, epoch: int) -> bool:
        """True if all of an epoch was delivered, but the holder of its iterator has not seen the end."""
        iteration = self._last
        if iteration is None or self._running or epoch != iteration.start.epoch or epoch != self.epoch - 1:
            return False
        return iteration.is_held and not iteration.is_over

    def _forget_look(self, epoch: int) -> None:
        """Goes back to before a look at a first batch, if it was the first iteration, or in this epoch."""
        iteration = self._last
        if iteration is None or iteration.is_held or not self.has_looked:
            return
        if self.num_begun == 1 or epoch == iteration.start.epoch:
            self._entry = iteration.came_from
            self._place, self._steps = self._entry.place, self._entry.steps
            self._running, self._has_forgotten = False, True

    # -- the state

    def state_dict(self) -> Saved:
        """The state after the rows delivered so far: small, JSON-able, the same on every rank."""
        iteration = self._last
        if iteration is None:
            return self.state_at(self._place, self._steps)
        iteration.is_saved = True
        # An epoch is over even if set_epoch has named it after its last batch.
        return self.state_of(iteration) if self._running else self.state_at(self._place, self._steps)

    def state_of(self, iteration: Iteration) -> Saved:
        """The state after the rows that an iteration has delivered, whatever others have delivered since."""
        place = self.rolled(
            iteration.place, iteration.batch_size, iteration.drop_last, iteration.shard, iteration.rows
        )
        return self.state_at(place, iteration.steps if place == iteration.place else 0, iteration)

    def state_at(self, place: Place, steps: int | None = None, iteration: Iteration | None = None) -> Saved:
        """The state of an iteration that has reached `place`, after `steps` batches of its epoch.

        Args:
            place: the place.
            steps: batches of the epoch up to there, on each rank; None if that is not known.
            iteration: the iteration; by default the last one that has delivered.
        """
        return self._state_at(place, steps, iteration).to_dict()

    def _state_at(self, place: Place, steps: int | None, iteration: Iteration | None) -> State:
        order, last = self.order, iteration or (None if self._has_forgotten else self._last)
        last = last if last is not None and last.start.epoch == place.epoch else None
        entry, share = self._entry, None
        grown = order if isinstance(order, Grown) and order.epoch == place.epoch else None
        if place.share[1] > 1:
            rows, proof = entry.share if last is None else last.share
            share = Share(*place.share, rows, entry.batch_size if last is None else last.batch_size)
        else:
            proof = weight_until(order.seed, place) + self._fault(place, last)
        is_entry = entry.place.epoch == place.epoch
        again = last.again if last is not None else entry.again if is_entry else 0
        return State(
            version=order.version_in(place.epoch),
            seed=order.seed,
            epoch=place.epoch,
            position=place.position,
            length=order.length_in(place.epoch),
            joined=grown.joined if grown else (),
            grown=order.length if grown and grown.until != order.length else None,
            pins=order.pins(place.epoch),
            fingerprint=self.fingerprint,
            steps=steps if place.position else 0,
            left=place.left,
            share=share,
            proof=proof,
            again=again if place.position else 0,
            left_out=self._left_out,
            extra=self.extra,
        )

    def receipt(self) -> Saved:
        """The account of the last epoch in which this rank has delivered anything, for `prove`."""
        iteration = self._last or self.iteration(self._entry.batch_size)
        length = self.length_in(iteration.start.epoch)
        place, shard = iteration.place, iteration.shard
        rows, weight = iteration.share
        # After the same step of all ranks it does not matter how later rows are dealt to them, or which of
        # these `drop` leaves out.
        dealt = replace(
            shard, run_length=1, remainder="keep" if shard.remainder == "drop" else shard.remainder
        )
        coming = taken(place, dealt, length, 0, dealt.count(length, place.position))
        return {
            **self._state_at(place, None, None).place_to_dict(),
            "rank": shard.rank,
            "num_replicas": shard.num_replicas,
            "rows": rows,
            "weight": f"{weight:x}",
            "steps": iteration.delivered,
            "steps_to_come": iteration.num_steps - iteration.delivered,
            "coming": written(coming),
            "since": iteration.entry.place.position,
            "again": iteration.again,
            "peeked": iteration.peeked,
            "left_out": list(self._left_out.written),
        }

    def share_before(self, entry: Entry) -> tuple[int, int]:
        """The rows, and their weight, that this rank accounts for of what was delivered before an entry."""
        if entry.place.share[1] > 1:
            return entry.share
        if self.shard.rank:
            return 0, entry.fault
        return entry.place.position, (weight_until(self.order.seed, entry.place) + entry.fault) % PRIME

    def _fault(self, place: Place, iteration: Iteration | None = None) -> int:
        """The weight of rows that came too often up to a place, minus that of rows that were lost."""
        if not place.position:
            return 0
        entry = self._entry
        if place == entry.place:
            return entry.fault
        iteration = iteration or self._last
        if iteration is not None and iteration.start.epoch == place.epoch:
            return iteration.fault
        return entry.fault if entry.place.epoch == place.epoch else 0

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from `state`: its place holds for the next iteration, whatever the ranks and batch size.

        Args:
            state: what `state_dict` returned, here or in any other process.
            strict: False takes only epoch and position, for a dataset that has changed on purpose. The seed
                is taken in any case, if none was given here.
            appended: when rows come that were appended since; by default as the cursor was told.

        Raises:
            StateError: the state is damaged, or of another dataset, length, seed or kind of shuffle.
        """
        check_appended(appended)
        saved = State.from_dict(state, only_place=not strict)
        order = self._order.whole if isinstance(self._order, Grown) else self._order
        if strict:
            # If no seed was passed here, that of the state counts.
            seed = self._order.seed if self._draw is None else saved.seed
            when = self.appended if appended is None else appended
            saved, order = carried(saved, order, self.fingerprint, self.prefixes, when, seed)
        entry = saved.entry
        self._check_rank(entry.place)
        if entry.place.position >= order.length_in(entry.place.epoch):
            entry = Entry(Place(entry.place.epoch + 1, 0))
        place = entry.place
        begun = place.epoch if place.position else None
        self._order = order
        if self._draw is not None:
            self._order, self._is_seeded = self._order.changed(seed=saved.seed), True
            # Now, because users restore the state of torch's generator after this.
            self.fix_seed()
        shards = saved.shards if strict else None
        self._order = self._order.resumed(begun, shards, min(saved.version, ORDER_VERSION))
        self._place = self._origin = place
        self._steps, self._entry, self._last = entry.steps, entry, None
        self._running = self._bound = False
        self._loaded_epoch = place.epoch
        self._rebase = 0
        self._seen.clear()
        self._left_out, self._left = saved.left_out, None
        self._were_left = set()
        self.num_begun = 0
        self.generation += 1

    def _check_rank(self, place: Place) -> None:
        """Raises StateError if a place belongs to another rank alone."""
        rank, world = place.share
        if world > 1 and place.share != (self.shard.rank, self.shard.num_replicas):
            raise StateError(
                f"the state is of rank {rank} of {world} alone, as with in_order=False each has different "
                f"batches early; this is rank {self.shard.rank} of {self.shard.num_replicas}. Load each "
                "rank's own state, or train with in_order=True"
            )
