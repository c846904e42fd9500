"""Power cuts, at any moment: a version exists whole or not at all, and finished operations stay finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from known import FILE_ROWS, SCHEMA, KnownRows, generation_of, submit_known
from powercut import Cut, Tree, lay_out, recorded

import torchyoga as yoga
from torchyoga.files.root import Root, beside
from torchyoga.formats.contract import FORMATS
from torchyoga.versions.location import Staging

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows cannot sync folders")

OLD, NEW = 1, 2
OTHER = {"lmdb": "hdf5", "hdf5": "lmdb"}
MOST, MOST_CONTINUED = 100, 4  # cases for each moment
HIDDEN = (".locks", ".staging")


@pytest.fixture(autouse=True)
def small_files(files_of: Callable[[int], None]) -> None:
    files_of(FILE_ROWS)


class World:
    """A disk that is recorded, with a storage on it, and another storage that is not on it."""

    def __init__(self, folder: Path, format: str) -> None:
        self.disk, self.format, self._folder = folder / "disk", format, folder
        self.disk.mkdir()
        self.origin = yoga.Storage(folder / "origin", format)
        self._looks = 0

    def storage(self, disk: Path | None = None) -> yoga.Storage:
        return yoga.Storage((disk or self.disk) / "data" / "storage", self.format)

    def laid_out(self, tree: Tree) -> yoga.Storage:
        """The storage as it is after a power cut."""
        self._looks += 1
        disk = self._folder / f"after-{self._looks}"
        lay_out(tree, disk)
        return self.storage(disk)


def submit(storage: yoga.Storage, generation: int, overwrite: bool = False) -> None:
    submit_known(storage, "a", "1", generation, overwrite)


def states(cuts: Iterable[Cut], most: int, ignored: Sequence[str]) -> Iterable[Tree]:
    """The states that are possible at some moments, each once."""
    return {frozenset(tree.items()): tree for cut in cuts for tree in cut.trees(most, ignored)}.values()


def submit_none(storage: yoga.Storage) -> None:
    storage.submit([], "a", "1", overwrite=True, schema=SCHEMA)


def generation(storage: yoga.Storage) -> int | str | None:
    """The generation that is published; CorruptError or AssertionError if it is not whole."""
    if ("a", "1") not in storage.list():
        return None
    storage.check("a", "1")
    return generation_of(storage, "a", "1") if len(storage.fetch("a", "1")) else "empty"


# What is done, and which generation is published before and after.
ACTS: dict[str, tuple[Callable[[World], object], int | None, int | str | None]] = {
    "new": (lambda world: submit(world.storage(), NEW), None, NEW),
    "overwrite": (lambda world: submit(world.storage(), NEW, overwrite=True), OLD, NEW),
    "convert": (lambda world: world.storage().convert("a", "1", format=OTHER[world.format]), OLD, OLD),
    "copy": (lambda world: world.origin.copy("a", "1", world.storage()), None, NEW),
    "copy over": (lambda world: world.origin.copy("a", "1", world.storage(), overwrite=True), OLD, NEW),
    "remove": (lambda world: world.storage().remove("a", "1"), OLD, None),
    "empty": (lambda world: submit_none(world.storage()), None, "empty"),
    "emptied": (lambda world: submit_none(world.storage()), OLD, "empty"),
}


@pytest.mark.quick("overwrite-*", *(f"{act}-lmdb" for act in ("new", "convert", "copy", "remove", "emptied")))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("act", list(ACTS))
def test_a_version_exists_whole_or_not_at_all(act: str, format: str, tmp_path: Path) -> None:
    world = World(tmp_path, format)
    do, before, after = ACTS[act]
    submit(world.origin, NEW)
    if before is not None:
        submit(world.storage(), OLD)
        submit_known(world.storage(), "b", "1", OLD)
    recorder = recorded(world.disk, partial(do, world))
    known: dict[Any, int | str | None] = {}
    for cut in recorder.cuts:
        allowed = {before, after} if cut.before != "the end" else {after}
        trees = list(cut.trees(MOST, HIDDEN))
        for tree in trees:
            key = frozenset(tree.items())
            if key not in known:
                storage = world.laid_out(tree)
                known[key] = found = generation(storage)
                if before is not None:
                    storage.check("b", "1")
                # Files that are left do not hinder anything.
                if tree in (trees[0], trees[-1]):
                    submit(storage, NEW, overwrite=True)
                    assert generation(storage) == NEW
            found = known[key]
            assert found in allowed, f"{act}, cut before {cut.before}: {found} is there, not one of {allowed}"
    assert {before, after} <= set(known.values())


@pytest.mark.quick("new-lmdb", "copy-hdf5")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("act", ["new", "copy"])
def test_an_operation_cut_off_by_a_power_cut_succeeds_when_called_again(
    act: str, format: str, tmp_path: Path
) -> None:
    """The next call goes on with files that are whole, and with no others."""
    world = World(tmp_path, format)
    submit(world.origin, NEW)
    recorder = recorded(world.disk, partial(ACTS[act][0], world))
    for tree in states(recorder.cuts, MOST_CONTINUED, [".locks"]):
        storage = world.laid_out(tree)
        if generation(storage) is None:
            if act == "copy":
                world.origin.copy("a", "1", storage)
            else:
                submit(storage, NEW)
        assert generation(storage) == NEW
        storage.clean(0)
        assert not [path for path in (storage.path / ".staging").rglob("*") if path.is_file()]


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_fits_into_a_buffer_is_copied_whole(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all files do on systems that ask for large pieces."""
    world = World(tmp_path, format)
    world.origin.submit([1, 2, 3], "a", "1")
    monkeypatch.setattr("torchyoga.files.root.open", partial(open, buffering=2**20), raising=False)
    recorder = recorded(world.disk, lambda: world.origin.copy("a", "1", world.storage(), overwrite=True))
    for tree in recorder.cuts[-1].trees(MOST, HIDDEN):
        storage = world.laid_out(tree)
        storage.check("a", "1")
        assert list(storage.fetch("a", "1")) == [1, 2, 3]


class DiskError(Exception):
    """The error of a disk that could not sync."""


@pytest.mark.parametrize("format", FORMATS)
def test_replaced_files_are_cleaned_only_after_the_new_manifest_is_synced(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process that wrote the manifest could not wait for that."""
    world = World(tmp_path, format)
    submit(world.storage(), OLD)

    def commit(root: Root, name: str) -> None:
        root.move(beside(name), name)
        raise DiskError

    def replaced_and_cleaned() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Root, "commit", commit)
            # An iterator, because its build commits no progress notes.
            rows = iter(KnownRows("a", "1", NEW))
            with pytest.raises(DiskError):
                world.storage().submit(rows, "a", "1", overwrite=True, schema=SCHEMA)
        world.storage().clean(0)

    for tree in states(recorded(world.disk, replaced_and_cleaned).cuts, MOST, HIDDEN):
        assert generation(world.laid_out(tree)) in (OLD, NEW)


class Breaking(KnownRows):
    """Rows, one of which cannot be read at first."""

    is_broken = True

    def __getitem__(self, number: int) -> Any:
        if self.is_broken and number == 19:
            raise RuntimeError("unplugged")
        return super().__getitem__(number)


@pytest.mark.parametrize("format", FORMATS)
def test_files_kept_by_an_interrupted_build_survive_a_power_cut(
    format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, rows = World(tmp_path, format), Breaking("a", "1", NEW)

    def build(storage: yoga.Storage) -> None:
        storage.submit(rows, "a", "1", schema=SCHEMA)

    def interrupted() -> None:
        with pytest.raises(RuntimeError, match="unplugged"):
            build(world.storage())

    cuts = recorded(world.disk, interrupted).cuts
    for tree in states(cuts, MOST_CONTINUED, [".locks"]):
        staging = Staging(Root(world.laid_out(tree).path, within=".staging/a/1"))
        for file in staging.load().get("files", []):  # a note names only files that are on the disk
            assert (staging.path / file["name"]).stat().st_size == file["nbytes"]
    rows.is_broken = False
    caplog.set_level("INFO", "torchyoga")
    for tree in cuts[-1].trees(MOST_CONTINUED, [".locks"]):
        storage = world.laid_out(tree)
        assert generation(storage) is None
        caplog.clear()
        build(storage)
        assert "continuing an interrupted build at row 19" in caplog.text
        assert generation(storage) == NEW
