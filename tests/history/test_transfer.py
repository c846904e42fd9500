"""Versions of long histories that are copied: what the copy is like, and what is refused."""

from __future__ import annotations

import itertools
import json
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

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
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


@pytest.mark.parametrize("storage", ["lmdb", "hdf5"], indirect=True)
def test_each_version_is_copied_whole(storage: Storage, lists: str, to: Storage) -> None:
    for version in reversed(storage.versions("d")):
        storage.copy("d", version, to=to)
        assert isinstance(storage.copy("d", version, to=to), yoga.DataRef)  # which sends nothing
    same(storage, to)
    for version in ("0", "1", "3", "5", "7"):
        to.remove("d", version)
    to.clean(0)
    same(storage, to, ["4", "8", "9", "side 2"])


def test_any_tool_copies_a_history(storage: Storage, lists: str, to: Storage) -> None:
    """Versions and tags, which share files there as they do here."""
    for path in sorted(storage.path.rglob("*"), key=lambda path: path.name == "manifest.json"):
        name = path.relative_to(storage.path).as_posix()
        if path.is_file() and name.startswith(("d/", ".tags/")):
            if to.url.startswith("memory"):
                objects_of(to).write(name, path.read_bytes())
            else:
                (to.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to.path / name)
    same(storage, to)
    assert to.tags("d") == storage.tags("d")
    assert [entry.message for entry in to.tags("d", "prod")] == ["one", "two"]
    to.append({"x": np.arange(5)}, "d", "10", after="9")
    for version in ("0", "3", "9"):
        to.remove("d", version, force=True)
    to.clean(0)
    assert rows_of(to, "10") == [*rows_of(storage, "9"), *range(5)]
    to.remove("d", "10")
    same(storage, to, [v for v in storage.versions("d") if v not in ("0", "3", "9")])


ACTS = [*["append"] * 5, "delete", "compact", "remove", "clean", *["copy"] * 4]


@pytest.mark.quick("many-*")
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.soak)])
def test_any_history(lists: str, tmp_path: Path, seeds: range) -> None:
    """Random acts in three storages, and copies from each to the others."""
    for seed in seeds:
        random, names = np.random.default_rng(seed), map(str, itertools.count(1))
        storages = [new(kind, tmp_path) for kind in ("directory", "directory", "memory")]
        rows = {"0": [0, 1, 2]}
        storages[0].submit({"x": np.arange(3)}, "d", "0")
        for _ in range(50):
            storage, to = (storages[n] for n in random.permutation(3)[:2])
            if not (known := storage.versions("d")):
                continue
            before = str(random.choice(known))
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
            elif what == "copy":
                storage.copy("d", before, to=to)
            for one in (storage, to) if what == "copy" else (storage,):
                for version in one.versions("d"):
                    one.check("d", version)
                    assert rows_of(one, version) == rows[version]
        for storage in storages:
            for version in storage.versions("d"):
                storage.remove("d", version)
            storage.clean(0)
            assert data_files(storage, "d") == []


@pytest.mark.parametrize("every", [35, pytest.param(7, marks=pytest.mark.soak)])
def test_killed_at_any_step_it_goes_on(tmp_path: Path, every: int) -> None:
    storage = Storage(tmp_path / "from")
    storage.submit({"x": np.arange(3)}, "d", "0")
    storage.append({"x": np.arange(2)}, "d", "1", after="0")
    storage.append({"x": np.arange(2)}, "d", "2", after="1")
    storage.remove("d", "1")
    ended = Victim(lambda: len(storage.copy("d", "2", to=Storage(tmp_path / "whole")))).end()
    assert ended is not None
    for step in range(1, ended[0] + 1, every):
        to = Storage(tmp_path / f"to {step}")
        assert Victim(lambda to=to: len(storage.copy("d", "2", to=to)), step).end() is None  # type: ignore[misc]
        for version in to.versions("d"):
            to.check("d", version)
        if step % 2:
            to.clean(0)
        storage.copy("d", "2", to=to)
        same(storage, to, ["2"])
        to.clean(0)
        assert len(left_of(to)) == len(left_of(Storage(tmp_path / "whole")))


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


@pytest.mark.slow("directory")
def test_a_version_changes_here_meanwhile(storage: Storage, to: Storage) -> None:
    beside(to, once(lambda: storage.submit({"x": np.arange(5)}, "d", "9", overwrite=True)))
    storage.copy("d", "9", to=to)
    assert rows_of(to, "9") == rows_of(storage, "9") == [*range(5)]
    storage.append({"x": np.arange(5)}, "d", "11", after="9")
    beside(to, once(lambda: storage.remove("d", "11")))
    with pytest.raises(NotFoundError, match=r"'11' in .* was removed while it was copied"):
        storage.copy("d", "11", to=to)


# -- damaged and forged


@pytest.mark.slow("directory")
@pytest.mark.damages("the versions that it damages")
def test_damaged_files_and_manifests_are_not_sent(storage: Storage, to: Storage) -> None:
    path = next(file for file in (storage.path / "d" / "5").glob("*.mdb"))
    data = path.read_bytes()
    path.write_bytes(bytes(byte ^ 1 for byte in data))
    with pytest.raises(CorruptError, match="nothing was published"):
        storage.copy("d", "5", to=to)
    path.write_bytes(data)
    manifest = storage.path / "d" / "7" / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text[:-9])
    with pytest.raises(CorruptError, match="damaged"):
        storage.copy("d", "7", to=to)
    assert to.versions("d") == []
    storage.copy("d", "side 2", to=to)
    manifest.write_bytes(text)
    storage.copy("d", "7", to=to)
    same(storage, to, ["7", "side 2"])


@pytest.mark.damages("the version that it forges")
def test_a_version_that_lies_about_a_file_of_another(to: Storage, tmp_path: Path) -> None:
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
        storage.copy("d", "1", to=to)
    assert to.versions("d") == []


def test_the_progress_is_shown(storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = new("directory", tmp_path)
    storage.copy("d", "8", to=to, progress=True)
    assert f"copying to {to.url}: 100%" in capsys.readouterr().err
