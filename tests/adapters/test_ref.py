"""DataRefs as sources of builds: views of anything, also with codecs, go on where they were interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smallfiles import build_with

import torchyoga as yoga
from torchyoga.coding import encoding
from torchyoga.testing import assert_rows_equal

ROWS = [{"n": n, "image": np.full((8, 8, 3), n, np.uint8), "text": "word " * (n % 5)} for n in range(200)]


class Breaking(yoga.DataRef):
    """Rows that record which were read in one piece, and fail from some number on."""

    def __init__(self, rows: list[Any]) -> None:
        self.given = rows
        self.fails_from: int | None = None
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.given)

    def take(self, rows: np.ndarray) -> Any:
        is_piece = bool((np.diff(rows) == 1).all())  # not some rows of all, which show how many make a block
        if self.fails_from is not None and is_piece and rows[-1] >= self.fails_from:
            raise ConnectionError("offline")
        self.read += rows.tolist() if is_piece else []
        return [self.given[row] for row in rows.tolist()]

    @property
    def schema(self) -> yoga.Schema:
        return yoga.Schema.of(ROWS[0])


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of about ten rows is a file."""
    build_with(monkeypatch.setattr, file_bytes=1, block_bytes=2500)
    monkeypatch.setattr(encoding, "_BLOCK_BYTES", 2500)


VIEWS: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    "whole": lambda ref: ref,
    "slice": lambda ref: ref[5:],
    "where": lambda ref: ref.where("n", lambda n: n >= 1),
    "columns": lambda ref: ref.columns(["n", "image"]),
    "map": lambda ref: ref.map(lambda row: {**row, "n": -row["n"]}),
    "random map": lambda ref: ref.map(partial(_shifted)),
}


def _shifted(row: Any) -> Any:
    return {**row, "n": row["n"] + int(np.random.default_rng(row["n"]).integers(9))}


@pytest.mark.quick("codecs-whole", "plain-*")
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("codecs", [None, {"image": yoga.codecs.png()}], ids=["plain", "codecs"])
def test_an_interrupted_build_of_a_view_continues(
    name: str, codecs: Any, tmp_path: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    whole, storage = Breaking(ROWS), yoga.Storage(tmp_path)
    view = VIEWS[name](whole)
    whole.fails_from = 150
    with pytest.raises(ConnectionError, match="offline"):
        storage.submit(view, "a", "1", progress=False, codecs=codecs)
    whole.fails_from, whole.read = None, []
    found = storage.submit(view, "a", "1", progress=False, codecs=codecs)
    assert "continuing an interrupted build at row" in caplog.text
    again = storage.submit(view, "a", "2", progress=False, codecs=codecs)
    assert found.fingerprint == again.fingerprint
    assert_rows_equal(list(found.decoded() if codecs else found), list(view))


def test_a_view_of_other_rows_starts_over(
    tmp_path: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    whole, storage = Breaking(ROWS), yoga.Storage(tmp_path)
    whole.fails_from = 150
    with pytest.raises(ConnectionError):
        storage.submit(whole[5:], "a", "1", progress=False)
    other = Breaking([{**row, "n": row["n"] + 1} for row in ROWS])
    found = storage.submit(other[5:], "a", "1", progress=False)
    assert "row 0 of the source has changed" in caplog.text
    assert [row["n"] for row in found] == list(range(6, 201))


def test_rows_that_are_random_start_over(
    tmp_path: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    counted = iter(range(10**6))
    whole, storage = Breaking(ROWS), yoga.Storage(tmp_path)
    view = whole.map(lambda row: {**row, "n": next(counted)})
    whole.fails_from = 150
    with pytest.raises(ConnectionError):
        storage.submit(view, "a", "1", progress=False)
    whole.fails_from = None
    with pytest.warns(UserWarning, match="differ when they are read again"):
        storage.submit(view, "a", "1", progress=False)
    assert "differs each time it is read" in caplog.text


def test_entries_of_info_are_no_methods(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    ref = storage.submit(ROWS[:5], "some", "1", info={"blocks": 12}, progress=False)
    assert_rows_equal(list(storage.submit(ref, "again", "1", progress=False)), ROWS[:5])
