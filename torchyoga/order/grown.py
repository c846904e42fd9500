"""The order of an epoch that was begun before rows were appended."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy.typing as npt

from ..rows.types import Ints
from .contract import AnyOrder, OrderOver
from .saved import Pin

__all__ = ["Grown"]


@dataclass(frozen=True, eq=False)
class Grown(OrderOver):
    """An order of all rows, but for one epoch that was begun over the first of them.

    Args:
        whole: the order of all rows, for every other epoch.
        first: the order that the epoch was begun in, and is finished in.
        epoch: the epoch.

    Example:
        >>> from torchyoga.order.full import Order
        >>> order = Grown(Order(8, 7), Order(5, 7), epoch=0)
        >>> [order.length_in(epoch) for epoch in (0, 1)]
        [5, 8]
        >>> order.rows(0, np.arange(5)).tolist() == Order(5, 7).rows(0, np.arange(5)).tolist()
        True
    """

    first: AnyOrder
    epoch: int

    def _in(self, epoch: int) -> AnyOrder:
        return self.first if epoch == self.epoch else self.whole

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch."""
        return self._in(epoch).length

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; see `AnyOrder.rows`."""
        return self._in(epoch).rows(epoch, positions)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these rows come in the epoch: the inverse of `rows`."""
        return self._in(epoch).positions(epoch, rows)

    def dealt(self, num_replicas: int, begun: int | None) -> Grown:
        """This order for so many ranks; epoch `begun`, if any, goes on as it was dealt."""
        whole, first = (order.dealt(num_replicas, begun) for order in (self.whole, self.first))
        return replace(self, whole=whole, first=first)

    def resumed(self, epoch: int | None, shards: int | None) -> Grown:
        """This order, with the shards that the running epoch, if any, was begun with."""
        whole = self.whole.resumed(None, None)
        return replace(self, whole=whole, first=self.first.resumed(epoch, shards))

    def changed(self, **fields: int) -> Grown:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields), first=self.first.changed(**fields))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return self._in(epoch).pins(epoch)
