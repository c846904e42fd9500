"""Jobs of many: each file is read at most once a node; builds in parts go on over faults."""

from __future__ import annotations

import collections
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Job, done
from parted import Plain, read_lines
from servers import S3, Fault, Proxy
from smallfiles import make_files_of
from stored import objects_of, short_waits

import torchyoga as yoga
from torchyoga import Storage
from torchyoga.errors import ExistsError

ROWS, FILE_ROWS, NODES = 1280, 80, 8


@pytest.fixture(scope="module")
def url(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a storage that holds 16 files of 80 rows; no test writes there."""
    url, folder = f"s3://{s3.new_bucket()}/p", tmp_path_factory.mktemp("builder")
    storage = yoga.Storage(url, storage_options=s3.storage_options, cache_dir=folder)
    rows = ({"x": np.full(100, n), "n": n} for n in range(ROWS))
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_files_of(FILE_ROWS, monkeypatch.setattr)
        storage.submit(rows, "a", "1", progress=False)
    return url


def requests(proxy: Proxy, text: str, bodies: bool = True) -> collections.Counter[str]:
    """GET requests by path; those that were answered with a body, or all."""
    seen = proxy.seen("GET", text)
    return collections.Counter(one.path for one in seen if one.status in (200, 206) or not bodies)


@pytest.mark.rest
@pytest.mark.parametrize(("ranks", "distributed"), [(64, True), (16, False)])
def test_ranks_that_start_at_once(
    url: str, proxy: Proxy, tmp_path: Path, ranks: int, distributed: bool
) -> None:
    job = Job(url, proxy.storage_options, NODES, ranks, distributed, tmp_path)
    found = done(job)
    assert len({rank.build for rank in found}) == 1
    assert sorted(row for rank in found for row in rank.rows) == list(range(ROWS))
    files = requests(proxy, ".mdb")
    assert len(files) == ROWS // FILE_ROWS
    assert max(files.values()) <= NODES
    # A job that begins later on the same nodes downloads nothing.
    proxy.clear()
    later = done(Job(url, proxy.storage_options, NODES, NODES, distributed, tmp_path))
    assert sorted(row for rank in later for row in rank.rows) == list(range(ROWS))
    assert not requests(proxy, ".mdb", bodies=False)


def test_by_shards_each_file_is_read_by_one_node(url: str, proxy: Proxy, tmp_path: Path) -> None:
    ranks = done(Job(url, proxy.storage_options, 4, 4, True, tmp_path, "shard"))
    assert sorted(row for rank in ranks for row in rank.rows) == list(range(ROWS))
    assert set(requests(proxy, ".mdb").values()) == {1}


# -- builds in parts


def test_each_kind_of_store_gives_the_version_of_one_process(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place
    storage = Storage(url, storage_options=options, cache_dir=tmp_path / "cache", lease_seconds=5)
    one = storage.submit(Plain(60), "one", "1.0")
    with ThreadPoolExecutor(2) as executor:
        many = storage.submit(Plain(60), "many", "1.0", executor=executor)
    assert many.fingerprint == one.fingerprint
    lines = storage.submit(yoga.flat_map(list(range(9)), read_lines), "lines", "1.0", together=True)
    assert len(lines) == sum(number % 4 for number in range(9))
    for id, version in storage.list():
        storage.check(id, version)


FAULTS = {
    "503": [Fault("status", status=503, every=7)],
    "lost replies": [Fault("lost reply", method="PUT", every=5)],
    "cut": [Fault("refuse", every=9), Fault("cut upload", method="PUT", bytes=50, every=11)],
}


@pytest.mark.parametrize("kind", list(FAULTS))
def test_helpers_with_a_bad_network_build_one_version(
    kind: str, proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_waits(0.01, patch=monkeypatch.setattr)

    def helper(number: int) -> str:
        storage = Storage(
            f"s3://{bucket}/p",
            storage_options=proxy.storage_options,
            cache_dir=tmp_path / f"cache{number}",
            lease_seconds=5,
        )
        return str(storage.submit(Plain(80), "a", "1.0", together=True, progress=False).fingerprint)

    proxy.faults = FAULTS[kind]
    with ThreadPoolExecutor(3) as helpers:
        found = list(helpers.map(helper, range(3)))
    proxy.clear()
    assert len(set(found)) == 1
    storage = Storage(f"s3://{bucket}/p", storage_options=proxy.storage_options, cache_dir=tmp_path / "cache")
    storage.check("a", "1.0")
    assert storage.submit(Plain(80), "b", "1.0").fingerprint == found[0]
    assert not [name for name in objects_of(storage).find() if name.startswith(".builds")]


def test_publishing_many_parts_costs_few_requests(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    storage = Storage(f"s3://{bucket}/p", storage_options=proxy.storage_options, cache_dir=tmp_path / "cache")
    plan = storage.plan(Plain(100), "a", "1.0", parts=20)
    for part in plan.parts:
        part.build()
    proxy.clear()
    plan.publish()
    assert len(proxy.seen("GET", "done/")) == 20
    assert len(proxy.requests) <= 20 + 3 * 20 + 40  # notes are read, and then deleted with their claims
    with pytest.raises(ExistsError):
        storage.plan(Plain(100), "a", "1.0")
