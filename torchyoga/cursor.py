"""Where an iteration stands: epoch and position, what comes next, and the state that says so."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from .errors import StateError
from .order import ORDER_VERSION, Order, Shard, as_int

__all__ = ["Cursor", "Place"]

_KEYS = ("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint")


class Place(NamedTuple):
    """A point of the endless row of epochs; `position` counts rows consumed in the epoch, over all ranks."""

    epoch: int
    position: int


class Cursor:
    """The place an iteration has reached, and where the next one begins.

    Iterators ask `begin()` once, when their first item is wanted, and report with `reached()`. Making
    iterators and asking for the state changes nothing.
    """

    def __init__(
        self, order: Order, shard: Shard, start_offset: int = 0, fingerprint: str | None = None
    ) -> None:
        offset = as_int("start_offset", start_offset, low=0)
        if offset and not order.length:
            raise ValueError(f"start_offset={offset}, but the dataset is empty; use 0")
        self.order = order
        self.shard = shard
        self.fingerprint = fingerprint
        self.generation = 0  # grows with each load, so that iterators from before it can tell
        self._place = Place(*divmod(offset, order.length)) if order.length else Place(0, 0)
        self._origin = self._place  # where all that is delivered began
        self._running = False  # an iteration has left self._place behind its beginning
        self._again = False  # set_epoch asked for the running epoch once more
        self._just_loaded = False
        self._rebase = 0  # what to add to the epochs of a trainer that counts from 0 again

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self._place.epoch

    def begin(self, batch_size: int = 1, drop_last: bool = False) -> Place:
        """Where an iteration that begins now starts: here, or at the next epoch if this one is over."""
        epoch, position = self._place
        if self._running:
            return Place(epoch if self._again else epoch + 1, 0)
        return self.rolled(Place(epoch, position), batch_size, drop_last)

    def reached(self, place: Place, batch_size: int = 1, drop_last: bool = False) -> None:
        """An iteration has delivered everything before `place`."""
        rolled = self.rolled(place, batch_size, drop_last)
        self._again = self._again and self._place.epoch == rolled.epoch
        self._place, self._running = rolled, rolled == place
        self._just_loaded = False

    def finished(self, epoch: int) -> None:
        """An iteration has come to the end of its share of `epoch`."""
        # Not if its last item has rolled it over already, or set_epoch has moved on since.
        if self._place.epoch == epoch:
            self._place = Place(epoch + 1, 0)
            self._running = self._again = False
        self._just_loaded = False

    def rolled(self, place: Place, batch_size: int = 1, drop_last: bool = False) -> Place:
        """`place`, or the start of the next epoch if no rank has anything left of this one."""
        if self.order.length - place.position >= self.shard.num_replicas * batch_size:
            return place
        # Over all ranks: a rank with one row less must not begin the next epoch while another still has its
        # last.
        if place.position and not self.shard.steps(
            self.order.length, place.position, batch_size, drop_last, rank=0
        ):
            return Place(place.epoch + 1, 0)
        return place

    def after(self, start: Place, num_batches: int, batch_size: int) -> Place:
        """The place after that many batches on every rank, from `start` on."""
        end = self.shard.end(self.order.length, start.position)
        position = start.position + num_batches * batch_size * self.shard.num_replicas
        return Place(start.epoch, min(position, end))

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on this rank."""
        return self.shard.steps(self.order.length, 0, batch_size, drop_last)

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
        return self.after(place, steps, batch_size)

    def check_generation(self, generation: int) -> None:
        """Raises StateError if a state was loaded since an iterator noted `generation`."""
        if generation != self.generation:
            raise StateError(
                "a state was loaded after this iterator had begun, so its rows do not continue that state; "
                "call iter() again after load_state_dict()"
            )

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin.

        The epoch under way keeps its place, so a trainer may say it late. A smaller one right after a load is
        a trainer that counts from 0 again: the loaded epoch stays, and later calls count from it.
        """
        wanted = as_int("epoch", epoch, low=0) + self._rebase
        if self._just_loaded and wanted < self.epoch:
            self._rebase += self.epoch - wanted
            warnings.warn(
                f"set_epoch({epoch}) came right after loading a state of epoch {self.epoch}: the trainer "
                f"counts its epochs anew, so its epoch {epoch} is taken as {self.epoch} from now on",
                stacklevel=3,
            )
        elif wanted == self.epoch:
            self._again = self._running
        else:
            self._place = self._origin = Place(wanted, 0)
            self._running = self._again = False
        self._just_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """The state after what has been delivered: small, JSON-able, the same on every rank."""
        return self.state_at(self._place)

    def state_at(self, place: Place) -> dict[str, Any]:
        """The state of an iteration that has reached `place`."""
        order = self.order
        values = (ORDER_VERSION, order.seed, *place, order.length, _shuffle_name(order), self.fingerprint)
        return dict(zip(_KEYS, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from `state`: its place holds for the next iteration, whatever the ranks and batch size.

        Args:
            state: what `state_dict` returned, here or in any other process.
            strict: False takes only epoch and position, for a dataset that has changed on purpose.

        Raises:
            StateError: the state is damaged, or of another dataset, length, seed or kind of shuffle.
        """
        place = self._checked(state, strict)
        if place.position >= self.order.length:
            place = Place(place.epoch + 1, 0)
        self._place = self._origin = place
        self._running = self._again = False
        self._just_loaded = True
        self._rebase = 0
        self.generation += 1

    def _checked(self, state: Mapping[str, Any], strict: bool) -> Place:
        if not isinstance(state, Mapping) or not set(_KEYS) <= set(state):
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"expected a state with the keys {list(_KEYS)}, found {found}; pass what state_dict() gave"
            )
        for key in ("version", "epoch", "position", "length"):
            if type(state[key]) is not int or state[key] < 0:
                raise StateError(f"the state's {key} must be an int of at least 0, found {state[key]!r}")
        if state["version"] != ORDER_VERSION:
            raise StateError(
                f"the state is of version {state['version']}, this torchyoga reads version {ORDER_VERSION}; "
                "load it with the torchyoga that saved it"
            )
        if state["position"] > state["length"]:
            raise StateError(
                f"the state's position {state['position']} lies past its length {state['length']}"
            )
        mine = self.state_dict()
        for key in ("length", "seed", "shuffle", "fingerprint") if strict else ():
            if state[key] != mine[key]:
                raise StateError(
                    f"the state has {key} {state[key]!r}, but here it is {mine[key]!r}: it is of another "
                    "dataset or loader. Use that, or pass strict=False to take its epoch and position"
                )
        return Place(state["epoch"], state["position"])


def _shuffle_name(order: Order) -> bool | str:
    return "once" if order.shuffle and not order.reshuffle else bool(order.shuffle)
