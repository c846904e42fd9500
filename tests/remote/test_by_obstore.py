"""Objects of every kind of store are read by obstore, and by the clients below fsspec where that fails."""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from children import status_of_child
from servers import S3, Fault, Gcs, Proxy, faulty, http_server
from sinks import Kept

import torchyoga as yoga
from torchyoga.stores import kinds as by_obstore
from torchyoga.stores.objects import Objects

DATA = os.urandom(2**25 + 12_345)  # four runs and a bit
SIZES = [1, 70_000, 2**24, len(DATA)]


@pytest.fixture(scope="module", params=["s3", "gcs", "web"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A proxy, and objects of several sizes behind it."""
    folder = tmp_path_factory.mktemp("served")
    for size in SIZES:
        (folder / f"m{size}").write_bytes(DATA[:size])
    if request.param == "web":
        with http_server(folder) as server, faulty(server.endpoint) as proxy:
            yield proxy, proxy.endpoint, {}
        return
    server: S3 | Gcs = request.getfixturevalue(request.param)
    url = f"{'s3' if request.param == 's3' else 'gs'}://{server.new_bucket()}/p"
    writer, chunk = fsspec.filesystem(url[:2], **server.storage_options), 5 if url[:2] == "s3" else 1
    for size in SIZES:
        writer.put_file(str(folder / f"m{size}"), f"{url}/m{size}", chunksize=chunk * 2**20)
    with faulty(server.endpoint) as proxy:
        yield proxy, url, type(server)(proxy.endpoint).storage_options


def agents(proxy: Proxy) -> set[str]:
    return {request.agent.partition("/")[0].lower() for request in proxy.requests if request.method == "GET"}


@pytest.mark.parametrize("size", SIZES)
def test_objects_are_streamed_from_any_place_on(size: int, served: Any) -> None:
    proxy, url, options = served
    for done in {0, size // 3, size - 1}:
        proxy.clear()
        sink = Kept(DATA[:done])
        Objects(url, options).stream(f"m{size}", sink, size)
        assert zlib.crc32(sink.data) == zlib.crc32(DATA[:size])
        assert agents(proxy) == {"object_store"}
        assert sum(request.sent for request in proxy.seen("GET")) == size - done


def test_ranges_are_read_at_once(served: Any) -> None:
    proxy, url, options = served
    proxy.clear()
    bounds = [(0, 1), (5, 5000), (2**24, 2**24 + 7), (len(DATA) - 3, len(DATA))]
    found = Objects(url, options).read_ranges(f"m{len(DATA)}", bounds, len(DATA))
    assert found == [DATA[start:stop] for start, stop in bounds]
    assert agents(proxy) == {"object_store"}


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", "/m", status=503, times=1),
        Fault("cut body", "/m", bytes=30_000, times=1),
        Fault("refuse", "/m", times=1),
    ],
    ids=["503", "cut", "refuse"],
)
def test_others_go_on_where_it_fails(fault: Fault, served: Any) -> None:
    proxy, url, options = served
    proxy.clear()
    proxy.faults = [fault]
    sink = Kept()
    Objects(url, options).stream("m70000", sink, 70_000)
    assert bytes(sink.data) == DATA[:70_000]
    assert len(agents(proxy)) == 2


def test_what_is_missing_is_missing(served: Any) -> None:
    _, url, options = served
    with pytest.raises(FileNotFoundError):
        Objects(url, options).stream("none", Kept(), 10)
    with pytest.raises(FileNotFoundError):
        Objects(url, options).read_ranges("none", [(0, 4)], 10)


def test_a_forked_child_reads_by_itself(served: Any) -> None:
    proxy, url, options = served
    remote = Objects(url, options)

    def read() -> None:
        sink = Kept()
        remote.stream("m70000", sink, 70_000)
        assert bytes(sink.data) == DATA[:70_000]

    read()
    proxy.clear()
    assert status_of_child(read) == 0
    assert "object_store" not in agents(proxy)


def test_a_web_server_gets_the_headers_it_was_promised(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(DATA[:1000])
    with http_server(tmp_path) as server, faulty(server.endpoint) as proxy:
        sink = Kept()
        Objects(proxy.endpoint, {"headers": {"User-Agent": "mine/1"}}).stream("m", sink, 1000)
        assert agents(proxy) == {"mine"}
        proxy.clear()
        Objects(proxy.endpoint, {"cookies": {"a": "b"}}).stream("m", Kept(), 1000)
        assert "object_store" not in agents(proxy)


def test_versions_in_gcs_and_on_the_web_are_downloaded_by_it(gcs: Gcs, tmp_path: Path) -> None:
    rows = {"x": np.arange(60_000).reshape(-1, 6)}
    url = f"gs://{gcs.new_bucket()}/p"
    yoga.Storage(url, storage_options=gcs.storage_options, cache_dir=tmp_path / "a").submit(rows, "a", "1")
    yoga.Storage(tmp_path / "local").submit(rows, "a", "1")
    with http_server(tmp_path / "local") as server:
        for origin, at in ((gcs.endpoint, url), (server.endpoint, None)):
            with faulty(origin) as proxy:
                options = {} if at is None else Gcs(proxy.endpoint).storage_options
                cache = tmp_path / f"cache{at is None}"
                storage = yoga.Storage(at or proxy.endpoint, storage_options=options, cache_dir=cache)
                ref = storage.fetch("a", "1")
                proxy.clear()
                assert ref[[0, 9_999]][1]["x"].tolist() == rows["x"][9_999].tolist()
                read = [request for request in proxy.seen("GET", ".mdb") if request.sent > 10_000]
                assert {request.agent.partition("/")[0] for request in read} == {"object_store"}


class Careless(ThreadingHTTPServer):
    """One object. Answers requests as `faults` say, one after the other, and then as they should be."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.faults: list[str] = []


class _Answer(BaseHTTPRequestHandler):
    server: Careless

    def do_GET(self) -> None:
        fault, size = self.server.faults.pop(0) if self.server.faults else "", SIZES[1]
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "bytes=0-")
        assert asked is not None
        start, stop = int(asked[1]), int(asked[2] or size - 1) + 1
        if fault == "others":
            start, stop = start - 500, stop - 500
        body = DATA[start:stop] + (b"more" if fault == "more" else b"")
        self.send_response(503 if fault == "fails" else 206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def careless() -> Iterator[Careless]:
    with Careless() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("fault", ["others", "more"])
@pytest.mark.parametrize("before", [[], ["fails"]], ids=["obstore", "others"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_bytes_that_were_not_asked_for_are_not_taken(
    scheme: str, before: list[str], fault: str, careless: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_obstore, "_MOST_BYTES", 2**14)
    endpoint = f"http://127.0.0.1:{careless.server_port}"
    options = {
        "anon": True,
        "client_kwargs": {"endpoint_url": endpoint},
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }
    remote = Objects("s3://b/p", options) if scheme == "s3" else Objects(endpoint, {})
    sink = Kept(DATA[:1000])
    careless.faults = [*before, fault]
    remote.stream("m", sink, SIZES[1])
    assert not careless.faults
    assert bytes(sink.data) == DATA[: SIZES[1]]
