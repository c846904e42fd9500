"""Rows compared: by a hash of 128 bits for each, and two blocks or two schemas column by column.

A row's hash is that of one message: each column's bytes, in the order of the columns' names.
Of a column whose rows differ in length, or are long, the message holds the length or the shape, and a hash of
the bytes, so long values are hashed where they lie. What the columns are is in the seed. So the hash is the
same for the same row in any format, block, file and order of keys, and an array, a tensor and a number of one
dtype are alike. The hash is xxh3 of 128 bits (Yann Collet, https://xxhash.com): it is not made to withstand
someone who looks for two rows of one hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from ..process.digests import word_of
from .block import Block, Data, bounds_of
from .column import Column
from .node import Node, outermost, path_name
from .schema import Schema
from .types import Array

Hashes: TypeAlias = npt.NDArray[np.uint64]

HASH = "xxh3-128 of columns by name, 1"  # another definition has another name
_INLINE = 1024  # bytes of a row of a column that are part of the message as they are
_CACHE_BYTES = 2**18
_SHORT = 2048  # bytes of a value, on average
_TEXTS = {"str": "text", "numpy.str": "text", "bytes": "bytes", "numpy.bytes": "bytes"}
_ARRAYS = {"ndarray", "tensor", "scalar", "int", "float", "bool", "complex"}


def look_of(column: Column) -> tuple[object, ...]:
    """The facts that must be equal for values of two columns to be compared by their bytes, as plain data.

    Example:
        >>> number, array = Schema.of({"x": 1}).columns[0], Schema.of({"x": np.int64(1)}).columns[0]
        >>> look_of(number) == look_of(array)
        True
    """
    kind = _TEXTS.get(column.kind, "array" if column.kind in _ARRAYS else column.kind)
    # Torch's types that NumPy lacks are kept as bits, and are not like the integers that hold those.
    is_bits = column.kind == "tensor" and not hasattr(np, column.dtype)
    dtype = column.dtype if is_bits else column.storage.str
    shape = None if column.shape is None else list(column.shape)
    return kind, dtype, shape, column.ndim, column.meaning.to_json()


def values_of(schema: Schema) -> dict[str, tuple[Node, tuple[Column, ...]]]:
    """The values that a row is made of, by name: leaves, and what may be None or is a list, with all in it.

    Example:
        >>> found = values_of(Schema.of({"ids": [1, 2], "age": 40}, ragged=["ids"], nullable=["age"]))
        >>> {name: [column.name for column in columns] for name, (_, columns) in found.items()}
        {'ids': ['ids'], 'age': ['age', 'age{valid}']}
    """
    columns = iter(schema.columns)
    return {
        path_name(path): (node, tuple(next(columns) for _ in range(node.num_leaves)))
        for path, node in outermost(schema.tree)
    }


def alike(one: Schema, other: Schema) -> list[str]:
    """The names of the values that both have and that can be compared, in order of their names.

    Codes of other words can be compared once both are codes of one list.
    """
    mine, theirs = values_of(one), values_of(other)
    return sorted(
        name
        for name in mine.keys() & theirs.keys()
        if mine[name][0] == theirs[name][0]
        and _looks(map(_without_words, mine[name][1])) == _looks(map(_without_words, theirs[name][1]))
    )


def _without_words(column: Column) -> Column:
    """The column as codes of no words in particular."""
    if column.meaning.words is None:
        return column
    return replace(column, meaning=replace(column.meaning, words=()))


def _looks(columns: Iterable[Column]) -> list[tuple[str, tuple[object, ...]]]:
    return [(column.name, look_of(column)) for column in columns]


def row_hashes(block: Block) -> Hashes:
    """(N, 2) the hash of each row, as two words of 64 bits; equal for equal rows.

    Args:
        block: N rows. Floats are compared by their bits, so each NaN is equal to itself, and 0.0 is not -0.0.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> found = row_hashes(block_of([{"x": 1, "y": "a"}, {"x": 2, "y": "a"}, {"x": 1, "y": "a"}]))
        >>> found.shape, (found[0] == found[1]).any(), (found[0] == found[2]).all()
        ((3, 2), np.False_, np.True_)
    """
    order = sorted(range(len(block.data)), key=lambda number: block.schema.columns[number].name)
    columns = tuple(block.schema.columns[number] for number in order)
    parts: list[Array] = []
    for column, number in zip(columns, order, strict=True):
        parts += _message(column, block.data[number], block.num_rows)
    parts = [part for part in parts if part.shape[1]]
    seed = _seed(columns)
    if not parts:
        empty = np.frombuffer(xxh3_128_digest(b"", seed), "<u8")
        return np.tile(empty, (block.num_rows, 1))
    if len(parts) == 1:
        return _digests(parts[0], seed).view("<u8")
    step = max(1, _CACHE_BYTES // sum(part.shape[1] for part in parts))
    found = np.empty((block.num_rows, 16), np.uint8)
    for start in range(0, block.num_rows, step):  # messages are made in memory that is in the cache
        some = np.concatenate([part[start : start + step] for part in parts], axis=1)
        found[start : start + step] = _digests(some, seed)
    return found.view("<u8")


@lru_cache(maxsize=256)
def _seed(columns: tuple[Column, ...]) -> int:
    return word_of(json.dumps([HASH, _looks(columns)]).encode("utf-8", "surrogatepass"))


def _message(column: Column, data: Data, num_rows: int) -> list[Array]:
    """The bytes that a column adds to the messages of the rows, each (N, bytes) of uint8."""
    if not column.is_ragged:
        values = _bytes_of(data.values, column).reshape(num_rows, column.row_bytes)
        return [values if column.row_bytes <= _INLINE else _digests(values, 0)]
    extents = np.diff(data.part("offsets")) if column.ndim == 1 else data.part("shapes")
    known = np.ascontiguousarray(extents, "<i8").reshape(num_rows, -1).view(np.uint8)
    return [known, _ragged_digests(column, data, num_rows)]


def _bytes_of(values: Array, column: Column) -> Array:
    """The bytes of values as they would be stored."""
    if not values.size:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(values, column.storage).reshape(-1).view(np.uint8)


def _digests(messages: Iterable[bytes | memoryview] | Array, seed: int) -> Array:
    """(N, 16) uint8 the digests of the rows of an array (N, bytes)."""
    return np.frombuffer(b"".join(map(xxh3_128_digest, messages, repeat(seed))), np.uint8).reshape(-1, 16)


def _ragged_digests(column: Column, data: Data, num_rows: int) -> Array:
    """(N, 16) uint8 the digests of the values of each row of a ragged column."""
    if not num_rows:
        return np.empty((0, 16), np.uint8)
    if data.runs is not None and data.dtype == column.storage:
        texts: Sequence[bytes | memoryview] = data.texts()
    else:
        values = _bytes_of(data.values, column)
        # Short pieces of bytes are copied in less time than views of memory are made.
        held = values.tobytes() if len(values) < _SHORT * num_rows else values.data
        ends = (data.part("offsets") * column.storage.itemsize).tolist()
        texts = [held[start:stop] for start, stop in pairwise(ends)]
    return _digests(texts, 0)


Bools = npt.NDArray[np.bool_]
_MOST_WORDS = 10  # in a line


def differing(one: Block, other: Block) -> Bools:
    """(N, columns) where rows of two blocks differ in a bit.

    Args:
        one: N rows.
        other: as many, with columns of the same look in the same order.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> one = block_of([{"x": 1, "y": "a"}, {"x": 1, "y": "a"}])
        >>> other = block_of([{"x": 1, "y": "a"}, {"x": 1, "y": "b"}])
        >>> differing(one, other).tolist()
        [[False, False], [False, True]]
    """
    found = np.zeros((one.num_rows, len(one.data)), np.bool_)
    columns = zip(one.schema.columns, one.data, other.data, strict=True)
    for number, (column, mine, theirs) in enumerate(columns):
        found[:, number] = _differing(column, mine, theirs, one.num_rows)
    return found


def equal_blocks(one: Block, other: Block) -> bool:
    """True if both are the same rows, bit by bit."""
    return one.schema == other.schema and one.num_rows == other.num_rows and not differing(one, other).any()


def _differing(column: Column, one: Data, other: Data, num_rows: int) -> Bools:
    if not column.is_ragged:
        apart = _unequal(column, one.values, other.values)
        return np.asarray(apart.reshape(num_rows, -1 if num_rows else 0).any(axis=1))
    lengths = np.diff(one.part("offsets"))
    found: Bools = lengths != np.diff(other.part("offsets"))
    if column.ndim > 1:
        found |= (one.part("shapes") != other.part("shapes")).any(axis=1)
    if found.any():
        for row in np.flatnonzero(~found).tolist():
            found[row] = _unequal(column, one.row(row), other.row(row)).any()
        return found
    unequal = _unequal(column, one.values, other.values)
    counts, bounds = bounds_of(unequal), bounds_of(lengths)
    return counts[bounds[1:]] > counts[bounds[:-1]]


def _unequal(column: Column, one: Array, other: Array) -> Bools:
    """Which of as many values differ, as an array of one dimension."""
    size = column.storage.itemsize
    mine, theirs = (_bytes_of(values, column).reshape(-1, size) for values in (one, other))
    return np.asarray((mine != theirs).any(axis=1))


@dataclass(frozen=True)
class SchemaDiff:
    """The differences between the columns of two versions; False if there are none.

    Attributes:
        added: names of values that only the new version has.
        removed: names of those that only the old one has.
        changed: names of those that both have, of another type or shape, or that may be None in one only.
        retyped: names of those whose bytes mean the same, but that come back as another type, such as an
            array and a tensor, or whose codes are numbers of other words; rows are compared in spite of it,
            codes by their words.
        nesting: True if the same values nest otherwise, or come in another order.
        text: all of that, a line for each value.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    nesting: bool = False
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.retyped or self.nesting)

    def __str__(self) -> str:
        return self.text or "the same columns"

    @property
    def is_comparable(self) -> bool:
        """True if whole rows can be compared: both have the same values, of the same look."""
        return not (self.added or self.removed or self.changed)


def schema_diff(old: Schema | None, new: Schema | None) -> SchemaDiff:
    """The differences between two schemas; nothing if one is None, as that of a version without rows is.

    Example:
        >>> print(schema_diff(Schema.of({"x": 1, "y": 2}), Schema.of({"x": 1.5, "z": "a"})))
        changed: x: int <i8 [scalar] -> float <f8 [scalar]
        removed: y: int <i8 [scalar]
        added: z: str |u1 [ragged, 1-d]
    """
    if old is None or new is None or old == new:
        return SchemaDiff()
    mine, theirs, same = values_of(old), values_of(new), alike(old, new)
    removed = tuple(name for name in mine if name not in theirs)
    added = tuple(name for name in theirs if name not in mine)
    changed = tuple(name for name in mine if name in theirs and name not in same)
    retyped = tuple(name for name in mine if name in same and mine[name] != theirs[name])
    is_nested = not (removed or added or changed) and old.tree != new.tree
    was, now = _texts(old), _texts(new)
    lines = [f"changed: {was[name]} -> {now[name].removeprefix(f'{name}: ')}" for name in changed]
    for name in retyped:
        words = _other_words(mine[name][1], theirs[name][1])
        lines += words or [f"other type: {was[name]} -> {now[name].removeprefix(f'{name}: ')}"]
    lines += [f"removed: {was[name]}" for name in removed] + [f"added: {now[name]}" for name in added]
    lines += ["the rows nest otherwise, or have their keys in another order"] if is_nested else []
    return SchemaDiff(added, removed, changed, retyped, is_nested, "\n".join(lines))


def _other_words(old: Iterable[Column], new: Iterable[Column]) -> list[str]:
    """A line for each column whose codes are numbers of other words."""
    lines = []
    for one, other in zip(old, new, strict=True):
        was, now = one.meaning.words or (), other.meaning.words or ()
        if was != now:
            gone, come = (
                [word for word in some if word not in rest] for some, rest in ((was, {*now}), (now, {*was}))
            )
            found = [_listed("removed", gone), _listed("added", come)]
            lines.append(f"words of {one.name}: {', '.join(filter(None, found)) or 'in another order'}")
    return lines


def _listed(what: str, words: list[str]) -> str:
    more = ", ..." if len(words) > _MOST_WORDS else ""
    return f"{what} {', '.join(words[:_MOST_WORDS])}{more}" if words else ""


def _texts(schema: Schema) -> dict[str, str]:
    """The columns of each value, for a message."""
    return {name: "; ".join(map(str, columns)) for name, (_, columns) in values_of(schema).items()}
