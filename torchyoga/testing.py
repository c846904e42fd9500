"""Kits that test anyone's dataset, format, store, source or loader against the contracts of this package.

Each raises AssertionError with a message that says what differs, and returns None if nothing does.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .building.build import BuildOptions
from .caching.submission import submitted
from .errors import BusyError, CorruptError, ExistsError, NotFoundError, SchemaError, YogaError
from .files.checksum import crc32
from .formats.contract import Format
from .reading.dataref import DataRef
from .reading.reader import Reader
from .reading.stream import Stream
from .rows.block import Block, Rows, plain_row
from .rows.collector import Collector
from .rows.schema import Schema
from .rows.types import Batch, Json, Row
from .storage import Storage
from .stores.checking import check
from .stores.contract import Versions
from .stores.copying import copied
from .stores.local import Store
from .stores.refs import fetched
from .versions.manifest import FileEntry, Manifest

__all__ = [
    "assert_rows_equal",
    "check_dataref",
    "check_export",
    "check_format",
    "check_resume",
    "check_source",
    "check_store",
]

_PATIENCE = 300.0  # seconds for threads of a check


def assert_rows_equal(found: Row, expected: Row, where: str = "row") -> None:
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


def _bits(leaf: Row) -> object:
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
    try:
        _reader(format, broken, schema, entry).take(np.arange(entry.rows))
    except CorruptError:
        return
    raise AssertionError(f"{path.name}: a file {what} was not refused")


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


class ResumableLoader(Protocol):
    """What `check_resume` takes: it iterates one epoch at a time, and has a state."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> object:
        """The place that is reached, JSON-able."""

    def load_state_dict(self, state: Json, /) -> object:
        """Continues from a place."""


def check_resume(make_loader: Callable[[], ResumableLoader], most_stops: int | None = None) -> None:
    """Checks that a loader can be stopped after every batch and continued, and then once more.

    The batches before and after the stops are compared with an uninterrupted run, bit for bit, into the next
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


def _deliver(loader: ResumableLoader, state: object, count: int | None) -> tuple[list[Batch], object]:
    loader.load_state_dict(json.loads(json.dumps(state)))
    got = list(itertools.islice(iter(loader), count))
    return got, loader.state_dict()


def _compare(found: Iterable[Batch], expected: Iterable[Batch], where: str) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = (list(x) if isinstance(x, Rows) else x for x in (a, b))
        assert_rows_equal(a, b, f"{where}: batch {i}")


# -- a dataset


def check_dataref(ref: DataRef[Row], most_rows: int = 200) -> None:
    """Checks that a DataRef keeps its contract, so that it can be streamed, shuffled, sharded, resumed and
    cached.

    Args:
        ref: the dataset, or a view of one.
        most_rows: at most this many of its rows, spread over it, are read; some of them several times.

    Example:
        >>> check_dataref(Squares())
    """
    length = len(ref)
    _expect(type(length) is int and length >= 0, f"len is {length!r}, expected an int of at least 0")
    numbers = np.unique(np.linspace(0, max(0, length - 1), min(most_rows, length)).astype(np.int64))
    kept = _exact(ref.take(numbers.copy())) if length else []
    _expect(len(kept) == len(numbers), f"take of {len(numbers)} rows gave {len(kept)}")
    expected = dict(zip(numbers.tolist(), copy.deepcopy(kept), strict=True))
    _check_take(ref, expected)
    _check_indices(ref, expected)
    _check_slices(ref, expected)
    _check_properties(ref, expected)
    _check_copy(ref, expected)
    _check_read_ahead(ref, expected)
    for number, row in zip(expected, kept, strict=True):
        assert_rows_equal(row, expected[number], f"row {number}, after others were taken")
    if ref.is_thread_safe:
        _check_threads(ref, expected)


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


def _exact(rows: Sequence[Row]) -> list[Row]:
    return rows.exact() if isinstance(rows, Rows) else list(rows)


def _compare_rows(found: Sequence[Row], numbers: Sequence[int], expected: dict[int, Row], how: str) -> None:
    rows = _exact(found)
    _expect(len(rows) == len(numbers), f"{how}: found {len(rows)} rows, expected {len(numbers)}")
    for number, row in zip(numbers, rows, strict=True):
        assert_rows_equal(row, expected[number], f"{how}: row {number}")


def _check_take(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    numbers = np.array([*expected], np.int64)
    shuffled = np.random.default_rng(0).permutation(numbers)
    orders = {
        "take": numbers,
        "take, last row first": numbers[::-1],
        "take, shuffled": shuffled,
        "take, with repeated rows": np.repeat(shuffled[:20], 2),
        "take of one row": numbers[-1:],
        "take of nothing": numbers[:0],
    }
    for how, order in orders.items():
        given = order.copy()
        _compare_rows(ref.take(given), order.tolist(), expected, how)
        _expect(np.array_equal(given, order), f"{how} changed the array of row numbers that was passed")


def _check_indices(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length, numbers = len(ref), [*expected]
    for number in numbers[:20] + numbers[-1:]:
        for index in (number, number - length, np.int64(number)):
            try:
                row = ref[index]
            except IndexError as error:
                raise AssertionError(f"ref[{index!r}] of {length} rows: {error!r}") from error
            assert_rows_equal(row, expected[number], f"ref[{index!r}]")
    some = numbers[::-3]
    _compare_rows(ref[some], some, expected, "a list of indices")
    _compare_rows(ref[[number - length for number in some]], some, expected, "a list of negative indices")
    _compare_rows(ref[np.array(some, np.int32)], some, expected, "an array of indices")
    for index in (length, -length - 1, [length], [-length - 1]):
        try:
            ref[index]
        except IndexError:
            continue
        raise AssertionError(f"ref[{index}] raised no IndexError, but there are {length} rows")
    for number, row in enumerate(itertools.islice(ref, 300)):
        if number in expected:
            assert_rows_equal(row, expected[number], f"row {number} of the iteration")
    if length <= 300:
        _expect(sum(1 for _ in ref) == length, f"the iteration gives another number of rows than {length}")


def _check_slices(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length = len(ref)
    cuts = (slice(None), slice(length // 3, -1), slice(None, None, -1), slice(1, None, 3), slice(5, 2))
    for cut in cuts:
        part, rows = ref[cut], range(length)[cut]
        _expect(len(part) == len(rows), f"{cut}: found {len(part)} rows, expected {len(rows)}")
        known = [i for i in range(len(rows)) if rows[i] in expected] if len(rows) <= 10**6 else [0]
        known = [i for i in known[:50] if rows[i] in expected]
        _compare_rows(part.take(np.array(known, np.int64)), [rows[i] for i in known], expected, str(cut))


def _check_properties(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length, starts = len(ref), ref.file_starts
    _expect(
        isinstance(starts, np.ndarray)
        and starts.dtype == np.int64
        and starts.ndim == 1
        and len(starts) > 0
        and starts[0] == 0
        and starts[-1] == length
        and bool((np.diff(starts) >= 0).all()),
        f"file_starts is {starts!r:.200}, expected int64 from 0 to {length}, and sorted",
    )
    _expect(ref.row_bytes >= 0, f"row_bytes is {ref.row_bytes}, expected at least 0")
    first = ref.fingerprint
    _expect(first is None or isinstance(first, str), f"fingerprint is {first!r}, expected a str or None")
    _expect(first == ref.fingerprint, f"fingerprint is {first!r}, and then {ref.fingerprint!r}")
    before = json.dumps(ref.info)
    ref.info["changed"] = True
    _expect(json.dumps(ref.info) == before, "info is not a copy: it changes with what the caller does to it")
    if ref.schema is not None:
        collector = Collector(ref.schema)
        for number, row in expected.items():
            try:
                collector.add(row, number)
            except SchemaError as error:
                raise AssertionError(f"the rows are not as schema says: {error}") from error


def _check_copy(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    try:
        again = pickle.loads(pickle.dumps(ref))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise AssertionError(f"it cannot be pickled, as worker processes need: {error}") from error
    _expect(len(again) == len(ref), f"pickled, it has {len(again)} rows, and {len(ref)} before")
    _compare_rows(again.take(np.array([*expected], np.int64)), [*expected], expected, "pickled")
    for name in ("fingerprint", "schema", "info", "row_bytes", "is_thread_safe"):
        found, before = getattr(again, name), getattr(ref, name)
        _expect(found == before, f"pickled, its {name} is {found!r:.200}, and {before!r:.200} before")
    _expect(np.array_equal(again.file_starts, ref.file_starts), "pickled, it has other file_starts")


def _check_read_ahead(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    """Rows that were announced are the same as without, whatever is read instead."""
    readahead = ref.readahead
    if readahead is None:
        return
    numbers = np.random.default_rng(1).permutation(np.array([*expected], np.int64))
    order = numbers.tolist()
    _expect(readahead is ref.readahead, "readahead is another object each time, so it never reads ahead")
    handed = [number for some in readahead.handed_out(order, numbers) for number in some]
    _expect(handed == order, "readahead hands out other rows than those of the sampler")
    for start in range(0, len(order), 7):
        batch = order[start : start + 7]
        if start % 3 == 1:  # others are asked for than those that were announced
            _compare_rows(ref.__getitems__(batch[::-1]), batch[::-1], expected, "rows not announced")
        _compare_rows(ref.__getitems__(batch), batch, expected, "rows read ahead")
    windows = [numbers[start : start + 7] for start in range(0, len(numbers), 7)]
    announced = [rows.tolist() for rows in readahead.announced(iter(windows))]
    _expect(announced == [rows.tolist() for rows in windows], "readahead announces other windows than given")
    delivered = iter(range(len(order) + 1))
    readahead.follow(iter(windows), lambda: next(delivered, None))
    readahead.follow(iter(()), lambda: None)
    _compare_rows(ref.take(numbers), order, expected, "rows that were announced")


def _check_threads(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    numbers = np.array([*expected], np.int64)
    failures: list[BaseException] = []
    begin = threading.Barrier(4)

    def read(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            begin.wait(_PATIENCE)
            for _ in range(8):
                order = rng.permutation(numbers)[:50]
                _compare_rows(ref.take(order), order.tolist(), expected, "is_thread_safe, in four threads")
        except BaseException as failure:
            failures.append(failure)

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads take turns within a row, not after many rows
    try:
        _run_all([threading.Thread(target=read, args=(seed,), daemon=True) for seed in range(4)])
    finally:
        sys.setswitchinterval(switch_interval)
    if failures:
        raise AssertionError(f"is_thread_safe, but in four threads: {failures[0]}") from failures[0]


def _run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE)
    _expect(not any(thread.is_alive() for thread in threads), f"a thread has not ended in {_PATIENCE:.0f} s")


# -- a store

_NAMES = ("a", "a/b", "..", "Ä", "a b%c", "con")  # of ids and versions


def check_store(make_store: Callable[[], Versions], directory: Path) -> None:
    """Checks that a store publishes versions once and whole, keeps writers apart, and removes what it should.

    Args:
        make_store: opens the store anew, as another program would; it is empty at first. `Storage` uses
            `torchyoga.stores.local.Store` for a directory and `torchyoga.stores.mirror.Mirror` for a URL.
        directory: an empty directory that the check may fill.
    """
    rules: dict[str, Callable[[], None]] = {
        "an empty store": lambda: _check_nothing_there(make_store()),
        "publishing": lambda: _check_publishing(make_store),
        "overwriting": lambda: _check_overwriting(make_store),
        "locking": lambda: _check_locks(make_store),
        "a build that failed": lambda: _check_interruption(make_store),
        "copying": lambda: _check_copies(make_store, Store(directory / "other")),
        "removing": lambda: _check_removal(make_store),
    }
    for what, rule in rules.items():
        try:
            rule()
        except YogaError as error:
            raise AssertionError(f"{what}: {error!r}") from error


_OLD = [{"x": np.arange(4) + n, "text": "t" * n} for n in range(20)]
_NEW = [{"x": np.arange(4) - n, "text": "n" * n} for n in range(30)]


def _publish(store: Versions, id: str, version: str, rows: Sequence[Row]) -> DataRef:
    """Builds a version, in place of the one that is there."""
    with store.lock(id, version, _PATIENCE):
        store.check_place(id, version)
        return submitted(
            rows, store, id, version, BuildOptions(progress=False), replaces=store.seen(id, version)
        )


def _compare_version(store: Versions, id: str, version: str, rows: Sequence[Row], how: str) -> None:
    try:
        ref = fetched(store, id, version)
        check(store, id, version)
    except YogaError as error:
        raise AssertionError(f"{how}: {id!r} {version!r} is missing or damaged: {error}") from error
    _compare_rows(_exact(ref.take(np.arange(len(ref)))), range(len(rows)), dict(enumerate(rows)), how)


def _expect_error(kind: type[YogaError], how: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    except YogaError as error:
        raise AssertionError(f"{how}: expected {kind.__name__}, found {error!r}") from error
    raise AssertionError(f"{how}: expected {kind.__name__}, and nothing was raised")


def _check_nothing_there(store: Versions) -> None:
    _expect(store.published() == [], f"the store is not empty at first: {store.published()}")
    _expect(store.versions("a") == [], "an id without versions has some")
    _expect(store.read_manifest("a", "1") is None, "a version that does not exist has a manifest")
    _expect(store.seen("a", "1") is None, "a version that does not exist was seen")
    _expect_error(NotFoundError, "a manifest that does not exist", lambda: store.manifest("a", "1"))
    _expect_error(
        NotFoundError, "removing a version that does not exist", lambda: store.remove("a", "1", _PATIENCE)
    )


def _check_publishing(make_store: Callable[[], Versions]) -> None:
    pairs = sorted([("a", "1"), *zip(_NAMES, _NAMES, strict=True)])
    for id, version in pairs:
        _publish(make_store(), id, version, _OLD)
    store = make_store()
    _expect(store.published() == pairs, f"published: found {store.published()}")
    for name in _NAMES:
        versions = sorted(version for id, version in pairs if id == name)
        _expect(store.versions(name) == versions, f"versions of {name!r}: found {store.versions(name)}")
    for id, version in pairs:
        _compare_version(store, id, version, _OLD, "published")
    manifest = store.manifest("a", "1")
    _expect(
        {file.name: file.nbytes for file in manifest.files} == store.sizes(manifest),
        f"sizes: found {store.sizes(manifest)}, the manifest names {[file.name for file in manifest.files]}",
    )
    _expect_error(ExistsError, "publishing twice", lambda: make_store().refuse_existing("a", "1"))
    ref = pickle.loads(pickle.dumps(fetched(store, "a", "1")))
    _compare_rows(ref.take(np.arange(len(_OLD))), range(len(_OLD)), dict(enumerate(_OLD)), "pickled")


def _check_overwriting(make_store: Callable[[], Versions]) -> None:
    before = make_store()
    ref, seen = fetched(before, "a", "1"), before.seen("a", "1")
    ref.take(np.arange(len(ref)))
    _publish(make_store(), "a", "1", _NEW)
    _compare_version(before, "a", "1", _NEW, "overwritten")
    _expect(
        before.seen("a", "1") != seen,
        "a version that was overwritten looks unchanged, so other processes may replace it",
    )
    opened = ref.take(np.arange(len(ref)))
    _compare_rows(opened, range(len(_OLD)), dict(enumerate(_OLD)), "open while it was overwritten")
    _publish(make_store(), "a", "1", _OLD)


def _check_locks(make_store: Callable[[], Versions]) -> None:
    found: list[str] = []

    def lock(id: str, version: str) -> None:
        try:
            with make_store().lock(id, version, 0.05):
                found.append("held")
        except BusyError:
            found.append("busy")
        except Exception as error:
            found.append(repr(error))

    def in_a_thread(id: str, version: str) -> str:
        _run_all([threading.Thread(target=lock, args=(id, version), daemon=True)])
        return found.pop()

    with make_store().lock("a", "1", _PATIENCE):
        other = in_a_thread("a", "1")
        _expect(other == "busy", f"a lock that is held: found {other}, expected a BusyError")
        for id, version in (("a", "2"), ("b", "1")):
            other = in_a_thread(id, version)
            _expect(other == "held", f"the lock of another version: found {other}, expected it to be free")
    _expect(in_a_thread("a", "1") == "held", "a lock that was released is not free")
    with contextlib.suppress(KeyError), make_store().lock("a", "1", _PATIENCE):
        raise KeyError("the holder failed")
    _expect(in_a_thread("a", "1") == "held", "a lock whose holder failed is not free")


def _check_interruption(make_store: Callable[[], Versions]) -> None:
    def rows() -> Iterator[Row]:
        yield from _NEW
        raise KeyError("the source failed")

    for id, version in (("new", "1"), ("a", "1")):
        with contextlib.suppress(KeyError):
            _publish(make_store(), id, version, rows())  # type: ignore[arg-type]
    store = make_store()
    _expect(store.find("new", "1") is None, "a build that failed was published")
    _expect(("new", "1") not in store.published(), "a build that failed is listed")
    _compare_version(store, "a", "1", _OLD, "after a build that failed")
    _publish(make_store(), "new", "1", _NEW)
    _compare_version(store, "new", "1", _NEW, "after a build that failed and another that did not")


def _check_copies(make_store: Callable[[], Versions], other: Store) -> None:
    def copy_version(source: Versions, to: Versions) -> DataRef:
        with to.lock("new", "1", _PATIENCE):
            return copied(source, to, source.manifest("new", "1"), overwrite=False, progress=False)

    elsewhere = copy_version(make_store(), other)
    make_store().remove("new", "1", _PATIENCE)
    here = copy_version(other, make_store())
    _expect(here.fingerprint == elsewhere.fingerprint, "a copy has another fingerprint than the original")
    _compare_version(make_store(), "new", "1", _NEW, "copied")


def _check_removal(make_store: Callable[[], Versions]) -> None:
    before = make_store().published()
    make_store().remove("new", "1", _PATIENCE)
    store = make_store()
    _expect(store.read_manifest("new", "1") is None, "a version that was removed has a manifest")
    _expect(
        store.published() == [pair for pair in before if pair != ("new", "1")],
        "removing a version removes others",
    )
    _expect_error(NotFoundError, "a version that was removed", lambda: fetched(store, "new", "1"))
    cleaned = store.clean(0.0)
    _expect(cleaned == sorted(cleaned), f"clean names what it removes in no order: {cleaned}")
    for id, version in store.published():
        _compare_version(store, id, version, _OLD, "after clean")
        _expect(Manifest.from_bytes(store.read_manifest(id, version) or b"").id == id, "another's manifest")
