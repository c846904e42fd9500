"""Builds: any cut into blocks and files holds the same rows; interruptions lose and spoil nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from becoming import leave
from damaged import flip
from disks import small_disk
from own import Breakable

import torchyoga as yoga
from torchyoga.adapters.map_style import MapSource
from torchyoga.adapters.sources import IteratorSource, source_of
from torchyoga.building.build import BuildOptions, Target, build
from torchyoga.building.sources import BlockSource, RowSource
from torchyoga.errors import SchemaError
from torchyoga.formats.contract import FORMATS, format_named
from torchyoga.reading.version_ref import VersionRef
from torchyoga.rows.block import Block, Data
from torchyoga.rows.schema import Schema
from torchyoga.stores.local import LocalStore
from torchyoga.testing import assert_rows_equal
from torchyoga.versions.manifest import FunctionEntry

ROWS = [
    {
        "fixed": np.full((2, 3), i, np.float32),
        "ragged": torch.arange(i % 4),
        "boxes": np.full((i % 3, 2), i, np.int16),
        "text": "é" * (i % 5),
        "nothing": np.zeros((0, 4)),
        "none": None,
        "number": i,
    }
    for i in range(40)
]


FORMAT = "lmdb"


@pytest.fixture(autouse=True, params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    """Every test here runs with every file format."""
    global FORMAT
    FORMAT = str(request.param)
    return FORMAT


def suffix() -> str:
    return format_named(FORMAT).SUFFIX


def built(store: LocalStore, source: RowSource | BlockSource, version: str, **options: Any) -> VersionRef:
    manifest = build(source, Target(store, "a", version), BuildOptions(FORMAT, progress=False, **options))
    return VersionRef(str(store.directory("a", version)), manifest)


def checked(store: LocalStore, version: str) -> None:
    yoga.Storage(store.root).check("a", version)


def staged(store: LocalStore) -> list[str]:
    return [path.name for path in (store.root / ".staging").rglob("*") if path.is_file()]


def interrupted(
    store: LocalStore, source: Breakable, at: int, block_bytes: int = 3000, **options: Any
) -> set[str]:
    """Leaves an unfinished build, which a broken row has stopped; the names of its files."""
    source.breaks = {at: OSError("offline")}
    with pytest.raises(OSError, match="offline"):
        built(store, MapSource(source), "1", block_bytes=block_bytes, **options)
    source.breaks, source.read = {}, []
    return {name for name in staged(store) if "-0" in name}


@pytest.mark.slow("hdf5")
def test_any_cut_into_blocks_and_files_is_the_same_dataset(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    whole = built(store, MapSource(ROWS), "whole")
    assert_rows_equal(list(whole), ROWS)
    schema = whole.schema
    for block_bytes, file_bytes in itertools.product((1, 700, 10**6), (1, 10_000, 10**9)):
        version = f"{block_bytes} {file_bytes}"
        ref = built(
            store, MapSource(ROWS), version, block_bytes=block_bytes, file_bytes=file_bytes, schema=schema
        )
        files, blocks = len(ref.manifest.files), {1: 40, 700: 6, 10**6: 1}[block_bytes]
        assert (files == blocks) if file_bytes == 1 else (files == 1) if file_bytes == 10**9 else True
        assert_rows_equal(list(ref), ROWS)
        assert_rows_equal(ref[[39, 0, 20, 0]], [ROWS[39], ROWS[0], ROWS[20], ROWS[0]])
        assert ref.fingerprint == whole.fingerprint
        checked(store, version)


def test_any_cut_of_arrays_is_the_same_dataset(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    arrays = {"x": np.arange(600).reshape(100, 2, 3), "y": torch.arange(100).bfloat16()}
    whole = built(store, source_of(arrays), "whole")
    for block_bytes in (1, 500):
        ref = built(store, source_of(arrays), str(block_bytes), block_bytes=block_bytes, file_bytes=999)
        assert len(ref.manifest.files) > 1
        assert ref.fingerprint == whole.fingerprint
        assert ref.manifest.stats == whole.manifest.stats
        assert_rows_equal(list(ref), [{"x": arrays["x"][i], "y": arrays["y"][i]} for i in range(100)])


def test_a_single_different_value_changes_the_fingerprint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    found = {built(store, MapSource(ROWS), "whole").fingerprint}
    others = {
        "fixed": ROWS[6]["fixed"] + np.float32(1e-6),
        "ragged": ROWS[6]["ragged"].flip(0),
        "boxes": np.zeros((0, 1), np.int16),  # without values, too, but with another shape
        "text": "e\u0301"[: len(ROWS[6]["text"])],
        "number": 7,
    }
    for name, value in others.items():
        rows = [*ROWS[:6], {**ROWS[6], name: value}, *ROWS[7:]]
        found.add(built(store, MapSource(rows), name).fingerprint)
    found.add(built(store, MapSource(ROWS[:39]), "shorter").fingerprint)
    found.add(built(store, MapSource(ROWS[::-1]), "backwards").fingerprint)
    assert len(found) == 8


@pytest.mark.parametrize("error", [OSError("offline"), ValueError("odd"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_breaks_the_source_the_build_is_continued(tmp_path: Path, error: BaseException) -> None:
    store, source = LocalStore(tmp_path), Breakable(ROWS)
    for stop in (5, 6, 17, 39):
        source.breaks, source.read = {stop: error}, []
        with pytest.raises(type(error)) as caught:
            built(store, MapSource(source), "1", block_bytes=700, file_bytes=3000)
        assert caught.value is error
        assert store.published() == []
        assert len([i for i in source.read if i == stop - 1]) <= 2
    source.breaks, source.read = {}, []
    ref = built(store, MapSource(source), "1")
    assert_rows_equal(list(ref), ROWS)
    assert len(source.read) <= 15
    assert ref.fingerprint == built(store, MapSource(ROWS), "2").fingerprint
    checked(store, "1")
    assert staged(store) == []


def test_rows_before_an_interruption_do_not_decide_which_columns_vary(tmp_path: Path) -> None:
    rows = [(np.zeros(3 if i < 10 else i), i) for i in range(20)]
    store, source = LocalStore(tmp_path), Breakable(rows)
    for stop in (4, 8):
        interrupted(store, source, stop)
    ref = built(store, MapSource(source), "1")
    assert_rows_equal(list(ref), rows)
    assert {0, *range(7, 20)} <= set(source.read)
    assert len(source.read) <= 15  # and one that is drawn at random
    assert ref.fingerprint == built(store, MapSource(rows), "2").fingerprint


DAMAGES: dict[str, Callable[[Path, Path, list[Any]], object]] = {
    "cut": lambda data, note, rows: data.write_bytes(data.read_bytes()[:-1]),
    "flip": lambda data, note, rows: flip(data, ROWS[14]["fixed"].tobytes(), 3),
    "gone": lambda data, note, rows: data.unlink(),
    "note": lambda data, note, rows: note.write_bytes(note.read_bytes().replace(b'ows": 30', b'ows": 29')),
    "note of another time": lambda data, note, rows: note.write_bytes(b"[" * 100_000),
    "rows": lambda data, note, rows: rows.__setitem__(29, {**ROWS[29], "number": -1}),
    "length": lambda data, note, rows: rows.append(ROWS[0]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_build_that_cannot_be_continued_starts_over(tmp_path: Path, damage: str) -> None:
    store, source = LocalStore(tmp_path), Breakable([*ROWS])
    interrupted(store, source, 30, 700)
    (data,) = (store.root / ".staging").rglob("*" + suffix())
    DAMAGES[damage](data, data.with_name("progress.json"), source.given)
    ref = built(store, MapSource(source), "1")
    assert_rows_equal(list(ref), source.given)
    assert set(source.read) == set(range(len(source.given)))
    checked(store, "1")


def test_many_files_are_recorded_one_by_one(tmp_path: Path, files_of: Callable[[int], None]) -> None:
    """The cost of recording a file does not grow with the files before it; half a line and half a file are
    ignored."""
    files_of(1)
    store, source = LocalStore(tmp_path), Breakable([*range(50)])
    interrupted(store, source, 30)
    (note,) = (store.root / ".staging").rglob("progress.json")
    assert note.read_bytes().count(b"\n") == 29  # one behind the other, none written twice
    note.write_bytes(note.read_bytes()[:-5])
    last = max(note.parent.glob("*" + suffix()))
    last.write_bytes(last.read_bytes()[:5000])
    ref = built(store, MapSource(source), "1")
    assert list(ref) == [*range(50)]
    assert {29, *range(30, 50)} <= set(source.read)
    checked(store, "1")


def test_a_build_with_another_schema_starts_over(tmp_path: Path) -> None:
    ragged = yoga.Schema.of(np.zeros(2), ragged=["value"])
    for before, now in ((None, ragged), (ragged, None)):
        store, source = LocalStore(tmp_path / str(now)), Breakable([np.zeros(2)] * 9)
        interrupted(store, source, 8, schema=before)
        found = built(store, MapSource(source), "1", schema=now).schema
        assert found == (now or yoga.Schema.of(np.zeros(2)))


def test_one_odd_array_behind_many_alike_is_an_error(tmp_path: Path) -> None:
    for odd in (300, 1500, 2999):
        for kind in (np.zeros, torch.zeros):
            rows = [{"x": kind(4 + (i == odd)), "n": i} for i in range(3000)]
            with pytest.raises(SchemaError, match=rf"row {odd} .*'x'.*\(4,\), found.*\(5,\).*ragged"):
                built(LocalStore(tmp_path), MapSource(rows), "1")
            ragged = yoga.Schema.of(rows[0], ragged=["x"])
            assert (
                len(built(LocalStore(tmp_path), MapSource(rows[odd - 2 :]), f"{odd} {kind}", schema=ragged))
                > 2
            )
    rows = [{"x": np.zeros(4 + (i == 100))} for i in range(3000)]  # the first rows show that it is ragged
    assert built(LocalStore(tmp_path), MapSource(rows), "1").schema == yoga.Schema.of(rows[0], ragged=["x"])


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "the middle": lambda rows: [row | {"x": row["x"] + (300 <= i < 600)} for i, row in enumerate(rows)],
    "exchanged": lambda rows: [rows[0], *rows[500:999], *rows[1:500], rows[999]],
    "every third": lambda rows: [row | ({"s": "new"} if i % 3 == 1 else {}) for i, row in enumerate(rows)],
    "another kind": lambda rows: [row | ({"s": 0} if 300 <= i < 600 else {}) for i, row in enumerate(rows)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_changed_inside_finished_files_are_detected(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"x": np.full(20, i), "s": "t" * (i % 9)} for i in range(1000)]
    store, source = LocalStore(tmp_path), Breakable(rows)
    interrupted(store, source, 950)
    source.given = CHANGES[change](rows)
    if change == "another kind":
        with pytest.raises(SchemaError, match="row 300 does not fit"):
            built(store, MapSource(source), "1")
        return
    assert_rows_equal(list(built(store, MapSource(source), "1")), source.given)
    assert "starting over" in caplog.text
    checked(store, "1")


@pytest.mark.slow("hdf5-2")
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_read_many_at_once_are_compared_in_the_same_groups(tmp_path: Path, workers: int) -> None:
    """Values computed for many rows at once may differ in their last bits from those computed for one."""

    class Together:
        fails = True

        def __len__(self) -> int:
            return 1000

        def __getitems__(self, numbers: list[int]) -> list[Any]:
            if self.fails and 900 in numbers:
                raise OSError("offline")
            return [{"x": np.full(20, n), "of": (numbers[0], len(numbers))} for n in numbers]

    store, source = LocalStore(tmp_path), Together()
    with pytest.raises(OSError, match="offline"):
        built(store, MapSource(source, workers), "1", block_bytes=3000)
    token = {name.split("-")[0] for name in staged(store) if "-0" in name}
    source.fails = False
    ref = built(store, MapSource(source, workers), "1")
    assert {ref.manifest.build} == token
    assert [int(row["x"][0]) for row in ref] == list(range(1000))
    size = 16 if workers else 64
    assert all(
        row["of"] == (n // size * size, min(size, 1000 - n // size * size)) for n, row in enumerate(ref)
    )


def test_few_rows_are_compared_and_different_ones_each_time(tmp_path: Path) -> None:
    rows = [{"x": np.full(20, i)} for i in range(1000)]
    store, source, compared = LocalStore(tmp_path), Breakable(rows), []
    for _ in range(3):
        interrupted(store, source, 950)
        source.breaks = {950: OSError("offline")}
        with pytest.raises(OSError, match="offline"):
            built(store, MapSource(source), "1")
        compared.append({number for number in source.read if number < 900})
        assert 32 <= len([number for number in source.read if number < 950]) <= 32 + 4
        for start in range(0, 900, 100):  # in each tenth of the kept rows
            assert any(start <= number < start + 100 for number in compared[-1])
    assert len(compared[0] ^ compared[1]) > 20


@pytest.mark.parametrize(
    ("now", "workers", "same"), [("a", 0, True), ("a", 2, True), ("b", 0, False), ("", 0, False)]
)
def test_a_build_is_continued_by_the_same_code_with_any_number_of_workers(
    tmp_path: Path, now: str, workers: int, same: bool
) -> None:
    rows = [{"x": np.full(20, i)} for i in range(100)]
    functions = {text: FunctionEntry(text * 32, "0" * 32, {}) for text in "ab"}
    store, source = LocalStore(tmp_path), Breakable(rows)
    begun = interrupted(store, source, 90, function=functions["a"])
    ref = built(store, MapSource(source, workers), "1", function=functions.get(now))
    assert ({ref.manifest.build} == {name.split("-")[0] for name in begun}) is same
    assert_rows_equal(list(ref), rows)


def test_the_log_says_why_a_build_of_random_rows_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Random(Breakable):
        def __getitem__(self, i: int) -> Any:
            return {"x": super().__getitem__(i)["x"] + random.random()}

    store, source = LocalStore(tmp_path), Random([{"x": np.full(20, i)} for i in range(100)])
    interrupted(store, source, 90)
    ref = built(store, MapSource(source), "1")
    assert source.read.count(50) >= 1  # all kept rows were read in one pass
    assert len(ref) == 100
    (message,) = caplog.messages
    assert "row 0 of the source differs each time it is read, as if augmented at random" in message
    assert "cache them before they are augmented" in message


# A signal between open() and the `with` that closes the file leaves that to the garbage collector.
@pytest.mark.quick("lmdb")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_interrupted_at_any_moment_a_build_is_continued(tmp_path: Path) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    rows = [{"x": np.full(20, i), "s": "t" * (i % 9)} for i in range(1200)]
    schema = yoga.Schema.of(rows[0])
    options: dict[str, Any] = {"schema": schema, "block_bytes": 3000, "file_bytes": 20_000}
    expected = built(LocalStore(tmp_path / "whole"), MapSource(rows), "1", **options).fingerprint
    started = time.process_time()
    built(LocalStore(tmp_path / "whole"), MapSource(rows), "2", **options)
    seconds = time.process_time() - started  # more than the timer counts

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    rng, interruptions, store = random.Random(0), 0, LocalStore(tmp_path / "interrupted")
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for _ in range(25):
            ref = None
            try:
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, rng.random() * seconds / 2 + 0.001)
                    ref = built(store, MapSource(rows), "1", **options)
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except KeyboardInterrupt:  # also of a moment before the timer was stopped
                interruptions += 1
            if ref is not None:
                assert ref.fingerprint == expected
                checked(store, "1")
                yoga.Storage(store.root).remove("a", "1")
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert interruptions
    ref = built(store, MapSource(rows), "1", schema=schema)
    assert ref.fingerprint == expected
    assert_rows_equal(list(ref), rows)
    checked(store, "1")


def test_a_wrong_length_is_an_error(tmp_path: Path) -> None:
    class Fewer(Breakable):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            return [self.given[i] for i in numbers if i != 3]

    class Longer(Breakable):
        def __len__(self) -> int:
            return 41

    store = LocalStore(tmp_path)
    with pytest.raises(ValueError, match=r"Fewer gave 39 rows, but its length is 40; correct its __len__"):
        built(store, MapSource(Fewer(ROWS)), "1")
    assert staged(store) == []
    with pytest.raises(IndexError):  # the source's own error
        built(store, MapSource(Longer(ROWS)), "1")
    assert store.published() == []


def test_arrays_with_another_schema_are_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for row in (np.zeros(8, np.float32), np.zeros(4, np.int64)):  # of as many bytes
        with pytest.raises(SchemaError, match="Leave schema out, or convert the arrays"):
            built(store, source_of(np.ones((3, 4))), "1", schema=yoga.Schema.of(row))
    ref = built(store, source_of(np.ones((3, 4))), "1", schema=yoga.Schema.of(np.ones(4)))
    assert_rows_equal(list(ref), [np.ones(4)] * 3)


def test_an_empty_source_keeps_the_schema_that_was_passed(tmp_path: Path) -> None:
    store, schema = LocalStore(tmp_path), yoga.Schema.of({"x": 1})
    for version, source in (("map", MapSource([])), ("iterator", IteratorSource(iter(())))):
        assert built(store, source, version).schema is None
        assert built(store, source, version + " 2", schema=schema).schema == schema
    assert built(store, source_of({"x": np.zeros(0, np.int64)}), "arrays").schema is not None


class Sequential(BlockSource):
    """Blocks of 7 rows, whose number is unknown."""

    def __init__(self, num_blocks: int) -> None:
        self.length = None
        self.schema = Schema.of(np.int64(0))
        self.num_blocks = num_blocks

    def blocks(self, nbytes: int) -> Iterator[Block]:
        for number in range(self.num_blocks):
            yield Block(self.schema, 7, (Data(np.arange(7 * number, 7 * number + 7)),))


def test_blocks_without_a_known_end(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ref = built(store, Sequential(50), "1")
    assert list(ref) == list(range(350))
    assert built(store, Sequential(0), "2").schema == Schema.of(np.int64(0))
    with pytest.raises(ValueError, match="the arrays has more than max_rows=20 rows, perhaps without an end"):
        built(store, Sequential(3), "3", max_rows=20)
    assert len(built(store, Sequential(3), "3", max_rows=21)) == 21


def test_a_build_that_breaks_soon_after_it_was_continued_keeps_what_was_kept(tmp_path: Path) -> None:
    """While rows are compared, and before a block of the continued build is written."""
    rows = [{"x": np.full(20, i)} for i in range(200)]
    store, source = LocalStore(tmp_path), Breakable(rows)
    kept = interrupted(store, source, 150)
    for number in (0, 149, 151, 152, 153):
        assert kept <= interrupted(store, source, number)
    ref = built(store, MapSource(source), "1")
    assert len(source.read) < 100  # the rest, and a few that are compared
    assert_rows_equal(list(ref), rows)


def test_an_error_of_the_writer_does_not_replace_an_interrupt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And part of a file does not stay."""

    class Interrupted(RowSource):
        length, seekable, name = 400, True, "interrupted"

        def rows(self, start: int) -> Iterator[Any]:
            for number in range(start, 400):
                if number == 300:
                    with contextlib.suppress(OSError):  # the writer may be faster
                        disk.fill(0)
                    raise KeyboardInterrupt
                yield {"x": np.full(2000, number)}

    with small_disk(tmp_path / "disk", 2**25) as disk:
        store = LocalStore(disk.path)
        with pytest.raises(KeyboardInterrupt):
            built(store, Interrupted(), "1", block_bytes=4_000_000)
        left = staged(store)
    assert "No space left" in caplog.text
    assert not [name for name in left if name.endswith(suffix())]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_leaves_the_build_by_an_error_changes_nothing(tmp_path: Path) -> None:
    children: list[int] = []

    class Forking(RowSource):
        length, seekable, name = 400, True, "forking"

        def rows(self, start: int) -> Iterator[Any]:
            for number in range(start, 400):
                if number == 300:
                    children.append(os.fork())
                    if not children[-1]:
                        raise ValueError("in the child")
                yield {"x": np.full(20, number)}

    store = LocalStore(tmp_path)
    try:
        ref = built(store, Forking(), "1", block_bytes=16_000)
    except ValueError:
        if children and not children[-1]:
            leave(7)
        raise
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    assert [row["x"][0] for row in ref] == [*range(400)]
    checked(store, "1")
