"""The parts of the rows of windows: which columns of another DataRef, at which offsets."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, NoReturn, SupportsIndex, TypeAlias

import numpy as np

from ...process.numbers import as_int
from ...rows.column import Column, stacked
from ...rows.node import WRAPPERS, Node, outermost, path_name
from ...rows.schema import Projection, Schema, schema_under

Offsets: TypeAlias = range | tuple[int, ...]  # a range wherever they are equally far apart

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
            size = range(_size(size_or_offsets))
            kept = Projection(schema, tuple(range(len(schema.columns))))
            offsets_of = {number: size for number in kept.columns if number not in once}
            ends.append(size[-1])  # even if all columns are static
        for offsets in offsets_of.values():
            some = (offsets[0], offsets[-1]) if isinstance(offsets, range) else offsets
            ends += [min(some), max(some)]
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
        made = [
            [column, [offsets.start, offsets.stop, offsets.step] if isinstance(offsets, range) else offsets]
            for column, offsets in self.sources
        ]
        return json.dumps([made, self.schema.to_json()])


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
    """Offsets that were checked, as a range if they are one; it ends where the next one would be."""
    try:
        is_list = isinstance(given, range) or np.ndim(given) == 1
    except ValueError:  # of what is no array: lists in lists
        is_list = False
    if not is_list:
        raise TypeError(f"the offsets of {name!r} are a range or a list of ints; found {given!r:.100}")
    if isinstance(given, range) and given:  # before its length, which may not fit an int64
        ends = [as_int(f"an offset of {name!r}", end, -_FURTHEST, _FURTHEST) for end in (given[0], given[-1])]
    if not 0 < len(given) <= _MOST_OFFSETS:
        raise ValueError(f"the offsets of {name!r} must be 1 to {_MOST_OFFSETS} ints; found {len(given)}")
    if isinstance(given, range):
        return _as_range(ends[0], ends[1], len(given))
    found = [as_int(f"an offset of {name!r}", each, -_FURTHEST, _FURTHEST) for each in given]
    if len(set(found)) < len(found):
        raise ValueError(f"the offsets of {name!r} must differ; found {found!r:.100}")
    alike = _as_range(found[0], found[-1], len(found))
    return alike if list(alike) == found else tuple(found)


def _as_range(first: int, last: int, count: int) -> range:
    step = (last - first) // (count - 1) if count > 1 else 1
    return range(first, first + count * step, step or 1)


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
    numbers = iter(kept.columns)
    for path, node in outermost(kept.schema.tree):
        own = list(islice(numbers, node.num_leaves))
        if node.kind in WRAPPERS and any(number in offsets_of for number in own):
            name = path_name(path)
            raise ValueError(
                f"{name!r} may be None or is a list of varying length, which cannot be stacked; use "
                f"filled({{{name!r}: ...}}) or masked() before, or read it once, by static=[{name!r}]"
            )


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
