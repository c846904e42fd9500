"""Whole batches of rows of another DataRef as rows: each of as many rows as a budget of elements allows.

Rows are sorted by length, longest first, and cut: each batch takes as many rows as its first, which is the
longest, leaves room for. No cut of rows in this order has fewer batches.

Batches keep their lengths for good, and rows of one length change places each epoch.
So there are as many batches in every epoch, of the same shapes, and each row is in one of them. Which rows of
a length come together follows from a keyed bijection of each length's rows; no list of an epoch is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..order.by_file import Permutations
from ..order.full import Order
from ..process.digests import hexdigest, keyed_words
from ..process.lazy import cached_property
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..process.seeding import seeds_within
from ..reading.contract import known_schema, row_numbers, taken_of
from ..reading.dataref import DataRef
from ..reading.readahead import Grouped, Prefetch
from ..rows.block import bounds_of, numbered_within
from ..rows.collate import Padding, is_ours, jagged
from ..rows.schema import Projection
from ..rows.types import Batch, Collate, Ints, Seeds
from .mix import MixRef, warn_if_arranged
from .over import Rebuilt
from .scan import lengths_of
from .token_windows import checked_lengths

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
    starts = np.append(np.flatnonzero(np.diff(ascending, prepend=-1)), count)
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
    rows, own_costs = by_length.astype(width), ascending[starts[:-1]]
    elements, dropped = int(lengths[kept].sum()), len(lengths) - count
    return BatchPlan(rows, starts.astype(np.int64), own_costs, slots, bounds, elements, dropped)


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


_MOST = 2**31 - 1  # elements of a batch, whose offsets others count in 32 bits


def token_batches(
    ref: DataRef,
    column_or_lengths: str | npt.ArrayLike,
    budget: SupportsIndex,
    *,
    pool: SupportsIndex | None = None,
    max_rows: SupportsIndex | None = None,
    multiple_of: SupportsIndex = 1,
    long: Literal["error", "drop"] = "error",
    padding: float = 0,
    collate: Collate | None = None,
    seed: SupportsIndex = 0,
) -> TokenBatchesRef | MixedBatches:
    """Whole batches: each holds as many rows of similar length as fit, padded, into a budget.

    Rows are sorted by length and cut into batches, once. In each epoch rows of equal length change places,
    so every epoch has the same number of batches, of the same shapes, and each row is in one of them. Load
    the batches one by one, with `batch_size=None`: then every rank gets the same number.

    Args:
        column_or_lengths: a ragged column, whose lengths count; or (N,) the length of each row.
        budget: the most elements of a padded batch, rows x longest; also the most rows.
        pool: the number of rows that are sorted together. Rows are divided into such pools at random, once,
            so the lengths in a batch are less similar. By default all rows are sorted together.
        max_rows: the most rows of a batch.
        multiple_of: lengths are padded to a multiple of this number.
        long: "error" refuses rows longer than the budget, "drop" leaves them out with a warning;
            `report()` of the result counts them.
        padding: the value of padding: each batch is what `yoga.padded(padding)` makes.
        collate: a function that makes a batch from its rows instead, such as `yoga.jagged`.
        seed: any int; the pools, and the places of rows in all epochs, follow from it.

    Raises:
        KeyError: there is no such column.
        TypeError: the column is not ragged, or the lengths are not whole numbers.
        ValueError: rows are longer than the budget, or an argument is out of range.

    Example:
        >>> texts = storage.submit(
        ...     [{"ids": np.arange(n)} for n in (3, 1, 2, 6)], "some", "1",
        ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
        ... )
        >>> batches = texts.token_batches("ids", 6)
        >>> [tuple(batch["ids"].values.shape) for batch in yoga.DataLoader(batches, batch_size=None)]
        [(1, 6), (2, 3), (1, 1)]
        >>> batches.report().padding
        0.07692307692307687
    """

    def batches_of(one: DataRef) -> TokenBatchesRef:
        warn_if_arranged(one, "token_batches")
        most = as_int("budget", budget, 1, _MOST)
        fewest = as_int("multiple_of", multiple_of, 1, most)
        rows = most if max_rows is None else as_int("max_rows", max_rows, 1, _MOST)
        among = None if pool is None else as_int("pool", pool, 1, 2**62)
        key = as_int("seed", seed)
        if long not in ("error", "drop"):
            raise ValueError(f'long must be "error" or "drop", found {long!r}')
        if collate is not None and not callable(collate):
            raise TypeError(f"collate is a function of some rows, found {collate!r:.80}")
        if collate is not None and padding != 0:
            raise ValueError("give either padding or collate: a function of your own fills up as it likes")
        if collate is not None and fewest > 1 and collate is not jagged:
            raise ValueError(f"multiple_of={fewest} is for the padding that is made here, without collate")
        lengths = _lengths(one, column_or_lengths)
        plan = planned(lengths, most, rows, fewest, among, key)
        if plan.dropped:
            what = (
                f"{plan.dropped} of {len(lengths)} rows are longer than budget={most}, the longest has "
                f"{int(lengths.max())} elements"
                + (f", padded to a multiple of {fewest}" if fewest > 1 else "")
            )
            if long == "error":
                raise ValueError(f'{what}; set a larger budget, cut them, or leave them out with long="drop"')
            warn_user(f'{what}: they are left out, as long="drop" asks')
        made_by = Padding(padding, fewest) if collate is None else collate
        return TokenBatchesRef(one, plan, made_by, key, 0)

    if ref._recipe is None:
        return batches_of(ref)
    if not isinstance(column_or_lengths, str):
        raise ValueError("lengths are of one source: make batches of each by them, then mix those")
    return ref._recipe.numbered.made_of(MixedBatches, "token_batches", batches_of)


def _lengths(ref: DataRef, column_or_lengths: str | npt.ArrayLike) -> Ints:
    if not isinstance(column_or_lengths, str):
        return checked_lengths(column_or_lengths, len(ref))
    schema = known_schema(ref)
    if schema is None:
        return np.zeros(0, np.int64)
    one = ref._projected(Projection.at(schema, column_or_lengths))
    if one.schema is None or not one.schema.is_sequence or one.schema.columns[0].ndim != 1:
        raise TypeError(
            f"column {column_or_lengths!r} is not ragged, so its rows have no lengths; give an array of "
            f"{len(ref)} lengths"
        )
    return lengths_of(one)


class TokenBatchesRef(Rebuilt[Batch]):
    """Batches of rows, padded or as a function makes them: what `ref.token_batches(...)` is.

    Args:
        whole: the other DataRef.
        plan: what the batches are.
        collate: makes a batch of rows.
        seed: with the epoch it says which rows of one length come together.
        epoch: in which epoch.

    Attributes:
        whole: the other DataRef.
    """

    def __init__(self, whole: DataRef, plan: BatchPlan, collate: Collate, seed: int, epoch: int) -> None:
        super().__init__(whole, plan, collate, seed, epoch)
        self.is_thread_safe = whole.is_thread_safe and is_ours(collate)
        self._plan = plan
        self._collate = collate
        self._seed = seed
        self._epoch = epoch
        self._members = BatchMembers(plan, seed, epoch)

    def __len__(self) -> int:
        return len(self._plan)

    def report(self) -> BatchReport:
        """How many batches there are, how much of them is padding, and how many rows were left out."""
        return self._plan.report

    view_name = "token_batches"

    def _taken(self, rows: Ints, seeds: Seeds | None) -> list[Batch]:
        counts, wanted = self.members(rows)
        own = None if seeds is None else seeds_within(np.repeat(seeds, counts), wanted)
        taken = taken_of(self.whole, wanted, own)
        return [self._collate(taken[start:stop]) for start, stop in pairwise(bounds_of(counts).tolist())]

    def members(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Of which rows of the whole these batches (B,) are made, in this epoch.

        Returns:
            (B,) how many each has, and their numbers, batch after batch.
        """
        return self._members.rows(row_numbers(np.atleast_1d(np.asarray(numbers)), len(self)))

    def in_epoch(self, epoch: int) -> TokenBatchesRef:
        """The same batches with the rows of an epoch."""
        whole = self.whole.in_epoch(epoch)
        if whole is self.whole and epoch == self._epoch:
            return self
        return TokenBatchesRef(whole, self._plan, self._collate, self._seed, epoch)

    def columns(self, names: Sequence[str]) -> DataRef:
        """The same batches of rows with these columns; the others are not read."""
        return self.over(self.whole.columns(names))

    schema = DataRef.schema  # none: a row is a batch, which may be anything

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average batch; 0 if the whole does not know."""
        return self.whole._row_bytes * len(self._plan.rows) // max(1, len(self))

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The whole's, for all rows of the batches."""
        whole = self.whole._prefetch
        return None if whole is None else Grouped(whole, self.members)

    def _pinned(self, whole: str) -> str:
        collate = self._collate
        how: object = "own"
        if isinstance(collate, Padding):
            how = [np.asarray(collate.padding).item(), collate.multiple_of]
        return hexdigest(json.dumps([whole, "token batches", self._plan.pin, self._seed, how]))

    def _title(self) -> str:
        return f"batches of {super()._title()}"


class MixedBatches(MixRef):
    """Batches of rows of several sources in fixed shares: what `mix(...).token_batches(...)` is."""

    sources: tuple[TokenBatchesRef, ...]

    def report(self) -> BatchReport:
        """How many batches all sources have, how much of them is padding, and how many rows were left out."""
        some = [source.report() for source in self.sources]
        taken = sum(one.elements / (1 - one.padding) for one in some if one.elements)
        elements = sum(one.elements for one in some)
        return BatchReport(
            sum(one.batches for one in some),
            sum(one.rows for one in some),
            max(one.most_rows for one in some),
            elements,
            1 - elements / taken if taken else 0.0,
            sum(one.dropped for one in some),
        )
