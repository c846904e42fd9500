"""A DataRef that knows its columns -> blocks: no row is looked at."""

from __future__ import annotations

import numpy as np

from ..build import BlockSource
from ..columns import Block, Rows
from ..dataref import DataRef
from ..schema import Schema

__all__ = ["RefSource"]

_SAMPLE = 64


class RefSource(BlockSource):
    """The rows of a DataRef with a schema, many at once.

    Args:
        ref: gives `Rows`, as DataRefs over columns do.
        schema: its schema.
    """

    def __init__(self, ref: DataRef, schema: Schema) -> None:
        self.length = len(ref)
        self.schema = schema
        self.name = type(ref).__name__
        self._ref = ref

    def row_bytes(self) -> float:
        """Bytes of an average row, told by some of them."""
        some = np.unique(np.linspace(0, self.length - 1, min(_SAMPLE, self.length)).astype(np.int64))
        return self._block(some).nbytes / len(some)

    def block(self, start: int, stop: int) -> Block:
        """The rows start..stop-1."""
        return self._block(np.arange(start, stop))

    def _block(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Block:
        rows = self._ref.take(numbers)
        assert isinstance(rows, Rows), "only a DataRef over columns has a schema"
        return rows.block
