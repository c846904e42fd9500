"""Two blocks of as many rows -> in which columns which rows differ, by bits or by a tolerance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from .block import Block
from .column import Column
from .data import Data
from .types import Array

__all__ = ["differing", "is_float"]

Bools = npt.NDArray[np.bool_]


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


def is_float(column: Column) -> bool:
    """True for a column of floats or complex numbers, also of torch's types that NumPy lacks."""
    return column.storage.kind in "fc" or column.dtype.startswith(("bfloat", "float8"))


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
    counts = np.append(0, np.cumsum(unequal))
    bounds = np.append(0, np.cumsum(lengths))
    differs: Bools = counts[bounds[1:]] > counts[bounds[:-1]]
    return differs


def _unequal(column: Column, one: Array, other: Array, tolerance: float | None) -> Bools:
    """Which of as many values differ, as an array of one dimension."""
    one, other = (np.ascontiguousarray(values, column.storage).reshape(-1) for values in (one, other))
    size = column.storage.itemsize
    if not one.size or not size:
        return np.zeros(one.size, np.bool_)
    if tolerance is None or not is_float(column):
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
        wide: Array = values.astype(np.promote_types(values.dtype, np.float64))
        return wide
    return torch.from_numpy(values).view(getattr(torch, column.dtype)).double().numpy()
