"""Machines with homes and caches of their own, and one S3 store; kills at random moments."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from machines import running
from servers import S3
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

ref = digits()
assert [int(row["n"]) for row in ref] == list(range(40))
assert len({row["by"] for row in ref}) == 1
print("rows by", ref[0]["by"], flush=True)
""".replace("PATIENCE", str(PATIENCE))


def test_a_builder_that_dies_is_followed_by_another(s3: S3, bucket: str, tmp_path: Path) -> None:
    """It lives for longer than its lease; the others wait, and only once it is dead one of them builds."""
    url, go = f"s3://{bucket}/p", tmp_path / "go"
    with running(BUILDER, tmp_path / "a", url, s3.endpoint, str(go), "8", "a") as a:
        a.says("building")
        with (
            running(BUILDER, tmp_path / "b", url, s3.endpoint, str(go), "8", "b") as b,
            running(BUILDER, tmp_path / "c", url, s3.endpoint, str(go), "8", "c") as c,
        ):
            says = r"waiting for process \d+ on .*, since "  # after 5 s, and after 10
            eventually(lambda: all(len(re.findall(says, machine.stderr)) >= 2 for machine in (b, c)))
            assert not any("taking over" in machine.stderr for machine in (b, c))
            a.kill()
            go.touch()
            outputs = [machine.check() for machine in (b, c)]
            assert sum("building" in text for text in outputs) == 1
            assert len({text.splitlines()[-1] for text in outputs}) == 1
            assert sum("taking over from process" in machine.stderr for machine in (b, c)) >= 1
    here = yoga.Storage(url, storage_options=s3.storage_options, cache_dir=tmp_path / "here")
    here.check("digits", "1")


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
