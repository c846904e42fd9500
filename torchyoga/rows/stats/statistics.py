"""Columns of blocks -> what is known of each, part by part, merged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...process.lazy import later
from ..column import Column
from ..leaf import is_ragged_kind
from ..node import Node
from ..schema import Schema
from ..types import Array, Ints, Json
from .column_stats import Bars, ColumnStats, LengthStats, TableStats, clock
from .histogram import Histogram, checked_counts
from .moments import Moments
from .tally import MOST_TEXT, MOST_TOP, Kind, Tally

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .. import pieces
    from ..block import Block
    from ..data import Data
else:
    np, torch, pieces = later("numpy"), later("torch"), later("torchyoga.rows.pieces")

__all__ = ["MOST_BYTES", "Statistics", "TableStatistics"]

MOST_BYTES = 4096  # of a column's statistics in a manifest
_WIDE = 64  # numbers of a row, beyond which some are sampled; see `moments`
_ALL_NUMBERS, _ALL_ROWS = 2**16, 1024  # from where on wide rows are sampled; rows of different lengths
_EVERY = 64  # row
# Of which multiples numbers are sampled, by their bytes; they lie in other cache lines.
_PRIMES = {1: 17, 2: 11}
_COUNTS = ("rows", "nulls", "others")
_NOT_A_TIME = -(2**63)
Family: TypeAlias = Literal["none", "text", "bool", "int", "float", "complex", "time", "other"]


def _family(column: Column) -> Family:
    if column.kind == "none":
        return "none"
    if is_ragged_kind(column.kind):
        return "text"
    kinds: dict[str, Family] = {
        **{"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "m": "time", "M": "time"}
    }
    return kinds.get(column.letter, "other")


class Statistics:
    """Statistics of the values of a column, of any rows of it.

    Args:
        column: whose values they are.
        in_list: whether it is in a list of varying length.

    Attributes:
        rows: how many were added; `nulls`: how many of them are None; in a list, items.
        moments: of numbers; None for text and such.
        lengths: of rows that differ in length, and of text.
        tally: how often values come; None for arrays, lists and times.
        others: values that are nothing of that, such as arrays of text.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> block = block_of([1, 2, 4])
        >>> one, other = Statistics(block.schema.columns[0]), Statistics(block.schema.columns[0])
        >>> one.add(block.data[0])
        >>> other.merge(one)
        >>> print(other.known())
        value: 3 rows, 0 null, 3 values
          min 1, max 4
          mean 2.333, std 1.247, 0 zeros
          3 different: 1 (1), 2 (1), 4 (1)
    """

    def __init__(self, column: Column, in_list: bool = False) -> None:
        self.column = column
        self.family = family = _family(column)
        self.rows = self.nulls = self.others = 0
        is_text = family == "text"
        is_int = family in ("bool", "int", "time")
        self.moments = Moments(is_int) if is_int or family in ("float", "complex") else None
        self.lengths = Moments(is_int=True) if column.is_ragged else None
        text: Kind = "str" if column.kind in ("str", "numpy.str") else "bytes"
        kinds: dict[Family, Kind] = {"text": text, "bool": "bool", "int": "int", "float": "float"}
        is_single = is_text or (not in_list and column.shape == ())
        self.tally = Tally(kinds[family]) if is_single and family in kinds else None

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
        valid = None
        if there is not None:
            flags: Array = np.asarray(_flat(there), bool)
            missing = len(flags) - int(np.count_nonzero(flags))
            self.nulls += missing
            if missing and (lengths is None or there.offsets is not None):  # a list that is None has no texts
                valid = flags
        if self.family == "none":
            self.nulls += num_rows
        elif self.family == "text":
            self._add_texts(data, valid, lengths)
        elif data.offsets is None:
            self._add_fixed(data.values, start, valid)
        else:
            self._add_ragged(data, start, valid, there is not None and there.offsets is not None)

    def _add_texts(self, data: Data, valid: Array | None, lengths: Data | None) -> None:
        assert self.tally is not None
        assert self.lengths is not None
        sizes = np.diff(data.part("offsets")) if lengths is None else _flat(lengths)
        kept = sizes if valid is None else sizes[valid]
        self.lengths.add(np.ascontiguousarray(kept))
        if self.tally.counts is None or not len(kept):
            return
        if int(kept.max()) > MOST_TEXT:
            self.tally.give_up()
            return
        if lengths is None:
            texts = data.texts()
        else:
            ends = itertools.accumulate(sizes.tolist(), initial=0)
            run = np.ascontiguousarray(_flat(data)).tobytes()
            texts = [run[first:last] for first, last in itertools.pairwise(ends)]
        self.tally.add_texts(texts if valid is None else list(itertools.compress(texts, valid.tolist())))

    def _add_fixed(self, values: Array, start: int, valid: Array | None) -> None:
        rows: Ints | None = None
        if valid is not None:
            rows = np.flatnonzero(valid)
            values = values[rows]
        size = prod(values.shape[1:])
        if not size or not len(values):
            return
        if self.moments is None:
            self.others += values.size
            return
        numbers = self._numbers(values).reshape(len(values), size)
        if self.tally is not None:
            self.tally.add_numbers(numbers.reshape(-1))
        sample = None
        whole = _ALL_NUMBERS // size
        if size > _WIDE and start + len(values) > whole:
            rows = np.arange(len(values)) if rows is None else rows
            rows = rows + start
            first = int(np.searchsorted(rows, whole))
            some = np.flatnonzero(rows[first:] % _EVERY == 0) + first
            step = _PRIMES.get(values.itemsize, 5)
            sample = np.concatenate([numbers[:first].reshape(-1), numbers[some, ::step].reshape(-1)])
        self._add_numbers(numbers, sample)

    def _add_ragged(self, data: Data, start: int, valid: Array | None, of_items: bool) -> None:
        assert self.lengths is not None
        offsets = data.part("offsets")
        sizes = np.diff(offsets)
        kept = sizes if valid is None or of_items else sizes[valid]
        self.lengths.add(np.ascontiguousarray(kept))
        values = _flat(data)
        if valid is not None and of_items:
            if len(valid) != len(values):  # items are arrays, of as many numbers within a row
                assert data.shapes is not None
                each = np.where(data.shapes[:, 1:] < 0, 1, data.shapes[:, 1:]).prod(axis=1)
                valid = np.repeat(valid, np.repeat(each, data.shapes[:, 0]))
            values = values[valid]
        if self.moments is None:
            self.others += len(values)
            return
        numbers = self._numbers(values)
        sample = None
        # By their numbers alone, so that the same rows are sampled however they are cut.
        if not of_items and start + len(sizes) > _ALL_ROWS:
            rows = np.arange(start, start + len(sizes))
            some = np.flatnonzero((rows < _ALL_ROWS) | (rows % _EVERY == 0))
            firsts = (offsets - offsets[0])[some]
            sample = pieces.taken_runs(numbers, firsts, firsts + sizes[some]) if len(some) else numbers[:0]
        self._add_numbers(numbers, sample)

    def _numbers(self, values: Array) -> Array:
        """Values as ints or floats that NumPy can calculate with."""
        if self.family == "bool":
            return values.view(np.uint8)
        if self.family == "time":
            return values.astype(values.dtype.newbyteorder("="), copy=False).view(np.int64)
        if self.family == "float" and values.dtype.kind == "u":
            bits = torch.from_numpy(np.ascontiguousarray(values))
            return bits.view(getattr(torch, self.column.dtype)).float().numpy()
        if self.family == "complex":
            with np.errstate(all="ignore"):
                return np.abs(values.astype(np.complex128))
        if values.dtype.kind == "f" and values.itemsize > 8:  # beyond 64 bits
            return values.astype(np.float64)
        return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))

    def _add_numbers(self, numbers: Array, sample: Array | None) -> None:
        assert self.moments is not None
        if self.family == "time":
            missing = numbers.size - int(np.count_nonzero(numbers != _NOT_A_TIME))
            if missing:
                self.moments.count += missing
                self.moments.nan += missing
                numbers = numbers[numbers != _NOT_A_TIME]
                sample = None if sample is None else sample[sample != _NOT_A_TIME]
        self.moments.add(numbers, sample)

    def merge(self, other: Statistics) -> None:
        """Adds what is known of other rows of the same column.

        Raises:
            ValueError: it is of a column of another type.
        """
        if self.family != other.family or self.column.is_ragged != other.column.is_ragged:
            raise ValueError(f"statistics of {other.column} are not those of {self.column}")
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("moments", "lengths", "tally"):
            own, given = getattr(self, name), getattr(other, name)
            if own is not None and given is not None:
                own.merge(given)

    def to_json(self, most: int | None = None) -> Json:
        """Plain data, all that `merge` needs; with only the `most` frequent values, if that is given."""
        found: Json = {name: getattr(self, name) for name in _COUNTS if name == "rows" or getattr(self, name)}
        if self.moments is not None:
            found["numbers"] = self.moments.to_json()
        if self.lengths is not None:
            found["lengths"] = self.lengths.to_json()
        if self.tally is not None:
            found["top"] = self.tally.to_json(most)
        return found

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

        Raises:
            ValueError, TypeError, KeyError: it is not that of such a column, or contradicts itself.
        """
        found = Statistics(column, in_list)
        found.rows, found.nulls, found.others = checked_counts([data.get(name, 0) for name in _COUNTS])
        if found.moments is not None:
            found.moments = Moments.from_json(data["numbers"], found.moments.is_int)
        if found.lengths is not None:
            found.lengths = Moments.from_json(data["lengths"], is_int=True)
            if (found.lengths.low or 0) < 0 or found.lengths.nan:
                raise ValueError("a length is negative")
        if found.tally is not None:
            total = found.count - (found.moments.nan if found.moments is not None else 0)
            found.tally = Tally.from_json(data["top"], found.tally.kind, total)
        if not in_list and (found.nulls > found.rows or found.count != found._expected()):
            raise ValueError(f"{found.count} values are not those of {found.rows} rows")
        return found

    def _expected(self) -> int:
        """How many values the rows have, as the column's shape and the lengths say."""
        there = self.rows - self.nulls
        if self.lengths is None:
            return there * prod(self.column.shape or ()) if self.family != "none" else 0
        if self.lengths.count != there:
            raise ValueError(f"{self.lengths.count} lengths are not those of {there} rows")
        return there if self.family == "text" else self.lengths.total

    @property
    def count(self) -> int:
        """How many values there are."""
        if self.family == "text":
            assert self.lengths is not None
            return self.lengths.count
        return self.others if self.moments is None else self.moments.count

    def known(self) -> ColumnStats:
        """Everything known, to be looked at."""
        column, moments, lengths, tally = self.column, self.moments, self.lengths, self.tally
        found: dict[str, Any] = {}
        if moments is not None:
            scale = 10 ** (column.meaning.scale or 0)
            is_plain = column.kind != "time" and self.family != "time"
            found = {
                **{name: getattr(moments, name) for name in ("nan", "inf", "minus_inf", "zeros", "sampled")},
                "min": self._shown(moments.low),
                "max": self._shown(moments.high),
                "mean": moments.average / scale if is_plain and moments.average is not None else None,
                "std": moments.deviation / scale if is_plain and moments.deviation is not None else None,
                "histogram": _bars(moments.histogram, scale),
            }
            if moments.low is not None and moments.high is not None:
                found["source"] = moments.histogram, moments.low, moments.high, scale
        if lengths is not None:
            found["lengths"] = LengthStats(
                count=lengths.count,
                total=lengths.total,
                min=None if lengths.low is None else int(lengths.low),
                max=None if lengths.high is None else int(lengths.high),
                mean=lengths.average,
                std=lengths.deviation,
                empty=lengths.zeros,
                histogram=_bars(lengths.histogram, 1),
            )
        if tally is not None and tally.counts is not None:
            found["top"] = tuple((self._value(value), count) for value, count in tally.top(MOST_TOP))
            found["distinct"] = tally.distinct
        return ColumnStats(column.name, self.rows, self.nulls, self.count, **found)

    def _value(self, value: Any) -> Any:
        """A value that was counted, as rows have it."""
        words = self.column.meaning.words
        if self.family == "text":
            assert self.tally is not None
            return value.decode("utf-8", "surrogatepass") if self.tally.kind == "str" else value
        if self.family == "bool":
            return bool(value)
        if words is not None and 0 <= value < len(words):
            return words[value]
        return self._shown(value)

    def _shown(self, value: float | None) -> Any:
        """A number of the column as rows have it; a time as ISO text."""
        if value is None or self.family in ("float", "complex"):
            return value
        if self.family == "time":
            time = np.int64(value).view(self.column.storage.newbyteorder("="))
            return str(np.datetime_as_string(time)) if self.column.storage.kind == "M" else str(time)
        if self.column.kind == "time":
            return clock(int(value))
        scale, whole = self.column.meaning.scale, int(value)
        # Not by division, which rounds as the thread's context says.
        return whole if scale is None else Decimal((int(value < 0), tuple(map(int, str(abs(whole)))), -scale))


def _bars(histogram: Histogram, scale: float) -> Bars:
    edges = histogram.edges if histogram.counts else []
    return Bars(histogram.counts, tuple(edge / scale if scale != 1 else edge for edge in edges))


def _flat(data: Data) -> Array:
    """All values of rows, which may begin later in what lies in memory."""
    if data.offsets is None:
        return data.values
    return data.values[int(data.offsets[0]) : int(data.offsets[-1])]


@dataclass(frozen=True)
class _ColumnPlace:
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
    node: Node, first: int = 0, depth: int = 0, there: tuple[int, int] | None = None
) -> Iterator[_ColumnPlace]:
    """The columns of a node that have values of rows; those that say what is None have not."""
    number, at = there if there is not None else (None, 0)
    is_apart = 0 < at < depth
    if node.kind == "leaf":
        yield _ColumnPlace(first, number, is_apart, None, depth > 0)
        return
    if node.kind == "texts":
        yield _ColumnPlace(first, number, is_apart, first + 1, True)
        return
    if node.kind == "nullable":
        child = node.children[0]
        yield from _places(child, first, depth, (first + child.num_leaves, depth))
        return
    for nth, child in enumerate(node.children):
        is_inside = node.kind == "varying" and nth == 0
        yield from _places(child, first, depth + is_inside, there)
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
        self.schema = schema
        self.rows = 0
        self._places = list(_places(schema.tree))
        self.columns = {
            schema.columns[place.number].name: Statistics(schema.columns[place.number], place.in_list)
            for place in self._places
        }

    def add(self, block: Block, start: int | None = None) -> None:
        """Adds the rows of a block.

        Args:
            block: rows of the schema.
            start: the number of the first one; how many there were so far, by default.
        """
        start = self.rows if start is None else start
        for place, statistics in zip(self._places, self.columns.values(), strict=True):
            data = block.data[place.number]
            there = None if place.there is None else block.data[place.there]
            lengths = None if place.lengths is None else block.data[place.lengths]
            if place.is_apart and there is not None:
                flags = _flat(there)
                statistics.nulls += len(flags) - int(np.count_nonzero(flags))
                there = None
            statistics.add(data, start, there, lengths)
        self.rows += block.num_rows

    def merge(self, other: TableStatistics) -> None:
        """Adds what is known of other rows of the same schema.

        Raises:
            ValueError: their schema is another one.
        """
        if list(self.columns) != list(other.columns):
            raise ValueError(
                f"statistics of {list(other.columns)!r:.200} are not of {list(self.columns)!r:.200}"
            )
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
            ValueError, TypeError, KeyError: it is not that, or contradicts itself.
        """
        found = TableStatistics(schema)
        for place in found._places:
            column = schema.columns[place.number]
            found.columns[column.name] = Statistics.from_json(data[column.name], column, place.in_list)
        if any(statistics.rows != rows for statistics in found.columns.values()):
            raise ValueError(f"they are not of {rows} rows")
        found.rows = rows
        return found

    def known(self, rows: int | None = None) -> TableStats:
        """Everything known, to be looked at; `rows` are those of the dataset, if these are some of them."""
        columns = {name: statistics.known() for name, statistics in self.columns.items()}
        return TableStats(columns, self.rows if rows is None else rows, self.rows)
