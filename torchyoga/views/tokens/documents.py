"""A ragged column of a DataRef as documents: their lengths, and parts of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...rows.collector import block_of
from ...rows.data import check_parts, taken_runs
from ...rows.types import Array, Ints

_ROWS, _BYTES = 2**18, 2**25  # at once, at most
_ROW_BYTES = 2**15  # of a document, where they are not known
_MOST = 2**62


def lengths_of(column: DataRef) -> Ints:
    """(N,) how many elements each row of a ragged column has; of a cached version only offsets are read.

    Rows that are made with random numbers are those of epoch 0 with seed 0.

    Raises:
        TypeError: it is not a ragged column.
    """
    count = len(column)
    found = np.empty(count, np.int64)
    step = max(1, min(_ROWS, _BYTES // (column._row_bytes or _ROW_BYTES)))
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        if column._is_random:
            (data, *_) = block_of(in_epoch(column, 0, 0).take(rows), column.schema).data
            found[rows] = np.diff(data.part("offsets"))
        else:
            found[rows] = column.in_epoch(0).lengths(rows)
    return found


def checked_lengths(given: npt.ArrayLike, count: int) -> Ints:
    """Lengths of rows that a user gave, as int64.

    Args:
        given: (N,) whole numbers of at least 0.
        count: N.

    Raises:
        TypeError: they are no whole numbers.
        ValueError: there are not as many, or one is below 0, or all together are over 2**62.
    """
    found = np.asarray(given)
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"lengths must be whole numbers, found {found.dtype}")
    if found.shape != (count,):
        raise ValueError(f"lengths must be one for each of the {count} rows, found the shape {found.shape}")
    if count and (int(found.min()) < 0 or int(found.max()) > _MOST or found.sum(dtype=float) > _MOST):
        raise ValueError(
            f"lengths must be at least 0, and at most 2**62 together; found {found.min()} to {found.max()}"
        )
    return found.astype(np.int64)


def parts_of(column: DataRef, rows: Ints, starts: Ints, stops: Ints) -> Array:
    """Parts of rows, as `DataRef._take_parts` gives them; random rows are those of epoch 0 with seed 0."""
    if not column._is_random or not len(rows):
        return column.in_epoch(0)._take_parts(rows, starts, stops)
    read, places = np.unique(rows, return_inverse=True)
    (data, *_) = block_of(in_epoch(column, 0, 0).take(read), column.schema).data
    offsets = data.part("offsets")
    first = offsets[places]
    check_parts(rows, offsets[places + 1] - first, starts, stops)
    return taken_runs(data.values, first + starts, first + stops)
