"""Where an iteration stands: epoch and position, what comes next, and the state that says so."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from .blocks import MOST_SHARDS, AnyOrder
from .errors import StateError
from .order import ORDER_VERSION, Shard, as_int
from .place import Place, Ranges, skipped, taken
from .proof import PINS, PRIME, weight, weight_of_share, weight_until

__all__ = ["Cursor", "Run"]

_KEYS = ("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint")
_DIFFERENCES = {"window": "shuffle_window"}  # what users call it
_MOST_LEFT = 2**16  # ranges in a state; a loader has at most one for each batch under way


class Cursor:
    """The place an iteration has reached, and where the next one begins.

    Iterations are `Run`s: they ask `begin()` once, when their first item is wanted, and report with
    `reached()`. Making iterators and asking for the state changes nothing.
    """

    def __init__(
        self, order: AnyOrder, shard: Shard, start_offset: int = 0, fingerprint: str | None = None
    ) -> None:
        offset = as_int("start_offset", start_offset, low=0)
        if offset and not order.length:
            raise ValueError(f"start_offset={offset}, but the dataset is empty; use 0")
        self.order = order
        self.shard = shard
        self.fingerprint = fingerprint
        self.generation = 0  # grows with each load, so that iterators from before it can tell
        epochs, position = divmod(offset, order.length or 1)
        self._place = Place(epochs, position)
        self._origin = self._place  # where all that is delivered began
        self._steps = None if position else 0  # batches of the epoch up to there, on each rank
        self._run: Run | None = None  # that has delivered last
        self._known = _Known(self._place.epoch)
        self._running = False  # an iteration has left self._place behind its beginning
        self._again = False  # set_epoch asked for the running epoch once more
        self._just_loaded = False  # and no set_epoch since
        self._rebase = 0  # what to add to the epochs of a trainer that counts from 0 again

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self._place.epoch

    def deal(self, num_replicas: int, rank: int) -> None:
        """From now on this is another rank, or one of others."""
        self.shard = replace(self.shard, num_replicas=num_replicas, rank=rank)
        self.order = self.order.dealt(num_replicas, self._place.epoch if self._running else None)

    def begin(self, batch_size: int = 1, drop_last: bool = False) -> Place:
        """Where an iteration that begins now starts: here, or at the next epoch if this one is over."""
        place = self._place
        if self._running:
            return Place(place.epoch if self._again else place.epoch + 1, 0)
        return self.rolled(place, batch_size, drop_last)

    def reached(self, run: Run) -> None:
        """An iteration has delivered more."""
        place = run.place
        rolled = self.rolled(place, run.batch_size, run.drop_last, run.shard)
        self._again = self._again and self._place.epoch == rolled.epoch
        self._place, self._running = rolled, rolled == place
        self._steps = run.steps if self._running else 0
        self._run = run

    def finished(self, run: Run) -> None:
        """An iteration has come to the end of its share of the epoch."""
        # Not if its last item has rolled it over already, or set_epoch has moved on since.
        if run.counts and self._place.epoch == run.start.epoch:
            self._place = Place(run.start.epoch + 1, 0)
            self._run = run  # it may have had nothing to deliver, and never reported
            self._running = self._again = False
            self._steps = 0

    def rolled(
        self, place: Place, batch_size: int = 1, drop_last: bool = False, shard: Shard | None = None
    ) -> Place:
        """`place`, or the start of the next epoch if no rank has anything left of this one."""
        length, shard = self.order.length, shard or self.shard
        if length - place.position >= shard.num_replicas * batch_size:
            return place
        # Over all ranks: a rank with one row less must not begin the next epoch while another still has its
        # last.
        if place.position and not shard.steps(length, place.position, batch_size, drop_last, rank=0):
            return Place(place.epoch + 1, 0)
        return place

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on this rank."""
        return self.shard.steps(self.order.length, 0, batch_size, drop_last)

    def steps_under_way(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come.

        Trainers that saved how many batches they have done compare with it. After a resume with other ranks
        or another batch size it is another number than for a whole epoch.
        """
        run = self._run if self._running else None
        start = run.start if run else self.begin(batch_size, drop_last)
        before = run.steps_before if run else self._steps
        if not start.position or before is None:
            return self.steps(batch_size, drop_last)
        return before + self.shard.steps(self.order.length, start.position, batch_size, drop_last)

    def ahead(self, steps: int, batch_size: int = 1, drop_last: bool = False) -> Place:
        """The place after so many batches on this rank, over all epochs since the last load or set_epoch."""
        place = self.rolled(self._origin, batch_size, drop_last)
        left = self.shard.steps(self.order.length, place.position, batch_size, drop_last)
        if steps >= left:
            whole = self.steps(batch_size, drop_last)
            if not whole:
                raise ValueError(f"an epoch has no batch of {batch_size} rows; use a smaller batch_size")
            epochs, steps = divmod(steps - left, whole)
            place = Place(place.epoch + 1 + epochs, 0)
        return _after(self.shard, self.order.length, place, steps * batch_size)

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""
        if generation != self.generation:
            raise StateError(
                "a state was loaded after this iterator had begun, so its rows do not continue that state; "
                "call iter() again after load_state_dict()"
            )

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin.

        The epoch under way keeps its place, so a trainer may say it late. If the first one after a load is
        smaller, the trainer counts from 0 again: the epoch stays, and later calls count from it.
        """
        wanted = as_int("epoch", epoch, low=0) + self._rebase
        if self._just_loaded and wanted < self.epoch:
            self._rebase += self.epoch - wanted
            wanted = self.epoch
            warnings.warn(
                f"set_epoch({epoch}) came after loading a state, in epoch {wanted}: the trainer counts its "
                f"epochs anew, so its epoch {epoch} is taken as {wanted} from now on",
                stacklevel=3,
            )
        if wanted == self.epoch:
            self._again = self._running
        else:
            self._place = self._origin = Place(wanted, 0)
            self._running = self._again = False
            self._steps = 0
        self._just_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """The state after what has been delivered: small, JSON-able, the same on every rank."""
        return self.state_at(self._place, self._steps)

    def state_at(self, place: Place, steps: int | None = None) -> dict[str, Any]:
        """The state of an iteration that has reached `place`, after so many batches of its epoch."""
        order, share = self.order, None
        if place.share[1] > 1:
            rows, proof = self._known.share if self._run is None else self._run.share
            share = [
                *place.share,
                rows,
                self._known.batch_size if self._run is None else self._run.batch_size,
            ]
        else:
            proof = weight_until(order.seed, place) + self._fault(place)
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
        }

    def receipt(self) -> dict[str, Any]:
        """What this rank has delivered of the last epoch of which it has delivered anything, for `prove`."""
        run, length = self._run or Run(self, self._known.batch_size), self.order.length
        place, shard = run.place, run.shard
        rows, weight = run.share
        # After the same step of all ranks it does not matter how what comes is dealt to them.
        dealt = replace(shard, run=1)
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
        }

    def _share_before(self, start: Place) -> tuple[int, int]:
        """The rows, and their weight, that this rank accounts for of what was delivered before a start."""
        if start.share[1] > 1:
            return self._known.share
        fault = self._fault(start)
        if self.shard.rank:
            return 0, fault
        return start.position, (weight_until(self.order.seed, start) + fault) % PRIME

    def _fault(self, place: Place) -> int:
        """The weight of what came too often up to a place, less that of what was lost."""
        if not place.position:
            return 0
        run, known = self._run, self._known
        if run is not None and run.start.epoch == place.epoch:
            return run.fault
        return known.fault if known.epoch == place.epoch else 0

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from `state`: its place holds for the next iteration, whatever the ranks and batch size.

        Args:
            state: what `state_dict` returned, here or in any other process.
            strict: False takes only epoch and position, for a dataset that has changed on purpose.

        Raises:
            StateError: the state is damaged, or of another dataset, length, seed or kind of shuffle.
        """
        place, steps, known = self._checked(state, strict)
        if place.position >= self.order.length:
            place, steps = Place(place.epoch + 1, 0), 0
        begun = place.epoch if place.position else None
        shards = state.get("shards") if strict else None
        self.order = self.order.resumed(begun, shards, state["version"])
        self._place = self._origin = place
        self._steps, self._known, self._run = steps, known, None
        self._running = self._again = False
        self._just_loaded = True
        self._rebase = 0
        self.generation += 1

    def _checked(self, state: Mapping[str, Any], strict: bool) -> tuple[Place, int | None, _Known]:
        if not isinstance(state, Mapping) or not set(_KEYS) <= set(state):
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"expected a state with the keys {list(_KEYS)}, found {found}; pass what state_dict() gave"
            )
        for key in ("version", "epoch", "position", "length"):
            if type(state[key]) is not int or state[key] < 0:
                raise StateError(f"the state's {key} must be an int of at least 0, found {state[key]!r}")
        if not 0 < state["version"] <= ORDER_VERSION:
            raise StateError(
                f"the state is of version {state['version']}, this torchyoga reads versions 1 to "
                f"{ORDER_VERSION}; load it with the torchyoga that saved it"
            )
        if state["position"] > state["length"]:
            raise StateError(
                f"the state's position {state['position']} lies past its length {state['length']}"
            )
        mine = self.state_dict()
        for key in ("length", "seed", "shuffle", "fingerprint", "window") if strict else ():
            if state.get(key) != mine.get(key):
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

    def _read(self, state: Mapping[str, Any]) -> tuple[Place, int | None, _Known]:
        """The place of a state, the batches of its epoch before, and what else is known of them.

        What says more than the place may be missing: then batches came in order, and nothing was lost.
        """
        epoch, position = state["epoch"], state["position"]
        steps, share = state.get("steps"), state.get("share")
        try:
            left = _read_left(state.get("left") or [])
            proof = int(state["proof"], 16) if state.get("proof") is not None else None
            rank, world, rows, size = (0, 1, 0, 1) if share is None else map(operator.index, share)
            steps = None if steps is None else operator.index(steps)
            is_sound = 0 <= rank < world and rows >= 0 and size > 0 and (steps is None or steps >= 0)
        except (TypeError, ValueError, IndexError):
            is_sound = False
        if not is_sound or (left and left[-1].stop > position + world * (sum(map(len, left)) + 1)):
            raise StateError(
                "the state's steps, left, share or proof are damaged; pass what state_dict() gave"
            )
        place = Place(epoch, position, left, (rank, world))
        if world > 1:
            if (rank, world) != (self.shard.rank, self.shard.num_replicas):
                raise StateError(
                    f"the state is of rank {rank} of {world} alone, for with in_order=False each has other "
                    f"batches early; this is rank {self.shard.rank} of {self.shard.num_replicas}. Load each "
                    "rank's own state, or train with in_order=True"
                )
            return place, steps, _Known(epoch, share=(rows, proof or 0), batch_size=size)
        fault = 0 if proof is None else (proof - weight_until(state["seed"], place)) % PRIME
        return place, steps, _Known(epoch, fault)


class _Known(NamedTuple):
    """What a state says of an epoch besides its place.

    Attributes:
        epoch: the epoch.
        fault: the weight of what came too often, less that of what was lost.
        share: rows, and their weight, that this rank has delivered, if the state is its alone.
        batch_size: of that rank then.
    """

    epoch: int
    fault: int = 0
    share: tuple[int, int] = (0, 0)
    batch_size: int = 1


class Run:
    """One iteration: where it began, and what it has delivered. It leads to no iterator.

    Args:
        cursor: where it stands; see `Cursor.begin` for the others.

    Attributes:
        start: the place at which it began.
        steps_before: batches of the epoch before, on each rank; None if it is not known, or rows are counted.
        taken: batches delivered, without gaps.
        fault: the weight of what came too often in the epoch, less that of what was lost.
        counts: False if what it delivers will not be trained on, so that the cursor is not told.
    """

    def __init__(
        self, cursor: Cursor, batch_size: int = 1, drop_last: bool = False, in_order: bool = True
    ) -> None:
        self.cursor = cursor
        self.batch_size, self.drop_last = batch_size, drop_last
        self.start, self.generation = cursor.begin(batch_size, drop_last), cursor.generation
        known = cursor._known
        if self.start.share[1] > 1 and batch_size != known.batch_size:
            raise StateError(
                f"the state was saved with in_order=False on several ranks and batches of {known.batch_size} "
                f"rows; with others, ranks would not have as many. Found batch_size={batch_size}; change it "
                "when the epoch is over"
            )
        self.shard = cursor.shard
        self.steps_before = cursor._steps if self.start == cursor._place else 0
        self._before = cursor._share_before(self.start)
        self.fault = cursor._fault(self.start)
        self._in_order = in_order
        self.counts = True
        self.taken = 0
        self._early: set[int] = set()  # batches behind one that has not come

    def deliver(self, step: int) -> None:
        """Batch number `step` has been delivered, in whatever order."""
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
        self.deliver(step)

    def restart(self) -> None:
        """Begins again where it stands: its batches are counted from there on."""
        self._before, self.steps_before, self.start = self.share, self.steps, self.place
        self.taken = 0
        self._early.clear()

    def report(self) -> None:
        """Tells the cursor, unless a state was loaded since."""
        if self.counts and self.generation == self.cursor.generation:
            self.cursor.reached(self)

    @property
    def progress(self) -> Callable[[], int | None]:
        """A function that gives the rows delivered by now, until nobody holds this iteration any more."""
        held = weakref.ref(self)

        def rows() -> int | None:
            run = held()
            if run is None:
                return None
            return run.taken * run.batch_size

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
    def _rows(self) -> tuple[int, int]:
        """Rows delivered by this rank, and up to the last of them."""
        size, count = self.batch_size, self._count
        rows = ahead = min(self.taken * size, count)
        for step in self._early:
            stop = min((step + 1) * size, count)
            rows += stop - step * size
            ahead = max(ahead, stop)
        return rows, ahead

    @property
    def _gaps(self) -> Ranges:
        """The positions of this rank's batches that others have overtaken."""
        found: Ranges = ()
        missing = [step for step in range(self.taken, max(self._early, default=0)) if step not in self._early]
        for step in missing:
            start = step * self.batch_size
            found += taken(self.start, self.shard, self._length, start, start + self.batch_size)
        return found

    @property
    def _count(self) -> int:
        return self.shard.count(self._length, self.start.position)

    @property
    def _length(self) -> int:
        return self.cursor.order.length

    @property
    def _seed(self) -> int:
        return self.cursor.order.seed


def _after(shard: Shard, length: int, start: Place, rows: int) -> Place:
    """The place after so many rows on every rank, or all that there are, from `start` on."""
    position = min(start.position + rows * shard.num_replicas, shard.end(length, start.position))
    if not start.left and start.share == (0, 1):
        return Place(start.epoch, position)
    left = skipped(start.left, (position - start.position) // start.share[1])
    return Place(start.epoch, position, left, start.share)


def _written(ranges: Ranges) -> list[list[int]]:
    joined: list[range] = []
    for some in ranges:
        if joined and joined[-1].step == some.step and joined[-1][-1] + some.step == some.start:
            some = range(joined.pop().start, some.stop, some.step)
        joined.append(some)
    return [[some.start, some.stop, some.step][: 2 + (some.step > 1)] for some in joined]


def _read_left(found: Any) -> Ranges:
    """The ranges of a state, if they are in order."""
    left = tuple(range(*map(operator.index, (start, *others))) for start, *others in found)
    end = 0
    for some in left:
        if not some or some.step < 1 or some.start < end:
            raise ValueError
        end = some[-1] + 1
    if len(left) > _MOST_LEFT or any(len(some) not in (2, 3) for some in found):
        raise ValueError
    return left
