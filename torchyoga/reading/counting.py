"""Statistics of the columns of any DataRef: those that a version keeps, or counted now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..order.full import as_int
from ..process.progress import progress_bar
from ..rows.block import Rows
from ..rows.collector import block_of
from ..rows.schema import Schema
from ..rows.stats.column_stats import TableStats
from ..rows.stats.statistics import TableStatistics
from ..rows.types import Row
from .dataref import DataRef
from .in_epoch import in_epoch
from .version_ref import VersionColumns, VersionRef

__all__ = ["stats"]

_BYTES, _ROWS = 2**22, 2**16  # read at once
_FIRST_ROWS = 64  # from which it is learned what rows look like


def stats(ref: DataRef, rows: int | None, seed: int, progress: bool | None) -> TableStats:
    """The statistics that `DataRef.stats` returns."""
    limit = None if rows is None else as_int("rows", rows, low=1)
    if isinstance(ref, (VersionRef, VersionColumns)) and ref.manifest.stats:
        return ref.manifest.known_stats(ref.projection if isinstance(ref, VersionColumns) else None)
    schema, total = ref.schema, len(ref)
    numbers = None
    if limit is not None and limit < total:
        numbers = np.sort(np.random.default_rng(seed).choice(total, limit, replace=False, shuffle=False))
    wanted = total if numbers is None else len(numbers)
    found = None if schema is None else TableStatistics(schema)
    source = in_epoch(ref, 0, 0)
    step = max(1, min(_ROWS, _BYTES // ref.row_bytes)) if ref.row_bytes else _FIRST_ROWS
    with progress_bar(progress, wanted, "statistics", " rows") as bar:
        start = 0
        while start < wanted:
            stop = min(start + step, wanted)
            read = np.arange(start, stop) if numbers is None else numbers[start:stop].astype(np.int64)
            given = source.take(read)
            if found is None:
                schema = _schema_of(given)
                found = TableStatistics(schema)
            # Rows of a sample are numbered anew, so that wide ones are sampled alike.
            found.add(block_of(given, schema), start)
            bar.update(stop - start)
            start = stop
    return TableStats({}, 0, 0) if found is None else found.known(total)


def _schema_of(rows: Sequence[Row]) -> Schema:
    return rows.block.schema if isinstance(rows, Rows) else block_of(rows).schema
