"""All operations on a store, killed at random moments."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from machines import running
from servers import S3

from torchyoga.formats.contract import FORMATS

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
