"""Lengths of rows -> batches of equal budget, and which rows are in them in an epoch.

Rows are sorted by length, longest first, and cut: each batch takes as many rows as its first, which is the
longest, leaves room for. No cut of rows in this order has fewer batches.

Batches keep their lengths for good, and rows of one length change places each epoch.
So there are as many batches in every epoch, of the same shapes, and each row is in one of them. Which rows of
a length come together follows from a keyed bijection of each length's rows; no list of an epoch is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...order.by_file import Permutations
from ...order.full import Order
from ...process.digests import hexdigest, keyed_words
from ...process.lazy import cached_property
from ...rows.data import numbered_within
from ...rows.types import Ints

_Numbers = npt.NDArray[np.integer]


class BatchReport(NamedTuple):
    """The contents of batches of equal budget.

    Attributes:
        batches: how many there are.
        rows: in all of them.
        most_rows: in one of them.
        elements: of all rows.
        padding: the share of padding in what the batches take, in 0..1.
        dropped: rows that are in no batch, because they are longer than the budget.
    """

    batches: int
    rows: int
    most_rows: int
    elements: int
    padding: float
    dropped: int


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Rows by length, and where the batches begin in an order of all lengths.

    Args:
        rows: (M,) numbers of rows, shortest first.
        starts: (C + 1,) where the rows of each of C lengths begin, and M.
        costs: (C,) the lengths, as they are padded.
        slots: (M,) for each place of the batches, laid end to end, that of a row of the same length in
            `rows`; None if they are M - 1, M - 2, ...
        bounds: (B + 1,) where each batch begins in these places, and M.
        elements: of all rows.
        dropped: rows that were left out.
    """

    rows: _Numbers
    starts: Ints
    costs: Ints
    slots: _Numbers | None
    bounds: Ints
    elements: int
    dropped: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def places(self, numbers: Ints) -> Ints:
        """Of places of the batches (P,), those of rows of the same length in `rows`."""
        if self.slots is None:
            return len(self.rows) - 1 - numbers
        return self.slots[numbers].astype(np.int64)

    def classes(self, places: Ints) -> Ints:
        """Which of the lengths the rows at these places (P,) of `rows` have."""
        return np.searchsorted(self.starts, places, "right") - 1

    @cached_property
    def report(self) -> BatchReport:
        """The contents of the batches, in figures."""
        counts = np.diff(self.bounds)
        longest = self.costs[self.classes(self.places(self.bounds[:-1]))]
        taken = int((counts * longest).sum())
        padding = 1 - self.elements / taken if taken else 0.0
        most = int(counts.max(initial=0))
        return BatchReport(len(self), len(self.rows), most, self.elements, padding, self.dropped)

    @cached_property
    def pin(self) -> str:
        """A name for it: the same for the same batches, in every process."""
        parts = (self.rows, self.starts, self.costs, self.bounds, self.slots)
        return hexdigest(
            *(b";" if part is None else np.ascontiguousarray(part, "<i8").data for part in parts)
        )


def planned(
    lengths: Ints, budget: int, most_rows: int, multiple_of: int, pool: int | None, seed: int
) -> BatchPlan:
    """Batches of rows of these lengths; what is longer than the budget is left out.

    Args:
        lengths: (N,)
        budget: rows times the longest is at most that, and so is the number of rows.
        most_rows: of a batch.
        multiple_of: lengths are padded to a multiple of it.
        pool: rows among which is sorted; None for all.
        seed: which rows are in a pool.

    Example:
        >>> plan = planned(np.array([5, 1, 4, 2, 2]), 8, 8, 1, None, 0)
        >>> plan.bounds.tolist(), plan.rows[plan.places(np.arange(5))].tolist()
        ([0, 1, 3, 5], [0, 2, 4, 3, 1])
    """
    costs = -(-lengths // multiple_of) * multiple_of
    kept = np.flatnonzero(costs <= budget)
    by_length = kept[np.argsort(costs[kept], kind="stable")]
    ascending = costs[by_length]
    count = len(kept)
    is_first = np.ones(count, np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    starts = np.append(np.flatnonzero(is_first), count)
    width = np.uint32 if len(lengths) < 2**32 else np.int64
    slots, descending = None, ascending[::-1]
    ends = np.full(1, count)
    if pool is not None and pool < count:
        (word,) = keyed_words(1, "pools of token batches", seed).tolist()
        places = Order(count, word).rows(0, np.arange(count))  # in by_length
        pools = np.arange(count) // pool
        found = places[np.lexsort((-ascending[places], pools))]
        slots, descending = found.astype(width), ascending[found]
        ends = np.minimum((pools + 1) * pool, count)
    room = np.minimum(budget // np.maximum(descending, 1), most_rows)
    room = np.minimum(room, ends - np.arange(count))
    bounds = np.array(_jumped(np.ascontiguousarray(room)), np.int64)
    return BatchPlan(
        by_length.astype(width),
        starts.astype(np.int64),
        ascending[starts[:-1]],
        slots,
        bounds,
        int(lengths[kept].sum()),
        len(lengths) - count,
    )


def _jumped(room: Ints) -> list[int]:
    """0, and where one gets from it by jumps, each as far as it says where it begins, up to the end."""
    far, place, found = room.data, 0, [0]
    while place < len(room):
        place += far[place]
        found.append(place)
    return found


class BatchMembers:
    """Which rows are in the batches of a plan in an epoch.

    Args:
        plan: what the batches are.
        seed: any int; together with the epoch it makes the keys.
        epoch: its number.

    Example:
        >>> members = BatchMembers(planned(np.array([5, 1, 4, 2, 2]), 8, 8, 1, None, 0), seed=7, epoch=0)
        >>> counts, rows = members.rows(np.arange(3))
        >>> counts.tolist(), sorted(rows.tolist())
        ([1, 2, 2], [0, 1, 2, 3, 4])
    """

    def __init__(self, plan: BatchPlan, seed: int, epoch: int) -> None:
        self._plan = plan
        self._key = seed, epoch

    @cached_property
    def _within(self) -> Permutations:
        return Permutations(np.diff(self._plan.starts), "token batches", *self._key)

    def rows(self, numbers: Ints) -> tuple[Ints, Ints]:
        """How many rows the batches of these numbers (B,) have (B,), and which, batch after batch."""
        plan = self._plan
        first = plan.bounds[numbers]
        counts = plan.bounds[numbers + 1] - first
        if not len(numbers):
            return counts, np.zeros(0, np.int64)
        places = plan.places(np.repeat(first, counts) + numbered_within(counts))
        places = self._within.within(places, plan.starts, plan.classes(places), forward=True)
        return counts, plan.rows[places].astype(np.int64)
