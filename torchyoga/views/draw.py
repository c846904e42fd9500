"""Random numbers for the rows of a batch, the same for a row in any batch.

Note 14. Random numbers of batches are counted, not drawn in turn.
A number follows from the seed of its row, the call and its place in the row, so neither the other rows of the
batch nor their order matter. SplitMix64 makes them for all rows at once; a generator for each row would take
some microseconds to make. Normal ones are Box and Muller's (1958), in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..process.digests import splitmix
from ..process.seeding import seeds_within
from ..rows.types import Ints

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Size: TypeAlias = int | Sequence[int] | None
_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 2**15  # words made at once, which stay in the cache
_MOST = 2**32  # numbers to choose an integer from


class Draw:
    """Random numbers for the rows of a batch; a row gets the same ones whatever rows are beside it.

    The methods are called as those of `numpy.random.Generator`. A size begins with the number of rows B; by
    default it is (B,), one number for each row.

    Args:
        seeds: (B,) the seed of each row.

    Example:
        >>> draw, alone = Draw(np.array([5, 6], np.uint64)), Draw(np.array([6], np.uint64))
        >>> bool(draw.random((2, 3))[1, 2] == alone.random((1, 3))[0, 2])
        True
    """

    def __init__(self, seeds: Words) -> None:
        self._seeds = seeds
        self._calls = 0

    def __len__(self) -> int:
        return len(self._seeds)

    def random(self, size: Size = None) -> Floats:
        """Uniform numbers in [0, 1)."""
        shape, each = self._shape(size)
        return _fractions(self._words(each)).reshape(shape)

    def uniform(self, low: npt.ArrayLike = 0.0, high: npt.ArrayLike = 1.0, size: Size = None) -> Floats:
        """Uniform numbers in [low, high), which are numbers, or arrays that broadcast to the size."""
        found = self.random(size)
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        scaled: Floats = low + (high - low) * found
        return scaled

    def normal(self, loc: npt.ArrayLike = 0.0, scale: npt.ArrayLike = 1.0, size: Size = None) -> Floats:
        """Normal numbers; mean and standard deviation are numbers, or arrays that broadcast to the size."""
        shape, each = self._shape(size)
        pairs = (each + 1) // 2
        words = self._words(2 * pairs)
        radius = _fractions(words[:, :pairs])
        np.subtract(1.0, radius, out=radius)  # in (0, 1], so that it has a logarithm
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle = _fractions(words[:, pairs:])
        angle *= 2 * math.pi
        found = np.empty((len(self), 2 * pairs))
        np.multiply(radius, np.cos(angle), out=found[:, :pairs])
        np.multiply(radius, np.sin(angle), out=found[:, pairs:])
        plain: Floats = found[:, :each].reshape(shape)
        return np.asarray(loc, np.float64) + np.asarray(scale, np.float64) * plain

    def integers(
        self, low: npt.ArrayLike, high: npt.ArrayLike | None = None, size: Size = None, endpoint: bool = False
    ) -> Ints:
        """Integers from `low` on and below `high`, or up to it with `endpoint`; from 0 on without `high`.

        Both are ints, or arrays of ints that broadcast to the size.

        Raises:
            ValueError: there is nothing to choose from, or more than 2**32 integers.
        """
        low, high = (0, low) if high is None else (low, high)
        begin, end = np.asarray(low), np.asarray(high)
        if begin.dtype.kind not in "iu" or end.dtype.kind not in "iu":
            raise TypeError(f"low and high must be ints, found {begin.dtype} and {end.dtype}")
        begin, count = begin.astype(np.int64), end.astype(np.int64) - begin.astype(np.int64) + endpoint
        if (count < 1).any() or (count > _MOST).any():
            raise ValueError(
                f"there must be 1 to 2**32 integers to choose from; found {low!r:.80} to {high!r:.80}"
            )
        shape, each = self._shape(size)
        words, counts = self._words(each).reshape(shape), count.astype(np.uint64)
        # The upper half of a product of 64 bits by 32, without more than 64 bits (D. Lemire, 2019).
        upper = (words >> np.uint64(32)) * counts
        lower = (words & np.uint64(2**32 - 1)) * counts
        found: Ints = ((upper + (lower >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
        return begin + found

    def generators(self) -> list[np.random.Generator]:
        """A generator for each row, for all else, such as permutations; some microseconds each."""
        self._calls += 1
        return [np.random.Generator(np.random.Philox(key=seed)) for seed in self._keys().tolist()]

    def _shape(self, size: Size) -> tuple[tuple[int, ...], int]:
        """The shape of the result, and how many numbers a row gets."""
        count = len(self)
        shape = (count,) if size is None else (size,) if isinstance(size, int) else tuple(size)
        if not shape or shape[0] != count:
            raise ValueError(f"a size must begin with the number of rows, {count}; found {size!r}")
        return shape, math.prod(shape[1:])

    def _keys(self) -> Words:
        return seeds_within(self._seeds, self._calls)

    def _words(self, each: int) -> Words:
        """(B, each) 64 random bits."""
        self._calls += 1
        keys, steps = self._keys()[:, None], np.arange(1, each + 1, dtype=np.uint64) * _STEP
        out = np.empty((len(self), each), np.uint64)
        rows = max(1, _CHUNK // max(1, each))
        for start in range(0, len(self), rows):
            out[start : start + rows] = splitmix(keys[start : start + rows] + steps)
        return out


def _fractions(words: Words) -> Floats:
    """The upper 53 bits of each word, as a number in [0, 1)."""
    found: Floats = (words >> np.uint64(11)).astype(np.float64)
    found *= 2.0**-53
    return found
