"""The order of an epoch that was begun before rows were appended.

Rows that join an epoch need no list of what has come.
The positions up to the join are past. Those behind it are permuted once more, with the new rows: what
falls below the old length is an old position, looked up in the order as it was, and the rest is a new row.
Each join costs one more keyed bijection, forward and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..rows.types import Ints
from .contract import AnyOrder, OrderOver
from .full import ORDER_VERSION, checked_rows, keyed_bytes, within
from .saved import Pin

__all__ = ["CARRIED_VERSION", "Grown", "Joins"]

CARRIED_VERSION = 3  # of states that only readers of this order can continue


# Makes the order in which appended rows come: see `AnyOrder.joining`.
Joining: TypeAlias = Callable[[int, int, int, int], "AnyOrder | None"]


class Joins(NamedTuple):
    """Bijections that mix rows into the rest of an order that is under way, one for each time.

    Attributes:
        rows_before: rows before the first time.
        steps: where each begins and ends, and the bijection.
    """

    rows_before: int
    steps: tuple[tuple[int, int, AnyOrder], ...]

    @classmethod
    def of(cls, joined: Sequence[tuple[int, int]], until: int, joining: Joining, *key: int | str) -> Joins:
        """The bijections of rows that joined.

        Args:
            joined: (N, position) for each time: the rows before, and the place.
            until: rows in all.
            joining: makes one of them.
            key: what they depend on.
        """
        ends = [rows for rows, _ in joined[1:]] + [until]
        steps = []
        for (rows, start), end in zip(joined, ends, strict=True):
            seed = int.from_bytes(keyed_bytes(8, *key, rows, start, end), "little")
            order = joining(rows, start, end, seed)
            assert order is not None, "rows join only what they can"
            steps.append((start, end, order))
        return cls(joined[0][0], tuple(steps))

    def rows(self, positions: Ints, before: Callable[[Ints], Ints]) -> Ints:
        """The rows at these positions; `before` gives those of the order before any joined."""
        rows = np.array(positions)
        for start, end, order in reversed(self.steps):
            some = np.nonzero((rows >= start) & (rows < end))
            rows[some] = start + order.rows(0, rows[some] - start)
        some = np.nonzero(rows < self.rows_before)
        if some[0].size:
            rows[some] = before(rows[some])
        return rows

    def positions(self, rows: Ints, before: Callable[[Ints], Ints]) -> Ints:
        """The positions of these rows: the inverse of `rows`."""
        positions = np.array(rows)
        some = np.nonzero(positions < self.rows_before)
        if some[0].size:
            positions[some] = before(positions[some])
        for start, end, order in self.steps:
            some = np.nonzero((positions >= start) & (positions < end))
            positions[some] = start + order.positions(0, positions[some] - start)
        return positions


@dataclass(frozen=True, eq=False)
class Grown(OrderOver):
    """An order of all rows, but for one epoch that was begun over the first of them.

    Args:
        whole: the order of all rows, for every other epoch.
        first: the order that the epoch was begun in.
        epoch: the epoch.
        joined: (N, position) for each time that rows joined it: the rows before, and the place.
        until: positions of the epoch.

    Example:
        >>> from torchyoga.order.full import Order
        >>> order = Grown(Order(8, 7), Order(5, 7), epoch=0, joined=((5, 2),), until=8)
        >>> sorted(order.rows(0, np.arange(8)).tolist()) == list(range(8))
        True
        >>> order.rows(0, np.arange(2)).tolist() == Order(5, 7).rows(0, np.arange(2)).tolist()
        True
    """

    first: AnyOrder
    epoch: int
    joined: tuple[tuple[int, int], ...]
    until: int

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch."""
        return self.until if epoch == self.epoch else self.length

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; see `AnyOrder.rows`."""
        if epoch != self.epoch:
            return self.whole.rows(epoch, positions)
        if not self.joined:
            return self.first.rows(epoch, positions)
        return self._joins.rows(within(positions, self.until), partial(self.first.rows, epoch))

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these rows come in the epoch: the inverse of `rows`."""
        if epoch != self.epoch:
            return self.whole.positions(epoch, rows)
        if not self.joined:
            return self.first.positions(epoch, rows)
        return self._joins.positions(checked_rows(rows, self.until), partial(self.first.positions, epoch))

    @property
    def _joins(self) -> Joins:
        return Joins.of(self.joined, self.until, self.whole.joining, "joined", self.seed, self.epoch)

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
