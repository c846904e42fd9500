"""Histories whose files and parents lie in lists."""

from __future__ import annotations

import itertools
import json
import pickle
import secrets
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import resealed
from golden.make import grown
from interrupting import calls_of
from stored import files_below, short_lists, told

import torchyoga as yoga
from torchyoga.errors import YogaError
from torchyoga.process.digests import hexdigest
from torchyoga.storage import Storage, store_of
from torchyoga.stores.objects import Objects
from torchyoga.versions.columns import fingerprint_of
from torchyoga.versions.file_entry import LARGEST_LIST, FileEntry, Listed, grouped
from torchyoga.versions.lineage import Parent
from torchyoga.versions.manifest import Manifest

pytestmark = pytest.mark.usefixtures("unsynced")
GOLDEN = Path(__file__).parents[1] / "golden"
COUNTER = itertools.count()


@pytest.fixture
def storage(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Where a few files and parents make lists."""
    short_lists(monkeypatch.setitem)
    return storage


def numbers_of(ref: Any) -> list[int]:
    return [int(row["x"]) for row in ref]


def grow(storage: Storage, appends: int, **options: Any) -> Any:
    """Makes the versions "0", "1" and so on, each of two rows more; returns the last."""
    ref = storage.submit({"x": np.arange(2)}, "d", "0", **options)
    for number in range(appends):
        ref = storage.append({"x": np.arange(2)}, "d", str(number + 1), after=str(number))
    return ref


def test_a_sweep_reads_each_list_once(storage: Storage) -> None:
    grow(storage, 12)
    with calls_of(type(store_of(storage)).read_list) as calls:
        storage.clean(0, keep_last=2, id="d")
    reads = Counter(call["entry"].name for call in calls)
    assert storage.versions("d") == ["10", "11", "12"]
    assert max(reads.values()) <= 2  # by what looks for files, and by what looks for the newest
    assert numbers_of(storage.fetch("d", "12")) == [0, 1] * 13
    storage.check("d", "12")


def simulated(count: int) -> tuple[Manifest, list[int]]:
    """A history of appends of one file each, without a storage, and what each wrote."""
    schema = yoga.from_arrays({"x": np.arange(2), "y": np.arange(2.0)}).schema
    written: list[int] = []
    lists: dict[str, bytes] = {}

    def read(entry: FileEntry) -> bytes:
        return lists[entry.name]

    last = Manifest("a", "0", "0" * 16, "2026-01-01T00:00:00Z", schema, fingerprint_of(schema, ()))
    for number in range(1, count):
        build = secrets.token_hex(8)
        own = _file(f"{build}-00000.mdb")
        before = last.shared()
        files = before.files.with_more([own])
        parent = Parent(last.version, last.fingerprint, last.num_rows, is_prefix=True)
        grown = replace(
            last,
            version=str(number),
            build=build,
            files=files,
            parents=before.parents.with_more([parent]),
            fingerprint=fingerprint_of(schema, files.pieces),
        )
        new: dict[str, bytes] = {}
        last = grown.in_lists(new.__setitem__)
        lists |= new
        written.append(len(last.to_bytes()) + sum(map(len, new.values())))
        last = Manifest.from_bytes(last.to_bytes()).located(read)
    return last, written


def _file(name: str) -> Any:
    checks = tuple((16, secrets.randbits(32)) for _ in range(2))
    index = {
        "crc32": secrets.randbits(32),
        "nbytes": 56,
        "offset": 32784,
        "units": {"nbytes": 8, "offset": 40976},
    }
    return FileEntry(name, "lmdb", 2, 53248, index, checks)


@pytest.mark.rest
def test_a_long_history_stays_small() -> None:
    last, written = simulated(1300)
    assert max(written) < 64 * 2**10
    assert sum(written) < 1300 * 5000  # bytes: 10,000 versions have less than 50 MB
    assert len(last.lists) <= 8
    assert len(last.files) == 1299 == len({file.name for file in last.files})
    assert [parent.version for parent in last.parents] == [str(number) for number in range(1299)]
    assert last.num_rows == 2 * 1299 == sum(file.rows for file in last.files)
    assert fingerprint_of(last.schema, tuple(last.files)) == last.fingerprint


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 200, 3000])
def test_many_entries_at_once_are_cut_into_lists(count: int) -> None:
    start = grouped([object()] * count, 8, 128, 2048)
    assert start == (count if count < 8 else 0)


# What is read of objects.
REQUESTS = [getattr(Objects, name) for name in ("read", "read_tagged", "read_ranges", "stream", "find")]


def test_few_objects_are_read_for_the_newest_and_the_log(tmp_path: Path) -> None:
    url = f"memory://listed-{next(COUNTER)}"
    storage = Storage(url, cache_dir=tmp_path / "cache")
    grow(storage, 60, format="hdf5")
    log = storage.log("d")
    fresh = Storage(url, cache_dir=tmp_path / "fresh")
    with calls_of(*REQUESTS) as found:
        short = fresh.log("d", limit=5)
    assert ([*short], short.left_out) == ([*log][:5], 56)
    assert 0 < len(found) <= 12 + 2  # a listing of versions and one of tags
    with calls_of(*REQUESTS) as found:
        assert len(Storage(url, cache_dir=tmp_path / "fresh 2").fetch("d", latest=True)) == 122
    assert 0 < len(found) <= 30


def content(storage: Storage, version: str) -> tuple[Any, Path]:
    path = Path(storage.url) / "d" / version / "manifest.json"
    return json.loads(path.read_bytes()), path


def forged(storage: Storage, change: Callable[[Any, Any], object]) -> None:
    """Changes the first list of version "9" and what its manifest says of it, and seals both again."""
    found, path = content(storage, "9")
    piece = next(file for file in found["files"] if file["format"] == "list")
    place = path.parent.parent / piece.get("of", "9") / piece["name"]
    inner = json.loads(zlib.decompress(place.read_bytes()))
    text = change(piece, inner)
    if text is None:
        text = zlib.compress(json.dumps(inner).encode())
    if isinstance(text, bytes):
        place.write_bytes(text)
        piece["nbytes"], piece["crc"] = len(text), zlib.crc32(text)
        if piece["index"].get("digest") != "wrong":
            piece["index"]["digest"] = hexdigest(text)
    path.write_bytes(resealed(found))


FORGERIES: dict[str, Callable[[Any, Any], object]] = {
    "another id": lambda piece, inner: inner.update(id="e"),
    "10^9 entries": lambda piece, inner: piece["index"].update(entries=10**9),
    "more entries": lambda piece, inner: piece["index"].update(entries=piece["index"]["entries"] + 1),
    "no entries": lambda piece, inner: piece["index"].update(entries=0),
    "other rows": lambda piece, inner: inner["files"][0].update(rows=3),
    "other bytes": lambda piece, inner: inner["files"][0].update(nbytes=3),
    "a list in a list": lambda piece, inner: inner["files"].__setitem__(0, {**piece, "of": "1"}),
    "files in no folder": lambda piece, inner: inner["files"][0].pop("of") and None,
    "a file twice": lambda piece, inner: inner["files"].__setitem__(0, inner["files"][-1]),
    "no list": lambda piece, inner: b"{}",
    "much that packs well": lambda piece, inner: zlib.compress(bytes(LARGEST_LIST + 1), 1),
    "a cut list": lambda piece, inner: zlib.compress(json.dumps(inner).encode())[:-3],
    "another file": lambda piece, inner: (
        piece.update(name=piece["name"].replace("0.list", "7.list")) or False
    ),
    "a way out": lambda piece, inner: piece.update(name="../../etc/passwd.list") or False,
    "a name of rows": lambda piece, inner: piece.update(name=piece["name"].replace(".list", ".mdb")) or False,
    "rows as a list": lambda piece, inner: piece.update(format="lmdb") or False,
    "another digest": lambda piece, inner: piece["index"].update(digest="0" * 32) or False,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a history that is long enough for a list."""
    storage = Storage(tmp_path_factory.mktemp("built"))
    grow(storage, 9, format="hdf5")
    return storage.path


@pytest.fixture
def line(built: Path, tmp_path: Path) -> Storage:
    """A copy of it."""
    return Storage(shutil.copytree(built, tmp_path / "storage"))


@pytest.mark.damages("the lists that it forges")
@pytest.mark.parametrize("what", FORGERIES)
def test_forged_lists_are_refused_and_nothing_is_deleted(what: str, line: Storage, tmp_path: Path) -> None:
    storage = line
    forged(storage, FORGERIES[what])
    before = files_below(storage, "d")
    with pytest.raises(YogaError, match=r"is damaged|damaged:"):
        len([*storage.fetch("d", "9")])
    storage.clean(0)
    storage.remove("d", "5")
    assert before.keys() - files_below(storage, "d").keys() <= {"5/manifest.json"}
    storage.check("d", "4")


@pytest.mark.damages("the version that it forges")
@pytest.mark.parametrize("name", ["manifest.json", "../good/manifest.json", "../../../outside.txt"])
def test_a_forged_name_deletes_nothing(name: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    storage.submit({"x": np.arange(2)}, "d", "good", format="hdf5")
    storage.append({"x": np.arange(2)}, "d", "9", after="good")
    storage.tag("d", "kept", "good")
    found, path = content(storage, "9")
    found["files"][0]["name"] = name
    path.write_bytes(resealed(found))
    storage.clean(0, keep_last=0)
    storage.remove("d", "9")
    storage.clean(0)
    storage.check("d", "good")


@pytest.mark.damages("the version that it forges")
def test_lists_of_one_name_in_two_folders_are_two(line: Storage, tmp_path: Path) -> None:
    storage = line
    storage.append([], "d", "zz", after="9")
    found, path = content(storage, "zz")
    for file in found["files"]:
        if file["format"] == "list":
            inner = json.loads(zlib.decompress((path.parent.parent / file["of"] / file["name"]).read_bytes()))
            text = zlib.compress(json.dumps({**inner, "files": inner["files"][:1]}).encode())
            (path.parent / file["name"]).write_bytes(text)
            file["index"] |= {"digest": hexdigest(text), "entries": 1}
            file |= {"of": "zz", "nbytes": len(text)}
    path.write_bytes(resealed(found))
    for version in map(str, range(8)):
        storage.remove("d", version)
    storage.clean(0)
    storage.check("d", "9")


def test_a_version_is_compacted_while_its_lists_are_read(storage: Storage) -> None:
    grow(storage, 4, format="hdf5")
    left = ["one"]

    def late(read_list: Any, id: str, version: str, entry: Any) -> Any:
        if left and version == "4":
            left.clear()
            storage.convert("d", "4")
            for older in map(str, range(4)):
                storage.remove("d", older)
            storage.clean(0)
        return read_list(id, version, entry)

    told(storage, read_list=late)
    assert numbers_of(storage.fetch("d", "4")) == [0, 1] * 5
    assert not left


def test_what_was_overwritten_is_a_newest_version_and_the_log_says_so(storage: Storage) -> None:
    storage.submit({"x": np.arange(2)}, "d", "a")
    storage.append({"x": np.arange(2)}, "d", "b", after="a")
    storage.submit({"x": np.arange(9)}, "d", "a", overwrite=True)
    storage.append({"x": np.arange(2)}, "d", "c", after="b")
    with pytest.raises(YogaError, match="2 newest versions"):
        storage.fetch("d", latest=True)
    for most in range(4):
        assert [*storage.log("d", limit=most)] == [*storage.log("d")][:most]


def test_a_manifest_with_lists_is_pickled(storage: Storage) -> None:
    ref = grow(storage, 3)
    found = pickle.loads(pickle.dumps(ref.manifest))
    assert found == ref.manifest
    assert [*found.files] == [*storage.fetch("d", "3").manifest.files]


def test_a_version_of_nested_rows_becomes_one_with_lists(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1" / "nested", tmp_path / "storage" / "nested")
    storage = Storage(tmp_path / "storage")
    rows = [*storage.fetch("nested", "hdf5")]
    before, names = "hdf5", [str(number) for number in range(7)]
    for name in names:
        storage.append(storage.fetch("nested", "lmdb")[:2], "nested", name, after=before)
        before = name
    ref = storage.fetch("nested", before)
    assert store_of(storage).manifest("nested", before).lists
    assert len(ref) == len(rows) + 14
    storage.check("nested", before)


def test_the_golden_history_is_readable_for_ever(tmp_path: Path) -> None:
    storage = Storage(GOLDEN / "v1")
    assert len(storage.log("grown")) == 12
    for version in storage.versions("grown"):
        storage.check("grown", version)
        assert numbers_of(storage.fetch("grown", version)) == grown(int(version))
    copied = Storage(tmp_path / "copy")
    assert storage.copy("grown", "11", to=copied).fingerprint == storage.fetch("grown", "11").fingerprint
    assert not store_of(copied).manifest("grown", "11").lists


def test_lists_are_sequences() -> None:
    reads: list[object] = []

    class List:
        num_listed = 2

    def read(piece: object) -> tuple[int, ...]:
        reads.append(piece)
        return 1, 2

    listed: Listed[int] = Listed([List(), 3], read)
    assert (len(listed), listed[-1], reads) == (3, 3, [])
    assert (next(reversed(listed)), reads) == (3, [])
    assert ([*reversed(listed)], listed[0], listed[1:]) == ([3, 2, 1], 1, (2, 3))
    assert listed == (1, 2, 3)
    assert listed != (1, 2)
    assert listed == listed.with_pieces([1, 2, 3])
    assert Listed([1]).with_more([2]) == (1, 2)
    with pytest.raises(TypeError):
        hash(listed)
