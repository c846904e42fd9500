"""One server of each kind for all tests of remote storages, without this machine's own credentials and
proxies."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers import BUCKETS, S3, Gcs, Proxy, faulty, gcs_server, s3_server
from sound import check_stored
from stored import short_waits

# Machines are forked from a server that has the client of S3 as well.
multiprocessing.set_forkserver_preload(["torch", "torchyoga", "s3fs"])

# Each client would read megabytes of JSON about Amazon's services anew, for a tenth of a second. They change
# none of it, so one reading is enough for all.
botocore.session.create_loader = cache(botocore.session.create_loader)

# Neither the developer's own credentials nor those of the cloud's machine that the tests run on; and no proxy
# between the tests and loopback.
for name in list(os.environ):
    if name.startswith("AWS_"):
        del os.environ[name]
os.environ |= {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "NO_GCE_CHECK": "true",
}


@pytest.fixture(autouse=True)
def stores_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks every version that a test has left in a bucket of its own or in memory, unless it is marked
    `damages`."""
    there = set(_in_memory())
    BUCKETS.clear()
    yield
    if request.node.get_closest_marker("damages"):
        return
    left = [*BUCKETS, *((url, {}) for url in set(_in_memory()) - there)]
    with tempfile.TemporaryDirectory() as folder:
        for url, options in left:
            # One client for all: to make one takes longer than to check a small version.
            check_stored(url, {**options, "skip_instance_cache": False} if options else {}, Path(folder))


def _in_memory() -> Iterator[str]:
    """URLs of the buckets in this process's memory."""
    for name in list(MemoryFileSystem.store):
        yield f"memory://{name.split('/')[1]}"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """The S3 server of this session."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    """The GCS server of this session."""
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def _proxy(s3: S3) -> Iterator[Proxy]:
    with faulty(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: Proxy) -> Iterator[Proxy]:
    """A proxy before the S3 server, without faults, that has seen no request yet."""
    _proxy.clear()
    yield _proxy
    _proxy.clear()


@pytest.fixture(params=["s3", "gcs", "memory"])
def place(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A new and empty place in a store of each kind: its URL, and the options of the store."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/a/b c", None
    server: S3 | Gcs = request.getfixturevalue(request.param)
    scheme = {"s3": "s3", "gcs": "gs"}[request.param]
    return f"{scheme}://{server.new_bucket()}/a/b c", server.storage_options


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket of the S3 server."""
    return s3.new_bucket()


@pytest.fixture
def tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that failed are repeated at once."""
    short_waits(0.02, 0.1, monkeypatch.setattr)
