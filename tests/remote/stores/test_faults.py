"""Damaged objects, hostile ones, and faults of the server in front of S3."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from damaged import resealed
from others import OTHERS, remove
from publishing import ROWS, Machine, cached, damaged, same, storages
from servers import QUICK, S3, Fault, Proxy
from stored import objects_of, short_waits

import torchyoga as yoga
from torchyoga import errors
from torchyoga.stores.downloads import Downloads
from torchyoga.versions.manifest import Manifest

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data[: len(data) // 2], "bytes where .* were published"),
        (lambda data: data + b"x", "bytes where .* were published"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "is damaged: its CRC-32 is"),
        (lambda data: None, "is missing though its manifest names it"),
    ],
    ids=["cut", "longer", "flipped", "missing"],
)
def test_a_damaged_file_is_never_read(change: Any, text: str, machine: Machine, tmp_path: Path) -> None:
    machine("here").submit(ROWS, "a", "1")
    with damaged(machine("here"), "-00000.mdb", change):
        there = machine("there")
        with pytest.raises(errors.CorruptError, match=text):
            there.fetch("a", "1")[0]
        assert cached(tmp_path / "there") == []
        with pytest.raises(errors.CorruptError, match="damaged"):
            there.check("a", "1")
        with pytest.raises(errors.CorruptError):
            there.copy("a", "1", to=yoga.Storage(tmp_path / "copy"))
    assert same(machine("there").fetch("a", "1"))
    machine("there").check("a", "1")


def test_a_damaged_copy_in_the_cache_is_downloaded_again(machine: Machine, tmp_path: Path) -> None:
    machine("here").submit(ROWS, "a", "1")
    assert same(machine("there").fetch("a", "1"))
    (copy,) = (tmp_path / "there" / "files").iterdir()
    data = copy.read_bytes()
    copy.write_bytes(data[:-4096])
    assert same(machine("there").fetch("a", "1"))
    assert copy.read_bytes() == data
    copy.write_bytes(bytes(byte ^ (at % 512 == 0 and at > 2**14) for at, byte in enumerate(data)))
    ref = machine("there").fetch("a", "1")
    with pytest.raises(errors.CorruptError, match="has been deleted; read again to download it"):
        list(ref)
    assert not copy.exists()
    assert same(ref)


def test_a_hostile_manifest(machine: Machine, tmp_path: Path) -> None:
    """Whatever a manifest says, nothing is written outside the cache, and no more than the store has."""
    storage = machine("here")
    storage.submit(ROWS, "a", "1")
    remote = objects_of(storage)
    good = remote.read("a/1/manifest.json", 2**20)
    (entry,) = Manifest.from_bytes(good).files
    for name in ("../../../evil", "/etc/passwd", "..", "a/../../b.mdb", f"../{entry.name}", "", "\0", "CON"):
        remote.write("a/1/manifest.json", forged(good, name=name))
        with pytest.raises(errors.CorruptError, match="not the name of a data file"):
            machine("there").fetch("a", "1")
    remote.write("a/1/manifest.json", forged(good, nbytes=2**50))
    with pytest.raises(errors.CorruptError, match=f"bytes where {2**50} were published"):
        machine("there").fetch("a", "1")[0]
    remote.write("a/1/manifest.json", forged(good, crc="x"))
    with pytest.raises(errors.CorruptError):
        machine("there").fetch("a", "1")
    for text in (b"", b"{}", good[:-10], b"\0" * 1000):
        remote.write("a/1/manifest.json", text)
        with pytest.raises(errors.CorruptError, match="remove the version and build it again"):
            machine("there").fetch("a", "1")
    outside = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert outside <= {"here", "there"}
    remote.write("a/1/manifest.json", good)
    assert same(machine("there").fetch("a", "1"))


def forged(good: bytes, **changes: Any) -> bytes:
    """A forged manifest whose checksum is right."""
    content = json.loads(good)
    content["files"][0] |= changes
    return resealed(content)


@pytest.mark.parametrize("kind", OTHERS)
def test_something_in_the_cache_that_is_not_a_file_is_named(kind: str, tmp_path: Path) -> None:
    url, cache = f"memory://{uuid.uuid4().hex}", tmp_path / "cache"
    yoga.Storage(url, cache_dir=tmp_path / "builder").submit([1, 2], "a", "1")
    storage = yoga.Storage(url, cache_dir=cache)
    assert storage.fetch("a", "1")[0] == 1
    (kept,) = (cache / "files").iterdir()
    kept.unlink()
    for folder in ("files", "parts"):
        path = cache / folder / kept.name
        OTHERS[kind](path)
        found = "a link" if path.is_symlink() else kind  # links in it are not followed
        with pytest.raises(errors.CorruptError, match=f"is {found} where a file should be"):
            storage.fetch("a", "1")[0]
        remove(path)
    assert storage.fetch("a", "1")[0] == 1


@pytest.mark.damages("a file that no manifest names is left")
def test_a_file_of_another_store_with_the_same_name_is_not_used(machine: Machine, tmp_path: Path) -> None:
    """Two stores may have files of the same name with different content."""
    first, second = machine("here"), yoga.Storage(f"memory://{uuid.uuid4().hex}", cache_dir=tmp_path / "here")
    first.submit([1, 2], "a", "1")
    remote, other = objects_of(first), objects_of(second)
    second.submit([3, 4], "a", "1")
    theirs = second.fetch("a", "1").manifest.files[0].name  # type: ignore[attr-defined]
    ours = first.fetch("a", "1").manifest.files[0].name  # type: ignore[attr-defined]
    other.write(f"a/1/{ours}", other.read(f"a/1/{theirs}", 2**20))
    text = forged(other.read("a/1/manifest.json", 2**20), name=ours)
    other.write("a/1/manifest.json", text)
    assert remote.find_one(f"a/1/{ours}") is not None
    assert (list(first.fetch("a", "1")), list(second.fetch("a", "1"))) == ([1, 2], [3, 4])


FAULTS = {
    "503": [Fault("status", times=5, status=503)],
    "500": [Fault("status", times=5, status=500)],
    "refused": [Fault("refuse", times=5)],
    "silence": [Fault("timeout", r"\.mdb|manifest", times=2)],
    "lost replies": [Fault("lost reply", method="PUT", times=5)],
    "cut uploads": [Fault("cut upload", r"\.mdb", "PUT", times=5, bytes=1000)],
    "cut bodies": [Fault("cut body", method="GET", times=5, bytes=100)],
    "flipped bytes": [Fault("flip", r"\.mdb", "GET", times=3, bytes=500)],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_temporary_faults_do_no_harm(
    kind: str, proxy: Proxy, bucket: str, tmp_path: Path, small_files: None
) -> None:
    hasty = QUICK if kind == "silence" else {}
    on = storages(f"s3://{bucket}/p", {**proxy.storage_options, **hasty}, tmp_path)
    proxy.faults = FAULTS[kind]
    on("here").submit(ROWS[:100], "a", "1")
    proxy.faults = FAULTS[kind]
    ref = on("there").fetch("a", "1")
    proxy.faults = FAULTS[kind]
    assert same(ref, ROWS[:100])
    assert any(request.fault for request in proxy.requests)
    proxy.faults = ()
    on("there").check("a", "1")
    assert {name for name in objects_of(on("here")).find("a/1") if name.endswith(".mdb")} == {
        entry.name
        for entry in ref.manifest.files  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("kind", ["503", "refused", "flipped bytes", "denied", "read-only", "down"])
def test_lasting_faults_are_errors_and_nothing_is_published(
    kind: str, proxy: Proxy, bucket: str, tmp_path: Path, small_files: None
) -> None:
    on = storages(f"s3://{bucket}/p", {**proxy.storage_options, **QUICK}, tmp_path)
    on("here").submit(ROWS[:100], "a", "1")
    ref = on("there").fetch("a", "1")
    stay = {
        "503": [Fault("status", status=503)],
        "refused": [Fault("refuse")],
        "flipped bytes": [Fault("flip", r"\.mdb", "GET", bytes=500)],
        "denied": [Fault("status", status=403)],
        "read-only": [Fault("status", method="PUT", status=403)],
        "down": [],
    }
    proxy.faults = stay[kind]
    if kind == "down":
        proxy.down()
    if kind != "read-only":
        with pytest.raises((errors.RemoteError, errors.CorruptError), match=r"cannot read|is damaged"):
            ref[0]
        assert cached(tmp_path / "there") == []
    if kind != "flipped bytes":
        with pytest.raises(errors.RemoteError, match=r"cannot (read|write|list)"):
            on("here").submit(ROWS[:100], "b", "1")
    proxy.clear()
    assert same(ref, ROWS[:100])
    assert on("here").list() == [("a", "1")]
    # The interrupted build is continued, and its rows are not read again.
    assert same(on("here").submit(ROWS[:100], "b", "1"), ROWS[:100])


def test_the_error_for_a_full_disk_names_the_folder(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = storages(f"s3://{bucket}/p", s3.storage_options, tmp_path)
    on("here").submit(ROWS, "a", "1")
    ref = on("there").fetch("a", "1")

    def full(self: Downloads, *_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Downloads, "_append", full)
        with pytest.raises(OSError, match=r"no space left for s3://.*choose another cache_dir"):
            ref[0]
    assert same(ref)


@pytest.mark.parametrize("often", [{"every": 2}, {"chance": 0.5}])
def test_a_busy_store_is_asked_again(
    often: dict[str, Any], proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_waits(0.02, 0.02, monkeypatch.setattr)
    on = storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)
    proxy.faults = [Fault("status", **often)]
    ref = on("here").submit(ROWS, "a", "1")
    on("here").submit(ROWS, "a", "1", overwrite=True)
    assert len(ref) == len(ROWS)
    assert same(on("there").fetch("a", "1", download=True))
    on("there").check("a", "1")
    assert on("there").list() == [("a", "1")]
    on("there").remove("a", "1")
    on("there").clean(0)
    assert sum(request.fault is not None for request in proxy.requests) > 20
