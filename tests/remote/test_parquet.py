"""Parquet files behind URLs: S3, GCS and plain HTTP, also where the network fails."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import S3, Fault, Proxy, http_server

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, RemoteError
from torchyoga.testing import assert_rows_equal

ROWS, GROUP = 300, 50
TABLE = pa.table(
    {
        "n": np.arange(ROWS),
        "text": [None if n % 7 == 0 else f"row {n}" for n in range(ROWS)],
        "list": [list(range(n % 4)) for n in range(ROWS)],
        "x": pa.FixedSizeListArray.from_arrays(np.random.default_rng(0).random(ROWS * 100), 100),
    }
)


def parquet(table: pa.Table = TABLE) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=GROUP)
    return out.getvalue()


def write(url: str, options: Any, data: bytes) -> None:
    files, path = fsspec.core.url_to_fs(url, **(options or {}))
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, data)


@pytest.fixture
def url(s3: S3, bucket: str) -> str:
    """Of a file in the S3 store."""
    write(f"s3://{bucket}/a.parquet", s3.storage_options, parquet())
    return f"s3://{bucket}/a.parquet"


def numbers_of(loader: Any) -> list[int]:
    return [n for batch in loader for n in batch["n"].tolist()]


def test_all_kinds_of_stores(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place
    for year in (2023, 2024):
        write(f"{url}/year={year}/part.parquet", options, parquet())
    for found in (url, f"{url}/*/part.parquet", [f"{url}/year={year}/part.parquet" for year in (2023, 2024)]):
        ref = yoga.from_parquet(found, storage_options=options)
        assert len(ref) == 2 * ROWS
        assert len(ref.file_starts) == 2 * ROWS // GROUP + 1
        assert ref["list"][ROWS + 7].tolist() == [0, 1, 2]
    ref = yoga.from_parquet(url, storage_options=options, filters=[("year", "==", 2024), ("n", "<", 120)])
    expected = [{**row, "year": 2024} for row in TABLE.slice(0, 120).to_pylist()]
    assert ref.to_arrow().to_pylist() == expected
    cached = yoga.Storage(tmp_path).submit(ref, "rows", "1")
    assert_rows_equal(list(cached), list(ref))


def test_a_loader_reads_only_the_columns_and_groups_that_it_needs(url: str, proxy: Proxy) -> None:
    ref = yoga.from_parquet(url, storage_options=proxy.storage_options, filters=[("n", "<", GROUP)])
    proxy.clear()
    assert [int(row["n"]) for row in ref.columns(["n"])] == list(range(GROUP))
    sent = sum(request.sent for request in proxy.requests)
    assert sent < len(parquet()) / 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_blocks_are_shuffled_and_resumed(s3: S3, url: str, num_workers: int) -> None:
    ref = yoga.from_parquet(url, storage_options=s3.storage_options).columns(["n"])
    options: dict[str, Any] = {"shuffle": "block", "seed": 3, "num_workers": num_workers}
    whole = numbers_of(yoga.DataLoader(ref, 16, **options))
    assert sorted(whole) == list(range(ROWS))
    loader = yoga.DataLoader(ref, 16, **options)
    batches = iter(loader)
    first = [n for _ in range(5) for n in next(batches)["n"].tolist()]
    state = loader.state_dict()
    del batches
    again = yoga.DataLoader(ref, 16, **options)
    again.load_state_dict(state)
    assert first + numbers_of(again) == whole


@pytest.mark.parametrize("ranges", [True, False])
def test_over_http(ranges: bool, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet())
    with http_server(tmp_path, ranges) as server:
        ref = yoga.from_parquet(f"{server.endpoint}/a.parquet")
        assert ref.to_arrow().to_pylist() == TABLE.to_pylist()
        with pytest.raises(NotFoundError, match="there is no file"):
            yoga.from_parquet(f"{server.endpoint}/b.parquet")


@pytest.mark.parametrize(
    "fault",
    [Fault("status", status=503, times=2), Fault("cut body", times=2, bytes=100), Fault("refuse", times=2)],
    ids=lambda fault: fault.kind,
)
def test_what_fails_for_a_moment_is_read_again(url: str, proxy: Proxy, fault: Fault) -> None:
    ref = yoga.from_parquet(url, storage_options=proxy.storage_options)
    proxy.faults = [fault]
    assert ref.to_arrow().to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("is_foreseen", [True, False])
def test_what_fails_for_good_is_an_error(
    url: str, proxy: Proxy, is_foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_foreseen:  # so that pyarrow asks for ranges itself
        monkeypatch.setattr("torchyoga.tables.parquet.files._runs_of", lambda *_: [])
    ref = yoga.from_parquet(url, storage_options=proxy.storage_options)
    proxy.faults = [Fault("status", "a.parquet", "GET", status=403, times=2)]
    with pytest.raises(RemoteError, match=r"a\.parquet"):
        list(ref)


def test_files_that_change_are_noticed(s3: S3, url: str) -> None:
    ref = yoga.from_parquet(url, storage_options=s3.storage_options, cache_bytes=60_000)
    assert int(ref[3]["n"]) == 3
    write(url, s3.storage_options, parquet(TABLE.slice(1)))
    with pytest.raises(CorruptError, match="has changed"):
        list(ref)
    fsspec.filesystem("s3", **s3.storage_options).rm(url)
    with pytest.raises(CorruptError, match="is gone"):
        list(ref)


def test_an_interrupted_conversion_continues(url: str, proxy: Proxy, tmp_path: Path) -> None:
    ref = yoga.from_parquet(url, storage_options=proxy.storage_options)
    storage = yoga.Storage(tmp_path)
    proxy.faults = [Fault("status", "a.parquet", "GET", status=403, after=3)]
    with pytest.raises(RemoteError):
        storage.submit(ref, "rows", "1", progress=False)
    proxy.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = storage.submit(ref, "rows", "1", progress=False)
    assert_rows_equal(list(found), list(ref))
