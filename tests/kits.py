"""A file format, and what a framework gets of a stream, against their contracts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchyoga.errors import CorruptError
from torchyoga.files.checksum import crc32
from torchyoga.formats.contract import Format
from torchyoga.reading.dataref import DataRef
from torchyoga.reading.reader import Reader
from torchyoga.reading.stream import Stream
from torchyoga.rows.block import Block, Rows, plain_row
from torchyoga.rows.collector import Collector
from torchyoga.rows.schema import Schema
from torchyoga.rows.types import Row
from torchyoga.testing import assert_rows_equal
from torchyoga.testing.rows import expect, expect_raised
from torchyoga.versions.file_entry import FileEntry


def check_format(format: Format, directory: Path, compression: str | None = None) -> None:
    """Checks that a format keeps blocks of every kind of column, says where their bytes lie, and detects
    damage.

    Args:
        format: a module such as `torchyoga.formats.lmdb`.
        directory: an empty directory that the check may fill.
        compression: a compression that the format has.
    """
    for name, rows in _sample_rows().items():
        path = directory / f"{name}{format.SUFFIX}"
        collector = Collector()
        blocks = []
        for cut in (rows[:1] + rows, rows[::-1], rows[:1]):
            for i, row in enumerate(cut):
                collector.add(row, i)
            blocks.append(collector.take())
        schema = blocks[0].schema
        writer = format.Writer(str(path), schema, compression)
        for number, block in enumerate(blocks):
            _compare_checksums(writer.write(block), block, f"{path.name}: block {number}")
        index = json.loads(json.dumps(writer.close()))
        expected = [row for block in blocks for row in Rows(block).exact()]
        entry = FileEntry(path.name, "", len(expected), path.stat().st_size, index, ())
        _check_file(format, path, schema, entry, expected)


def _compare_checksums(found: list[int], block: Block, where: str) -> None:
    names = [(i, name) for i, column in enumerate(block.schema.columns) for name in column.parts]
    for (i, name), crc in zip(names, found, strict=True):
        if crc != crc32(block.data[i].part(name).tobytes()):
            where = f"{where}, {block.schema.columns[i].name}/{name}"
            raise AssertionError(f"{where}: the checksum does not match the bytes")


def _check_file(format: Format, path: Path, schema: Schema, entry: FileEntry, expected: list[Row]) -> None:
    numbers = np.arange(len(expected))
    for order in (numbers, numbers[::-1], np.random.default_rng(0).permutation(np.tile(numbers, 3))):
        found = Rows(_reader(format, path, schema, entry).take(order)).exact()
        for number, row in zip(order.tolist(), found, strict=True):
            assert_rows_equal(row, expected[number], f"{path.name}: row {number}")
    data = path.read_bytes()
    for cut_at in (0, 1, len(data) // 2, len(data) - 1):
        _expect_corrupt(format, path, data[:cut_at], schema, entry, f"cut to {cut_at} of {len(data)} bytes")
    for extent in format.read_extents(np.frombuffer(data, np.uint8), entry.index, schema):
        for offset, nbytes in zip(extent.offsets.tolist(), extent.nbytes.tolist(), strict=True):
            for place in {offset, offset + nbytes - 1} if nbytes else ():
                flipped = data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
                _expect_corrupt(format, path, flipped, schema, entry, f"with byte {place} changed")


def _reader(format: Format, path: Path, schema: Schema, entry: FileEntry) -> Reader:
    return Reader(str(path.parent), schema, [replace(entry, name=path.name)], format_of=lambda _: format)


def _expect_corrupt(
    format: Format, path: Path, data: bytes, schema: Schema, entry: FileEntry, what: str
) -> None:
    broken = path.with_name("broken" + format.SUFFIX)
    broken.write_bytes(data)
    otherwise = f"{path.name}: a file {what} was not refused"
    rows = np.arange(entry.rows)
    expect_raised(CorruptError, otherwise, lambda: _reader(format, broken, schema, entry).take(rows))


def _sample_rows() -> dict[str, list[Row]]:
    rng = np.random.default_rng(0)
    return {
        "numbers": [{"a": rng.random((3, 4)), "b": int(i), "c": float(i), "d": i % 2 == 0} for i in range(5)],
        "text": [("x" * i, b"\0" * (5 - i), None) for i in range(5)],
        "ragged": [[torch.arange(i * 2).reshape(i, 2), np.arange(i, dtype=">i2")] for i in range(5)],
        "empty": [{"nothing": np.zeros((0, 3)), "scalar": np.float32(i)} for i in range(5)],
        "large": [torch.full((300, 1000), i, dtype=torch.bfloat16) for i in range(3)],
        "leafless": [{"none": (), "here": []} for _ in range(3)],
    }


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
            counts = f"found {len(found)} rows, expected {len(expected)}"
            expect(len(found) == len(expected), f"{options}, epoch {epoch}: {counts}")
            for i, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert_rows_equal(a, b, f"{options}, epoch {epoch}: row {i}")
