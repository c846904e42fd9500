"""Hashes of the rows of two datasets -> which rows of one are rows of the other: arithmetic over arrays.

Note 119. Hashes are sorted with their place in the low bits.
NumPy sorts numbers of 64 bits several times faster than it finds the order that sorts them. So the low bits
of a word of each hash make room for its place; those few that agree in the other bits are sorted again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...process.distinct import distinct
from ...rows.hashing import Hashes

__all__ = ["Groups", "Matched", "grouped", "matched"]

Ints = npt.NDArray[np.int64]


class Groups(NamedTuple):
    """Rows of two datasets, equal ones side by side.

    Attributes:
        order: (N,) places of all rows, those of the old dataset first; in a group they ascend.
        starts: (G + 1,) where each group begins in `order`, and N.
        olds: (G,) how many rows of the old dataset each group has.
    """

    order: Ints
    starts: Ints
    olds: Ints


class Matched(NamedTuple):
    """Rows of two datasets, by their places in each.

    Attributes:
        old: (K,) rows of the old one that are paired with those of the new one, `new` (K,).
        removed: rows of the old one that have no partner; `added`: of the new one.
    """

    old: Ints
    new: Ints
    removed: Ints
    added: Ints


def grouped(old: Hashes, new: Hashes) -> Groups:
    """The rows of two datasets by their hashes.

    Args:
        old: (N, 2) hashes of the old rows.
        new: (M, 2) of the new ones.

    Example:
        >>> old, new = (np.array([[n, n] for n in numbers], np.uint64) for numbers in ([7, 5], [5, 5]))
        >>> found = grouped(old, new)
        >>> found.order.tolist(), found.starts.tolist(), found.olds.tolist()
        ([1, 2, 3, 0], [0, 3, 4], [1, 1])
    """
    both = np.concatenate([old, new])
    count = len(both)
    order, is_first = _sorted(both)
    starts = np.flatnonzero(is_first)
    olds = np.zeros(0, np.int64)
    if count:
        olds = np.add.reduceat((order < len(old)).astype(np.int64), starts)
    return Groups(order, np.append(starts, count).astype(np.int64), olds)


def _sorted(hashes: Hashes) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Places (N,) with equal hashes side by side, ascending among themselves; and which begin a group."""
    count = len(hashes)
    if count < 2:
        return np.arange(count), np.ones(count, np.bool_)
    low = np.uint64(2 ** (count - 1).bit_length() - 1)
    packed = (hashes[:, 1] & ~low) | np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & low).astype(np.int64)
    differs = np.append(True, (packed[1:] & ~low) != (packed[:-1] & ~low))
    is_first = differs.copy()
    near = np.flatnonzero(~differs)  # places whose sorted bits are those of the place before
    is_other = (hashes[order[near]] != hashes[order[near - 1]]).any(axis=1)
    is_first[near] = is_other
    if is_other.any():
        runs = np.append(np.flatnonzero(differs), count)
        for run in distinct(np.searchsorted(runs, near[is_other], side="right") - 1).tolist():
            start, stop = int(runs[run]), int(runs[run + 1])
            places = np.sort(order[start:stop])
            held = hashes[places]
            places = places[np.lexsort((places, held[:, 0], held[:, 1]))]
            order[start:stop] = places
            is_first[start + 1 : stop] = (hashes[places[1:]] != hashes[places[:-1]]).any(axis=1)
    return order, is_first


def matched(groups: Groups, num_old: int) -> Matched:
    """Each row paired with an equal one, as often as both datasets have it; the first ones of each.

    Args:
        groups: of all rows; `num_old` of them are of the old dataset.
        num_old: N.

    Example:
        >>> old, new = (np.array([[n, n] for n in numbers], np.uint64) for numbers in ([7, 5, 5], [5, 8]))
        >>> found = matched(grouped(old, new), 3)
        >>> found.old.tolist(), found.new.tolist(), found.removed.tolist(), found.added.tolist()
        ([1], [0], [0, 2], [1])
    """
    order, starts, olds = groups
    sizes = np.diff(starts)
    rank = np.arange(len(order)) - np.repeat(starts[:-1], sizes)
    num_before = np.repeat(olds, sizes)
    is_old = rank < num_before
    rank -= np.where(is_old, 0, num_before)
    has_partner = rank < np.repeat(np.minimum(olds, sizes - olds), sizes)
    old, new = order[is_old & has_partner], order[~is_old & has_partner] - num_old
    removed, added = order[is_old & ~has_partner], order[~is_old & ~has_partner] - num_old
    return Matched(old, new, np.sort(removed), np.sort(added))
