"""Packs of documents that have grown: a loader finishes its epoch with the packs of before.

Packs of more documents are others, so their numbers say nothing of those of before. But these follow from the
first documents: they are made once more when a state needs them, and have numbers of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

from ...errors import StateError
from ...order.carry import Appended
from ...order.contract import AnyOrder, Arrangement, Shuffle
from ...order.options import OrderOptions
from ...order.state import State
from ...reading.dataref import DataRef
from .repacked_order import FinishedOrder, told_in

__all__ = ["GrowingPacks", "Remade"]


class Remade(ABC):
    """A view whose rows are others when it is made of more documents, and that can be made of fewer again."""

    @property
    @abstractmethod
    def num_before(self) -> int:
        """How many versions there are to make it of besides its own."""

    @property
    @abstractmethod
    def most_rows(self) -> int:
        """No version has more rows."""

    @abstractmethod
    def before(self, number: int) -> DataRef:
        """The view of one of these, which are numbered from 1 on; itself is number 0."""

    @abstractmethod
    def tag_before(self, number: int) -> str:
        """A short digest of the fingerprint that this view of one of these had."""


class _Packs(Protocol):
    """Packs that can be made of fewer documents: a `PackedRef`."""

    whole: DataRef

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str | None: ...

    @property
    def told(self) -> list[str]: ...

    def pinned(self, whole: str) -> str: ...

    def before(self, number: int) -> _Packs: ...


class GrowingPacks(Arrangement):
    """The arrangement of packs of documents to which others were appended."""

    def __init__(self, ref: _Packs) -> None:
        self._ref = ref

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> AnyOrder:
        """The order of every epoch."""
        return OrderOptions(shuffle, seed, reshuffle, window).order_of(self._ref)

    def going_on(self, order: AnyOrder, saved: State, appended: Appended | None) -> AnyOrder:
        """The order in which a state of fewer documents goes on."""
        whole = order.whole if isinstance(order, FinishedOrder) else order
        ways, is_own = told_in(saved), saved.fingerprint == self._ref.fingerprint
        if len(ways) > 1 or (is_own and not ways):
            return whole
        is_known = is_own
        for name, number, rows in self._before():
            packs = self._ref.before(number)
            if not is_known and packs.pinned(name) == saved.fingerprint:
                self._check(rows, appended)
                is_known = True
            # The packs of an epoch that was finished may be of a version before that of the state.
            if not is_known or (ways and packs.told != [ways[0][1]]):
                continue
            options = OrderOptions(whole.shuffle, whole.seed, whole.reshuffle, getattr(whole, "window", 8))
            begun = saved.epoch if saved.left or saved.position else -1  # else it has all documents
            first, before = options.order_of(packs), saved.fingerprint
            return FinishedOrder(whole, first, begun, number, packs.told[0], before)
        return whole

    def _before(self) -> Iterator[tuple[str, int, int]]:
        """The versions that the documents begin with, the newest first: a name, a number, and how many."""
        for number, (name, rows) in reversed(list(enumerate(self._ref.whole.prefixes, 1))):
            yield name, number, rows

    def _check(self, documents: int, appended: Appended | None) -> None:
        """Raises StateError unless an epoch of these packs may be finished with them."""
        if appended == "next":
            return
        here = len(self._ref.whole)
        told = f"the state is of packs of {documents} documents, and {here - documents} were appended since"
        if appended is None:
            raise StateError(
                f"{told}. Pass appended='next' to finish the epoch under way with the packs of before; the "
                "loader and load_state_dict() take it"
            )
        raise StateError(
            f"{told}: with appended='now' the rest of the epoch would be packed anew; pass appended='next'"
        )
