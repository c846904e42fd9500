"""The order of an epoch that was begun before rows were appended.

Rows that join an epoch need no list of what has come.
The positions up to the join are past. Those behind it are permuted once more, with the new rows: what
falls below the old length is an old position, looked up in the order as it was, and the rest is a new row.
Each join costs one more keyed bijection, forward and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..rows.types import Ints
from .contract import AnyOrder, Shuffle
from .full import ORDER_VERSION, Order, checked_rows, keyed_bytes, within
from .saved import Pin

__all__ = ["CARRIED_VERSION", "Grown"]

CARRIED_VERSION = 3  # of states that only readers of this order can continue


@dataclass(frozen=True, eq=False)
class Grown(AnyOrder):
    """An order of all rows, but for one epoch that was begun over the first of them.

    Args:
        whole: the order of all rows, for every other epoch.
        first: the order that the epoch was begun in.
        epoch: the epoch.
        joined: (N, position) for each time that rows joined it: the rows before, and the place.
        until: positions of the epoch.

    Example:
        >>> order = Grown(Order(8, 7), Order(5, 7), epoch=0, joined=((5, 2),), until=8)
        >>> sorted(order.rows(0, np.arange(8)).tolist()) == list(range(8))
        True
        >>> order.rows(0, [0, 1]).tolist() == Order(5, 7).rows(0, [0, 1]).tolist()
        True
    """

    whole: AnyOrder
    first: AnyOrder
    epoch: int
    joined: tuple[tuple[int, int], ...]
    until: int
    length: int = field(init=False)
    seed: int = field(init=False)
    shuffle: Shuffle = field(init=False)
    reshuffle: bool = field(init=False)
    shards: int | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("length", "seed", "shuffle", "reshuffle", "shards"):
            object.__setattr__(self, name, getattr(self.whole, name))

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch."""
        return self.until if epoch == self.epoch else self.length

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; see `AnyOrder.rows`."""
        if epoch != self.epoch:
            return self.whole.rows(epoch, positions)
        if not self.joined:
            return self.first.rows(epoch, positions)
        found = np.array(within(positions, self.until))
        for start, end, order in reversed(self._joins):
            some = np.nonzero((found >= start) & (found < end))
            found[some] = start + order.rows(0, found[some] - start)
        some = np.nonzero(found < self.first.length)
        found[some] = self.first.rows(epoch, found[some])
        return found

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these rows come in the epoch: the inverse of `rows`."""
        if epoch != self.epoch:
            return self.whole.positions(epoch, rows)
        if not self.joined:
            return self.first.positions(epoch, rows)
        found = np.array(checked_rows(rows, self.until))
        some = np.nonzero(found < self.first.length)
        found[some] = self.first.positions(epoch, found[some])
        for start, end, order in self._joins:
            some = np.nonzero((found >= start) & (found < end))
            found[some] = start + order.positions(0, found[some] - start)
        return found

    @property
    def _joins(self) -> list[tuple[int, int, Order]]:
        """Where each bijection begins and ends, and the bijection."""
        ends = [rows for rows, _ in self.joined[1:]] + [self.until]
        found = []
        for (rows, start), end in zip(self.joined, ends, strict=True):
            key = keyed_bytes(8, "joined", self.seed, self.epoch, rows, start, end)
            found.append((start, end, Order(end - start, int.from_bytes(key, "little"))))
        return found

    def dealt(self, num_replicas: int, begun: int | None) -> Grown:
        """This order for so many ranks; epoch `begun`, if any, goes on as it was dealt."""
        whole, first = (order.dealt(num_replicas, begun) for order in (self.whole, self.first))
        return replace(self, whole=whole, first=first)

    def resumed(self, epoch: int | None, shards: int | None, version: int) -> Grown:
        """This order, with the shards that the running epoch, if any, was begun with."""
        whole = self.whole.resumed(None, None, ORDER_VERSION)
        return replace(self, whole=whole, first=self.first.resumed(epoch, shards, ORDER_VERSION))

    def version_in(self, epoch: int) -> int:
        """The version of the order in an epoch."""
        return CARRIED_VERSION if epoch == self.epoch else self.whole.version_in(epoch)

    def changed(self, **fields: int) -> Grown:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields), first=self.first.changed(**fields))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return (self.first if epoch == self.epoch else self.whole).pins(epoch)
