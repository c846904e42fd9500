"""Numbers of packs -> the documents in them, in an epoch; and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...order.by_file import Permutations
from ...order.full import ORDER_VERSION
from ...process.lazy import cached_property
from ...rows.data import bounds_of
from ...rows.types import Ints
from .plan import PackPlan

__all__ = ["Documents", "Members"]

_MOST_LISTED = 2**22  # documents of which a list is made, 4 bytes each
_PATIENCE = 32  # a list is made once this share of the documents was looked up
_CHUNK = 32768  # slots turned at once, so that they stay in the processor's cache


class Documents(NamedTuple):
    """The documents of B packs, one pack after the other.

    Attributes:
        bounds: (B + 1,) where those of each pack begin.
        rows: (S,) the row of each.
        costs: (S,) what each costs, of the first budget.
        begins: (S,) the token of its row that each begins with; None if that is 0 for all.
    """

    bounds: Ints
    rows: Ints
    costs: Ints
    begins: Ints | None


class Members:
    """Which documents the packs of a plan hold in an epoch.

    Args:
        plan: what the packs hold.
        seed: any int; together with the epoch it makes the keys.
        epoch: its number.

    Example:
        >>> from torchyoga.views.packs.plan import planned
        >>> lengths = np.array([3, 5, 3, 5, 3])
        >>> plan = planned(np.arange(5), lengths[:, None], None, 5, np.array([8]), False)
        >>> members = Members(plan, seed=7, epoch=0)
        >>> found = members.documents(np.arange(len(plan)))
        >>> found.bounds.tolist(), sorted(found.rows.tolist()), found.costs.tolist()
        ([0, 2, 4, 5], [0, 1, 2, 3, 4], [5, 3, 5, 3, 3])
        >>> members.packs(found.rows).tolist()
        [0, 0, 1, 1, 2]
    """

    def __init__(self, plan: PackPlan, seed: int, epoch: int) -> None:
        self._plan = plan
        self._seed, self._epoch = seed, epoch
        self._looked_up = 0
        self._list: npt.NDArray[np.unsignedinteger] | None = None

    def documents(self, packs: Ints) -> Documents:
        """The documents of the packs of these numbers (B,), each in 0..len - 1."""
        plan, slots = self._plan, self._plan.slots
        group = np.searchsorted(slots.packs, packs, "right") - 1
        first = slots.bounds[group]
        counts = slots.bounds[group + 1] - first
        bounds = bounds_of(counts)
        which = np.arange(bounds[-1]) + np.repeat(first - bounds[:-1], counts)
        slot = slots.firsts[which] + slots.steps[which] * np.repeat(packs - slots.packs[group], counts)
        classes = slots.classes[which]
        documents = self._documents_at(slot, classes)
        begins = None
        if len(plan.pieces):
            place = np.minimum(np.searchsorted(plan.pieces, documents), len(plan.pieces) - 1)
            begins = np.where(plan.pieces[place] == documents, plan.begins[place], 0)
        return Documents(bounds, plan.rows[documents].astype(np.int64), plan.costs[classes], begins)

    def counts(self, packs: Ints) -> Ints:
        """How many documents the packs of these numbers (B,) hold."""
        slots = self._plan.slots
        group = np.searchsorted(slots.packs, packs, "right") - 1
        return slots.bounds[group + 1] - slots.bounds[group]

    def packs(self, rows: Ints) -> Ints:
        """The pack that each of these rows (B,) is in, by its first piece if it was split; -1 for none."""
        documents = self._document_of(rows)
        are_there = documents >= 0
        slots = self._plan.slots
        found = np.full(len(rows), -1)
        if not are_there.any():
            return found
        documents = documents[are_there]
        classes = np.searchsorted(slots.starts, documents, "right") - 1
        slot = self._permutations.within(documents, slots.starts, classes, forward=False)
        part = np.searchsorted(slots.part_firsts, slot, "right") - 1
        within = (slot - slots.part_firsts[part]) // slots.part_each[part]
        found[are_there] = slots.packs[slots.part_groups[part]] + within
        return found

    def _documents_at(self, slots: Ints, classes: Ints) -> Ints:
        """The documents that are in these slots."""
        if self._list is not None:
            return self._list[slots].astype(np.int64)
        total = len(self._plan.rows)
        self._looked_up += len(slots)
        if total <= _MOST_LISTED and self._looked_up * _PATIENCE >= total:
            self._list = self._listed()
            return self._list[slots].astype(np.int64)
        return self._permutations.within(slots, self._plan.slots.starts, classes, forward=True)

    def _listed(self) -> npt.NDArray[np.unsignedinteger]:
        """The document in each slot."""
        found = np.empty(len(self._plan.rows), np.uint32)
        starts, sizes = self._plan.slots.starts, self._plan.sizes
        classes = np.repeat(np.arange(len(sizes)), sizes)
        for start in range(0, len(found), _CHUNK):
            some = slice(start, start + _CHUNK)
            slots = np.arange(start, min(start + _CHUNK, len(found)))
            found[some] = self._permutations.within(slots, starts, classes[some], forward=True)
        return found

    @cached_property
    def _permutations(self) -> Permutations:
        return Permutations(ORDER_VERSION, self._plan.sizes, "packs", self._seed, self._epoch)

    def _document_of(self, rows: Ints) -> Ints:
        """The document that begins with the first token of each of these rows; -1 for none."""
        rows = rows.astype(np.int64, copy=False)
        sorted_rows, order = self._plan.by_row
        if not len(sorted_rows):
            return np.full(len(rows), -1)
        place = np.minimum(np.searchsorted(sorted_rows, rows), len(sorted_rows) - 1)
        return np.where(sorted_rows[place] == rows, order[place], -1)
