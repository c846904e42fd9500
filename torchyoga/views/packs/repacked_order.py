"""The order of an epoch whose rest was packed anew, and of those behind it.

Up to a position the epoch is as it was begun: its rows are named by what they were then. The others are rows
of the rest, in an order of their own, and later epochs are those of the new packs. So an epoch has another
length than the others, as one that rows have joined (see `grown`), and a state tells where it was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...order.contract import ARRANGED, AnyOrder, OrderOver, before_known
from ...order.full import Order, keyed_bytes, within
from ...order.saved import Pin
from ...process.lazy import np
from ...rows.types import Ints

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...order.state import State

__all__ = ["FinishedOrder", "RepackedOrder", "apart", "told_in"]

_BITS = 44  # of the number of a row in its source
_OWN = 2  # sources of an order itself, before those of the order that it goes on from
Stages = tuple[tuple[int, str], ...]


@dataclass(frozen=True, eq=False)
class RepackedOrder(OrderOver):
    """An order of packs, but for an epoch that was begun with others.

    Args:
        whole: the order of the packs, for every later epoch.
        first: the order that the epoch was begun in.
        epoch: the epoch.
        place: the position from which on it has other packs.
        rest: how many packs these are.
        stages: the position from which on packs are made in some way, and that way, from the first on.
        before: the fingerprint and the view of the data that the epoch was begun with.
    """

    first: AnyOrder
    epoch: int
    place: int
    rest: int
    stages: Stages
    before: tuple[str | None, Pin]

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch."""
        return self.place + self.rest if epoch == self.epoch and self.place else self.length

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The row numbers at these positions of the epoch; `apart` says what they are of."""
        self.check_place(epoch, 0)
        if epoch != self.epoch or not self.place:
            return self.whole.rows(epoch, positions)
        length = self.length_in(epoch)
        out = np.array(within(positions, length))
        again = np.asarray(positions) >= length  # rows that fill up ranks are as wide as those beside them
        out[again] = self.place + out[again] % (length - self.place)
        is_past = out < self.place
        past, coming = out[is_past], out[~is_past] - self.place
        out[is_past] = _behind(self.first.rows(epoch, past))
        out[~is_past] = ARRANGED.start + (1 << _BITS) + self._order.rows(0, coming)
        return out

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these row numbers come in the epoch: the inverse of `rows`."""
        self.check_place(epoch, 0)
        if epoch != self.epoch or not self.place:
            return self.whole.positions(epoch, rows)
        out = np.array(rows, np.int64)
        source, row = apart(out)
        is_rest = source == 1
        if not (source > 0).all():
            raise ValueError(f"row number {int(out[source < 1][0])} does not come in epoch {epoch}")
        out[is_rest] = self.place + self._order.positions(0, row[is_rest])
        out[~is_rest] = self.first.positions(epoch, _ahead(out[~is_rest]))
        return out

    @property
    def _order(self) -> Order:
        """The order of the rest."""
        key = keyed_bytes(8, "packed anew", self.seed, self.epoch, self.place)
        return Order(self.rest, int.from_bytes(key, "little"), bool(self.shuffle))

    def check_place(self, epoch: int, position: int) -> None:
        """Raises ValueError if the epoch lies before that in which packs were made anew."""
        if epoch < self.epoch:
            raise before_known(epoch, position, self.epoch * self.length)

    def adopted(self, saved: State, fingerprint: str | None, pins: Mapping[str, Pin]) -> State:
        """The state at which packs were made anew, of what there was before, as one of this order."""
        known = self.first.adopted(saved, self.before[0], {"view": self.before[1]})
        end = known.position + sum(map(len, known.left))
        epoch, place = (known.epoch, end) if end < known.length else (known.epoch + 1, 0)
        kind, window = known.pins.get("shuffle"), known.pins.get("window")
        is_before = (known.fingerprint, known.pins.get("view", self.before[1])) == self.before
        if not is_before or (epoch, place) != (self.epoch, self.place) or kind != self.kind:
            return saved
        if kind == "block" and window != self.whole.pins(epoch).get("window"):
            return saved
        if epoch != known.epoch:
            known = replace(known, epoch=epoch, position=0, steps=0, again=0)
        mine = {**self.pins(epoch), **pins}
        adopted: State = replace(known, fingerprint=fingerprint, length=self.length_in(epoch), pins=mine)
        return adopted

    def resumed(self, epoch: int | None, shards: int | None, version: int) -> RepackedOrder:
        """This order, with the version that the running epoch, if any, was begun with."""
        is_here = epoch == self.epoch
        whole = self.whole.resumed(None if is_here else epoch, shards, version)
        return replace(self, whole=whole, first=self.first.resumed(epoch, shards, version))

    def version_in(self, epoch: int) -> int:
        """The version of the order in an epoch."""
        return (self.first if epoch == self.epoch and self.place else self.whole).version_in(epoch)

    def changed(self, **fields: int) -> RepackedOrder:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields), first=self.first.changed(**fields))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state: how packs are made, from which place on."""
        here = self.stages if epoch == self.epoch else tuple((0, told) for _, told in self.stages)
        ways = ">".join(f"{told}+{place}" if place else told for place, told in here)
        return {**self.whole.pins(epoch), "stages": f"0:{ways}"}


@dataclass(frozen=True, eq=False)
class FinishedOrder(OrderOver):
    """An order of packs of documents that have grown, but for an epoch that was begun with those of before.

    Args:
        whole: the order of the packs, for every later epoch.
        first: the order that the epoch was begun in, and is finished in.
        epoch: the epoch.
        version: the source, as `apart` numbers it, of the packs of the epoch.
        told: the way in which these are made.
        before: the fingerprint of the state that it goes on from.
    """

    first: AnyOrder
    epoch: int
    version: int
    told: str
    before: str | None

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch."""
        return (self.first if epoch == self.epoch else self.whole).length

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The row numbers at these positions of the epoch; `apart` says what they are of."""
        if epoch != self.epoch:
            return self.whole.rows(epoch, positions)
        return ARRANGED.start + (self.version << _BITS) + self.first.rows(epoch, positions)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these row numbers come in the epoch: the inverse of `rows`."""
        if epoch != self.epoch:
            return self.whole.positions(epoch, rows)
        return self.first.positions(epoch, np.asarray(rows) - ARRANGED.start - (self.version << _BITS))

    def adopted(self, saved: State, fingerprint: str | None, pins: Mapping[str, Pin]) -> State:
        """A state of the packs of before as one of this order."""
        if saved.fingerprint != self.before or saved.length != self.first.length:
            return saved
        is_told = saved.pins.get("stages") is not None
        expected = (self if is_told else self.first).pins(saved.epoch)
        same = {"length": saved.length, "seed": saved.seed, "fingerprint": saved.fingerprint}
        saved.check_same({**expected, **pins, **same})
        found = replace(saved, fingerprint=fingerprint, pins={**self.pins(saved.epoch), **pins})
        if saved.left or saved.position not in (0, saved.length):
            return found
        epoch = saved.epoch + bool(saved.position)  # which has all documents
        begun = replace(found, epoch=epoch, position=0, share=None, proof=None, steps=0, again=0)
        return replace(begun, length=self.whole.length, pins={**self.whole.pins(epoch), **pins})

    def resumed(self, epoch: int | None, shards: int | None, version: int) -> FinishedOrder:
        """This order, with the version that the running epoch, if any, was begun with."""
        if epoch is None:  # none is, so nothing is left to be finished
            return replace(self, epoch=-1)
        return replace(
            self,
            whole=self.whole.resumed(None, None, version),
            first=self.first.resumed(epoch, shards, version),
        )

    def version_in(self, epoch: int) -> int:
        """The version of the order in an epoch."""
        return (self.first if epoch == self.epoch else self.whole).version_in(epoch)

    def changed(self, **fields: int) -> FinishedOrder:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields), first=self.first.changed(**fields))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state: how packs are made, if they are those of before."""
        if epoch != self.epoch:
            return self.whole.pins(epoch)
        return {**self.first.pins(epoch), "stages": f"0:{self.told}"}


def told_in(saved: State) -> Stages:
    """How packs are made, by a state: the position of its epoch from which on, and the way."""
    pin = saved.pins.get("stages")
    out: list[tuple[int, str]] = []
    for text in pin[2:].split(">") if isinstance(pin, str) and pin.startswith("0:") else ():
        told, _, place = text.partition("+")
        is_number = place.isascii() and place.isdigit() and len(place) < 19
        out.append((int(place) if is_number else 0, told))
    return tuple(out)


def apart(numbers: Ints) -> tuple[Ints, Ints]:
    """The source of each row number (B,), and the row there.

    Source 0 are the packs of later epochs, 1 those of the rest, and the others what came before.
    """
    inner = np.maximum(numbers - ARRANGED.start, 0)
    return inner >> _BITS, np.where(numbers < ARRANGED.start, numbers, inner & (1 << _BITS) - 1)


def _behind(numbers: Ints) -> Ints:
    """Row numbers of the order before as those of this one."""
    return np.where(numbers < ARRANGED.start, numbers + ARRANGED.start, numbers) + (_OWN << _BITS)


def _ahead(numbers: Ints) -> Ints:
    """The inverse of `_behind`."""
    before = numbers - (_OWN << _BITS)
    return np.where(before < ARRANGED.start + (1 << _BITS), before - ARRANGED.start, before)
