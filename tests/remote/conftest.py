"""One server of each kind for all tests of remote storages, without this machine's own credentials and
proxies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from servers import S3, Gcs, Proxy, faulty, gcs_server, s3_server

from torchyoga.build import BuildOptions

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


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket of the S3 server."""
    return s3.new_bucket()


@pytest.fixture
def files_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that sets how many rows each file has that is built from now on."""

    def files_of(rows: int) -> None:
        monkeypatch.setattr("torchyoga.build._BLOCK_ROWS", rows)
        monkeypatch.setattr("torchyoga.storage.BuildOptions", partial(BuildOptions, file_bytes=1))

    return files_of
