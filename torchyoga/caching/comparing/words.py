"""The rows of a DataRef -> words of 64 bits: hashes of each, and its number, many rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.dataref import DataRef
from ...reading.version_ref import VersionRef
from ...rows.block import Block, Rows
from ...rows.hashing import Hashes, key_words, row_hashes
from ...rows.projection import Projection
from ...rows.schema import Schema
from .blocks import Ranges, RowBlocks
from .kept_hashes import HashReader, hashes_of, kept_hashes

__all__ = ["Side"]

Ints = npt.NDArray[np.int64]
_STEP = 2**18  # rows, of hashes that are kept


@dataclass(frozen=True)
class Side:
    """One of two datasets that are compared.

    Attributes:
        ref: its rows.
        schema: what they look like; None without rows.
        of: the columns that are compared; None for all.
        keys: names of the columns that say which rows belong together; empty for whole rows.
        ranges: the rows that are compared, ascending.
        anew: hashes are computed, whatever is kept.
    """

    ref: DataRef
    schema: Schema | None
    of: Projection | None
    keys: Sequence[str]
    ranges: Ranges
    anew: bool = False

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
            for first, block in RowBlocks(self.ref, self.schema, self.of).within(self.ranges):
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
        if self.of is not None or self.anew or not isinstance(self.ref, VersionRef) or not self.ranges:
            return None
        # All are made only if all are wanted.
        return (hashes_of if self.num_rows == len(self.ref) else kept_hashes)(self.ref)

    def _of_block(self, rows: Ints, block: Block) -> Hashes:
        if not self.keys:
            return _words(row_hashes(block), rows)
        keys = Projection.of(block.schema, self.keys).block(block)
        # Where contents are confirmed, keys are certain, too.
        return _words(key_words(keys, self.anew), rows, row_hashes(block))

    def key_blocks(self, ranges: Ranges) -> Iterator[tuple[int, Block]]:
        """The columns of the key of some rows: the first row of each block, and the block."""
        if self.schema is None:
            return iter(())
        return RowBlocks(self.ref, self.schema, Projection.of(self.schema, self.keys)).within(ranges)

    def block(self, rows: Ints) -> Block:
        """What is compared of some rows."""
        return RowBlocks(self.ref, self.schema, self.of).take(rows)

    def key_texts(self, rows: Ints) -> list[str]:
        """The keys of some rows, for a message."""
        assert self.schema is not None
        of = Projection.of(self.schema, self.keys)
        return [f"{row!r:.80}" for row in Rows(RowBlocks(self.ref, self.schema, of).take(rows)).exact()]


def _words(hashes: Hashes, rows: Ints, contents: Hashes | None = None) -> Hashes:
    parts = [hashes, rows[:, None].astype(np.uint64)]
    return np.concatenate(parts if contents is None else [*parts, contents], axis=1)
