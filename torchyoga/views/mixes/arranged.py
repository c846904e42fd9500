"""Rows of another DataRef that an order names by numbers of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...order.by_file import equal_runs
from ...order.change import going_on
from ...order.contract import ARRANGED, AnyOrder, Appended, Arrangement, Pin, Shuffle
from ...order.mixed import MixOrder
from ...order.mixture import Mixture
from ...order.state import State
from ...process.lazy import cached_property
from ...process.warned import warn_user
from ...reading.contract import title_of
from ...reading.dataref import DataRef
from ...rows.types import Ints, RowT
from ..over import RowView
from .account import Account, account_of

_OF_DATA = ("view", "sources", "passes", "files")  # entries of a state


def warn_if_arranged(ref: DataRef, what: str) -> None:
    """Warns if rows are taken of a view that decides which of them come: here they are always the same.

    Args:
        ref: what is taken.
        what: is made of it, for the message.
    """
    if ref._arrangement is not None:
        warn_user(
            f"{what}: {title_of(ref)} decides itself which rows come when. What is made of it has the rows "
            "of its first epoch without shuffle, again and again. Make it the other way round: of each "
            "source first, then mix, weigh, stage or bucket"
        )


class ArrangedRef(RowView[RowT]):
    """Rows of another DataRef, each as often as an arrangement says.

    Its own rows, 0 to its length, are those of an epoch without shuffle.

    Args:
        whole: the other DataRef.
    """

    @abstractmethod
    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> AnyOrder:
        """The order of every epoch."""

    @abstractmethod
    def reweighted(self, weights: Any, *, at: Mapping[str, object]) -> ArrangedRef[RowT]:
        """The same rows with other weights from a state on; what came before stays.

        Load the same state into a loader of what this returns; without it, the loader cannot know what came
        before, and raises ValueError when it reads.

        Args:
            weights: as the method takes them that made this view.
            at: what `state_dict()` of a loader of this view gave.

        Raises:
            StateError: the state is of other data, or of weights that this view has not had.
        """

    def unpacked(self, numbers: Ints) -> Ints:
        """The rows of the whole that numbers of its orders (B,) stand for."""
        return (numbers - ARRANGED.start) % len(self.whole)

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arrangement(self.order)

    @cached_property
    def _plain(self) -> AnyOrder:
        """The order of its own rows."""
        return self.order(0, False, True, 1)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind rows of this view, or behind numbers of its orders."""
        own = np.flatnonzero(numbers < ARRANGED.start)
        if len(own):
            numbers = numbers.copy()
            numbers[own] = self._plain.rows(0, numbers[own])
        return self.unpacked(numbers)

    @property
    def file_starts(self) -> Ints:
        """Runs of rows: those of files are mixed."""
        return equal_runs(len(self))


class MixArrangement(Arrangement):
    """The arrangement of a mixture, which goes on from states of fewer rows."""

    def __init__(self, order: Callable[[int, Shuffle, bool, int], AnyOrder], mixture: Mixture) -> None:
        super().__init__(order)
        self._mixture = mixture

    def going_on(
        self,
        order: AnyOrder,
        saved: State,
        appended: Appended | None,
        fingerprint: str | None,
        pins: Mapping[str, Pin],
    ) -> tuple[AnyOrder, State]:
        """The order in which a state goes on, if its sources, rows or weights are not those of the mixture.

        What identifies the data is taken from here, if the state is of other sources.
        """
        assert isinstance(order, MixOrder)
        mixture = going_on(self._mixture, saved, appended)
        if mixture is None:
            return order, saved
        made = replace(order, mixture=mixture)
        own = {**pins, **made.pins(saved.epoch)}
        if saved.pins["sources"] == own["sources"]:
            return made, saved
        taken: dict[str, Pin] = {name: own[name] for name in own if name in _OF_DATA}
        return made, replace(saved, fingerprint=fingerprint, pins={**saved.pins, **taken})

    def account(self, order: AnyOrder, saved: State) -> Account:
        """The rows delivered of each source up to a state."""
        assert isinstance(order, MixOrder)
        return account_of(order.mixture, saved)
