"""Rows of another DataRef that an order names by numbers of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ...order.by_file import equal_runs
from ...order.contract import ARRANGED, AnyOrder, Appended, Arrangement, Shuffle
from ...order.mixing.mixed import MixOrder, Mixture
from ...order.state import State
from ...process.distinct import first_places
from ...process.lazy import cached_property
from ...process.warned import warn_user
from ...reading.dataref import DataRef, RowView, title_of
from ...rows.types import Ints
from .account import Account, account_of_counts, counts_at
from .restaged import continued

__all__ = ["Arranged", "ArrangedMixture", "ArrangedRef", "warn_if_arranged"]


def warn_if_arranged(ref: DataRef, what: str) -> None:
    """Warns if rows are taken of a view that decides which of them come: here they are always the same.

    Args:
        ref: what is taken.
        what: is made of it, for the message.
    """
    if ref.arrangement is not None:
        warn_user(
            f"{what}: {title_of(ref)} decides itself which rows come when. What is made of it has the rows "
            "of its first epoch without shuffle, again and again. Make it the other way round: of each "
            "source first, then mix, weigh, stage or bucket"
        )


class ArrangedRef(RowView):
    """Rows of another DataRef, each as often as an arrangement says.

    Its own rows, 0 to its length, are those of an epoch without shuffle.

    Args:
        whole: the other DataRef.
    """

    @abstractmethod
    def order(self, shuffle: Shuffle, reshuffle: bool, window: int, seed: int) -> AnyOrder:
        """The order of every epoch."""

    def unpacked(self, numbers: Ints) -> Ints:
        """The rows of the whole that numbers of its orders (B,) stand for."""
        return (numbers - ARRANGED.start) % len(self.whole)

    @property
    def arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arranged(self.order)

    @cached_property
    def _plain(self) -> AnyOrder:
        """The order of its own rows."""
        return self.order(False, True, 1, 0)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind rows of this view, or behind numbers of its orders."""
        own = np.flatnonzero(numbers < ARRANGED.start)
        if len(own):
            numbers = numbers.copy()
            numbers[own] = self._plain.rows(0, numbers[own])
        return self.unpacked(numbers)

    def places_of(self, rows: Ints) -> Ints:
        """Where rows of the whole come among its own, for the first time; -1 for those that do not."""
        found, places = self._first
        at = np.minimum(np.searchsorted(found, rows), len(found) - 1)
        return np.where(found[at] == rows, places[at], -1)

    @cached_property
    def _first(self) -> tuple[Ints, Ints]:
        """Each row that comes, ascending, and where it comes first."""
        return first_places(self.rows_at(np.arange(len(self))))

    @property
    def file_starts(self) -> Ints:
        """Runs of rows: those of files are mixed."""
        return equal_runs(len(self))


class Arranged(Arrangement):
    """An arrangement by a function of (shuffle, reshuffle, window, seed)."""

    def __init__(self, order: Callable[[Shuffle, bool, int, int], AnyOrder]) -> None:
        self._order = order

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> AnyOrder:
        """The order of every epoch."""
        return self._order(shuffle, reshuffle, window, seed)


class Mixed(Protocol):
    """A view with the orders of a mixture: a `MixRef` or a `BalancedRef`."""

    mixture: Mixture

    def order(self, shuffle: Shuffle, reshuffle: bool, window: int, seed: int) -> MixOrder:
        """The order of every epoch."""

    def over_mixture(self, mixture: Mixture) -> Mixed:
        """The same view with another mixture of the same sources."""


class ArrangedMixture(Arrangement):
    """The arrangement of a mixture, which goes on from states of fewer rows."""

    def __init__(self, ref: Mixed) -> None:
        self._ref = ref

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> MixOrder:
        """The order of every epoch."""
        return self._ref.order(shuffle, reshuffle, window, seed)

    def going_on(self, order: AnyOrder, saved: State, appended: Appended | None) -> AnyOrder:
        """The order in which a state goes on, if rows were appended since."""
        assert isinstance(order, MixOrder)
        mixture = continued(self._ref.mixture, saved, appended)
        return self._ref.over_mixture(mixture).order(order.shuffle, order.reshuffle, order.window, order.seed)

    def account(self, order: AnyOrder, saved: State) -> Account:
        """The rows delivered of each source up to a state."""
        assert isinstance(order, MixOrder)
        mixture, counts, _ = counts_at(order.mixture, saved)
        return account_of_counts(mixture, counts, saved)
