"""Statistics of columns: those that a version keeps, or counted now in any DataRef or in finished files.

A build that goes on reads the rows that it has kept. They are all read anyway, to compare them with their
checksums. So nothing that grows with each file is noted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..process.messages import log, progress_bar
from ..process.numbers import as_int
from ..rows.collector import block_of
from ..rows.schema import Schema
from ..rows.statistics import TableStatistics, TableStats
from ..rows.types import Json
from .dataref import DataRef
from .reader import Reader
from .stream import in_epoch
from .version_ref import kept_stats

_BYTES, _ROWS = 2**22, 2**16  # read at once
_FIRST_ROWS = 64  # from which it is learned what rows look like


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


def merged(parts: Sequence[tuple[Json, int]], schema: Schema | None, of: str) -> Json:
    """Statistics of a version for its manifest, made of those of its parts, in any order.

    Args:
        parts: what `TableStatistics.to_json` gave of each part, and how many rows it has. Rows must have been
            numbered as in the whole version, see `build`.
        schema: of the rows; None if there are none.
        of: names the version, for a warning.

    Returns:
        What `Manifest.stats` holds. Empty if a part has none, or, with a warning, damaged ones.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> parts = []
        >>> for start in (0, 2):
        ...     block = block_of([{"x": start}, {"x": start + 1}])
        ...     statistics = TableStatistics(block.schema)
        ...     statistics.add(block, start)
        ...     parts.append((statistics.to_json(), 2))
        >>> merged(parts, block.schema, "'a' '1'")["x"]["numbers"]["sum"]
        '6'
    """
    if schema is None:
        return {}
    found = TableStatistics(schema)
    try:
        for stats, rows in parts:
            if rows and not stats and found.columns:
                return {}
            if rows:
                found.merge(TableStatistics.from_json(stats, schema, rows))
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s has no statistics, those of a part are damaged: %s", of, error)
        return {}
    return found.published()


def stats(
    ref: DataRef, rows: int | None = None, seed: int = 0, *, progress: bool | None = None
) -> TableStats:
    """Statistics of each column: counts, bounds, mean, histogram, lengths, the most frequent values.

    A cached version has kept them for each column since it was built: nothing is read. For a view, and for a
    version built without statistics, all rows are read once; random rows are those of epoch 0 with seed 0.
    See docs/caching.md.

    Args:
        rows: if rows must be read, read only this many, drawn at random; `rows_read` of the result says how
            many were read.
        seed: of the draw; the same one draws the same rows.
        progress: show a progress bar; by default on a terminal.

    Raises:
        CorruptError: the statistics in the manifest are damaged.
        SchemaError: the DataRef has no schema, and its rows differ in their types or shapes.

    Example:
        >>> ref = storage.submit({"x": np.arange(5.0), "label": np.array([2, 1, 2, 2, 0])}, "few", "1")
        >>> stats = ref.stats()
        >>> stats["x"].mean, stats["x"].max, stats["label"].top
        (2.0, 4.0, ((2, 3), (0, 1), (1, 1)))
        >>> ref[:4].stats(rows=2)["x"].rows
        2
    """
    limit = None if rows is None else as_int("rows", rows, low=1)
    kept = kept_stats(ref)
    if kept is not None:
        return kept
    schema, total = ref.schema, len(ref)
    numbers = None
    if limit is not None and limit < total:
        numbers = np.sort(np.random.default_rng(seed).choice(total, limit, replace=False, shuffle=False))
    wanted = total if numbers is None else len(numbers)
    found = None if schema is None else TableStatistics(schema)
    source = in_epoch(ref, 0, 0)
    step = max(1, min(_ROWS, _BYTES // ref._row_bytes)) if ref._row_bytes else _FIRST_ROWS
    with progress_bar(progress, wanted, "statistics", " rows") as bar:
        for start in range(0, wanted, step):
            stop = min(start + step, wanted)
            read = np.arange(start, stop) if numbers is None else numbers[start:stop].astype(np.int64)
            block = block_of(source.take(read), schema)
            if found is None:
                schema = block.schema
                found = TableStatistics(schema)
            # Rows of a sample are numbered from 0, so that wide ones are sampled alike.
            found.add(block, start)
            bar.update(stop - start)
    return TableStats({}, 0, 0) if found is None else found.known(total)
