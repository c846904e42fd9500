"""Two blocks of as many rows -> which rows differ in which columns, exactly or not; and two schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .block import Block
from .column import Column
from .data import Data, bounds_of
from .hashing import alike, values_of
from .schema import Schema
from .types import Array

Bools = npt.NDArray[np.bool_]
_MOST_WORDS = 10  # in a line


def differing(one: Block, other: Block, tolerances: Mapping[str, float] | None = None) -> Bools:
    """(N, columns) where rows of two blocks of the same columns differ.

    Args:
        one: N rows.
        other: as many, with the same columns in any order, each of the same look.
        tolerances: for columns of floats, by name, by how much values may differ; else their bits count.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> one = block_of([{"x": 1, "y": "a"}, {"x": 1, "y": "a"}])
        >>> other = block_of([{"x": 1, "y": "a"}, {"x": 1, "y": "b"}])
        >>> differing(one, other).tolist()
        [[False, False], [False, True]]
    """
    found = np.zeros((one.num_rows, len(one.data)), np.bool_)
    theirs = {column.name: data for column, data in zip(other.schema.columns, other.data, strict=True)}
    for number, (column, mine) in enumerate(zip(one.schema.columns, one.data, strict=True)):
        tolerance = (tolerances or {}).get(column.name)
        found[:, number] = _differing(column, mine, theirs[column.name], one.num_rows, tolerance)
    return found


def _differing(column: Column, one: Data, other: Data, num_rows: int, tolerance: float | None) -> Bools:
    if not column.is_ragged:
        apart = _unequal(column, one.values, other.values, tolerance)
        return np.asarray(apart.reshape(num_rows, -1 if num_rows else 0).any(axis=1))
    lengths = np.diff(one.part("offsets"))
    found: Bools = lengths != np.diff(other.part("offsets"))
    if column.ndim > 1:
        found |= (one.part("shapes") != other.part("shapes")).any(axis=1)
    if found.any():
        for row in np.flatnonzero(~found).tolist():
            found[row] = _unequal(column, one.row(row), other.row(row), tolerance).any()
        return found
    unequal = _unequal(column, one.values, other.values, tolerance)
    counts, bounds = bounds_of(unequal), bounds_of(lengths)
    return counts[bounds[1:]] > counts[bounds[:-1]]


def _unequal(column: Column, one: Array, other: Array, tolerance: float | None) -> Bools:
    """Which of as many values differ, as an array of one dimension."""
    one, other = (np.ascontiguousarray(values, column.storage).reshape(-1) for values in (one, other))
    size = column.storage.itemsize
    if not one.size or not size:
        return np.zeros(one.size, np.bool_)
    if tolerance is None or column.letter not in "fc":
        mine, theirs = (values.view(np.uint8).reshape(-1, size) for values in (one, other))
        return np.asarray((mine != theirs).any(axis=1))
    one, other = _floats(column, one), _floats(column, other)
    with np.errstate(invalid="ignore"):  # of infinities, which are equal to themselves
        is_near = np.abs(one - other) <= tolerance
    both_nan = np.isnan(one) & np.isnan(other)
    found: Bools = ~(is_near | (one == other) | both_nan)
    return found


def _floats(column: Column, values: Array) -> Array:
    if column.storage.kind in "fc":
        # So that differences of halves do not overflow, and are not rounded to the tolerance.
        return values.astype(np.promote_types(values.dtype, np.float64))
    return torch.from_numpy(values).view(getattr(torch, column.dtype)).double().numpy()


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
