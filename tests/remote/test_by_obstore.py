"""Objects of every kind of store are read by obstore, and by the clients below fsspec where that fails."""

from __future__ import annotations

import os
import re
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import fsspec
import pytest
from children import status_of_child
from servers import S3, Fault, Gcs, answering, faulty, http_server
from sinks import Kept

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


@pytest.mark.parametrize("size", SIZES)
def test_objects_are_streamed_from_any_place_on(size: int, served: Any) -> None:
    proxy, url, options = served
    for done in {0, size // 3, size - 1}:
        proxy.clear()
        sink = Kept(DATA[:done])
        Objects(url, options).stream(f"m{size}", sink, size)
        assert zlib.crc32(sink.data) == zlib.crc32(DATA[:size])
        assert {*proxy.clients()} == {"object_store"}
        seen = proxy.seen("GET")
        assert sum(request.sent for request in seen) == size - done
        assert len(seen) <= -(-(size - done) // 2**24)  # the bytes of a request


def test_ranges_are_read_at_once(served: Any) -> None:
    proxy, url, options = served
    proxy.clear()
    bounds = [(0, 1), (5, 5000), (2**24, 2**24 + 7), (len(DATA) - 3, len(DATA))]
    found = Objects(url, options).read_ranges(f"m{len(DATA)}", bounds, len(DATA))
    assert found == [DATA[start:stop] for start, stop in bounds]
    assert {*proxy.clients()} == {"object_store"}


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
    assert len({*proxy.clients()}) == 2


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
    assert "object_store" not in proxy.clients()


def test_a_web_server_gets_the_headers_it_was_promised(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(DATA[:1000])
    with http_server(tmp_path) as server, faulty(server.endpoint) as proxy:
        sink = Kept()
        Objects(proxy.endpoint, {"headers": {"User-Agent": "mine/1"}}).stream("m", sink, 1000)
        assert {*proxy.clients()} == {"mine"}
        proxy.clear()
        Objects(proxy.endpoint, {"cookies": {"a": "b"}}).stream("m", Kept(), 1000)
        assert "object_store" not in proxy.clients()


@pytest.mark.parametrize("fault", ["others", "more"])
@pytest.mark.parametrize("before", [[], ["fails"]], ids=["obstore", "others"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_bytes_that_were_not_asked_for_are_not_taken(
    scheme: str, before: list[str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_obstore, "_MOST_BYTES", 2**14)
    size = SIZES[1]
    faults = [*before, fault]  # of the first answers

    def do(request: BaseHTTPRequestHandler) -> None:
        is_asked = request.command == "GET"
        found = faults.pop(0) if faults and is_asked else ""
        asked = re.match(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "bytes=0-")
        assert asked is not None
        start, stop = int(asked[1]), int(asked[2] or size - 1) + 1
        if found == "others":
            start, stop = start - 500, stop - 500
        body = DATA[start:stop] + (b"more" if found == "more" else b"")
        request.send_response(503 if found == "fails" else 206)
        request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        request.end_headers()
        request.wfile.write(body if is_asked else b"")

    with answering(do) as endpoint:
        options = {
            "anon": True,
            "client_kwargs": {"endpoint_url": endpoint},
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }
        remote = Objects("s3://b/p", options) if scheme == "s3" else Objects(endpoint, {})
        sink = Kept(DATA[:1000])
        remote.stream("m", sink, size)
    assert not faults
    assert bytes(sink.data) == DATA[:size]
