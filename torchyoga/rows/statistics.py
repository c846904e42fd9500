"""Columns of blocks -> statistics for people and programs, made part by part and merged exactly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..process.lazy import later
from ..process.messages import in_columns
from .column import DECODE, Column, is_ragged_kind
from .node import Node
from .numbers import MOST_TEXT, MOST_TOP, Kind, Numbers, Tally, checked_counts, edges_of
from .schema import Schema
from .types import Array, Ints, Json

if TYPE_CHECKING:
    import numpy as np
    import torch

    from . import block as runs
    from .block import Block, Data
else:
    np, torch, runs = later("numpy"), later("torch"), later("torchyoga.rows.block")

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
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


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
        name: the name of the column.
        rows: the number of rows of the dataset.
        nulls: the number of rows that are None; in a list, of items.
        count: the number of values that are not None: numbers of all arrays, texts, times, with NaN and
            infinities.
        nan: how many values are NaN, or not a time; `inf`: how many are infinite; `minus_inf`: how many of
            these are below 0.
        zeros: how many of the `sampled` values are 0.
        min: the smallest finite value, `max`: the largest; times as ISO texts. None if there is none, as for
            text. For complex numbers this and all that follows is about magnitudes.
        mean: the mean of all finite values; `std`: the standard deviation of the sampled ones, as of a
            population.
        sampled: the number of finite values that `zeros`, `std` and `histogram` are computed from: all,
            unless there are many rows of more than 64 numbers.
        histogram: of the sampled values; None for text.
        lengths: the lengths of the rows of a ragged column or text; None for other columns.
        top: the most frequent values with their counts, up to 100, or fewer if they are long; of equal counts
            the smaller value comes first. None for arrays, and if `distinct` is None.
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

    def __str__(self) -> str:
        lines = [pair for pair in zip(TITLES, cells_of(self, self.name, str, _short), strict=True) if pair[1]]
        if self.sampled < self.count - self.nan - self.inf and self.histogram is not None:
            lines.append(("sampled", f"{self.sampled} values, for zeros, std and the histogram"))
        return "\n".join(in_columns(lines, ()))

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


MOST_BYTES = 4096  # of a column's statistics in a manifest
_WIDE = 64  # numbers of a row, beyond which some are sampled; see `numbers`
_ALL_NUMBERS, _ALL_ROWS = 2**16, 1024  # from where on wide rows are sampled; rows of different lengths
_EVERY = 64  # row
# Of which multiples numbers are sampled, by their bytes; they lie in other cache lines.
_PRIMES = {1: 17, 2: 11}
_NOT_A_TIME = -(2**63)
_FAMILIES = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "m": "time", "M": "time"}
_TALLIED: dict[str, Kind] = {"text": "bytes", "bool": "bool", "int": "int", "float": "float"}


class Statistics:
    """Statistics of the values of a column, of any rows of it.

    Args:
        column: whose values they are.
        in_list: whether it is in a list of varying length.

    Attributes:
        rows: how many were added; `nulls`: how many of them are None; in a list, items.
        others: values that are neither text nor numbers, such as arrays of text.
        numbers: None for text and such.
        lengths: of rows that differ in length, and of text.
        tally: how often values come; None for arrays, lists and times.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> block = block_of([1, 2, 4])
        >>> one, other = Statistics(block.schema.columns[0]), Statistics(block.schema.columns[0])
        >>> one.add(block.data[0])
        >>> other.merge(one)
        >>> print(other.known())
        column      value
        nulls       0
        values      3
        NaN         0
        zeros       0
        min         1
        max         4
        mean        2.333
        std         1.247
        most often  1 (1)
    """

    def __init__(self, column: Column, in_list: bool = False) -> None:
        self.column, self._in_list = column, in_list
        text = "text" if is_ragged_kind(column.kind) else _FAMILIES.get(column.letter, "other")
        self.family = family = "none" if column.kind == "none" else text
        self.rows = self.nulls = self.others = 0
        is_int = family in ("bool", "int", "time")
        self.numbers = Numbers(is_int) if is_int or family in ("float", "complex") else None
        self.lengths = Numbers(is_int=True) if column.is_ragged else None
        is_single = family == "text" or (not in_list and column.shape == ())
        kind = "str" if column.kind in ("str", "numpy.str") else _TALLIED.get(family)
        self.tally = Tally(kind) if is_single and kind else None

    def add(self, data: Data, start: int = 0, there: Data | None = None, lengths: Data | None = None) -> None:
        """Adds rows.

        Args:
            data: N rows.
            start: the number of the first one; of wide rows the numbers say which are sampled.
            there: a bool for each row, or for each item of a list, that is False where it is None.
            lengths: of texts in lists, of each of them.
        """
        num_rows = len(data.values) if data.offsets is None else len(data.offsets) - 1
        self.rows += num_rows
        of_items = there is not None and there.offsets is not None
        valid, missing = None, 0
        if there is not None:
            flags: Array = np.asarray(_flat(there), bool)
            missing = len(flags) - int(np.count_nonzero(flags))
            self.nulls += missing
            # A list that is None has no texts.
            valid = flags if missing and (lengths is None or of_items) else None
        if self.family == "none":
            self.nulls += num_rows - (0 if of_items else missing)
        elif self.lengths is None:
            self._add_fixed(data.values, start, valid)
        else:
            sizes = np.diff(data.part("offsets")) if lengths is None else _flat(lengths)
            is_whole = valid is None or (of_items and lengths is None)
            kept = np.ascontiguousarray(sizes if is_whole else sizes[valid])
            self.lengths += Numbers.of(kept, True)
            if self.family != "text":
                self._add_ragged(data, sizes, start, valid, of_items)
            elif len(kept) and self.tally is not None and self.tally.counts is not None:
                if int(kept.max()) > MOST_TEXT:
                    self.tally.give_up()
                    return
                texts = data.texts() if lengths is None else runs.cut(_flat(data).tobytes(), sizes.tolist())
                self.tally.add_texts(texts if valid is None else [*itertools.compress(texts, valid.tolist())])

    def _add_fixed(self, values: Array, start: int, valid: Array | None) -> None:
        num_rows = len(values)
        if valid is not None:
            values = values[valid]
        size = prod(values.shape[1:])
        if not size or not len(values):
            return
        if self.numbers is None:
            self.others += values.size
            return
        numbers, sample = self._numbers(values).reshape(len(values), size), None
        if self.tally is not None:
            self.tally.add_numbers(numbers.reshape(-1))
        whole = _ALL_NUMBERS // size
        if size > _WIDE and start + len(values) > whole:
            rows = np.arange(start, start + num_rows)
            rows = rows if valid is None else rows[valid]
            first, step = int(np.searchsorted(rows, whole)), _PRIMES.get(values.itemsize, 5)
            some = numbers[first:][rows[first:] % _EVERY == 0, ::step]
            sample = np.concatenate([numbers[:first].reshape(-1), some.reshape(-1)])
        self._add_numbers(numbers.reshape(-1), sample)

    def _add_ragged(self, data: Data, sizes: Ints, start: int, valid: Array | None, of_items: bool) -> None:
        values, sample = _flat(data), None
        if valid is not None and of_items:
            if len(valid) != len(values):  # items are arrays, of as many numbers within a row
                assert data.shapes is not None
                each = np.where(data.shapes[:, 1:] < 0, 1, data.shapes[:, 1:]).prod(axis=1)
                valid = np.repeat(valid, np.repeat(each, data.shapes[:, 0]))
            values = values[valid]
        if self.numbers is None:
            self.others += len(values)
            return
        numbers = self._numbers(values)
        # By their numbers alone, so that the same rows are sampled however they are cut.
        if not of_items and start + len(sizes) > _ALL_ROWS:
            rows = np.arange(start, start + len(sizes))
            some = np.flatnonzero((rows < _ALL_ROWS) | (rows % _EVERY == 0))
            firsts = (data.part("offsets") - data.part("offsets")[0])[some]
            sample = runs.taken_runs(numbers, firsts, firsts + sizes[some]) if len(some) else numbers[:0]
        self._add_numbers(numbers, sample)

    def _numbers(self, values: Array) -> Array:
        """Values as ints or floats that NumPy can calculate with."""
        if self.family == "bool":
            return values.view(np.uint8)
        if self.family == "float" and values.dtype.kind == "u":
            bits = torch.from_numpy(np.ascontiguousarray(values))
            return bits.view(getattr(torch, self.column.dtype)).float().numpy()
        if self.family == "complex":
            with np.errstate(all="ignore"):
                return np.abs(values.astype(np.complex128))
        if values.dtype.kind == "f" and values.itemsize > 8:  # beyond 64 bits
            return values.astype(np.float64)
        native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
        return native.view(np.int64) if self.family == "time" else native

    def _add_numbers(self, numbers: Array, sample: Array | None) -> None:
        assert self.numbers is not None
        if self.family == "time":
            there = numbers != _NOT_A_TIME
            missing = len(numbers) - int(np.count_nonzero(there))
            self.numbers += Numbers(True, count=missing, nan=missing)
            numbers = numbers[there] if missing else numbers
            sample = None if sample is None else sample[sample != _NOT_A_TIME]
        self.numbers += Numbers.of(numbers, self.numbers.is_int, sample)

    def merge(self, other: Statistics) -> None:
        """Adds what is known of other rows of the same column.

        Raises:
            ValueError: it is of a column of another type.
        """
        if self.family != other.family or self.column.is_ragged != other.column.is_ragged:
            raise ValueError(f"statistics of {other.column} are not those of {self.column}")
        for name in ("rows", "nulls", "others", "numbers", "lengths"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name) + getattr(other, name))
        if self.tally is not None and other.tally is not None:
            self.tally.merge(other.tally)

    def to_json(self, most: int | None = None) -> Json:
        """Plain data, all that `merge` needs; with only the `most` frequent values, if that is given."""
        counts = {"rows": self.rows, "nulls": self.nulls, "others": self.others}
        found: Json = {name: count for name, count in counts.items() if count or name == "rows"}
        for name, part in (("numbers", self.numbers), ("lengths", self.lengths)):
            found |= {} if part is None else {name: part.to_json()}
        return found if self.tally is None else {**found, "top": self.tally.to_json(most)}

    def published(self) -> Json:
        """Plain data for a manifest: at most 4 KB as its text there, so the most frequent values only."""
        most = MOST_TOP
        while True:
            found = self.to_json(most)
            text = json.dumps(found, indent=1)
            if len(text) + 2 * text.count("\n") <= MOST_BYTES or not most:
                return found
            most = most * 3 // 4

    @staticmethod
    def from_json(data: Json, column: Column, in_list: bool = False) -> Statistics:
        """The one that `to_json` described.

        Only its form is looked at: notes of parts and manifests, where it is kept, have checksums.

        Raises:
            ValueError, TypeError, KeyError: it is not of a column of this type.
        """
        found = Statistics(column, in_list)
        found.rows, found.nulls, found.others = checked_counts(
            [data["rows"], data.get("nulls", 0), data.get("others", 0)]
        )
        if found.numbers is not None:
            found.numbers = Numbers.from_json(data["numbers"], found.numbers.is_int)
        if found.lengths is not None:
            found.lengths = Numbers.from_json(data["lengths"], is_int=True)
        if found.tally is not None:
            found.tally = Tally.from_json(data["top"], found.tally.kind)
        return found

    @property
    def count(self) -> int:
        """How many values there are."""
        part = self.lengths if self.family == "text" else self.numbers
        return self.others if part is None else part.count

    def known(self) -> ColumnStats:
        """Everything known, to be looked at."""
        found: dict[str, Any] = {}
        if (all_of := self.numbers) is not None:
            scale = 10 ** (self.column.meaning.scale or 0)
            is_plain = "time" not in (self.column.kind, self.family)
            mean, deviation = all_of.average, all_of.deviation
            found = {
                **{name: getattr(all_of, name) for name in ("nan", "inf", "minus_inf", "zeros", "sampled")},
                "min": self._shown(all_of.low),
                "max": self._shown(all_of.high),
                "mean": mean / scale if is_plain and mean is not None else None,
                "std": deviation / scale if is_plain and deviation is not None else None,
                "histogram": _bars(all_of, scale),
            }
        if (sizes := self.lengths) is not None:
            found["lengths"] = LengthStats(
                count=sizes.count,
                total=sizes.total,
                min=None if sizes.low is None else int(sizes.low),
                max=None if sizes.high is None else int(sizes.high),
                mean=sizes.average,
                std=sizes.deviation,
                empty=sizes.zeros,
                histogram=_bars(sizes, 1),
            )
        if self.tally is not None and self.tally.counts is not None:
            found["top"] = tuple((self._value(value), count) for value, count in self.tally.top(MOST_TOP))
            found["distinct"] = self.tally.distinct
        return ColumnStats(self.column.name, self.rows, self.nulls, self.count, **found)

    def _value(self, value: Any) -> Any:
        """A value that was counted, as rows have it."""
        words = self.column.meaning.words
        if isinstance(value, bytes):
            is_str = self.tally is not None and self.tally.kind == "str"
            return value.decode("utf-8", "surrogatepass") if is_str else value
        if self.family == "bool":
            return bool(value)
        return words[value] if words is not None and 0 <= value < len(words) else self._shown(value)

    def _shown(self, value: float | None) -> Any:
        """A number of the column as rows have it; a time as ISO text."""
        if value is None or self.family in ("float", "complex"):
            return value
        scale, whole = self.column.meaning.scale, int(value)
        if self.family == "time":
            time = np.int64(whole).view(self.column.storage.newbyteorder("="))
            return str(np.datetime_as_string(time)) if self.column.storage.kind == "M" else str(time)
        if self.column.kind == "time":
            is_time = 0 <= whole < 86_400_000_000
            return DECODE["time"](whole, self.column.meaning).isoformat() if is_time else str(whole)
        return whole if scale is None else DECODE["decimal"](whole, self.column.meaning)


def _bars(of: Numbers, scale: float) -> Bars:
    if of.low is None or of.high is None:
        return Bars((), ())
    edges = edges_of(of.low, of.high)
    return Bars(of.bars, tuple(edges if scale == 1 else [edge / scale for edge in edges]))


def _flat(data: Data) -> Array:
    """All values of rows, which may begin later in what lies in memory."""
    if data.offsets is None:
        return data.values
    return data.values[int(data.offsets[0]) : int(data.offsets[-1])]


class _Place(NamedTuple):
    """Where the values of a column are.

    Attributes:
        number: of the column.
        there: the number of the column of bools that say where values are None.
        is_apart: those bools are of lists around it, so there is nothing where they are False.
        lengths: the number of the column of the lengths of texts in lists.
        in_list: whether it is in a list.
    """

    number: int
    there: int | None
    is_apart: bool
    lengths: int | None
    in_list: bool


def _places(
    node: Node, first: int = 0, depth: int = 0, there: tuple[int | None, int] = (None, 0)
) -> Iterator[_Place]:
    """The columns of a node that have values of rows; those that say what is None have not."""
    if node.kind in ("leaf", "texts"):
        lengths = first + 1 if node.kind == "texts" else None
        yield _Place(first, there[0], 0 < there[1] < depth, lengths, lengths is not None or depth > 0)
        return
    if node.kind == "nullable":
        child = node.children[0]
        yield from _places(child, first, depth, (first + child.num_leaves, depth))
        return
    for nth, child in enumerate(node.children):
        yield from _places(child, first, depth + (node.kind == "varying" and nth == 0), there)
        first += child.num_leaves


class TableStatistics:
    """Statistics of all columns of rows of a schema.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> block = block_of([{"x": 1, "name": "a"}, {"x": 3, "name": "b"}])
        >>> parts = [TableStatistics(block.schema) for _ in range(2)]
        >>> for number, part in enumerate(parts):
        ...     part.add(block.slice(number, number + 1), start=number)
        >>> parts[1].merge(parts[0])
        >>> parts[1].known()["x"].mean, list(parts[1].to_json())
        (2.0, ['x', 'name'])
    """

    def __init__(self, schema: Schema) -> None:
        self.rows = 0
        self._places = list(_places(schema.tree))
        columns = [(schema.columns[place.number], place.in_list) for place in self._places]
        self.columns = {column.name: Statistics(column, in_list) for column, in_list in columns}

    def add(self, block: Block, start: int | None = None) -> None:
        """Adds the rows of a block.

        Args:
            block: rows of the schema.
            start: the number of the first one; how many there were so far, by default.
        """
        start = self.rows if start is None else start
        for place, statistics in zip(self._places, self.columns.values(), strict=True):
            there = None if place.there is None else block.data[place.there]
            lengths = None if place.lengths is None else block.data[place.lengths]
            if place.is_apart and there is not None:
                flags, there = _flat(there), None
                statistics.nulls += len(flags) - int(np.count_nonzero(flags))
            statistics.add(block.data[place.number], start, there, lengths)
        self.rows += block.num_rows

    def merge(self, other: TableStatistics) -> None:
        """Adds what is known of other rows of the same schema.

        Raises:
            ValueError: their schema is another one.
        """
        if (mine := list(self.columns)) != (theirs := list(other.columns)):
            raise ValueError(f"statistics of {theirs!r:.200} are not of {mine!r:.200}")
        for name, statistics in self.columns.items():
            statistics.merge(other.columns[name])
        self.rows += other.rows

    def to_json(self) -> Json:
        """Plain data by name of the column, all that `merge` needs; for the note of a part."""
        return {name: statistics.to_json() for name, statistics in self.columns.items()}

    def published(self) -> Json:
        """Plain data by name of the column, at most 4 KB of each; for a manifest."""
        return {name: statistics.published() for name, statistics in self.columns.items()}

    @staticmethod
    def from_json(data: Json, schema: Schema, rows: int) -> TableStatistics:
        """The one that `to_json` or `published` described, of so many rows of a schema.

        Raises:
            ValueError, TypeError, KeyError: it is not that.
        """
        found = TableStatistics(schema)
        for name, one in found.columns.items():
            found.columns[name] = read = Statistics.from_json(data[name], one.column, one._in_list)
            if read.rows != rows:
                raise ValueError(f"they are not of {rows} rows")
        found.rows = rows
        return found

    def known(self, rows: int | None = None) -> TableStats:
        """Everything known, to be looked at; `rows` are those of the dataset, if these are some of them."""
        columns = {name: statistics.known() for name, statistics in self.columns.items()}
        return TableStats(columns, self.rows if rows is None else rows, self.rows)
