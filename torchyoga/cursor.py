"""Where an iteration stands: epoch and position, what comes next, and the state that says so."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from .blocks import MOST_SHARDS, AnyOrder
from .errors import StateError
from .order import ORDER_VERSION, Shard, as_int
from .place import Place, Ranges, skipped, taken
from .proof import PINS, PRIME, is_count, weight, weight_of_share, weight_until
from .warned import warn_user

__all__ = ["UNKNOWN", "Cursor", "Run"]

UNKNOWN = 2**62  # the length of an epoch of which nobody knows it yet

_KEYS = ("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint")
_DIFFERENCES = {"window": "shuffle_window"}  # what users call it
_SEED_BITS = 4096
_MOST_SEEN = 16  # epochs
_MOST_LEFT = 2**16  # ranges in a state; a loader has at most one for each batch under way


class Cursor:
    """The place an iteration has reached, and where the next one begins.

    Iterations are `Run`s: they ask `begin()` once, when their first item is wanted, and report with
    `reached()`. Making iterators and asking for the state changes nothing.

    Args:
        order: of the rows in every epoch; without a seed of its own if `draw` is given.
        shard: which of them are this rank's.
        start_offset: rows over all ranks that the first iteration leaves out.
        fingerprint: of the dataset.
        draw: gives the seed; called once, when the first iteration begins or somebody wants to know.
        unit: what it counts, for people.

    Attributes:
        generation: grows with each load, so that iterators from before it can tell.
        num_begun: iterations that have delivered anything since the last load.
        needs_seed: False if nothing depends on the seed, so that none is drawn.
        extra: what a state says besides.
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
        self._origin = self._place  # where all that is delivered began
        self._steps = None if position else 0  # batches of the epoch up to there, on each rank
        self._entry = _Entry(self._place, self._steps)  # where this process began the epoch
        self._run: Run | None = None  # that has delivered last
        self._running = False  # an iteration has left self._place behind its beginning
        self._bound = False  # set_epoch has named the epoch, and nothing was delivered since
        self._just_loaded = False  # a state, and no set_epoch since
        self._loaded_epoch = 0
        self._has_forgotten = False  # a look at a first batch
        self._rebase = 0  # what to add to the epochs of a trainer that counts from 0 again
        self._seen: dict[int, int] = {}  # epoch -> rows delivered, over all ranks, of the last few epochs
        self._left_out = _LeftOut()
        self._left: Place | None = None  # where an epoch was left, if no other has begun since
        self._were_left: set[int] = set()
        self._has_warned = False
        self.extra: dict[str, Any] = {}

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

    @property
    def seed(self) -> int | None:
        """The seed; None if it is still to be drawn."""
        return self._order.seed if self._is_seeded or not self.needs_seed else None

    def fix_seed(self) -> None:
        """Draws the seed, once; a number is drawn, too, where a state has brought another."""
        if self._draw is None or self._has_drawn or not self.needs_seed:
            return
        self._has_drawn = True
        seed = self._draw()
        if not self._is_seeded:
            self._order = replace(self._order, seed=seed)
            self._is_seeded = True

    def take_seed(self, seed: int) -> None:
        """Takes a seed in place of one that was drawn, if nothing has been delivered and no state loaded."""
        if self._has_drawn and not (self.num_begun or self.generation):
            self._order = replace(self._order, seed=seed)

    # -- the place

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self._place.epoch

    def deal(self, num_replicas: int, rank: int) -> None:
        """From now on this is another rank, or one of others."""
        self.shard = replace(self.shard, num_replicas=num_replicas, rank=rank)
        self._order = self._order.dealt(num_replicas, self._place.epoch if self._running else None)

    def resize(self, length: int) -> None:
        """From now on an epoch has another length: that of a foreign sampler's shows when it is over."""
        self._order = replace(self._order, length=length)

    def begin(self, batch_size: int = 1, drop_last: bool = False, made: int | None = None) -> Place:
        """Where an iteration that begins now starts: here, or at the next epoch if this one is over.

        Args:
            batch_size: of the iteration.
            drop_last: likewise.
            made: `num_begun` when its iterator was made, if that is known.
        """
        place = self._place
        if self._bound:  # an epoch that set_epoch has named is begun even if nothing is left of it
            return self._entry.place if self._running else place
        if self._run is not None and self.has_peeked(made):
            return self._run.entry.place
        return Place(place.epoch + 1, 0) if self._running else self.rolled(place, batch_size, drop_last)

    def entry_of(self, start: Place) -> _Entry:
        """What is known of an epoch where an iteration starts."""
        last = None if self._run is None else self._run.entry
        if last is not None and start == last.place:
            return last
        return self._entry if start.epoch == self._entry.place.epoch else _Entry(start)

    def has_peeked(self, made: int | None = None) -> bool:
        """True if all that was delivered here is a first batch, looked at before the training loop begins.

        Whoever drops an iteration after one batch, without a state, does not mean to have trained on it. But
        if the next iterator was made before that (`made`, see `begin`), the two go side by side.
        """
        run = self._run
        if run is None or self.num_begun != 1 or not self.has_looked:
            return False
        return not (run.is_held if made is None else made == 0)

    @property
    def has_looked(self) -> bool:
        """True if all that the last iteration has delivered is a first batch, of which no state was taken.

        That may be all of its epoch, as long as nobody has heard of the end.
        """
        run = self._run
        if run is None or run.is_saved or not 0 < run.delivered <= run.first_rows:
            return False
        is_whole = self._place == Place(run.start.epoch + 1, 0) and (not run.is_over or bool(run.asked))
        return self._running or is_whole

    def reached(self, run: Run) -> None:
        """An iteration has delivered more."""
        self.begun(run)
        place = run.place
        if not run.reported:
            self.num_begun += 1
        elif run is not self._run:
            # It goes on where others have been meanwhile.
            others = self._seen.get(place.epoch, 0) - run.reported
            run.again = max(run.again, run.entry.again + others)
        run.reported = place.position
        rolled = self.rolled(place, run.batch_size, run.drop_last, run.shard, run.rows)
        self._bound = False
        self._place, self._running = rolled, rolled == place
        self._steps = run.steps if self._running else 0
        self._entry = run.entry if self._running else _Entry(rolled)
        self._run = run
        self._note_seen(place)

    def begun(self, run: Run) -> None:
        """Notes what an iteration that begins leaves out, and what comes again in it."""
        if run.is_begun:
            return
        run.is_begun, self._has_forgotten = True, False
        before = self._seen.get(run.start.epoch, 0) - run.start.position
        if before > 0 and run.follows_peek:
            run.peeked = before
        elif before > 0:
            run.again += before
        if run.start.epoch > self._place.epoch:
            self._leave()
        if self._left is not None:
            rows = self._rest(self._left, run)
            self._left_out = (
                _LeftOut(self._left_out.rows + rows, self._left.epoch) if rows else self._left_out
            )
            self._left = None

    def _leave(self) -> None:
        """Another epoch is to begin within this one."""
        place, run = self._place, self._run
        if run is not None and self.has_looked and (self.num_begun == 1 or not self._order.shuffle):
            place = run.entry.place  # nothing of it was trained on
        is_held = run is not None and run.is_held and run.start.epoch == place.epoch
        if place.position and not is_held and place.epoch not in self._were_left:
            self._were_left = {place.epoch}
            self._left = place

    def _rest(self, place: Place, run: Run) -> int:
        """Rows of the dataset that all ranks still have to deliver in an epoch, in `run`'s batches."""
        if self.rolled(place, run.batch_size, run.drop_last).epoch != place.epoch:
            return 0
        return min(self.shard.end(self.length, place.position), self.length) - place.position

    def _note_seen(self, place: Place) -> None:
        self._seen[place.epoch] = max(self._seen.pop(place.epoch, 0), place.position)
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def warn_of_rows_left_out(self, run: Run) -> None:
        """Warns, once, if an iteration that begins now leaves out the rest of the one before."""
        last = self._run
        if not self._running or self._has_warned or last is None or last.is_held or last.may_be_left:
            return
        if self.has_looked and not self._order.shuffle:
            return  # a picture of the first rows: the next pass begins with them again
        rows = self._rest(self._place, run)
        if rows and run.start.epoch != self._place.epoch:
            self._has_warned = True
            unit, is_known = self._unit, self.length < UNKNOWN
            of, others = (f" of {self.length}", f"{rows} ") if is_known else ("", "")
            warn_user(
                f"the iteration before this one was left after {self._place.position}{of} {unit} "
                f"of epoch {self._place.epoch}; this one begins epoch {self._place.epoch + 1}, so the other "
                f"{others}{unit} are left out, as with torch's DataLoader. To go on where it was left, keep "
                "the iterator, or load its state_dict(); to look at a batch, call peek(); to begin that "
                f"epoch again, set_epoch({self._place.epoch})"
            )

    def finished(self, run: Run) -> None:
        """An iteration has come to the end of its share of the epoch."""
        run.is_over = True
        # Not if its last item has rolled it over already, or set_epoch has moved on since. One that had
        # nothing to deliver has never reported, and may be of the epoch after one of which nothing was left.
        is_here = self._place.epoch == run.start.epoch
        if run is not self._run and not run.delivered:
            is_here = is_here or self.begin(run.batch_size, run.drop_last) == run.start
        if run.counts and is_here:
            self._note_seen(run.place)
            self._enter(Place(run.start.epoch + 1, 0))
            self._run = run

    def _enter(self, place: Place) -> None:
        """An epoch is about to begin."""
        self._place, self._entry = place, _Entry(place)
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
        """`place`, or the start of the next epoch if no rank has anything left of this one.

        Args:
            place: a place.
            batch_size: of the iteration.
            drop_last: likewise.
            shard: of the iteration; this one's by default.
            rows: that this rank has delivered of its own, if `place` is its alone.
        """
        length, shard = self.length, shard or self.shard
        if not place.position or length - place.position >= shard.num_replicas * batch_size:
            return place
        # Over all ranks: a rank with one row less must not begin the next epoch while another still has its
        # last.
        if place.share[1] == 1:
            left = shard.steps(length, place.position, batch_size, drop_last, rank=0)
        else:
            rows = self._entry.share[0] if rows is None else rows
            left = _steps_left(shard, length, place, rows, batch_size, drop_last)
        return place if left else Place(place.epoch + 1, 0)

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on this rank."""
        return self.shard.steps(self.length, 0, batch_size, drop_last)

    def steps_under_way(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come.

        Trainers that saved how many batches they have done compare with it. After a resume with other ranks
        or another batch size it is another number than for a whole epoch.
        """
        run = self._run if self._running else None
        here = self._place if self._bound else self.rolled(self._place, batch_size, drop_last)
        start = run.start if run else here
        before = run.steps_before if run else self.entry_of(start).steps
        if not start.position or before is None:
            return self.steps(batch_size, drop_last)
        return before + self.shard.steps(self.length, start.position, batch_size, drop_last)

    def ahead(self, steps: int, batch_size: int = 1, drop_last: bool = False) -> Place:
        """The place after so many batches on this rank, over all epochs since the last load or set_epoch."""
        place = self.rolled(self._origin, batch_size, drop_last)
        left = self.shard.steps(self.length, place.position, batch_size, drop_last)
        if steps >= left:
            whole = self.steps(batch_size, drop_last)
            if not whole:
                raise ValueError(f"an epoch has no batch of {batch_size} rows; use a smaller batch_size")
            epochs, steps = divmod(steps - left, whole)
            place = Place(place.epoch + 1 + epochs, 0)
        return _after(self.shard, self.length, place, steps * batch_size)

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""
        if generation != self.generation:
            raise StateError(
                "a state was loaded after this iterator had begun, so its rows do not continue that state; "
                "call iter() again after load_state_dict()"
            )

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin.

        If it is the epoch under way, the next iteration begins it again where this process began it, even if
        nothing is left of it; but an iterator that goes on has been meant, for a trainer may say it late. If
        the first one after a load is smaller, the trainer counts from 0 again: the epoch stays, and later
        calls count from it.
        """
        wanted = as_int("epoch", epoch, low=0) + self._rebase
        self._forget_look(wanted)
        if self._is_under_way(wanted):
            self._just_loaded = False
        # A trainer that has saved its count before the end of the epoch may be one behind.
        if self._just_loaded and wanted < self.epoch <= self._loaded_epoch + 1:
            self._rebase += self.epoch - wanted
            wanted = self.epoch
            warn_user(
                f"set_epoch({epoch}) came after loading a state, in epoch {wanted}: the trainer counts its "
                f"epochs anew, so its epoch {epoch} is taken as {wanted} from now on"
            )
        self._just_loaded = False
        run = self._run
        if wanted == self.epoch:
            self._bound = True
        elif run is not None and self._is_under_way(wanted):
            self._place, self._entry, self._steps = run.place, run.entry, run.steps
            self._running = self._bound = True
        else:
            self._leave()
            self._origin = Place(wanted, 0)
            self._enter(self._origin)
            self._bound = True

    def _is_under_way(self, epoch: int) -> bool:
        """True if all of an epoch was delivered, but whoever holds its iterator has not heard of the end."""
        run = self._run
        if run is None or self._running or epoch != run.start.epoch or epoch != self.epoch - 1:
            return False
        return run.is_held and not run.is_over

    def _forget_look(self, epoch: int) -> None:
        """Goes back to before a look at a first batch, if it was the first iteration, or in this epoch."""
        run = self._run
        if run is None or run.is_held or not self.has_looked:
            return
        if self.num_begun == 1 or epoch == run.start.epoch:
            self._place, self._entry, self._steps = run.came_from
            self._running, self._has_forgotten = False, True

    # -- the state

    def state_dict(self) -> dict[str, Any]:
        """The state after what has been delivered: small, JSON-able, the same on every rank."""
        run = self._run
        if run is None:
            return self.state_at(self._place, self._steps)
        run.is_saved = True
        # What set_epoch has named after its last batch is over all the same.
        return self.state_of(run) if self._running else self.state_at(self._place, self._steps)

    def state_of(self, run: Run) -> dict[str, Any]:
        """The state after what an iteration has delivered, whatever has been delivered by others since."""
        place = self.rolled(run.place, run.batch_size, run.drop_last, run.shard, run.rows)
        return self.state_at(place, run.steps if place == run.place else 0, run)

    def state_at(self, place: Place, steps: int | None = None, run: Run | None = None) -> dict[str, Any]:
        """The state of an iteration that has reached `place`, after so many batches of its epoch.

        Args:
            place: the place.
            steps: batches of the epoch up to there, on each rank; None if that is not known.
            run: the iteration; by default the one that has delivered last.
        """
        order, run = self.order, run or (None if self._has_forgotten else self._run)
        run = run if run is not None and run.start.epoch == place.epoch else None
        entry, share = self._entry, None
        if place.share[1] > 1:
            rows, proof = entry.share if run is None else run.share
            share = [*place.share, rows, entry.batch_size if run is None else run.batch_size]
        else:
            proof = weight_until(order.seed, place) + self._fault(place, run)
        is_entry = entry.place.epoch == place.epoch
        again = run.again if run is not None else entry.again if is_entry else 0
        notes = {"again": again if place.position else 0, "left_out": list(self._left_out.written)}
        return {
            "version": order.version_in(place.epoch),
            "seed": order.seed,
            "epoch": place.epoch,
            "position": place.position,
            "length": order.length,
            **order.pins(place.epoch),
            "fingerprint": self.fingerprint,
            "steps": steps if place.position else 0,
            "left": _written(place.left),
            "share": share,
            "proof": f"{proof % PRIME:x}",
            **{name: value for name, value in notes.items() if value},
            **self.extra,
        }

    def receipt(self) -> dict[str, Any]:
        """What this rank has delivered of the last epoch of which it has delivered anything, for `prove`."""
        run, length = self._run or Run(self, self._entry.batch_size), self.length
        place, shard = run.place, run.shard
        rows, weight = run.share
        # After the same step of all ranks it does not matter how what comes is dealt to them; nor which of it
        # `drop` leaves out.
        dealt = replace(shard, run=1, remainder="keep" if shard.remainder == "drop" else shard.remainder)
        coming = taken(place, dealt, length, 0, dealt.count(length, place.position))
        return {
            **{name: value for name, value in self.state_at(place).items() if name in (*_KEYS, *PINS)},
            "rank": shard.rank,
            "num_replicas": shard.num_replicas,
            "rows": rows,
            "weight": f"{weight:x}",
            "steps": run.delivered,
            "steps_to_come": run.num_steps - run.delivered,
            "coming": _written(coming),
            "since": run.entry.place.position,
            "again": run.again,
            "peeked": run.peeked,
            "left_out": list(self._left_out.written),
        }

    def share_before(self, start: Place, entry: _Entry) -> tuple[int, int]:
        """The rows, and their weight, that this rank accounts for of what was delivered before a start."""
        if start.share[1] > 1:
            return entry.share
        fault = entry.fault if start == entry.place else 0
        if self.shard.rank:
            return 0, fault
        return start.position, (weight_until(self.order.seed, start) + fault) % PRIME

    def _fault(self, place: Place, run: Run | None = None) -> int:
        """The weight of what came too often up to a place, less that of what was lost."""
        if not place.position:
            return 0
        entry = self._entry
        if place == entry.place:
            return entry.fault
        run = run or self._run
        if run is not None and run.start.epoch == place.epoch:
            return run.fault
        return entry.fault if entry.place.epoch == place.epoch else 0

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from `state`: its place holds for the next iteration, whatever the ranks and batch size.

        Args:
            state: what `state_dict` returned, here or in any other process.
            strict: False takes only epoch and position, for a dataset that has changed on purpose. The seed
                is taken in any case, if none was given here.

        Raises:
            StateError: the state is damaged, or of another dataset, length, seed or kind of shuffle.
        """
        entry, left_out = self._checked(state, strict)
        if entry.place.position >= self.length:
            entry = _Entry(Place(entry.place.epoch + 1, 0))
        place = entry.place
        begun = place.epoch if place.position else None
        if self._draw is not None:
            self._order, self._is_seeded = replace(self._order, seed=state["seed"]), True
            # Now, for who restores the state of torch's generator restores it after this.
            self.fix_seed()
        shards = state.get("shards") if strict else None
        self._order = self._order.resumed(begun, shards, state["version"])
        self._place = self._origin = place
        self._steps, self._entry, self._run = entry.steps, entry, None
        self._running = self._bound = False
        self._just_loaded, self._loaded_epoch = True, place.epoch
        self._rebase = 0
        self._seen.clear()
        self._left_out, self._left = left_out, None
        self._were_left = set()
        self.num_begun = 0
        self.generation += 1

    def _checked(self, state: Mapping[str, Any], strict: bool) -> tuple[_Entry, _LeftOut]:
        if not isinstance(state, Mapping) or not set(_KEYS) <= set(state):
            if isinstance(state, Mapping) and "sampler" in state:
                raise StateError(
                    f"the state is of the sampler {state['sampler']}, which decided which rows came; load it "
                    "into a torchyoga.DataLoader with such a sampler"
                )
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"expected a state with the keys {list(_KEYS)}, found {found}; pass what state_dict() gave"
            )
        for key in ("version", "epoch", "position", "length"):
            if not is_count(state[key]):
                raise StateError(
                    f"the state's {key} must be an int of at least 0, found {_shown(state[key])}"
                )
        for key in ("shuffle", "fingerprint", "window", "files"):
            if type(state.get(key)) not in (bool, int, str, type(None)):
                raise StateError(f"the state's {key} is damaged; pass what state_dict() gave")
        if not 0 < state["version"] <= ORDER_VERSION:
            raise StateError(
                f"the state is of version {state['version']}, this torchyoga reads versions 1 to "
                f"{ORDER_VERSION}; load it with the torchyoga that saved it"
            )
        if state["position"] > state["length"]:
            raise StateError(
                f"the state's position {state['position']} lies past its length {state['length']}"
            )
        if type(state["seed"]) is not int or state["seed"].bit_length() > _SEED_BITS:
            raise StateError(f"the state's seed must be an int, found {_shown(state['seed'])}")
        order = self._order  # whose seed, if none was given, is the state's
        seed = order.seed if self._draw is None else state["seed"]
        mine = {**order.pins(state["epoch"]), "length": order.length, "seed": seed}
        # Before version 2, a torch Subset of a DataRef had no fingerprint.
        is_nameless = state["version"] == 1 and state["fingerprint"] is None
        mine["fingerprint"] = None if is_nameless else self.fingerprint
        for key in ("length", "seed", "shuffle", "fingerprint", "window") if strict else ():
            if state.get(key) != mine.get(key):
                if key == "seed":
                    raise StateError(
                        f"the state has seed {state[key]}, but here it is {seed}: it is of another dataset "
                        "or loader. Use that, leave seed= out, or pass strict=False to take its epoch and "
                        "position"
                    )
                raise StateError(
                    f"the state has {_DIFFERENCES.get(key, key)} {state.get(key)!r}, but here it is "
                    f"{mine.get(key)!r}: it is of another dataset or loader. Use that, or pass strict=False "
                    "to take its epoch and position"
                )
        if strict and ("shards" in state) != ("shards" in mine):
            kinds = {True: "'shard'", False: "'global'"}
            raise StateError(
                f"the state is of locality {kinds['shards' in state]}, but here it is "
                f"{kinds['shards' in mine]}; use that, or pass strict=False to take its epoch and position"
            )
        if strict and state.get("files") != mine.get("files"):
            raise StateError(
                "the state is of the same rows in other files, which make another order; were they "
                "converted? Use the files it was saved with, or pass strict=False to take its epoch and "
                f"position. It has files {state.get('files')!r}, here they are {mine.get('files')!r}"
            )
        shards = state.get("shards")
        if "shards" in state and (type(shards) is not int or not 0 < shards <= MOST_SHARDS):
            raise StateError(f"the state's shards must be an int in 1..{MOST_SHARDS}, found {shards!r}")
        return self._read(state if strict else {name: state[name] for name in _KEYS})

    def _read(self, state: Mapping[str, Any]) -> tuple[_Entry, _LeftOut]:
        """The place of a state, what is known of its epoch, and what was left out before.

        What says more than the place may be missing: then batches came in order, and nothing was lost.
        """
        epoch, position = state["epoch"], state["position"]
        steps, share = state.get("steps"), state.get("share")
        try:
            left = _read_left(state.get("left") or [])
            proof = int(state["proof"], 16) if state.get("proof") is not None else None
            rank, world, rows, size = (0, 1, 0, 1) if share is None else share
            again = state.get("again", 0)
            left_out = _LeftOut(*(state.get("left_out") or ()))
            counts = (rank, world, rows, size, again, *left_out, 0 if steps is None else steps)
            is_sound = all(map(is_count, counts)) and rank < world and size > 0
            # Those left are of the rows that are not delivered.
            is_sound = is_sound and (world > 1 or position + sum(map(len, left)) <= state["length"])
        except (TypeError, ValueError, IndexError, OverflowError):
            is_sound = False
        if not is_sound or (left and left[-1].stop > position + world * (sum(map(len, left)) + 1)):
            raise StateError(
                "the state's steps, left, share or proof are damaged, or its again or left_out; pass what "
                "state_dict() gave"
            )
        place = Place(epoch, position, left, (rank, world))
        if world > 1:
            if (rank, world) != (self.shard.rank, self.shard.num_replicas):
                raise StateError(
                    f"the state is of rank {rank} of {world} alone, for with in_order=False each has other "
                    f"batches early; this is rank {self.shard.rank} of {self.shard.num_replicas}. Load each "
                    "rank's own state, or train with in_order=True"
                )
            return _Entry(place, steps, 0, (rows, proof or 0), size, again), left_out
        fault = 0 if proof is None else (proof - weight_until(state["seed"], place)) % PRIME
        return _Entry(place, steps, fault, again=again), left_out


class _Entry(NamedTuple):
    """Where this process began an epoch, and what it knows of the epoch before.

    Attributes:
        place: where.
        steps: batches of the epoch up to there, on each rank; None if that is not known.
        fault: the weight of what came too often up to there, less that of what was lost.
        share: rows, and their weight, that this rank has delivered, if the place is its alone.
        batch_size: of that rank then.
        again: rows of the epoch that were delivered before it was begun again.
    """

    place: Place
    steps: int | None = 0
    fault: int = 0
    share: tuple[int, int] = (0, 0)
    batch_size: int = 1
    again: int = 0


class _LeftOut(NamedTuple):
    """Rows that were left out because the next epoch was begun before the end of one.

    Attributes:
        rows: how many, of all epochs before.
        epoch: the last of these epochs.
    """

    rows: int = 0
    epoch: int = 0

    @property
    def written(self) -> tuple[int, ...]:
        """As a state and a receipt say it: nothing, if there are none."""
        return tuple(self) if self.rows else ()


class Run:
    """One iteration: where it began, and what it has delivered. It leads to no iterator.

    Args:
        cursor: where it stands; see `Cursor.begin` for the others.
        in_order: False if batches may come in any order.

    Attributes:
        start: the place at which it began.
        entry: where this process began the epoch.
        steps_before: batches of the epoch before, on each rank; None if it is not known, or rows are counted.
        taken: batches delivered, without gaps.
        fault: the weight of what came too often in the epoch, less that of what was lost.
        again: rows of the epoch that were delivered before it was begun again; `peeked`: that were looked at.
        counts: False if what it delivers will not be trained on, so that the cursor is not told.
        first_rows: what a look at a first batch takes: one batch, or its rows where rows are counted.
        reported: rows over all ranks that the cursor knows of.
        asked: batches that torch has asked for, and not delivered, where rows are counted.
        is_over: True if whoever holds it has heard of the end.
        came_from: where the cursor stood.
        is_begun: True if the cursor knows of it; `is_saved`: if a state was taken of it; `may_be_left`: if
            who began it leaves it early on purpose.
    """

    def __init__(
        self,
        cursor: Cursor,
        batch_size: int = 1,
        drop_last: bool = False,
        in_order: bool = True,
        made: int | None = None,
    ) -> None:
        self.cursor = cursor
        self.batch_size, self.drop_last = batch_size, drop_last
        self.follows_peek = cursor.has_looked or cursor._has_forgotten
        self.came_from = cursor._place, cursor._entry, cursor._steps
        self.start, self.generation = cursor.begin(batch_size, drop_last, made), cursor.generation
        self.entry = entry = cursor.entry_of(self.start)
        if self.start.share[1] > 1 and batch_size != entry.batch_size:
            raise StateError(
                f"the state was saved with in_order=False on several ranks and batches of {entry.batch_size} "
                f"rows; with others, ranks would not have as many. Found batch_size={batch_size}; change it "
                "when the epoch is over"
            )
        self.shard = cursor.shard
        self.steps_before = entry.steps if self.start == entry.place else 0
        self.again, self.peeked, self.reported = entry.again, 0, 0
        self.counts, self.is_begun, self.is_saved, self.is_over = True, False, False, False
        self.first_rows = 1
        self.asked: Mapping[int, Any] = {}
        self.may_be_left = False
        self._holder: Callable[[], Any] = _nobody
        self._in_order = in_order
        self._previous: Run | None = None  # what it was before it began again
        self._num_before = 0  # batches that it had delivered then
        fault = entry.fault if self.start == entry.place else 0
        self._begin(cursor.share_before(self.start, entry), fault)

    def _begin(self, before: tuple[int, int], fault: int) -> None:
        """Nothing has been delivered from `start` on."""
        self._at_start = before, fault
        self._before, self.fault = before, fault  # rows, and their weight, before the start
        self.taken = self.handed = 0
        self._early: set[int] = set()  # batches behind one that has not come
        self._lost: list[int] = []  # batches left out
        self._came = array("q")  # batches as they came, if in any order; -1 - n for one that was left out

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
        """Leaves so many batches to somebody who has trained on them before: they count as delivered."""
        place = _after(self.shard, self._length, self.start, steps * self.batch_size)
        before = None if self.steps_before is None else self.steps_before + min(steps, self.num_steps)
        self.start, self.entry, self.steps_before = place, _Entry(place, before), before
        self._begin((0, 0) if self.shard.rank else (place.position, weight_until(self._seed, place)), 0)

    def restart(self) -> None:
        """Begins again where it stands: its batches are counted from there on."""
        self._previous, self._num_before = copy(self), self.num_delivered
        share, fault, self.steps_before = self.share, self.fault, self.steps
        self.start = self.place
        self._begin(share, fault)

    def after(self, steps: int) -> Run:
        """This iteration as it was when so many batches had been delivered; what was left out not counted.

        Raises:
            ValueError: so many have not been delivered.
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

    def _after(self, steps: int) -> Run:
        """The same since it began, or began again."""
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
        """Batches that this iteration has given, those left out not counted."""
        return self._num_before + self.delivered - len(self._lost)

    def hold(self, iterator: Any) -> None:
        """Notes whose iteration this is: it lasts as long as somebody holds the iterator."""
        self._holder = weakref.ref(iterator)

    @property
    def is_held(self) -> bool:
        """True if its iterator may go on."""
        return self._holder() is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_holder": _nobody, "asked": {}}

    def report(self) -> None:
        """Tells the cursor, unless a state was loaded since."""
        if self.counts and self.generation == self.cursor.generation:
            self.cursor.reached(self)

    @property
    def progress(self) -> Callable[[], int | None]:
        """A function that gives the rows delivered or handed to workers, until nobody holds this."""
        held = weakref.ref(self)

        def rows() -> int | None:
            run = held()
            if run is None:
                return None
            return max(run.taken, run.handed) * run.batch_size

        return rows

    @property
    def num_steps(self) -> int:
        """Batches on this rank, from the start on."""
        return self.shard.steps(self._length, self.start.position, self.batch_size, self.drop_last)

    @property
    def rows_in_last_step(self) -> int:
        """Rows of the dataset in the last batches of all ranks; what `pad` adds is not counted."""
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
            return _after(self.shard, self._length, self.start, self.taken * self.batch_size)
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
        return self.cursor.length

    @property
    def _seed(self) -> int:
        return self.cursor.order.seed


def _shown(value: Any) -> str:
    """What a message says of a value: Python refuses to write the digits of a huge int."""
    return "a huge number" if isinstance(value, int) and value.bit_length() > 256 else f"{value!r:.100}"


def _nobody() -> None:
    """Who holds an iteration, where nobody has said so."""


def _after(shard: Shard, length: int, start: Place, rows: int) -> Place:
    """The place after so many rows on every rank, or all that there are, from `start` on."""
    if start.share[1] > 1:
        position = start.position + min(rows, shard.count(length, start.position)) * shard.num_replicas
    else:
        position = min(start.position + rows * shard.num_replicas, shard.end(length, start.position))
    if not start.left and start.share == (0, 1):
        return Place(start.epoch, position)
    left = skipped(start.left, (position - start.position) // start.share[1])
    return Place(start.epoch, position, left, start.share)


def _steps_left(shard: Shard, length: int, place: Place, rows: int, batch_size: int, drop_last: bool) -> int:
    """The batches that any rank has left, told from a place that is this rank's alone.

    Rank 0 may have a row more than others, and with it a batch more. `rows`: delivered by this rank so far.
    """

    def steps(count: int) -> int:
        return count // batch_size if drop_last else -(-count // batch_size)

    own = shard.count(length, place.position)
    more = shard.count(length, place.position + own * shard.num_replicas, rank=0)
    return steps(own) + steps(rows + own + more) - steps(rows + own)


def _written(ranges: Ranges) -> list[list[int]]:
    joined: list[range] = []
    for some in ranges:
        if joined and joined[-1].step == some.step and joined[-1][-1] + some.step == some.start:
            some = range(joined.pop().start, some.stop, some.step)
        joined.append(some)
    return [[some.start, some.stop, some.step][: 2 + (some.step > 1)] for some in joined]


def _read_left(found: Any) -> Ranges:
    """The ranges of a state, if they are in order."""
    if not all(is_count(number) for some in found for number in some):
        raise ValueError
    left = tuple(range(start, *others) for start, *others in found)
    end = 0
    for some in left:
        if not some or some.step < 1 or some.start < end:
            raise ValueError
        end = some[-1] + 1
    if len(left) > _MOST_LEFT or any(len(some) not in (2, 3) for some in found):
        raise ValueError
    return left
