"""Histories that are copied: what is sent, what is not, and what the copy is like."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import resealed
from stored import data_files, files_below, objects_of, short_lists, store_of
from victims import Victim
from waiting import at_once

import torchyoga as yoga
from torchyoga.errors import CorruptError, ExistsError, NotFoundError
from torchyoga.storage import Storage
from torchyoga.versions.names import natural

pytestmark = pytest.mark.usefixtures("unsynced")
COUNTER = itertools.count()
ROWS = 2000


@pytest.fixture(params=["few", "many"])
def lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a few files and parents make lists, or none."""
    if request.param == "few":
        short_lists(monkeypatch.setitem)
    return str(request.param)


@pytest.fixture(params=["directory", "memory"])
def to(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return new(request.param, tmp_path)


def new(kind: str, folder: Path) -> Storage:
    number = next(COUNTER)
    if kind == "directory":
        return Storage(folder / f"to {number}")
    return Storage(f"memory://transfer-{os.getpid()}-{number}", cache_dir=folder / f"cache {number}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A history of a format, with lists of a kind: each is made once."""
    return cache(lambda format, lists: history(tmp_path_factory.mktemp("built"), format))


@pytest.fixture
def storage(request: pytest.FixtureRequest, built: Callable[[str, str], Path], tmp_path: Path) -> Storage:
    """A copy of a history."""
    lists = request.getfixturevalue("lists") if "lists" in request.fixturenames else "many"
    format = getattr(request, "param", "lmdb")
    return Storage(shutil.copytree(built(format, lists), tmp_path / "from"), format=format)


def history(folder: Path, format: str) -> Path:
    """Versions of appends, deletions, a compaction and an overwritten one, in two lines, some removed."""
    storage = Storage(folder, format=format)
    random = np.random.default_rng(0)

    def more() -> dict[str, Any]:
        return {"x": random.integers(0, 2**60, ROWS)}

    storage.submit(more(), "d", "0", message="the first")
    for number in range(1, 7):
        storage.append(more(), "d", str(number), after=str(number - 1))
    storage.delete_rows("d", "6", rows=[1, ROWS + 5], to="7")
    storage.append(more(), "d", "8", after="7")
    storage.append(more(), "d", "side", after="3")
    storage.append(more(), "d", "side 2", after="side")
    storage.convert("d", "8", to="9")
    storage.submit(more(), "d", "1", overwrite=True)
    storage.tag("d", "prod", "4", message="one")
    storage.tag("d", "prod", "8", message="two")
    storage.tag("d", "gone", "9")
    storage.tag("d", "gone", None, message="a mistake")
    for version in ("2", "6", "side"):
        storage.remove("d", version)
    storage.clean(0)
    return storage.path


left_of = partial(files_below, id="d")


def rows_of(storage: Storage, version: str) -> list[int]:
    ref = storage.fetch("d", version)
    return [x for batch in yoga.DataLoader(ref, batch_size=len(ref)) for x in batch["x"].tolist()]


def same(one: Storage, other: Storage, versions: list[str] | None = None) -> None:
    """Both have the same versions, of the same rows and parents, all whole."""
    versions = one.versions("d") if versions is None else versions
    assert other.versions("d") == sorted(versions, key=natural)
    for version in versions:
        other.check("d", version)
        assert other.fetch("d", version).fingerprint == one.fetch("d", version).fingerprint
        assert rows_of(other, version) == rows_of(one, version)
        here, there = (store_of(storage).manifest("d", version) for storage in (one, other))
        assert there.is_copy_of(here) or here.lineage != there.lineage
        assert tuple(there.parents) == tuple(here.parents)


def moves(storage: Storage, tag: str) -> list[tuple[Any, ...]]:
    return [(e.number, e.version, e.who, e.when, e.message) for e in storage.tags("d", tag)]


@pytest.mark.rest
@pytest.mark.parametrize("storage", ["lmdb", "hdf5"], indirect=True)
def test_a_history_takes_no_more_bytes_there(
    storage: Storage, to: Storage, lists: str, tmp_path: Path
) -> None:
    plan = storage.copy("d", to=to, history=True, dry_run=True)
    assert to.versions("d") == []
    sent = storage.copy("d", to=to, history=True)
    assert sent == plan
    assert [*plan] == [entry.version for entry in reversed(storage.log("d"))]
    same(storage, to)
    before, after = sum(left_of(storage).values()), sum(left_of(to).values())
    assert abs(after - before) < 16 * 2**10
    assert abs(sum(plan.values()) - after) < 64 * 2**10
    assert moves(to, "prod") == moves(storage, "prod")
    assert moves(to, "gone") == moves(storage, "gone")
    assert to.tags("d") == {"prod": "8"}
    keys = [(entry.version, entry.parents, entry.tags, entry.message) for entry in storage.log("d")]
    assert [(entry.version, entry.parents, entry.tags, entry.message) for entry in to.log("d")] == keys
    assert not to.clean(0)
    back = new("directory", tmp_path)
    assert [*to.copy("d", to=back, history=True)] == [*sent]
    same(storage, back)
    assert abs(sum(left_of(back).values()) - before) < 16 * 2**10


@pytest.mark.quick("many-memory")
def test_again_it_sends_what_has_come_since(storage: Storage, lists: str, to: Storage) -> None:
    storage.copy("d", to=to, history=True)
    before = left_of(to)
    stamps = stamps_of(to)
    assert not storage.copy("d", to=to, history=True)
    assert storage.copy("d", to=to, history=True, dry_run=True) == {}
    assert stamps_of(to) == stamps
    storage.append({"x": np.arange(3)}, "d", "10", after="9")
    storage.delete_rows("d", "side 2", rows=[0, 5 * ROWS - 1], to="side 3")
    storage.tag("d", "prod", "10")
    assert sorted(storage.copy("d", to=to, history=True)) == ["10", "side 3"]
    same(storage, to)
    assert to.tags("d") == {"prod": "10"}
    assert sum(left_of(to).values()) - sum(before.values()) < 80 * 2**10
    assert before.items() <= left_of(to).items()


def stamps_of(storage: Storage) -> dict[str, Any]:
    """When what lies in a storage was written, locks and all."""
    if storage.url.startswith("memory"):
        return dict(objects_of(storage).find())
    return {str(path): path.lstat().st_mtime_ns for path in storage.path.rglob("*")}


@pytest.mark.slow("directory")
def test_one_version_and_those_it_was_made_from(storage: Storage, to: Storage) -> None:
    assert [*storage.copy("d", "side 2", to=to, history=True)] == ["0", "3", "side 2"]
    same(storage, to, ["0", "3", "side 2"])
    assert to.tags("d") == {}
    assert [*storage.copy("d", "8", to=to, history=True)] == ["4", "5", "7", "8"]
    assert to.tags("d") == {"prod": "8"}
    with pytest.raises(NotFoundError, match="has no version '6'"):
        storage.copy("d", "6", to=to, history=True)
    with pytest.raises(NotFoundError, match="'e' has no versions in"):
        storage.copy("e", to=to, history=True)
    with pytest.raises(ValueError, match="copy needs a version"):
        storage.copy("d", to=to)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="to must be a Storage"):
        storage.copy("d", history=True)  # type: ignore[call-overload]


@pytest.mark.slow("directory")
def test_other_versions_there(storage: Storage, to: Storage) -> None:
    to.submit([{"x": 1}], "d", "4")
    to.submit([{"x": 2}], "d", "own")
    to.append([{"x": 3}], "d", "own 2", after="4")
    before = left_of(to)
    with pytest.raises(ExistsError, match=r"under 'd' \['4'\] than .*nothing was sent\. Remove these"):
        storage.copy("d", to=to, history=True)
    assert left_of(to) == before
    storage.copy("d", to=to, history=True, overwrite=True)
    to.clean(0)
    assert (rows_of(to, "own"), rows_of(to, "own 2")) == ([2], [1, 3])
    for version in ("own", "own 2"):
        to.remove("d", version)
    to.clean(0)
    same(storage, to)


@pytest.mark.quick("few-memory")
def test_versions_that_were_copied_alone_are_shared_with(storage: Storage, lists: str, to: Storage) -> None:
    for version in ("5", "3"):
        storage.copy("d", version, to=to)
    before = sum(left_of(to).values())
    storage.copy("d", to=to, history=True)
    same(storage, to)
    rows = sum(file.nbytes for file in store_of(storage).manifest("d", "3").files)
    alone = sum(left_of(storage).values())
    assert before > rows
    assert sum(left_of(to).values()) < alone + rows + 16 * 2**10  # those of 3 are twice, as they were before


@pytest.mark.rest
def test_what_was_removed_there_comes_again(storage: Storage, lists: str, to: Storage) -> None:
    """Files stay while others name them, whatever their own version's name is used for."""
    storage.copy("d", to=to, history=True)
    for versions in (["0"], ["3", "5"], ["9"], ["0", "1", "4", "7"], ["8", "side 2"]):
        for version in versions:
            to.remove("d", version, force=True)
        to.clean(0)
        if "3" in versions:  # a plain copy, of other names
            storage.copy("d", "3", to=to)
        assert {*storage.copy("d", to=to, history=True)} == {*versions} - {"3"}
        same(storage, to)
        to.clean(0)
        same(storage, to)


@pytest.mark.rest
def test_versions_that_got_other_names_there(storage: Storage, lists: str, tmp_path: Path) -> None:
    """As where a deleter may be late, and at other times than the versions that they share with."""
    to = new("memory", tmp_path)
    storage.copy("d", "5", to=to, history=True)
    for version in ("3", "4", "5"):
        old, objects = store_of(to).manifest("d", version), objects_of(to)
        anew = old.renamed("f" * 16)
        for one, other in zip(old.own_files, anew.own_files, strict=True):
            name = f"d/{version}/{one.name}"
            objects.write(f"d/{version}/{other.name}", objects.read(name, 2**30))
        objects.write(f"d/{version}/manifest.json", anew.to_bytes())
        to.check("d", version)
    assert {*storage.copy("d", to=to, history=True)} == {*storage.versions("d")} - {"0", "3", "4", "5"}
    same(storage, to)
    for version in ("4", "7"):
        to.remove("d", version, force=True)
    to.clean(0)
    same(storage, to, [version for version in storage.versions("d") if version not in ("4", "7")])
    assert {*storage.copy("d", to=to, history=True)} == {"4", "7"}
    same(storage, to)


@pytest.mark.rest
def test_the_copy_comes_back(storage: Storage, lists: str, tmp_path: Path) -> None:
    """To where files have names that they got when they were built."""
    backups = [new(kind, tmp_path) for kind in ("directory", "memory")]
    for backup in backups:
        storage.copy("d", to=backup, history=True)
    for number, versions in enumerate((["0", "5"], ["3", "7"], ["8", "4", "side 2"])):
        for version in versions:
            storage.remove("d", version, force=True)
        storage.clean(0)
        backup = backups[number % 2]
        assert {*backup.copy("d", to=storage, history=True)} == {*versions}
        same(backup, storage)


ACTS = [*["append"] * 5, "delete", "compact", "remove", "clean", "copy one", *["copy"] * 3]


@pytest.mark.quick("many-*")
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.soak)])
def test_any_history(lists: str, tmp_path: Path, seeds: range) -> None:
    """Random acts in three storages, and copies from each to the others, which send what lacks there."""
    for seed in seeds:
        random, names = np.random.default_rng(seed), map(str, itertools.count(1))
        storages = [new(kind, tmp_path) for kind in ("directory", "directory", "memory")]
        rows = {"0": [0, 1, 2]}
        storages[0].submit({"x": np.arange(3)}, "d", "0")
        for _ in range(50):
            storage, to = (storages[n] for n in random.permutation(3)[:2])
            if not (known := storage.versions("d")):
                continue
            before, there = str(random.choice(known)), to.versions("d")
            what = str(random.choice(ACTS))
            if what == "append":
                more = random.integers(0, 99, 2)
                storage.append({"x": more}, "d", name := next(names), after=before)
                rows[name] = [*rows[before], *more.tolist()]
            elif what == "delete" and len(rows[before]) > 1:
                gone = int(random.integers(len(rows[before])))
                storage.delete_rows("d", before, rows=[gone], to=(name := next(names)))
                rows[name] = rows[before][:gone] + rows[before][gone + 1 :]
            elif what == "compact":
                storage.convert("d", before, to=(name := next(names)))
                rows[name] = rows[before]
            elif what == "remove" and len(known) > 1:
                storage.remove("d", before)
            elif what == "clean":
                storage.clean(0)
            elif what == "copy one":
                storage.copy("d", before, to=to)
            elif what == "copy":
                assert {*storage.copy("d", to=to, history=True)} == {*known} - {*there}
                assert to.versions("d") == sorted({*known, *there}, key=natural)
            for one in (storage, to) if what.startswith("copy") else (storage,):
                for version in one.versions("d"):
                    one.check("d", version)
                    assert rows_of(one, version) == rows[version]
        for storage in storages:
            for version in storage.versions("d"):
                storage.remove("d", version)
            storage.clean(0)
            assert data_files(storage, "d") == []


# -- tags


@pytest.mark.slow("directory")
def test_tags_that_were_moved_at_both_ends(
    storage: Storage, to: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    storage.copy("d", to=to, history=True)
    to.tag("d", "prod", "3")
    ahead = moves(to, "prod")
    assert not storage.copy("d", to=to, history=True)
    assert moves(to, "prod") == ahead
    assert caplog.records == []
    storage.tag("d", "prod", "5")
    storage.tag("d", "new", "5")
    with caplog.at_level(logging.WARNING):
        storage.copy("d", to=to, history=True)
    assert [r.getMessage() for r in caplog.records] == [
        f"the tag 'prod' of 'd' was moved in {to.url}, too, so it stays as it is there; move it there"
    ]
    assert moves(to, "prod") == ahead
    assert moves(to, "new") == moves(storage, "new")


def test_a_damaged_note_stays_behind(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = new("directory", tmp_path)
    next(storage.path.glob(".tags/d/prod/00000001.json")).write_bytes(b"{}")
    with caplog.at_level(logging.WARNING):
        storage.copy("d", to=to, history=True)
    assert "the tag 'prod' of 'd' is not copied: the note" in caplog.text
    same(storage, to)
    assert to.tags("d") == {}


# -- interrupted, and beside others


@pytest.mark.parametrize("every", [35, pytest.param(7, marks=pytest.mark.soak)])
def test_killed_at_any_step_it_goes_on(tmp_path: Path, every: int) -> None:
    storage = Storage(tmp_path / "from")
    storage.submit({"x": np.arange(3)}, "d", "0")
    storage.append({"x": np.arange(2)}, "d", "1", after="0")
    storage.append({"x": np.arange(2)}, "d", "2", after="1")
    storage.tag("d", "prod", "2")
    storage.remove("d", "1", force=True)
    ended = Victim(lambda: storage.copy("d", to=Storage(tmp_path / "whole"), history=True)).end()
    assert ended is not None
    for step in range(1, ended[0] + 1, every):
        to = Storage(tmp_path / f"to {step}")
        assert Victim(lambda to=to: storage.copy("d", to=to, history=True), step).end() is None  # type: ignore[misc]
        for version in to.versions("d"):
            to.check("d", version)
        if step % 2:
            to.clean(0)
        storage.copy("d", to=to, history=True)
        same(storage, to)
        assert to.tags("d") == {"prod": "2"}
        to.clean(0)
        assert len(left_of(to)) == len(left_of(storage))


def beside(to: Storage, act: Callable[[str], object]) -> None:
    """Does something each time before a version is received there."""
    receive = store_of(to).receive

    def late(manifest: Any, *more: Any) -> Any:
        act(manifest.version)
        return receive(manifest, *more)

    store_of(to).receive = late


def once(act: Callable[[], object]) -> Callable[[str], object]:
    left = ["one"]
    return lambda _: act() if left and left.pop() else None


@pytest.mark.rest
@pytest.mark.parametrize("there", [["0"], ["0", "3"]])
def test_versions_are_removed_there_meanwhile(
    storage: Storage, there: list[str], lists: str, to: Storage
) -> None:
    storage.copy("d", "3", to=to, history=True)

    def removed() -> None:
        for version in there:
            Storage.remove(to, "d", version)
        to.clean(0)

    beside(to, once(removed))
    storage.copy("d", to=to, history=True)
    to.clean(0)
    same(storage, to, [v for v in storage.versions("d") if v not in there])
    assert [*storage.copy("d", to=to, history=True)] == [*there]
    same(storage, to)


@pytest.mark.slow("directory")
def test_versions_change_here_meanwhile(storage: Storage, to: Storage) -> None:
    def changed() -> None:
        storage.remove("d", "5")
        storage.submit({"x": np.arange(5)}, "d", "4", overwrite=True)
        storage.append({"x": np.arange(5)}, "d", "10", after="9")
        storage.clean(0)

    beside(to, once(changed))
    assert "5" not in storage.copy("d", to=to, history=True)
    assert rows_of(to, "4") == [*range(5)]
    assert [*storage.copy("d", to=to, history=True)] == ["10"]
    same(storage, to)
    storage.append({"x": np.arange(5)}, "d", "11", after="10")
    beside(to, once(lambda: storage.remove("d", "11")))
    with pytest.raises(NotFoundError, match=r"'11' in .* was removed while it was copied"):
        storage.copy("d", "11", to=to, history=True)


@pytest.mark.quick("many-memory")
def test_two_copies_at_once(storage: Storage, lists: str, to: Storage) -> None:
    found: list[list[str]] = []
    at_once(*[lambda: found.append(storage.copy("d", to=to, history=True))] * 3)
    assert sorted(itertools.chain(*found), key=natural) == storage.versions("d")
    same(storage, to)
    assert abs(sum(left_of(to).values()) - sum(left_of(storage).values())) < 16 * 2**10


# -- damaged and forged


@pytest.mark.slow("directory")
@pytest.mark.damages("the versions that it damages")
def test_damaged_files_and_manifests_are_not_sent(storage: Storage, to: Storage, tmp_path: Path) -> None:
    path = next(file for file in (storage.path / "d" / "5").glob("*.mdb"))
    data = path.read_bytes()
    path.write_bytes(bytes(byte ^ 1 for byte in data))
    with pytest.raises(CorruptError, match="nothing was published"):
        storage.copy("d", to=to, history=True)
    assert "5" not in to.versions("d")
    path.write_bytes(data)
    manifest = storage.path / "d" / "7" / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text[:-9])
    other = new("directory", tmp_path)
    with pytest.raises(CorruptError, match="damaged"):
        storage.copy("d", to=other, history=True)
    assert other.versions("d") == []
    assert [*storage.copy("d", "side 2", to=other, history=True)] == ["0", "3", "side 2"]
    manifest.write_bytes(text)
    storage.copy("d", to=other, history=True)
    same(storage, other)


@pytest.mark.damages("the version that it forges")
def test_a_version_that_lies_about_a_file_that_was_sent(to: Storage, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "from")
    storage.submit({"x": np.arange(2)}, "d", "0")
    storage.submit({"x": np.arange(2, 4)}, "e", "0")
    storage.append({"x": np.arange(2)}, "d", "1", after="0")
    storage.append({"x": np.arange(2)}, "e", "1", after="0")
    path = storage.path / "d" / "1" / "manifest.json"
    content = json.loads(path.read_bytes())
    other = json.loads((storage.path / "e" / "1" / "manifest.json").read_bytes())
    content["files"][0]["checks"] = other["files"][0]["checks"]
    content["fingerprint"] = other["fingerprint"]
    path.write_bytes(resealed(content))
    with pytest.raises(CorruptError, match="nothing was published"):
        storage.copy("d", to=to, history=True)
    assert to.versions("d") == ["0"]


def test_the_progress_is_shown(storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = new("directory", tmp_path)
    storage.copy("d", to=to, history=True, progress=True)
    assert f"copying {len(to.versions('d'))} versions to {to.url}: 100%" in capsys.readouterr().err


def test_a_storage_of_one_name_is_a_copy_of_itself(storage: Storage, tmp_path: Path) -> None:
    assert not storage.copy("d", to=storage, history=True)
    assert isinstance(storage.copy("d", "8", to=yoga.Storage(tmp_path / "plain")), yoga.DataRef)
