"""Kits that test anyone's format, source or loader against the contracts of this package.

Each raises AssertionError with a message that says what differs, and returns None if nothing does.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import CorruptError
from .formats.contract import Format
from .reading.dataref import DataRef
from .reading.reader import Reader
from .reading.stream import Stream
from .rows.block import Block, Collector, Rows, plain_row
from .rows.schema import Schema
from .storage import Storage
from .versions.manifest import FileEntry

__all__ = ["assert_rows_equal", "check_export", "check_format", "check_resume", "check_source"]


def assert_rows_equal(found: Any, expected: Any, where: str = "row") -> None:
    """Raises AssertionError unless both are of the same types and hold the same values, bit for bit."""
    if type(found) is not type(expected):
        raise AssertionError(f"{where}: found {type(found).__name__}, expected {type(expected).__name__}")
    if isinstance(expected, dict):
        if list(found) != list(expected):
            raise AssertionError(f"{where}: found keys {list(found)}, expected {list(expected)}")
        for key in expected:
            assert_rows_equal(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        if len(found) != len(expected):
            raise AssertionError(f"{where}: found {len(found)} items, expected {len(expected)}")
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_rows_equal(a, b, f"{where}[{i}]")
    elif _bits(found) != _bits(expected):
        raise AssertionError(f"{where}: found {found!r:.200}, expected {expected!r:.200}")


def _bits(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        flat = leaf.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return (
            flat.dtype,
            flat.shape,
            flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"",
        )
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype, leaf.shape, leaf.tobytes()
    return np.asarray(leaf).tobytes() if isinstance(leaf, (float, complex)) else leaf


def check_source(
    make_data: Callable[[], Any], expected: Sequence[Any], directory: Path, **options: Any
) -> None:
    """Checks that a source goes into a storage and comes back: all rows, in order, of the same types.

    Args:
        make_data: makes what `Storage.submit` takes; called for each reading.
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


def check_export(ref: DataRef, export: Callable[[Stream], Callable[[], Iterable[Any]]]) -> None:
    """Checks that a framework gets the same rows from a stream as the stream gives: three epochs of it.

    Args:
        ref: has at least ten rows.
        export: turns a stream into a function that begins the next epoch and gives its rows, unchanged.
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


def check_format(format: Format, directory: Path, compression: str | None = None) -> None:
    """Checks that a format keeps blocks of every kind of column, says where they lie, and detects damage.

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
        if crc != zlib.crc32(block.data[i].part(name).tobytes()):
            where = f"{where}, {block.schema.columns[i].name}/{name}"
            raise AssertionError(f"{where}: the checksum does not match the bytes")


def _check_file(format: Format, path: Path, schema: Schema, entry: FileEntry, expected: list[Any]) -> None:
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
    try:
        _reader(format, broken, schema, entry).take(np.arange(entry.rows))
    except CorruptError:
        return
    raise AssertionError(f"{path.name}: a file {what} was not refused")


def _sample_rows() -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    return {
        "numbers": [{"a": rng.random((3, 4)), "b": int(i), "c": float(i), "d": i % 2 == 0} for i in range(5)],
        "text": [("x" * i, b"\0" * (5 - i), None) for i in range(5)],
        "ragged": [[torch.arange(i * 2).reshape(i, 2), np.arange(i, dtype=">i2")] for i in range(5)],
        "empty": [{"nothing": np.zeros((0, 3)), "scalar": np.float32(i)} for i in range(5)],
        "large": [torch.full((300, 1000), i, dtype=torch.bfloat16) for i in range(3)],
        "leafless": [{"none": (), "here": []} for _ in range(3)],
    }


def check_resume(make_loader: Callable[[], Any], most_stops: int | None = None) -> None:
    """Checks that a loader can be stopped after every batch and continued, and then once more.

    What is delivered before and after is compared with an uninterrupted run, bit for bit, into the next
    epoch.

    Args:
        make_loader: makes a new loader (anything that iterates one epoch at a time, with `state_dict` and
            `load_state_dict`) of the same dataset, with the same seed or none; it may choose another number
            of workers each time.
        most_stops: at most this many first stops, spread over the epoch, for slow loaders; all by default.
    """
    whole = make_loader()
    start = whole.state_dict()  # holds the seed, even if none was given
    first, following = list(whole), list(whole)
    stops = range(len(first) + 1)
    if most_stops is not None:
        stops = range(0, len(first) + 1, max(1, len(first) // most_stops))
    for stop in stops:
        got, state = _deliver(make_loader(), start, stop)
        for second in range(len(first) - stop + 1) if most_stops is None else (1, len(first) - stop):
            more, again = _deliver(make_loader(), state, second)
            rest, _ = _deliver(make_loader(), again, None)
            # Stopped exactly at the end, the continuation is the next epoch.
            expected = first + following if stop == len(first) or stop + second >= len(first) else first
            found = got + more + rest
            where = f"stopped after {stop} and again after {second} batches"
            _compare(found, expected[: len(found)], where)
            if len(found) < len(first):
                raise AssertionError(f"{where}: only {len(found)} of {len(first)} batches were delivered")


def _deliver(loader: Any, state: Any, count: int | None) -> tuple[list[Any], Any]:
    loader.load_state_dict(json.loads(json.dumps(state)))
    got = list(itertools.islice(iter(loader), count))
    return got, loader.state_dict()


def _compare(found: Iterable[Any], expected: Iterable[Any], where: str) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = (list(x) if isinstance(x, Rows) else x for x in (a, b))
        assert_rows_equal(a, b, f"{where}: batch {i}")
