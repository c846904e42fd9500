"""Files are downloaded once, when they are needed or some time before, as far as there is space."""

from __future__ import annotations

import collections
import itertools
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupting import calls_of
from machines import running
from publishing import download_one_by_one
from servers import S3, Fault, Proxy, faulty, http_server
from smallfiles import make_files_of
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga.errors import RemoteError
from torchyoga.stores.cache import Cache

ROWS, FILE_ROWS, ROW_BYTES = 1600, 25, 8000
NUM_FILES = ROWS // FILE_ROWS


@pytest.fixture(scope="module")
def url(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a storage that holds 64 files of 25 rows; no test writes there."""
    url, folder = f"s3://{s3.new_bucket()}/p", tmp_path_factory.mktemp("builder")
    storage = yoga.Storage(url, storage_options=s3.storage_options, cache_dir=folder)
    rows = ({"x": np.full(ROW_BYTES // 8, n), "n": n} for n in range(ROWS))
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_files_of(FILE_ROWS, monkeypatch.setattr)
        ref = storage.submit(rows, "a", "1")
    assert len(ref.manifest.files) == NUM_FILES  # type: ignore[attr-defined]
    return url


@pytest.fixture
def fetch(url: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The dataset on a machine of that name, through the proxy, which counts."""
    monkeypatch.setattr("torchyoga.stores.downloads._WARNED", set())  # by other tests of the same version

    def on(name: str, cache_bytes: int | None = None) -> Any:
        options = proxy.storage_options
        storage = yoga.Storage(
            url, storage_options=options, cache_dir=tmp_path / name, cache_bytes=cache_bytes
        )
        ref = storage.fetch("a", "1")
        proxy.clear()
        return ref

    return on


def downloads(proxy: Proxy) -> collections.Counter[str]:
    return collections.Counter(request.path for request in proxy.seen("GET", ".mdb"))


def test_a_file_is_downloaded_when_one_of_its_rows_is_wanted(fetch: Any, proxy: Proxy) -> None:
    ref = fetch("a")
    assert not proxy.requests
    assert [int(row["n"]) for row in ref[[0, 24, 1599]]] == [0, 24, 1599]
    assert sorted(downloads(proxy).values()) == [1, 1]


def test_what_obstore_would_not_do_is_left_to_s3fs(url: str, proxy: Proxy, tmp_path: Path) -> None:
    options = {**proxy.storage_options, "requester_pays": True}
    proxy.clear()
    storage = yoga.Storage(url, storage_options=options, cache_dir=tmp_path)
    assert int(storage.fetch("a", "1")[7]["n"]) == 7
    assert set(proxy.clients(".mdb")) == {"aiobotocore"}


def test_obstore_takes_nothing_from_the_environment_that_s3fs_would_not(
    fetch: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_SESSION_TOKEN", "another's"),
        ("AWS_ENDPOINT", "http://127.0.0.1:1"),
    ):
        monkeypatch.setenv(name, value)
    assert [int(row["n"]) for row in fetch("a")[[0, 1599]]] == [0, 1599]
    asked = proxy.seen("GET", ".mdb")
    assert proxy.clients(".mdb") == ["object_store"] * 2
    assert all(request.path.startswith("/bucket-") and request.is_signed for request in asked)
    assert not any(request.has_token for request in asked)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_an_iteration_downloads_files_ahead_in_its_order(
    shuffle: Any, fetch: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    download_one_by_one(monkeypatch)  # several threads overtake each other
    ref = fetch("a")
    stream = ref.stream(shuffle=shuffle, shuffle_seed=3)
    first = [int(next(iter(stream))["n"])]
    eventually(lambda: len(downloads(proxy)) >= NUM_FILES)  # without a bound: although one row was taken
    time.sleep(0.5)  # no more comes within a while
    assert set(downloads(proxy).values()) == {1}
    names = [request.path for request in proxy.seen("GET", ".mdb")]
    order = list(dict.fromkeys(n // FILE_ROWS for n in stream.cursor.order.rows(0, range(ROWS)).tolist()))
    begun = [int(name[-9:-4]) for name in names]
    # The files of rows that are read together with the first one come in their order: with True, all files.
    assert shuffle is True or (set(begun[:16]), begun[16:]) == (set(order[:16]), order[16:])
    assert first[0] // FILE_ROWS == order[0]


def test_a_second_epoch_and_another_process_download_nothing(fetch: Any, proxy: Proxy) -> None:
    ref = fetch("a")
    loader = yoga.DataLoader(ref, batch_size=64, shuffle=True)
    for _ in range(2):
        assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(ROWS))
    assert set(downloads(proxy).values()) == {1}
    assert len(downloads(proxy)) == NUM_FILES
    again = fetch("a")
    assert sorted(int(row["n"]) for row in again) == list(range(ROWS))
    assert not downloads(proxy)


def bound_of(ref: Any, share: int) -> int:
    return int(ref.manifest.nbytes // share)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_by_blocks_each_file_is_downloaded_about_once_an_epoch(
    num_workers: int, fetch: Any, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "torchyoga.reading.readahead._READ_BYTES", 1
    )  # small beside a file, as with real ones
    ref = fetch("a", bound_of(fetch("x"), 4))
    loader = yoga.DataLoader(
        ref, batch_size=32, shuffle="block", shuffle_window=4, num_workers=num_workers, seed=5
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the cache has space for this
        for _ in range(2):
            proxy.clear()
            most, seen = 0, []
            for batch in loader:
                seen += batch["n"].tolist()
                most = max(most, len(list((tmp_path / "a" / "files").glob("*"))))
            assert sorted(seen) == list(range(ROWS))
            assert downloads(proxy).total() <= 1.1 * NUM_FILES
            assert most <= NUM_FILES / 4 + 4  # and those being downloaded


def test_what_workers_read_ahead_must_fit_in_the_cache(fetch: Any) -> None:
    ref = fetch("a", bound_of(fetch("x"), 8))
    loader = yoga.DataLoader(ref, 100, shuffle="block", shuffle_window=2, num_workers=2)
    with pytest.warns(UserWarning, match=r"workers read 4 batches ahead, 3.9 MB.*Set cache_bytes=\d{7},"):
        assert sum(len(batch["n"]) for batch in loader) == ROWS


@pytest.mark.parametrize(
    ("share", "advice"),
    [(16, "shuffle='block', shuffle_window=1"), (32, r"Storage\(..., file_bytes=\d+\), as .* only 2 of its")],
)
def test_a_bound_below_what_is_needed_works_with_a_warning(
    share: int, advice: str, fetch: Any, proxy: Proxy, tmp_path: Path
) -> None:
    ref = fetch("a", bound_of(fetch("x"), share))
    loader = yoga.DataLoader(ref, batch_size=100, shuffle=True, seed=1)
    with pytest.warns(UserWarning, match=f"set cache_bytes to the size of the dataset .* {advice}"):
        rows = [n for batch in loader for n in batch["n"].tolist()]
    assert sorted(rows) == list(range(ROWS))
    assert downloads(proxy).total() > 1.5 * NUM_FILES
    tiny = fetch("tiny", 0)
    with warnings.catch_warnings():
        # It is chance whether one file is deleted for the other before it is opened.
        warnings.simplefilter("ignore")
        assert [int(row["n"]) for row in tiny[[7, 1500]]] == [7, 1500]
    assert len(list((tmp_path / "tiny" / "files").glob("*"))) <= 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_all_kinds(method: str, url: str, proxy: Proxy, tmp_path: Path) -> None:
    """Saved pickles hold no credentials, but pickles for workers that are being started do; nothing is left
    at exit."""
    program = f"""
    import sys, threading, torchyoga as yoga
    from torch.utils.data import DataLoader
    if __name__ == "__main__":
        options = {{"key": "k", "secret": "s", "client_kwargs": {{"endpoint_url": sys.argv[2]}}}}
        own, other = (yoga.Storage(sys.argv[1], storage_options=options, cache_dir=name) for name in "ab")
        assert threading.active_count() == 1, "a constructor does no work"
        ref = own.fetch("a", "1")
        if "{method}" == "fork":
            ref[0]  # connections are open, and threads run
        loader = yoga.DataLoader(
            ref, batch_size=100, shuffle=True, num_workers=2,
            multiprocessing_context="{method}", timeout={PATIENCE},
        )
        plain = DataLoader(  # of an order that is not known: a worker is the first to want a file
            other.fetch("a", "1"), batch_size=100, shuffle=True, num_workers=2,
            multiprocessing_context="{method}", timeout={PATIENCE},
        )
        for found in (loader, plain):
            assert sorted(n for batch in found for n in batch["n"].tolist()) == list(range({ROWS}))
        print("all rows")
    """
    proxy.clear()
    with running(program, tmp_path / "machine", url, proxy.endpoint, fresh=True) as machine:
        assert "all rows" in machine.check()
        assert machine.complaints == ""
    assert set(downloads(proxy).values()) == {2}


def test_where_the_system_allows_no_more_threads(fetch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a download that no thread will begin."""
    start, allowed = threading.Thread.start, 0

    def start_some(thread: threading.Thread) -> None:
        nonlocal allowed
        if thread.name == "torchyoga download":
            if not allowed:
                raise RuntimeError("can't start new thread")
            allowed -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    ref = fetch("a")
    for _ in range(5):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            ref[0]
    allowed = 1
    ref.download(progress=False)
    assert sorted(int(row["n"]) for row in ref) == list(range(ROWS))


def test_rows_in_the_cache_can_be_read_while_the_store_is_unreachable(fetch: Any, proxy: Proxy) -> None:
    """Rows of files in the cache can be read; the rest once the store is back."""
    ref = fetch("a")
    ref.download(progress=False)
    proxy.down()
    assert sorted(int(row["n"]) for row in ref) == list(range(ROWS))
    batch = next(iter(yoga.DataLoader(ref, batch_size=8, shuffle=True)))
    assert batch["x"].dtype == torch.int64


def test_what_a_file_costs_to_open_does_not_grow_with_those_open(fetch: Any) -> None:
    fetch("a").download(progress=False)
    ref = fetch("a")
    with calls_of(Cache.has) as asked:
        assert [int(ref[row]["n"]) for row in range(0, ROWS, FILE_ROWS)] == [*range(0, ROWS, FILE_ROWS)]
    assert 0 < len(asked) <= 16 * NUM_FILES  # not 64 for each


def test_to_publish_a_file_takes_one_request_and_a_look(
    s3: S3, bucket: str, proxy: Proxy, tmp_path: Path, files_of: Any
) -> None:
    files_of(1)
    proxy.clear()
    storage = yoga.Storage(
        f"s3://{bucket}/p", storage_options=proxy.storage_options, cache_dir=tmp_path / "b"
    )
    storage.submit([*range(30)], "a", "1")
    assert len(proxy.seen("PUT", ".mdb")) == 30
    assert len(proxy.seen("HEAD", ".mdb")) == 30


def test_deleted_files_of_the_cache_are_unmapped(fetch: Any, tmp_path: Path) -> None:
    """A process that goes on reading does not keep deleted files on the disk by keeping them mapped."""
    ref = fetch("a", bound_of(fetch("x"), 8))
    for batch in ref.stream().batches(FILE_ROWS):
        assert len(batch) == FILE_ROWS
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if str(tmp_path / "a" / "files") in line]
    assert len(mapped) <= NUM_FILES // 8 + 6


@pytest.mark.parametrize("ranges", [True, False])
def test_a_web_server_sends_a_file_once_and_no_process_holds_it_whole(ranges: bool, tmp_path: Path) -> None:
    """After a cut in the middle it goes on from there, if the server supports that; also the next process."""
    rows = np.random.default_rng(0).integers(0, 255, (48, 2**20), np.uint8)
    yoga.Storage(tmp_path / "web").submit({"x": rows}, "a", "1")
    (path,) = (tmp_path / "web" / "a" / "1").glob("*.mdb")
    nbytes = path.stat().st_size
    for cut in (False, True):
        with http_server(tmp_path / "web", ranges) as server, faulty(server.endpoint) as proxy:
            storage = yoga.Storage(proxy.endpoint, cache_dir=tmp_path / f"cache {cut}")
            if cut and ranges:
                proxy.faults = [
                    Fault("cut body", r"\.mdb", "GET", times=1, after=1, bytes=2**20),
                    Fault("status", r"\.mdb", "GET", status=403, after=1),
                ]
                with pytest.raises(RemoteError, match="cannot read"):
                    storage.fetch("a", "1", download=True)
                proxy.faults = ()
            elif cut:
                proxy.faults = [Fault("cut body", r"\.mdb", "GET", times=1, bytes=nbytes // 2)]
            tracemalloc.start()
            try:
                ref = storage.fetch("a", "1", download=True)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert np.array_equal(ref[47]["x"], rows[47])
            sent = sum(request.sent for request in proxy.seen("GET", ".mdb"))
            assert sent < nbytes * (1.1 if ranges or not cut else 1.6)
            assert most < nbytes // 2


def test_the_meter_finds_slow_downloads(fetch: Any, proxy: Proxy) -> None:
    ref = fetch("a", 12 * FILE_ROWS * ROW_BYTES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = yoga.DataLoader(ref, batch_size=20, shuffle=True, seed=0)
        assert len([batch["n"] for batch in itertools.islice(loader, 12)]) == 12
    stages = loader.meter.epoch.stages
    assert max(stages, key=lambda name: stages[name]) == "download", stages
    assert "raise cache_bytes" in loader.meter.verdict()
