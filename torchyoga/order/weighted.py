"""Position -> row and back, where rows come as often as their weights say, or like lengths together.

Systematic sampling (W. Madow and L. Madow, "On the Theory of Systematic Sampling", 1944): the weights lie end
to end on a line, and M points in equal distances from a random start each hit one of them. So of M places a
row gets the whole number below or above its share, and nothing else is random about how many. The places are
then shuffled like rows.

Weights become whole numbers first.
Sums of floats are off by their rounding, so a row whose share is exactly 1 would come twice, or not at all,
in one epoch of some thousands. Whole numbers of up to 2**62 in all are summed exactly, and equal weights
stay equal.

Buckets: the rows come in another order first, in pools of some thousands.
Each pool is sorted by length and cut into runs of as many rows as all ranks take in a step; the runs of a
pool come in random order. So every global batch has rows of like lengths, and ranks, which take every W-th
position, wait for each other less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..process.digests import hexdigest, keyed_bytes, random_words
from ..process.lazy import cached_with
from ..process.numbers import distinct
from ..rows.types import Ints
from .by_file import BlockOrder
from .contract import ARRANGED, AnyOrder, ArrangedOrder, OrderOver, Pin, Shuffle, within
from .full import Order

_Weights: TypeAlias = npt.NDArray[np.generic]
MOST_PLACES = 2**31 - 1  # of an epoch: the square of it, and a weight, fit int64
_MOST_WEIGHT = 2**62  # of all rows


def whole_ends(weights: _Weights) -> Ints:
    """(N,) the sum of the weights up to each row, as whole numbers.

    Args:
        weights: (N,) numbers of at least 0. Integers stay what they are, if their sum is below 2**62; others
            are rounded in proportion to a sum of 2**61, and none of those above 0 becomes 0.

    Raises:
        ValueError: one is negative, NaN or infinite, or all are 0.

    Example:
        >>> whole_ends(np.array([1, 0, 3])).tolist()
        [1, 1, 4]
    """
    if weights.ndim != 1 or weights.dtype.kind not in "iuf":
        raise ValueError(f"weights must be numbers (N,), found {weights.dtype} of shape {weights.shape}")
    bad = ~(weights >= 0) | (weights == np.inf)  # type: ignore[operator]  # ~: also NaN
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"weights must be finite and at least 0, found {weights[row]} for row {row}")
    largest = float(weights.max()) if len(weights) else 0.0
    if not largest:
        raise ValueError(f"all {len(weights)} weights are 0; give at least one row a weight above 0")
    if weights.dtype.kind in "iu" and float(weights.sum(dtype=np.float64)) < _MOST_WEIGHT / 2:
        return np.cumsum(weights, dtype=np.int64)
    wide = np.asarray(weights, np.float64)
    scaled = wide / largest  # first, so that nothing overflows
    whole = np.rint(scaled * (_MOST_WEIGHT / 2 / float(scaled.sum()))).astype(np.int64)
    np.maximum(whole, wide > 0, out=whole)
    return np.cumsum(whole)


class RowWeights(NamedTuple):
    """The weights of N rows.

    Attributes:
        ends: (N,) as `whole_ends` gives them.
        name: a hash of the weights, for states.
        total: the sum of the weights.
        largest: the largest weight.
    """

    ends: Ints
    name: str
    total: int
    largest: int

    @classmethod
    def of(cls, ends: Ints) -> RowWeights:
        """The weights whose sums up to each row are `ends`."""
        name = hexdigest(ends.astype("<i8").tobytes(), size=8)
        return cls(ends, name, int(ends[-1]), int(np.diff(ends, prepend=0).max()))


@dataclass(frozen=True, eq=False)
class WeightedOrder(ArrangedOrder):
    """The order of the rows in every epoch, over all ranks, each as often as its weight says.

    The number of a row's first place in an epoch is `ARRANGED.start` + row; those of its others follow in
    steps of N.

    Args:
        weights: of N rows.
        length: places of an epoch, at most `MOST_PLACES`.
        seed: any int.
        shuffle: True, "block", or False for the rows in ascending order, the same in every epoch.
        reshuffle: False gives every epoch the order of epoch 0.
        window: files mixed with each other at once, if shuffle is "block".
        files: where files begin, if shuffle is "block".
    """

    weights: RowWeights
    length: int = 0
    seed: int = 0
    shuffle: Shuffle = True
    reshuffle: bool = True
    window: int = 8
    files: Ints | None = None

    what = "these weights"

    def __post_init__(self) -> None:
        copies = -(-self.weights.largest * self.length // self.weights.total) + 1
        if copies * self.num_rows > len(ARRANGED):
            raise ValueError(
                f"{self.num_rows} rows, one of them up to {copies} times in an epoch, are too many to be "
                "numbered; use fewer rows an epoch"
            )

    def _rows(self, epoch: int, positions: Ints) -> Ints:
        draw, out = self._draw(epoch), np.empty_like(positions)
        for start in range(0, positions.size, step := self.at_once):
            row, copy = draw.rows(positions[start : start + step])
            out[start : start + step] = ARRANGED.start + copy * self.num_rows + row
        return out

    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        copies, row = np.divmod(numbers - ARRANGED.start, self.num_rows)
        return self._draw(epoch).positions(row, copies)

    @property
    def num_rows(self) -> int:
        """Rows N that have weights."""
        return len(self.weights.ends)

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return {**super().pins(epoch), "stages": ((0, self.weights.name),)}

    def _draw(self, epoch: int) -> _Draw:
        return _draw(self, epoch if self.shuffle and self.reshuffle else 0)


@cached_with(maxsize=4)
def _draw(order: WeightedOrder, epoch: int) -> _Draw:
    """The draw of an epoch."""
    return _Draw(order, epoch)


class _Draw:
    """The places of an epoch, and the row that each hits."""

    def __init__(self, order: WeightedOrder, epoch: int) -> None:
        self._ends, _, self._total, _ = order.weights
        self._count = count = order.length
        key = ("weighted", order.seed if order.shuffle else 0, epoch, 0)
        start = int.from_bytes(keyed_bytes(8, *key), "little") if order.shuffle else self._total // 2
        self._start = start % self._total
        seed = int.from_bytes(keyed_bytes(8, "places", *key), "little")
        self._places: AnyOrder = Order(count, seed, bool(order.shuffle))
        if order.files is not None:
            begins = order.files[order.files < len(self._ends)]
            starts = np.append(self._first_places(begins), count)
            self._places = BlockOrder(distinct(starts), seed, "block", window=order.window)

    def rows(self, positions: Ints) -> tuple[Ints, Ints]:
        """The row at each position, and how many of its places come before it on the line."""
        place = self._places.rows(0, positions)
        ascending = np.argsort(place)  # neighbours on the line share memory
        point = self._points(place[ascending])
        row = np.empty_like(place)
        row[ascending] = np.searchsorted(self._ends, point, "right")
        return row, place - self._first_places(row)

    def positions(self, rows: Ints, copies: Ints) -> Ints:
        """The position of each row's place of this number; -1 where it has none."""
        place = self._first_places(rows) + copies
        found = np.full(place.shape, -1, np.int64)
        some = np.flatnonzero((place < self._count) & (copies >= 0))
        some = some[self._points(place[some]) < self._ends[rows[some]]]
        found[some] = self._places.positions(0, place[some])
        return found

    def _points(self, places: Ints) -> Ints:
        """Where on the line these places are: floor((place * total + start) / count)."""
        whole, rest = divmod(self._total, self._count)
        return places * whole + (places * rest + self._start) // self._count

    def _first_places(self, rows: Ints) -> Ints:
        """The first place that lies at the begin of each row or after it; `count` if none does."""
        begin = np.where(rows > 0, self._ends[rows - 1], 0)
        # Nearly, then exactly: a float is off by less than one place here.
        found = np.clip((begin / self._total * self._count).astype(np.int64), 0, self._count)
        for _ in range(2):
            found -= (found > 0) & (self._points(found - 1) >= begin)
        for _ in range(3):
            found += (found < self._count) & (self._points(found) < begin)
        return found


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
