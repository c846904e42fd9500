"""Bytes behind URLs: objects that are created once, requests that are tried again, and errors if that does
not help."""

from __future__ import annotations

import logging
import os
import pickle
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from children import run_program, status_of_child
from fsspec.implementations.memory import MemoryFileSystem
from servers import QUICK, S3, Fault, Proxy, http_server
from sinks import Kept

from torchyoga.errors import CorruptError, RemoteError
from torchyoga.stores.objects import Objects

pytestmark = [
    pytest.mark.usefixtures("tried_again_soon"),
    # aiohttp warns of large bodies that gcsfs sends.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]


@pytest.fixture
def remote(place: tuple[str, Any]) -> Objects:
    return Objects(*place)


def test_bytes_under_names(remote: Objects) -> None:
    assert (remote.find(), remote.find("f"), remote.find_one("f/x")) == ({}, {}, None)
    with pytest.raises(FileNotFoundError):
        remote.read("f/x", 10)
    remote.write("f/x", b"0123456789")
    remote.write("f/g/y%2F #[]{}", b"")
    assert remote.read("f/x", 10) == b"0123456789"
    assert remote.read("f/g/y%2F #[]{}", 10) == b""
    with pytest.raises(CorruptError, match="larger than 9 bytes"):
        remote.read("f/x", 9)
    assert remote.read_ranges("f/x", [(0, 3), (3, 10)], 10) == [b"012", b"3456789"]
    found = remote.find("f")
    assert {name: there.nbytes for name, there in found.items()} == {"x": 10, "g/y%2F #[]{}": 0}
    assert remote.find() == {f"f/{name}": there for name, there in found.items()}
    now, written = remote.now(), found["x"].written
    assert now is not None
    assert written is not None
    assert -1 <= now - written < 60
    remote.write("f/x", b"new")
    assert remote.find_one("f/x").nbytes == 3  # type: ignore[union-attr]
    remote.delete(["f/x", "f/x", "f/none"])
    assert remote.find() == {"f/g/y%2F #[]{}": found["g/y%2F #[]{}"]}


@pytest.mark.parametrize("path", ["//deep", "//deep//er", "/a//b", "///a"])
def test_folders_without_a_name_are_kept(path: str, place: tuple[str, Any]) -> None:
    url, options = place[0].removesuffix("/a/b c"), place[1]
    remote = Objects(url + path, options)
    remote.write("f/x", b"1")
    remote.write("f/g/y", b"12")
    remote.write("z", b"")
    assert {name: found.nbytes for name, found in remote.find().items()} == {"f/x": 1, "f/g/y": 2, "z": 0}
    assert sorted(remote.find("f")) == ["g/y", "x"]
    assert (remote.folders(), remote.folders("f"), remote.folders("none")) == (["f"], ["g"], [])
    remote.delete(["f/g/y"])
    assert sorted(remote.find()) == ["f/x", "z"]
    assert Objects(url + path.replace("//", "/"), options).find_one("f/x") is None  # another folder


def test_an_existing_object_is_not_created_again(remote: Objects) -> None:
    assert remote.create("m", b"one")
    assert not remote.create("m", b"two")
    assert remote.create("m", b"one")  # as if the reply had been lost
    assert remote.read("m", 10) == b"one"
    remote.check_conditional("m", b"one")
    # Others may have deleted it, for example a claim whose holder was taken for dead before it could look.
    remote.delete(["m"])
    remote.check_conditional("m", b"one")
    assert remote.is_conditional
    assert [*remote.find()] == ["m"]  # nothing else is left


def test_an_unchanged_object_is_deleted(remote: Objects) -> None:
    remote.write("m", b"one")
    _, tag = remote.read_tagged("m", 10)
    remote.delete_seen("m", tag)
    assert remote.find_one("m") is None
    remote.delete_seen("m", tag)  # as if the reply had been lost
    if remote.url.startswith("memory"):  # one that was replaced since is not
        remote.write("m", b"two")
        remote.delete_seen("m", tag)
        assert remote.read("m", 10) == b"two"


def test_files_of_all_sizes_are_uploaded(remote: Objects, tmp_path: Path) -> None:
    for nbytes in (0, 1, 9 * 2**20):
        data = os.urandom(nbytes)
        (tmp_path / "file").write_bytes(data)
        remote.upload(str(tmp_path / "file"), "u/file")
        assert remote.read("u/file", nbytes) == data


class Careless(MemoryFileSystem):
    """A filesystem that ignores conditions, though it says that it respects them."""

    protocol, creates_once = "careless", True
    store: ClassVar[dict[str, Any]] = {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        super().pipe_file(path, value)


def test_a_store_that_ignores_conditions_is_recognised() -> None:
    fsspec.register_implementation("careless", Careless, clobber=True)
    remote = Objects("careless://p")
    remote.create("m", b"one")
    remote.check_conditional("m", b"one")
    assert not remote.is_conditional
    assert not remote.create("m", b"two")  # at least it is compared before


def behind(proxy: Proxy, bucket: str, **more: Any) -> Objects:
    return Objects(f"s3://{bucket}/p", {**proxy.storage_options, **QUICK, **more})


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault("status", status=503), r"cannot read s3://.*/p/m: .*tried 20 times.*It is busy"),
        (Fault("refuse"), r"cannot read s3://.*/p/m: .*tried \d times"),
        (Fault("timeout"), r"cannot read s3://.*/p/m: .*[Tt]imeout.*tried \d times"),
        (Fault("status", status=403), r"cannot read s3://.*/p/m: Perm.*credentials do not allow it"),
        (
            Fault("status", status=403, code="RequestTimeTooSkewed"),
            "This machine's clock is more than 15 minutes off that of the store; set",
        ),
    ],
    ids=["503", "refused", "timeout", "403", "clock"],
)
def test_lasting_errors_are_raised_in_time(fault: Fault, text: str, proxy: Proxy, bucket: str) -> None:
    behind(proxy, bucket).write("m", b"x")
    remote = behind(proxy, bucket, config_kwargs={**QUICK["config_kwargs"], "read_timeout": 0.5})
    proxy.faults = [fault]
    with pytest.raises(RemoteError, match=text) as error:
        remote.read("m", 10)
    assert isinstance(error.value, OSError)
    assert len(proxy.seen("GET", "/p/m")) <= 20


def test_where_nothing_has_ever_listened_it_is_not_waited_for(tmp_path: Path) -> None:
    """A server that has answered once may restart."""
    (tmp_path / "m").write_bytes(b"x")
    with http_server(tmp_path) as server:
        known = Objects(server.endpoint)
        assert known.read("m", 10) == b"x"
    nowhere = {"token": "anon", "endpoint_url": "http://127.0.0.1:1"}
    for never in (
        Objects("s3://never/p", S3(server.endpoint).storage_options),
        Objects("http://127.0.0.1:1"),
        Objects("http://never.invalid"),  # as without a network
        Objects("gs://never/p", nowhere),
    ):
        started = time.monotonic()
        with pytest.raises(RemoteError, match=r"tried 4 times.*network.*its endpoint right"):
            never.read("m", 10)
        assert time.monotonic() - started < 60  # gcsfs by itself tries each of them for half a minute
    later = f"""
import pickle, stored
stored.short_waits(0.02, 0.1)
pickle.loads({pickle.dumps(known)!r}).read("m", 10)
"""
    assert "tried 6 times" in run_program(later).stderr  # in a process that is started later, too


def test_botocore_leaves_checksums_of_what_it_reads_to_us_unless_it_is_asked(
    proxy: Proxy, bucket: str
) -> None:
    data = bytes(range(250)) * 4
    behind(proxy, bucket).write("m", data)
    proxy.faults = [Fault("flip", "/p/m", "GET", times=1, bytes=500)]
    sink = Kept()
    behind(proxy, bucket).stream("m", sink, len(data))
    assert len(sink.data) == len(data)
    assert bytes(sink.data) != data
    config = {**QUICK["config_kwargs"], "response_checksum_validation": "when_supported"}
    proxy.faults = [Fault("flip", "/p/m", "GET", bytes=500)]
    with pytest.raises(RemoteError, match=r"FlexibleChecksumError.*tried \d times"):
        behind(proxy, bucket, config_kwargs=config).read("m", 2000)


def test_a_store_that_sends_too_slowly_counts_as_hanging(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = behind(proxy, bucket)
    remote.write("m", bytes(1000))
    monkeypatch.setattr("torchyoga.stores.kinds.PATIENCE", 0.3)
    proxy.faults = [Fault("slow", "/p/m", "GET", bytes=20)]
    with pytest.raises(RemoteError, match=r"[Tt]imeout.*tried 6 times"):
        remote.read_ranges("m", [(0, 1000)], 1000)


def test_no_bucket_no_credentials_no_package(s3: S3) -> None:
    with pytest.raises(RemoteError, match="Does the bucket exist"):
        Objects("s3://no-such-bucket/p", s3.storage_options).read("m", 10)
    with pytest.raises(RemoteError, match="Does the bucket exist"):
        Objects("s3://no-such-bucket/p", s3.storage_options).find()
    bare = {"client_kwargs": {"endpoint_url": s3.endpoint}}
    with pytest.raises(RemoteError, match=r"NoCredentialsError.*Pass storage_options"):
        Objects("s3://other-bucket/p", bare).read("m", 10)
    if find_spec("adlfs") is None:  # as no extra for tests installs it
        with pytest.raises(ImportError, match=r"pip install 'torchyoga\[azure\]'"):
            Objects("az://container/p").read("m", 10)
    with pytest.raises(ValueError, match="use storage_options"):
        Objects("ftp://me:secret@host/p")


def test_urls_that_cannot_work() -> None:
    for url in ("s3://", "gs:///p", "https://"):
        with pytest.raises(ValueError, match="names no"):
            Objects(url)
    with pytest.raises(ValueError, match="a password or query"):
        Objects("https://host/p?token=x")
    assert Objects("S3://Bucket/P/").url == "s3://Bucket/P"
    root = Objects("memory://")
    root.write("of-the-root", b"x")
    assert root.read("of-the-root", 1) == b"x"
    assert not Path("memory:").exists()


def test_options_are_those_of_each_storage(s3: S3, bucket: str, proxy: Proxy) -> None:
    """Two servers may have buckets of one name; without options those of the environment count."""
    direct = Objects(f"s3://{bucket}/p", s3.storage_options)
    through = Objects(f"s3://{bucket}/p", proxy.storage_options)
    direct.write("m", b"x")
    assert pickle.loads(pickle.dumps(direct)).read("m", 1) == b"x"
    assert not proxy.requests
    assert pickle.loads(pickle.dumps(through)).read("m", 1) == b"x"
    assert proxy.requests
    with pytest.raises(RemoteError, match="NoCredentialsError"):
        Objects(f"s3://{bucket}/p").read("m", 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_drops_connections_harms_no_request_of_its_parent(proxy: Proxy, bucket: str) -> None:
    """A connection closed in a child would vanish from those the parent waits for: it would get no answer."""
    remote = Objects(f"s3://{bucket}/p", proxy.storage_options)
    remote.write("m", b"x")
    for _ in range(3):
        assert status_of_child(lambda: remote.read("m", 1)) == 0
        assert remote.read("m", 1) == b"x"
    assert len(proxy.seen("GET", "/p/m")) == 6  # no request had to be tried again


def test_options_are_written_nowhere(s3: S3, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    options = {**s3.storage_options, "secret": "TOPSECRET"}
    remote = Objects(f"s3://{bucket}/p", options)
    remote.write("m", b"x")
    for text in (repr(remote), str(vars(pickle.loads(pickle.dumps(remote))).keys()), caplog.text):
        assert "TOPSECRET" not in text
    assert b"TOPSECRET" not in pickle.dumps(remote)
    assert pickle.loads(pickle.dumps(remote)).read("m", 10) == b"x"  # in this process they are known
