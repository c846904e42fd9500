"""A store behind a URL behaves like a directory: the same rows, the same errors."""

from __future__ import annotations

import itertools
import os
import pickle
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import status_of_child
from publishing import ROWS, Machine, cached, same, storages
from servers import QUICK, S3, Fault, Proxy, http_server
from stored import an_hour_later, objects_of, store_of, watched
from waiting import at_once

import torchyoga as yoga
from torchyoga import errors
from torchyoga.stores.cache import Cache
from torchyoga.testing import check_store

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def test_a_store_keeps_the_rules_of_all_stores(machine: Machine, tmp_path: Path) -> None:
    """Two machines act in turn."""
    stores = itertools.cycle([store_of(machine("one")), store_of(machine("two"))])
    check_store(lambda: next(stores), tmp_path / "else")


def test_one_machine_publishes_and_another_reads(machine: Machine, tmp_path: Path, small_files: None) -> None:
    here, there = machine("here"), machine("there")
    assert (here.list(), here.versions("a/b é")) == ([], [])
    ref = here.submit(ROWS, "a/b é", "1.0 #[]")
    assert same(ref)
    assert len(cached(tmp_path / "here")) == 25  # files built here are not downloaded, nor to copy them
    assert same(here.copy("a/b é", "1.0 #[]", to=yoga.Storage(tmp_path / "local")))
    assert [*(tmp_path / "here" / "parts").iterdir()] == []
    assert there.list() == [("a/b é", "1.0 #[]")]
    assert there.versions("a/b é") == ["1.0 #[]"]
    far = there.fetch("a/b é", "1.0 #[]")
    assert (len(far), far.fingerprint, far.schema) == (500, ref.fingerprint, ref.schema)
    assert cached(tmp_path / "there") == []  # only the manifest was read
    assert far[123]["n"] == 123
    assert len(cached(tmp_path / "there")) == 1
    assert same(far)
    assert same(pickle.loads(pickle.dumps(far)))
    assert same(there.fetch("a/b é", "1.0 #[]")[100:400:3], ROWS[100:400:3])
    there.check("a/b é", "1.0 #[]")
    assert [*(tmp_path / "there" / "checking").iterdir()] == []
    assert same(machine("at once").fetch("a/b é", "1.0 #[]", download=True, progress=False))
    assert len(cached(tmp_path / "at once")) == 25
    with pytest.raises(ValueError, match="the cache keeps cache_bytes=1000"):
        machine("small", cache_bytes=1000).fetch("a/b é", "1.0 #[]", download=True)


@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
def test_every_way_to_publish(format: str, machine: Machine) -> None:
    here, there = machine("here", format=format), machine("there")
    here.submit(iter(ROWS), "rows", "1")
    here.submit({"x": np.arange(1000)}, "arrays", "1")
    here.submit([], "empty", "1")
    here.submit(here.fetch("rows", "1")[:10], "some", "1")
    calls = []

    @there.cacheable("made", "1")
    def made() -> Any:
        calls.append(1)
        return ROWS[:5]

    assert same(made(), ROWS[:5])
    assert same(made(), ROWS[:5])
    assert len(calls) == 1
    assert same(there.fetch("rows", "1"))
    assert there.fetch("arrays", "1")[999]["x"] == 999
    assert len(there.fetch("empty", "1")) == 0
    assert same(there.fetch("some", "1"), ROWS[:10])
    converted = there.convert("rows", "1", format="hdf5" if format == "lmdb" else "lmdb")
    assert same(converted)
    assert same(machine("third").fetch("rows", "1"))


def test_errors_are_those_of_a_directory(machine: Machine) -> None:
    storage = machine("here")
    with pytest.raises(errors.NotFoundError, match="the storage holds nothing"):
        storage.fetch("a", "1")
    storage.submit([1, 2], "a", "1")
    with pytest.raises(errors.ExistsError, match=r"published already in .*://"):
        storage.submit([3], "a", "1")
    with pytest.raises(errors.NotFoundError, match=r"its versions are \['1'\]"):
        storage.fetch("a", "2")
    with pytest.raises(errors.NotFoundError, match=r"the storage holds \['a'\]"):
        storage.remove("b", "1")
    with pytest.raises(errors.NotFoundError):
        storage.check("b", "1")
    with pytest.raises(errors.SchemaError, match="row 1"):
        storage.submit([1, "x"], "c", "1")
    with pytest.raises(ValueError, match="is not a directory of this machine"):
        _ = storage.path
    assert storage.list() == [("a", "1")]
    with pytest.raises(ValueError, match="lease_seconds must be in"):
        machine("here", lease_seconds=0)
    with pytest.raises(ValueError, match="timeout must be at least 0"):
        machine("here", timeout=-1)
    with pytest.raises(ValueError, match="cache_bytes must be"):
        machine("here", cache_bytes=-1)


def test_overwritten_and_removed_versions(machine: Machine, small_files: None) -> None:
    here, there = machine("here"), machine("there")
    here.submit(ROWS, "a", "1")
    opened, whole, late = (there.fetch("a", "1") for _ in range(3))
    assert opened[3]["n"] == 3
    whole.download(progress=False)  # type: ignore[attr-defined]
    here.submit(ROWS[::-1], "a", "1", overwrite=True)
    assert same(whole)
    assert same(opened)  # replaced files stay for a day
    assert not there.clean()
    assert same(there.fetch("a", "1"), ROWS[::-1])
    pickled = pickle.dumps(late)
    with pytest.raises(errors.NotFoundError, match="has been overwritten since"):
        pickle.loads(pickled)
    far = machine("far").fetch("a", "1")
    here.remove("a", "1")
    assert here.list() == []
    with pytest.raises(errors.NotFoundError, match="has been removed since"):
        far[0]
    assert same(whole)


@pytest.mark.damages("a file of somebody else lies beside the version")
def test_replaced_files_are_cleaned_after_the_grace(place: tuple[str, Any], tmp_path: Path) -> None:
    storage = watched(place, tmp_path / "here")
    storage.submit([1, 2], "a", "1")
    storage.submit([3], "a", "1", overwrite=True)
    remote = objects_of(storage)
    remote.write("a/1/0123456789abcdef-00000.mdb", b"of an upload that was never finished")
    remote.write("b/2/0123456789abcdef-00000.mdb", b"likewise")
    remote.write("a/1/notes.txt", b"another program's file")
    for number in (1, 2):  # a process ended between its claim and the removal of the one before
        remote.write(f".leases/c/3/0000000{number}.json", b"a claim")
    an_hour_later(storage)
    assert not storage.clean(grace=7200)
    removed = storage.clean(grace=1800)
    assert len([name for name in removed if name.endswith(".mdb")]) == 3
    assert sorted(remote.find("a")) == sorted(
        ["1/manifest.json", "1/notes.txt", f"1/{storage.fetch('a', '1').manifest.files[0].name}"]  # type: ignore[attr-defined]
    )
    assert list(remote.find(".leases/c")) == ["3/00000002.json"]  # no other builder gets its number
    assert list(watched(place, tmp_path / "there").fetch("a", "1")) == [3]


def test_overwriting_with_an_empty_dataset_leaves_nothing_of_the_old_version(
    place: tuple[str, Any], tmp_path: Path
) -> None:
    storage = watched(place, tmp_path / "here")
    storage.submit([1, 2], "a", "1")
    storage.submit([], "a", "1", overwrite=True)
    storage.check("a", "1")
    remote = objects_of(storage)
    an_hour_later(storage)
    storage.clean(grace=60)
    assert list(remote.find("a")) == ["1/manifest.json"]
    storage.check("a", "1")
    # What is left of an upload does not look like a whole build of a version without files.
    remote.write("a/1/0123456789abcdef-00001.mdb", b"of an upload that was never finished")
    storage.clean(grace=60)
    assert list(remote.find("a")) == ["1/manifest.json"]


def test_objects_of_others_beside_a_version_stay(machine: Machine, tmp_path: Path) -> None:
    """An error names them before anything is written or deleted."""
    storage, local = machine("here"), yoga.Storage(tmp_path / "local")
    local.submit([4], "a", "2")
    storage.submit([1, 2], "a", "1")
    remote = objects_of(storage)
    for number in range(12):
        remote.write(f"a/1/results/{number:02}.txt", b"another program's file")
    remote.write("a/2/notes.txt", b"another program's file")
    remote.write("a/1/.DS_Store", b"a system's own")
    remote.write(".leases/a/2/notes.txt", b"another program's file")
    before = sorted(name for name in remote.find() if "json" not in name)
    ten = r"holds what torchyoga has not written: 'results/00.txt', .*'results/09.txt' and 2 more. Nothing"
    with pytest.raises(errors.YogaError, match=ten):
        storage.remove("a", "1")
    with pytest.raises(errors.YogaError, match=ten):
        storage.submit([3], "a", "1", overwrite=True)
    for publish in (
        lambda: storage.submit((1 // 0 for _ in "row"), "a", "2"),  # before a row is read
        lambda: local.copy("a", "2", to=storage),
    ):
        with pytest.raises(errors.YogaError, match=r"has not written: 'notes.txt'. Nothing"):
            publish()
    assert sorted(name for name in remote.find() if "json" not in name) == before
    assert list(machine("there").fetch("a", "1")) == [1, 2]
    for number in range(12):
        remote.delete([f"a/1/results/{number:02}.txt"])
    storage.check("a", "1")
    storage.remove("a", "1")
    left = sorted(name for name in remote.find() if not name.startswith("."))
    assert left == ["a/1/.DS_Store", "a/2/notes.txt"]


@pytest.mark.damages("manifests without content are put beside the version")
def test_the_error_for_a_missing_version_names_similar_ones(
    proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    storage = storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)("here")
    storage.submit([1], "digits", "v1.0")
    remote = objects_of(storage)
    for number in range(30):
        remote.write(f"digits/v2.{number}/manifest.json", b"{}")
        remote.write(f"set {number:02}/1/manifest.json", b"{}")
    remote.write("digits/v1.1/0123456789abcdef-00000.mdb", b"being uploaded")
    asked = {
        ("digits", "v1.00"): r"its versions are \['v1.0', .*\] and more",
        ("digist", "1"): r"the storage holds \['digits', .*\] and more",
        ("set 17", "2"): r"its versions are \['1'\]\. Submit",
    }
    for (id, version), text in asked.items():
        proxy.clear()
        with pytest.raises(errors.NotFoundError, match=text) as caught:
            storage.fetch(id, version)
        assert "'v1.1'" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert len([request for request in proxy.seen("GET") if "list-type" in request.query]) <= 2
        assert len(proxy.requests) <= 20


def test_a_build_under_way_is_not_cleaned(machine: Machine) -> None:
    storage = machine("here", lease_seconds=60)
    remote = objects_of(storage)
    with store_of(storage).lock("a", "1"):
        remote.write("a/1/0123456789abcdef-00000.mdb", b"being uploaded")
        clock = ".leases/clock-0123456789abcdef"  # another process is about to look at its time
        remote.write(clock, b"")
        removed = storage.clean(grace=0)
        assert not [name for name in removed if name.startswith("a/") or name == clock]
        assert "1/0123456789abcdef-00000.mdb" in remote.find("a")
        assert remote.find_one(clock) is not None


def test_remove_leaves_what_another_builder_is_about_to_publish(
    proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    storage = storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)("here")
    remote = objects_of(storage)
    theirs = "a/1/0123456789abcdef-00000.mdb"
    storage.submit([1, 2], "a", "1")
    remote.write(theirs, b"being uploaded")
    storage.remove("a", "1")
    assert [name for name in remote.find() if name.startswith("a/")] == [theirs]
    assert not proxy.seen("DELETE", "manifest.json.new")  # what is not listed costs no request
    # A directory that another tool has uploaded may hold it; and no build is known of a damaged manifest.
    remote.write("a/1/manifest.json.new", b"{}")
    remote.write("a/1/manifest.json", b"{}")
    storage.remove("a", "1")
    assert remote.find("a") == {}


@pytest.mark.parametrize("left", [None, b"half"])
def test_a_file_that_has_not_arrived_is_sent_again_before_the_version_is_published(
    left: bytes | None, place: tuple[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store has said that it had taken it."""
    here, lost = watched(place, tmp_path / "here"), []
    remote = objects_of(here)

    def look_in_vain(find_one: Callable[[str], Any], name: str) -> Any:
        if name.endswith(".mdb") and not lost:
            lost.append(name)
            remote.delete([name]) if left is None else remote.write(name, left)
        return find_one(name)

    remote.instead["find_one"] = look_in_vain
    assert list(here.submit([1, 2], "a", "1")) == [1, 2]
    assert len(lost) == 1
    assert "sending them again" not in caplog.text
    assert list(watched(place, tmp_path / "there").fetch("a", "1")) == [1, 2]


def test_ids_that_look_like_errors(machine: Machine) -> None:
    storage = machine("here")
    for id in ("416", "404 specified bucket", "InvalidRange", "NoSuchBucket"):
        with pytest.raises(errors.NotFoundError):
            storage.fetch(id, "416")
        assert list(storage.submit([1, 2], id, "416")) == [1, 2]
        assert list(machine("there").fetch(id, "416")) == [1, 2]


@pytest.mark.parametrize("cache_bytes", [0, 1, 50_000])
def test_copies_from_a_store_with_a_small_cache(
    cache_bytes: int, machine: Machine, tmp_path: Path, small_files: None
) -> None:
    machine("here").submit(ROWS, "a", "1")
    small = machine("small", cache_bytes=cache_bytes)
    for target in (
        yoga.Storage(tmp_path / "copy"),
        yoga.Storage(f"memory://{uuid.uuid4().hex}", cache_dir=tmp_path / "x"),
    ):
        assert same(small.copy("a", "1", to=target))
        target.check("a", "1")
    assert list((tmp_path / "small" / "parts").glob("*")) == []


@pytest.mark.parametrize("method", ["held", "find"])
def test_files_that_are_deleted_again_and_again_end_in_an_error(method: str, tmp_path: Path) -> None:
    """For example, by other processes with small caches."""

    class Emptied(Cache):
        def held(self, key: str) -> Any:
            if method == "held":
                self.drop(key)
            return super().held(key)

        def find(self, key: str) -> Any:
            if method == "find":
                self.drop(key)
            return super().find(key)

    place = f"memory://{uuid.uuid4().hex}", None
    ref = watched(place, tmp_path / "here").submit([1, 2], "a", "1")
    storage = watched(place, tmp_path / "here", cache=Emptied)
    copy = yoga.Storage(tmp_path / "copy")
    with pytest.raises(
        (errors.RemoteError, errors.CorruptError), match=r"was deleted 100 times .* larger cache_bytes"
    ):
        storage.copy("a", "1", copy) if method == "held" else storage.fetch("a", "1")[0]
    assert len(ref) == 2


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_its_user_may_use_a_cache_unless_it_is_shared(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        for shared in (False, True):
            storage = yoga.Storage(
                f"memory://{uuid.uuid4().hex}", cache_dir=tmp_path / str(shared), shared=shared
            )
            storage.submit(ROWS, "a", "1")
            storage.check("a", "1")
            storage.copy("a", "1", to=yoga.Storage(tmp_path / f"copy of {shared}"))
            paths = [tmp_path / str(shared), *(tmp_path / str(shared)).rglob("*")]
            modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
            own, group = {(True, 0o700), (False, 0o600)}, {(True, 0o2770), (False, 0o660)}
            assert modes == (group if shared else own)
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_an_error_names_a_cache_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with sudo, which may keep the home folder."""
    url = f"memory://{uuid.uuid4().hex}"
    yoga.Storage(url, cache_dir=tmp_path / "x").submit([1, 2], "a", "1")
    with tempfile.TemporaryDirectory() as home:
        monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/cache")
        mine = yoga.Storage(url)
        assert list(mine.fetch("a", "1")) == [1, 2]
        os.chmod(home, 0o755)
        os.chmod(f"{home}/cache", 0o755)
        os.makedirs(f"{home}/free", mode=0o777)
        os.chmod(f"{home}/free", 0o777)

        # The other user may not be able to read this Python's own modules: what is loaded when it is called
        # is loaded now.
        mine.cacheable("loaded", "1")(lambda: [1])()
        mine.check("loaded", "1")
        mine.copy("loaded", "1", to=yoga.Storage(f"{home}/loaded"))

        def as_another() -> None:
            os.setuid(65534)
            storage, to = yoga.Storage(url), yoga.Storage(f"{home}/free/s")
            for act in (
                lambda: storage.submit([1], "b", "1"),
                lambda: storage.cacheable("b", "1")(lambda: [1])(),
                lambda: storage.fetch("a", "1")[0],
                lambda: storage.fetch("a", "1", download=True, progress=False),
                lambda: storage.check("a", "1"),
                lambda: storage.copy("a", "1", to=to),
            ):
                with pytest.raises(PermissionError, match=r"cannot keep files here .* another cache_dir"):
                    act()
            assert list(yoga.Storage(url, cache_dir=f"{home}/free/c").fetch("a", "1")) == [1, 2]

        assert status_of_child(as_another) == 0


@pytest.mark.parametrize("doing", ["check", "copy"])
def test_a_version_removed_meanwhile_is_not_called_damaged(
    doing: str, machine: Machine, place: tuple[str, Any], tmp_path: Path
) -> None:
    storage, other = machine("here"), machine("other")
    for turn in ("overwritten", "removed"):
        storage.submit([1, 2], "a", "1", overwrite=True)
        (tmp_path / turn).mkdir()
        acts = [lambda: other.remove("a", "1")]
        if turn == "overwritten":
            acts.append(lambda: other.submit([3], "a", "1"))

        def late(send: Callable[..., Any], *asked: Any, acts: Any = acts) -> Any:
            while acts:
                acts.pop(0)()
            return send(*asked)

        to = yoga.Storage(tmp_path / turn / "copy")
        reader = watched(place, tmp_path / turn)
        objects_of(reader).instead |= {"find": late, "stream": late}
        work = partial(reader.check, "a", "1") if doing == "check" else partial(reader.copy, "a", "1", to)
        if turn == "overwritten":
            work()
            assert doing == "check" or list(to.fetch("a", "1")) == [3]
        else:
            with pytest.raises(errors.NotFoundError, match=r"was removed while it was (checked|copied)"):
                work()
        assert not acts


def test_an_error_of_the_function_itself_is_raised(machine: Machine) -> None:
    storage = machine("here")
    storage.submit([1], "other", "1")

    @storage.cacheable("a", "1")
    def made() -> Iterator[int]:
        yield 1
        storage.submit([2], "other", "1")

    with pytest.raises(errors.ExistsError, match="'other' '1' is published already"):
        made()
    assert storage.list() == [("other", "1")]


def test_copies(machine: Machine, tmp_path: Path, small_files: None) -> None:
    local, other = yoga.Storage(tmp_path / "local"), yoga.Storage(tmp_path / "other")
    store = machine("here")
    ref = local.submit(ROWS, "a", "1")
    copied = local.copy("a", "1", to=store, progress=False)
    assert copied.fingerprint == ref.fingerprint
    assert same(machine("there").fetch("a", "1"))
    assert same(machine("there").copy("a", "1", to=other))
    other.check("a", "1")
    store.check("a", "1")
    assert same(local.copy("a", "1", to=store))  # copying it once more does nothing
    local.submit(ROWS[::-1], "a", "1", overwrite=True)
    with pytest.raises(errors.ExistsError):
        local.copy("a", "1", to=store)
    assert same(local.copy("a", "1", to=store, overwrite=True), ROWS[::-1])
    with pytest.raises(errors.NotFoundError):
        local.copy("b", "1", to=store)


def test_a_copy_that_was_interrupted_goes_on(
    proxy: Proxy, bucket: str, tmp_path: Path, small_files: None
) -> None:
    local = yoga.Storage(tmp_path / "local")
    local.submit(ROWS, "a", "1")
    store = storages(f"s3://{bucket}/p", {**proxy.storage_options, **QUICK}, tmp_path)("here")
    proxy.faults = [Fault("status", r"-000(1[5-9]|2\d)\.mdb", "PUT", status=500)]
    with pytest.raises(errors.RemoteError, match="cannot write"):
        local.copy("a", "1", to=store)
    assert store.list() == []
    proxy.clear()
    assert same(local.copy("a", "1", to=store))
    assert 0 < len([r for r in proxy.seen("PUT", ".mdb") if r.status == 200]) < 25


def test_a_directory_uploaded_by_another_tool_is_read(
    s3: S3, bucket: str, proxy: Proxy, tmp_path: Path, small_files: None
) -> None:
    import s3fs

    local = yoga.Storage(tmp_path / "local")
    local.submit(ROWS, "a b", "1")
    s3fs.S3FileSystem(**s3.storage_options).put(str(local.path), f"{bucket}/p", recursive=True)
    there = storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)
    proxy.faults = [Fault("flip", r"\.mdb", "GET", times=3, bytes=9000)]
    assert same(there("there").fetch("a b", "1"))  # no CRC-32 of the file, only of its blocks
    assert there("there").list() == [("a b", "1")]
    there("there").check("a b", "1")


def test_over_http_it_is_read_only(tmp_path: Path, small_files: None) -> None:
    local = yoga.Storage(tmp_path / "served" / "my data")
    local.submit(ROWS, "a/b #1", "1%")
    local.submit([1], "c", "1")
    with http_server(tmp_path / "served") as server:
        there = yoga.Storage(f"{server.endpoint}/my%20data", cache_dir=tmp_path / "there")
        assert there.list() == [("a/b #1", "1%"), ("c", "1")]
        assert same(there.fetch("a/b #1", "1%"))
        there.check("a/b #1", "1%")
        with pytest.raises(errors.NotFoundError, match="its versions are"):
            there.fetch("c", "2")
        with pytest.raises(errors.NotFoundError, match=r"the storage holds \['a/b #1', 'c'\]"):
            there.fetch("d", "2")
        for write in (
            lambda: objects_of(there).write("x", b""),
            lambda: there.submit([1], "d", "1"),
            lambda: there.remove("c", "1"),
            lambda: there.clean(),
            lambda: there.cacheable("d", "1")(lambda: [1])(),
        ):
            with pytest.raises(errors.RemoteError, match="can only be read"):
                write()
        assert same(there.copy("a/b #1", "1%", to=yoga.Storage(tmp_path / "copy")))
        (path,) = (local.path / "c" / "1").glob("*.mdb")
        nbytes = path.stat().st_size
        with open(path, "ab") as file:
            file.write(b"x")  # pages of links do not say how large the files are
        store = store_of(there)
        problem = f"{path.name} has {nbytes + 1} bytes, the manifest says {nbytes}"
        assert store.check_files(store.manifest("c", "1")) == [problem]
        os.truncate(path, nbytes)
        whole = path.read_bytes()
        os.truncate(path, nbytes // 2)
        with pytest.raises(errors.CorruptError, match=rf"{path.name} has {nbytes // 2} bytes, the manifest"):
            there.check("c", "1")
        with pytest.raises(errors.CorruptError, match=rf"{path.name} has {nbytes // 2} bytes where {nbytes}"):
            there.fetch("c", "1", download=True)
        path.write_bytes(whole)


def test_an_empty_folder_is_listed_by_one_request(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    remote = objects_of(storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)("here"))
    assert remote.find("nothing") == {}
    assert len(proxy.requests) == 1


def test_threads_and_storages_share_one_download(
    proxy: Proxy, bucket: str, tmp_path: Path, small_files: None
) -> None:
    on = storages(f"s3://{bucket}/p", proxy.storage_options, tmp_path)
    on("here").submit(ROWS, "a", "1")
    proxy.clear()
    refs = [on("there").fetch("a", "1") for _ in range(3)]
    results: list[bool] = []
    at_once(*(lambda ref=ref: results.append(same(ref)) for ref in refs * 2))  # type: ignore[misc]
    assert results == [True] * 6
    names = [request.path for request in proxy.seen("GET", ".mdb")]
    assert len(names) == len(set(names)) == 25


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no modes")
def test_a_cache_that_others_may_only_read(s3: S3, bucket: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        on = storages(f"s3://{bucket}/p", s3.storage_options, Path(name))
        ref = on("here").submit(ROWS, "a", "1")
        files = Path(name, "here", "files")

        def read() -> None:
            if os.geteuid() == 0:  # root may write everywhere
                os.setuid(65534)
            with pytest.raises(PermissionError):
                (files / "new").touch()
            assert same(pickle.loads(pickle.dumps(ref)))

        for path in (Path(name), Path(name, "here"), *Path(name, "here").rglob("*")):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        os.chmod(files, 0o555)
        try:
            assert status_of_child(read) == 0
        finally:
            os.chmod(files, 0o700)
