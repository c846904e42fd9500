"""A full disk, wherever that shows: the error says so, and existing versions stay as they were."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disks import SmallDisk, small_disk
from own import Mapped
from samples import OTHER

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS, format_named
from torchyoga.rows.collector import block_of

OLD = [{"x": np.full(1000, i), "s": "old" * i} for i in range(40)]
NEW = [{"x": np.full(1000, -i), "s": "new" * i} for i in range(60)]
# From no space at all to more than a version of NEW takes.
LEFT = (0, 4096, 8192, 16384, 65536, 200_000, 420_000, 520_000, 560_000, 600_000, 700_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 4 * 2**20) as found:
        yield found


def refused(act: Callable[[], object], folder: str = "") -> bool:
    """True if it failed because there was no space, and the error says so; any other error is raised."""
    try:
        act()
        return False
    except OSError as caught:
        error = caught
    assert error.errno == errno.ENOSPC or "[Errno 28]" in str(error), repr(error)
    assert "No space left on device" in str(error)
    assert f"free some space on {folder}" in str(error)
    return True


@pytest.mark.parametrize("format", FORMATS)
def test_a_writer_says_that_the_disk_is_full(format: str, disk: SmallDisk) -> None:
    """When the file is made, written or closed: LMDB learns of it in several ways."""
    blocks = [block_of(NEW[start : start + 10]) for start in range(0, 60, 10)]
    stages = []

    def write() -> None:
        stages.append("make")
        writer = format_named(format).Writer(str(disk.path / "file"), blocks[0].schema)
        try:
            for block in blocks:
                stages[-1] = "write"
                writer.write(block)
            stages[-1] = "close"
            writer.close()
            stages[-1] = "done"
        finally:
            writer.abort()
            (disk.path / "file").unlink()

    for left in range(0, 720_000, 16384):
        disk.fill(left)
        assert refused(write) is (stages[-1] != "done")
    # Blocks of HDF5 are written when a chunk is full, here at the end.
    assert {"close", "done", *(["make", "write"] if format == "lmdb" else [])} <= set(stages)


def tree(folder: Path) -> dict[str, int]:
    """Every file but the locks, and its size."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and ".locks" not in path.parts
    }


Act = Callable[[yoga.Storage], object]
ACTS: dict[str, Act] = {
    "new": lambda found: found.submit(NEW, "new", "1", progress=False),
    "overwrite": lambda found: found.submit(NEW, "old", "1", overwrite=True, progress=False),
    "convert": lambda found: found.convert("old", "1", format=OTHER[found.format], to="2", progress=False),
    "convert in place": lambda found: found.convert("old", "1", format=OTHER[found.format], progress=False),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nothing_new_is_left_and_nothing_old_is_lost(act: Act, format: str, disk: SmallDisk) -> None:
    storage = yoga.Storage(disk.path / "storage", format)
    storage.submit(OLD, "old", "1", progress=False)
    before, listed, failures = tree(storage.path), storage.list(), 0
    for left in LEFT:
        disk.fill(left)
        failed = refused(lambda: act(storage))
        disk.make_room()
        if not failed:
            break
        failures += 1
        assert storage.list() == listed
        assert tree(storage.path) == before, f"with {left} bytes left"
        storage.check("old", "1")
        assert [row["x"][0] for row in storage.fetch("old", "1")] == list(range(40))
    assert failures >= 4
    if failed:
        act(storage)
    for id, version in storage.list():
        storage.check(id, version)


@pytest.mark.parametrize("format", FORMATS)
def test_a_copy_for_which_there_is_no_space_publishes_nothing(format: str, disk: SmallDisk) -> None:
    """Files that have arrived wait in `.staging` for the next try."""
    storage = yoga.Storage(disk.path / "storage", format)
    elsewhere = yoga.Storage(disk.path.parent / "elsewhere", format)
    storage.submit(OLD, "old", "1", progress=False)
    ref = elsewhere.submit(NEW, "copied", "1", progress=False)
    before = tree(storage.path)
    for left in LEFT[:6]:
        disk.fill(left)
        with pytest.raises(OSError, match="No space left on device") as caught:
            elsewhere.copy("copied", "1", to=storage, progress=False)
        assert caught.value.errno == errno.ENOSPC
        disk.make_room()
        assert storage.list() == [("old", "1")]
        storage.check("old", "1")
        found = tree(storage.path)
        assert {name: size for name, size in found.items() if not name.startswith(".staging")} == before
    storage.clean(0)
    assert tree(storage.path) == before
    assert elsewhere.copy("copied", "1", to=storage, progress=False).fingerprint == ref.fingerprint
    storage.check("copied", "1")


def by_many(storage: yoga.Storage) -> object:
    with ThreadPoolExecutor(1) as executor:
        return storage.submit(NEW, "new", "1", executor=executor, progress=False)


NOTED: dict[str, Act] = {
    "delete rows": lambda found: found.delete_rows("old", "1", rows=[3], to="2"),
    "tag": lambda found: found.tag("old", "prod", "1"),
    "untag": lambda found: found.tag("old", "test", None),
    "together": lambda found: found.submit(NEW, "new", "1", together=True, progress=False),
    "by many": by_many,
}


@pytest.mark.rest
@pytest.mark.parametrize("act", NOTED.values(), ids=NOTED)
def test_notes_and_manifests_for_which_there_is_no_space(act: Act, disk: SmallDisk) -> None:
    storage = yoga.Storage(disk.path / "storage")
    storage.submit(OLD, "old", "1", progress=False)
    storage.tag("old", "test", "1")
    listed, failures = storage.list(), 0
    for left in (0, 4096, 8192, 12288, 16384, 20480, 28672, 65536, 200_000):
        disk.fill(left)
        failed = refused(lambda: act(storage), str(disk.path / "storage"))
        disk.make_room()
        if not failed:
            break
        failures += 1
        assert (storage.list(), storage.tags("old")) == (listed, {"test": "1"})
        assert list(storage.path.rglob(".new-*")) == []
    assert failures
    if failed:
        act(storage)


def test_a_storage_that_cannot_be_written_says_where(disk: SmallDisk) -> None:
    storage = yoga.Storage(disk.path / "storage")
    storage.submit(OLD, "old", "1", progress=False)
    storage.submit(NEW, "old", "2", progress=False)
    (storage.path / "old" / "2" / "manifest.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True, timeout=60)
    for act in (
        lambda: storage.clean(0),
        lambda: storage.remove("old", "1"),
        lambda: storage.tag("old", "prod", "1"),
    ):
        with pytest.raises(OSError, match="Read-only file system") as caught:
            act()
        assert f"make it writable, or choose another directory: '{storage.path}" in str(caught.value)
    assert [*storage.clean(0, dry_run=True)]


@pytest.mark.parametrize("format", FORMATS)
def test_without_space_for_its_progress_note_a_build_raises_the_error_of_its_source(
    format: str, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The source's own error is raised, and the next build gives every row."""
    storage = yoga.Storage(disk.path / "storage", format)
    storage.submit(OLD, "old", "1", progress=False)
    for left in LEFT[:6]:

        def row(number: int, left: int = left) -> Any:
            if number == 50:
                disk.fill(left)
                raise RuntimeError("unplugged")
            return NEW[number]

        caplog.clear()
        with pytest.raises(RuntimeError, match="unplugged"):
            storage.submit(Mapped(len(NEW), row), "new", "1", progress=False)
        assert "the rows since the last finished file are lost" in caplog.text
        disk.make_room()
        storage.check("old", "1")
        assert storage.list() == [("old", "1")]
    ref = storage.submit(Mapped(len(NEW), NEW.__getitem__), "new", "1", progress=False)
    assert [row["s"] for row in ref] == [row["s"] for row in NEW]
    assert not [name for name in tree(storage.path) if name.startswith(".staging")]
