"""Many processes that submit, fetch, overwrite, convert, copy, remove, check and clean at once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from children import forked
from known import SCHEMA, Bystanders, KnownRows, generation_of, unexpected
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.errors import ExistsError, NotFoundError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

IDS, VERSIONS = ["a", "b c"], ["1", "2", "3"]
ACTS = ["fetch"] * 4 + ["submit", "overwrite", "overwrite", "convert", "copy", "remove", "check", "clean"]
LOCK_SECONDS = 250.0


def live(folder: Path, name: int, seconds: float) -> None:
    """One of many processes; AssertionError, or any error that users should never see, ends it."""
    signal.alarm(int(seconds + PATIENCE))
    chance = random.Random(f"{time.time()} {name}")
    storage, generation = yoga.Storage(folder / "storage", timeout=LOCK_SECONDS), name * 10**9
    elsewhere = yoga.Storage(folder / "elsewhere", timeout=LOCK_SECONDS)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        act, id, version = chance.choice(ACTS), chance.choice(IDS), chance.choice(VERSIONS)
        format = chance.choice(["lmdb", "hdf5"])
        try:
            if act == "fetch":
                generation_of(storage, id, version)
            elif act in ("submit", "overwrite"):
                generation += 1
                rows = KnownRows(id, version, generation)
                storage.submit(
                    rows, id, version, act == "overwrite", schema=SCHEMA, progress=False, format=format
                )
            elif act == "convert":
                storage.convert(id, version, format=format, progress=False)
            elif act == "copy":
                storage.copy(id, version, elsewhere, overwrite=True, progress=False)
            elif act == "remove":
                storage.remove(id, version)
            elif act == "check":
                storage.check(id, version)
            else:
                chance.choice([storage, elsewhere]).clean(0)
        except (NotFoundError, ExistsError):
            pass  # another process was faster
        except BaseException:
            print(f"process {name} wanted to {act} {id!r} {version!r}")
            raise


@pytest.mark.parametrize(
    ("processes", "seconds"),
    [pytest.param(4, 3.0, marks=pytest.mark.rest), pytest.param(16, 600.0, marks=pytest.mark.soak)],
)
def test_many_processes_use_one_storage_at_once(tmp_path: Path, processes: int, seconds: float) -> None:
    storages = [yoga.Storage(tmp_path / name) for name in ("storage", "elsewhere")]
    beside = [Bystanders(one.path, tmp_path / f"outside {one.path.name}", IDS) for one in storages]
    children = [forked(lambda name=name: live(tmp_path, name, seconds)) for name in range(1, processes + 1)]
    codes = [end() for end in children]
    assert codes == [0] * processes
    for storage, bystanders in zip(storages, beside, strict=True):
        for id, version in storage.list():
            assert generation_of(storage, id, version) is not None
            storage.check(id, version)
        bystanders.check()
        storage.clean(0)
        assert unexpected(storage, bystanders) == []
