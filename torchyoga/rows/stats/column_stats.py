"""Statistics of a column, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from ...process.messages import in_columns

Shown: TypeAlias = "int | float | str | Decimal | None"
_MOST_SHOWN = 40  # characters of a value in a table
TITLES = ("column", "nulls", "values", "NaN", "zeros", "min", "max", "mean", "std", "lengths", "most often")


@dataclass(frozen=True)
class Bars:
    """A histogram.

    Attributes:
        counts: how many values are in each bin, 64 at most.
        edges: where the bins begin, and where the last one ends. All are equally wide, and a value on an edge
            is in the bin that begins there.
        ends: the smallest value and the largest, as edges count them.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    ends: tuple[float, float] = field(default=(0, 0), repr=False)


@dataclass(frozen=True)
class LengthStats:
    """How long rows of a column are: elements of arrays and lists, bytes of text in UTF-8.

    Attributes:
        count: how many rows, or texts in lists, have a length.
        total: of all lengths.
        min: the shortest; `max`: the longest; `mean`, `std`: the standard deviation. None without rows.
        empty: how many have length 0.
        histogram: of the lengths.
    """

    count: int
    total: int
    min: int | None
    max: int | None
    mean: float | None
    std: float | None
    empty: int
    histogram: Bars


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of a column.

    Attributes:
        name: of the column.
        rows: of the dataset.
        nulls: rows that are None; in a list, items.
        count: values that are not: numbers of all arrays, texts, times; NaN and infinities are among them.
        nan: how many are not a number, or not a time; `inf`: infinite; `minus_inf`: those of them below 0.
        zeros: how many of `sampled` values are 0.
        min: the smallest finite value, `max`: the largest; times as ISO texts. None where there is none, as
            for text. Of complex numbers this and all that follows is of the magnitudes.
        mean: of all finite values; `std`: the standard deviation of those sampled, as of a population.
        sampled: how many finite values `zeros`, `std` and `histogram` are of: all, unless rows are wide and
            many.
        histogram: of those; None for text.
        lengths: of rows that differ in length, and of text; None for other columns.
        top: up to 100 values that come most often, with their counts, or fewer if they are long; of equal
            counts the smaller comes first. None for arrays, and where `distinct` is.
        distinct: how many different values there are; None if they are more than 10,000, a text has more
            than 64 bytes, or they were not counted.
    """

    name: str
    rows: int
    nulls: int
    count: int
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0
    zeros: int = 0
    min: Shown = None
    max: Shown = None
    mean: float | None = None
    std: float | None = None
    sampled: int = 0
    histogram: Bars | None = None
    lengths: LengthStats | None = None
    top: tuple[tuple[Any, int], ...] | None = None
    distinct: int | None = None

    def quantile(self, share: float) -> float | None:
        """The value below which a share of the values sampled is, such as 0.5 for the median; None for text.

        It is from the histogram, as if values were spread evenly in each bin, and wrong by its width at most:
        less than (max - min) / 31, or 1 for ints, whichever is larger. Of times it is a number of their
        units, such as those since 1970.

        Raises:
            ValueError: the share is not in 0..1.

        Example:
            >>> stats = yoga.from_arrays({"x": np.arange(101)}).stats()
            >>> stats["x"].quantile(0.5)
            50.5
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile is of a share in 0..1, found {share!r}")
        bars = self.histogram
        if bars is None or not self.sampled:
            return None
        wanted, (low, high) = share * self.sampled, bars.ends
        for count, edge, end in zip(bars.counts, bars.edges, bars.edges[1:], strict=False):
            if count and wanted <= count:
                part, start, stop = wanted / count, float(max(edge, low)), float(min(end, high))
                return start * (1 - part) + stop * part
            wanted -= count
        return float(high)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.rows} rows, {self.nulls} null, {self.count} values"]
        if self.min is not None:
            lines.append(f"  min {_short(self.min)}, max {_short(self.max)}")
        if self.mean is not None:
            lines.append(f"  mean {_short(self.mean)}, std {_short(self.std)}, {self.zeros} zeros")
        if self.nan or self.inf:
            lines.append(f"  {self.nan} NaN, {self.inf} infinite, {self.minus_inf} of them below 0")
        if self.sampled < self.count - self.nan - self.inf and self.histogram is not None:
            lines.append(f"  zeros, std and histogram of {self.sampled} values")
        if (sizes := self.lengths) is not None:
            mean = _short(sizes.mean)
            lines.append(f"  lengths {sizes.min} to {sizes.max}, mean {mean}, {sizes.empty} empty")
        if self.top is not None:
            shown = ", ".join(f"{_short(value)} ({count})" for value, count in self.top[:5])
            lines.append(f"  {self.distinct} different: {shown}{', ...' if len(self.top) > 5 else ''}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.count} values, {self.nulls} null>"


class TableStats(Mapping[str, ColumnStats]):
    """Statistics of the columns of a dataset, by name.

    Attributes:
        rows: of the dataset.
        rows_read: how many of them the statistics are of; all, unless they are of a random sample.

    Example:
        >>> stats = yoga.from_arrays({"x": np.arange(4.0), "y": np.arange(4) % 2}).stats()
        >>> stats["x"].mean, stats["y"].top
        (1.5, ((0, 2), (1, 2)))
        >>> print(stats)
        4 rows
        column  nulls  values  NaN  zeros  min  max  mean    std  lengths  most often
        x           0       4    0      1    0    3   1.5  1.118           0 (1)
        y           0       4    0      2    0    1   0.5    0.5           0 (2)
    """

    def __init__(self, columns: Mapping[str, ColumnStats], rows: int, rows_read: int) -> None:
        self._columns = dict(columns)
        self.rows = rows
        self.rows_read = rows_read

    def __getitem__(self, name: str) -> ColumnStats:
        if name in self._columns:
            return self._columns[name]
        raise KeyError(f"there are no statistics of {name!r}; there are of {', '.join(self)[:400]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __str__(self) -> str:
        lines = [TITLES, *(cells_of(one, one.name, str, _short) for one in self.values())]
        drawn = f"{self.rows_read} rows, drawn from {self.rows}"
        first = drawn if self.rows_read < self.rows else f"{self.rows} rows"
        return "\n".join([first, *in_columns(lines, range(1, len(TITLES) - 1))])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self)[:400]}: {self.rows_read} of {self.rows} rows>"


def cells_of(
    stats: ColumnStats, name: str, count: Callable[[int], str], short: Callable[[object], str]
) -> tuple[str, ...]:
    """The texts of a column under `TITLES`.

    Args:
        stats: of the column.
        name: of the column, as it is shown.
        count: writes how many there are of something.
        short: writes a value.
    """
    is_number, sizes, top = stats.mean is not None, stats.lengths, stats.top
    return (
        name,
        count(stats.nulls),
        count(stats.count),
        count(stats.nan) if is_number or stats.nan else "",
        count(stats.zeros) if is_number else "",
        *map(short, (stats.min, stats.max, stats.mean, stats.std)),
        "" if sizes is None or not sizes.count else f"{sizes.min}..{sizes.max}",
        f"{short(top[0][0])} ({count(top[0][1])})" if top else "",
    )


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (str, bytes)):
        text = repr(value)
        return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
    return "" if value is None else str(value)
