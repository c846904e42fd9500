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

KILLS, KILLS_IN_ALL = 15, 400  # for each format


@pytest.fixture(autouse=True)
def small_files(files_of: Callable[[int], None]) -> None:
    files_of(FILE_ROWS)


@pytest.mark.rest
@pytest.mark.parametrize("format", FORMATS)
def test_kills_at_random_moments_lose_nothing(format: str, tmp_path: Path) -> None:
    kill_many(DirectoryWorld(tmp_path, format, random.Random(0)), KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("format", FORMATS)
def test_thousands_of_kills_at_random_moments_lose_nothing(format: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    kill_many(DirectoryWorld(tmp_path, format, random.Random(seed)), KILLS_IN_ALL)
