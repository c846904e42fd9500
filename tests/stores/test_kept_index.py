"""Kept indices: made once, anew where their file or they themselves have changed, bounded with the cache."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from children import dies_in_a_child, forked
from damaged import flipped
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from torchyoga.errors import CorruptError
from torchyoga.files.checksum import crc32
from torchyoga.stores.cache import Cache, FileIndex, IndexOf, cache_of, kept_index
from torchyoga.stores.objects import ObjectInfo

KIND = "bytes 1"


class Maker:
    """Makes an index of the bytes of a file, and counts how often."""

    def __init__(self, path: Path, kind: str = KIND) -> None:
        self.path, self.kind, self.times = path, kind, 0

    def __call__(self) -> FileIndex:
        self.times += 1
        return FileIndex({"bytes": np.frombuffer(self.path.read_bytes(), "u1")}, {"name": "é"})

    def asked(self, cache: Cache) -> bytes:
        """What the index says."""
        found = kept_index(IndexOf.file(self.path, self.kind), self, cache)
        assert found.info == {"name": "é"}
        return found.arrays["bytes"].tobytes()


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    (tmp_path / "data").write_bytes(b"some bytes")
    return Maker(tmp_path / "data")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return cache_of(tmp_path / "cache", None)


def kept(cache: Cache) -> Path:
    (path,) = cache.path("files", "").iterdir()
    return path


def test_an_index_is_made_once_for_all_processes(maker: Maker, cache: Cache) -> None:
    def ask_twice() -> None:
        assert maker.asked(cache) == maker.asked(cache) == b"some bytes"
        assert maker.times == 1

    assert forked(ask_twice)() == 0
    assert maker.asked(cache) == b"some bytes"
    assert maker.times == 0
    assert not list(cache.path("parts", "").iterdir())


def test_an_index_of_a_file_that_has_changed_is_made_anew(maker: Maker, cache: Cache) -> None:
    maker.asked(cache)
    about = os.stat(maker.path)
    maker.path.write_bytes(b"other data")  # of the same size, and soon of the same time
    os.utime(maker.path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert maker.asked(cache) == b"other data"
    maker.path.write_bytes(b"other data")
    os.utime(maker.path, ns=(0, 0))
    maker.asked(cache)
    assert maker.times == 3
    assert len(list(cache.path("files", "").iterdir())) == 1  # the newer one is in place of the older
    assert Maker(maker.path, "bytes 2").asked(cache) == b"other data"
    assert len(list(cache.path("files", "").iterdir())) == 2


def test_an_object_is_told_by_its_tag_or_time(cache: Cache) -> None:
    made = []

    def asked(found: ObjectInfo) -> None:
        of = IndexOf.remote("s3://bucket/x", found, 4, KIND)
        kept_index(of, lambda: (made.append(1), FileIndex({"x": np.arange(2)}))[1], cache)

    for found, times in (
        (ObjectInfo(4, 1.0, '"a"'), 1),
        (ObjectInfo(4, 2.0, '"a"'), 1),
        (ObjectInfo(4, 2.0, '"b"'), 2),
        (ObjectInfo(4, 2.0, None), 3),
        (ObjectInfo(4, 2.0, None), 3),
        (ObjectInfo(None, None, None), 4),
        (ObjectInfo(None, None, None), 5),  # nothing tells it from later contents
    ):
        asked(found)
        assert len(made) == times


def test_every_flipped_bit_and_every_cut_is_damage(maker: Maker, cache: Cache) -> None:
    maker.asked(cache)
    path = kept(cache)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in range(0, len(whole), 7)] + [whole + b"\0"]
    damaged += flipped(whole, range(0, 8 * len(whole), 11))
    for times, data in enumerate(damaged, 2):
        path.write_bytes(data)
        assert maker.asked(cache) == b"some bytes"
        assert maker.times == times
        assert path.read_bytes() == whole
    path.unlink()
    path.symlink_to(maker.path)
    assert maker.asked(cache) == b"some bytes"


def test_a_cache_that_cannot_be_used_is_no_error(maker: Maker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the place of a folder")
    assert maker.asked(cache_of(tmp_path / "file", None)) == b"some bytes"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "files").symlink_to(tmp_path)
    assert maker.asked(cache_of(tmp_path / "cache", None)) == b"some bytes"
    assert maker.asked(cache_of(tmp_path / "small", 8)) == b"some bytes"
    assert maker.times == 3
    assert not list((tmp_path / "small" / "parts").iterdir())


def test_a_file_that_changes_meanwhile_and_one_that_fails_keep_nothing(maker: Maker, cache: Cache) -> None:
    def make() -> FileIndex:
        maker.path.write_bytes(b"more bytes than before")
        return FileIndex({})

    kept_index(IndexOf.file(maker.path, KIND), make, cache)

    def fail() -> FileIndex:
        raise CorruptError("it is cut")

    with pytest.raises(CorruptError, match="it is cut"):
        kept_index(IndexOf.file(maker.path, KIND), fail, cache)
    assert not cache.path("files", "").exists()
    with pytest.raises(TypeError, match="arrays of numbers"):
        kept_index(IndexOf.file(maker.path, KIND), lambda: FileIndex({"x": np.array(["a"])}), cache)


def test_a_process_that_dies_leaves_an_index_or_none(maker: Maker, tmp_path: Path) -> None:
    for operation in range(40):
        cache = cache_of(tmp_path / str(operation), None)
        died = dies_in_a_child(lambda cache=cache: maker.asked(cache), operation)  # type: ignore[misc]
        assert maker.asked(cache) == b"some bytes"
        if not died:
            break
    assert 3 < operation < 39
    assert maker.times == operation


def test_many_ask_at_once(maker: Maker, cache: Cache) -> None:
    begin = threading.Barrier(8)

    def ask(_: int) -> bytes:
        begin.wait(30)
        return maker.asked(cache)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {b"some bytes"}
    assert kept(cache).exists()


def test_indices_leave_a_bounded_cache_a_week_after_shards(maker: Maker, tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "cache", 1000)
    maker.asked(cache)
    shard = f"{'0' * 32}.shard"
    now = time.time()

    def age(days: float) -> None:
        os.utime(kept(cache), (now, now - 86400 * days))

    for days, stays in ((6.5, True), (7.5, False)):
        age(days)
        cache.fill(shard, 700, lambda path: (path.write_bytes(bytes(700)), None)[1], "a shard")
        cache.make_room(250)
        assert cache.has(shard) is not stays
        cache.drop(shard)
    assert not list(cache.path("files", "").iterdir())


def test_indices_unused_for_long_are_deleted(maker: Maker, tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "cache", None)
    maker.asked(cache)
    path, old = kept(cache), time.time() - 91 * 86400
    os.utime(path, (old, old))
    cache.fill(f"{'0' * 32}.shard", 1, lambda path: (path.write_bytes(b"x"), None)[1], "a shard")
    shard = cache.path("files", f"{'0' * 32}.shard")
    os.utime(shard, (old, old))

    moved = cache.folder.rename(tmp_path / "moved")  # where this process has not looked
    Maker(maker.path, "bytes 2").asked(cache_of(moved, None))
    assert sorted(path.name for path in (moved / "files").iterdir()) == sorted(
        [shard.name, IndexOf.file(maker.path, "bytes 2").key]
    )


ARRAYS = npst.arrays(
    st.one_of(
        npst.integer_dtypes(endianness="<"),
        npst.unsigned_integer_dtypes(endianness="<"),
        npst.floating_dtypes(endianness="<"),
    ),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@settings(max_examples=20)
@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4))
def test_any_numbers_come_back(arrays: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, of = Cache(Path(folder)), IndexOf("s3://b/x", 100, "tag", KIND)
        kept_index(of, lambda: FileIndex(arrays), cache)
        found = kept_index(of, lambda: FileIndex({}), cache)
        assert list(found.arrays) == list(arrays)
        for name, array in arrays.items():
            assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
            assert found.arrays[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [[2**70], [2**62, 2**62], [-1], ["x"], None, [[1]], [0] * 70])
def test_a_forged_shape_is_made_anew(shape: object, tmp_path: Path) -> None:
    cache, of = Cache(tmp_path), IndexOf("s3://b/x", 100, "tag", KIND)
    kept_index(of, lambda: FileIndex({"a": np.array([1, 2])}), cache)
    path = Path(str(cache.find(of.key)))
    head = json.dumps({"of": asdict(of), "arrays": [["a", "<i8", shape]], "info": {}}).encode()
    data = b"yogaidx1" + struct.pack("<I", len(head)) + head + bytes(16)
    path.chmod(0o600)
    path.write_bytes(data + struct.pack("<I", crc32(data)))
    assert kept_index(of, lambda: FileIndex({"a": np.array([3])}), cache).arrays["a"].tolist() == [3]


def test_an_index_that_cannot_have_been_made_so_is_replaced(maker: Maker, tmp_path: Path) -> None:
    cache, of = cache_of(tmp_path / "cache", None), IndexOf.file(maker.path, KIND)
    kept_index(of, lambda: FileIndex({"b": np.array([1])}), cache)
    for value in (2, 3):  # the second one is read
        index = kept_index(
            of, partial(FileIndex, {"a": np.array([value])}), cache, lambda index: index.arrays["a"]
        )
        assert index.arrays["a"].tolist() == [2]
    with pytest.raises(KeyError):  # of an error of its own there is no other way
        kept_index(of, lambda: FileIndex({}), cache, lambda index: index.arrays["c"])
