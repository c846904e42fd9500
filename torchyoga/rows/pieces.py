"""Runs of elements of one array: taken out end to end, or put where they belong."""

from __future__ import annotations

import numpy as np

from .types import Array, Ints

_LONG = 64  # elements of an average run, from which on slices beat a fancy index


def numbered_within(sizes: Ints) -> Ints:
    """0, 1, 2, ... within each of several runs, end to end.

    Args:
        sizes: (N,) of the runs.

    Example:
        >>> numbered_within(np.array([2, 0, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def taken_runs(values: Array, first: Ints, last: Ints) -> Array:
    """The elements from `first[i]` to before `last[i]` of each run, end to end; a copy.

    Example:
        >>> taken_runs(np.arange(9), np.array([5, 0]), np.array([7, 1])).tolist()
        [5, 6, 0]
    """
    sizes = last - first
    if int(sizes.sum()) > _LONG * len(sizes):
        slices = zip(first.tolist(), last.tolist(), strict=True)
        return np.concatenate([values[start:stop] for start, stop in slices])
    found: Array = values[np.repeat(first, sizes) + numbered_within(sizes)]
    return found


def joined_runs(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The same runs, those that continue each other as one; all of one size if that can be.

    Args:
        first: (N,) the first element of each.
        last: (N,) the element after its last.

    Example:
        >>> joined_runs(np.array([5, 7, 0, 9, 13]), np.array([7, 9, 4, 13, 17]))
        (array([ 5,  0,  9, 13]), array([ 9,  4, 13, 17]))
    """
    some = last > first
    first, last = first[some], last[some]
    most = len(first)
    if most < 2:
        return first, last
    is_begun = np.append(True, first[1:] != last[:-1])
    first, last = first[is_begun], last[np.append(is_begun[1:], True)]
    sizes = last - first
    size = int(sizes.min())
    counts, rest = np.divmod(sizes, size)
    if len(counts) > 1 and not rest.any() and len(counts) < int(counts.sum()) <= most:
        first = np.repeat(first, counts) + size * numbered_within(counts)
        last = first + size
    return first, last


def put_runs(out: Array, starts: Ints, values: Array, sizes: Ints) -> None:
    """Writes runs that lie end to end in `values` to their `starts` in `out`.

    Example:
        >>> out = np.zeros(5, np.int64)
        >>> put_runs(out, np.array([3, 0]), np.array([7, 8, 9]), np.array([2, 1]))
        >>> out.tolist()
        [9, 0, 0, 7, 8]
    """
    if len(values) > _LONG * len(sizes):
        done = 0
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            out[start : start + size] = values[done : done + size]
            done += size
        return
    out[np.repeat(starts, sizes) + numbered_within(sizes)] = values


def check_parts(rows: Ints, lengths: Ints, starts: Ints, stops: Ints) -> None:
    """Raises IndexError unless each row (N,) of so many elements has those from its start to its stop."""
    wrong = (starts < 0) | (stops < starts) | (stops > lengths)
    if wrong.any():
        nth = int(np.flatnonzero(wrong)[0])
        raise IndexError(
            f"elements {starts[nth]} to {stops[nth]} of row {rows[nth]}, which has {lengths[nth]} elements"
        )
