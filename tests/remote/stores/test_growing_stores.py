"""Versions that share files, in stores that several machines use, and behind a web server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from servers import http_server
from stored import objects_of

from torchyoga.errors import NotFoundError
from torchyoga.storage import Storage


def rows_of(*numbers: int) -> list[Any]:
    return [{"x": number} for number in numbers]


def test_shared_files_outlive_their_version_in_a_store(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place
    one, two = (
        Storage(url, storage_options=options, cache_dir=tmp_path / name, lease_seconds=5)
        for name in ("one", "two")
    )
    one.submit(rows_of(0, 1), "d", "1")
    two.append(rows_of(2), "d", "2", after="1")
    ref = two.delete_rows("d", "2", rows=[1], to="3")
    one.remove("d", "1")
    one.remove("d", "2")
    two.clean(0)
    one.clean(0)
    fresh = Storage(url, storage_options=options, cache_dir=tmp_path / "fresh")
    assert list(fresh.fetch("d", "3")) == rows_of(0, 2)
    fresh.check("d", "3")
    assert one.convert("d", "3").fingerprint == ref.fingerprint
    time.sleep(1.1)  # stores count whole seconds
    one.clean(0)
    fresh.check("d", "3")
    assert len([name for name in objects_of(one).find("d") if not name.endswith(".json")]) == 1
    with pytest.raises(NotFoundError, match="has no version '2'"):
        one.append(rows_of(2), "d", "4", after="2")


def test_shared_files_behind_a_web_server(tmp_path: Path) -> None:
    local = Storage(tmp_path / "served")
    local.submit(rows_of(0, 1), "d", "1")
    local.append(rows_of(2), "d", "2 %", after="1")
    local.delete_rows("d", "2 %", rows=[0], to="3")
    with http_server(tmp_path / "served") as server:
        web = Storage(server.endpoint, cache_dir=tmp_path / "cache")
        assert list(web.fetch("d", "2 %")) == rows_of(0, 1, 2)
        assert list(web.fetch("d", "3", download=True)) == rows_of(1, 2)
        web.check("d", "3")
    assert len(list((tmp_path / "cache").rglob("*.mdb"))) == 2
