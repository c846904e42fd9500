"""Files of a store with a cache that is smaller: when there is a warning, and when not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from publishing import download_one_by_one
from smallfiles import build_with
from stored import objects_of, watched
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga.reading.version_ref import VersionRef
from torchyoga.stores.downloads import VersionDownloads

NUM_ROWS, NUM_FILES = 65_536, 16  # more rows for each file than are announced ahead


def published(url: str, folder: Path) -> int:
    """Publishes files of 4,096 rows; returns the bytes of all."""
    arrays = {"x": np.arange(NUM_ROWS * 8).reshape(NUM_ROWS, 8)}
    with pytest.MonkeyPatch.context() as patch:
        build_with(patch.setattr, block_bytes=2**18, file_bytes=1)
        ref: Any = yoga.Storage(url, cache_dir=folder / "built").submit(arrays, "x", "1", progress=False)
    manifest = ref.manifest
    assert len(manifest.files) == NUM_FILES
    return int(manifest.nbytes)


@pytest.mark.parametrize("said", [{"file_bytes": 2**16}, {"cache_bytes": 2**21}])
def test_files_of_a_new_version_are_small_enough_for_the_bound_of_a_cache(
    tmp_path: Path, said: dict[str, int]
) -> None:
    url, limit = f"memory://{uuid.uuid4().hex}", 2**21
    arrays = {"x": np.arange(2**20).reshape(-1, 8)}  # 8 MiB
    yoga.Storage(url, cache_dir=tmp_path / "built", **said).submit(arrays, "x", "1", progress=False)
    ref = yoga.Storage(url, cache_dir=tmp_path / "cache", cache_bytes=limit).fetch("x", "1")
    assert isinstance(ref, VersionRef)
    assert all(2**15 < entry.nbytes < 2**17 for entry in ref.manifest.files)
    loader, rows = yoga.DataLoader(ref, batch_size=1024, shuffle="block", seed=3), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            rows += batch["x"][:, 0].tolist()
            time.sleep(0.002)
    assert sorted(rows) == list(range(0, 2**20, 8))
    eventually(lambda: sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*")) <= 1.1 * limit)


def test_a_file_that_a_reader_waits_for_comes_before_those_that_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    published(url, tmp_path)
    storage = watched((url, None), tmp_path / "cache")
    ref = storage.fetch("x", "1")
    assert isinstance(ref, VersionRef)
    files, entries = ref.location, ref.manifest.files
    assert isinstance(files, VersionDownloads)
    order, may_go_on = list[str](), threading.Event()

    def note(send: Callable[..., Any], name: str, *rest: Any) -> Any:
        order.append(name.rpartition("/")[2])
        assert may_go_on.wait(PATIENCE)
        return send(name, *rest)

    download_one_by_one(monkeypatch)
    objects_of(storage).instead["stream"] = note
    files.begin(entries[:4])
    eventually(lambda: len(order) == 1)
    reader = threading.Thread(target=files.path, args=[entries[9]], daemon=True)
    reader.start()
    eventually(lambda: len(files._wanted) == 4)
    may_go_on.set()
    reader.join(PATIENCE)
    for entry in entries[:4]:
        files.path(entry)
    assert order == [entries[number].name for number in (0, 9, 1, 2, 3)]


def test_files_are_planned_ahead_of_an_iteration_as_it_goes_on(tmp_path: Path) -> None:
    """Although one of them is here already."""
    url = f"memory://{uuid.uuid4().hex}"
    limit = published(url, tmp_path) // 2  # a quarter of it, two files, may be ahead
    ref = yoga.Storage(url, cache_dir=tmp_path / "cache", cache_bytes=limit).fetch("x", "1")
    assert isinstance(ref, VersionRef)
    files, entries, reached = ref.location, ref.manifest.files, [0]
    assert isinstance(files, VersionDownloads)
    files.path(entries[0])
    files.follow(entries, [np.arange(NUM_FILES)], lambda: reached[0])
    for number in (1, 5, 9):
        eventually(lambda number=number: files.is_here(entries[number]), 60)
        reached[0] = number + 3
    reached[0] = NUM_FILES  # the plan ends


LEAVING = """
import atexit, sys, threading
from pathlib import Path
sys.path[:0] = {path!r}

def plans():
    return [thread.name for thread in threading.enumerate() if thread.name == "torchyoga plan"]

atexit.register(lambda: print("at the end", plans()))  # runs after those of modules that are imported later
import test_small_cache
import torchyoga as yoga

folder = Path({folder!r})
limit = test_small_cache.published("memory://leaving", folder) // 2
ref = yoga.Storage("memory://leaving", cache_dir=folder / "cache", cache_bytes=limit).fetch("x", "1")
batches = iter(yoga.DataLoader(ref, batch_size=64))
next(batches)
print("in the middle", plans())
"""


def test_no_thread_plans_downloads_when_the_interpreter_ends(tmp_path: Path) -> None:
    """One that were inside NumPy then could end the process by a signal."""
    program = LEAVING.format(path=sys.path, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.splitlines() == ["in the middle ['torchyoga plan']", "at the end []"]
    assert not done.stderr
