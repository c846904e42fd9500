"""Selections that are kept beside a version in a store."""

from __future__ import annotations

import pickle
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import http_server
from stored import store_of

import torchyoga as yoga
from torchyoga.errors import ExistsError

CALLS: list[int] = []  # not captured: that would count as a change of the condition
ROWS = {"x": np.arange(1000), "y": np.arange(1000) * 7919 % 10}

# aiohttp warns of large bodies that gcsfs sends.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def test_a_store_keeps_selections(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place

    def storage(machine: str) -> yoga.Storage:
        return yoga.Storage(url, storage_options=options, cache_dir=tmp_path / machine)

    ref = storage("one").submit(ROWS, "a b", "1/2", progress=False)
    made = ref.where("y", lambda y: y < 5, name="low ../é")
    other = storage("two")
    found = pickle.loads(pickle.dumps(other.fetch("a b", "1/2")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = found.where("y", lambda y: y < 5, name="low ../é", stale="error")
        part = found[10:].where("y", lambda y: y < 5, name="low ../é")
    assert again.fingerprint == made.fingerprint
    assert list(again["x"]) == list(ref.where("y", lambda y: y < 5)["x"])
    assert part.fingerprint == ref[10:].where("y", lambda y: y < 5).fingerprint
    with pytest.raises(ExistsError, match="its code differs"):
        found.where("y", lambda y: y < 6, name="low ../é", stale="error")
    assert len(found.where("y", lambda y: y < 6, name="low ../é", stale="rebuild")) == 600
    with pytest.warns(UserWarning, match="its code differs"):
        assert len(ref.where("y", lambda y: y < 5, name="low ../é")) == 600
    assert (other.list(), other.versions("a b")) == ([("a b", "1/2")], ["1/2"])
    other.check("a b", "1/2")
    other.clean(0)
    other.check("a b", "1/2")
    new = other.submit({"y": np.arange(30)}, "a b", "1/2", overwrite=True, progress=False)
    assert len(new.where("y", lambda y: y < 5, name="low ../é")) == 5
    other.remove("a b", "1/2")
    kept = store_of(other).kept
    assert kept.published() == other.list() == []


def test_one_of_many_selects(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place
    yoga.Storage(url, storage_options=options, cache_dir=tmp_path / "0").submit(
        ROWS, "a", "1", progress=False
    )
    found: list[int] = []
    CALLS.clear()

    def low(y: Any) -> Any:
        CALLS.append(1)
        time.sleep(0.2)
        return y < 5

    def select(machine: int) -> None:
        storage = yoga.Storage(url, storage_options=options, cache_dir=tmp_path / str(machine))
        found.append(len(storage.fetch("a", "1").where("y", low, name="low")))

    threads = [threading.Thread(target=select, args=(machine,)) for machine in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(CALLS), found) == (1, [500] * 3)


def test_where_nothing_may_be_written_what_is_kept_is_read(tmp_path: Path) -> None:
    local = yoga.Storage(tmp_path / "local")
    local.submit(ROWS, "a", "1", progress=False).where("y", lambda y: y < 5, name="low")
    shutil.copytree(tmp_path / "local", tmp_path / "served" / "data")
    with http_server(tmp_path / "served") as server:
        ref = yoga.Storage(f"{server.endpoint}/data", cache_dir=tmp_path / "cache").fetch("a", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(ref.where("y", lambda y: y < 5, name="low", stale="error")) == 500
        with pytest.warns(UserWarning, match="could not be kept.*can only be read"):
            assert len(ref.where("y", lambda y: y < 6, name="lower")) == 600
