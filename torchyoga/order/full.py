"""Position -> row number and back, over all ranks: the order that a keyed bijection gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..process.lazy import np
from ..process.numbers import as_int
from ..rows.types import Ints
from .bijection import bijection
from .contract import AnyOrder
from .saved import Pin

if TYPE_CHECKING:
    import numpy.typing as npt

ORDER_VERSION = 1  # in every saved state, so another shuffle needs another number


@dataclass(frozen=True)
class Order(AnyOrder):
    """The order of the rows in every epoch, over all ranks.

    Args:
        length: number of rows N, up to 2**62.
        seed: any int; together with the epoch it makes the keys.
        shuffle: False for rows 0, 1, 2, ...
        reshuffle: False gives every epoch the order of epoch 0.

    Example:
        >>> order = Order(10, seed=7)
        >>> rows = order.rows(epoch=0, positions=np.arange(10))
        >>> sorted(rows.tolist()) == list(range(10))
        True
        >>> order.positions(epoch=0, rows=rows).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    length: int
    seed: int = 0
    shuffle: bool = True
    reshuffle: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", as_int("length", self.length, low=0, high=2**62))
        object.__setattr__(self, "seed", as_int("seed", self.seed))

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; past N they wrap around.

        Raises:
            ValueError: a position is below 0.
        """
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        return self._turned(epoch, found, forward=True)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        return self._turned(epoch, checked_rows(rows, self.length), forward=False)

    def prefix(self, rows: int) -> Order:
        """This order of the first rows, as it was before others were appended."""
        return replace(self, length=rows)

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return {"shuffle": self.kind}

    def _turned(self, epoch: int, numbers: Ints, forward: bool) -> Ints:
        if not self.shuffle or self.length < 2:
            return numbers
        key = as_int("epoch", epoch) if self.reshuffle else 0
        return bijection(self.length, self.seed, key).turned(numbers, forward)


def within(positions: npt.ArrayLike, length: int) -> Ints:
    """Ints in 0..N-1: past N they wrap around; ValueError for one below 0."""
    found = np.asarray(positions, np.int64)
    if length and found.size and are_outside(found, length):
        if int(found.min()) < 0:  # a walk from outside might never get inside
            raise ValueError(f"positions must be at least 0, found {int(found.min())}")
        found = found % length
    return found


def checked_rows(rows: npt.ArrayLike, length: int) -> Ints:
    """Rows as int64; ValueError if some are not in 0..N-1."""
    found = np.asarray(rows, np.int64)
    if are_outside(found, length):
        raise ValueError(f"rows must be in 0..{length - 1}, found {int(found.min())}..{int(found.max())}")
    return found


def are_outside(numbers: Ints, length: int) -> bool:
    """True if any of the numbers is not in 0..length-1."""
    return bool(numbers.size) and int(numbers.view(np.uint64).max()) >= length  # numbers below 0 become huge
