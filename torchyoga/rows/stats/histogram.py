"""A histogram of 64 bins at most, whose bins need not be known before.

Bins are intervals between neighbouring multiples of a power of two.
The power is the smallest with which 64 bins reach from the smallest value to the largest. So it follows from
these two alone, and bins of a larger power are unions of bins of a smaller one: histograms of parts, merged
in any order, are that of all values, to the count. Floats have a second bound, so that bins can be numbered
exactly: a bin is at least 2**-53 of the power of two above the largest magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...process.lazy import np
from ..types import Array, Json

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MOST_BINS", "Histogram", "checked_counts", "exponent_of"]

MOST_BINS = 64
_LEAST = -1074  # the exponent of the smallest float64
_DIGITS = 53


def exponent_of(low: float, high: float) -> int:
    """The power of two that is the width of bins of values from `low` to `high`; ints have bins of ints.

    Example:
        >>> exponent_of(0, 63), exponent_of(0, 64), exponent_of(0.0, 1.0)
        (0, 1, -5)
    """
    if isinstance(low, int) and isinstance(high, int):
        exponent = max(0, (high - low).bit_length() - 6)
    else:
        magnitude = max(abs(low), abs(high))
        exponent = max(_LEAST, math.frexp(magnitude)[1] - _DIGITS) if magnitude else _LEAST
        half = high / 2 - low / 2  # the whole may be beyond float64
        if half:
            exponent = max(exponent, math.frexp(half)[1] - 8)
    while _bin(high, exponent) - _bin(low, exponent) >= MOST_BINS:
        exponent += 1
    return exponent


def _bin(value: float, exponent: int) -> int:
    if isinstance(value, int):
        return value >> exponent
    found = math.floor(math.ldexp(value, -exponent))
    return -1 if value < 0 and not found else found  # so small that it has become 0


def _bins(values: Array, exponent: int, first: int) -> npt.NDArray[np.int64]:
    """The number of the bin of each value, counted from `first`."""
    if values.dtype.kind == "f":
        found = np.floor(np.ldexp(values.astype(np.float64, copy=False), -exponent))
        found[(values < 0) & (found == 0)] = -1
        numbers: npt.NDArray[np.int64] = found.astype(np.int64)
        return numbers - first
    if values.dtype == np.uint64:
        unsigned: npt.NDArray[np.uint64] = values.view(np.uint64) >> np.uint64(exponent)
        return np.asarray(unsigned - np.uint64(first), np.int64)
    signed: npt.NDArray[np.int64] = values.astype(np.int64, copy=False)
    return (signed >> min(exponent, 63)) - first


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins; bin i begins at (first + i) * 2**exponent, and holds what is there.

    Attributes:
        exponent: of the width of a bin.
        first: the number of the first bin.
        counts: of each bin, up to 64.

    Example:
        >>> one = Histogram.of(np.array([1, 2, 3, 3]), 1, 3)
        >>> one
        Histogram(exponent=0, first=1, counts=(1, 1, 2))
        >>> one.merged(Histogram.of(np.array([100]), 100, 100), 1, 100).counts[:3]
        (1, 3, 0)
    """

    exponent: int = 0
    first: int = 0
    counts: tuple[int, ...] = ()

    @staticmethod
    def of(values: Array, low: float, high: float) -> Histogram:
        """The histogram of finite values from `low` to `high`, with as many bins as they need."""
        exponent = exponent_of(low, high)
        first, last = _bin(low, exponent), _bin(high, exponent)
        counts = np.bincount(_bins(values, exponent, first), minlength=last - first + 1)
        return Histogram(exponent, first, tuple(counts.tolist()))

    def merged(self, other: Histogram, low: float, high: float) -> Histogram:
        """The histogram of the values of both, none below `low` and none above `high`."""
        exponent = exponent_of(low, high)
        first, last = _bin(low, exponent), _bin(high, exponent)
        counts = [0] * (last - first + 1)
        for one in (self, other):
            for number, count in enumerate(one.counts):
                counts[((one.first + number) >> (exponent - one.exponent)) - first] += count
        return Histogram(exponent, first, tuple(counts))

    @property
    def total(self) -> int:
        """How many values it has."""
        return sum(self.counts)

    @property
    def edges(self) -> list[float]:
        """Where bins begin, and where the last one ends; ints where the width of bins is one."""
        numbers = range(self.first, self.first + len(self.counts) + 1)
        if self.exponent >= 0:
            return [number << self.exponent for number in numbers]
        return [math.ldexp(number, self.exponent) for number in numbers]

    def quantile(self, share: float, low: float, high: float) -> float:
        """The value below which this share of the values is, as if they were spread evenly in each bin.

        Args:
            share: in 0..1.
            low: the smallest value.
            high: the largest.
        """
        wanted, edges = share * self.total, self.edges
        for number, count in enumerate(self.counts):
            if count and wanted <= count:
                start, stop = float(max(edges[number], low)), float(min(edges[number + 1], high))
                part = wanted / count
                return start * (1 - part) + stop * part
            wanted -= count
        return float(high)

    def to_json(self) -> Json:
        """Plain data."""
        return {"exponent": self.exponent, "first": self.first, "counts": list(self.counts)}

    @staticmethod
    def from_json(data: Json, low: float, high: float) -> Histogram:
        """The histogram that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        found = Histogram(data["exponent"], data["first"], tuple(checked_counts(data["counts"])))
        if type(found.exponent) is not int or type(found.first) is not int:
            raise TypeError("the bins of a histogram are numbered by ints")
        exponent = exponent_of(low, high)
        first, last = _bin(low, exponent), _bin(high, exponent)
        if (found.exponent, found.first, len(found.counts)) != (exponent, first, last - first + 1):
            raise ValueError(f"the bins of a histogram do not reach from {low} to {high}")
        return found


def checked_counts(counts: Sequence[object]) -> list[int]:
    """Counts as they are; ValueError or TypeError if they are not numbers of values."""
    found = [count for count in counts if type(count) is int and 0 <= count < 2**62]
    if len(found) != len(counts):
        raise ValueError(f"counts must be ints of at least 0, found {counts!r:.80}")
    return found
