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
from stored import objects_of, store_of, watched
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga import errors
from torchyoga.stores.objects import ObjectInfo, Objects

OURS, THEIRS, LATEST = [1, 2, 3], [4, 5], [6]
LEASE = 1
Machine = Callable[[str], yoga.Storage]


@pytest.fixture
def machine(place: tuple[str, Any], tmp_path: Path) -> Machine:
    """A storage on a machine of that name, with a cache of its own.

    It shows no sign of life while it builds, as if it were stopped; but each call takes as long as ever.
    """
    return lambda name: watched(place, tmp_path / name, LEASE, is_silent=True)


class Stall:
    """A machine stands still before the first request of a kind, while others do something.

    Others that need its lease wait until it counts as dead.

    Args:
        storage: of the machine.
        request: a method of `Objects`.
        meanwhile: what others do.
        ending: of one of the objects' names.
    """

    def __init__(
        self, storage: yoga.Storage, request: str, meanwhile: Callable[[], object], ending: str = ""
    ) -> None:
        self.has_begun = False

        def late(send: Callable[..., Any], what: str | Iterable[str], *rest: Any) -> Any:
            what = what if isinstance(what, str) else list(what)
            names = [what] if isinstance(what, str) else what
            if not self.has_begun and any(name.endswith(ending) for name in names):
                self.has_begun = True
                meanwhile()
            return send(what, *rest)

        objects_of(storage).instead[request] = late


def cleaned(storage: yoga.Storage) -> None:
    """Cleans once the builder counts as dead by the store's clock, which may count whole seconds."""
    remote: Objects = objects_of(storage)
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


@pytest.mark.parametrize("act", ["overwrite", "convert", "copy"])
def test_a_manifest_that_is_replaced_between_the_look_and_the_write_stays(
    act: str, machine: Machine, tmp_path: Path
) -> None:
    """Only a condition that the store itself checks can detect it."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    stopped = []

    def replace_late(
        replace: Callable[..., bool], name: str, data: bytes, tag: Any, is_seen: Callable[[], bool]
    ) -> bool:
        def look() -> bool:
            found = is_seen()
            if not stopped:
                stopped.append(True)
                second.submit(LATEST, "a", "1", overwrite=True)  # once the first counts as dead
            return found

        return replace(name, data, tag, look)

    objects_of(first).instead["replace"] = replace_late
    acts: dict[str, Callable[[], Any]] = {
        "overwrite": lambda: first.submit(OURS, "a", "1", overwrite=True),
        "convert": lambda: first.convert("a", "1", format="hdf5"),
        "copy": lambda: local.copy("a", "1", first, overwrite=True),
    }
    with pytest.raises(
        errors.ExistsError, match=r"was published in .* by another builder meanwhile; fetch that"
    ):
        acts[act]()
    assert stopped
    whole(machine("other"), LATEST)


@pytest.mark.parametrize(
    ("late", "what"), [("create", "cleaned"), ("replace", "cleaned"), ("replace", "held")]
)
def test_files_that_others_delete_are_sent_again(
    late: str, what: str, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The first stalls between its files and its manifest, and counts as dead; others clean, or hold the
    lease for a moment."""
    first, second = machine("first"), machine("second")
    is_there = late == "replace"
    if is_there:
        second.submit(THEIRS, "a", "1")
        # Long ago a process that deleted was taken over.
        silent = {"holder": "process 7 on mars", "given_up": False, "beat": "x", "deleter": 2}
        objects_of(second).write(".leases/a/1/00000002.json", json.dumps(silent).encode())

    def meanwhile() -> None:
        if what == "cleaned":
            cleaned(second)
        else:
            with store_of(second).lock("a", "1", PATIENCE):
                pass

    stall = Stall(first, late, meanwhile, "a/1/manifest.json")
    assert list(first.submit(OURS, "a", "1", overwrite=is_there)) == OURS
    assert stall.has_begun
    assert ("sending them again" in caplog.text) == (what == "cleaned")
    assert {record.name for record in caplog.records} == {"torchyoga"}
    whole(machine("other"), OURS)


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_version_that_is_removed_once_it_is_published_is_not_sent_again(what: str, tmp_path: Path) -> None:
    """The first stalls just after it has created the manifest."""
    place = f"memory://{uuid.uuid4().hex}", None
    first, second = (watched(place, tmp_path / name, 0.1, is_silent=True) for name in ("first", "second"))
    stopped = []

    def create_and_stall(create: Callable[[str, bytes], bool], name: str, data: bytes) -> bool:
        is_new = create(name, data)
        if name == "a/1/manifest.json" and not stopped:
            stopped.append(True)
            second.remove("a", "1")
            if what == "replaced":
                second.submit(THEIRS, "a", "1")
        return is_new

    objects_of(first).instead["create"] = create_and_stall
    first.submit(OURS, "a", "1")
    assert stopped
    if what == "removed":
        assert second.list() == []
    else:
        whole(second, THEIRS)


@pytest.mark.parametrize("how", ["remove", "clean"])
def test_a_machine_that_stalled_deletes_nothing_published_since(
    how: str, machine: Machine, tmp_path: Path
) -> None:
    """A copy has the same build each time, so the other may be about to delete files with these names."""
    first, second = machine("first"), machine("second")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    local.copy("a", "1", first)
    if how == "clean":
        objects_of(first).delete(["a/1/manifest.json"])
        time.sleep(1.1)  # stores count whole seconds
    stall = Stall(first, "delete", lambda: local.copy("a", "1", second), ".mdb")
    if how == "remove":
        first.remove("a", "1")
    else:
        first.clean(0)
    assert stall.has_begun
    whole(machine("other"), OURS)
    assert local.copy("a", "1", second).fingerprint == local.fetch("a", "1").fingerprint


def test_clean_spares_files_uploaded_after_it_was_taken_over(machine: Machine, tmp_path: Path) -> None:
    """It stalls before it lists the files, and then lists those of a copy that is not published yet, as old
    ones: the store counts whole seconds."""
    first, second = machine("first"), machine("second")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    objects_of(first).write("a/1/0123456789abcdef-00000.mdb", b"left")
    stands, go = threading.Event(), threading.Event()
    cleaner = threading.Thread(target=first.clean, args=(0,))

    def find_late(find: Callable[[str], dict[str, ObjectInfo]], folder: str = "") -> dict[str, ObjectInfo]:
        if folder == "a/1":
            stands.set()
            assert go.wait(PATIENCE)
        return {name: ObjectInfo(found.nbytes, 0.0, found.tag) for name, found in find(folder).items()}

    def create_late(create: Callable[[str, bytes], bool], name: str, data: bytes) -> bool:
        if name == "a/1/manifest.json":
            go.set()
            cleaner.join(PATIENCE)
        return create(name, data)

    objects_of(first).instead["find"] = find_late
    objects_of(second).instead["create"] = create_late
    cleaner.start()
    try:
        assert stands.wait(PATIENCE)
        local.copy("a", "1", second)  # once the first counts as dead
    finally:
        go.set()
        cleaner.join(PATIENCE)
    whole(machine("other"), OURS)
