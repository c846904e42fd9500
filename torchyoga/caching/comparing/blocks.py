"""Rows of any DataRef -> blocks of some of their columns, many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import SchemaError
from ...process.distinct import spread
from ...reading.dataref import DataRef
from ...reading.in_epoch import in_epoch
from ...rows.block import Block
from ...rows.collector import Collector, block_of
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Ints

__all__ = ["Ranges", "RowBlocks", "known_schema"]

Ranges = Sequence[tuple[int, int]]
_BYTES, _ROWS = 2**24, 2**16  # of a block, at most; of one row, if it is larger
_RAGGED_BYTES = 2**10  # of a value, where they are not known
_SAMPLE = 256  # rows that show what all look like, where the DataRef does not say it


def known_schema(ref: DataRef, like: Schema | None = None) -> Schema | None:
    """The schema of the rows; of a DataRef that does not say it, as some rows show; None without rows.

    Args:
        ref: any DataRef.
        like: a schema that is taken if these rows fit it.

    Raises:
        SchemaError: rows hold something that cannot be kept, or are not alike.
    """
    if ref.schema is not None or not len(ref):
        return ref.schema
    numbers = spread(len(ref), _SAMPLE)
    rows = in_epoch(ref, 0, 0).take(numbers)
    for schema in (like, None):
        collector = Collector(schema)
        try:
            for number, row in zip(numbers.tolist(), rows, strict=True):
                collector.add(row, number)
            return collector.take().schema
        except SchemaError:
            if schema is None:
                raise
    return None


@dataclass(frozen=True)
class RowBlocks:
    """The rows of a DataRef, as blocks; those of a random one are those of epoch 0 with seed 0.

    Attributes:
        ref: any DataRef.
        schema: what `known_schema` gave of it; None without rows.
        of: the columns wanted, of the schema; None for all.
    """

    ref: DataRef
    schema: Schema | None
    of: Projection | None = None

    def take(self, rows: Ints) -> Block:
        """The rows of these numbers; at least one."""
        ref, of = self.ref, self.of
        if of is not None and ref.schema is not None:
            ref, of = ref._projected(of), None
        schema = ref.schema or self.schema
        try:
            found = block_of(in_epoch(ref, 0, 0).take(rows), schema)
        except SchemaError as error:
            if ref.schema is not None:
                raise
            raise SchemaError(
                f"of {len(rows)} rows from {rows[0]} on, {error}. This DataRef does not say what its rows "
                "look like, and some of them show something else: submit it first, or pass schema= to map"
            ) from None
        return found if of is None else of.block(found)

    def within(self, ranges: Ranges) -> Iterator[tuple[int, Block]]:
        """The rows of some ranges, in order: the first row of each block, and the block."""
        for first, rows in self._cut(ranges):
            yield first, self.take(rows)

    def _cut(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Ints]]:
        step = max(1, min(_ROWS, _BYTES // max(1, self._row_bytes())))
        for start, stop in ranges:
            for first in range(start, stop, step):
                yield first, np.arange(first, min(first + step, stop))

    def _row_bytes(self) -> int:
        known = self.ref._row_bytes
        if known or self.schema is None:
            return known
        return sum(_RAGGED_BYTES if column.is_ragged else column.row_bytes for column in self.schema.columns)
