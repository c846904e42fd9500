"""An epoch that was begun in another order, and a state of it, carried over to the order here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy.typing as npt

from ..errors import StateError
from ..rows.types import Ints
from .contract import AnyOrder, Appended, OrderOver
from .epoch import Epoch
from .place import Place
from .saved import Pin
from .state import State

Prefixes = Sequence[tuple[str, int]]


@dataclass(frozen=True, eq=False)
class BegunOrder(OrderOver):
    """An order, but for one epoch that was begun in another order, and is finished in that.

    The epoch was begun before rows were appended, or for other ranks with files of their own.

    Args:
        whole: the order of every other epoch.
        first: the order of that epoch.
        epoch: the epoch.

    Example:
        >>> from torchyoga.order.full import Order
        >>> order = BegunOrder(Order(8, 7), Order(5, 7), epoch=0)
        >>> [order.length_in(epoch) for epoch in (0, 1)]
        [5, 8]
        >>> order.rows(0, np.arange(5)).tolist() == Order(5, 7).rows(0, np.arange(5)).tolist()
        True
    """

    first: AnyOrder
    epoch: int

    def order_in(self, epoch: int) -> AnyOrder:
        """The order of an epoch."""
        return self.first if epoch == self.epoch else self.whole

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; see `AnyOrder.rows`."""
        return self.order_in(epoch).rows(epoch, positions)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these rows come in the epoch: the inverse of `rows`."""
        return self.order_in(epoch).positions(epoch, rows)

    def dealt(self, num_replicas: int) -> BegunOrder:
        """This order for so many ranks; the epoch that was begun keeps its own."""
        return replace(self, whole=self.whole.dealt(num_replicas))

    def changed(self, **fields: int) -> BegunOrder:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields), first=self.first.changed(**fields))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return self.order_in(epoch).pins(epoch)


def begun_in(order: AnyOrder, first: AnyOrder, epoch: int) -> AnyOrder:
    """An order whose epoch goes on in the order that it was begun in, `first`, if that is another one."""
    if order.order_in(epoch) is first:
        return order
    return BegunOrder(order.whole if isinstance(order, BegunOrder) else order, first, epoch)


def carried(
    saved: State,
    whole: AnyOrder,
    fingerprint: str | None,
    prefixes: Prefixes,
    appended: Appended | None,
    seed: int,
    pins: Mapping[str, Pin],
) -> tuple[State, AnyOrder]:
    """A state of this dataset, or of its first rows, as one of this dataset, and the order of its epoch.

    Args:
        saved: the state.
        whole: the order of all rows.
        fingerprint: of the dataset.
        prefixes: fingerprint and rows of the versions that it begins with.
        appended: "next" if new rows come after the epoch under way; None if there are to be none.
        seed: that of the state, or the one given here.
        pins: what identifies the dataset besides.

    Raises:
        StateError: the state is of another dataset, or there are new rows and `appended` is None, or the
            order before them is not known.
    """
    is_own = saved.fingerprint == fingerprint or (saved.fingerprint, saved.rows) not in prefixes
    epoch = saved.at.place.epoch
    if not is_own and saved.rows == whole.length_in(epoch):  # the same rows, with other columns
        saved, is_own = replace(saved, fingerprint=fingerprint), True
    if is_own and saved.grown is None:  # its epoch was not begun before rows were appended
        mine = {**pins, "length": whole.length_in(epoch), "seed": seed, "fingerprint": fingerprint}
        saved.check_same({**whole.pins(epoch), **mine})
        return saved, whole
    first = _first(whole, saved.length)
    expected = {**first.pins(epoch), **pins, "length": saved.length, "seed": seed}
    saved.check_same({**expected, "fingerprint": fingerprint if is_own else saved.fingerprint})
    if is_own:
        if saved.rows != whole.length:
            raise StateError(
                f"the state has a dataset of {saved.rows} rows, but here it has {whole.length}: it is of "
                "another dataset, or damaged"
            )
        return saved, first
    if appended is None:
        raise StateError(
            f"the state is of {saved.rows} rows, and {whole.length - saved.rows} rows were appended since: "
            f"here are {whole.length}. Pass appended='next' to finish the epoch under way without them; "
            "the loader and load_state_dict() take it"
        )
    if saved.position in (0, saved.length) and not saved.left:
        at = Epoch(Place(epoch + bool(saved.position), 0))
        own = whole.pins(at.place.epoch)
        begun = replace(saved, at=at, length=whole.length, pins=own, fingerprint=fingerprint, grown=None)
        return begun, whole
    found = replace(saved, fingerprint=fingerprint, grown=whole.length)
    return found, first


def _first(whole: AnyOrder, rows: int) -> AnyOrder:
    """The order of the first rows, as it was before the others were appended."""
    first = whole.prefix(rows)
    if first is not None:
        return first
    raise StateError(
        "the sources of the state have grown, and weights of rows, or files that were laid anew, do not know "
        "the order before; finish the epoch over the version of the state, or pass strict=False to take its "
        "epoch and position"
    )
