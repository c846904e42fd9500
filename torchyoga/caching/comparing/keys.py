"""Keys of the rows of two datasets, of which some lie in common files -> an error if one is there twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...rows.hashing import Hashes, key_words
from .blocks import Ranges
from .matching import grouped
from .spool import PART_ROWS, Parts
from .words import Side

__all__ = ["NAMED", "refuse_shared_keys", "repeated"]

Ints = npt.NDArray[np.int64]
NAMED = 3  # keys in a message
_SEEN_BITS = 26  # of a key, by which most that are not there are told
_SEEN_SHIFT = np.uint64(64 - _SEEN_BITS)


def repeated(side: Side, rows: Ints, count: int) -> ValueError:
    """An error that names some of the keys that occur twice in a dataset.

    Args:
        side: the dataset.
        rows: a row of each of some of these keys.
        count: how many such keys were found.
    """
    texts = side.key_texts(np.sort(rows[:NAMED]))
    more = f" and {count - len(texts):,} more" if count > len(texts) else ""
    named = ", ".join(map(repr, side.keys))
    return ValueError(
        f"the key {named} must be another one in each row, but {', '.join(texts)}{more} occur several times "
        f"in {side.ref!r:.200}; name more columns in key=, or leave it out to compare whole rows"
    )


def refuse_shared_keys(old: Side, new: Side, common: Ranges) -> None:
    """Raises ValueError if a row of either dataset has the key of a row in files that both have.

    Args:
        old: a dataset; its rows are those in files that it has alone.
        new: the other one.
        common: rows of the new dataset in files that both have.
    """
    if not common or not old.num_rows + new.num_rows:
        return
    sides = [old, new]
    if old.num_rows + new.num_rows <= PART_ROWS:
        held = [list(_tokens(side, side.ranges)) for side in sides]
        few = np.concatenate([tokens for found in held for _, tokens in found])
        seen = np.zeros(2**_SEEN_BITS, np.bool_)
        seen[few[:, 0] >> _SEEN_SHIFT] = True
        near: list[Hashes] = []
        for _, tokens in _tokens(new, common):
            near.append(tokens[seen[tokens[:, 0] >> _SEEN_SHIFT]])
            if sum(map(len, near)) >= PART_ROWS:
                _refuse(sides, held, np.concatenate(near))
                near = []
        if near:
            _refuse(sides, held, np.concatenate(near))
        return
    num_rows = sum(side.num_rows for side in sides) + sum(stop - start for start, stop in common)
    dealt = [Parts(3, num_rows) for _ in range(3)]
    for parts, side, ranges in zip(dealt, [*sides, new], [old.ranges, new.ranges, common], strict=True):
        for rows, tokens in _tokens(side, ranges):
            parts.append(np.concatenate([tokens, rows[:, None].astype(np.uint64)], axis=1))
    for first, second, shared in zip(*dealt, strict=True):
        found = [[(words[:, 2].astype(np.int64), words[:, :2])] for words in (first, second)]
        _refuse(sides, found, shared[:, :2])


def _refuse(sides: Sequence[Side], held: Sequence[Sequence[tuple[Ints, Hashes]]], tokens: Hashes) -> None:
    """Raises ValueError if a row of a dataset has one of some keys.

    Args:
        sides: the datasets.
        held: of each, the numbers of rows, and the tokens of their keys.
        tokens: (N, 2) of keys.
    """
    for side, found in zip(sides, held, strict=True):
        if not found:
            continue
        rows = np.concatenate([numbers for numbers, _ in found])
        mine = np.concatenate([words for _, words in found])
        groups = grouped(mine, tokens)
        both = np.flatnonzero((groups.olds > 0) & (groups.olds < np.diff(groups.starts)))
        if len(both):
            places = groups.order[groups.starts[:-1][both[:NAMED]]]
            raise repeated(side, rows[places], len(both))


def _tokens(side: Side, ranges: Ranges) -> Iterator[tuple[Ints, Hashes]]:
    """Numbers of rows (N,), and for each two words (N, 2) that are the same for the same key only."""
    for first, block in side.key_blocks(ranges):
        yield np.arange(first, first + block.num_rows), key_words(block)
