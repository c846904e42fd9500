"""Numbers of packs -> the documents in them, in an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...order.by_file import Permutations
from ...process.lazy import cached_property
from ...rows.data import bounds_of
from ...rows.types import Ints
from .plan import PackPlan

_MOST_LISTED = 2**22  # documents of which a list is made, 4 bytes each
_PATIENCE = 32  # a list is made once this share of the documents was looked up
_FEW = 16  # packs of a plan, on average, below which all plans are looked up together
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
        return Documents(bounds, self._rows_of(documents), plan.costs[classes], self._begins_of(documents))

    def _rows_of(self, documents: Ints) -> Ints:
        return self._plan.rows[documents].astype(np.int64)

    def _begins_of(self, documents: Ints) -> Ints | None:
        """The token of its row that each document begins with; None if that is 0 for all."""
        pieces = self._plan.pieces
        if not len(pieces):
            return None
        place = np.minimum(np.searchsorted(pieces, documents), len(pieces) - 1)
        return np.where(pieces[place] == documents, self._plan.begins[place], 0)

    def slots_of(self, pack: int) -> tuple[Ints, Ints]:
        """The slots of one pack, and the class of each."""
        slots = self._plan.slots
        group = int(slots.packs.searchsorted(pack, "right")) - 1
        some = slice(slots.bounds[group], slots.bounds[group + 1])
        return slots.firsts[some] + slots.steps[some] * (pack - slots.packs[group]), slots.classes[some]

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
        return Permutations(self._plan.sizes, *self._key)

    @property
    def _key(self) -> tuple[int | str, ...]:
        return "packs", self._seed, self._epoch


def documents_of_each(some: Sequence[Members], bounds: Ints, packs: Ints) -> Documents:
    """The documents of packs (B,) of several plans.

    Args:
        some: of the plans.
        bounds: (plans + 1,) where the packs of each begin: those of one come after the other.
        packs: their numbers.
    """
    if len(packs) >= _FEW * len(some):
        found = [
            one.documents(packs[low:high]) for one, (low, high) in zip(some, pairwise(bounds), strict=True)
        ]
        counts = np.concatenate([np.diff(one.bounds) for one in found])
        rows, costs = (np.concatenate([one[n] for one in found]) for n in (1, 2))
        return Documents(bounds_of(counts), rows, costs, _joined([(one.rows, one.begins) for one in found]))
    owners = np.repeat(np.arange(len(some)), np.diff(bounds)).tolist()
    slots, classes = zip(
        *(some[n].slots_of(p) for n, p in zip(owners, packs.tolist(), strict=True)), strict=True
    )
    ends = bounds_of(map(len, slots))
    parts = list(zip(some, pairwise(ends[bounds].tolist()), strict=True))
    slot, own = np.concatenate(slots), np.concatenate(classes)
    sizes, starts, costs = np.empty_like(slot), np.empty_like(slot), np.empty_like(slot)
    for one, (low, high) in parts:
        sizes[low:high] = one._plan.sizes[own[low:high]]
        starts[low:high] = one._plan.slots.starts[own[low:high]]
        costs[low:high] = one._plan.costs[own[low:high]]
    keys = list(dict.fromkeys(one._key for one in some))
    of_key = np.repeat([keys.index(one._key) for one in some], [high - low for _, (low, high) in parts])
    turned = Permutations.of_each(sizes, own, keys, of_key)
    documents = starts + turned.turned(slot - starts, np.arange(len(slot)), True)
    rows = np.empty_like(documents)
    begins = []
    for one, (low, high) in parts:
        rows[low:high] = one._rows_of(documents[low:high])
        begins.append((documents[low:high], one._begins_of(documents[low:high])))
    return Documents(ends, rows, costs, _joined(begins))


def _joined(parts: Sequence[tuple[Ints, Ints | None]]) -> Ints | None:
    """The token that each document begins with, of the rows of several plans; None if that is 0 for all."""
    if all(begins is None for _, begins in parts):
        return None
    return np.concatenate([np.zeros_like(rows) if begins is None else begins for rows, begins in parts])
