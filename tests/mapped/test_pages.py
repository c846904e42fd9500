"""Pages of files: mapped without a descriptor, advised ahead, and only while they come from disk."""

from __future__ import annotations

import gc
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import run_program, status_of_child
from hypothesis import given
from hypothesis import strategies as st
from residency import linux, on_disk, resident
from waiting import eventually

from torchyoga.errors import CorruptError
from torchyoga.formats import mapped
from torchyoga.formats.mapped import Residency, Thermometer, Usage, mapped_bytes, merged, scatter, will_need

PAGE = mapped.PAGE


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 20_000)), min_size=1, max_size=12))
def test_merged_runs_cover_the_same_pages(runs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in runs], np.int64)
    ends = starts + np.array([size for _, size in runs])
    begins, stops = merged(starts, ends)

    def covered(lows: Any, highs: Any) -> set[int]:
        return {p for a, b in zip(lows, highs, strict=True) for p in range(a // PAGE, -(-int(b) // PAGE))}

    assert covered(begins, stops) == covered(starts, ends)
    assert not ((begins | stops) % PAGE).any()
    assert len(begins) <= len(runs)


def test_rows_in_order_are_one_run() -> None:
    starts = np.arange(0, 784 * 300, 784)
    assert [found.tolist() for found in merged(starts, starts + 784)] == [[0], [-(-784 * 300 // PAGE) * PAGE]]


def cold(path: Path, num_pages: int) -> np.ndarray:
    """A mapped file, none of which is in the page cache."""
    path.write_bytes(os.urandom(num_pages * PAGE))
    on_disk(path)
    descriptor = os.open(path, os.O_RDONLY)
    data = mapped_bytes(descriptor, num_pages * PAGE)
    os.close(descriptor)
    if resident(data).any():
        pytest.skip("this file system keeps its files in memory")
    return data


@linux
@pytest.mark.parametrize("one_by_one", [False, True])
def test_advised_pages_are_read_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_by_one: bool
) -> None:
    monkeypatch.setattr(mapped, "one_by_one", one_by_one or mapped.one_by_one)
    data = cold(tmp_path / "file", 3000)
    scatter(data)
    wanted = np.arange(0, 3000, 2)  # more ranges than one call takes
    starts = data.ctypes.data + wanted * PAGE
    before = mapped.usage()
    will_need(starts, starts + PAGE)
    assert mapped.usage().blocks > before.blocks

    def are_there() -> bool:
        will_need(starts, starts + PAGE)  # again, as a kernel that lacks memory forgets pages
        return bool(resident(data)[wanted].all())

    eventually(are_there)
    assert np.flatnonzero(resident(data)).tolist() == wanted.tolist()


@linux
def test_reading_pages_without_advice_is_a_page_fault(tmp_path: Path) -> None:
    data = cold(tmp_path / "file", 64)
    scatter(data)
    before = mapped.usage()
    data[5 * PAGE]
    assert mapped.usage().faults == before.faults + 1


def test_files_in_memory_make_it_warm() -> None:
    found = Thermometer()
    found.after_opening(True)
    assert not found.cold
    found.after_opening(None)
    assert not found.cold
    found.after_opening(False)
    assert found.cold == mapped.can_advise
    found = Thermometer()
    found.after_opening(None)
    found.after_opening(True)  # the rows that are read come from the other file
    assert found.cold == mapped.can_advise


def looked_up(path: Path) -> Residency:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return Residency(descriptor, path.stat().st_size)
    finally:
        os.close(descriptor)


@linux
def test_what_is_in_memory_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = cold(path, 600)
    scatter(data)
    found = looked_up(path)
    assert found.were_all is not True
    address = data.ctypes.data
    assert found.are_there(address, data.nbytes) is False
    assert data[70 * PAGE : 370 * PAGE].any()
    assert found.are_there(address + 70 * PAGE, 300 * PAGE) is True
    assert found.are_there(address + 70 * PAGE + 1, 300 * PAGE - 2) is True
    assert found.are_there(address + 71 * PAGE, 300 * PAGE) is True  # one of 300 is missing
    assert found.are_there(address + 72 * PAGE, 300 * PAGE) is False
    path.read_bytes()
    assert found.are_there(address, data.nbytes) is True
    assert looked_up(path).were_all is (True if mapped.can_count else None)


@linux
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_who_may_not_write_a_file_is_not_told_what_is_in_memory(tmp_path: Path) -> None:
    """Mincore would say that all of it is there."""
    data = cold(tmp_path / "file", 64)
    (tmp_path / "file").chmod(0o644)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)

    def as_another() -> None:
        os.seteuid(65534)
        assert resident(data).all()
        found = Residency(descriptor, data.nbytes)
        assert found.are_there(data.ctypes.data, data.nbytes) is None
        assert not found.were_all

    assert status_of_child(as_another) == 0
    os.close(descriptor)


def test_mappings_need_no_descriptors() -> None:
    code = """
import os, resource, tempfile, numpy as np
from torchyoga.formats.mapped import MappedFile
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x" * 5000); file.flush()
    held = [MappedFile(file.name) for _ in range(500)]
print(sum(int(each.data[4999]) for each in held) == 500 * ord("x"))
"""
    finished = run_program(code)
    assert finished.stdout.strip() == "True", finished.stderr


def test_a_mapping_ends_with_the_last_array_over_it(tmp_path: Path) -> None:
    path = tmp_path / "a file of its own name"
    path.write_bytes(bytes(3 * PAGE))
    with open(path, "rb") as file:
        part = mapped_bytes(file.fileno(), 3 * PAGE)[5:10]
    if not Path("/proc/self/maps").exists():
        pytest.skip("this system does not tell its mappings")
    gc.collect()
    assert path.name in Path("/proc/self/maps").read_text()
    assert not part.any()
    del part
    assert path.name not in Path("/proc/self/maps").read_text()


@linux
def test_mappings_are_counted_as_long_as_they_exist(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE))
    before = mapped.num_to_spare()
    with open(path, "rb") as file:
        held = [mapped_bytes(file.fileno(), PAGE) for _ in range(7)]
    assert mapped.num_to_spare() == before - 7
    del held[:3]
    gc.collect()
    assert mapped.num_to_spare() == before - 4
    del held
    gc.collect()
    assert mapped.num_to_spare() == before


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match="cannot be mapped"):
        mapped_bytes(read, 4096)
    os.close(read), os.close(write)


@pytest.mark.skipif(not mapped.can_advise, reason="this system takes no advice")
def test_warm_after_quiet_advice_and_cold_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Usage()
    monkeypatch.setattr(mapped, "usage", lambda: now)
    found = Thermometer()
    assert found.cold

    def rows_until_warm() -> int:
        rows = 0
        while found.cold:
            found.after_advice(now, 64)
            rows += 64
            assert rows < 10**6
        return rows

    first = rows_until_warm()
    assert 0 < first <= 4096
    found.after_fault()
    assert found.cold
    before, now = now, Usage(0, 8)
    found.after_advice(before, 10**6)  # it has made the disk read
    assert found.cold
    assert rows_until_warm() == 2 * first
    found.probe()
    assert found.cold
    found.after_advice(now, 1)
    assert not found.cold


def test_without_advice_nothing_is_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "can_advise", False)
    found = Thermometer()
    found.after_fault()
    found.probe()
    assert not found.cold
    will_need(np.array([0]), np.array([PAGE]))  # not even for memory that is not mapped
    assert mmap.PAGESIZE


def test_a_kernel_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "can_advise", True)
    asked = []
    monkeypatch.setattr(mapped, "_advise", lambda ranges: asked.append(len(ranges)))
    for _ in range(2):
        will_need(np.arange(3) * PAGE, np.arange(1, 4) * PAGE)
    assert asked == [3]
    assert not mapped.can_advise


@linux
def test_a_watch_distinguishes_a_file_that_was_cut_from_one_that_was_replaced(tmp_path: Path) -> None:
    watches = {}
    for what in ("replaced", "removed", "longer", "cut"):
        path = tmp_path / what
        path.write_bytes(bytes(5000))
        watches[what] = mapped.Watch(str(path), 5000)
        watches[what].look()
        if what == "replaced":
            (tmp_path / "other").write_bytes(b"short")
            os.replace(tmp_path / "other", path)
        elif what == "removed":
            path.unlink()
        else:
            os.truncate(path, 6000 if what == "longer" else 4999)
    time.sleep(1.1)  # it looks once a second
    for what, watch in watches.items():
        if what == "cut":
            with pytest.raises(
                CorruptError, match=r"cut has been cut while it was open, to 4999 bytes of 5000"
            ):
                watch.look()
        else:
            watch.look()


@linux
def test_only_files_that_other_machines_may_write_to_are_watched(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    here = os.stat(tmp_path).st_dev
    mounts = Path("/proc/self/mountinfo").read_bytes()
    kinds = [
        line.split(b" - ")[1].split()[0]
        for line in mounts.splitlines()
        if f" {os.major(here)}:{os.minor(here)} ".encode() in line
    ]
    if not kinds or not {b"ext4", b"xfs", b"btrfs", b"tmpfs", b"overlay", b"zfs"} & set(kinds):
        pytest.skip("the disk of the tests is of another kind")
    assert mapped.Watch.where_needed(str(tmp_path / "x"), 1) is None
    assert mapped.Watch.where_needed(str(tmp_path / "nowhere"), 1) is None


CUT = """
import os, sys, time
from pathlib import Path
import h5py, numpy as np, torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.formats import mapped

mapped.is_shared = lambda device: True  # as on a network mount
root, kind = Path(sys.argv[1]), sys.argv[2]
rows = [{"x": np.full(1000, i)} for i in range(200)]
storage = yoga.Storage(root)

def opened(name):
    if kind == "hdf5 of others":
        with h5py.File(root / f"{name}.h5", "w") as file:
            file["x"] = [row["x"] for row in rows]
        return yoga.from_hdf5(root / f"{name}.h5"), root / f"{name}.h5"
    ref = storage.submit(rows, name, "1", format=kind, **({"compression": "gzip"} if kind == "hdf5" else {}))
    (path,) = (path for path in (root / name / "1").iterdir() if path.suffix != ".json")
    return ref, path

def first(ref, batch):
    return [int(row["x"][0]) for row in ref[batch]]

for name in ("cut", "removed", "overwritten"):
    ref, path = opened(name)
    assert first(ref, [3, 150]) == [3, 150]
    if name == "cut":
        os.truncate(path, 4096)
    elif name == "removed":
        path.unlink()
    else:
        path.with_suffix(".new").write_bytes(b"another file")
        os.replace(path.with_suffix(".new"), path)
    time.sleep(1.1)  # it looks once a second
    try:
        print(first(ref, [151, 4]))
    except CorruptError as error:
        print(path.name in str(error) and "been cut" in str(error))
"""


@pytest.mark.rest
@linux
@pytest.mark.parametrize("kind", ["lmdb", "hdf5", "hdf5 of others"])
@pytest.mark.damages("files are cut, and one is removed")
def test_a_file_that_is_cut_on_a_network_mount_is_an_error_and_kills_no_process(
    kind: str, tmp_path: Path
) -> None:
    finished = run_program(CUT, str(tmp_path), kind)
    assert finished.returncode == 0, (finished.returncode, finished.stderr)
    assert finished.stdout.splitlines() == ["True", "[151, 4]", "[151, 4]"]
