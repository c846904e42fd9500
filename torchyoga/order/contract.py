"""The contract of all orders of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..rows.types import Ints
from .saved import Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self


if TYPE_CHECKING:
    import numpy.typing as npt

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
    """

    length: int
    seed: int
    shuffle: Shuffle
    reshuffle: bool
    shards: int | None = None

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


class SourceCounts(Protocol):
    """The rows read of each source of a mixture; printed, a table."""

    def markdown(self) -> str:
        """The table as Markdown, for a model card."""

    def numbers(self) -> dict[str, float]:
        """Rows and passes of each source as one flat dict, for exporters."""


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

    def account(self, order: AnyOrder, saved: SavedState) -> SourceCounts | None:
        """The rows delivered of each source up to a state; None if there are none."""
        return None
