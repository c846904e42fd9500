"""The order of an epoch that is finished with the packs it was begun with, and of those behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...order.contract import ARRANGED, AnyOrder, OrderOver
from ...order.saved import Pin
from ...process.lazy import np
from ...rows.types import Ints

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...order.state import State

__all__ = ["FinishedOrder", "apart", "told_in"]

_BITS = 44  # of the number of a row in its source
Stages = tuple[tuple[int, str], ...]


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
