"""What cleaning deletes, and what it leaves to those who are still at work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from leftovers import NEW, OLD, OLD_ROWS, held_by_another, interrupted, put, values
from stored import told
from waiting import PATIENCE

import torchyoga as yoga


def test_cleaning_opens_only_what_it_cleans(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "a", "1")
    storage.submit(OLD, "b", "1")
    left_over = tmp_path / "b" / "1" / "0123456789abcdef-00000.mdb"
    left_over.write_bytes(b"half of a file")
    for path in (tmp_path / ".locks").rglob("*.holder"):
        path.unlink()
    assert [*storage.clean(0)] == ["b/1/0123456789abcdef-00000.mdb"]
    assert not left_over.exists()
    assert [path.parent.name for path in (tmp_path / ".locks").rglob("*.holder")] == ["b"]
    for id in ("a", "b"):
        storage.check(id, "1")


@pytest.mark.damages("a manifest is changed")
def test_one_damaged_version_does_not_keep_others_from_being_cleaned(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    left_over = "0123456789abcdef-00000.mdb"
    for id in ("a", "b", "c"):
        storage.submit(OLD, id, "1")
        (tmp_path / id / "1" / left_over).write_bytes(b"half of a file")
    manifest = tmp_path / "b" / "1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"30", b"31"))
    assert [*storage.clean(0)] == [f"a/1/{left_over}", f"c/1/{left_over}"]
    assert (tmp_path / "b" / "1" / left_over).exists()


def replaced(root: Path) -> None:
    """A version beside which a file of another build lies."""
    yoga.Storage(root).submit(OLD, "a", "1")
    (root / "a" / "1" / "0123456789abcdef-00000.mdb").write_bytes(b"half of a file")


def cut_off(root: Path) -> None:
    """A file of a publication that ended before its manifest."""
    put(root / "a" / "1", "0123456789abcdef-00000.mdb")


LEFT: dict[Callable[[Path], None], list[str]] = {
    interrupted: [".staging/a/1"],
    replaced: ["a/1/0123456789abcdef-00000.mdb"],
    cut_off: ["a/1/0123456789abcdef-00000.mdb"],
}


def age(path: Path, seconds: float) -> None:
    """Makes a file or folder, and everything in it, look as if it had been written `seconds` ago."""
    then = time.time() - seconds
    for one in (path, *path.rglob("*")):
        os.utime(one, (then, then))


def names(root: Path) -> set[str]:
    """All names, except the notes about which process held a lock last."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix != ".holder"}


@pytest.mark.parametrize("leave", list(LEFT))
def test_files_younger_than_the_grace_are_not_cleaned(leave: Callable[[Path], None], tmp_path: Path) -> None:
    leave(tmp_path)
    storage, before = yoga.Storage(tmp_path), names(tmp_path)
    assert storage.clean() == storage.clean(60) == {}
    assert names(tmp_path) == before
    age(tmp_path, 3600)
    assert not storage.clean(7200)
    assert names(tmp_path) == before
    assert [*storage.clean(1800)] == LEFT[leave]


def test_a_build_is_as_young_as_its_youngest_file(tmp_path: Path) -> None:
    interrupted(tmp_path)
    storage, folder = yoga.Storage(tmp_path), tmp_path / ".staging" / "a" / "1"
    for young in (folder, *folder.iterdir()):
        age(tmp_path, 3600)
        os.utime(young)
        assert not storage.clean(1800)
        assert len(list(folder.iterdir())) == 2
    age(tmp_path, 3600)
    assert [*storage.clean(1800)] == [".staging/a/1"]


@pytest.mark.parametrize("leave", list(LEFT))
def test_nothing_is_cleaned_while_the_lock_is_held(leave: Callable[[Path], None], tmp_path: Path) -> None:
    leave(tmp_path)
    age(tmp_path, 3600)
    storage = yoga.Storage(tmp_path)
    over = threading.Event()
    with held_by_another(tmp_path, lambda: over.wait(PATIENCE)):
        os.utime(tmp_path / ".locks" / "a" / "1.holder", (1, 1))
        before = names(tmp_path)
        assert not storage.clean(1800)
        assert names(tmp_path) == before
        over.set()
    age(tmp_path, 3600)
    assert [*storage.clean(1800)] == LEFT[leave]


def overtaken(root: Path, does: Callable[[], object]) -> yoga.Storage:
    """A storage whose lock is just being released: its holder does something before that."""
    storage = yoga.Storage(root)
    told(storage, lock=lambda lock, *args, **more: (does(), lock(*args, **more))[1])
    return storage


def test_a_build_that_went_on_before_the_lock_was_free_is_not_cleaned(tmp_path: Path) -> None:
    interrupted(tmp_path / "build")
    folder = tmp_path / "build" / ".staging" / "a" / "1"
    age(tmp_path / "build", 3600)
    assert overtaken(tmp_path / "build", lambda: age(folder, 0)).clean(1800) == {}
    assert len(list(folder.iterdir())) == 2

    root = tmp_path / "version"
    yoga.Storage(root).submit(OLD, "a", "1")
    old = (root / "a" / "1" / "manifest.json").read_bytes()
    (first,) = (root / "a" / "1").glob("*.mdb")
    kept = first.read_bytes()
    yoga.Storage(root).submit(NEW, "a", "1", overwrite=True)
    first.write_bytes(kept)  # as after a publication that was cut off before its manifest
    age(root, 3600)
    cleaner = overtaken(root, lambda: (root / "a" / "1" / "manifest.json").write_bytes(old))
    assert first.name not in " ".join(cleaner.clean(1800))
    assert values(yoga.Storage(root).fetch("a", "1")) == values(OLD_ROWS)


def test_removed_versions_and_builds_that_failed_leave_no_folder(tmp_path: Path) -> None:
    """Neither does what an interrupted build of a removed version had left."""
    storage = yoga.Storage(tmp_path)
    storage.submit(OLD, "kept", "1")
    with pytest.raises(ValueError, match="max_rows"):
        storage.submit(iter(OLD_ROWS), "kept", "2", max_rows=3)
    for leave in (lambda root: None, interrupted):
        storage.submit(OLD, "a", "1")
        leave(tmp_path)
        storage.remove("a", "1")
        folders = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
        assert {name for name in folders if not name.startswith(".locks")} == {"kept", "kept/1"}
    assert not storage.clean(0)
    storage.check("kept", "1")
