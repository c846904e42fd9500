"""Statistics of rows in finished files, and of a version that is built in parts.

A build that goes on reads the rows that it has kept.
They are all read anyway, to compare them with their checksums. So nothing that grows with each file is noted
beside them, and notes of older builds need nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..reading.reader import Reader
from ..rows.schema import Schema
from ..rows.stats.statistics import TableStatistics
from ..rows.types import Json

__all__ = ["counted_in", "merged"]

_BYTES, _ROWS = 2**22, 2**16  # of a block


def counted_in(reader: Reader) -> TableStatistics:
    """Statistics of all rows of some files, which are read block by block.

    Raises:
        CorruptError: a file is damaged.
    """
    found = TableStatistics(reader.schema)
    nbytes = sum(file.nbytes for file in reader.files)
    step = max(1, min(_ROWS, _BYTES * reader.num_rows // max(1, nbytes)))
    for start in range(0, reader.num_rows, step):
        stop = min(start + step, reader.num_rows)
        found.add(reader.take(np.arange(start, stop)), start)
    return found


def merged(parts: Sequence[tuple[Json, int]], schema: Schema) -> Json:
    """Statistics of a version for its manifest, made of those of its parts, in any order.

    Args:
        parts: what `TableStatistics.to_json` gave of each part, and how many rows it has. Rows must have been
            numbered as in the whole version, see `build`.
        schema: of the rows.

    Returns:
        what `Manifest.stats` holds; empty if a part has none.

    Raises:
        ValueError, TypeError, KeyError: the statistics of a part are not that, or contradict themselves.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> parts = []
        >>> for start in (0, 2):
        ...     block = block_of([{"x": start}, {"x": start + 1}])
        ...     statistics = TableStatistics(block.schema)
        ...     statistics.add(block, start)
        ...     parts.append((statistics.to_json(), 2))
        >>> merged(parts, block.schema)["x"]["numbers"]["sum"]
        '6'
    """
    found = TableStatistics(schema)
    for stats, rows in parts:
        if rows and not stats and found.columns:
            return {}
        if rows:
            found.merge(TableStatistics.from_json(stats, schema, rows))
    return found.published()
