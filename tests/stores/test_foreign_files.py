"""Files that are not ours: they are named, and they stay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import dies_in_a_child
from leftovers import NEW, NEW_ROWS, OLD, OLD_ROWS, put, values
from own import Breakable

import torchyoga as yoga
from torchyoga.errors import CorruptError, YogaError
from torchyoga.files.root import Root
from torchyoga.versions.location import Staging

FOREIGN = [
    *("notes.txt", "model.pt", "Manifest.json", "folder/", "folder/inner.txt"),
    *("0123456789abcdef-00000.mdb/", "manifest.json.new/"),
]


def content(directory: Path) -> dict[str, bytes | str | None]:
    """Everything below a directory; links not followed."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes() if path.is_file() else None)
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("act", ["submit", "overwrite", "convert", "copy", "remove", "cacheable"])
@pytest.mark.damages("files of somebody else stay beside the version")
def test_files_of_others_are_named_and_stay(tmp_path: Path, name: str, act: str) -> None:
    storage, other = yoga.Storage(tmp_path / "here"), yoga.Storage(tmp_path / "there")
    if act not in ("submit", "cacheable"):
        storage.submit(OLD, "a", "1")
    if act == "copy":
        other.submit(NEW, "a", "1")
    put(storage.path / "a" / "1", name)
    before = content(storage.path / "a")
    acts: dict[str, Callable[[], Any]] = {
        "submit": lambda: storage.submit(NEW, "a", "1"),
        "overwrite": lambda: storage.submit(NEW, "a", "1", overwrite=True),
        "convert": lambda: storage.convert("a", "1", format="hdf5"),
        "copy": lambda: other.copy("a", "1", storage, overwrite=True),
        "remove": lambda: storage.remove("a", "1"),
        "cacheable": storage.cacheable("a", "1")(lambda: pytest.fail("it was built in vain")),
    }
    first = name.partition("/")[0]
    with pytest.raises(
        YogaError, match=f"a/1 holds what torchyoga has not written: '{first}.*Nothing was changed"
    ):
        acts[act]()
    assert content(storage.path / "a") == before
    assert not storage.clean(0)
    assert content(storage.path / "a") == before


def test_files_of_others_that_come_during_a_build_are_named_and_stay(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)

    def rows() -> Iterator[Any]:
        yield from OLD_ROWS
        put(tmp_path / "a" / "1", "notes.txt")

    with pytest.raises(YogaError, match=r"a/1 holds what torchyoga has not written: 'notes\.txt'"):
        storage.submit(rows(), "a", "1")
    assert content(tmp_path / "a") == {"1": None, "1/notes.txt": b"mine"}
    assert not list((tmp_path / ".staging").rglob("*.mdb"))


def test_hidden_files_are_ignored_and_stay(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    for name in (".DS_Store", ".nfs0000000000000001", ".git/config"):
        put(tmp_path / "a" / "1", name)
    storage.submit(OLD, "a", "1")
    storage.submit(NEW, "a", "1", overwrite=True)
    storage.check("a", "1")
    storage.remove("a", "1")
    assert storage.list() == []
    assert sorted(content(tmp_path / "a" / "1")) == [
        ".DS_Store",
        ".git",
        ".git/config",
        ".nfs0000000000000001",
    ]


def test_a_manifest_that_is_not_ours_stays(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    mine = b'{"name": "my web application", "fingerprint": "abc"}'
    (tmp_path / "a" / "1").mkdir(parents=True)
    (tmp_path / "a" / "1" / "manifest.json").write_bytes(mine)
    acts: list[Callable[[], Any]] = [
        lambda: storage.submit(OLD, "a", "1"),
        lambda: storage.submit(OLD, "a", "1", overwrite=True),
        lambda: storage.remove("a", "1"),
    ]
    for act in acts:
        with pytest.raises(YogaError):
            act()
        storage.clean(0)
        assert (tmp_path / "a" / "1" / "manifest.json").read_bytes() == mine


@pytest.mark.parametrize("damage", ["cut", "cut short", "empty", "zeros", "garbage", "flipped"])
def test_a_damaged_manifest_of_ours_can_be_removed_and_overwritten(tmp_path: Path, damage: str) -> None:
    storage = yoga.Storage(tmp_path)
    for act in ("remove", "overwrite"):
        storage.submit(OLD, "a", "1", overwrite=True)
        path = tmp_path / "a" / "1" / "manifest.json"
        whole = path.read_bytes()
        texts = {
            "cut": whole[:-200],
            "cut short": whole[:35],
            "empty": b"",
            "zeros": bytes(len(whole)),
            "garbage": bytes(range(256)),
            "flipped": whole.replace(b"30", b"31"),
        }
        path.write_bytes(texts[damage])
        with pytest.raises(CorruptError, match="remove the version"):
            storage.fetch("a", "1")
        if act == "remove":
            storage.remove("a", "1")
            assert storage.list() == []
        else:
            assert values(storage.submit(NEW, "a", "1", overwrite=True)) == values(NEW_ROWS)


@pytest.mark.skipif(os.name == "nt", reason="making links needs a right on Windows")
@pytest.mark.parametrize("link", ["a", "a/1", ".staging", ".staging/a", ".staging/a/1", ".locks", ".locks/a"])
@pytest.mark.parametrize("act", ["submit", "overwrite", "remove", "clean"])
@pytest.mark.damages("the version behind a link lies where no storage is")
def test_nothing_is_written_or_deleted_through_links(tmp_path: Path, link: str, act: str) -> None:
    storage, outside = yoga.Storage(tmp_path / "storage"), tmp_path / "outside"
    inner = {"a": "1", ".staging": "a/1", ".staging/a": "1", ".locks": "a"}.get(link, "")
    if link.startswith("a"):  # the user has put a version there
        yoga.Storage(tmp_path / "first").submit(OLD, "a", "1")
        os.rename(tmp_path / "first" / "a" / "1", tmp_path / "version")
        (outside / inner).parent.mkdir(parents=True, exist_ok=True)
        os.rename(tmp_path / "version", outside / inner)
    else:
        storage.submit(OLD, "a", "1")
        (outside / inner).mkdir(parents=True)
        for name in ("0123456789abcdef-00000.mdb", "progress.json", "manifest.json.new", "1.lock", "notes"):
            (outside / inner / name).write_bytes(b"mine")
        if (storage.path / link).exists():
            os.rename(storage.path / link, tmp_path / "away")
    (storage.path / link).parent.mkdir(parents=True, exist_ok=True)
    (storage.path / link).symlink_to(outside)
    before = content(outside)
    acts: dict[str, Callable[[], Any]] = {
        "submit": lambda: storage.submit(NEW, "b", "1") and storage.submit(NEW, "a", "2"),
        "overwrite": lambda: storage.submit(NEW, "a", "1", overwrite=True),
        "remove": lambda: storage.remove("a", "1"),
        "clean": lambda: storage.clean(0),
    }
    is_in_the_way = act == "overwrite" or (act == "remove" and not link.startswith(".staging"))
    is_in_the_way |= act == "submit" and link in ("a", ".staging", ".staging/a", ".locks", ".locks/a")
    if is_in_the_way:
        with pytest.raises(YogaError, match="is a link to"):
            acts[act]()
    else:
        acts[act]()
    assert content(outside) == before
    if is_in_the_way or act != "remove":
        assert values(storage.fetch("a", "1")) == values(OLD_ROWS)
        assert ("a", "1") in storage.list()


def test_a_forged_note_of_progress_writes_nothing_elsewhere(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    source = Breakable([{"x": np.full(50, number)} for number in range(200)])
    source.breaks = {100: RuntimeError("it broke")}
    with pytest.raises(RuntimeError, match="it broke"):
        storage.submit(source, "a", "1")
    staging = Staging(Root(storage.path, within=".staging/a/1"))
    for token in ("../../../../outside/x", "../x", "/tmp/x", "0123456789ABCDEF", 5, None, "", "0" * 17):
        progress = staging.load()
        assert progress
        staging.save({**progress, "token": token})
        source.breaks = {150: RuntimeError("it broke")}
        with pytest.raises(RuntimeError, match="it broke"):
            storage.submit(source, "a", "1")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["storage"]
    source.breaks = {}
    ref = storage.submit(source, "a", "1")
    assert [int(row["x"][0]) for row in ref] == list(range(200))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
def test_modes_of_a_storage(tmp_path: Path, format: str) -> None:
    before = os.umask(0)
    try:
        for name, shared in (("own", False), ("team", True)):
            storage = yoga.Storage(tmp_path / name, format, shared=shared)
            storage.submit(OLD, "a", "1")
            storage.submit(NEW, "a", "1", overwrite=True)
            for path in [storage.path, *storage.path.rglob("*")]:
                mode = path.stat().st_mode & 0o7777
                if shared:
                    assert mode == (0o2775 if path.is_dir() else 0o664), path
                else:
                    assert mode == (0o755 if path.is_dir() else 0o644), path
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be other users")
def test_users_of_a_group_build_one_after_the_other(tmp_path_others_reach: Path) -> None:
    root = tmp_path_others_reach / "storage"
    root.mkdir()
    os.chown(root, 0, 54321)
    os.chmod(root, 0o2770)

    def build(user: int) -> None:
        os.umask(0o077)
        os.setgroups([])
        os.setgid(54321)
        os.setuid(user)
        storage = yoga.Storage(root, shared=True)
        storage.submit([{"x": user}], "a", "1", overwrite=True)
        storage.submit([{"x": user}], "b", str(user))

    for user in (54322, 54323):
        assert not dies_in_a_child(lambda user=user: build(user), 10_000)
    storage = yoga.Storage(root)
    assert storage.fetch("a", "1")[0] == {"x": 54323}
    assert storage.list() == [("a", "1"), ("b", "54322"), ("b", "54323")]
