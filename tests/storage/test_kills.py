"""All operations on a directory, killed at random moments: nothing is lost, half written or left for ever."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from known import FILE_ROWS
from worlds import DirectoryWorld, kill_many

from torchyoga.formats.contract import FORMATS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def small_files(files_of: Callable[[int], None]) -> None:
    files_of(FILE_ROWS)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        pytest.param(0, 15, marks=pytest.mark.rest),
        pytest.param(random.randrange(2**32), 400, marks=pytest.mark.soak),
    ],
    ids=["few", "many"],
)
@pytest.mark.parametrize("format", FORMATS)
def test_kills_at_random_moments_lose_nothing(format: str, seed: int, kills: int, tmp_path: Path) -> None:
    print("seed", seed)
    kill_many(DirectoryWorld(tmp_path, format, random.Random(seed)), kills)
