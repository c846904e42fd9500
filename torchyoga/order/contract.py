"""The contract of all orders of rows, and the plain data by which states and receipts name one.

Some orders change from a place on, in stages. Places are counted over all epochs: place g is position g % N
of epoch g // N. What has come cannot be changed, what is to come can. A state lists the stages from the one
on that decided the last row before it, so it does not grow with their number; an order goes on from it if its
own are the same there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..process.digests import hexdigest
from ..process.lazy import np
from ..rows.types import Ints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    from typing_extensions import Self

# What a state records so that it is not continued in another order; lists of JSON are tuples here.
Pin: TypeAlias = int | str | tuple[Any, ...] | None
Saved: TypeAlias = dict[str, Any]  # a state or a receipt as a dict: checked by whoever reads it


def digest(*parts: object) -> str:
    """A short name for some arrays, texts and numbers; it begins with "#".

    Args:
        parts: memory is taken as it is, anything else as text.

    Example:
        >>> digest("a", 1) == digest("a", 1) != digest("a1")
        True
    """
    pieces = [part if isinstance(part, memoryview) else memoryview(str(part).encode()) for part in parts]
    return "#" + hexdigest(*(piece for data in pieces for piece in (f"{data.nbytes}:", data)), size=8)


def described(kind: str, **arguments: object) -> str | None:
    """A view as a state tells it, by its arguments, long ones as digests; None if there are none.

    Example:
        >>> described("bucketed", batch=64, pool=8192, lengths=None)
        'bucketed(batch=64, pool=8192)'
    """
    texts = {name: str(value) for name, value in arguments.items() if value is not None}
    texts = {n: text if re.fullmatch(r"[\w#.+-]{1,24}", text) else digest(text) for n, text in texts.items()}
    return f"{kind}({', '.join(f'{name}={text}' for name, text in texts.items())})" if texts else None


def are_counts(*values: object) -> bool:
    """True for ints of at least 0 that arithmetic on rows can take."""
    for value in values:  # noqa: SIM110 (a state has many, and `all` would call something for each)
        if type(value) is not int or not 0 <= value <= 2**62:
            return False
    return True


Shuffle = bool | Literal["block"]
Locality = Literal["global", "shard"]
Appended = Literal["next"]
SavedState = Any  # a `State`, which knows of orders
ARRANGED = range(2**61, 2**62)
_MOST_PLACES = 2**61


def check_appended(appended: object) -> None:
    """Raises ValueError unless it is None or "next"."""
    if appended not in (None, "next"):
        raise ValueError(f"appended must be 'next' or None, found {appended!r:.100}")


def check_epoch(epoch: int, length: int) -> None:
    """Raises ValueError if the places of all epochs up to this one are more than can be counted."""
    if (epoch + 1) * length >= _MOST_PLACES:
        raise ValueError(
            f"epoch {epoch} of {length} rows lies beyond the {_MOST_PLACES} places that are counted"
        )


def before_known(epoch: int, position: int, known: int) -> ValueError:
    """The fault of a place before which the weights are not known."""
    return ValueError(
        f"position {position} of epoch {epoch} lies before place {known}, from which on the weights are "
        "known; load the state that they were changed at into the loader, or read from what was there "
        "before reweighted(...)"
    )


class AnyOrder(ABC):
    """Which row comes at which position of every epoch, over all ranks; a frozen dataclass.

    Attributes:
        length: positions of an epoch N.
        seed: any int; together with the epoch it makes the keys.
        shuffle: True, False or "block".
        reshuffle: False if every epoch has the order of epoch 0.
        shards: the ranks that have files of their own; None if there is one order for all.
        at_once: positions that are best computed at once; fewer stay in the processor's cache.
    """

    length: int
    seed: int
    shuffle: Shuffle
    reshuffle: bool
    shards: int | None = None
    at_once = 65536

    @abstractmethod
    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; past N they wrap around.

        Raises:
            ValueError: a position is below 0.
        """

    @abstractmethod
    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`.

        Raises:
            ValueError: there is no such row, or it does not come in the epoch.
        """

    def order_in(self, epoch: int) -> AnyOrder:
        """The order of an epoch: this one, unless it was begun in another."""
        return self

    def length_in(self, epoch: int) -> int:
        """Positions of an epoch: N, unless it was begun before rows were appended."""
        return self.order_in(epoch).length

    def dealt(self, num_replicas: int) -> Self:
        """This order for so many ranks, which matters if each has files of its own."""
        return self

    def check_place(self, epoch: int, position: int) -> None:  # noqa: B027 (most orders have all places)
        """Raises ValueError if it cannot go on from this position of the epoch."""

    def prefix(self, rows: int) -> AnyOrder | None:
        """This order of the first rows, as it was before others were appended; None if it is not known."""
        return None

    def changed(self, **fields: int) -> Self:
        """This order with another `seed` or `length`."""
        return replace(self, **fields)  # type: ignore[type-var]

    @abstractmethod
    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""

    @property
    def kind(self) -> Pin:
        """How it shuffles, as a state records it."""
        if self.reshuffle or not self.shuffle:
            return self.shuffle
        return "block once" if self.shuffle == "block" else "once"


@dataclass(frozen=True, eq=False)
class OrderOver(AnyOrder):
    """An order that stands over another one, and is as long, seeded and shuffled as that.

    Args:
        whole: the other order.
    """

    whole: AnyOrder
    length: int = field(init=False)
    seed: int = field(init=False)
    shuffle: Shuffle = field(init=False)
    reshuffle: bool = field(init=False)
    shards: int | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("length", "seed", "shuffle", "reshuffle", "shards"):
            object.__setattr__(self, name, getattr(self.whole, name))

    def changed(self, **fields: int) -> Self:
        """This order with another `seed`."""
        return replace(self, whole=self.whole.changed(**fields))


class Arrangement:
    """The choice of which rows of a dataset come in an epoch, where not each of them comes once.

    The orders that it makes give row numbers in `ARRANGED`, beyond those of any dataset, so that a row that
    comes several times has several numbers, each with a position of its own.

    Args:
        order: makes the order of every epoch, of (seed, shuffle, reshuffle, window).
    """

    def __init__(self, order: Callable[[int, Shuffle, bool, int], AnyOrder]) -> None:
        self.order = order

    def going_on(
        self,
        order: AnyOrder,
        saved: SavedState,
        appended: Appended | None,
        fingerprint: str | None,
        pins: Mapping[str, Pin],
    ) -> tuple[AnyOrder, SavedState]:
        """The order in which a state goes on, if that says more about it than is known here; and the state.

        Args:
            order: one of this arrangement.
            saved: the state.
            appended: when rows come that were appended since.
            fingerprint: of the dataset here.
            pins: what identifies the dataset besides.

        Raises:
            StateError: the state is of other data.
        """
        return order, saved


def within(positions: npt.ArrayLike, length: int) -> Ints:
    """Ints in 0..N-1: past N they wrap around; ValueError for one below 0."""
    found = np.asarray(positions, np.int64)
    if length and found.size and are_outside(found, length):
        if int(found.min()) < 0:  # a walk from outside might never get inside
            raise ValueError(f"positions must be at least 0, found {int(found.min())}")
        found = found % length
    return found


def checked_rows(rows: npt.ArrayLike, length: int) -> Ints:
    """Rows as int64; ValueError if some are not in 0..N-1."""
    found = np.asarray(rows, np.int64)
    if are_outside(found, length):
        raise ValueError(f"rows must be in 0..{length - 1}, found {int(found.min())}..{int(found.max())}")
    return found


def are_outside(numbers: Ints, length: int) -> bool:
    """True if any of the numbers is not in 0..length-1."""
    return bool(numbers.size) and int(numbers.view(np.uint64).max()) >= length  # numbers below 0 become huge


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
    return BegunOrder(order.whole if type(order) is BegunOrder else order, first, epoch)


def in_effect(pin: Pin, first: int, last: int) -> tuple[tuple[Pin, ...], ...]:
    """The stages of a state or an order that begin at place `last` or before, and end at `first` or later.

    Raises:
        ValueError: they are damaged.

    Example:
        >>> stages = ((0, (7, 3)), (1000, (5, 5), (700, 300)), (2000, (6, 4), (1200, 800)))
        >>> in_effect(stages, 500, 700), in_effect(stages, 1500, 1500)
        (((0, (7, 3)),), ((1000, (5, 5), (700, 300)),))
    """
    stages = pin if isinstance(pin, tuple) else ()
    starts = [stage[0] if isinstance(stage, tuple) and len(stage) > 1 else -1 for stage in stages]
    if not stages or not are_counts(*starts) or starts != sorted(set(starts)):
        raise ValueError("damaged stages" if stages else "no stages")
    begun = [stage for stage in stages if stage[0] <= last]
    return tuple(begun[sum(later[0] < first for later in begun[1:]) :])


class ArrangedOrder(AnyOrder):
    """An order that decides which rows come, in stages; its row numbers are in `ARRANGED`.

    Attributes:
        window: files mixed with each other at once, if shuffle is "block".
        what: what decides, for messages.
    """

    window: int
    what: str

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The row numbers at these positions of the epoch; past N, the last stage comes again."""
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        if front := self._front(epoch):
            is_past = np.asarray(positions) >= self.length
            found = np.where(is_past, front + found % (self.length - front), found)
        return self._rows(epoch, np.ascontiguousarray(found).reshape(-1)).reshape(found.shape)

    def _front(self, epoch: int) -> int:
        """The position whose row comes again past N: no state need tell what came before its last stage."""
        return 0

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these row numbers come in the epoch: the inverse of `rows`."""
        numbers = np.asarray(rows, np.int64)
        if not numbers.size:
            return numbers
        flat = np.ascontiguousarray(numbers).reshape(-1)
        found = self._positions(epoch, flat)
        if int(found.min()) < 0:
            number = int(flat[np.argmin(found)])
            raise ValueError(f"row number {number} does not come in epoch {epoch} of {self.what}")
        return found.reshape(numbers.shape)

    @abstractmethod
    def _rows(self, epoch: int, positions: Ints) -> Ints:
        """(M,) what comes at positions (M,), each in 0..N-1."""

    @abstractmethod
    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        """(M,) where row numbers (M,) come; -1 for those that do not."""

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order; subclasses add `stages`."""
        found: dict[str, Pin] = {"shuffle": self.kind}
        return {**found, "window": self.window} if self.shuffle == "block" else found
