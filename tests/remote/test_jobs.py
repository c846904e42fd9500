"""A job of many ranks reads each file at most once a node."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, done
from servers import S3, Proxy
from smallfiles import make_files_of

import torchyoga as yoga

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
