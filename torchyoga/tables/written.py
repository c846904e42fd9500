"""Rows -> Arrow tables and Parquet files, block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..errors import SchemaError
from ..process.distinct import distinct
from ..reading.dataref import DataRef
from ..reading.in_epoch import in_epoch
from ..rows.block import Block
from ..rows.collector import block_of
from .arrow import empty_block
from .to_arrow import batch_of

__all__ = ["batches_of", "table_of", "write_parquet"]

_BYTES = 64 * 2**20
_SAMPLE = 64
_MOST_ROWS = 2**20


def table_of(ref: DataRef, with_words: bool = True) -> pa.Table:
    """All rows as a table; see `DataRef.to_arrow`.

    Args:
        ref: the rows.
        with_words: True if codes become dictionaries, False if they stay numbers.
    """
    return pa.Table.from_batches(batches_of(ref, _BYTES, with_words), _schema(ref, with_words))


def _schema(ref: DataRef, with_words: bool = True) -> pa.Schema:
    if ref.schema is None:
        if not len(ref):
            return pa.schema([])
        raise TypeError(
            f"{ref!r} does not say what its rows look like, so they make no table; pass the schema to map"
        )
    return batch_of(empty_block(ref.schema), with_words).schema


def batches_of(ref: DataRef, nbytes: int, with_words: bool = True) -> Iterator[pa.RecordBatch]:
    """All rows as record batches of about so many bytes."""
    if not len(ref) or ref.schema is None:
        return
    source = in_epoch(ref, 0, 0)

    def block(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Block:
        return block_of(source.take(rows), ref.schema)

    some = distinct(np.linspace(0, len(ref) - 1, min(_SAMPLE, len(ref))).astype(np.int64))
    row_bytes = max(1.0, block(some).nbytes / len(some))
    step = min(max(1, int(nbytes / row_bytes)), _MOST_ROWS)
    for start in range(0, len(ref), step):
        yield batch_of(block(np.arange(start, min(start + step, len(ref)))), with_words)


def write_parquet(ref: DataRef, path: str | os.PathLike[str], group_bytes: int) -> None:
    """Writes all rows into a Parquet file; see `DataRef.to_parquet`."""
    import pyarrow.parquet as pq

    schema = _schema(ref)
    if not len(schema):
        raise SchemaError("rows without columns make no Parquet file")
    target = Path(path).expanduser().absolute()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            for batch in batches_of(ref, group_bytes):
                writer.write_table(pa.Table.from_batches([batch], schema), row_group_size=max(1, len(batch)))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
