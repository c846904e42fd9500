"""A column -> groups: runs of rows with the same value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...reading.dataref import DataRef
from ...rows.types import Array
from ..ragged import RaggedColumn
from ..scan import Scanned, scan

__all__ = ["group_starts"]

Ints = npt.NDArray[np.int64]


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
    for start, _, columns in scan(ref, [name]):
        values = _keys(name, columns[name])
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


def _keys(name: str, values: Scanned) -> Array:
    if isinstance(values, RaggedColumn) or values.ndim != 1:
        raise ValueError(f"group_by={name!r} needs a column of one number or text a row")
    if values.dtype.kind not in "iubOSU" or values[0] is None:
        kind = "None" if values.dtype == object else values.dtype
        raise TypeError(f"group_by={name!r}: the column holds {kind}; rows are grouped by integers or text")
    return values


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
