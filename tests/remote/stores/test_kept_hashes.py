"""Row hashes that are kept beside a version in a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import calls_of
from servers import http_server
from stored import store_of

import torchyoga as yoga
from torchyoga.rows.comparing import row_hashes

MANY = 2**15

# aiohttp warns of large bodies that gcsfs sends.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def test_a_store_keeps_hashes(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place

    def storage(machine: str) -> yoga.Storage:
        return yoga.Storage(url, storage_options=options, cache_dir=tmp_path / machine)

    for number in range(2):
        storage("one").submit(
            {"x": np.arange(MANY + number)}, "a b", f"1/{number}", progress=False, row_hashes=True
        )
    other = storage("other")
    with calls_of(row_hashes) as read:
        assert yoga.diff(other.fetch("a b", "1/0"), other.fetch("a b", "1/1")).unchanged == MANY
    assert not read
    kept = store_of(other).hashes
    assert kept.published() == other.list() == [("a b", "1/0"), ("a b", "1/1")]
    other.check("a b", "1/0")
    other.clean(0)
    other.check("a b", "1/0")
    other.submit({"x": np.arange(9)}, "a b", "1/0", overwrite=True, progress=False, row_hashes=True)
    other.check("a b", "1/0")
    other.remove("a b", "1/0")
    assert kept.published() == [("a b", "1/1")]


def test_where_nothing_may_be_written_what_is_kept_is_read(tmp_path: Path) -> None:
    local = yoga.Storage(tmp_path / "local")
    local.submit({"x": np.arange(MANY)}, "a", "1", progress=False, row_hashes=True)
    local.submit({"x": np.arange(MANY - 1)}, "a", "2", progress=False)
    shutil.copytree(tmp_path / "local", tmp_path / "served" / "data")
    with http_server(tmp_path / "served") as server:
        storage = yoga.Storage(f"{server.endpoint}/data", cache_dir=tmp_path / "cache")
        with calls_of(row_hashes) as read:
            assert yoga.diff(storage.fetch("a", "1"), storage.fetch("a", "2")).removed.tolist() == [MANY - 1]
        assert sum(call["block"].num_rows for call in read) == MANY - 1
