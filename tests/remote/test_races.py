"""A builder that stood still while others went on: one name never has two versions, and all are whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import S3, Gcs

import torchyoga as yoga
from torchyoga import errors
from torchyoga.lease import Lease
from torchyoga.remote import Remote

OURS, THEIRS, LATEST = [1, 2, 3], [4, 5], [6]
LEASE = 1
Machine = Callable[[str], yoga.Storage]


@pytest.fixture(autouse=True)
def standing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No builder shows any life, as if it were stopped; each call takes its time none the less."""
    monkeypatch.setattr(Lease, "_live", lambda lease: None)


@pytest.fixture(params=["s3", "gcs", "memory"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    url, options = f"memory://{uuid.uuid4().hex}/p", None
    if request.param != "memory":
        server: S3 | Gcs = request.getfixturevalue(request.param)
        url = f"{ {'s3': 's3', 'gcs': 'gs'}[request.param] }://{server.new_bucket()}/p"
        options = server.storage_options
    return lambda name: yoga.Storage(
        url, storage_options=options, cache_dir=tmp_path / name, lease_seconds=LEASE, timeout=60
    )


def cleaned(storage: yoga.Storage) -> None:
    """Once the builder counts as dead."""
    time.sleep(2 * LEASE + 1.5)  # stores count whole seconds
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


def test_who_submits_is_told_that_another_was_faster(machine: Machine) -> None:
    first, second = machine("first"), machine("second")

    def rows() -> list[int]:
        cleaned(second)
        second.submit(THEIRS, "a", "1")
        return OURS

    with pytest.raises(
        errors.ExistsError, match=r"was published in .* by another in the meantime; fetch that"
    ):
        first.submit(rows, "a", "1")
    whole(first, THEIRS)


@pytest.mark.parametrize("act", ["overwrite", "convert", "copy"])
def test_what_others_have_published_meanwhile_is_not_replaced(
    act: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stands still just before it replaces the manifest."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    local = yoga.Storage(tmp_path / "local")
    local.submit(OURS, "a", "1")
    replace, stopped = Remote.replace, []

    def replace_late(self: Remote, *args: Any) -> None:
        if not stopped:
            stopped.append(True)
            time.sleep(LEASE + 0.5)
            second.submit(LATEST, "a", "1", overwrite=True)
        replace(self, *args)

    monkeypatch.setattr(Remote, "replace", replace_late)
    acts: dict[str, Callable[[], Any]] = {
        "overwrite": lambda: first.submit(OURS, "a", "1", overwrite=True),
        "convert": lambda: first.convert("a", "1", format="hdf5"),
        "copy": lambda: local.copy("a", "1", first, overwrite=True),
    }
    with pytest.raises(errors.ExistsError, match=r"was published in .* by another in the meantime"):
        acts[act]()
    assert stopped
    whole(machine("other"), LATEST)


def test_a_manifest_that_is_replaced_between_the_look_and_the_write_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a store's own condition can tell."""
    first, second = machine("first"), machine("second")
    second.submit(THEIRS, "a", "1")
    replace, stopped = Remote.replace, []

    def replace_late(self: Remote, name: str, data: bytes, tag: Any, is_seen: Callable[[], bool]) -> None:
        def look() -> bool:
            found = is_seen()
            if not stopped:
                stopped.append(True)
                time.sleep(LEASE + 0.5)
                second.submit(LATEST, "a", "1", overwrite=True)
            return found

        replace(self, name, data, tag, look)

    monkeypatch.setattr(Remote, "replace", replace_late)
    with pytest.raises(errors.ExistsError, match="by another in the meantime"):
        first.submit(OURS, "a", "1", overwrite=True)
    assert stopped
    whole(machine("other"), LATEST)


@pytest.mark.parametrize("how", ["removed", "cleaned"])
def test_files_that_others_take_away_are_not_published(
    how: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stands still between its files and its manifest."""
    first, second = machine("first"), machine("second")
    create, stopped = Remote.create, []

    def create_late(self: Remote, name: str, data: bytes) -> None:
        if name == "a/1/manifest.json" and not stopped:
            stopped.append(True)
            if how == "cleaned":
                cleaned(second)
            else:
                time.sleep(LEASE + 0.5)
                second.submit(THEIRS, "a", "1")
                second.remove("a", "1")
        create(self, name, data)

    monkeypatch.setattr(Remote, "create", create_late)
    if how == "cleaned":
        with pytest.raises(errors.YogaError, match=r"were removed from .* while it was published"):
            first.submit(OURS, "a", "1")
        assert machine("other").list() == []
        first.submit(OURS, "a", "1")
    else:  # what it had uploaded was not the other's to remove
        assert list(first.submit(OURS, "a", "1")) == OURS
    whole(machine("other"), OURS)


def test_a_mark_that_somebody_left_who_died_hinders_nobody(machine: Machine, tmp_path: Path) -> None:
    """Before its files come, and beside them."""
    local, storage = yoga.Storage(tmp_path / "local"), machine("first")
    local.submit(OURS, "a", "1")
    (data,) = (tmp_path / "local" / "a" / "1").glob("*.mdb")
    mark = f"a/1/{data.name[:16]}-99999.replaced"
    remote = storage._store._remote  # type: ignore[attr-defined]
    for _ in range(2):
        remote.write(mark, b"")
        local.copy("a", "1", storage)
        whole(storage, OURS)
    cleaned(machine("second"))
    assert mark not in remote.find()
    whole(machine("other"), OURS)


def test_claims_are_numbered_on_after_a_clean(machine: Machine) -> None:
    storage = machine("first")
    storage.submit(OURS, "a", "1")
    cleaned(storage)
    storage.submit(THEIRS, "a", "1", overwrite=True)
    remote = storage._store._remote  # type: ignore[attr-defined]
    assert list(remote.find(".leases")) == ["a/1/00000002.json"]
