"""Versions that share files, and that are copied, in stores that several machines use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from publishing import Machine, storages
from servers import QUICK, Fault, Proxy, http_server

import torchyoga as yoga
from torchyoga import errors
from torchyoga.storage import Storage

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def history(folder: Path) -> yoga.Storage:
    """Appends, of which one is removed, a deletion and a compaction."""
    storage = yoga.Storage(folder / "from")
    storage.submit({"x": np.arange(3000)}, "d", "0")
    for number in range(1, 6):
        storage.append({"x": np.arange(2000)}, "d", str(number), after=str(number - 1))
    storage.delete_rows("d", "5", rows=[1, 3500], to="6")
    storage.convert("d", "6", to="7")
    storage.remove("d", "3")
    return storage


def same(one: yoga.Storage, other: yoga.Storage) -> None:
    assert one.versions("d") == other.versions("d")
    for version in one.versions("d"):
        other.check("d", version)
        here, there = one.fetch("d", version), other.fetch("d", version)
        assert there.fingerprint == here.fingerprint
        assert [row["x"] for row in there] == [row["x"] for row in here]


def copied(storage: yoga.Storage, to: yoga.Storage) -> None:
    for version in storage.versions("d"):
        storage.copy("d", version, to=to)


def test_there_and_back(machine: Machine, tmp_path: Path) -> None:
    local, here = history(tmp_path), machine("here")
    copied(local, here)
    same(local, machine("there"))
    back = yoga.Storage(tmp_path / "back")
    copied(machine("there"), back)
    same(local, back)
    # Each copy has all of its files.
    here.remove("d", "0")
    machine("there").remove("d", "1")
    time.sleep(1.1)  # stores count whole seconds
    here.clean(0)
    assert here.versions("d") == ["2", "4", "5", "6", "7"]
    for version in here.versions("d"):
        here.check("d", version)
    assert machine("fresh").fetch("d", "2").fingerprint == local.fetch("d", "2").fingerprint


def test_broken_off_at_any_write_it_goes_on(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    local = history(tmp_path)
    whole = storages(f"s3://{bucket}/whole", proxy.storage_options, tmp_path)("whole")
    copied(local, whole)
    writes = len(proxy.seen("PUT", "d/"))
    for step in range(0, writes, 16):
        proxy.clear()
        there = storages(f"s3://{bucket}/{step}", {**proxy.storage_options, **QUICK}, tmp_path)(f"on {step}")
        # From one request on, all are in vain: as of a process that is killed, but for its leases.
        proxy.faults = [Fault("status", "/d/|%2Fd%2F", "PUT", after=step, status=500)]
        with pytest.raises(errors.YogaError):
            copied(local, there)
        proxy.clear()
        for version in there.versions("d"):
            there.check("d", version)
        copied(local, there)
        same(local, there)
        there.clean(0)
        same(local, there)


# -- versions that share files


def rows_of(*numbers: int) -> list[Any]:
    return [{"x": number} for number in numbers]


def test_shared_files_behind_a_web_server(tmp_path: Path) -> None:
    local = Storage(tmp_path / "served")
    local.submit(rows_of(0, 1), "d", "1")
    local.append(rows_of(2), "d", "2 %", after="1")
    local.delete_rows("d", "2 %", rows=[0], to="3")
    with http_server(tmp_path / "served") as server:
        web = Storage(server.endpoint, cache_dir=tmp_path / "cache")
        assert list(web.fetch("d", "2 %")) == rows_of(0, 1, 2)
        assert list(web.fetch("d", "3", download=True)) == rows_of(1, 2)
        web.check("d", "3")
    assert len(list((tmp_path / "cache").rglob("*.mdb"))) == 2
