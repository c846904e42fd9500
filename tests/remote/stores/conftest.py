"""Stores that are tried again soon, and machines that share one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from publishing import Machine, storages


@pytest.fixture(autouse=True)
def soon(tried_again_soon: None) -> None:
    """For all tests of this folder."""


@pytest.fixture
def small_files(files_of: Callable[[int], None]) -> None:
    """Versions with one file for every 20 rows."""
    files_of(20)


@pytest.fixture
def machine(place: tuple[str, Any], tmp_path: Path) -> Machine:
    """A storage on a machine of that name, with a cache of its own."""
    return storages(*place, tmp_path)
