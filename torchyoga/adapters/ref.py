"""A DataRef that knows its columns -> blocks: no row is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..building.sources import SeekableBlocks
from ..process.distinct import distinct
from ..reading.dataref import DataRef
from ..reading.in_epoch import in_epoch
from ..rows.block import Block, equal_blocks
from ..rows.collector import block_of
from ..rows.schema import Schema

__all__ = ["RefSource", "source_of"]

Ints = npt.NDArray[np.int64]
_SAMPLE = 64
_MOST_ROWS = 2**20


def source_of(data: object, schema: Schema | None = None) -> RefSource | None:
    """A DataRef that knows its columns as a source; None for anything else.

    Also None if the rows are to have another schema: then each is looked at, as in any other dataset.
    """
    if not isinstance(data, DataRef) or data.schema is None or schema not in (None, data.schema):
        return None
    fingerprint = data.fingerprint
    if isinstance(data, _InBlocks) and fingerprint is not None:
        return InBlocksSource(data, data.schema, fingerprint)
    return RefSource(data, data.schema)


@runtime_checkable
class _InBlocks(Protocol):
    """A DataRef that has its own way to read all rows once, in order."""

    def blocks(self, start: int, nbytes: int) -> Iterator[Block]:
        """The rows from `start` on, in blocks of about `nbytes` bytes."""


class RefSource(SeekableBlocks):
    """The rows of a DataRef with a schema, many at once.

    Args:
        ref: a DataRef; if it is random, its rows are those of epoch 0 with seed 0.
        schema: its schema.
    """

    def __init__(self, ref: DataRef, schema: Schema) -> None:
        self.length = len(ref)
        self.schema = schema
        self.name = type(ref).__name__
        self.fingerprint = ref.fingerprint
        self._ref = ref

    @property
    def ref(self) -> DataRef:
        """The DataRef."""
        return self._ref

    def some(self, numbers: Ints) -> Block | None:
        """Some rows."""
        return self._block(numbers)

    def blocks_from(self, start: int, nbytes: int) -> Iterator[Block]:
        """The rows from number `start` on; some of all show how many make a block."""
        length = len(self._ref)
        if not length:
            return
        some = np.unique(np.linspace(0, length - 1, min(_SAMPLE, length)).astype(np.int64))
        row_bytes = max(1.0, self._block(some).nbytes / len(some))
        step = min(max(1, int(nbytes / row_bytes)), _MOST_ROWS)
        for first in range(start, length, step):
            yield self._block(np.arange(first, min(first + step, length)))

    def differ(self) -> bool:
        """True if rows would be others in the next epoch, as the first, middle and last one show."""
        if not self._ref.is_random or not len(self._ref):
            return False
        numbers = distinct(np.array([0, len(self._ref) // 2, len(self._ref) - 1]))
        one, other = (block_of(in_epoch(self._ref, epoch, 0).take(numbers), self.schema) for epoch in (0, 1))
        return not equal_blocks(one, other, range(len(numbers)))

    def _block(self, numbers: Ints) -> Block:
        return block_of(in_epoch(self._ref, 0, 0).take(numbers), self.schema)


class InBlocksSource(RefSource):
    """The rows of a DataRef that gives blocks of its own, from any row on.

    Args:
        ref, schema: see `RefSource`.
        fingerprint: of the DataRef.
    """

    def __init__(self, ref: DataRef, schema: Schema, fingerprint: str) -> None:
        super().__init__(ref, schema)
        self.fingerprint = fingerprint

    def blocks_from(self, start: int, nbytes: int) -> Iterator[Block]:
        """The rows from `start` on."""
        assert isinstance(self._ref, _InBlocks)
        return self._ref.blocks(start, nbytes)

    def some(self, numbers: Ints) -> Block | None:
        """None: its rows follow from its fingerprint."""
        return None

    def differ(self) -> bool:
        """False: its rows follow from its fingerprint."""
        return False
