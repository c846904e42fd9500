"""Versions that share files: against plain lists, under kills, and while others remove what they share."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import in_processes
from damaged import resealed
from hypothesis import given
from hypothesis import strategies as st
from own import Breakable
from sound import check_versions
from stored import data_files, objects_of, store_of, told
from victims import Victim
from waiting import at_once

import torchyoga as yoga
from torchyoga.errors import (
    BusyError,
    CorruptError,
    ExistsError,
    LostError,
    NotFoundError,
    SchemaError,
    YogaError,
)
from torchyoga.formats.contract import FORMATS
from torchyoga.storage import Storage
from torchyoga.testing import assert_rows_equal, check_view
from torchyoga.versions.file_entry import Deleted
from torchyoga.versions.lineage import Parent
from torchyoga.versions.manifest import Manifest

pytestmark = pytest.mark.usefixtures("unsynced")
COUNTER = itertools.count()
Row = dict[str, Any]


def rows_of(*numbers: int) -> list[Row]:
    return [{"x": number, "text": "row " * (number % 5)} for number in numbers]


def check_rows(storage: Storage, version: str, rows: list[Row], id: str = "d") -> None:
    """A version has these rows, is sound, and has the fingerprint of their own build."""
    ref = storage.fetch(id, version)
    assert list(ref) == rows
    storage.check(id, version)
    alone = storage.submit(rows, "alone", f"{next(COUNTER)}", schema=ref.schema)
    assert ref.fingerprint == alone.fingerprint
    assert list(pickle.loads(pickle.dumps(ref))) == rows


def test_an_append_shares_files_and_says_of_what(storage: Storage) -> None:
    old = storage.submit(rows_of(0, 1, 2), "d", "1", info={"a": 1, "b": 1})
    new = storage.append(rows_of(3, 4), "d", "2", after="1", info={"b": 2}, message="May")
    check_rows(storage, "2", rows_of(0, 1, 2, 3, 4))
    assert new.info == {"a": 1, "b": 2}
    manifest = store_of(storage).manifest("d", "2")
    assert [file.of for file in manifest.files] == ["1", None]
    assert manifest.lineage["message"] == "May"
    assert [*manifest.parents] == [Parent("1", old.fingerprint, 3, is_prefix=True)]
    third = storage.append([], "d", "3", after="2")
    assert [p.version for p in store_of(storage).manifest("d", "3").parents] == ["1", "2"]
    assert third.fingerprint == new.fingerprint
    storage.convert("d", "3", format="hdf5", compression="gzip")
    assert [file.of for file in store_of(storage).manifest("d", "3").files] == [None]


def test_the_last_one_that_names_files_takes_them_along(storage: Storage) -> None:
    storage.submit(rows_of(0, 1), "d", "1")
    storage.append(rows_of(2), "d", "2", after="1")
    storage.delete_rows("d", "2", rows=[1], to="3")
    storage.remove("d", "1")
    storage.remove("d", "2")
    assert len(data_files(storage, "d")) == 2
    storage.remove("d", "3")
    assert data_files(storage, "d") == []
    storage.submit(rows_of(0), "d", "1")
    storage.append([], "d", "2", after="1")
    storage.remove("d", "1")
    storage.convert("d", "2")
    storage.clean(0)
    assert len(data_files(storage, "d")) == 1


@pytest.mark.slow("hdf5")
@pytest.mark.parametrize("format", FORMATS)
def test_deleted_rows_of_columns_of_all_kinds(format: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage", format=format)
    rows = [
        {"a": np.arange(i % 3, dtype=np.int16), "b": None if i % 2 else i, "c": ["x" * (i % 4)] * (i % 3)}
        for i in range(9)
    ]
    storage.submit(rows, "d", "1")
    for size in range(9):
        gone = sorted(random.Random(size).sample(range(9), size + 1))
        kept = [row for number, row in enumerate(rows) if number not in gone]
        version = f"without {size}"
        ref = storage.delete_rows("d", "1", rows=np.array(gone)[::-1], to=version)
        assert len(ref) == len(kept)
        assert ref.fingerprint == storage.submit(kept, "e", version, schema=ref.schema).fingerprint
        storage.check("d", version)
        if kept:
            found = ref.__getitems__(list(range(len(kept)))[::-1])
            assert repr(list(found)) == repr(kept[::-1])
        if size == 3:
            again = partial(storage.fetch, "d", version)
            check_view(lambda _: again(), storage.fetch("e", version), reads_ahead=False)  # noqa: B023


def test_parts_lengths_and_columns_of_reduced_versions(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    ragged = [{"x": np.arange(n), "y": n} for n in range(8)]
    storage.submit(ragged[:5], "d", "1")
    storage.append(ragged[5:], "d", "2", after="1")
    ref = storage.delete_rows("d", "2", rows=[0, 4, 5], to="3")["x"]
    numbers = np.array([4, 0, 2])
    kept = np.array([1, 2, 3, 6, 7])[numbers]
    assert ref.lengths(numbers).tolist() == kept.tolist()
    found = ref._take_parts(numbers, np.zeros(3, np.int64), np.ones(3, np.int64))
    assert found.tolist() == [0, 0, 0]
    assert [len(row) for row in ref.__getitems__([4, 0, 2])] == kept.tolist()
    assert storage.fetch("d", "3").file_starts.tolist() == [0, 3, 5]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"rows": [-1]}, IndexError, "there is no row -1"),
        ({"rows": [3]}, IndexError, "there is no row 3"),
        ({"rows": np.array([2**63], np.uint64)}, IndexError, "there is no row 9223372036854775808"),
        ({"rows": [1, 1]}, ValueError, "names row 1 twice"),
        ({"rows": []}, ValueError, "no row of 'd' '1' is to be deleted"),
        ({"where": ("x", lambda x: x > 9)}, ValueError, "no row of 'd' '1' is to be deleted"),
        ({"rows": [0.5]}, TypeError, "must be numbers of rows"),
        ({"rows": [True]}, TypeError, "must be numbers of rows"),
        ({"where": "x"}, TypeError, "a pair of columns and a condition"),
        ({}, ValueError, "pass either rows="),
        ({"rows": [0], "message": "x" * 10_001}, ValueError, "4096 are allowed"),
        ({"rows": [0], "message": 3}, TypeError, "message must be a str"),
        ({"rows": [0], "message": "\ud800"}, ValueError, "lone surrogates"),
    ],
)
def test_rows_that_cannot_be_deleted(
    given: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    storage = Storage(tmp_path / "storage")
    storage.submit(rows_of(0, 1, 2), "d", "1")
    with pytest.raises(error, match=message):
        storage.delete_rows("d", "1", to="2", **given)
    assert storage.versions("d") == ["1"]


def test_rows_that_do_not_fit_are_refused_by_column(storage: Storage) -> None:
    storage.submit({"x": np.arange(3)}, "d", "1")
    with pytest.raises(SchemaError, match="column 'x'"):
        storage.append({"x": np.arange(3.0)}, "d", "2", after="1")
    with pytest.raises(SchemaError, match="'x'"):
        storage.append([{"x": "text"}], "d", "2", after="1")
    with pytest.raises(SchemaError, match="'y'"):
        storage.append({"x": np.arange(3), "y": np.arange(3)}, "d", "2", after="1")
    with pytest.raises(NotFoundError, match="has no version '7'"):
        storage.append([], "d", "2", after="7")
    with pytest.raises(ExistsError, match="is published already"):
        storage.append([], "d", "1", after="1")
    assert storage.versions("d") == ["1"]


def test_arrays_tensors_frames_and_plain_rows_are_appended_to_each_other(storage: Storage) -> None:
    pd = pytest.importorskip("pandas")
    given: list[Any] = [
        [{"x": 5, "y": 1.5, "s": "a", "v": [1, 2], "b": True}],
        {"x": np.array([5], np.int8), "y": np.float32([1.5]), "s": np.array(["a"]), "v": np.array([[1, 2]])},
        [{"x": torch.tensor(5), "y": torch.tensor(1.5), "s": "a", "v": torch.tensor([1, 2]), "b": True}],
        pd.DataFrame({"x": [5], "y": [1.5], "s": ["a"], "v": [[1, 2]], "b": [True]}),
    ]
    given[1]["b"] = np.array([True])
    for old in range(4):
        before = storage.submit(given[old], str(old), "1")
        for new in (*given, before):
            grown = storage.append(new, str(old))
            assert grown.schema == before.schema
            assert_rows_equal(list(grown), [before[0]] * len(grown))
    with pytest.raises(SchemaError, match=r"'x': expected int <i8, found .*5.5.*without loss.*convert"):
        storage.append({**given[1], "x": np.array([5.5])}, "0")
    assert storage.versions("0") == ["1", "2", "3", "4", "5", "6"]


def test_new_rows_are_encoded_as_the_old_ones(storage: Storage) -> None:
    texts = [{"t": f"line {number} " * 30} for number in range(300)]
    codecs = {"t": yoga.codecs.zstd()}
    old = storage.submit(texts[:200], "d", "1", codecs=codecs)
    new = storage.append(texts[200:], "d", "2", after="1")
    assert new.schema == old.schema
    assert list(new.decoded()) == texts
    again = storage.append(new.select(range(5)), "d", "3", after="2")  # encoded already
    assert list(again.decoded()) == texts + texts[:5]
    storage.check("d", "3")


def test_a_file_of_two_versions_is_downloaded_once(tmp_path: Path) -> None:
    storage = Storage(f"memory://growing-{next(COUNTER)}", cache_dir=tmp_path / "cache")
    storage.submit(rows_of(*range(20)), "d", "1")
    storage.append(rows_of(20), "d", "2", after="1")
    storage.delete_rows("d", "2", rows=[3], to="3")
    other = Storage(storage.url, cache_dir=tmp_path / "other")
    for version in ("1", "2", "3"):
        assert other.fetch("d", version, download=True)[0] == rows_of(0)[0]
    assert len([p for p in (tmp_path / "other").rglob("*.mdb")]) == 2


def test_a_copy_has_files_of_its_own_and_goes_on(storage: Storage, tmp_path: Path) -> None:
    storage.submit(rows_of(0, 1), "d", "1")
    storage.append(rows_of(2), "d", "2", after="1")
    ref = storage.delete_rows("d", "2", rows=[0], to="3")
    for number, to in enumerate([Storage(tmp_path / "to"), Storage(f"memory://to-{next(COUNTER)}")]):
        calls = 0
        receive = store_of(to).receive

        def interrupted(manifest: Manifest, held: Any, *more: Any, receive: Any = receive) -> Manifest:
            nonlocal calls
            calls += 1
            if calls > 1:
                return receive(manifest, held, *more)

            def once(entry: Any) -> Any:
                if entry.name == second:
                    raise KeyboardInterrupt
                return held(entry)

            second = manifest.own_files[1].name
            return receive(manifest, once, *more)

        store_of(to).receive = interrupted
        with pytest.raises(KeyboardInterrupt):
            storage.copy("d", "3", to)
        copied = storage.copy("d", "3", to)
        assert (list(copied), copied.fingerprint) == (rows_of(1, 2), ref.fingerprint), number
        to.check("d", "3")
        assert to.versions("d") == ["3"]
        assert storage.copy("d", "3", to).fingerprint == ref.fingerprint


def test_an_interrupted_append_is_continued(tmp_path: Path, files_of: Callable[[int], None]) -> None:
    files_of(50)
    storage, source = Storage(tmp_path / "storage"), Breakable(rows_of(*range(2, 302)))
    storage.submit(rows_of(0, 1), "d", "1")
    source.breaks = {250: RuntimeError("the source")}
    with pytest.raises(RuntimeError, match="the source"):
        storage.append(source, "d", "2", after="1")
    source.breaks, source.read = {}, []
    storage.append(source, "d", "2", after="1")
    assert 250 in source.read
    assert len(set(source.read)) < 150
    check_rows(storage, "2", rows_of(*range(302)))


# -- forged manifests


@pytest.mark.damages("manifests are forged")
@pytest.mark.parametrize(
    "change",
    [
        *({"of": value} for value in ("", "x" * 300, 3, None, "\ud800")),
        {"deleted": {"rows": "", "count": 1, "checks": []}},
        {"deleted": {"rows": "AAAA", "count": 2**40, "checks": []}},
        {"deleted": {"rows": Deleted.of_rows(np.ones(1), ()).text, "count": 1, "checks": [[9, 0]] * 3}},
        {"deleted": None},
        {"name": "../1/0123456789abcdef-00000.mdb"},
    ],
)
def test_forged_entries_are_refused(change: Row, tmp_path: Path) -> None:
    manifest, content = forged_manifest(tmp_path)
    content["files"][0].update(change)
    with pytest.raises(CorruptError, match="the manifest is damaged"):
        Manifest.from_bytes(resealed(content))
    assert manifest.files


def forged_manifest(tmp_path: Path) -> tuple[Manifest, Any]:
    storage = Storage(tmp_path / "storage")
    storage.submit(rows_of(0, 1, 2), "d", "1")
    storage.delete_rows("d", "1", rows=[1], to="2")
    manifest = store_of(storage).manifest("d", "2")
    return manifest, json.loads(manifest.to_bytes())


@pytest.mark.damages("manifests are forged")
@pytest.mark.parametrize("of", ["../..", "..", "2", "7", "/etc"])
def test_files_of_versions_that_are_not_there_are_harmless(of: str, tmp_path: Path) -> None:
    _, content = forged_manifest(tmp_path)
    content["files"][0]["of"] = of
    (tmp_path / "storage" / "d" / "2" / "manifest.json").write_bytes(resealed(content))
    with pytest.raises(CorruptError, match=r"missing|No such file"):
        Storage(tmp_path / "storage").fetch("d", "2")
    with pytest.raises(CorruptError, match="is missing"):
        Storage(tmp_path / "storage").check("d", "2")


@pytest.mark.parametrize("rows", [[3, 2], [1, 1], [-1, 2], [2, 2**62]])
def test_numbers_that_do_not_rise_are_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="do not rise"):
        _ = Deleted.of_rows(np.array(rows), ()).rows


@given(st.sets(st.integers(0, 2**50)))
def test_deleted_rows_read_back(rows: set[int]) -> None:
    found = Deleted.of_rows(np.array(sorted(rows), np.int64), ((1, 2),))
    assert found.rows.tolist() == sorted(rows)
    if rows:
        assert Deleted.from_json(json.loads(json.dumps(found.to_json()))) == found


# -- kills and races


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "kills", [pytest.param(10, marks=pytest.mark.rest), pytest.param(10_000, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("what", ["append", "delete_rows", "remove", "remove_last", "overwrite", "clean"])
def test_kills_between_steps_lose_nothing(what: str, kills: int, tmp_path: Path) -> None:
    """A child is killed after some of its touches of the world outside, spread evenly, or after each."""
    base, storage = Storage(tmp_path / "base"), Storage(tmp_path / "storage")
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: storage.append(rows_of(2), "d", "2", after="1") and None,
        "delete_rows": lambda: storage.delete_rows("d", "1", rows=[1], to="2") and None,
        "remove": lambda: storage.remove("d", "1"),
        "remove_last": lambda: storage.remove("d", "2"),
        "overwrite": lambda: storage.submit(rows_of(9), "d", "1", overwrite=True) and None,
        "clean": lambda: storage.clean(0) and None,
    }
    base.submit(rows_of(0, 1), "d", "1")
    if what not in ("append", "delete_rows"):
        base.append(rows_of(2), "d", "2", after="1")
    if what == "clean":
        base.remove("d", "1")
        base.submit(rows_of(5), "d", "1")

    def killed_after(touches: int | None) -> Any:
        shutil.rmtree(storage.path, ignore_errors=True)
        shutil.copytree(base.path, storage.path)
        return Victim(acts[what], touches).end()

    most, _ = killed_after(None)
    step = max(1, most // kills)
    for touches in range(step, most + step + 1, step):
        killed_after(touches)
        check_versions(storage.path)
        for version in storage.versions("d"):
            list(storage.fetch("d", version))
        if "1" in storage.versions("d"):
            storage.remove("d", "1")
        storage.clean(0)
        check_versions(storage.path)
        if "2" in storage.versions("d"):
            assert storage.fetch("d", "2")[0]["x"] == 0
            storage.remove("d", "2")
        storage.clean(0)
        assert data_files(storage, "d") == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_appends_beside_processes_that_remove_replace_and_clean(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage", timeout=20)
    storage.submit(rows_of(0, 1), "d", "1")

    def grow(name: str) -> int:
        made = 0
        for number in range(12):
            try:
                storage.append(rows_of(number), "d", f"{name}{number}", after="1")
                made += 1
            except (NotFoundError, BusyError):
                pass
        return made

    def disturb(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(12):
            act = rng.choice(["remove", "overwrite", "clean", "convert"])
            try:
                if act == "remove":
                    storage.remove("d", "1")
                    storage.submit(rows_of(0, 1), "d", "1")
                elif act == "overwrite":
                    storage.submit(rows_of(0, 1), "d", "1", overwrite=True)
                elif act == "clean":
                    storage.clean(0)
                else:
                    storage.convert("d", "1")
            except (YogaError, FileNotFoundError):
                pass

    children = [Victim(lambda: grow("a")), Victim(lambda: grow("b"))]
    others = [Victim(lambda: disturb(1)), Victim(lambda: disturb(2))]
    made = sum((child.end() or (0, 0))[1] for child in children)
    for child in others:
        child.end()
    assert made == len([v for v in storage.versions("d") if v != "1"])
    storage.clean(0)
    for version in storage.versions("d"):
        storage.check("d", version)
        assert [row["x"] for row in storage.fetch("d", version)][:2] == [0, 1]


def append_often(url: str, folder: str, number: int, count: int) -> None:
    options = {"cache_dir": folder} if url.startswith("memory") else {}
    storage = Storage(url, **options)  # type: ignore[arg-type]
    for row in range(count):
        storage.append(rows_of(100 * number + row), "d", progress=False)


def check_line(storage: Storage, numbers: list[int]) -> None:
    """The versions are in one line, and the newest has each row once."""
    log = storage.log("d")
    assert len(log) == len(numbers)
    for child, parent in itertools.pairwise(log):
        assert (child.parents[-1], child.added) == (parent.version, 1)
    ref = storage.fetch("d", latest=True)
    assert sorted(row["x"] for row in ref) == numbers
    check_rows(storage, ref.manifest.version, list(ref))


@pytest.mark.slow("directory")
def test_appends_of_many_come_one_behind_the_other(storage: Storage, tmp_path: Path) -> None:
    """Of processes that share a directory, or of threads that share a store behind a URL."""
    storage.submit(rows_of(0), "d", "1")
    works = [partial(append_often, storage.url, str(tmp_path / str(n)), n, 5) for n in range(1, 5)]
    if storage.url.startswith("memory"):
        at_once(*works)
    else:
        in_processes("forkserver", *works)
    check_line(storage, [0, *(100 * n + row for n in range(1, 5) for row in range(5))])


def test_an_append_comes_behind_what_was_published_meanwhile(storage: Storage) -> None:
    storage.submit(rows_of(0), "d", "1")

    def slowly() -> Iterator[Row]:
        yield from rows_of(2)
        storage.append(rows_of(1), "d", "9")

    new = storage.append(slowly(), "d")
    assert new.manifest.version == "2"
    assert [entry.version for entry in storage.log("d")] == ["2", "9", "1"]
    check_rows(storage, "2", rows_of(0, 1, 2))
    second = storage.append(rows_of(5), "d", after="9")  # whoever says after what has decided
    assert second.manifest.version == "10"
    with pytest.raises(NotFoundError, match="2 newest versions"):
        storage.append(rows_of(6), "d")
    with pytest.raises(NotFoundError):
        storage.append(rows_of(6), "other")
    assert len(storage.versions("d")) == 4


def test_a_lost_parent_takes_the_new_version_back(tmp_path: Path) -> None:
    """As if this process had been silent between its last look and the publication."""
    url = f"memory://growing-{next(COUNTER)}"
    storage = Storage(url, cache_dir=tmp_path / "cache")
    storage.submit(rows_of(0, 1), "d", "1")
    looks = itertools.count()

    def silent(look: Any, manifest: Manifest) -> None:
        look(manifest)
        if manifest.version == "2" and next(looks) == 0:
            remote = objects_of(storage)
            remote.delete(f"d/1/{name}" for name in list(remote.find("d/1")))

    told(storage, refuse_unshared=silent)
    with pytest.raises((NotFoundError, LostError), match="was removed or replaced meanwhile"):
        storage.append(rows_of(2), "d", "2", after="1")
    assert storage.versions("d") == []


def test_a_damaged_manifest_counts_as_naming_everything(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    storage.submit(rows_of(0, 1), "d", "1")
    storage.append(rows_of(2), "d", "2", after="1")
    path = tmp_path / "storage" / "d" / "2" / "manifest.json"
    text = path.read_bytes()
    for damaged in (text[: len(text) // 3], text[:-9] + b"}", b"\0" * 100):
        path.write_bytes(damaged)
        storage.clean(0)
        if "1" in storage.versions("d"):
            storage.remove("d", "1")
        storage.clean(0)
    path.write_bytes(text)
    check_rows(storage, "2", rows_of(0, 1, 2))


@pytest.mark.damages("a shared file is deleted")
def test_a_missing_file_is_named_where_it_lay(storage: Storage, tmp_path: Path) -> None:
    storage.submit(rows_of(0, 1), "d", "1")
    storage.append(rows_of(2), "d", "2", after="1")
    (file,) = (file for file in store_of(storage).manifest("d", "2").files if file.of == "1")
    if storage.url.startswith("memory"):
        objects_of(storage).delete([f"d/1/{file.name}"])
        fresh = Storage(storage.url, cache_dir=tmp_path / "fresh")
    else:
        (Path(storage.url) / "d" / "1" / file.name).unlink()
        fresh = storage
    with pytest.raises(CorruptError, match=f"{storage.url}/d/1/{file.name} is missing though"):
        list(fresh.fetch("d", "2"))


@pytest.mark.parametrize("way", ["removed", "overwritten"])
@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_version_that_comes_back_leaves_the_files_that_others_share(
    way: str, kind: str, tmp_path: Path
) -> None:
    """Its files have other numbers in a copy, as that holds those of its parent, too."""
    storage = Storage(tmp_path / "storage" if kind == "directory" else f"memory://growing-{next(COUNTER)}")
    storage.submit(rows_of(0, 1), "d", "1")
    storage.append(rows_of(2, 3), "d", "2", after="1")
    storage.append(rows_of(4), "d", "3", after="2")
    for backup in (Storage(tmp_path / "backup"), Storage(f"memory://growing-{next(COUNTER)}")):
        storage.copy("d", "2", to=backup)
        if way == "removed":
            storage.remove("d", "2")
        else:
            storage.submit(rows_of(9), "d", "2", overwrite=True)
        assert list(backup.copy("d", "2", to=storage, overwrite=True)) == rows_of(0, 1, 2, 3)
        storage.check("d", "3")
        assert list(storage.fetch("d", "3")) == rows_of(0, 1, 2, 3, 4)
