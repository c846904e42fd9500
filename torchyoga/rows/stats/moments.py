"""Numbers -> how many there are, the smallest, the largest, their mean and spread, and a histogram.

Ints are summed exactly, and so are their squares.
Their statistics do not depend on how rows are cut into blocks and parts. Those of floats are sums of float64,
merged as Chan, Golub and LeVeque do ("Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", 1979), so the last bits of a mean depend on that.

Of wide rows, what costs most is taken of some of the numbers.
A build of images writes a byte in a nanosecond; a histogram needs several. Count, NaN, infinities, minimum,
maximum and mean are of all numbers all the same. Zeros, spread and histogram are of every 64th row, once
2**16 numbers have come, and of every fifth number there, or 11th or 17th if they are small: all channels of
an image come. `sampled` says of how many they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from ...process.lazy import np
from ..types import Array, Json
from .histogram import Histogram, checked_counts

__all__ = ["Moments"]

_CHUNK = 2**18  # bytes that stay in a core's cache while they are read several times
_NAMES = ("count", "nan", "inf", "minus_inf", "sampled", "zeros")


@dataclass
class Moments:
    """Statistics of some numbers: ints, or floats.

    Attributes:
        is_int: whether they are ints.
        count: all of them, with NaN and infinities.
        nan: not a number; `inf`: infinities of both signs; `minus_inf`: negative ones.
        low: the smallest that is finite, `high`: the largest; None if there is none.
        total: the sum of ints; `mean`: of finite floats.
        sampled: how many of the finite numbers `zeros`, `own_total`, `squares`, `own_mean`, `m2` and
            `histogram` are of.
        m2: the sum of the squared distances from their mean, of floats; infinite if float64 cannot hold it.

    Example:
        >>> moments = Moments(is_int=False)
        >>> moments.add(np.array([1.0, 2.0, np.nan, 6.0]))
        >>> moments.count, moments.nan, moments.low, moments.mean, moments.m2
        (4, 1, 1.0, 3.0, 14.0)
    """

    is_int: bool
    count: int = 0
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0
    low: float | None = None
    high: float | None = None
    total: int = 0
    mean: float = 0.0
    sampled: int = 0
    zeros: int = 0
    own_total: int = 0
    squares: int = 0
    own_mean: float = 0.0
    m2: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)

    @property
    def finite(self) -> int:
        """How many numbers are neither NaN nor infinite."""
        return self.count - self.nan - self.inf

    def add(self, values: Array, sample: Array | None = None) -> None:
        """Adds numbers.

        Args:
            values: any number of them, of any shape, contiguous: ints or float16, float32 or float64.
            sample: those of them that costly statistics are of; None for all.
        """
        bounds = None if self.low is None or self.high is None else (self.low, self.high)
        self.merge(_of(values.reshape(-1), sample, self.is_int, bounds))

    def merge(self, other: Moments) -> None:
        """Adds what others are known to be."""
        finite, others = self.finite, other.finite
        if others:
            assert other.low is not None
            assert other.high is not None
            self.mean = _mean_of(self.mean, finite, other.mean, others)
            low = other.low if self.low is None else min(self.low, other.low)
            high = other.high if self.high is None else max(self.high, other.high)
            self.low, self.high = low, high
            self.histogram = self.histogram.merged(other.histogram, low, high)
        if other.sampled:
            self._merge_spread(other)
        for name in (*_NAMES, "total", "own_total", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def _merge_spread(self, other: Moments) -> None:
        count, others = self.sampled, other.sampled
        if count and not self.is_int:
            # Each factor by itself: the product of two may be beyond float64 where the whole is not.
            apart = (other.own_mean - self.own_mean) * math.sqrt(count / (count + others)) * math.sqrt(others)
            self.m2 += other.m2 + apart * apart
        else:
            self.m2 += other.m2
        self.own_mean = _mean_of(self.own_mean, count, other.own_mean, others)

    @property
    def average(self) -> float | None:
        """The mean of all finite numbers; None if there is none."""
        if not self.finite:
            return None
        return self.total / self.finite if self.is_int else self.mean

    @property
    def deviation(self) -> float | None:
        """The standard deviation of those sampled, as of a whole population; None if there is none."""
        if not self.sampled:
            return None
        if not self.is_int:
            return math.sqrt(self.m2 / self.sampled)
        count = self.sampled
        return math.sqrt(Fraction(self.squares * count - self.own_total**2, count**2))

    def to_json(self) -> Json:
        """Plain data; the squared distances are None where they are infinite."""
        found: Json = {name: getattr(self, name) for name in _NAMES if getattr(self, name)}
        if self.low is not None:
            found |= {"min": self.low, "max": self.high, "histogram": self.histogram.to_json()}
        if self.is_int:
            # As text: they may have 190 bits, and JSON of other languages has 53.
            found |= {"sum": str(self.total), "squares": str(self.squares)}
            if self.sampled != self.finite:
                found["sampled_sum"] = str(self.own_total)
            return found
        found |= {"mean": self.mean, "m2": self.m2 if math.isfinite(self.m2) else None}
        if self.sampled != self.finite:
            found["sampled_mean"] = self.own_mean
        return found

    @staticmethod
    def from_json(data: Json, is_int: bool) -> Moments:
        """The one that `to_json` described; ValueError, TypeError or KeyError if it contradicts itself."""
        counts = dict(zip(_NAMES, checked_counts([data.get(name, 0) for name in _NAMES]), strict=True))
        found = Moments(is_int)
        vars(found).update(counts)
        if found.finite < found.sampled or found.sampled < found.zeros or found.inf < found.minus_inf:
            raise ValueError(f"counts of numbers contradict each other: {counts!r:.200}")
        if found.finite < 0 or bool(found.finite) != ("min" in data) or (is_int and found.inf):
            raise ValueError("there is a minimum exactly where there are numbers")
        number = _int_in if is_int else _float_in
        if found.finite:
            found.low, found.high = number(data, "min"), number(data, "max")
            if found.low > found.high:
                raise ValueError("the minimum is above the maximum")
            found.histogram = Histogram.from_json(data["histogram"], found.low, found.high)
            if found.histogram.total != found.sampled:
                raise ValueError("the histogram has more or fewer numbers than were sampled")
        if is_int:
            found.total, found.squares = _big_in(data, "sum"), _big_in(data, "squares")
            found.own_total = _big_in(data, "sampled_sum") if "sampled_sum" in data else found.total
        else:
            found.mean = _float_in(data, "mean")
            found.own_mean = _float_in(data, "sampled_mean") if "sampled_mean" in data else found.mean
            found.m2 = math.inf if data["m2"] is None else _float_in(data, "m2")
        found._check_bounds()
        return found

    def _check_bounds(self) -> None:
        """Raises ValueError unless sums are such as numbers between the smallest and the largest have."""
        low, high = self.low or 0, self.high or 0
        sound = self.m2 >= 0 and self.squares * self.sampled >= self.own_total**2
        if self.is_int:
            sound = sound and low * self.finite <= self.total <= high * self.finite
            sound = sound and low * self.sampled <= self.own_total <= high * self.sampled
            sound = sound and self.squares <= max(low * low, high * high) * self.sampled
        else:
            slack = 1e-6 * max(abs(low), abs(high))  # sums are rounded
            sound = sound and low - slack <= self.mean <= high + slack
            sound = sound and (not self.sampled or low - slack <= self.own_mean <= high + slack)
        if not sound:
            raise ValueError("the mean or the spread is not that of numbers in these bounds")


def _of(values: Array, sample: Array | None, is_int: bool, bounds: tuple[float, float] | None) -> Moments:
    """Statistics of some numbers; `bounds` are those of others that were added before."""
    found = Moments(is_int, count=len(values))
    if not len(values):
        return found
    if is_int:
        _take_ints(found, values, bounds)
        chosen = values if sample is None else sample.reshape(-1)
    else:
        with np.errstate(all="ignore"):
            _take_floats(found, values)
            chosen = values if sample is None else sample.reshape(-1)
            chosen = chosen.astype(np.float64)
            if found.nan or found.inf:
                chosen = chosen[np.isfinite(chosen)]
            found.own_mean, found.m2 = _spread(chosen)
    if found.low is None or found.high is None:
        return found
    found.sampled = len(chosen)
    if is_int:
        found.own_total = found.total if sample is None else _total(chosen)
        found.squares = _squares(chosen, found.low, found.high)
    elif sample is None:
        found.mean = found.own_mean
    found.zeros = len(chosen) - int(np.count_nonzero(chosen))
    found.histogram = Histogram.of(chosen, found.low, found.high)
    return found


def _take_ints(found: Moments, values: Array, bounds: tuple[float, float] | None) -> None:
    """The bounds and the sum of ints; bounds that others have need not be found, if none can be beyond."""
    step = _CHUNK // values.itemsize
    chunks = [values[start : start + step] for start in range(0, len(values), step)]
    limits = np.iinfo(values.dtype)
    if bounds == (limits.min, limits.max):
        found.low, found.high = int(limits.min), int(limits.max)
    else:
        found.low = min(int(chunk.min()) for chunk in chunks)
        found.high = max(int(chunk.max()) for chunk in chunks)
    found.total = _total(values)


def _take_floats(found: Moments, values: Array) -> None:
    """The counts, the bounds and the mean of floats."""
    step, sums = _CHUNK // values.itemsize, []
    lows, highs = [], []
    for start in range(0, len(values), step):
        chunk = values[start : start + step]
        if chunk.dtype == np.float16:  # whose sums would be too coarse
            chunk = chunk.astype(np.float32)
        low, high = float(chunk.min()), float(chunk.max())  # NaN if there is one
        if not math.isfinite(low) or not math.isfinite(high):
            found.nan += int(np.isnan(chunk).sum())
            found.inf += int(np.isinf(chunk).sum())
            found.minus_inf += int(np.isneginf(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not len(chunk):
                continue
            low, high = float(chunk.min()), float(chunk.max())
        lows.append(low)
        highs.append(high)
        sums.append((_mean(chunk), len(chunk)))
    if lows:
        found.low, found.high = min(lows) + 0.0, max(highs) + 0.0  # -0.0 is 0.0
        count = sum(number for _, number in sums)
        found.mean = math.fsum(total * (number / count) for total, number in sums)


def _mean(chunk: Array) -> float:
    """The mean of floats that are finite."""
    total = float(chunk.sum())
    if not math.isfinite(total):  # too large for their type
        chunk = chunk.astype(np.float64)
        return float((chunk / len(chunk)).sum())
    return total / len(chunk)


def _spread(values: Array) -> tuple[float, float]:
    """The mean of finite float64, and the sum of the squared distances from it."""
    if not len(values):
        return 0.0, 0.0
    mean = _mean(values)
    apart = values - mean
    m2 = float((apart * apart).sum())  # not `dot`, whose threads would spin beside the build
    return mean, m2 if m2 >= 0 else math.inf


def _mean_of(one: float, count: int, other: float, others: int) -> float:
    """The mean of both, neither of which may be added to the other where they are large."""
    if not count:
        return other
    found = one + (other - one) * (others / (count + others))
    if math.isfinite(found):
        return found
    return one * (count / (count + others)) + other * (others / (count + others))


def _total(values: Array) -> int:
    """The sum of ints, whatever its size."""
    if values.dtype == np.uint8 and len(values) >= 256:
        # 256 of them fit 16 bits: several times as fast as a sum of 64 bits.
        whole = len(values) // 256 * 256
        sums = values[:whole].reshape(256, -1).sum(axis=0, dtype=np.uint16)
        return int(sums.sum(dtype=np.int64)) + int(values[whole:].sum(dtype=np.int64))
    if values.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    high, low = values >> values.dtype.type(32), values & values.dtype.type(2**32 - 1)
    return (int(high.sum()) << 32) + int(low.sum())


def _squares(values: Array, low: float, high: float) -> int:
    """The sum of the squares of ints, whatever its size."""
    largest = max(abs(int(low)), abs(int(high)))
    if largest * largest * max(1, len(values)) < 2**63:
        small = values.astype(np.int64)
        return int(np.dot(small, small))
    if values.dtype.kind == "u":
        magnitudes = values.astype(np.uint64)
    else:
        magnitudes = np.abs(values.astype(np.int64)).view(np.uint64)  # that of -2**63, too
    parts = [(magnitudes >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return sum(
        int(np.dot(one, other)) << 16 * (i + j)
        for i, one in enumerate(parts)
        for j, other in enumerate(parts)
    )


def _int_in(data: Json, name: str) -> int:
    found = data[name]
    if type(found) is not int or not -(2**63) <= found < 2**64:
        raise TypeError(f"{name} must be an int of 64 bits, found {found!r:.80}")
    return found


def _float_in(data: Json, name: str) -> float:
    found = data[name]
    if type(found) not in (int, float) or not abs(found) < 2**1024 or not math.isfinite(found):
        raise TypeError(f"{name} must be a number, found {found!r:.80}")
    return float(found)


def _big_in(data: Json, name: str) -> int:
    text = data[name]
    if not isinstance(text, str) or len(text) > 80 or not text.removeprefix("-").isdecimal():
        raise TypeError(f"{name} must be an int as text, found {text!r:.80}")
    return int(text)
