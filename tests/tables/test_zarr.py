"""Zarr in place: each value is what zarr-python reads; what is damaged, or could run code, is refused."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import flipped

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.testing import check_dataref

zarr = pytest.importorskip("zarr")

N, FEW = 230, 60
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 6, 5), dtype=np.uint8)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Images in chunks of 20, numbers in shards, and text."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("image", data=IMAGES, chunks=(20, 6, 5))
    number = group.create_array("number", shape=(N,), chunks=(10,), shards=(50,), dtype=">i4", fill_value=7)
    number[:120] = np.arange(120)
    text = group.create_array("text", shape=(N,), chunks=(33,), dtype=str)
    text[:] = np.array([f"é{n}" * (n % 4) for n in range(N)], object)
    return tmp_path / "a.zarr"


def values(dtype: Any, shape: tuple[int, ...]) -> Any:
    return RNG.integers(0, 100, shape).astype(dtype)


FLAT: dict[str, Any] = {
    "bool": values(bool, (FEW,)),
    "half": values(np.float16, (FEW, 3)),
    "complex": values(np.complex64, (FEW,)),
    "big": values(">f8", (FEW, 2, 2)),
    "time": values("M8[ms]", (FEW,)),
    "delta": values("m8[s]", (FEW, 2)),
    "bytes": np.array([b"x" * (n % 5) for n in range(FEW)], "S5"),
    "text": np.array(["é" * (n % 3) for n in range(FEW)], "U3"),
}


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", FLAT)
def test_values_are_those_that_zarr_reads(name: str, version: int, tmp_path: Path) -> None:
    data = FLAT[name]
    chunks = (17, *np.maximum(1, np.array(data.shape[1:], int) // 2).tolist())
    array = zarr.create_array(store=tmp_path / "x.zarr", data=data, chunks=chunks, zarr_format=version)
    ref = yoga.from_zarr(tmp_path / "x.zarr")
    for row in (0, 16, 17, FEW - 1):
        found, expected = ref[row], array[row]
        if name in ("bytes", "text"):
            assert found == expected.item()
            assert type(found) in (bytes, str)
        else:
            assert np.array_equal(found, expected)
            assert found.dtype == expected.dtype.newbyteorder("=")
    check_dataref(ref)


def test_compound_values_are_dicts(tmp_path: Path) -> None:
    data = np.array([(n, n / 2) for n in range(N)], [("a", "<i4"), ("b", "<f8")])
    zarr.create_array(store=tmp_path / "x.zarr", data=data, chunks=(7,), zarr_format=2)
    ref = yoga.from_zarr(tmp_path / "x.zarr")
    assert ref[31] == {"a": 31, "b": 15.5}
    assert ref["b"][3] == 1.5


@pytest.mark.parametrize("cache_bytes", [12_000, 2**20])
def test_arrays_are_columns_and_chunks_are_files(cache_bytes: int, store: Path) -> None:
    ref = yoga.from_zarr(store, cache_bytes=cache_bytes)
    check_dataref(ref)
    assert list(ref[0]) == ["image", "number", "text"]
    assert ref.file_starts.tolist() == [*range(0, N, 20), N]
    for row in (0, 119, 120, 229):
        assert np.array_equal(ref[row]["image"], IMAGES[row])
        assert ref[row]["number"] == (row if row < 120 else 7)
        assert ref[row]["text"] == f"é{row}" * (row % 4)
    assert ref.columns(["number"])._row_bytes * 10 < ref._row_bytes
    renamed = yoga.from_zarr(store, {"x": "number"})
    assert renamed[5] == {"x": 5}
    assert yoga.from_zarr(store, "number")[5] == 5
    assert yoga.from_zarr(store / "number")[5] == 5
    assert yoga.from_zarr(zarr.open_group(store, mode="r"))[5]["number"] == 5


class Counted(zarr.storage.WrapperStore):  # type: ignore[misc]
    """A store that notes which chunks are read."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked: list[str] = []

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        self.asked += [key] * ("/c/" in key)
        return await super().get(key, *args, **kwargs)


def test_a_block_shuffle_decodes_each_chunk_once(store: Path) -> None:
    counted = Counted(zarr.storage.LocalStore(store, read_only=True))
    ref = yoga.from_zarr(zarr.open_group(counted, mode="r"), "image")
    rows = [row for batch in yoga.DataLoader(ref, 16, shuffle="block", seed=3) for row in batch]
    assert len(rows) == N
    assert sorted(counted.asked) == sorted(f"image/c/{number}/0/0" for number in range(12))


def test_what_is_not_there_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no .*nowhere"):
        yoga.from_zarr(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match=r"has no 'x'; its arrays are 'image' \(230, 6, 5\)"):
        yoga.from_zarr(store, ["x"])
    with pytest.raises(NotFoundError, match=r"has no '\.\./b\.zarr/x'"):
        yoga.from_zarr(store, ["../b.zarr/x"])
    grouped = zarr.open_group(tmp_path / "groups.zarr", mode="w")
    for name in ("a", "train/x", "train/deep/y"):
        grouped.create_array(f"in/{name}", shape=(3,), dtype="i1")
    where = re.escape(str(tmp_path / "groups.zarr"))
    text = rf"lie in groups: name one of these, as in {where}/in, or arrays"
    with pytest.raises(NotFoundError, match=text):
        yoga.from_zarr(tmp_path / "groups.zarr")
    assert len(yoga.from_zarr(tmp_path / "groups.zarr" / "in")) == 3
    text = r"has no 'in/train/xx'; its arrays are 'in/train/x' \(3,\), .*'in/a'"
    with pytest.raises(NotFoundError, match=text):
        yoga.from_zarr(tmp_path / "groups.zarr", {"x": "in/train/xx"})
    zarr.open_group(tmp_path / "none.zarr", mode="w").create_group("inner")
    with pytest.raises(NotFoundError, match=r"has no arrays$"):
        yoga.from_zarr(tmp_path / "none.zarr")
    zarr.open_group(store, mode="a").create_array("odd", shape=(3,), dtype="i1")
    with pytest.raises(SchemaError, match=r"different numbers of rows: .*'odd': 3"):
        yoga.from_zarr(store)
    ref = yoga.from_zarr(store, ["number"])
    blob = pickle.dumps(ref)
    zarr.open_group(store, mode="a")["number"].resize((10,))
    with pytest.raises(NotFoundError, match="has changed since this DataRef was made"):
        pickle.loads(blob)


def described(folder: Path, **changes: Any) -> Path:
    """An array of format 2 with other metadata."""
    zarr.create_array(store=folder, data=IMAGES[:40], chunks=(10, 6, 5), zarr_format=2)
    about = json.loads((folder / ".zarray").read_text())
    (folder / ".zarray").write_text(json.dumps(about | changes))
    return folder


@pytest.mark.parametrize("dtype", ["|O", "|u1"])
def test_pickles_are_refused(dtype: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "p.zarr", dtype=dtype, filters=[{"id": "pickle", "protocol": 5}])
    with pytest.raises((SchemaError, CorruptError), match="pickle"):
        yoga.from_zarr(folder)[0]
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2)
    group.create_array("x", data=IMAGES[:4])
    described(tmp_path / "g.zarr" / "y", dtype=dtype, filters=[{"id": "pickle", "protocol": 5}])
    with pytest.raises(SchemaError, match="pickle"):
        yoga.from_zarr(tmp_path / "g.zarr", ["y"])


def test_sizes_that_lie(tmp_path: Path) -> None:
    long = yoga.from_zarr(described(tmp_path / "long.zarr", shape=[10**9, 6, 5]))
    assert len(long) == 10**9
    assert not long[10**9 - 1].any()  # as the format says of chunks that are not there
    assert len(long.file_starts) <= 2**20 + 1
    thick = described(tmp_path / "thick.zarr", shape=[10**9, 6, 5], chunks=[10**9, 6, 5])
    with pytest.raises(ValueError, match=r"chunk 0 has about 30 GB decoded, and cache_bytes is"):
        yoga.from_zarr(thick)[0]
    with pytest.raises((CorruptError, SchemaError)):
        yoga.from_zarr(described(tmp_path / "bad.zarr", shape=[-3, 6, 5]))


@pytest.mark.filterwarnings("ignore:Object at c is not recognized")
@pytest.mark.parametrize("codec", ["gzip", "crc32c"])
def test_flipped_bits_with_checksums_are_errors(codec: str, tmp_path: Path) -> None:
    codecs = {"gzip": zarr.codecs.GzipCodec(), "crc32c": zarr.codecs.Crc32cCodec()}
    zarr.create_array(store=tmp_path / "x.zarr", data=IMAGES, chunks=(100, 6, 5), compressors=[codecs[codec]])
    file = tmp_path / "x.zarr" / "c" / "1" / "0" / "0"
    sound = file.read_bytes()
    bits = RNG.integers(80, 8 * len(sound), 60).tolist()  # behind the names and times in gzip's head
    for damaged in flipped(sound, bits):
        file.write_bytes(damaged)
        ref = yoga.from_zarr(tmp_path / "x.zarr")
        assert np.array_equal(ref[99], IMAGES[99])
        with pytest.raises(CorruptError, match=r"rows 100 to 199 cannot be read; their chunk is damaged"):
            ref[150]
    for damaged_text in ("", "{", "[]", '{"zarr_format": 3}'):
        (tmp_path / "x.zarr" / "zarr.json").write_text(damaged_text)
        with pytest.raises((CorruptError, NotFoundError)):
            yoga.from_zarr(tmp_path / "x.zarr")
