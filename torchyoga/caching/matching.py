"""Hashes of the rows of two datasets, as words of 64 bits -> which rows of one are rows of the other.

Hashes are sorted with their place in the low bits.
NumPy sorts numbers of 64 bits several times faster than it finds the order that sorts them. So the low bits
of a word of each hash make room for its place; those few that agree in the other bits are sorted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..rows.block import Block, Rows
from ..rows.comparing import Hashes, key_words, row_hashes
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Ints
from .row_hashes import HashReader, Parts, Ranges, RowBlocks, hashes_of, kept_hashes

_STEP = 2**18  # rows, of hashes that are kept


class GroupedRows(NamedTuple):
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


def grouped(old: Hashes, new: Hashes) -> GroupedRows:
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
    return GroupedRows(order, np.append(starts, count).astype(np.int64), olds)


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


def matched(groups: GroupedRows, num_old: int) -> Matched:
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


@dataclass(frozen=True)
class Side:
    """One of two datasets that are compared.

    Attributes:
        ref: its rows.
        schema: what they look like; None without rows.
        names: of the values that are compared.
        keys: names of the columns that say which rows belong together; empty for whole rows.
        ranges: the rows that are compared, ascending.
    """

    ref: DataRef
    schema: Schema | None
    names: Sequence[str]
    keys: Sequence[str]
    ranges: Ranges

    @cached_property
    def blocks(self) -> RowBlocks:
        """The values that are compared, many rows at once."""
        of = Projection.of(self.schema, self.names) if self.schema is not None and self.names else None
        is_whole = of is None or self.schema is None or len(of.columns) == len(self.schema.columns)
        return RowBlocks(self.ref, self.schema, None if is_whole else of)

    @cached_property
    def _keys(self) -> RowBlocks:
        """The columns of the key."""
        assert self.schema is not None
        return RowBlocks(self.ref, self.schema, Projection.of(self.schema, self.keys))

    @property
    def num_rows(self) -> int:
        """Rows that are compared."""
        return sum(stop - start for start, stop in self.ranges)

    def words(self) -> Iterator[Hashes]:
        """(N, 3) two words of the hash of each row, and its number.

        With keys (N, 5): two words of the key, as `key_words` gives them, the number, and two of the hash of
        the row.
        """
        kept = self._kept()
        if kept is None:
            for first, block in self.blocks.within(self.ranges):
                yield self._of_block(np.arange(first, first + block.num_rows), block)
        elif self.keys:
            for first, keys in self.key_blocks(self.ranges):
                stop = first + keys.num_rows
                yield _words(key_words(keys), np.arange(first, stop), kept.read(first, stop))
        else:
            for start, stop in self.ranges:
                for first in range(start, stop, _STEP):
                    last = min(first + _STEP, stop)
                    yield _words(kept.read(first, last), np.arange(first, last))

    def _kept(self) -> HashReader | None:
        if self.blocks.of is not None or not isinstance(self.ref, VersionRef) or not self.ranges:
            return None
        # All are made only if all are wanted.
        return (hashes_of if self.num_rows == len(self.ref) else kept_hashes)(self.ref)

    def _of_block(self, rows: Ints, block: Block) -> Hashes:
        if not self.keys:
            return _words(row_hashes(block), rows)
        keys = Projection.of(block.schema, self.keys).block(block)
        return _words(key_words(keys), rows, row_hashes(block))

    def key_blocks(self, ranges: Ranges) -> Iterator[tuple[int, Block]]:
        """The columns of the key of some rows: the first row of each block, and the block."""
        return iter(()) if self.schema is None else self._keys.within(ranges)

    def key_texts(self, rows: Ints) -> list[str]:
        """The keys of some rows, for a message."""
        return [f"{row!r:.80}" for row in Rows(self._keys.take(rows)).exact()]


def _words(hashes: Hashes, rows: Ints, contents: Hashes | None = None) -> Hashes:
    parts = [hashes, rows[:, None].astype(np.uint64)]
    return np.concatenate(parts if contents is None else [*parts, contents], axis=1)


def dealt(old: Side, new: Side) -> Iterator[tuple[Hashes, Hashes]]:
    """The words of two datasets, part by part: equal rows are in the same part."""
    both = []
    for side in (old, new):
        parts = Parts(5 if side.keys else 3, old.num_rows + new.num_rows)
        for words in side.words():
            parts.append(words)
        both.append(parts)
    return zip(*both, strict=True)
