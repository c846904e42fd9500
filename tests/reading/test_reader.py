"""An open version: rows by number, from any files and blocks, from threads and forked children."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import infiles
import numpy as np
import pytest
import torch
from children import status_of_child
from damaged import flip
from hypothesis import given
from hypothesis import strategies as st
from residency import linux, mapped_files, on_disk, resident
from waiting import at_once, eventually

from torchyoga.errors import CorruptError
from torchyoga.files.checksum import crc32
from torchyoga.formats.contract import FORMATS, Extent, format_named
from torchyoga.formats.items import Numbering
from torchyoga.formats.mapped import PAGE, can_advise
from torchyoga.reading.reader import Reader
from torchyoga.rows.block import Block, Data, Rows, joined
from torchyoga.rows.collector import block_of
from torchyoga.rows.schema import Schema
from torchyoga.versions.file_entry import FileEntry
from torchyoga.versions.location import Folder

FORMAT = "lmdb"


@pytest.fixture(autouse=True, params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    """Every test here runs with every file format."""
    global FORMAT
    FORMAT = str(request.param)
    return FORMAT


def row_of(i: int) -> dict[str, Any]:
    return {
        "image": np.full((3, 40), i, np.float32),
        "label": i,
        "text": "é" * (i % 7),
        "any": torch.arange(i % 5 * 2).reshape(i % 5, 2),
        "none": None,
    }


def write(folder: Path, cuts: list[list[int]], row: Any = row_of) -> Reader:
    """A reader of files of blocks of these numbers of rows."""
    schema = Schema.of(row(1), ragged=[name for name in ("any",) if "any" in row(1)])
    entries, numbers = [], itertools.count()
    for index, sizes in enumerate(cuts):
        blocks = [block_of([row(next(numbers)) for _ in range(size)], schema) for size in sizes]
        name = f"{secrets.token_hex(8)}-{index:05d}{format_named(FORMAT).SUFFIX}"
        entries.append(infiles.written(folder / name, *blocks))
    return Reader(str(folder), schema, entries)


def assert_rows(reader: Reader, numbers: np.ndarray) -> None:
    for number, found in zip(numbers.tolist(), Rows(reader.take(numbers)).exact(), strict=True):
        expected = row_of(number)
        assert found.keys() == expected.keys()
        assert np.array_equal(found["image"], expected["image"])
        assert torch.equal(found["any"], expected["any"])
        assert (found["label"], found["text"], found["none"]) == (number, expected["text"], None)


@pytest.mark.slow("hdf5")
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.randoms())
def test_rows_come_from_any_cut_into_files_and_blocks(tmp_path_factory, cuts, random) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("cuts")
    reader = write(folder, cuts)
    numbers = list(range(reader.num_rows)) * 2
    random.shuffle(numbers)
    assert_rows(reader, np.array(numbers))
    assert reader.verify_all() == []
    for path in folder.iterdir():
        path.unlink()


def test_files_are_opened_when_a_row_of_them_is_wanted(tmp_path: Path) -> None:
    reader = write(tmp_path, [[4, 4, 2], [3], [5, 1]])
    assert_rows(reader, np.array([11, 10]))
    (tmp_path / reader.files[0].name).unlink()
    assert_rows(reader, np.array([12]))
    with pytest.raises(CorruptError, match="is missing though its manifest names it"):
        reader.take(np.array([0]))


def test_no_rows_are_a_block_without_rows(tmp_path: Path) -> None:
    reader = write(tmp_path, [[4]])
    none, some = (reader.take(np.array(numbers, np.int64)) for numbers in ([], [2, 3]))
    assert none.num_rows == 0
    found = Rows(joined([none, some, none])).exact()
    assert [row["label"] for row in found] == [2, 3]
    assert [row["text"] for row in found] == ["éé", "ééé"]
    assert [row["any"].tolist() for row in found] == [[[0, 1], [2, 3]], [[0, 1], [2, 3], [4, 5]]]


def assert_threads_read(reader: Reader, num_threads: int, num_reads: int, num_rows: int) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(num_reads):
            assert_rows(reader, rng.integers(0, reader.num_rows, num_rows))

    at_once(*(partial(work, seed) for seed in range(num_threads)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_after_reading_reads_on(tmp_path: Path) -> None:
    reader = write(tmp_path, [[64]], lambda i: {"x": np.full(20_000, i, np.int64)})
    numbers = np.arange(64)
    before = reader.take(numbers).data[0].values.copy()  # large enough that torch starts its threads

    def reads_the_same() -> None:
        assert np.array_equal(reader.take(numbers[::-1]).data[0].values, before[::-1])

    assert status_of_child(reads_the_same) == 0


@linux
def test_files_are_closed_at_once(tmp_path: Path) -> None:
    # Not only when the garbage collector finds a cycle: a deleted file would take up its space until then.
    gc.disable()
    try:
        reader = write(tmp_path, [[4, 4], [3]])
        assert_rows(reader, np.arange(11))
        assert len(mapped_files(tmp_path)) == 2
        del reader
        assert not mapped_files(tmp_path)
    finally:
        gc.enable()


@pytest.mark.quick("lmdb-1", "hdf5-3")
@linux
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_few_files_are_open_at_once_and_all_rows_are_right(tmp_path: Path, most: int) -> None:
    written = write(tmp_path, [[3, 2], [4], [1, 1, 5], [2], [6], [2, 2]])
    reader = Reader(str(tmp_path), written.schema, written.files, most_open=most)
    rng = np.random.default_rng(most)
    reader.open()
    for _ in range(60):
        assert_rows(reader, rng.integers(0, reader.num_rows, rng.integers(1, 4)))
        assert len(mapped_files(tmp_path)) <= max(most, 3)  # as many as one batch needs
    assert_rows(reader, np.arange(reader.num_rows))  # one batch of more files than may be open
    assert reader.verify_all() == []


@pytest.mark.quick("lmdb")
@linux
def test_a_reader_maps_more_files_while_the_process_has_mappings_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = 5
    monkeypatch.setattr("torchyoga.formats.mapped.num_to_spare", lambda: spare - len(mapped_files(tmp_path)))
    monkeypatch.setattr("torchyoga.reading.open_files._MOST_OPEN", 2)

    def most_mapped_in_a_pass(reader: Reader) -> int:
        most = 0
        for number in [*range(reader.num_rows)] * 2:
            assert_rows(reader, np.array([number]))
            most = max(most, len(mapped_files(Path(reader.where.name))))
        return most

    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first, second = (write(tmp_path / folder, [[1]] * 12) for folder in ("first", "second"))
    assert 2 < most_mapped_in_a_pass(first) <= 5
    first.open()
    assert most_mapped_in_a_pass(second) <= 2  # the other has them all
    del first
    assert 2 < most_mapped_in_a_pass(second) <= 5
    spare = 100
    assert most_mapped_in_a_pass(second) == 12
    spare = 3
    assert most_mapped_in_a_pass(second) == 12  # it opens no other file, and closes none


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell its mappings")
def test_files_are_checked_without_staying_mapped(tmp_path: Path) -> None:
    reader = write(tmp_path, [[3, 2], [4], [1]])
    reader.open_all()
    assert mapped(reader) == []
    assert reader.verify_all() == []
    assert mapped(reader) == []


def mapped(reader: Reader) -> list[int]:
    """The numbers of the files that this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    return [number for number, file in enumerate(reader.files) if file.name in maps]


@pytest.mark.slow("hdf5")
def test_threads_read_while_files_are_opened_and_closed(tmp_path: Path) -> None:
    written = write(tmp_path, [[5], [7], [4, 4], [3], [9]] * 3)
    for most in (3, 100):
        reader = Reader(str(tmp_path), written.schema, written.files, most_open=most)
        assert_threads_read(reader, num_threads=6, num_reads=25, num_rows=2)


def test_only_units_that_are_read_are_checked(tmp_path: Path) -> None:
    # A row of x is a unit of its own.
    written = write(tmp_path, [[8, 8]], lambda i: {"x": np.full(700, i, np.int64), "y": i})
    path = tmp_path / written.files[0].name
    flip(path, np.full(700, 5, "<i8").tobytes(), 100)
    reader = Reader(str(tmp_path), written.schema, written.files)
    fine = [i for i in range(16) if i != 5]
    assert reader.take(np.array(fine)).data[0].values[:, 0].tolist() == fine
    for _ in range(2):
        with pytest.raises(CorruptError, match="checksum does not match"):
            reader.take(np.array([4, 5]))
    assert len(reader.verify_all()) == 1
    assert reader.take(np.array([6])).data[1].values.tolist() == [6]


@pytest.mark.parametrize("count", [600, 131_073])
def test_the_end_of_a_row_is_checked_with_it(tmp_path: Path, count: int) -> None:
    """It lies in the next unit, or in the next chunk: with another value there, the row would be longer."""
    schema, at = Schema.of({"text": "abc"}), 512 if count == 600 else 131_072
    offsets = 3 * np.arange(count + 1, dtype="<i8")
    path = tmp_path / f"a{format_named(FORMAT).SUFFIX}"
    block = Block(schema, count, (Data(np.arange(3 * count).astype("|u1"), offsets),))
    entry, data = infiles.written(path, block), bytearray(path.read_bytes())
    expected = (np.arange(3 * at - 3, 3 * at) % 256).tolist()
    assert Reader(str(tmp_path), schema, [entry]).take(np.array([at - 1])).data[0].values.tolist() == expected
    for number, known in ((at - 1, slice(at - 2, at)), (at, slice(at, at + 2))):  # in one chunk each
        place = data.index(offsets[known].tobytes()) + 8 * (number - known.start)
        changed = data.copy()
        changed[place : place + 8] = (offsets[number : number + 1] + 1).tobytes()
        path.write_bytes(changed)
        reader = Reader(str(tmp_path), schema, [entry])
        with pytest.raises(CorruptError, match=r"text/offsets .* checksum does not match"):
            reader.take(np.array([at - 1]))


def test_damaged_checksums_of_units_are_reported(tmp_path: Path) -> None:
    written = write(tmp_path, [[4, 4]])
    path, entry = tmp_path / written.files[0].name, written.files[0]
    flip(path, entry.index["units"]["offset"])
    assert len(Reader(str(tmp_path), written.schema, written.files).verify_all()) == 1
    for place in ({"offset": -4, "nbytes": 4}, {"offset": 0, "nbytes": 2**40}, {"offset": 0}, 3, [1, 2]):
        index = {**entry.index, "units": place}
        hostile = [entry.__class__(**{**vars(entry), "index": index})]
        with pytest.raises(CorruptError, match="entry of checksums is damaged"):
            Reader(str(tmp_path), written.schema, hostile).take(np.arange(2))
    index = {**entry.index, "units": {**entry.index["units"], "nbytes": 8}}
    with pytest.raises(CorruptError, match="do not fit its index"):
        Reader(str(tmp_path), written.schema, [entry.__class__(**{**vars(entry), "index": index})]).take(
            np.arange(2)
        )


def test_announced_rows_come_as_they_are(tmp_path: Path) -> None:
    reader = write(tmp_path, [[4, 4, 2], [3], [5, 1]])
    rng = np.random.default_rng(0)
    for _ in range(5):
        numbers = rng.permutation(reader.num_rows)
        for values in (False, True):
            reader.announce(numbers, values)
        assert_rows(reader, numbers)
        reader.probe()
    reader.announce(np.zeros(0, np.int64), True)
    for _ in range(1000):
        if not reader.is_cold():
            break
        assert_rows(reader, rng.permutation(reader.num_rows))
    assert not reader.is_cold()  # the files have just been written: they are in memory


def test_an_announcement_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    reader = write(tmp_path, [[4], [4]])
    (tmp_path / reader.files[1].name).unlink()
    reader.announce(np.array([3]), False)
    with pytest.raises(CorruptError, match="is missing though its manifest names it"):
        reader.announce(np.array([3, 5]), False)


@pytest.mark.skipif(not can_advise, reason="this system takes no advice")
def test_an_empty_row_at_the_end_is_announced(tmp_path: Path) -> None:
    reader = write(tmp_path, [[4]], lambda i: {"text": "abc" * (i < 3)})
    reader.probe()
    assert reader.is_cold() is True
    for values in (False, True):
        reader.announce(np.array([3, 1]), values)
    assert Rows(reader.take(np.array([3, 1]))).exact() == [{"text": ""}, {"text": "abc"}]


@linux
@pytest.mark.skipif(not can_advise, reason="this system takes no advice")
def test_values_are_read_from_the_disk_once_it_is_known_where_they_lie(tmp_path: Path) -> None:
    size = 64 * PAGE

    written = write(tmp_path, [[12]], lambda i: {"label": i, "text": chr(97 + i) * size})
    path = tmp_path / written.files[0].name
    whole = path.read_bytes()
    lies = np.memmap(path, np.uint8, "r")
    on_disk(path)

    def read(row: int) -> np.ndarray:
        """Which of the pages that hold nothing but a row's values have been read."""
        start = whole.index(chr(97 + row).encode() * size)
        return resident(lies)[start // PAGE + 1 : (start + size) // PAGE]

    reader = Reader(str(tmp_path), written.schema, written.files)
    reader.announce(np.array([0]), False)  # opens it: the kernel has read more than its index
    on_disk(path)
    if read(3).any():
        pytest.skip("this file system keeps its files in memory")
    reader.announce(np.array([3, 9]), False)
    assert not read(9).any()
    reader.announce(np.array([3, 9]), True)
    eventually(lambda: bool(read(3).all() and read(9).all()))
    assert not read(6).any()


class RemoteFolder(Folder):
    """A folder whose files count as copies of remote ones."""

    is_remote = True

    def __init__(self, name: str, here: set[str]) -> None:
        super().__init__(name)
        vars(self).update(here=here, downloaded=[], begun=[])

    def path(self, entry: FileEntry) -> str:
        self.downloaded.append(entry.name)  # type: ignore[attr-defined]
        return super().path(entry)

    def is_here(self, entry: FileEntry) -> bool:
        return entry.name in self.here  # type: ignore[attr-defined]

    def begin(self, entries: Iterable[FileEntry]) -> None:
        self.begun.append([entry.name for entry in entries])  # type: ignore[attr-defined]


def remote_files(
    folder: Path, count: int, kind: type[RemoteFolder] = RemoteFolder, most_open: int | None = None
) -> tuple[Reader, Any, list[str]]:
    """A reader of so many files of four rows, where they lie, and their names; copies of all are here."""
    written = write(folder, [[4]] * count)
    names = [file.name for file in written.files]
    remote = kind(str(folder), {*names})
    return Reader(remote, written.schema, written.files, most_open=most_open), remote, names


def test_a_remote_file_is_not_downloaded_for_an_announcement(tmp_path: Path) -> None:
    reader, remote, (first, second) = remote_files(tmp_path, 2)
    remote.here.remove(second)
    for values in (False, True):
        reader.announce(np.array([5]), values)
        reader.announce(np.array([1, 5]), values)
    assert remote.downloaded == []
    reader.announce(np.array([1]), False)
    assert remote.downloaded == [first]
    assert_rows(reader, np.array([5, 1]))
    assert set(remote.downloaded) == {first, second}


def test_downloads_of_all_files_of_a_batch_are_begun_before_one_is_awaited(tmp_path: Path) -> None:
    reader, remote, (first, second, third) = remote_files(tmp_path, 3)
    assert_rows(reader, np.array([1]))
    assert_rows(reader, np.array([9, 2, 5]))
    assert remote.begun == [[first], [second, third]]


@pytest.mark.skipif(not can_advise, reason="this system takes no advice")
def test_rows_of_an_open_file_are_announced_though_its_copy_was_deleted(tmp_path: Path) -> None:
    reader, remote, _ = remote_files(tmp_path, 2)
    assert_rows(reader, np.arange(8))
    remote.here.clear()
    reader.probe()
    assert reader.is_cold() is True
    for _ in range(1000):  # until advice reads nothing: the files have just been written
        if not reader.is_cold():
            break
        for values in (False, True):
            reader.announce(np.array([1]), values)
    assert not reader.is_cold()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell its mappings")
def test_deleted_copies_are_not_kept_mapped(tmp_path: Path) -> None:
    reader, remote, (first, second, third) = remote_files(tmp_path, 3)
    assert_rows(reader, np.array([1, 5]))
    assert mapped(reader) == [0, 1]
    remote.here.remove(first)
    assert_rows(reader, np.array([9]))
    assert mapped(reader) == [1, 2]
    assert_rows(reader, np.array([6, 1]))
    assert remote.downloaded == [first, second, third, first]


@pytest.mark.parametrize("of_lengths", [False, True])
def test_a_damaged_copy_is_thrown_away_however_few_files_are_open(tmp_path: Path, of_lengths: bool) -> None:
    reader, _, names = remote_files(tmp_path, 3, most_open=2)
    assert_rows(reader, np.array([1]))
    assert_rows(reader, np.array([5]))
    path = tmp_path / names[2]
    whole = path.read_bytes()
    part = np.array([2, 6, 12, 20]) if of_lengths else np.full(120, 9, "<f4")
    flip(path, part.tobytes(), 8)
    with pytest.raises(CorruptError, match="has been deleted; read again to download it"):
        _ = reader.lengths(np.array([9]), 2) if of_lengths else reader.take(np.array([9]))
    path.write_bytes(whole)
    assert_rows(reader, np.array([9]))


class ReadByTwo(CorruptError):
    """A message that two threads read before either goes on."""

    def __init__(self, message: str, together: threading.Barrier) -> None:
        super().__init__(message)
        self.together = together

    def __str__(self) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait(30)
        return super().__str__()


def test_two_threads_that_find_a_damaged_copy_get_the_same_error(tmp_path: Path) -> None:
    class Damaged(RemoteFolder):
        def begin(self, entries: Iterable[FileEntry]) -> None:
            if not found and any(entry.name == names[1] for entry in entries):
                raise error

    reader, _, names = remote_files(tmp_path, 2, Damaged)
    error = ReadByTwo(f"{tmp_path / names[0]}: it is damaged", threading.Barrier(2))
    found: list[BaseException] = []
    assert_rows(reader, np.arange(4))

    def find() -> None:
        try:
            reader.take(np.array([4]))
        except BaseException as raised:
            found.append(raised)

    at_once(find, find)
    assert [type(error) for error in found] == [CorruptError, CorruptError]
    assert all("read again to download it" in str(error) for error in found)
    assert_rows(reader, np.arange(8))


def test_more_items_than_can_be_numbered_are_refused(tmp_path: Path) -> None:
    # Empty rows take no bytes, so a file may claim any number of them.
    (tmp_path / "a").write_bytes(bytes(8))

    class Nothing:
        @staticmethod
        def read_extents(data: Any, index: Any, schema: Any) -> Any:
            none = np.zeros(1, np.int64)
            return [Extent(np.array([0, Numbering.RUN]), none, none, none)]

    entry = FileEntry("a", FORMAT, Numbering.RUN, 8, {}, ())
    reader = Reader(str(tmp_path), Schema.of(None), [entry], format_of=lambda name: Nothing())  # type: ignore[arg-type, return-value]
    with pytest.raises(CorruptError, match=f"says that it holds {Numbering.RUN} items"):
        reader.take(np.array([0]))


def test_checks_of_a_manifest_that_its_blocks_do_not_have_are_found(tmp_path: Path) -> None:
    """Though each block has the checksum that stands beside it."""
    reader = write(tmp_path, [[4, 5]], lambda i: {"x": i})
    (entry,) = reader.files
    data = np.arange(9)
    crc = crc32(data.view(np.uint8).data)
    for check, is_right in (((72, crc), True), ((72, crc ^ 1), False), ((64, crc), False)):
        checked = Reader(str(tmp_path), reader.schema, [replace(entry, checks=(check,))])
        assert (checked.verify_all() == []) is is_right
