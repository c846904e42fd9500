"""Whole batches of rows of another DataRef as rows: each of as many rows as a budget of elements allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.messages import warn_user
from ...process.numbers import as_int
from ...process.seeding import seeds_within
from ...reading.contract import known_schema, row_numbers, taken_of
from ...reading.dataref import DataRef
from ...reading.readahead import Grouped, Prefetch
from ...rows.collate import Padding, is_ours, jagged
from ...rows.data import bounds_of
from ...rows.projection import Projection
from ...rows.types import Batch, Collate, Ints, Seeds
from ..mixes.arranged import warn_if_arranged
from ..over import Over
from .documents import checked_lengths, lengths_of
from .plan import BatchMembers, BatchPlan, BatchReport, planned

Long: TypeAlias = Literal["error", "drop"]
_MOST = 2**31 - 1  # elements of a batch, whose offsets others count in 32 bits


@dataclass(frozen=True)
class Batching:
    """How rows are to be cut into batches; see `DataRef.token_batches`."""

    budget: SupportsIndex
    pool: SupportsIndex | None
    max_rows: SupportsIndex | None
    multiple_of: SupportsIndex
    long: Long
    padding: float
    collate: Collate | None
    seed: SupportsIndex


def token_batches(
    ref: DataRef, column_or_lengths: str | npt.ArrayLike, batching: Batching
) -> TokenBatchesRef:
    """Batches of equal budget: see `DataRef.token_batches`."""
    warn_if_arranged(ref, "token_batches")
    most = as_int("budget", batching.budget, 1, _MOST)
    fewest = as_int("multiple_of", batching.multiple_of, 1, most)
    rows = most if batching.max_rows is None else as_int("max_rows", batching.max_rows, 1, _MOST)
    among = None if batching.pool is None else as_int("pool", batching.pool, 1, 2**62)
    key, long, collate = as_int("seed", batching.seed), batching.long, batching.collate
    if long not in ("error", "drop"):
        raise ValueError(f'long must be "error" or "drop", found {long!r}')
    if collate is not None and not callable(collate):
        raise TypeError(f"collate is a function of some rows, found {collate!r:.80}")
    if collate is not None and batching.padding != 0:
        raise ValueError("give either padding or collate: a function of your own fills up as it likes")
    if collate is not None and fewest > 1 and collate is not jagged:
        raise ValueError(f"multiple_of={fewest} is for the padding that is made here, without collate")
    lengths = _lengths(ref, column_or_lengths)
    plan = planned(lengths, most, rows, fewest, among, key)
    if plan.dropped:
        what = (
            f"{plan.dropped} of {len(lengths)} rows are longer than budget={most}, the longest has "
            f"{int(lengths.max())} elements" + (f", padded to a multiple of {fewest}" if fewest > 1 else "")
        )
        if long == "error":
            raise ValueError(f'{what}; set a larger budget, cut them, or leave them out with long="drop"')
        warn_user(f'{what}: they are left out, as long="drop" asks')
    collate = Padding(batching.padding, fewest) if collate is None else collate
    return TokenBatchesRef(ref, plan, collate, key, 0)


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


class TokenBatchesRef(Over[Batch]):
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

    def __reduce__(self) -> tuple[object, ...]:
        return TokenBatchesRef, (self.whole, self._plan, self._collate, self._seed, self._epoch)

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

    @property
    def schema(self) -> None:
        """None: a row is a batch, which may be anything."""
        return None

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
        how = (
            [np.asarray(collate.padding).item(), collate.multiple_of]
            if isinstance(collate, Padding)
            else "own"
        )
        return hexdigest(json.dumps([whole, "token batches", self._plan.pin, self._seed, how]))

    def _title(self) -> str:
        return f"batches of {super()._title()}"
