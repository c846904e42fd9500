"""Stores: at every moment a version exists or not; names stay inside; locks end with their holder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from children import dies_in_a_child, started
from damaged import flip
from hypothesis import given
from hypothesis import strategies as st
from leftovers import NEW, NEW_ROWS, OLD, OLD_ROWS, held_by_another, interrupted, put, values
from stored import store_of
from waiting import eventually

import torchyoga as yoga
from torchyoga.adapters.sources import source_of
from torchyoga.building.build import BuildOptions, Target, build
from torchyoga.errors import BusyError, CorruptError, NotFoundError, YogaError
from torchyoga.files.root import Root
from torchyoga.formats.contract import FORMATS
from torchyoga.reading.version_ref import VersionRef
from torchyoga.stores.address import directory_of
from torchyoga.stores.local import LocalStore
from torchyoga.stores.sharing import Sharing
from torchyoga.versions.file_entry import FileEntry, Listed
from torchyoga.versions.location import Staging
from torchyoga.versions.manifest import Manifest


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_names_are_two_directories_below_the_root(id: str, version: str) -> None:
    root = Path("/storage/of/all")
    try:
        directory = LocalStore(root).directory(id, version)
    except ValueError:  # lone surrogates, or longer than a directory's name may be
        assert not (id + version).isascii()
        return
    parts = directory.relative_to(root).parts
    assert len(parts) == 2
    assert Path(os.path.normpath(directory)) == directory
    assert [unquote(part) for part in parts] == [id, version]
    for part in parts:
        assert part not in (".", "..", ".staging", ".locks")
        assert part[0] not in ". "
        assert part[-1] not in ". "
        assert not set(part) & set('/\\:*?"<>|\0\n')
        assert len(part.encode()) <= 240


def test_files_may_be_gone_with_their_folder(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).delete("a", "1", ["0.mdb"]) == []


def test_files_that_others_put_into_the_root_are_ignored(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "a", "1")
    for name in (b".hidden", b"%zz", b"x" * 250, b"\xff\xfe", b"a%2fb", b"caf\xc3\xa9", b" a"):
        directory = os.path.join(os.fsencode(tmp_path), name, b"1")
        os.makedirs(directory)
        with open(os.path.join(directory, b"manifest.json"), "wb") as file:
            file.write(b"{}")
    (tmp_path / "file").touch()
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "2").mkdir()  # unfinished
    assert storage.list() == [("a", "1")]
    assert storage.versions("a") == ["1"]
    storage.check("a", "1")


@pytest.mark.damages("the version is moved to where another belongs")
def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "a", "1")
    (tmp_path / "a" / "1").rename(tmp_path / "a" / "2")
    with pytest.raises(CorruptError, match="belongs to 'a' '1'; it was moved here by hand"):
        storage.fetch("a", "2")


@pytest.mark.quick("overwrite")
@pytest.mark.usefixtures("unsynced")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("what", ["submit", "overwrite", "remove"])
def test_killed_before_any_operation_a_version_exists_or_not(tmp_path: Path, what: str) -> None:
    for operation in range(100):
        storage = yoga.Storage(tmp_path / str(operation))
        if what != "submit":
            options = BuildOptions(block_bytes=80, file_bytes=1)
            build(source_of(OLD), Target(LocalStore(storage.path), "a", "1"), options)
            assert len(list((storage.path / "a" / "1").iterdir())) == 4
        before = [values(OLD_ROWS)] if what != "submit" else [None]
        after = [None] if what == "remove" else [values(NEW_ROWS)]

        def act(storage: yoga.Storage = storage) -> None:
            if what == "remove":
                storage.remove("a", "1")
            else:
                storage.submit(NEW, "a", "1", overwrite=True)

        died = dies_in_a_child(act, operation)
        if storage.list():
            found: list[int] | None = values(storage.fetch("a", "1"))
            storage.check("a", "1")
        else:
            found = None
            with pytest.raises(NotFoundError):
                storage.fetch("a", "1")
        assert found in (before + after if died else after)
        # Nothing blocks the next operation, which leaves nothing of the one that was killed.
        assert values(storage.submit(NEW, "a", "1", overwrite=True)) == values(NEW_ROWS)
        storage.check("a", "1")
        assert len(list((storage.path / "a" / "1").iterdir())) == 2
        assert not [path for path in (storage.path / ".staging").rglob("*") if path.is_file()]
        if not died:
            break
    assert not died
    assert operation > 3


@pytest.mark.parametrize("url", ["{path}/storage", "memory://{path}"])
def test_a_version_that_could_not_be_read_is_not_published(url: str, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path / "cache"} if "memory" in url else {}
    storage = yoga.Storage(url.format(path=tmp_path), **options)  # type: ignore[arg-type]
    old = storage.submit(OLD, "a", "1")
    store = store_of(storage)

    def publish(change: Callable[[Manifest, Path], Manifest]) -> None:
        with store.lock("a", "1"):
            made = yoga.Storage(tmp_path / "made").submit(NEW, "a", "1", overwrite=True)
            assert isinstance(made, VersionRef)
            staging, (entry,) = store.stage("a", "1", store.seen("a", "1")), made.manifest.files
            path = staging.path / entry.name
            path.write_bytes((tmp_path / "made" / "a" / "1" / entry.name).read_bytes())
            store.publish(staging, change(made.manifest, path))

    def cut(manifest: Manifest, path: Path) -> Manifest:
        path.write_bytes(path.read_bytes()[:-1])
        return manifest

    def gone(manifest: Manifest, path: Path) -> Manifest:
        path.unlink()
        return manifest

    def damaged(manifest: Manifest, path: Path) -> Manifest:
        flip(path, manifest.files[0].index["offset"])
        return manifest

    def other(manifest: Manifest, path: Path) -> Manifest:
        return replace(manifest, fingerprint=manifest.fingerprint[::-1])

    def later(manifest: Manifest, path: Path) -> Manifest:
        return replace(manifest, files=Listed([replace(manifest.files[0], crc=2**32)]))

    for change, message in (
        (cut, "where .* were published"),
        (gone, "is missing"),
        (damaged, "index of blocks inside the file is damaged"),
        (other, "its fingerprint is not that of its schema"),
        (later, "a CRC-32 has 32 bits"),
    ):
        with pytest.raises(CorruptError, match=message):
            publish(change)
        assert values(storage.fetch("a", "1")) == values(old) == values(OLD_ROWS)
        storage.check("a", "1")
    publish(lambda manifest, path: manifest)
    assert values(storage.fetch("a", "1")) == values(NEW_ROWS)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [0, 5000, -1])
def test_a_file_that_was_damaged_before_it_is_uploaded_is_not_published(
    place: int, format: str, tmp_path: Path
) -> None:
    """Wherever the damage is: bytes that readers never use are compared too."""
    store = store_of(yoga.Storage(f"memory://{tmp_path}", cache_dir=tmp_path / "cache"))
    built = tmp_path / "cache" / "building"
    damaged: list[Path] = []

    def damage() -> None:
        damaged.extend(path for path in built.rglob("*-00000.*") if path.is_file())
        flip(damaged[0], place)

    options = BuildOptions(format)
    with store.lock("a", "1"):
        build(source_of(OLD), Target(store, "a", "1"), options)
        with pytest.raises(CorruptError, match=r"is damaged: its CRC-32 is [0-9a-f]{8}, not"):
            build(
                source_of(NEW),
                Target(store, "a", "1", store.seen("a", "1")),
                replace(options, before_publishing=damage),
            )
    assert len(damaged) == 1
    assert not damaged[0].exists()
    storage = yoga.Storage(store.name, cache_dir=tmp_path / "elsewhere")
    storage.check("a", "1")
    assert values(storage.fetch("a", "1")) == values(OLD_ROWS)
    assert values(storage.submit(NEW, "a", "1", overwrite=True)) == values(NEW_ROWS)
    storage.check("a", "1")


def test_calls_for_the_notes_of_a_forged_tag_do_not_wait_in_memory_all_at_once(tmp_path: Path) -> None:
    store = store_of(yoga.Storage(f"memory://{tmp_path}", cache_dir=tmp_path / "cache"))
    numbers = iter(range(10**5))  # the last note may say that it is the hundred millionth
    assert next(store.each(numbers, abs)) == 0
    assert next(numbers) < 10**4


@pytest.mark.parametrize("place", [0, -1])
def test_a_file_that_was_damaged_before_it_is_copied_to_a_store_is_not_published(
    place: int, tmp_path: Path
) -> None:
    here = yoga.Storage(tmp_path / "here", format="hdf5")
    first, second = (
        yoga.Storage(f"memory://{tmp_path}/{name}", cache_dir=tmp_path / name) for name in ("first", "second")
    )
    first.submit(OLD, "a", "1", format="hdf5")
    first.copy("a", "1", to=here)
    (path,) = (here.path / "a" / "1").glob("*.h5")
    flip(path, place)
    with pytest.raises(CorruptError, match="is damaged"):
        here.copy("a", "1", to=second)
    assert second.list() == []
    flip(path, place)
    here.copy("a", "1", to=second)
    second.check("a", "1")


@pytest.mark.damages("it leaves a file that no manifest names")
def test_files_of_another_build_do_not_count_as_damage_and_are_deleted_by_the_next(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "a", "1")
    left_over = tmp_path / "a" / "1" / "0123456789abcdef-00000.mdb"
    left_over.write_bytes(b"half of a file")
    storage.check("a", "1")
    storage.submit(NEW, "a", "1", overwrite=True)
    assert not left_over.exists()
    (own,) = (tmp_path / "a" / "1").glob("*.mdb")
    own.with_name(own.name.replace("00000.mdb", "00001.mdb")).write_bytes(b"")
    with pytest.raises(CorruptError, match=r"-00001\.mdb is not named in the manifest"):
        storage.check("a", "1")


HOLDER = """
import sys, time
from pathlib import Path
from torchyoga.stores.local import LocalStore
with LocalStore(Path(sys.argv[1])).lock("a", "1"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_keeps_others_out_and_dies_with_its_holder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with started(HOLDER, str(tmp_path)) as holder:
        assert holder.stdout.readline() == "held\n"
        message = (
            rf"'a' '1' is still being built by process {holder.pid} on .* since .*; wait longer, or stop"
        )
        with pytest.raises(BusyError, match=message), store.lock("a", "1", timeout=0.05):
            pass
        with pytest.raises(BusyError, match=message):
            Sharing(store, "a").remove_one("1", 0.05, None)
        with store.lock("a", "2", timeout=0), store.lock("b", "1", timeout=0):
            pass  # other versions are free
    with store.lock("a", "1", timeout=10):
        pass


@pytest.mark.parametrize("timeout", [-1, 20])
def test_a_long_wait_for_a_lock_says_for_whom(
    timeout: float, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyoga.stores.local._NOTICE_SECONDS", 0.3)  # not 5, which would take long
    store, is_said = LocalStore(tmp_path), lambda: bool(caplog.records)
    with held_by_another(tmp_path, lambda: eventually(is_said)), store.lock("a", "1", timeout):
        pass
    assert {record.name for record in caplog.records} == {"torchyoga"}
    assert f"waiting for process {os.getpid()} on " in caplog.messages[0]
    assert "which builds 'a' '1'" in caplog.messages[0]


def test_a_short_wait_for_a_lock_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path)
    with held_by_another(tmp_path, lambda: time.sleep(0.2)), store.lock("a", "1"):
        pass  # far from a long wait
    assert caplog.messages == []


def test_a_note_of_progress_is_what_was_saved_or_nothing(tmp_path: Path) -> None:
    """Files are added to it one by one, and half a line is ignored."""
    staging = LocalStore(tmp_path).stage("a", "1")
    assert staging == Staging(Root(tmp_path, within=".staging/a/1"))
    assert staging.load() == {}
    known = [{"files": [{"rows": rows} for rows in range(count)], "token": "x"} for count in (1, 2, 3)]
    staging.save(known[0])
    assert staging.load() == known[0]
    staging.keep_only([])  # a build that is killed now can still be continued
    note = tmp_path / ".staging" / "a" / "1" / "progress.json"
    ends = [note.stat().st_size]
    for progress in known[1:]:
        staging.add(progress["files"][-1])
        assert staging.load() == progress
        ends.append(note.stat().st_size)
    assert ends[2] - ends[1] == ends[1] - ends[0]  # existing entries are not written again
    whole = note.read_bytes()
    for at in range(len(whole)):
        note.write_bytes(whole[:at])
        assert staging.load() == ({} if at < ends[0] else known[at >= ends[1]])
        note.write_bytes(whole)
        flip(note, at)
        assert staging.load() in ({}, *known[: 3 if at < ends[0] else 2])
    for text in (b"[]", b"5", b"null", b"[" * 100_000):
        note.write_bytes(text)
        assert staging.load() == {}
    staging.clear()
    assert staging.load() == {}


def test_checksums_of_whole_files_are_taken_only_for_files_that_are_sent(tmp_path: Path) -> None:
    for url, is_sent in ((str(tmp_path / "here"), False), (f"memory://{tmp_path}", True)):
        options = {"cache_dir": tmp_path / "cache"} if is_sent else {}
        ref = yoga.Storage(url, **options).submit(OLD, "a", "1")  # type: ignore[arg-type]
        assert isinstance(ref, VersionRef)
        assert [file.crc is not None for file in ref.manifest.files] == [is_sent]


@pytest.mark.damages("its manifest is too large")
def test_a_manifest_that_no_version_could_have_is_not_read(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "a", "1")
    os.truncate(tmp_path / "a" / "1" / "manifest.json", 256 * 2**20 + 1)  # FORMAT.md: up to 256 MiB
    with pytest.raises(CorruptError, match="larger than any manifest; remove the version"):
        storage.fetch("a", "1")


def test_a_copy_first_deletes_what_an_interrupted_build_of_the_version_has_left(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path / "there").submit(OLD, "a", "1")
    assert isinstance(ref, VersionRef)
    interrupted(tmp_path / "here")
    store = LocalStore(tmp_path / "here")

    @contextmanager
    def held(entry: FileEntry) -> Iterator[str]:
        assert not list((store.root / ".staging" / "a" / "1").glob("0123456789abcdef-*"))
        yield str(tmp_path / "there" / "a" / "1" / entry.name)

    with store.lock("a", "1"):
        store.receive(ref.manifest, held)
    assert values(yoga.Storage(store.root).fetch("a", "1")) == values(OLD_ROWS)


def test_a_file_that_is_deleted_while_sizes_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = yoga.Storage(tmp_path).submit(OLD, "a", "1")
    assert isinstance(ref, VersionRef)
    put(tmp_path / "a" / "1", "0123456789abcdef-00000.mdb")
    sizes = LocalStore(tmp_path).sizes(ref.manifest)
    assert sizes.pop("0123456789abcdef-00000.mdb") == 4

    def size(entry: os.DirEntry[str]) -> int:
        (tmp_path / "a" / "1" / "0123456789abcdef-00000.mdb").unlink(missing_ok=True)
        return os.stat(entry.path).st_size

    monkeypatch.setattr("torchyoga.stores.local.size_of", size)
    assert LocalStore(tmp_path).sizes(ref.manifest) == sizes


def test_a_build_within_itself_is_an_error_at_once(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)

    @storage.cacheable("a", "1")
    def rows() -> Any:
        return storage.submit([1, 2], "a", "1")

    with pytest.raises(
        YogaError, match="'a' '1' is being built by this same call, which would wait for itself"
    ):
        rows()
    assert list(storage.submit([1], "a", "1")) == [1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be other users")
def test_versions_that_may_not_be_read_are_not_listed(tmp_path_others_reach: Path) -> None:
    root = tmp_path_others_reach / "storage"
    storage = yoga.Storage(root)
    for id in ("a", "private"):
        storage.submit(OLD, id, "1")
    os.chmod(root / "private", 0o700)

    def look() -> None:
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        assert storage.list() == [("a", "1")]
        with pytest.raises(NotFoundError):
            storage.fetch("b", "1")
        assert not storage.clean(0)

    assert not dies_in_a_child(look, 10_000)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be other users")
def test_what_another_user_may_not_do_is_neither_damage_nor_a_riddle(tmp_path_others_reach: Path) -> None:
    root = tmp_path_others_reach / "storage"
    storage = yoga.Storage(root)
    storage.submit(OLD, "a", "1")
    storage.submit(OLD, "b", "1")
    os.chmod(next((root / "b" / "1").glob("*.mdb")), 0o600)

    def look() -> None:
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        storage.check("a", "1")
        with pytest.raises(PermissionError, match=r"Permission denied: .*\.mdb"):
            storage.check("b", "1")
        for write in (storage.remove, storage.convert, partial(storage.tag, "a")):
            with pytest.raises(PermissionError, match=r"cannot write to the storage .*, make it writable"):
                write("a", "1")

    assert not dies_in_a_child(look, 10_000)


# -- addresses


def test_a_directory_may_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a b%20c~"
    plain = str(place).replace("%", "%25")
    for text in (str(place), place.as_uri(), f"file:{plain}", f"file://localhost{plain}", f"FILE://{plain}"):
        assert yoga.Storage(text).path == place, text
    assert yoga.Storage("a:b").path == tmp_path / "a:b"
    assert yoga.Storage("~/x").path == Path.home() / "x" == yoga.Storage("file://~/x").path
    for wrong in ("s3:/bucket/x", "gs:/bucket", "https:/host", "", "file:below", "file:"):
        with pytest.raises(ValueError, match="a URL has two slashes"):
            yoga.Storage(wrong)
    with pytest.raises(ValueError, match="names a host, 'tmp'; a file of this machine is file:///tmp/x"):
        yoga.Storage("file://tmp/x")
    with pytest.raises(ValueError, match=r"s4:// URLs are unknown.*'s3'"):
        yoga.Storage("s4://bucket")
    yoga.Storage(place.as_uri()).submit([1], "a", "1")
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_reading_an_address_makes_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of("below/x") == tmp_path / "below" / "x"
    assert directory_of("local:///data") == Path("/data").absolute()
    assert list(tmp_path.iterdir()) == []
