"""Columns of a block -> the values that went in.

Lists of varying length are made for all rows at once.
The items of all rows are one list, made of whole columns; then it is cut into those of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from .column import Column
from .data import Data, bounds_of
from .leaf import MOST_EMPTY, as_text, decode
from .node import Node
from .types import Array, Row

Piece: TypeAlias = tuple[Column, Data]
Counts: TypeAlias = npt.NDArray[np.int64]


def array_of(column: Column, data: Data, i: int) -> Array:
    """Row `i` of a column as an array over the block's memory."""
    if data.offsets is None:
        return data.values[i, ...]  # unlike [i] an array even without dimensions, of the same dtype
    values = data.row(i)
    if data.shapes is None:
        return values
    shape = [extent for extent in data.shapes[i].tolist() if extent >= 0]
    try:
        return values.reshape(shape)
    except ValueError:
        raise CorruptError(
            f"column {column.name!r}: {len(values)} values do not have the shape {shape}; remove the version "
            "and build it again"
        ) from None


def leaf_values(column: Column, data: Data, num_rows: int) -> list[Row]:
    """All rows of a column, as the values that went in."""
    if column.kind in ("int", "float", "bool", "complex"):
        listed: list[Row] = data.values.tolist()
        return listed
    if column.kind in ("bytes", "str"):  # straight from where they lie
        texts = data.texts()
        return texts if column.kind == "bytes" else list(map(as_text, texts))
    return [_decoded(column, array_of(column, data, i)) for i in range(num_rows)]


def _decoded(column: Column, array: Array) -> Row:
    return decode(column.kind, column.dtype, array, column.meaning)


def node_values(node: Node, pieces: Iterator[Piece], num_rows: int) -> list[Row]:
    """All rows of a part of the tree, as the values that went in.

    Args:
        node: the part.
        pieces: its columns, and those that follow.
        num_rows: of the block.

    Raises:
        CorruptError: its columns contradict each other.
    """
    if node.kind == "leaf":
        return leaf_values(*next(pieces), num_rows)
    if node.kind == "nullable":
        found = node_values(node.children[0], pieces, num_rows)
        valid: list[bool] = next(pieces)[1].values.tolist()
        return [value if there else None for value, there in zip(found, valid, strict=True)]
    if node.kind == "varying":
        return _cut(*_items(node.children[0], pieces, num_rows))
    return list(nested(node, [node_values(child, pieces, num_rows) for child in node.children], num_rows))


def nested(node: Node, children: Sequence[list[Row]], count: int, marked: Any = None) -> Iterator[Row]:
    """As many containers as `count` over the values of their children; of the type `marked`, if any."""
    rows: Iterator[tuple[Row, ...]] = zip(*children, strict=True) if children else repeat((), count)
    if node.kind == "dict":
        make = marked or dict
        return (make(zip(node.keys, row, strict=True)) for row in rows)
    if node.kind == "namedtuple":
        return map(tuple.__new__, repeat(marked or node.row_type), rows)
    return map(marked or {"list": list, "tuple": tuple}[node.kind], rows)


def _items(node: Node, pieces: Iterator[Piece], num_rows: int) -> tuple[list[Row], Counts]:
    """The items of the lists of all rows, and how many each row has."""
    if node.kind == "leaf":
        return _leaf_items(*next(pieces), num_rows)
    if node.kind == "texts":
        column, data = next(pieces)
        lengths, counts = _lengths_of(next(pieces)[1], np.diff(data.part("offsets")), num_rows)
        run = data.values.tobytes()
        found: list[Row] = [run[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]
        return [_text(column.kind, text) for text in found], counts
    if node.kind == "nullable":
        child = node.children[0]
        held = _items(child, pieces, num_rows) if child.num_leaves else None
        data = next(pieces)[1]
        own = np.diff(data.part("offsets"))
        found, counts = held or (node_values(child, iter(()), int(own.sum())), own)
        _check_counts(counts, own)
        valid: list[bool] = data.values.tolist()
        return [value if there else None for value, there in zip(found, valid, strict=True)], counts
    if node.kind == "varying":
        found, counts = _items(node.children[0], pieces, num_rows)
        lengths, outer = _lengths_of(next(pieces)[1], counts, num_rows)
        return _cut(found, np.array(lengths, np.int64)), outer
    parts: list[tuple[Node, list[Row] | None]] = []
    counts_of: Counts | None = None
    for child in node.children:
        if not child.num_leaves:
            parts.append((child, None))
            continue
        found, own = _items(child, pieces, num_rows)
        if counts_of is not None:
            _check_counts(counts_of, own)
        counts_of = own
        parts.append((child, found))
    assert counts_of is not None, "a list of what has no leaves is refused"
    total = int(counts_of.sum())
    made = [node_values(child, iter(()), total) if found is None else found for child, found in parts]
    return list(nested(node, made, total)), counts_of


def _leaf_items(column: Column, data: Data, num_rows: int) -> tuple[list[Row], Counts]:
    if column.ndim == 1:
        counts = np.diff(data.part("offsets"))
        if column.kind in ("int", "float", "bool", "complex"):
            return data.values.tolist(), counts
        values = data.values
        return [_decoded(column, values[i, ...]) for i in range(len(values))], counts
    listed = [array_of(column, data, i) for i in range(num_rows)]
    if any(row.ndim < 1 or (len(row) > MOST_EMPTY and not row.size) for row in listed):
        raise CorruptError(f"column {column.name!r} holds no lists; remove the version and build it again")
    found = [_decoded(column, row[i, ...]) for row in listed for i in range(len(row))]
    return found, np.array([len(row) for row in listed], np.int64)


def _lengths_of(data: Data, held: Counts, num_rows: int) -> tuple[list[int], Counts]:
    """The lengths of all items, and how many each row has; CorruptError unless they sum to what it holds."""
    offsets, lengths = data.part("offsets"), data.values
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > held.sum()):
        raise CorruptError("the lengths of items contradict the items; remove the version and build it again")
    sums = bounds_of(lengths)
    _check_counts(held, np.diff(sums[offsets - offsets[0]]))
    listed: list[int] = lengths.tolist()
    return listed, np.diff(offsets)


def _check_counts(one: Counts, other: Counts) -> None:
    if not np.array_equal(one, other):
        raise CorruptError("columns of a list contradict each other; remove the version and build it again")


def _text(kind: str, text: bytes) -> Row:
    if kind == "bytes":
        return text
    if kind == "str":
        return as_text(text)
    return np.bytes_(text) if kind == "numpy.bytes" else np.str_(as_text(text))


def _cut(items: list[Row], counts: Counts) -> list[Row]:
    """The items of each row."""
    return [items[start:stop] for start, stop in pairwise(accumulate(counts.tolist(), initial=0))]
