"""Machines with homes and caches of their own, and one S3 store; kills at random moments."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from machines import Machine, running
from servers import S3, Fault, Proxy
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS

BUILDER = """
import logging, os, sys, time
import torchyoga as yoga
logging.basicConfig(format="%(message)s")
url, endpoint, go, lease = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": endpoint}}
storage = yoga.Storage(url, storage_options=options, lease_seconds=lease, timeout=PATIENCE)

@storage.cacheable("digits", "1")
def digits():
    print("building", flush=True)
    for n in range(40):
        while n == 20 and not os.path.exists(go):
            time.sleep(0.02)
        yield {"n": n, "by": sys.argv[5]}
    print("read it all", flush=True)

ref = digits()
assert [int(row["n"]) for row in ref] == list(range(40))
assert len({row["by"] for row in ref}) == 1
print("rows by", ref[0]["by"], flush=True)
""".replace("PATIENCE", str(PATIENCE))


def storage_at(url: str, s3: S3, folder: Path) -> yoga.Storage:
    return yoga.Storage(url, storage_options=s3.storage_options, cache_dir=folder)


def waiting(*machines: Machine) -> int:
    """The number of machines that have logged that they wait, which they do after 5 s."""
    return sum("waiting for process" in machine.stderr for machine in machines)


def test_one_builds_and_the_others_wait_and_read(s3: S3, bucket: str, tmp_path: Path) -> None:
    url, go = f"s3://{bucket}/p", tmp_path / "go"
    with (
        running(BUILDER, tmp_path / "a", url, s3.endpoint, str(go), "30", "a") as a,
        running(BUILDER, tmp_path / "b", url, s3.endpoint, str(go), "30", "b") as b,
        running(BUILDER, tmp_path / "c", url, s3.endpoint, str(go), "30", "c") as c,
    ):
        eventually(lambda: waiting(a, b, c) == 2)
        go.touch()
        outputs = [machine.check() for machine in (a, b, c)]
        errors = "".join(machine.stderr for machine in (a, b, c))
    assert sum("building" in text for text in outputs) == 1
    assert len({text.splitlines()[-1] for text in outputs}) == 1
    assert "taking over" not in errors


def test_a_builder_that_dies_is_followed_by_another(s3: S3, bucket: str, tmp_path: Path) -> None:
    url, go = f"s3://{bucket}/p", tmp_path / "go"
    with running(BUILDER, tmp_path / "a", url, s3.endpoint, str(go), "10", "a") as a:
        a.says("building")
        with (
            running(BUILDER, tmp_path / "b", url, s3.endpoint, str(go), "10", "b") as b,
            running(BUILDER, tmp_path / "c", url, s3.endpoint, str(go), "10", "c") as c,
        ):
            eventually(lambda: waiting(b, c) == 2)
            a.kill()
            go.touch()
            outputs = [machine.check() for machine in (b, c)]
            assert sum("building" in text for text in outputs) == 1
            assert sum("taking over from process" in machine.stderr for machine in (b, c)) >= 1
    storage_at(url, s3, tmp_path / "here").check("digits", "1")


@pytest.mark.parametrize("moment", ["building", "read it all"])
def test_two_builders_after_a_pause_publish_one_version(
    moment: str, s3: S3, proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    """The first is stopped for longer than its lease, or cut off before it can publish; then it continues."""
    url, go = f"s3://{bucket}/p", tmp_path / "go"
    if moment == "read it all":
        go.touch()
        proxy.faults = [Fault("timeout", r"-00000\.mdb", "PUT")]
    with running(BUILDER, tmp_path / "a", url, proxy.endpoint, str(go), "2", "a") as a:
        a.says(moment)
        eventually(lambda: moment == "building" or any(request.fault for request in proxy.requests))
        a.pause()
        go.touch()
        with running(BUILDER, tmp_path / "b", url, s3.endpoint, str(go), "2", "b") as b:
            assert "rows by b" in b.check()
        build = storage_at(url, s3, tmp_path / "x").fetch("digits", "1").manifest.build  # type: ignore[attr-defined]
        proxy.clear()
        proxy.down()  # a request whose answer it waits for
        proxy.up()
        a.resume()
        assert "rows by b" in a.check()  # its own build is thrown away
    ref = storage_at(url, s3, tmp_path / "y").fetch("digits", "1")
    assert ref.manifest.build == build  # type: ignore[attr-defined]
    assert {row["by"] for row in ref} == {"b"}
    storage_at(url, s3, tmp_path / "y").check("digits", "1")


def begun_in(folder: Path) -> int:
    """The number of bytes of incomplete files."""
    parts = (folder / "cache" / "torchyoga" / "parts").iterdir()
    return sum(part.stat().st_size for part in parts)


def test_a_reader_that_dies_while_it_downloads(s3: S3, proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    """The next process on that machine continues where it ended."""
    url, nbytes = f"s3://{bucket}/p", 40 * 2**20
    storage_at(url, s3, tmp_path / "builder").submit([{"x": bytes(10**6)}] * 41, "big", "1")
    program = """
    import sys, torchyoga as yoga
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": sys.argv[2]}}
    ref = yoga.Storage(sys.argv[1], storage_options=options).fetch("big", "1")
    print("fetched", flush=True)
    assert len(ref[0]["x"]) == 10**6
    print("read")
    """
    proxy.clear()
    proxy.faults = [Fault("timeout", r"\.mdb", "GET", after=1)]
    with running(program, tmp_path / "a", url, proxy.endpoint) as one:
        one.says("fetched")
        eventually(lambda: len(proxy.seen("GET", ".mdb")) > 1)
        eventually(lambda: begun_in(tmp_path / "a") > 0)
        one.kill()
    begun = begun_in(tmp_path / "a")
    assert 0 < begun < nbytes
    proxy.clear()
    with running(program, tmp_path / "a", url, proxy.endpoint) as two:
        assert "read" in two.check()
    assert sum(request.sent for request in proxy.seen("GET", ".mdb")) < nbytes + 2**20 - begun // 2


# -- kills at random moments


KILLS, KILLS_IN_ALL = 2, 100  # for each format

# A process of its own, which has no threads of a store's client and can therefore fork.
KILLER = """
import json, random, sys
from pathlib import Path
tests, folder, format, seed, kills, url, options = sys.argv[1:]
sys.path[:0] = [tests]
import s3fs  # once, not in every child
from known import FILE_ROWS
from smallfiles import make_files_of
from worlds import StoreWorld, kill_many

make_files_of(FILE_ROWS)
world = StoreWorld(Path(folder), format, random.Random(int(seed)), url, json.loads(options))
kill_many(world, int(kills))
"""


def kill(s3: S3, bucket: str, folder: Path, format: str, seed: int, kills: int) -> None:
    given = [str(Path(__file__).parents[1]), str(folder / "world"), format, str(seed), str(kills)]
    url, options = f"s3://{bucket}/kills", json.dumps(s3.storage_options)
    with running(KILLER, folder / "machine", *given, url, options) as killer:
        killer.check(timeout=60 + 30 * kills)


def test_kills_at_random_moments_lose_nothing_in_a_store(s3: S3, bucket: str, tmp_path: Path) -> None:
    kill(s3, bucket, tmp_path, "lmdb", 0, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("format", FORMATS)
def test_thousands_of_kills_at_random_moments_lose_nothing_in_a_store(
    format: str, s3: S3, bucket: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    kill(s3, bucket, tmp_path, format, seed, KILLS_IN_ALL)
