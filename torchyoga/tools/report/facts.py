"""A dataset -> what pages say of its columns, and a few of its rows as texts and thumbnails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...errors import SchemaError
from ...process.messages import count_of, escaped, number, share
from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...reading.version_ref import VersionRef
from ...rows.statistics import TITLES, Bars, ColumnStats, TableStats, cells_of
from ...rows.types import Ints
from ..cells.flat import Values, bytes_of, flat
from ..cells.picture import marks_of, url_of
from ..cells.text import classes_of, is_label, named_class, plain_name, shown

_MOST_ROWS, _MOST_BYTES = 10_000, 2**28  # read for statistics that no version keeps, and bytes read for rows
_UNKNOWN_ROWS = 1_000  # of a size that is not known
_MOST_FOUND = 12  # of what stands out
_IMBALANCE = 10
_COUNTED = 8  # values of a column that have a bar each
_AT_ONCE = 8  # rows
_MOST_FILES = 4  # of a store, from which rows are read
_MOST_PICTURES = 700_000  # bytes of all thumbnails


class Bar(NamedTuple):
    """A bar of a histogram, in a box of 160 x 36.

    Attributes:
        x: its left side; `wide` and `high`: its size.
        low: the value where it begins; `top`: where it ends; `num_values`: how many are in it.
    """

    x: float
    wide: float
    high: float
    low: float
    top: float
    num_values: int


@dataclass(frozen=True)
class Histogram:
    """A picture of how values spread.

    Attributes:
        bars: those that are not empty, each high enough to be seen.
        low: the value at its left end; `high`: at its right end.
        said: the same in words.
    """

    bars: tuple[Bar, ...]
    low: str
    high: str
    said: str


@dataclass(frozen=True)
class ColumnCard:
    """The card of a column on a page; all of it is text.

    Attributes:
        name: of the column; `kind`: what its values are.
        histogram: of its values; None for text. `lengths`: of its lengths; None if all rows are alike.
        numbers: by title, such as "mean"; empty where there is none.
        often: the value that comes most often, and how often.
        counts: all values of classes, texts and bools with at most eight of them: name, share, and the value.
    """

    name: str
    kind: str = ""
    histogram: Histogram | None = None
    lengths: Histogram | None = None
    numbers: dict[str, str] = field(default_factory=dict)
    often: str = ""
    counts: tuple[tuple[str, float, object], ...] = ()

    def facts(self, is_number: bool) -> str:
        """Its missing values and its most frequent one, in words; a histogram of numbers shows the latter."""
        counts = ((self.numbers.get(title, ""), title) for title in ("nulls", "NaN", "inf"))
        missing = [f"{count} {title}" for count, title in counts if count not in ("0", "")]
        if self.counts or not self.often or (is_number and self.histogram is not None):
            return " · ".join(missing)
        distinct = self.numbers["distinct"]
        often = f"{distinct} distinct, most {self.often}" if distinct else self.often
        return " · ".join([often, *missing])


@dataclass(frozen=True)
class Columns:
    """The facts about all columns.

    Attributes:
        cards: of those shown; `total`: how many there are.
        found: what stands out, in words.
        source: where the statistics are from, in words.
    """

    cards: tuple[ColumnCard, ...]
    total: int
    found: tuple[str, ...]
    source: str


def first_columns(ref: DataRef, most: int) -> tuple[DataRef, int]:
    """A dataset with at most so many columns, and how many it has."""
    schema = ref.schema
    if schema is None:
        return ref, 0
    names = [column.name for column in schema.columns if not column.name.endswith("}")]
    return (ref if len(names) <= most else ref.columns(names[:most])), len(names)


def columns_of(ref: DataRef, total: int, seed: int, most_rows: int = _MOST_ROWS) -> Columns:
    """The facts about the columns of a dataset.

    Args:
        ref: the dataset; if it keeps no statistics, they are counted in some of its rows.
        total: how many columns it has, if `ref` has some of them only.
        seed: of the rows that are read.
        most_rows: that are read, where no statistics are kept.
    """
    schema = ref.schema
    columns = () if schema is None else schema.shown
    kinds = {column.column: f"{column.type} {column.shape}".strip() for column in columns}
    if not len(ref):
        cards = [ColumnCard(_name(name), kind) for name, kind in kinds.items()]
        return Columns(tuple(cards), total or len(cards), (), "there are no rows")
    is_kept = keeps_stats(ref)
    most = max(1, min(most_rows, _MOST_BYTES // ref._row_bytes)) if ref._row_bytes else _UNKNOWN_ROWS
    is_far = is_remote(ref) and not is_kept
    try:
        if is_far:  # rows side by side, which lie in few files
            stats = ref[: min(most, _UNKNOWN_ROWS)].stats(progress=False)
        else:
            stats = ref.stats(None if is_kept else most, seed, progress=False)
    except SchemaError as error:
        return Columns((), total, (), f"statistics cannot be made: {escaped(str(error))[:400]}")
    known = classes_of(schema, ref.info)
    classes = {name: known.get(plain_name(name), ()) for name in stats}
    cards = [_card(one, kinds.get(one.name, ""), classes[one.name]) for one in stats.values()]
    source = _source(stats, is_kept)
    if is_far and stats.rows < len(ref):
        source = f"Statistics of the first {count_of(stats.rows, 'row')}, so that little is downloaded."
    return Columns(tuple(cards), max(total, len(cards)), _standing_out(stats, classes), source)


def _source(stats: TableStats, is_kept: bool) -> str:
    if stats.rows_read < stats.rows and not is_kept:
        return (
            f"Statistics of {stats.rows_read:,} rows, drawn at random from {stats.rows:,}: this dataset "
            "keeps none, and reading all of it would take long."
        )
    how = "made when the version was built" if is_kept else "counted for this page"
    return f"Statistics of all {count_of(stats.rows, 'row')}, {how}."


def _card(stats: ColumnStats, kind: str, classes: Sequence[str]) -> ColumnCard:
    is_number = stats.mean is not None
    titled = zip(TITLES, cells_of(stats, stats.name, number, _bound), strict=True)
    of_inf = number(stats.inf) if is_number or stats.inf else ""
    numbers = {**dict(titled), "inf": of_inf, "distinct": number(stats.distinct)}
    name, lengths, top = _name(stats.name), stats.lengths, stats.top or ()
    often, drawn_lengths = "", None
    if top and (top[0][1] > 1 or len(top) == 1):
        often = f"{_class_name(top[0][0], classes)} ({share(top[0][1], stats.count)})"
    if lengths is not None and lengths.count and lengths.min != lengths.max:  # else it says nothing
        of = f"lengths of {name}: {lengths.count:,} rows"
        drawn_lengths = _histogram(lengths.histogram, of, lengths.min, lengths.max)
    return ColumnCard(
        name,
        kind,
        _histogram(stats.histogram, f"{name}: {stats.sampled:,} values", stats.min, stats.max),
        drawn_lengths,
        numbers,
        often,
        _counts(stats, top, classes),
    )


def _counts(
    stats: ColumnStats, top: Sequence[tuple[object, int]], classes: Sequence[str]
) -> tuple[tuple[str, float, object], ...]:
    is_counted = 2 <= len(top) <= _COUNTED and len(top) == stats.distinct
    if not is_counted or not (classes or all(isinstance(value, (str, bool)) for value, _ in top)):
        return ()
    return tuple((named_class(classes, value) or _value(value), n / stats.count, value) for value, n in top)


def _name(name: str) -> str:
    """The name of a column as pages show it."""
    return escaped(plain_name(name))


def _value(value: object) -> str:
    if isinstance(value, (str, bytes)):
        return shown(value, 40).strip() or "(empty)"
    return number(value)


def _bound(value: object) -> str:
    """The smallest or largest value of a column; times without a fraction that is 0."""
    return shown(value.removesuffix(".000000"), 26) if isinstance(value, str) else number(value)


def _histogram(found: Bars | None, of_what: str, low: object, high: object) -> Histogram | None:
    if found is None or not any(found.counts):
        return None
    most, step = max(found.counts), 160 / len(found.counts)
    wide = step * 0.9 if step > 2 else step
    between = zip(found.edges, found.edges[1:], found.counts, strict=False)
    bars = tuple(
        Bar(place * step, wide, max(1.0, 36 * count / most), begin, end, count)
        for place, (begin, end, count) in enumerate(between)
        if count
    )
    largest = max(bars, key=lambda bar: bar.num_values)
    said = (
        f"Histogram of {of_what}, from {_bound(low)} to {_bound(high)}; most, {most:,}, lie "
        f"between {number(float(largest.low))} and {number(float(largest.top))}."
    )
    return Histogram(bars, _bound(low), _bound(high), said)


def _class_name(value: object, classes: Sequence[str]) -> str:
    name = named_class(classes, value)
    return f"{value} {name}" if name else _value(value)


def _standing_out(stats: TableStats, classes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    found = []
    for one in stats.values():
        name = _name(one.name)
        if one.nulls:
            found.append(
                f"{name}: {one.nulls:,} values are None ({share(one.nulls, one.nulls + one.count)})."
            )
        if one.nan:
            found.append(f"{name}: {one.nan:,} values are NaN ({share(one.nan, one.count)}).")
        if one.inf:
            found.append(f"{name}: {one.inf:,} values are infinite.")
        is_constant = one.count > 1 and one.min is not None and one.min == one.max
        if (is_constant and not one.nan) or (one.distinct == 1 and one.count > 1):
            found.append(f"{name}: all values are the same, {_value(one.top[0][0] if one.top else one.min)}.")
        if one.lengths is not None and one.lengths.empty:
            found.append(f"{name}: {one.lengths.empty:,} rows are empty.")
        is_counted = is_label(one.name) and one.top and len(one.top) == one.distinct
        if one.top and is_counted and one.top[0][1] > _IMBALANCE * one.top[-1][1]:
            first, last = (_class_name(one.top[place][0], classes[one.name]) for place in (0, -1))
            times = one.top[0][1] / one.top[-1][1]
            found.append(f"{name}: {first} comes {times:,.0f} times as often as {last}.")
    if len(found) > _MOST_FOUND:
        return (*found[:_MOST_FOUND], f"And {len(found) - _MOST_FOUND:,} more such findings.")
    return tuple(found)


@dataclass
class Cell:
    """A value of a row.

    Attributes:
        column: its name; `text`: what it is.
        picture: the URL of a thumbnail, which holds it; None if it is not an image.
        is_number: texts of numbers stand at the right.
        sound: its file, if a browser plays it.
    """

    column: str
    text: str
    picture: str | None = None
    is_number: bool = False
    sound: str | None = None


def cell_of(name: str, value: object, classes: Mapping[str, Sequence[str]], most: int) -> Cell:
    """The cell of a value, without a picture; its text has so many characters, and the name of its class."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    text, named = shown(value, most), named_class(classes.get(name, ()), value)
    return Cell(escaped(name), f"{text} {named}" if named else text, None, is_number and not named)


class RowSample(NamedTuple):
    """Some rows.

    Attributes:
        rows: the number of each, in ascending order, and its cells; `columns`: the names of those shown.
        notes: what is not shown, and why.
    """

    rows: Sequence[tuple[int, Sequence[Cell]]] = ()
    columns: Sequence[str] = ()
    notes: Sequence[str] = ()


def keeps_stats(ref: DataRef) -> bool:
    """True if statistics were kept with the rows, so that nothing is read for them."""
    return isinstance(ref, VersionRef) and bool(ref.manifest.stats)


def is_remote(ref: object) -> bool:
    """True if files may have to be downloaded before rows can be read."""
    if isinstance(ref, VersionRef):
        return ref.location.is_remote
    below = getattr(ref, "sources", None) or [getattr(ref, "whole", None)]
    return any(is_remote(one) for one in below if isinstance(one, DataRef))


def read_rows(ref: DataRef, numbers: Sequence[int], seed: int, most: int) -> Iterator[tuple[int, Values]]:
    """The numbers and values of rows, a few read at once, until they are more than so many bytes."""
    source, read = in_epoch(ref, 0, seed), 0
    step = max(1, min(_AT_ONCE, most // 8 // max(1, ref._row_bytes)))
    for start in range(0, len(numbers), step):
        if read > most:
            return
        part = numbers[start : start + step]
        for row_number, row in zip(part, source.take(np.array(part, np.int64)), strict=True):
            found = flat(row)
            read += sum(bytes_of(value) for _, value in found)
            yield row_number, found


def sample_of(ref: DataRef, seed: int, most: int = 64, most_columns: int = 40, text: int = 80) -> RowSample:
    """Some rows of a dataset.

    Args:
        ref: the dataset.
        seed: of the draw, and of rows that are made with random numbers.
        most: rows; fewer if they are large.
        most_columns: columns that are shown.
        text: characters of a cell.
    """
    if not len(ref):
        return RowSample()
    notes = []
    wanted = most if not ref._row_bytes else max(1, min(most, _MOST_BYTES // ref._row_bytes))
    drawn = drawn_numbers(ref, min(wanted, len(ref)), seed).tolist()
    classes = classes_of(ref.schema, ref.info)
    rows: list[tuple[int, list[Cell]]] = []
    names: tuple[str, ...] = ()
    pictures = total = left_out = 0
    missing = ""  # what thumbnails need
    for row_number, found in read_rows(ref, drawn, seed, _MOST_BYTES):
        total = max(total, len(found))
        cells, marks = [], marks_of(found, classes)
        for name, value in found[:most_columns]:
            cells.append(cell_of(name, value, classes, text))
            try:
                picture = url_of(value, name, marks) or ""
            except ImportError as error:
                picture, missing = "", str(error)
            if pictures + len(picture) > _MOST_PICTURES:
                left_out += 1
            elif picture:
                cells[-1].picture, pictures = picture, pictures + len(picture)
        rows.append((row_number, cells))
        names = tuple(dict.fromkeys([*names, *(cell.column for cell in cells)]))[:most_columns]
    if len(rows) < min(most, len(ref)):
        notes.append(f"{count_of(len(rows), 'row')} and not {min(most, len(ref))}, because they are large.")
    if total > most_columns:
        notes.append(f"The first {most_columns} of {total:,} columns.")
    if missing:
        notes.append(f"Images are not shown: {missing}.")
    if left_out:
        notes.append(f"{count_of(left_out, 'image')} without a thumbnail, to keep the page small.")
    if is_remote(ref):
        notes.append("They are from few files, so that little is downloaded.")
    return RowSample(rows, names, notes)


def drawn_numbers(ref: DataRef, count: int, seed: int) -> Ints:
    """The numbers of rows that are drawn at random, in ascending order; of few files if these are remote."""
    random = np.random.default_rng(seed)
    if is_remote(ref):  # rows side by side, which lie in few files
        runs = min(_MOST_FILES, count)
        starts = np.sort(random.choice(len(ref) // runs, 1)) + np.arange(runs) * (len(ref) // runs)
        near = np.unique(starts[:, None] + np.arange(count // runs))
        return near[near < len(ref)].astype(np.int64)
    return np.sort(random.choice(len(ref), count, replace=False, shuffle=False)).astype(np.int64)
