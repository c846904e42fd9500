"""Rows of like lengths together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...order.bucketed import BucketOrder
from ...order.by_file import BlockOrder
from ...order.contract import AnyOrder, Arrangement, Shuffle, described
from ...order.full import Order
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import as_int
from ...reading.contract import identity, nameless_pin
from ...reading.dataref import DataRef
from ...rows.types import Array, Ints, Numbers, RowT
from ..over import RowView
from .arranged import warn_if_arranged

_MOST_POOL, _STEP = 2**24, 2**16


def bucketed(
    ref: DataRef[RowT], lengths: str | Sequence[int] | Array | Numbers, *, pool: int = 8192, batch: int = 64
) -> RowView[RowT]:
    """All rows, those of like lengths together, so that batches need little padding.

    Rows come, shuffled, into pools; each pool is sorted by length and cut into runs, and the runs come in
    random order. Each row comes once an epoch.

    Args:
        lengths: a ragged column, or an int for each row.
        pool: rows that are sorted together: the more, the less padding, and the less random an order.
        batch: rows of a batch, over all ranks: they are of like lengths.

    Raises:
        ValueError: lengths that are no ints of at least 0.
        TypeError: the column is not ragged.

    Example:
        >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2, 3, 1, 2])})
        >>> batches = yoga.DataLoader(ref.bucketed([3, 1, 2, 3, 1, 2], batch=2), 2, shuffle=True, seed=7)
        >>> sorted(batch["x"].tolist() for batch in batches)
        [[1, 1], [2, 2], [3, 3]]
    """
    warn_if_arranged(ref, "bucketed")
    run = as_int("batch", batch, 1, _MOST_POOL)
    size = as_int("pool", pool, run, _MOST_POOL) // run * run
    if isinstance(lengths, str):
        column = ref[lengths]
        parts = [
            column.lengths(np.arange(start, min(start + _STEP, len(ref))))
            for start in range(0, len(ref), _STEP)
        ]
        found = np.concatenate([np.zeros(0, np.int64), *parts])
    else:
        given = lengths.cpu().numpy() if isinstance(lengths, torch.Tensor) else np.asarray(lengths)
        if given.shape != (len(ref),) or (len(given) and given.dtype.kind not in "iu"):
            raise ValueError(
                f"lengths must be an int for each of the {len(ref)} rows, found {given.dtype} of shape "
                f"{given.shape}"
            )
        found = given.astype(np.int64)
    if len(found) and int(found.min()) < 0:
        raise ValueError(f"lengths must be at least 0, found {int(found.min())}")
    if len(found) and int(found.max()) < 2**31:
        found = found.astype(np.int32)  # half the memory
    return BucketedRef(ref, found, size, run)


class BucketedRef(RowView):
    """The rows of another DataRef, those of like lengths together: what `ref.bucketed(column)` is.

    Args:
        whole: the other DataRef.
        row_lengths: (N,) the length of each row.
        pool: rows of a pool, a multiple of `run`.
        run: rows that stay together.
    """

    def __init__(self, whole: DataRef, row_lengths: Ints, pool: int, run: int) -> None:
        super().__init__(whole, row_lengths, pool, run)
        self._lengths, self._pool, self._run = row_lengths, pool, run

    def __len__(self) -> int:
        return len(self.whole)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole: those of the same numbers."""
        return numbers

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arrangement(self.order)

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> BucketOrder:
        """The order of every epoch."""
        base: AnyOrder = Order(len(self), seed, bool(shuffle), reshuffle)
        if shuffle == "block":
            base = BlockOrder(self.file_starts, seed, shuffle, reshuffle, window)
        return BucketOrder(base, self._lengths, self._pool, self._run)

    @cached_property
    def _view_pin(self) -> str | None:
        """How the buckets are made."""
        lengths, of = nameless_pin(self, self._lengths.data), nameless_pin(self, identity(self.whole))
        return described("bucketed", batch=self._run, pool=self._pool, lengths=lengths, of=of)

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, in buckets."""
        return [(self._pinned(name, rows), rows) for name, rows in self.whole._prefixes]

    def _pinned(self, whole: str, rows: int | None = None) -> str:
        """A name for the content and its buckets, made of one for the whole's, or for its first rows."""
        lengths = self._lengths[:rows].astype("<i8").tobytes()
        return hexdigest(f"{whole} bucketed {self._pool} {self._run}\n", lengths)

    def _title(self) -> str:
        return f"{super()._title()} in buckets of {self._run:,} rows"
