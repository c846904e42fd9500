"""Several rows of another DataRef as one: windows of a time series, states and actions of an episode.

A window has an anchor, the row from which the offsets of each column count. The schema of rows says what its
columns are; groups, gaps and the stride say where windows lie.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple, NoReturn, SupportsIndex, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.messages import warn_user
from ..process.numbers import as_int, distinct
from ..process.seeding import seeds_within
from ..reading.contract import known_schema, taken_of
from ..reading.dataref import DataRef
from ..reading.readahead import Prefetch
from ..rows.block import Block, Data, Rows, bounds_of, taken_runs
from ..rows.collector import block_of
from ..rows.column import Column, stacked
from ..rows.node import WRAPPERS, Node, outermost, path_name
from ..rows.schema import Projection, Schema, schema_under
from ..rows.types import Array, Ints, Row, Seeds
from ..versions.location import Progress
from .chosen import RepeatedRef, SelectedRef
from .joined import Prefetches
from .mix import warn_if_arranged
from .over import Over, Rebuilt, RowView
from .scan import has_none, single_values

Offsets: TypeAlias = tuple[int, ...]

_MOST_OFFSETS = 2**24  # of a window
_FURTHEST = 2**61  # so that no row number and offset exceed 64 bits together
_MASK = "is_pad"


class WindowSource(NamedTuple):
    """Where a column of a window comes from.

    Attributes:
        column: the number of a column of the other DataRef; -1 for a mask, which is True at the offsets that
            lead out of a group.
        offsets: the rows that are stacked, counted from the anchor; None for the anchor's value as it is.
    """

    column: int
    offsets: Offsets | None


@dataclass(frozen=True)
class Stacking:
    """The parts of the rows of windows.

    Attributes:
        schema: of such a row.
        sources: where each of its columns comes from.
        low: the lowest of all offsets, or 0.
        high: the highest, or 0.

    Example:
        >>> schema = Schema.of({"state": np.zeros(3), "action": 1.5})
        >>> print(Stacking.of(schema, {"action": range(8)}, static=["state"], masks=True).schema)
        column         type             shape
        state          ndarray float64  3
        action         ndarray float64  8
        action_is_pad  ndarray bool     8
    """

    schema: Schema
    sources: tuple[WindowSource, ...]
    low: int
    high: int

    @staticmethod
    def of(
        schema: Schema,
        size_or_offsets: SupportsIndex | Mapping[str, Sequence[int]],
        static: Sequence[str],
        masks: bool,
    ) -> Stacking:
        """The rows of `DataRef.windows`, over rows of a schema; see there."""
        if isinstance(static, str):
            raise TypeError(f"static columns are named by a list, as in static=[{static!r}]")
        ends = [0]
        once = set(Projection.of(schema, static).columns) if len(static) else set()
        if isinstance(size_or_offsets, Mapping):
            offsets_of = _by_column(schema, size_or_offsets, once)
            kept = Projection.of(schema, [*size_or_offsets, *static])
        else:
            size = tuple(range(_size(size_or_offsets)))
            kept = Projection(schema, tuple(range(len(schema.columns))))
            offsets_of = {number: size for number in kept.columns if number not in once}
            ends.append(size[-1])  # even if all columns are static
        for offsets in offsets_of.values():
            ends += [min(offsets), max(offsets)]
        _refuse_wrapped(kept, offsets_of)
        found = _stacked(
            (WindowSource(number, offsets_of.get(number)), column)
            for number, column in zip(kept.columns, kept.schema.columns, strict=True)
        )
        tree = kept.schema.tree
        if masks and isinstance(size_or_offsets, Mapping):
            columns, found = iter(found), []
            tree = _with_masks(tree, (), columns, found)
        elif masks:
            tree = _with_mask(tree)
            found.append(_mask(size))
        sources = tuple(source for source, _ in found)
        return Stacking(schema_under(tree, (one for _, one in found)), sources, min(ends), max(ends))

    def projected(self, of: Projection) -> Stacking:
        """Some columns of these rows; the windows lie where they did."""
        return replace(self, schema=of.schema, sources=tuple(self.sources[number] for number in of.columns))

    @property
    def encoded(self) -> list[str]:
        """Columns that can be stacked once they are decoded."""
        return [
            column.name
            for (_, offsets), column in zip(self.sources, self.schema.columns, strict=True)
            if offsets is not None and column.kind == "bytes"
        ]

    def over(self, before: Schema, after: Schema) -> Stacking:
        """The same rows of rows of another schema, as after columns were decoded.

        Raises:
            ValueError: they cannot be stacked either.
        """
        places = {column.name: number for number, column in enumerate(after.columns)}
        given: list[_Found] = []
        for source, column in zip(self.sources, self.schema.columns, strict=True):
            if source.column >= 0:
                name = before.columns[source.column].name
                if name not in places:  # the lengths of encoded items, which make one column when decoded
                    raise ValueError(f"{name!r} belongs to a list: decode before, by .decoded().windows(...)")
                source = WindowSource(places[name], source.offsets)
                column = replace(after.columns[source.column], name=column.name)
            given.append((source, column))
        found = _stacked(given)
        schema = Schema(self.schema.tree, tuple(column for _, column in found))
        return replace(self, schema=schema, sources=tuple(source for source, _ in found))

    @property
    def pin(self) -> str:
        """A name for how rows are made: the same in every process."""
        return json.dumps([self.sources, self.schema.to_json()])


_Found: TypeAlias = tuple[WindowSource, Column]


def _size(size: SupportsIndex) -> int:
    if isinstance(size, (str, Sequence)) or (isinstance(size, np.ndarray) and size.ndim):
        raise TypeError(
            "windows are as many rows, such as windows(64), or offsets for each column, such as "
            f'windows({{"x": range(-1, 1)}}); found {size!r:.100}'
        )
    return as_int("the rows of a window", size, 1, _MOST_OFFSETS)


def _by_column(
    schema: Schema, given: Mapping[str, Sequence[int]], once: Container[int]
) -> dict[int, Offsets]:
    """The offsets of each column, by its number; none of those that are read once."""
    found: dict[int, Offsets] = {}
    for name, some in given.items():
        offsets = _offsets(name, some)
        for number in Projection.at(schema, name).columns:
            if number in found or number in once:
                raise ValueError(
                    f"column {schema.columns[number].name!r} is named twice; it has offsets, or is static"
                )
            found[number] = offsets
    return found


def _offsets(name: str, given: Sequence[int]) -> Offsets:
    """Offsets that were checked."""
    try:
        is_list = isinstance(given, range) or np.ndim(given) == 1
    except ValueError:  # of what is no array: lists in lists
        is_list = False
    if not is_list:
        raise TypeError(f"the offsets of {name!r} are a range or a list of ints; found {given!r:.100}")
    if isinstance(given, range) and given:  # before its length, which may not fit an int64
        for end in (given[0], given[-1]):
            as_int(f"an offset of {name!r}", end, -_FURTHEST, _FURTHEST)
    if not 0 < len(given) <= _MOST_OFFSETS:
        raise ValueError(f"the offsets of {name!r} must be 1 to {_MOST_OFFSETS} ints; found {len(given)}")
    found = [as_int(f"an offset of {name!r}", each, -_FURTHEST, _FURTHEST) for each in given]
    if len(set(found)) < len(found):
        raise ValueError(f"the offsets of {name!r} must differ; found {found!r:.100}")
    return tuple(found)


def _stacked(given: Iterable[_Found]) -> list[_Found]:
    """The columns of a window, of columns of rows; encoded ones stay as they are.

    Raises:
        ValueError: rows of some columns cannot be stacked.
    """
    found: list[_Found] = []
    refused: list[str] = []
    for source, column in given:
        if source.column >= 0 and source.offsets is not None:
            if column.meaning.codec is not None and column.kind == "bytes":
                pass
            elif (column.shape is None and column.ndim < 2) or column.kind in ("none", "decimal"):
                refused.append(column.name)
            else:
                column = stacked(column, len(source.offsets))
        found.append((source, column))
    if refused:
        raise ValueError(
            f"rows of {', '.join(map(repr, refused))} cannot be stacked, as they are text, bytes, decimals, "
            "None or differ in length; decode images before, by decoded({...: yoga.codecs.image(size=...)}), "
            "leave columns out by .columns([...]), or read them once, at the first row or offset 0, by "
            f"static={refused}"
        )
    return found


def _refuse_wrapped(kept: Projection, offsets_of: Container[int]) -> None:
    """Raises ValueError if values that may be None, or lists, were to be stacked."""
    for name, node, own in _values(kept):
        if node.kind in WRAPPERS and any(number in offsets_of for number in own):
            raise ValueError(
                f"{name!r} may be None or is a list of varying length, which cannot be stacked; use "
                f"filled({{{name!r}: ...}}) or masked() before, or read it once, by static=[{name!r}]"
            )


def _values(of: Projection) -> Iterator[tuple[str, Node, list[int]]]:
    """The values that a row is made of: the name, the node and the numbers of the columns of each."""
    numbers = iter(of.columns)
    for path, node in outermost(of.schema.tree):
        yield path_name(path), node, list(islice(numbers, node.num_leaves))


def _mask(offsets: Offsets) -> _Found:
    return WindowSource(-1, offsets), Column(_MASK, "ndarray", "|b1", (len(offsets),), 1)


_LEAF = Node("leaf")


def _with_mask(tree: Node) -> Node:
    """The tree with one mask for all columns, the last."""
    if tree.kind != "dict" or _MASK in tree.keys:
        _refuse_mask(_MASK, "the row", tree)
    return replace(tree, keys=(*tree.keys, _MASK), children=(*tree.children, _LEAF))


def _with_masks(
    node: Node, path: tuple[str | int, ...], columns: Iterator[_Found], found: list[_Found]
) -> Node:
    """The node with a mask after each column of several rows; adds all columns to `found`, in order."""
    if node.kind == "leaf":
        found.append(next(columns))
        if not path and found[-1][0].offsets is not None:
            _refuse_mask(_MASK, "the row", node)
        return node
    keys: list[str | int] = []
    children: list[Node] = []
    for key, child in zip(node.keys or range(len(node.children)), node.children, strict=True):
        keys.append(key)
        children.append(_with_masks(child, (*path, key), columns, found))
        offsets = found[-1][0].offsets if child.kind == "leaf" else None
        if offsets is None:
            continue
        added = f"{key}_{_MASK}"
        if node.kind != "dict" or added in node.keys:
            _refuse_mask(added, repr(path_name(path)) if path else "the row", node)
        keys.append(added)
        children.append(_LEAF)
        found.append(_mask(offsets))
    return replace(node, keys=tuple(keys) if node.keys else (), children=tuple(children))


def _refuse_mask(name: str, where: str, node: Node) -> NoReturn:
    found = f"a dict with a key {name!r} already" if node.kind == "dict" else f"a {node.kind}"
    raise ValueError(
        f'edge="repeat" adds {name!r}, which says where rows are repeated, but {where} is {found}; use '
        'edge="drop", or rows that are dicts without such a key'
    )


Mask = npt.NDArray[np.bool_]


class Spots(NamedTuple):
    """Where B windows lie.

    Attributes:
        anchors: (B,) the row of each to which offsets are added.
        firsts: (B,) the first row of its group; None where no offset leads out of a group.
        lasts: (B,) the last one.
    """

    anchors: Ints
    firsts: Ints | None = None
    lasts: Ints | None = None

    def members(self, offsets: Ints) -> Ints:
        """(B, L) the rows at these offsets (L,); beyond its group, the first or last row of that."""
        found: Ints = self.anchors[:, None] + offsets
        if self.firsts is None or self.lasts is None:
            return found
        return np.clip(found, self.firsts[:, None], self.lasts[:, None])

    def are_repeated(self, offsets: Ints) -> Mask:
        """(B, L) True where an offset leads out of the group."""
        found: Mask = self.members(offsets) != self.anchors[:, None] + offsets
        return found


class Anchors:
    """The rows at which windows lie: in each group every `stride` rows, as far as offsets allow.

    Without `repeats` all offsets of a window lead to rows of its group; with it, the first anchor is the
    first row of a group, and offsets may lead beyond its borders.

    Args:
        starts: (G + 1,) the row at which each group begins, and the number of rows.
        stride: rows between two anchors of a group.
        low: the lowest offset, or 0.
        high: the highest offset, or 0.
        repeats: True if offsets may lead out of a group.

    Example:
        >>> anchors = Anchors(np.array([0, 5, 7, 11]), stride=2, low=-1, high=1, repeats=False)
        >>> len(anchors), anchors.spots(np.arange(3)).anchors.tolist()
        (3, [1, 3, 8])
    """

    def __init__(self, starts: Ints, stride: int, low: int, high: int, repeats: bool) -> None:
        self._arguments = starts, stride, low, high, repeats
        self._starts = starts
        self._stride = stride
        self._repeats = repeats
        self._lead = 0 if repeats else -low  # rows of a group before its first anchor
        span = 0 if repeats else min(high - low, int(starts[-1]))  # more fits into no group
        counts = np.maximum(0, (np.diff(starts) - span + stride - 1) // stride)
        self._ends = bounds_of(counts)  # how many anchors come before each group

    def __reduce__(self) -> tuple[object, ...]:
        return Anchors, self._arguments

    def __len__(self) -> int:
        return int(self._ends[-1])

    def spots(self, numbers: Ints) -> Spots:
        """Where the windows of these numbers (B,), each in 0..len - 1, lie."""
        if len(self._starts) == 2:
            group = np.zeros(len(numbers), np.int64)
            anchors = int(self._starts[0]) + self._lead + self._stride * numbers
        else:
            group = np.searchsorted(self._ends, numbers, "right") - 1
            anchors = self._starts[group] + self._lead + self._stride * (numbers - self._ends[group])
        if not self._repeats:
            return Spots(anchors)
        return Spots(anchors, self._starts[group], self._starts[group + 1] - 1)

    def before(self, rows: Ints) -> Ints:
        """How many anchors come before each of these rows (B,), which may be the number of rows, too."""
        group = np.clip(np.searchsorted(self._starts, rows, "right") - 1, 0, len(self._starts) - 2)
        places = -((self._starts[group] + self._lead - rows) // self._stride)
        return np.clip(self._ends[group] + places, self._ends[group], self._ends[group + 1])

    @cached_property
    def pin(self) -> str:
        """A name for them: the same for the same anchors in the same groups, in every process."""
        starts, *others = self._arguments
        return hexdigest(f"{others};", np.ascontiguousarray(starts, "<i8").data)


Gap: TypeAlias = float | timedelta | np.timedelta64
Edge: TypeAlias = Literal["drop", "repeat"]  # what becomes of windows beyond the rows of a group

_MOST_STRIDE = 2**62  # rows between two windows: more than there are rows
_AT_ONCE, _MOST_LOOKED = 2**18, 2**22  # rows whose numbers are looked at: some milliseconds, however many


def windows(
    ref: DataRef,
    size_or_offsets: SupportsIndex | Mapping[str, Sequence[int]],
    stride: int = 1,
    group_by: str | None = None,
    edge: Edge = "drop",
    static: Sequence[str] = (),
    *,
    time: str | None = None,
    max_gap: Gap | None = None,
) -> WindowsRef:
    """Windows of rows: each column of a window is L rows of that column, stacked (L, ...).

    Args:
        size_or_offsets: the number of consecutive rows of a window, which has all columns. Or a dict of the
            columns of a window, each with its offsets from the row at which the window lies, as in
            `{"state": range(-1, 1), "action": range(0, 50)}`; the name of a dict, list or tuple stands for
            all of its columns.
        stride: rows from one window to the next.
        group_by: a column of integers or text, which is read now: consecutive rows with the same value are a
            group, and no window has rows of two groups. By default all rows are one group.
        edge: "drop" leaves out windows that do not fit into a group. With "repeat" a window lies at every
            `stride` rows of a group, and beyond the borders of the group its first or last row is repeated. A
            column of bools marks the repeated rows: "is_pad", or "action_is_pad" for the column "action".
        static: columns that are not stacked: a window has their value at its first row, or at offset 0.
        time: a column of numbers or times, with `max_gap`. It is read now.
        max_gap: the longest time between two consecutive rows of a group; after a longer one a new group
            begins. A number; for times a `timedelta`.

    Raises:
        KeyError: there is no such column.
        TypeError: the schema is not known; or the column of `group_by` holds floats; or that of `time` holds
            neither numbers nor times.
        ValueError: rows of a column cannot be stacked, because they are text or differ in length; or the rows
            of a group are not consecutive: the message says which.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(7), "episode": np.array([4, 4, 4, 4, 9, 9, 9])})
        >>> [row["x"].tolist() for row in ref.windows(3, group_by="episode")]
        [[0, 1, 2], [1, 2, 3], [4, 5, 6]]
        >>> chunks = ref.windows({"x": range(0, 3)}, stride=2, group_by="episode", edge="repeat")
        >>> chunks[1]["x"].tolist(), chunks[1]["x_is_pad"].tolist()
        ([2, 3, 3], [False, False, True])
        >>> ref = yoga.from_arrays({"x": np.arange(5), "t": np.array([0.0, 0.1, 0.2, 7.0, 7.1])})
        >>> [row["x"].tolist() for row in ref.windows(2, time="t", max_gap=0.15)]
        [[0, 1], [1, 2], [3, 4]]
    """
    schema = known_schema(ref)
    warn_if_arranged(ref, "windows")
    stride = as_int("stride", stride, 1, _MOST_STRIDE)
    if edge not in get_args(Edge):
        raise ValueError(f'edge must be "drop" or "repeat", found {edge!r}')
    if (time is None) != (max_gap is None):
        raise ValueError(f"time= and max_gap= go together; found time={time!r} and max_gap={max_gap!r}")
    if schema is None:  # of a version without rows
        return WindowsRef(ref, Anchors(np.zeros(2, np.int64), stride, 0, 0, edge == "repeat"), None)
    stacking = Stacking.of(schema, size_or_offsets, static, edge == "repeat")
    starts = np.array([0, len(ref)]) if group_by is None else group_starts(ref, group_by)
    if time is not None and max_gap is not None:
        starts = distinct(np.concatenate([starts, gap_stops(ref, time, max_gap)]))
    elif isinstance(ref, (SelectedRef, RepeatedRef)):
        _warn_of_gaps(ref, starts, group_by)
    anchors = Anchors(starts, stride, stacking.low, stacking.high, edge == "repeat")
    if not len(anchors) and len(ref):
        longest = int(np.diff(starts).max())
        warn_user(
            f"there are no windows: each needs {stacking.high - stacking.low + 1} rows in sequence, found "
            f"{longest} at most"
            + (f" with the same {group_by!r}" if group_by else "")
            + (f" and no gap above max_gap={max_gap}" if time else "")
        )
    return WindowsRef(ref, anchors, stacking)


def _warn_of_gaps(ref: RowView, starts: Ints, group_by: str | None) -> None:
    """Warns if rows of one group are neighbours that are not so in the DataRef below; looks at some rows."""
    count = 0
    for first in range(0, min(len(ref) - 1, _MOST_LOOKED), _AT_ONCE):
        rows = ref.rows_at(np.arange(first, min(first + _AT_ONCE, len(ref) - 1) + 1))
        after_gap = first + 1 + np.flatnonzero(np.diff(rows) != 1)
        count += int((starts[np.searchsorted(starts, after_gap)] != after_gap).sum())
    if count:
        warn_user(
            f"windows: in {count} places {'or more ' * (len(ref) > _MOST_LOOKED)}rows follow each other"
            + (f" in a group of {group_by!r}" if group_by else "")
            + " that are not neighbours in what they were selected from, and windows hold both. If that is "
            "not meant, take windows first, then select, split or repeat them"
        )


class WindowsRef(Rebuilt):
    """Windows of rows of another DataRef: what `ref.windows(...)` is.

    Args:
        whole: the other DataRef.
        anchors: where the windows lie.
        stacking: what their rows are made of; None if `whole` has no rows and no schema.

    Attributes:
        whole: the other DataRef.
        encoded: columns that must be decoded before the windows can be read.
    """

    def __init__(self, whole: DataRef, anchors: Anchors, stacking: Stacking | None) -> None:
        super().__init__(whole, anchors, stacking)
        self._anchors, self._stacking = anchors, stacking
        self.encoded = [] if stacking is None else stacking.encoded

    def __len__(self) -> int:
        return len(self._anchors)

    view_name = "windows"
    _keeps_rows = Over._keeps_rows

    def over(self, whole: DataRef) -> WindowsRef:
        """The same windows of rows that may be decoded."""
        before, after, stacking = self.whole.schema, whole.schema, self._stacking
        if stacking is not None and before is not None and after is not None:
            stacking = stacking.over(before, after)
        return WindowsRef(whole, self._anchors, stacking)

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        assert self._stacking is not None, "there are windows"
        if self.encoded:
            raise ValueError(
                f"rows of {', '.join(map(repr, self.encoded))} cannot be stacked as they are encoded: decode "
                "them, by .decoded(), or where images differ in size by .decoded({'image': "
                f"yoga.codecs.image(size=...)}}); or read them once, by static={self.encoded}"
            )
        spots = self._anchors.spots(rows)
        columns = self._stacking.schema.columns
        found: list[Data | None] = [None] * len(columns)
        for read in self._reads:
            members = spots.members(read.offsets)
            numbers, which = read.rows(members)
            own = None  # a seed for each row of a window
            if seeds is not None and which is None:
                own = _seeds_of_members(seeds, members - spots.anchors[:, None]).reshape(-1)
            block = block_of(taken_of(read.ref, numbers, own), read.ref.schema)
            for column, place, is_stacked in read.columns:
                data = block.data[place] if which is None else _repeated(block.data[place], which)
                if is_stacked:
                    shape = columns[column].shape
                    if shape is None:
                        data = _stacked_alike(columns[column].name, data, members)
                    else:
                        data = Data(data.values.reshape(len(rows), *shape))
                found[column] = data
        for column, offsets in self._masks:
            found[column] = Data(spots.are_repeated(offsets))
        return Rows(
            Block(self._stacking.schema, len(rows), tuple(data for data in found if data is not None))
        )

    @cached_property
    def _reads(self) -> list[_Read]:
        """For each different run of offsets, the columns that are read there."""
        if self._stacking is None:
            return []
        wanted: dict[Offsets, list[tuple[int, int, bool]]] = {}
        for column, (number, offsets) in enumerate(self._stacking.sources):
            if number >= 0:
                wanted.setdefault(offsets or (0,), []).append((column, number, offsets is not None))
        schema = self.whole.schema
        assert schema is not None, "else there is no stacking"
        whole = Projection(schema, tuple(range(len(schema.columns))))
        reads = []
        for offsets, columns in wanted.items():
            numbers, of = {number for _, number, _ in columns}, whole
            if len(numbers) < len(schema.columns):
                of = Projection.of(schema, [name for name, _, own in _values(whole) if numbers & {*own}])
            one = self.whole if of is whole else self.whole._projected(of)
            placed = [(own, of.columns.index(number), is_stacked) for own, number, is_stacked in columns]
            reads.append(_Read(one, np.array(offsets), placed))
        return reads

    @cached_property
    def _masks(self) -> list[tuple[int, Ints]]:
        """The columns that are masks, and their offsets."""
        sources = () if self._stacking is None else self._stacking.sources
        return [
            (column, np.array(offsets))
            for column, (number, offsets) in enumerate(sources)
            if number < 0 and offsets is not None
        ]

    @cached_property
    def _offsets(self) -> Ints:
        """(K,) the offsets of all rows that are read, ascending."""
        if not self._reads:
            return np.zeros(1, np.int64)
        return distinct(np.concatenate([read.offsets for read in self._reads]))

    def anchors(self, numbers: Ints) -> Ints:
        """The rows of the whole (B,) at which these windows lie: offset 0, or the first row of a window."""
        return self._anchors.spots(numbers).anchors

    def members(self, numbers: Ints) -> Ints:
        """The rows of the whole (B, K) of which these windows are made, of all columns together.

        They are in ascending order; with `edge="repeat"` some may come several times.
        """
        return self._anchors.spots(numbers).members(self._offsets)

    def _projected(self, of: Projection) -> DataRef:
        """The same windows with these columns; nothing is read for the others."""
        assert self._stacking is not None, "else there is no schema to project"
        return WindowsRef(self.whole, self._anchors, self._stacking.projected(of))

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of what is read for a window; 0 if the whole does not know."""
        sizes = [len(read.offsets) * read.ref._row_bytes for read in self._reads]
        return sum(sizes) + sum(len(offsets) for _, offsets in self._masks) if all(sizes) else 0

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The whole's, for all rows of the windows."""
        found = [(one, read) for read in self._reads if (one := read.ref._prefetch) is not None]
        return _Prefetches(self._anchors, found, self._offsets) if found else None

    @property
    def file_starts(self) -> Ints:
        """Where the windows begin that lie in each file; files in which none lies are left out."""
        return distinct(np.append(self._anchors.before(self.whole.file_starts), 0))

    def _pinned(self, whole: str) -> str:
        made = None if self._stacking is None else self._stacking.pin
        return hexdigest(json.dumps([whole, "windows", self._anchors.pin, made]))

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if the whole has no rows."""
        return None if self._stacking is None else self._stacking.schema

    def _title(self) -> str:
        return f"windows of {super()._title()}"


class _Read(NamedTuple):
    """Columns that are read at the same offsets.

    Attributes:
        ref: has these columns of the whole.
        offsets: (L,)
        columns: for each of them its number in the row of a window, its number in `ref`, and if it is
            stacked.
    """

    ref: DataRef
    offsets: Ints
    columns: list[tuple[int, int, bool]]

    def rows(self, members: Ints) -> tuple[Ints, Ints | None]:
        """The rows of windows (B, L) to be read, and which of them each is; None if it is they, one by one.

        Rows that are made, as by decoding an image, are made once for all windows of a batch.
        """
        numbers = members.reshape(-1)
        if not self.ref._keeps_rows or self.ref._is_random:
            return numbers, None
        found = distinct(numbers)
        return (found, np.searchsorted(found, numbers)) if len(found) < len(numbers) else (numbers, None)


class _Prefetches(Prefetches):
    """Makes the rows ready of which windows are made.

    Args:
        anchors: where the windows lie.
        prefetches: for each read, what makes its columns ready, and the read.
        offsets: (K,) all offsets.
    """

    def __init__(self, anchors: Anchors, prefetches: Sequence[tuple[Prefetch, _Read]], offsets: Ints) -> None:
        super().__init__([prefetch for prefetch, _ in prefetches])
        self._anchors = anchors
        self._prefetches = prefetches
        self._offsets = offsets

    def announce(self, rows: Ints, values: bool) -> None:
        spots = self._anchors.spots(rows)
        for prefetch, read in self._prefetches:  # the very rows that will be taken, so that it knows them
            numbers, _ = read.rows(spots.members(read.offsets))
            prefetch.announce(numbers, values)

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        def rows_delivered() -> int | None:
            reached = progress()
            return None if reached is None else reached * len(self._offsets)

        # One for all: they are of the same files.
        members = (self._anchors.spots(rows).members(self._offsets).reshape(-1) for rows in order)
        self._prefetches[0][0].follow(members, rows_delivered)


def _stacked_alike(name: str, data: Data, members: Ints) -> Data:
    """Rows of unknown shape (B * L) as windows (B); they lie one after the other already.

    Raises:
        SchemaError: rows of one window differ in shape.
    """
    count, size = members.shape
    shapes = data.part("shapes").reshape(count, size, -1)
    is_other = (shapes != shapes[:, :1]).any(axis=2)
    if is_other.any():
        window, place = np.argwhere(is_other)[0].tolist()
        one, other = (tuple(shapes[window, at].tolist()) for at in (0, place))
        raise SchemaError(
            f"column {name!r}: a window needs rows of one shape, but row {members[window, 0]} has {one} and "
            f"row {members[window, place]} has {other}; make images alike before, by "
            f"decoded({{{name!r}: yoga.codecs.image(size=...)}}), or arrays by map"
        )
    found = np.concatenate([np.full((count, 1), size, "<i8"), shapes[:, 0]], axis=1)
    return Data(data.values, np.ascontiguousarray(data.part("offsets")[::size]), found)


def _repeated(data: Data, which: Ints) -> Data:
    """Some rows of a column (N,), which may come more than once."""
    if data.offsets is None:
        return Data(data.values[which])
    first, last = data.offsets[which], data.offsets[which + 1]
    shapes = None if data.shapes is None else data.shapes[which]
    return Data(taken_runs(data.values, first, last), bounds_of(last - first), shapes)


def _seeds_of_members(seeds: Seeds, distances: Ints) -> Seeds:
    """(B, L) a seed for each row of windows: that of the window at its anchor, another one elsewhere.

    A row has the same seed in all columns, so those that are drawn together stay so.

    Args:
        seeds: (B,) the seeds of the windows.
        distances: (B, L) of the rows from the anchors.
    """
    found = seeds_within(seeds[:, None], distances)
    return np.where(distances == 0, seeds[:, None], found)


def group_starts(ref: DataRef, name: str) -> Ints:
    """(G + 1,) the row at which each run of equal values of a column begins, and the number of rows.

    A DataRef without rows has one group, without rows.

    Raises:
        KeyError: there is no such column.
        TypeError: it holds neither integers nor bools nor text.
        ValueError: rows of the same value come in several runs, or are no single values.

    Example:
        >>> group_starts(yoga.from_arrays({"episode": np.array([7, 7, 3, 3, 3])}), "episode").tolist()
        [0, 2, 5]
    """
    starts, firsts = [np.zeros(0, np.int64)], []
    last: Array | None = None
    refusal = f"group_by={name!r} needs a column of one number or text a row"
    for start, values in single_values(ref, name, refusal):
        if values.dtype.kind not in "iubOSU" or has_none(values):
            kind = "None" if has_none(values) else values.dtype
            raise TypeError(
                f"group_by={name!r}: the column holds {kind}; rows are grouped by integers or text"
            )
        is_first = np.ones(len(values), np.bool_)
        is_first[1:] = values[1:] != values[:-1]
        is_first[:1] = last is None or bool((values[:1] != last).all())
        starts.append(start + np.flatnonzero(is_first))
        firsts.append(values[is_first])
        last = values[-1:]
    begun = np.concatenate(starts)
    if firsts:
        _refuse_second_runs(name, begun, np.concatenate(firsts))
    return np.append(begun if len(begun) else 0, len(ref)).astype(np.int64)


def _refuse_second_runs(name: str, starts: Ints, values: Array) -> None:
    """Raises ValueError if two runs have the same value."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    again = np.flatnonzero(ascending[1:] == ascending[:-1])
    if not len(again):
        return
    nth = again[np.argmin(order[again + 1])]  # where it is first seen
    one, other = starts[order[nth : nth + 2]].tolist()
    (value,) = values[order[nth : nth + 1]].tolist()
    raise ValueError(
        f"group_by={name!r}: the rows with {value!r} are not all together: some begin at row {one}, some at "
        f"row {other}; order_by({name!r}) puts them together"
    )


def gap_stops(ref: DataRef, name: str, max_gap: Gap) -> Ints:
    """The rows whose time is further than `max_gap` from that of the row before, or is not known.

    Raises:
        KeyError: there is no such column.
        TypeError: it holds neither numbers nor times, or `max_gap` is of another kind.
        ValueError: `max_gap` is below 0; or the column holds several values a row.

    Example:
        >>> gap_stops(yoga.from_arrays({"t": np.array([0, 1, 9, 8])}), "t", 1).tolist()
        [2]
    """
    most: Any = max_gap
    is_span = isinstance(most, (timedelta, np.timedelta64))
    if is_span:
        most = np.timedelta64(most)
    elif isinstance(most, bool) or not isinstance(most, (int, float, np.number)):
        raise TypeError(f"max_gap must be a number or a timedelta, found {max_gap!r:.80}")
    if not most >= type(most)(0):
        raise ValueError(f"max_gap must be at least 0, found {max_gap!r:.80}")
    found, last = [np.zeros(0, np.int64)], None
    refusal = f"time={name!r} needs a column of one number or time a row"
    for start, values in single_values(ref, name, refusal):
        kind = values.dtype.kind
        if kind not in ("M" if is_span else "iuf") or np.ma.getmaskarray(values).any():
            held = "None" if kind == "O" or isinstance(values, np.ma.MaskedArray) else values.dtype
            raise TypeError(
                f"time={name!r}: the column holds {held}, and max_gap={max_gap!r} is for "
                f"{'times' if is_span else 'numbers'}; numbers take a number, dates and times a timedelta"
            )
        values = values if last is None else np.concatenate([last, values])
        later, earlier = np.maximum(values[1:], values[:-1]), np.minimum(values[1:], values[:-1])
        if kind in "iu":  # a difference may be above their largest
            later, earlier = later.astype(np.uint64), earlier.astype(np.uint64)
        with np.errstate(invalid="ignore"):  # of infinities
            gaps = later - earlier
        first = start + 1 if last is None else start
        found.append(first + np.flatnonzero(~(gaps <= most)))
        last = values[-1:]
    return np.concatenate(found)
