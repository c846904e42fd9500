"""Parquet files into versions: group by group, and on from where it was interrupted."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from smallfiles import build_with

import torchyoga as yoga
from torchyoga.tables.parquet import ref as parquet
from torchyoga.tables.parquet.files import ParquetFiles
from torchyoga.testing import assert_rows_equal

N = 300
TABLE = pa.table(
    {"id": np.arange(N), "x": np.random.default_rng(0).random(N), "text": [f"row {i}" for i in range(N)]}
)


class Offline:
    """Lets `table` fail from some group on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[int] = []
        self.fails_at: int | None = None
        table = ParquetFiles.table

        def read(files: ParquetFiles, group: int) -> pa.Table:
            if group == self.fails_at:
                raise ConnectionError("offline")
            self.groups.append(group)
            return table(files, group)

        monkeypatch.setattr(ParquetFiles, "table", read)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Offline:
    return Offline(monkeypatch)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is a file, and not much larger than a group."""
    build_with(monkeypatch.setattr, file_bytes=1, block_bytes=300)


@pytest.mark.parametrize("group", [1, 7, 1000])
def test_all_rows_are_converted_in_order(group: int, tmp_path: Path, offline: Offline) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet", row_group_size=group)
    ref = yoga.from_parquet(tmp_path / "x.parquet")
    made = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    assert offline.groups == list(range(len(ref.file_starts) - 1)), "each group is decoded once"
    assert made.schema == ref.schema
    assert_rows_equal(list(made), list(ref))
    some = yoga.from_parquet(tmp_path / "x.parquet", ["text"], [("id", "in", [3, 4, 299])])
    kept = yoga.Storage(tmp_path / "storage").submit(some, "x", "some", progress=False)
    assert [row["text"] for row in kept] == ["row 3", "row 4", "row 299"]


def test_an_interrupted_conversion_continues(tmp_path: Path, offline: Offline, small_files: None) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet", row_group_size=10)
    storage, ref = yoga.Storage(tmp_path / "storage"), yoga.from_parquet(tmp_path / "x.parquet")
    offline.fails_at = 17
    with pytest.raises(ConnectionError):
        storage.submit(ref, "x", "1", progress=False)
    assert storage.list() == []
    del offline.groups[:]
    offline.fails_at = None
    again = storage.submit(yoga.from_parquet(tmp_path / "x.parquet"), "x", "1", progress=False)
    assert offline.groups[0] >= 16, "it goes on with the group at which it stopped"
    assert_rows_equal(list(again), list(ref))
    whole = storage.submit(ref, "x", "2", progress=False)
    assert whole.fingerprint == again.fingerprint


def test_a_conversion_of_other_files_starts_over(
    tmp_path: Path, offline: Offline, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    storage, path = yoga.Storage(tmp_path / "storage"), tmp_path / "x.parquet"
    pq.write_table(TABLE, path, row_group_size=10)
    offline.fails_at = 25
    with pytest.raises(ConnectionError):
        storage.submit(yoga.from_parquet(path), "x", "1", progress=False)
    other = TABLE.set_column(0, "id", pa.array([*range(N - 1), 7]))  # one row, at the end
    pq.write_table(other, path, row_group_size=10)
    del offline.groups[:]
    offline.fails_at = None
    with caplog.at_level(logging.WARNING, "torchyoga"):
        made = storage.submit(yoga.from_parquet(path), "x", "1", progress=False)
    assert "starting over" in caplog.text
    assert offline.groups[0] == 0
    assert [int(i) for i in made["id"]] == [*range(N - 1), 7]


def test_large_groups_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Offline
) -> None:
    monkeypatch.setattr(parquet, "_LARGE_GROUP", 1)
    path = tmp_path / "x.parquet"
    pq.write_table(TABLE, path, row_group_size=130)
    ref = yoga.from_parquet(path, cache_bytes=500)
    for start in (0, 5, 129, 130, 299):
        blocks = list(ref.blocks(start, 600))
        assert [int(i) for block in blocks for i in block.data[0].values] == list(range(start, N))
        assert max(block.num_rows for block in blocks) < 130
    some = yoga.from_parquet(path, filters=[("id", ">", 100), ("id", "<", 200)])
    found = [int(i) for block in some.blocks(20, 600) for i in block.data[0].values]
    assert found == list(range(121, 200))
    assert not offline.groups
    made = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    assert [int(i) for i in made["id"]] == list(range(N))
