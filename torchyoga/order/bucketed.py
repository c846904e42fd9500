"""Position -> row and back, where rows of like lengths come together.

The rows come in another order first, in pools of some thousands. Each pool is sorted by length and cut into
runs of as many rows as all ranks take in a step; the runs of a pool come in random order. So every global
batch has rows of like lengths, and ranks, which take every W-th position, wait for each other less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..process.digests import keyed_bytes, random_words
from ..process.lazy import cached_with
from ..process.numbers import distinct
from ..rows.types import Ints
from .contract import OrderOver, Pin, within


@dataclass(frozen=True, eq=False)
class BucketOrder(OrderOver):
    """The order of the rows in every epoch, over all ranks; each row comes once.

    Args:
        whole: the order in which rows come into the pools.
        lengths: (N,) of the rows.
        pool: rows of a pool, a multiple of `run`.
        run: rows of like lengths that follow each other.
    """

    lengths: Ints
    pool: int
    run: int

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows at these positions of the epoch; past N they wrap around."""
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        pool, place = np.divmod(found, self.pool)
        out = np.empty(found.shape, np.int64)
        for number in distinct(pool).tolist():
            some = pool == number
            out[some] = self._pool(epoch, number).rows[place[some]]
        return out

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        pool, before = np.divmod(self.whole.positions(epoch, rows), self.pool)
        out = np.empty(pool.shape, np.int64)
        for number in distinct(pool).tolist():
            some = pool == number
            out[some] = number * self.pool + self._pool(epoch, number).places[before[some]]
        return out

    def prefix(self, rows: int) -> BucketOrder | None:
        """This order of the first rows, as it was before others were appended; None if it is not known."""
        whole = self.whole.prefix(rows)
        return None if whole is None else replace(self, whole=whole, lengths=self.lengths[:rows])

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return self.whole.pins(epoch)

    def _pool(self, epoch: int, number: int) -> _Pool:
        return _pool(self, epoch if self.shuffle and self.reshuffle else 0, number)


class _Pool(NamedTuple):
    """A pool as it comes: its rows, and the place of each of those that the base gave."""

    rows: Ints
    places: Ints


@cached_with(maxsize=16)
def _pool(order: BucketOrder, epoch: int, number: int) -> _Pool:
    first = number * order.pool
    given = order.whole.rows(epoch, np.arange(first, min(first + order.pool, order.length)))
    ascending = np.argsort(order.lengths[given], kind="stable")  # equal lengths in the order of the base
    if order.shuffle:
        # The last run of the last pool may be shorter, and stays behind the others.
        full = len(given) // order.run
        key = int.from_bytes(keyed_bytes(8, "runs", order.seed, epoch, number), "little")
        runs = np.argsort(random_words(key, full))
        mixed = ascending[: full * order.run].reshape(full, order.run)[runs].reshape(-1)
        ascending = np.concatenate([mixed, ascending[full * order.run :]])
    places = np.empty_like(ascending)
    places[ascending] = np.arange(len(ascending))
    return _Pool(given[ascending], places)
