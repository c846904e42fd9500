"""A source of rows, and an export to a framework, against what goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..reading.dataref import DataRef
from ..reading.stream import Stream
from ..rows.block import plain_row
from ..rows.types import Row
from ..storage import Storage
from .rows import assert_rows_equal

__all__ = ["check_export", "check_source"]


def check_source(
    make_data: Callable[[], object], expected: Sequence[Row], directory: Path, **options: Any
) -> None:
    """Checks that a source goes into a storage and comes back: all rows, in order, of the same types.

    Args:
        make_data: makes data that `Storage.submit` takes; called each time the data is read.
        expected: its rows.
        directory: an empty directory that the check may fill.
        options: for `Storage.submit`.
    """
    storage = Storage(directory)
    ref = storage.submit(make_data(), "source", "1", progress=False, **options)
    if len(ref) != len(expected):
        raise AssertionError(f"found {len(ref)} rows, expected {len(expected)}")
    for i, row in enumerate(expected):
        assert_rows_equal(ref[i], row, f"row {i}")
    for i, (found, row) in enumerate(zip(ref, expected, strict=True)):
        assert_rows_equal(found, row, f"row {i} of the iteration")
    storage.check("source", "1")
    again = storage.submit(make_data(), "source", "2", progress=False, **options)
    if again.fingerprint != ref.fingerprint:
        raise AssertionError("reading the source twice gave two different contents")


def check_export(ref: DataRef, export: Callable[[Stream], Callable[[], Iterable[Row]]]) -> None:
    """Checks, for three epochs, that a framework gets the same rows from a stream as the stream itself gives.

    Args:
        ref: a DataRef with at least ten rows.
        export: turns a stream into a function that begins the next epoch and returns its rows, unchanged.
    """
    length = len(ref)
    cases: tuple[dict[str, Any], ...] = (
        {},
        {"start_offset": length // 3},
        {"shuffle": True, "shuffle_seed": 7},
        {"shuffle": True, "skip_shuffle_at_epoch_end": True, "start_offset": length + 2},
        {"shuffle": True, "num_shards": 3, "shard_rank": 1, "start_offset": 1},
        {"shuffle": "block", "num_shards": 2, "shard_rank": 1, "locality": "shard"},
        {"shuffle": True, "num_shards": 3, "shard_rank": 2, "drop_shard_remainder": True},
    )
    for options in cases:
        stream, epoch_of = ref.stream(**options), export(ref.stream(**options))
        for epoch in range(3):
            found, expected = list(epoch_of()), list(map(plain_row, stream))
            if len(found) != len(expected):
                raise AssertionError(
                    f"{options}, epoch {epoch}: found {len(found)} rows, expected {len(expected)}"
                )
            for i, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert_rows_equal(a, b, f"{options}, epoch {epoch}: row {i}")
