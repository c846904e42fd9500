"""A builder that stalls while others go on: one name never has two versions, and all are whole."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from stored import objects_of, store_of
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga import errors
from torchyoga.stores.lease import Lease
from torchyoga.stores.objects import Remote

OURS, THEIRS, LATEST = [1, 2, 3], [4, 5], [6]
LEASE = 1
Machine = Callable[[str], yoga.Storage]


@pytest.fixture(autouse=True)
def standing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No builder shows signs of life, as if it were stopped; but each call takes as long as ever."""
    monkeypatch.setattr(Lease, "_live", lambda lease: None)


@pytest.fixture
def machine(place: tuple[str, Any], tmp_path: Path) -> Machine:
    """A storage on a machine of that name, with a cache of its own."""
    url, options = place
    return lambda name: yoga.Storage(
        url, storage_options=options, cache_dir=tmp_path / name, lease_seconds=LEASE, timeout=60
    )


class Stall:
    """The machine that sends a request stands still before the first of its kind, while others do something.

    Others that need its lease wait until it counts as dead.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.has_begun = False

    def before(self, request: str, meanwhile: Callable[[], object], ending: str = "") -> Stall:
        """Before a method of `Remote`, of objects one of whose names has this ending."""
        send = getattr(Remote, request)

        def send_late(remote: Remote, what: str | Iterable[str], *rest: Any) -> None:
            what = what if isinstance(what, str) else list(what)
            names = [what] if isinstance(what, str) else what
            if not self.has_begun and any(name.endswith(ending) for name in names):
                self.has_begun = True
                meanwhile()
            send(remote, what, *rest)

        self._patch.setattr(Remote, request, send_late)
        return self


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Stall:
    return Stall(monkeypatch)


def cleaned(storage: yoga.Storage) -> None:
    """Cleans once the builder counts as dead by the store's clock, which may count whole seconds."""
    remote: Remote = objects_of(storage)
    claimed = max(claim.written or 0.0 for claim in remote.find(".leases").values())
    eventually(lambda: (remote.now() or 0.0) - claimed > LEASE + 1)
    storage.clean(0)


def whole(storage: yoga.Storage, rows: list[int]) -> None:
    assert list(storage.fetch("a", "1")) == rows
    storage.check("a", "1")


def test_a_builder_taken_for_dead_publishes_nothing_over_another(machine: Machine) -> None:
    first, second = machine("first"), machine("second")

    def rows(is_first: bool) -> list[int]:
        if is_first:
            cleaned(machine("third"))
            assert list(second.cacheable("a", "1", ignore=["is_first"])(rows)(False)) == THEIRS
        return OURS if is_first else THEIRS

    assert list(first.cacheable("a", "1", ignore=["is_first"])(rows)(True)) == THEIRS
    for storage in (first, second, machine("other")):
        whole(storage, THEIRS)


def test_submit_raises_if_another_machine_was_faster(machine: Machine) -> None:
    first, second = machine("first"), machine("second")

    def rows() -> list[int]:
        cleaned(second)
        second.submit(THEIRS, "a", "1")
        return OURS

    with pytest.raises(
        errors.ExistsError, match=r"was published in .* by another builder meanwhile; fetch that"
    ):
        first.submit(rows, "a", "1")
    whole(first, THEIRS)


@pytest.mark.parametrize("act", ["overwrite", "convert", "copy"])
def test_a_version_published_meanwhile_is_not_replaced(
    act: str, machine: Machine, stall: Stall, tmp_path: Path
) -> None:
    """The first stalls just before it replaces the manifest."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    stall.before("replace", lambda: second.submit(LATEST, "a", "1", overwrite=True))
    acts: dict[str, Callable[[], Any]] = {
        "overwrite": lambda: first.submit(OURS, "a", "1", overwrite=True),
        "convert": lambda: first.convert("a", "1", format="hdf5"),
        "copy": lambda: local.copy("a", "1", first, overwrite=True),
    }
    with pytest.raises(errors.ExistsError, match=r"was published in .* by another builder meanwhile"):
        acts[act]()
    assert stall.has_begun
    whole(machine("other"), LATEST)


def test_a_manifest_that_is_replaced_between_the_look_and_the_write_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a condition that the store itself checks can detect it."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    replace, stopped = Remote.replace, []

    def replace_late(self: Remote, name: str, data: bytes, tag: Any, is_seen: Callable[[], bool]) -> None:
        def look() -> bool:
            found = is_seen()
            if not stopped:
                stopped.append(True)
                second.submit(LATEST, "a", "1", overwrite=True)  # once the first counts as dead
            return found

        replace(self, name, data, tag, look)

    monkeypatch.setattr(Remote, "replace", replace_late)
    with pytest.raises(errors.ExistsError, match="by another builder meanwhile"):
        first.submit(OURS, "a", "1", overwrite=True)
    assert stopped
    whole(machine("other"), LATEST)


@pytest.mark.parametrize("how", ["removed", "cleaned"])
def test_files_that_others_delete_are_sent_again(how: str, machine: Machine, stall: Stall) -> None:
    """The first stalls between its files and its manifest."""
    first, second = machine("first"), machine("second")

    def meanwhile() -> None:
        if how == "cleaned":
            cleaned(second)
        else:
            second.submit(THEIRS, "a", "1")
            second.remove("a", "1")

    stall.before("create", meanwhile, "a/1/manifest.json")
    # The other one must not remove what this one has uploaded; files that were cleaned are sent again.
    assert list(first.submit(OURS, "a", "1")) == OURS
    assert stall.has_begun
    whole(machine("other"), OURS)


@pytest.mark.parametrize("what", ["cleaned", "nothing"])
def test_an_overwrite_whose_builder_was_taken_for_dead_loses_no_version(
    what: str, machine: Machine, stall: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    """It stalls just before it replaces the manifest; others clean, or hold the lease for a moment."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    # Long ago a process that deleted was taken over.
    remote = objects_of(second)
    silent = {"holder": "process 7 on mars", "given_up": False, "beat": "x", "deleter": 2}
    remote.write(".leases/a/1/00000002.json", json.dumps(silent).encode())

    def meanwhile() -> None:
        if what == "cleaned":
            cleaned(second)
        else:
            with store_of(second).lock("a", "1", PATIENCE):
                pass

    stall.before("replace", meanwhile)
    assert list(first.submit(OURS, "a", "1", overwrite=True)) == OURS
    assert stall.has_begun
    assert ("sending them again" in caplog.text) == (what == "cleaned")
    assert {record.name for record in caplog.records} == {"torchyoga"}
    whole(machine("other"), OURS)


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_version_that_is_removed_once_it_is_published_is_not_sent_again(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stalls just after it has created the manifest."""
    url = f"memory://{uuid.uuid4().hex}"
    first, second = (yoga.Storage(url, cache_dir=tmp_path / name, timeout=60) for name in ("first", "second"))
    for storage in (first, second):
        store_of(storage)._lease_seconds = 0.1
    create, stopped = Remote.create, []

    def create_and_stall(self: Remote, name: str, data: bytes) -> None:
        create(self, name, data)
        if name == "a/1/manifest.json" and not stopped:
            stopped.append(True)
            second.remove("a", "1")
            if what == "replaced":
                second.submit(THEIRS, "a", "1")

    monkeypatch.setattr(Remote, "create", create_and_stall)
    first.submit(OURS, "a", "1")
    assert stopped
    if what == "removed":
        assert second.list() == []
    else:
        whole(second, THEIRS)


def test_claims_are_numbered_on_after_a_clean(machine: Machine) -> None:
    storage = machine("first")
    storage.submit(OURS, "a", "1")
    cleaned(storage)
    storage.submit(THEIRS, "a", "1", overwrite=True)
    remote = objects_of(storage)
    assert list(remote.find(".leases")) == ["a/1/00000002.json"]


@pytest.mark.parametrize("how", ["remove", "clean"])
def test_a_machine_that_stalled_deletes_nothing_published_since(
    how: str, machine: Machine, stall: Stall, tmp_path: Path
) -> None:
    """A copy has the same build each time, so the other may be about to delete files with these names."""
    first, second = machine("first"), machine("second")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    local.copy("a", "1", first)
    if how == "clean":
        objects_of(first).delete(["a/1/manifest.json"])
        time.sleep(1.1)  # stores count whole seconds
    stall.before("delete", lambda: local.copy("a", "1", second), ".mdb")
    if how == "remove":
        first.remove("a", "1")
    else:
        first.clean(0)
    assert stall.has_begun
    whole(machine("other"), OURS)
    assert local.copy("a", "1", second).fingerprint == local.fetch("a", "1").fingerprint


def test_an_interrupted_build_is_not_continued_with_what_another_deletes(
    machine: Machine, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are uploaded; a process that cleans has listed them, and stalls."""
    first, second = machine("first"), machine("second")
    create = Remote.create

    def fail(self: Remote, name: str, data: bytes) -> None:
        if name.endswith("manifest.json"):
            raise errors.RemoteError("no network")
        create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "create", fail)
        with pytest.raises(errors.RemoteError):
            second.submit(OURS, "a", "1")
    time.sleep(1.1)
    stall.before("delete", lambda: second.submit(OURS, "a", "1"), ".mdb")
    first.clean(0)
    assert stall.has_begun
    whole(machine("other"), OURS)


def test_a_builder_that_counted_as_dead_does_not_trust_files_in_the_store(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is about to delete its files, which still exist when it looks."""
    first, second = machine("first"), machine("second")
    create, delete = Remote.create, Remote.delete
    go, about = threading.Event(), threading.Event()
    cleaner = threading.Thread(target=second.clean, args=(0,))

    def delete_late(self: Remote, names: Iterable[str]) -> None:
        meant = list(names)
        if any(name.endswith(".mdb") for name in meant):
            about.set()
            assert go.wait(PATIENCE)
        delete(self, meant)

    def create_late(self: Remote, name: str, data: bytes) -> None:
        if name == "a/1/manifest.json" and not about.is_set():
            time.sleep(2 * LEASE + 1.5)  # it counts as dead; stores count whole seconds
            cleaner.start()
            assert about.wait(PATIENCE)
            threading.Timer(LEASE / 2, go.set).start()
        create(self, name, data)

    monkeypatch.setattr(Remote, "create", create_late)
    monkeypatch.setattr(Remote, "delete", delete_late)
    try:
        first.submit(OURS, "a", "1")
    except errors.LostError:
        first.submit(OURS, "a", "1")
    finally:
        go.set()
        cleaner.join(PATIENCE)
    whole(machine("other"), OURS)


def test_clean_spares_files_uploaded_after_it_was_taken_over(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stalls before it lists the files, and then lists those of a copy that is not published yet."""
    first, second = machine("first"), machine("second")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    objects_of(first).write("a/1/0123456789abcdef-00000.mdb", b"left")
    find, create = Remote.find, Remote.create
    stands, go = threading.Event(), threading.Event()
    cleaner = threading.Thread(target=first.clean, args=(0,))

    def find_late(self: Remote, folder: str = "") -> Any:
        if folder == "a/1" and threading.current_thread() is not threading.main_thread():
            stands.set()
            assert go.wait(PATIENCE)
        return find(self, folder)

    def create_late(self: Remote, name: str, data: bytes) -> None:
        if name == "a/1/manifest.json":
            go.set()
            cleaner.join(PATIENCE)
        create(self, name, data)

    monkeypatch.setattr(Remote, "find", find_late)
    monkeypatch.setattr(Remote, "create", create_late)
    monkeypatch.setattr("torchyoga.stores.mirror._is_before", lambda found, time: True)
    cleaner.start()
    try:
        assert stands.wait(PATIENCE)
        local.copy("a", "1", second)  # once the first counts as dead
    finally:
        go.set()
        cleaner.join(PATIENCE)
    whole(machine("other"), OURS)
