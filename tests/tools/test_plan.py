"""`yoga plan`: its formulas against caches that are simulated, and the command."""

from __future__ import annotations

import random
import re
from collections import OrderedDict
from itertools import chain

import numpy as np
import pytest
from commanding import parsed, run

import torchyoga as yoga
from torchyoga.tools.commands.plan import Cluster, Epoch, Sizes, epoch_of, held_bytes, requests_of

NBYTES = 1000


def simulated(files: int, rows: int, cluster: Cluster, epochs: int) -> list[float]:
    """Files that all nodes download in each epoch, of nodes with a least recently used cache."""
    draw = random.Random(0)
    every = list(range(files * rows))
    room = files if cluster.cache is None else cluster.cache // NBYTES
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(cluster.nodes)]
    found = []
    for _ in range(epochs):
        draw.shuffle(every)
        downloads = 0
        for node, cache in enumerate(caches):
            if cluster.shard:
                size = len(every) / cluster.nodes
                mine = [row for row in every if node * size <= row < (node + 1) * size]
            else:
                mine = every[node :: cluster.nodes]
            wanted = [row // rows for row in mine]
            if cluster.shuffle == "block":
                wanted = list(dict.fromkeys(wanted))
                draw.shuffle(wanted)
            for file in wanted:
                downloads += file not in cache
                cache[file] = None
                cache.move_to_end(file)
                if len(cache) > room:
                    cache.popitem(last=False)
        found.append(float(downloads))
    return found


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(1),
        Cluster(4),
        Cluster(40),
        Cluster(4, cache=10 * NBYTES),
        Cluster(4, cache=30 * NBYTES, shuffle="block"),
        Cluster(4, cache=5 * NBYTES, shuffle="block"),
        Cluster(4, shard=True),
        Cluster(3, shard=True, cache=4 * NBYTES, shuffle="block"),
        Cluster(4, shard=True, cache=3 * NBYTES),
        Cluster(80, shard=True),
    ],
    ids=str,
)
def test_formulas_agree_with_simulated_caches(cluster: Cluster) -> None:
    num_files, rows = 40, 25
    files = Sizes.of([(NBYTES, rows)] * num_files)
    first, later, *_ = simulated(num_files, rows, cluster, 2)
    if cluster.cache is not None:  # what is kept differs from one epoch to the next
        later = float(np.mean(simulated(num_files, rows, cluster, 30)[1:]))
    for is_first, downloads in ((True, first), (False, later)):
        found = epoch_of(files, cluster, is_first)
        assert found.downloaded / NBYTES == pytest.approx(downloads, rel=0.1, abs=4), is_first
        assert found.requests == pytest.approx(found.downloaded / NBYTES)


def test_requests_of_a_file() -> None:
    size = 8 * 2**20
    assert [requests_of(n) for n in (0, 1, 2 * size, 2 * size + 1, 4 * size, 2**30)] == [1, 1, 1, 3, 3, 127]


def test_what_limits() -> None:
    files = Sizes.of([(2**30, 10_000)] * 100)
    for cluster, limit, seconds in (
        (Cluster(16, bandwidth=10**9), "node", files.total / 10**9),
        (Cluster(16, store_bandwidth=10**9), "store", 16 * files.total / 10**9),
        (Cluster(16, request_rate=10), "requests", 16 * 100 * 127 / 10),
    ):
        found = epoch_of(files, cluster, is_first=True)
        assert found.limit == limit
        assert found.seconds == pytest.approx(seconds)
        assert found.request_cost == pytest.approx(16 * 100 * 127 / 1000 * 0.0004)


def test_epochs_together() -> None:
    one, other = Epoch(1, 2, 3, 4, 5, "node"), Epoch(10, 20, 30, 40, 50, "store")
    assert one.then(other, 2) == Epoch(21, 42, 63, 84, 105, "store")
    assert one.then(other, 0) == one


def test_the_case_of_the_page() -> None:
    """10 TB in files of 1 GiB on 1,250 nodes."""
    files = Sizes.of([(2**30, 10_000)] * 9313)
    each = epoch_of(files, Cluster(1250, cache=2 * 10**12, shuffle="block"), is_first=False)
    shard = epoch_of(files, Cluster(1250, cache=2 * 10**12, shard=True), is_first=True)
    assert 11e15 < each.downloaded < 12.5e15
    assert 10e12 < shard.downloaded < 11.5e12
    assert held_bytes(files, Cluster(1250, shard=True)) < 2 * 10**12


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plan")
    storage = yoga.Storage(folder)
    storage.submit(yoga.from_arrays({"x": np.zeros((1000, 100))}), "images", "1.1")
    storage.submit([], "none", "1")
    return str(folder)


def test_the_command(url: str) -> None:
    found = parsed("plan", "images", "-s", url, "--nodes", "16", "--cache", "2TB", "--epochs", "5")
    assert found["first"]["requests"] == 16
    assert found["later"]["requests"] == 0
    assert found["together"]["downloaded"] == found["first"]["downloaded"] == 16 * found["bytes"]
    assert found["cluster"]["cache"] == 2 * 10**12
    said = run("plan", "images", "1.1", "-s", url, "--nodes", "1250", "--locality", "shard")
    assert said.exit_code == 0
    assert "on 1,250 nodes of 8 ranks; each may keep all that it reads" in said.stdout
    assert "assumed: 3.0 GB/s a node, 5,500 GETs/s" in said.stdout


def test_it_says_how_to_download_less(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plan")
    storage = yoga.Storage(folder)
    parts = [yoga.from_arrays({"x": np.full((50, 1000), n)}) for n in range(4)]
    storage.submit(parts[0], "a", "0")
    for number, part in enumerate(parts[1:], 1):
        storage.append(part, "a", str(number), after=str(number - 1))
    said = run("plan", "a", "-s", str(folder), "-n", "2", "--cache", "500kB")
    wanted = re.search(r"later epochs download again: --cache (\S+)", said.stdout)
    assert wanted
    assert "again" not in run("plan", "a", "-s", str(folder), "-n", "2", "--cache", wanted[1]).stdout
    assert "--locality shard" in said.stdout
    assert "--shuffle block" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["images", "--cache", "much"], "is not a number of bytes; write 500GB, 2TB or 512MiB"),
        (["images", "--cache", "-1"], "is not a number of bytes"),
        (["images", "--cache", "9" * 400], "is not from 0 byte to 100000 PB"),
        (["images", "--bandwidth", "0"], "is not from 1 byte"),
        (["images", "--bandwidth", "0.1"], "is not from 1 byte"),
        (["images", "--store-bandwidth", "0"], "is not from 1 byte"),
        (["images", "--request-rate", "nan"], "'nan' is not a number"),
        (["images", "--request-price", "inf"], "not in the range"),
        (["images", "--nodes", "9" * 400], "not in the range"),
        (["images", "--epochs", "9" * 400], "not in the range"),
        (["images", "--nodes", "0"], "0"),
        (["image"], "the storage holds 'images'"),
        (["images", "9"], "its versions are '1.1'"),
    ],
)
def test_wrong_use(url: str, arguments: list[str], message: str) -> None:
    found = run("plan", "-s", url, *arguments)
    assert found.exit_code == 2
    assert message in found.stderr


def test_without_rows(url: str) -> None:
    found = parsed("plan", "none", "-s", url)
    assert all(number == 0 for number in chain(found["first"].values()) if not isinstance(number, str))
