"""Other libraries' datasets behind S3, GCS and https, in a bounded cache: each file comes once an epoch."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from behind_urls import put
from golden.foreign_rows import DOCUMENTS, FOREIGN
from mds_files import encoded, write
from servers import Proxy, answering, http_server
from waiting import eventually, running

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, YogaError
from torchyoga.tables.foreign import tokens
from torchyoga.testing import assert_rows_equal, check_dataref

ROWS, PER_SHARD = 3000, 150
READ: dict[str, tuple[str, Callable[..., yoga.DataRef]]] = {
    "mds/gz": ("", yoga.from_mds),
    "mds/zstd": ("", yoga.from_mds),
    "litdata/items": ("", yoga.from_litdata),
    "litdata/zstd": ("", yoga.from_litdata),
    "megatron": ("/uint16", yoga.from_megatron),
    "tfrecord": ("/steps.tfrecord", yoga.from_tfrecord),
    "../foreign/tfrecord": ("/x.tfrecord-*", yoga.from_tfrecord),
}
# Their files are those of other libraries, not versions of a storage.
pytestmark = pytest.mark.damages("no versions are stored")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))


@pytest.mark.parametrize("name", READ)
def test_rows_are_those_of_local_files(name: str, place: Any, tmp_path: Path) -> None:
    url, options = place
    below, read = READ[name]
    put(url, options, FOREIGN / name)
    ref = read(f"{url}{below}", storage_options=options, cache_dir=tmp_path)
    assert_rows_equal(list(ref), list(read(f"{FOREIGN / name}{below}")), name)


@pytest.mark.parametrize("name", ["mds/zstd", "litdata/items", "megatron", "tfrecord"])
def test_https_has_no_listing(name: str, tmp_path: Path) -> None:
    below, read = READ[name]
    with http_server(FOREIGN / name) as server:
        ref = read(f"{server.endpoint}{below}", cache_dir=tmp_path)
        assert_rows_equal(list(ref), list(read(f"{FOREIGN / name}{below}")), name)


def test_a_server_without_ranges_sends_all_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PART", 4)  # bytes
    with http_server(FOREIGN / "megatron", ranges=False) as server:
        ref = yoga.from_megatron(f"{server.endpoint}/int32", cache_dir=tmp_path)
        assert len(ref.file_starts) > 4
        assert [row["tokens"].tolist() for row in ref] == [s for document in DOCUMENTS for s in document]


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, int]:
    """A dataset of many shards, and the bytes of a third of them."""
    write(tmp_path / "many", encoded(ROWS), PER_SHARD, {"n": 8})
    return tmp_path / "many", sum(path.stat().st_size for path in (tmp_path / "many").glob("*.mds")) // 3


def behind(proxy: Proxy, bucket: str, folder: Path, cache: Path, nbytes: int) -> yoga.DataRef:
    """The dataset of a folder, put behind a proxy, read through a cache of so many bytes."""
    url, options = f"s3://{bucket}/many", proxy.storage_options
    put(url, options, folder)
    return yoga.from_mds(url, storage_options=options, cache_dir=cache, cache_bytes=nbytes)


def test_each_shard_comes_once_an_epoch_through_a_third_of_the_cache(
    many: tuple[Path, int], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    folder, third = many
    ref = behind(proxy, bucket, folder, tmp_path / "cache", third)
    loader = yoga.DataLoader(ref, 10, shuffle="block", shuffle_window=1, seed=1, collate_fn=list)
    for _ in range(2):
        proxy.clear()
        assert sorted(row["n"] for batch in loader for row in batch) == list(range(ROWS))
        counts = Counter(request.path for request in proxy.seen("GET", "shard."))
        # What the last epoch has left may still be there.
        assert set(counts.values()) == {1}
        assert len(counts) >= 2 * ROWS // PER_SHARD // 3
        kept = sum(path.stat().st_size for path in (tmp_path / "cache" / "files").iterdir())
        assert kept <= third


def test_shards_come_before_their_rows_are_asked_for(
    many: tuple[Path, int], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    folder, third = many
    ref = behind(proxy, bucket, folder, tmp_path / "cache", 3 * third)
    batches = iter(yoga.DataLoader(ref, 10, shuffle="block", shuffle_window=1, seed=1, collate_fn=list))
    first = {row["n"] // PER_SHARD for row in next(batches)}
    eventually(lambda: len(proxy.seen("GET", "shard.")) > 2 * len(first))
    rest = itertools.chain.from_iterable(batches)
    assert len({row["n"] for row in rest}) == ROWS - 10


def test_tokens_come_in_parts_of_whole_rows(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PART", 4)  # bytes
    url, options = place
    put(url, options, FOREIGN / "megatron")
    ref = yoga.from_megatron(f"{url}/uint16", storage_options=options, cache_dir=tmp_path, cache_bytes=200)
    assert [row["tokens"].tolist() for row in ref] == [s for document in DOCUMENTS for s in document]
    assert len(ref.file_starts) > 4
    check_dataref(ref)
    whole = yoga.from_megatron(
        f"{url}/uint16.idx", documents=True, storage_options=options, cache_dir=tmp_path
    )
    assert [row["tokens"].tolist() for row in whole] == [sum(document, []) for document in DOCUMENTS]


def test_tokens_that_change_behind_a_url_are_an_error(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    put("memory://tokens", None, FOREIGN / "megatron")
    ref = yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)
    fs.pipe_file("/tokens/uint16.bin", fs.cat_file("/tokens/uint16.bin")[:-2])
    with pytest.raises(CorruptError, match=r"memory://tokens/uint16\.bin has \d+ bytes where"):
        ref[0]
    with pytest.raises(CorruptError, match=r"uint16\.idx has 52 tokens of 2 bytes, but .*uint16\.bin has"):
        yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)
    fs.rm_file("/tokens/uint16.bin")
    with pytest.raises(CorruptError, match=r"uint16\.bin is missing though the index names it"):
        ref[0]
    with pytest.raises(NotFoundError, match=r"there is no file memory://tokens/uint16\.bin"):
        yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)


def numbered(folder: Path, first: int, at: float) -> None:
    """100 rows in 5 shards, whose sizes are those of any other first row, written at a time."""
    write(folder, [{"n": np.int64(first + number).tobytes()} for number in range(100)], 20, {"n": 8})
    for path in folder.iterdir():
        os.utime(path, (at, at))


@pytest.mark.parametrize("kind", ["memory", "http"])
def test_one_dataset_has_no_rows_of_two_writings(kind: str, tmp_path: Path) -> None:
    def write_anew(first: int) -> None:
        numbered(tmp_path / "ds", first, 10**9 + first)
        put("memory://anew", None, tmp_path / "ds")

    write_anew(0)
    with http_server(tmp_path / "ds") as server:
        url = server.endpoint if kind == "http" else "memory://anew"
        ref = yoga.from_mds(url, cache_dir=tmp_path / "cache")
        assert ref[0]["n"] == 0
        write_anew(1000)
        assert ref[1]["n"] == 1
        for _ in range(2):
            with pytest.raises(CorruptError, match=r"shard\.00004\.mds has changed since it was opened"):
                ref[99]
        assert yoga.from_mds(url, cache_dir=tmp_path / "cache")[99]["n"] == 1099


def test_no_more_is_downloaded_than_a_file_has(tmp_path: Path) -> None:
    numbered(tmp_path / "ds", 0, 10**9)

    def do(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        if request.path.endswith(".mds"):
            request.send_response(200)
            request.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(64 * (request.command == "GET")):
                    request.wfile.write(bytes(2**20))
        else:
            name = tmp_path / "ds" / request.path[1:]
            request.send_response(200 if name.is_file() else 403)
            request.end_headers()
            if name.is_file() and request.command == "GET":
                request.wfile.write(name.read_bytes())

    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.002):
            files = (tmp_path / "cache").rglob("*")
            with contextlib.suppress(OSError):
                most[0] = max(most[0], sum(path.stat().st_size for path in files if path.is_file()))

    with answering(do) as url, running(watch):
        try:
            with pytest.raises(YogaError, match=r"shard\.00000\.mds"):
                yoga.from_mds(url, cache_dir=tmp_path / "cache")[0]
        finally:
            is_over.set()
    assert most[0] < 2**20


def test_messages_have_no_addresses_that_are_signed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbered(tmp_path / "ds", 0, 10**9)
    index = (tmp_path / "ds" / "index.json").read_bytes()

    def do(request: BaseHTTPRequestHandler) -> None:
        data = index if request.path.endswith("index.json") else b""
        is_led = request.path.endswith(".mds")
        request.send_response(200 if data else 302 if is_led else 410)
        if is_led:
            request.send_header("Location", "/elsewhere?Signature=SECRET")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(data)

    caplog.set_level(logging.INFO, "torchyoga")
    with answering(do) as url, pytest.raises(YogaError) as caught:
        yoga.from_mds(url, cache_dir=tmp_path)[0]
    assert "SECRET" not in str(caught.value) + caplog.text


def test_threads_share_a_cache_that_is_too_small(tmp_path: Path) -> None:
    write(tmp_path / "ds", encoded(400), 10, {"n": 8})
    put("memory://small", None, tmp_path / "ds")
    size = sum(path.stat().st_size for path in (tmp_path / "ds").glob("*.mds"))
    ref = yoga.from_mds("memory://small", cache_dir=tmp_path / "cache", cache_bytes=size // 4)

    def read(seed: int) -> int:
        order = np.random.default_rng(seed).integers(0, 400, 300).tolist()
        return sum(ref[number]["n"] != number for number in order)

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("ignore", UserWarning)  # files are downloaded again
        assert list(pool.map(read, range(8))) == [0] * 8
