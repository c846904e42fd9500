"""Numbers -> how many, smallest, largest, mean, spread and a histogram; values -> how often each comes.

What is known of parts adds up. Sums of ints are exact, whatever their size, so their statistics do not depend
on how rows are cut into blocks and parts. Sums of floats are float64, merged as Chan, Golub and LeVeque do
("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979): the last bits of a mean
depend on that.

Bins of the histogram are intervals between neighbouring multiples of a power of two, the smallest with which
64 reach from the smallest value to the largest. So they follow from these two alone, and bins of parts are
unions of finer ones. Floats have a second bound, so that bins can be numbered exactly: a bin is at least
2**-53 of the power of two above the largest magnitude.

A build of images writes a byte in a nanosecond; a histogram needs several. So of wide rows `zeros`, the
spread and the histogram are of some numbers only, and `sampled` says of how many.

Counts of values are right, or there are none.
Beyond 10,000 different values, or with a text of more than 64 bytes, none are kept. Both follow from all
values of the column, whichever come first. A manifest has the most frequent ones only: they cannot be merged
with others, since a value that either lacks may come as often; so the result has none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ..process.lazy import np
from .column import first_not_text
from .types import Array, Json

MOST_BINS = 64
_CHUNK = 2**18  # bytes that stay in a core's cache while they are read several times
_COUNTS = ("count", "nan", "inf", "minus_inf", "sampled", "zeros")
_SUMS = (*_COUNTS, "total", "own_total", "squares")


@dataclass(frozen=True)
class Numbers:
    """Statistics of some numbers: ints, or floats.

    Attributes:
        is_int: whether they are ints.
        count: all of them, with NaN and infinities.
        nan: not a number; `inf`: infinities of both signs; `minus_inf`: negative ones.
        sampled: how many of the finite numbers `zeros`, `own_total`, `squares`, `own_mean`, `m2` and `bars`
            are of.
        low: the smallest that is finite, `high`: the largest; None if there is none.
        total: the sum of ints; `mean`: of finite floats.
        m2: the sum of the squared distances from their mean, of floats; infinite if float64 cannot hold it.
        bars: the counts of the histogram, in the bins that `bins_of` names.

    Example:
        >>> one = Numbers.of(np.array([1.0, 2.0, np.nan]), is_int=False)
        >>> found = one + Numbers.of(np.array([6.0]), is_int=False)
        >>> found.count, found.nan, found.low, found.mean, found.m2
        (4, 1, 1.0, 3.0, 14.0)
    """

    is_int: bool
    count: int = 0
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0
    sampled: int = 0
    zeros: int = 0
    low: float | None = None
    high: float | None = None
    total: int = 0
    own_total: int = 0
    squares: int = 0
    mean: float = 0.0
    own_mean: float = 0.0
    m2: float = 0.0
    bars: tuple[int, ...] = ()

    @property
    def finite(self) -> int:
        """How many numbers are neither NaN nor infinite."""
        return self.count - self.nan - self.inf

    @property
    def average(self) -> float | None:
        """The mean of all finite numbers; None if there is none."""
        if not self.finite:
            return None
        return self.total / self.finite if self.is_int else self.mean

    @property
    def deviation(self) -> float | None:
        """The standard deviation of those sampled, as of a whole population; None if there is none."""
        count = self.sampled
        if not count:
            return None
        if not self.is_int:
            return math.sqrt(self.m2 / count)
        return math.sqrt(Fraction(self.squares * count - self.own_total**2, count**2))

    @staticmethod
    def of(values: Array, is_int: bool, sample: Array | None = None) -> Numbers:
        """Statistics of numbers (N,), contiguous: ints or floats of up to 64 bits.

        Args:
            values: the numbers.
            is_int: whether they are ints.
            sample: those of them that costly statistics are of; None for all.
        """
        if not len(values):
            return Numbers(is_int)
        with np.errstate(all="ignore"):
            return _of_ints(values, sample) if is_int else _of_floats(values, sample)

    def __add__(self, other: Numbers) -> Numbers:
        sums: Json = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return replace(other if self.low is None else self, **sums)
        mine, theirs, apart = self.sampled, other.sampled, 0.0
        if mine and theirs:
            # Each factor by itself: the product of two may be beyond float64 where the whole is not.
            apart = (other.own_mean - self.own_mean) * math.sqrt(mine / (mine + theirs)) * math.sqrt(theirs)
        low, high = min(self.low, other.low), max(self.high, other.high)
        exponent, first, last = bins_of(low, high)
        bars = [0] * (last - first + 1)
        for one in (self, other):
            own, start, _ = bins_of(one.low, one.high)
            for number, count in enumerate(one.bars, start):
                bars[(number >> (exponent - own)) - first] += count
        return replace(
            self,
            **sums,
            low=low,
            high=high,
            mean=_mean_of(self.mean, self.finite, other.mean, other.finite),
            own_mean=_mean_of(self.own_mean, mine, other.own_mean, theirs),
            m2=self.m2 + (other.m2 + apart * apart),
            bars=tuple(bars),
        )

    def to_json(self) -> Json:
        """Plain data; sums of ints as text, as they may have 190 bits; None for an infinite `m2`."""
        found: Json = {name: getattr(self, name) for name in _COUNTS if getattr(self, name)}
        if self.low is not None and self.high is not None:
            exponent, first, _ = bins_of(self.low, self.high)
            bins = {"exponent": exponent, "first": first, "counts": list(self.bars)}
            found |= {"min": self.low, "max": self.high, "histogram": bins}
        is_whole = self.sampled == self.finite
        if self.is_int:
            found |= {"sum": str(self.total), "squares": str(self.squares)}
            return found if is_whole else {**found, "sampled_sum": str(self.own_total)}
        found |= {"mean": self.mean, "m2": self.m2 if math.isfinite(self.m2) else None}
        return found if is_whole else {**found, "sampled_mean": self.own_mean}

    @staticmethod
    def from_json(data: Json, is_int: bool) -> Numbers:
        """The one that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        counts = checked_counts([data.get(name, 0) for name in _COUNTS])
        named: Json = dict(zip(_COUNTS, counts, strict=True))
        found = Numbers(is_int, **named)
        if not found.zeros <= found.sampled <= found.finite:
            raise ValueError(f"counts of numbers contradict each other: {counts!r}")
        if "min" in data:
            low, high = (_checked(data[name], is_int) for name in ("min", "max"))
            bars = tuple(checked_counts(data["histogram"]["counts"]))
            exponent, first = (_checked(data["histogram"][name], True) for name in ("exponent", "first"))
            if low > high or (exponent, first, first + len(bars) - 1) != bins_of(low, high):
                raise ValueError("the bins do not reach from the minimum to the maximum")
            found = replace(found, low=low, high=high, bars=bars)
        if is_int:
            total, squares = _big(data["sum"]), _big(data["squares"])
            own_total = _big(data["sampled_sum"]) if "sampled_sum" in data else total
            return replace(found, total=total, squares=squares, own_total=own_total)
        mean = _checked(data["mean"], False)
        own_mean = _checked(data["sampled_mean"], False) if "sampled_mean" in data else mean
        m2 = math.inf if data["m2"] is None else _checked(data["m2"], False)
        return replace(found, mean=mean, own_mean=own_mean, m2=m2)


def _of_ints(values: Array, sample: Array | None) -> Numbers:
    low = min(int(chunk.min()) for chunk in _chunks(values))
    high = max(int(chunk.max()) for chunk in _chunks(values))
    chosen = values if sample is None else sample
    total = _total(values)
    return Numbers(
        is_int=True,
        count=len(values),
        sampled=len(chosen),
        zeros=len(chosen) - int(np.count_nonzero(chosen)),
        low=low,
        high=high,
        total=total,
        own_total=total if sample is None else _total(chosen),
        squares=_squares(chosen, low, high),
        bars=_bars(chosen, low, high),
    )


def _of_floats(values: Array, sample: Array | None) -> Numbers:
    found = Numbers(is_int=False, count=len(values))
    nan = inf = minus_inf = 0
    lows, highs, means = [], [], []
    for chunk in _chunks(values):
        if chunk.dtype == np.float16:  # whose sums would be too coarse
            chunk = chunk.astype(np.float32)
        low, high = float(chunk.min()), float(chunk.max())  # NaN if there is one
        if not math.isfinite(low) or not math.isfinite(high):
            nan += int(np.isnan(chunk).sum())
            inf += int(np.isinf(chunk).sum())
            minus_inf += int(np.isneginf(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not len(chunk):
                continue
            low, high = float(chunk.min()), float(chunk.max())
        lows.append(low)
        highs.append(high)
        if sample is not None:
            means.append((_mean(chunk), len(chunk)))
    found = replace(found, nan=nan, inf=inf, minus_inf=minus_inf)
    if not lows:
        return found
    chosen = (values if sample is None else sample).astype(np.float64)
    if nan or inf:
        chosen = chosen[np.isfinite(chosen)]
    own_mean = _mean(chosen) if len(chosen) else 0.0
    apart = chosen - own_mean
    m2 = float((apart * apart).sum())  # not `dot`, whose threads would spin beside the build
    low, high = min(lows) + 0.0, max(highs) + 0.0  # -0.0 is 0.0
    return replace(
        found,
        sampled=len(chosen),
        zeros=len(chosen) - int(np.count_nonzero(chosen)),
        low=low,
        high=high,
        mean=own_mean if sample is None else math.fsum(mean * (n / found.finite) for mean, n in means),
        own_mean=own_mean,
        m2=m2 if m2 >= 0 else math.inf,
        bars=_bars(chosen, low, high),
    )


def _bars(values: Array, low: float, high: float) -> tuple[int, ...]:
    """The counts of finite values from `low` to `high`, in the bins that `bins_of` names."""
    exponent, first, last = bins_of(low, high)
    if values.dtype.kind == "f":
        bins = np.floor(np.ldexp(values, -exponent))
        bins[(values < 0) & (bins == 0)] = -1
        numbers = bins.astype(np.int64) - first
    elif values.dtype == np.uint64:
        numbers = ((values >> np.uint64(exponent)) - np.uint64(first)).astype(np.int64)
    else:
        numbers = (values.astype(np.int64, copy=False) >> min(exponent, 63)) - first
    return tuple(np.bincount(numbers, minlength=last - first + 1).tolist())


@lru_cache(maxsize=1024, typed=True)
def bins_of(low: float, high: float) -> tuple[int, int, int]:
    """The bins of values from `low` to `high`; ints have bins of ints.

    Returns:
        The power of two that is the width of a bin, and the numbers of the first bin and of the last. Bin i
        begins at i * 2**power.

    Example:
        >>> bins_of(0, 63), bins_of(0, 64), bins_of(0.0, 1.0)
        ((0, 0, 63), (1, 0, 32), (-5, 0, 32))
    """
    if isinstance(low, int) and isinstance(high, int):
        exponent = max(0, (high - low).bit_length() - 6)
    else:
        magnitude = max(abs(low), abs(high))
        exponent = max(-1074, math.frexp(magnitude)[1] - 53) if magnitude else -1074
        half = high / 2 - low / 2  # the whole may be beyond float64
        if half:
            exponent = max(exponent, math.frexp(half)[1] - 8)
    while _bin(high, exponent) - _bin(low, exponent) >= MOST_BINS:
        exponent += 1
    return exponent, _bin(low, exponent), _bin(high, exponent)


def _bin(value: float, exponent: int) -> int:
    if isinstance(value, int):
        return value >> exponent
    found = math.floor(math.ldexp(value, -exponent))
    return -1 if value < 0 and not found else found  # so small that it has become 0


def edges_of(low: float, high: float) -> list[float]:
    """Where bins begin, and where the last one ends; ints where the width of bins is one."""
    exponent, first, last = bins_of(low, high)
    numbers = range(first, last + 2)
    if exponent >= 0:
        return [number << exponent for number in numbers]
    return [math.ldexp(number, exponent) for number in numbers]


def _chunks(values: Array) -> Iterator[Array]:
    step = _CHUNK // values.itemsize
    return (values[start : start + step] for start in range(0, len(values), step))


def _mean(values: Array) -> float:
    """The mean of floats that are finite."""
    total = float(values.sum())
    if math.isfinite(total):
        return total / len(values)
    return float((values.astype(np.float64) / len(values)).sum())  # the sum is too large for its type


def _mean_of(one: float, count: int, other: float, others: int) -> float:
    """The mean of both, neither of which may be added to the other where they are large."""
    if not count or not others:
        return one if count else other
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
    if max(abs(int(low)), abs(int(high))) ** 2 * len(values) < 2**63:
        small = values.astype(np.int64)
        return int(np.dot(small, small))
    if values.dtype.kind == "u":
        sizes = values.astype(np.uint64)
    else:
        sizes = np.abs(values.astype(np.int64)).view(np.uint64)  # that of -2**63, too
    parts = [(sizes >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    products = [np.dot(one, other) for one in parts for other in parts]
    shifts = [16 * (i + j) for i in range(4) for j in range(4)]
    return sum(int(product) << shift for product, shift in zip(products, shifts, strict=True))


def checked_counts(counts: Sequence[object]) -> list[int]:
    """Counts as they are; ValueError or TypeError if they are not numbers of values."""
    found = [count for count in counts if type(count) is int and 0 <= count < 2**62]
    if len(found) != len(counts):
        raise ValueError(f"counts must be ints of at least 0, found {counts!r:.80}")
    return found


def _checked(value: Any, is_int: bool) -> float:
    """A number of 64 bits; TypeError if it is none."""
    if type(value) is int and is_int and -(2**63) <= value < 2**64:
        return value
    is_float = isinstance(value, (int, float)) and type(value) is not bool and not is_int
    if is_float and abs(value) < 2**1024 and math.isfinite(value):
        return float(value)
    raise TypeError(f"expected {'an int of 64 bits' if is_int else 'a number'}, found {value!r:.80}")


def _big(text: object) -> int:
    if not isinstance(text, str) or len(text) > 80 or not text.removeprefix("-").isdecimal():
        raise TypeError(f"a sum must be an int as text, found {text!r:.80}")
    return int(text)


MOST_DISTINCT = 10_000
MOST_TEXT = 64  # bytes of a text
MOST_TOP = 100  # values that a manifest has
_RANGE = 2**16  # ints in such a range are counted without sorting them
Value: TypeAlias = "int | float | bytes"
Kind: TypeAlias = Literal["int", "float", "bool", "str", "bytes"]


class Tally:
    """How often each value comes.

    Attributes:
        kind: of the values.
        counts: of each value, or only of the most frequent ones; None if there are too many.
        distinct: how many different values there are; None if that is not known.

    Example:
        >>> tally = Tally("str")
        >>> tally.add_texts([b"cat", b"dog", b"cat"])
        >>> tally.top(), tally.distinct
        ([(b'cat', 2), (b'dog', 1)], 2)
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.counts: dict[Value, int] | None = {}
        self.distinct: int | None = 0

    def add_numbers(self, values: Array) -> None:
        """Adds numbers (N,); NaN are left out."""
        if self.counts is None or not len(values):
            return
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)] + values.dtype.type(0)  # -0.0 is 0.0
        is_int, start = values.dtype.kind != "f", values[: 2 * MOST_DISTINCT]
        if is_int and int(values.max()) - (low := int(values.min())) < _RANGE and low < 2**62:
            numbers = np.bincount(values.astype(np.int64) - low)
            distinct = np.flatnonzero(numbers)
            self._add((distinct + low).tolist(), numbers[distinct].tolist())
        elif len(start) < len(values) and len(np.unique(start)) > MOST_DISTINCT:
            self.give_up()
        else:
            distinct, numbers = np.unique(values, return_counts=True)
            self._add(distinct.tolist(), numbers.tolist())

    def add_texts(self, texts: Sequence[bytes]) -> None:
        """Adds texts."""
        if self.counts is None:
            return
        longest, some = max(map(len, texts), default=0), set(texts[: 2 * MOST_DISTINCT])
        if longest > MOST_TEXT or len(some) > MOST_DISTINCT:
            self.give_up()
            return
        counts = Counter(texts)
        if self.kind == "str" and first_not_text([*counts]) is not None:
            self.give_up()
        else:
            self._add(counts.keys(), counts.values())

    def merge(self, other: Tally) -> None:
        """Adds what another has counted."""
        if other.distinct == 0:
            return
        if self.distinct == 0:
            self.counts, self.distinct = None if other.counts is None else dict(other.counts), other.distinct
        elif other.counts is None or not (self.is_whole and other.is_whole):
            self.give_up()
        else:
            self._add(other.counts.keys(), other.counts.values())

    @property
    def is_whole(self) -> bool:
        """True if all values are here, not only the most frequent ones."""
        return self.counts is not None and len(self.counts) == self.distinct

    def give_up(self) -> None:
        """Forgets all values: there are too many."""
        self.counts = self.distinct = None

    def top(self, most: int | None = None) -> list[tuple[Value, int]]:
        """The values that come most often, with their counts; of equal counts the smaller value first."""
        return sorted((self.counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))[:most]

    def _add(self, values: Collection[Value], numbers: Collection[int]) -> None:
        """Adds different values, and how often each comes."""
        counts = self.counts
        assert counts is not None
        if len(values) <= MOST_DISTINCT:
            for value, number in zip(values, numbers, strict=True):
                counts[value] = counts.get(value, 0) + number
        self.distinct = len(counts)
        if max(len(counts), len(values)) > MOST_DISTINCT:
            self.give_up()

    def to_json(self, most: int | None = None) -> Json:
        """Plain data, with the most frequent values only if `most` says how many."""
        pairs = self.top(most)
        values = [self._plain(value) for value, _ in pairs]
        return {"distinct": self.distinct, "values": values, "counts": [count for _, count in pairs]}

    def _plain(self, value: Value) -> object:
        if isinstance(value, bytes):
            # Of bytes each is a character, so that any are text.
            return value.decode("latin-1") if self.kind == "bytes" else value.decode("utf-8", "surrogatepass")
        return str(value) if value in (np.inf, -np.inf) else value

    @staticmethod
    def from_json(data: Json, kind: Kind) -> Tally:
        """The counts that `to_json` described; ValueError, TypeError or KeyError if it is not that."""
        found = Tally(kind)
        values, counts = [_value_in(value, kind) for value in data["values"]], checked_counts(data["counts"])
        if data["distinct"] is None:
            found.give_up()
        else:
            found.counts = dict(zip(values, counts, strict=True))
            (found.distinct,) = checked_counts([data["distinct"]])
        return found


def _value_in(value: object, kind: Kind) -> Value:
    if kind in ("str", "bytes") and isinstance(value, str):
        return value.encode("latin-1") if kind == "bytes" else value.encode("utf-8", "surrogatepass")
    if kind == "float" and value in ("inf", "-inf"):
        return float(str(value))
    types: dict[Kind, tuple[type, ...]] = {"int": (int,), "bool": (int,), "float": (int, float)}
    if type(value) not in types.get(kind, ()) or value != value:
        raise TypeError(f"not a value of the column: {value!r:.80}")
    return float(value) if kind == "float" else value  # type: ignore[arg-type, return-value]
