"""LitData's chunks in place: each value is what LitData wrote; damage is an error, pickles are refused."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from behind_urls import in_memory
from damaged import flipped
from golden.foreign_rows import FOREIGN, items, pixels, tables

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.stores.downloads import decompressed
from torchyoga.testing import assert_rows_equal, check_dataref

LITDATA = FOREIGN / "litdata"
ITEMS = items()


def edited(folder: Path, chunk: dict[str, Any] | None = None, **config: Any) -> Path:
    """A copy of a dataset whose index says other things."""
    shutil.copytree(LITDATA / "items", folder / "edited")
    index = json.loads((folder / "edited" / "index.json").read_text())
    index["config"].update(config)
    index["chunks"][0].update(chunk or {})
    (folder / "edited" / "index.json").write_text(json.dumps(index))
    return folder / "edited"


@pytest.mark.parametrize("name", ["items", "zstd", "framed"])
def test_rows_are_what_litdata_wrote(name: str, tmp_path: Path) -> None:
    ref = yoga.from_litdata(LITDATA / name, cache_dir=tmp_path)
    assert_rows_equal(list(ref), ITEMS)
    assert_rows_equal([ref[i] for i in range(len(ref))], ITEMS)
    assert ref._only_copies == (name == "items")


def test_rows_of_other_kinds() -> None:
    numbers = yoga.from_litdata(LITDATA / "numbers")
    assert (list(numbers), numbers[3]) == (list(range(9)), 3)
    for i, row in enumerate(yoga.from_litdata(LITDATA / "images")):
        assert np.array_equal(row["pil"], pixels(i))
    tokens = yoga.from_litdata(LITDATA / "tokens")
    assert [row["tokens"].tolist() for row in tokens] == [list(range(20 + i)) for i in range(9)]
    assert tokens[4]["tokens"].tolist() == list(range(24))
    assert len(tokens.token_windows("tokens", 8)) == sum(range(20, 29)) // 8


@pytest.mark.parametrize("name", ["tables", "tables-zstd"])
def test_rows_in_arrow_files_at_the_ends_of_chunks(name: str, tmp_path: Path) -> None:
    ref = yoga.from_litdata(LITDATA / name)
    assert [{**row, "list": list(row["list"])} for row in ref] == tables()
    assert [row["x"] for row in pickle.loads(pickle.dumps(ref))] == list(range(12))
    assert list(yoga.from_litdata(LITDATA / name, ["text"])[2]) == ["text"]
    check_dataref(ref)
    shutil.copytree(LITDATA / name, tmp_path / "bad")
    for chunk in sorted((tmp_path / "bad").glob("*.bin"))[1:]:
        chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.raises(CorruptError, match="has no Arrow file at its end, as others have"):
        yoga.from_litdata(tmp_path / "bad")
    chunk.unlink()
    with pytest.raises(CorruptError, match=rf"{chunk.name}: its Arrow file is damaged, or gone"):
        yoga.from_litdata(tmp_path / "bad")
    url = in_memory(LITDATA / name)
    with pytest.raises(SchemaError, match=rf"{url}: its rows lie in Arrow files .* copy the folder"):
        yoga.from_litdata(url, cache_dir=tmp_path / "cache")


def framed(chunk: bytes, each: int) -> bytes:
    """A chunk as LitData 0.2.76 compresses it, so many items at once."""
    ends = np.frombuffer(chunk, "<u4", int.from_bytes(chunk[:4], "little") + 1, 4).astype(np.int64)
    frames, table = [], b""
    edges = [*range(0, len(ends) - 1, each), len(ends) - 1]
    at = 24 + 4 * len(ends) + 24 * (len(edges) - 1)
    for first, last in itertools.pairwise(edges):
        raw = chunk[ends[first] : ends[last]]
        frames.append(pa.compress(raw, codec="zstd", asbytes=True))
        table += struct.pack("<IIQII", first, last - first, at, len(frames[-1]), len(raw))
        at += len(frames[-1])
    head = struct.pack("<8s2H3I", b"LDFZ01\0\0", 1, 0, len(ends) - 1, each, len(frames))
    return head + (ends - ends[0]).astype("<u4").tobytes() + table + b"".join(frames)


def test_lists_as_json_beside_arrays_and_items_in_several_frames(tmp_path: Path) -> None:
    photos = [b"one", b"photos"]
    rows = [{"ids": list(range(n % 4)), "x": np.arange(n, dtype=np.int32), "all": photos} for n in range(7)]
    listed = np.array([2, *map(len, photos)], "<u4").tobytes() + b"".join(photos)
    values = [[json.dumps(row["ids"]).encode(), row["x"].tobytes(), listed] for row in rows]
    items = [np.array(list(map(len, some)), "<u4").tobytes() + b"".join(some) for some in values]
    bounds = 4 * (len(items) + 2) + np.cumsum([0, *map(len, items)])
    chunk = np.array([len(items), *bounds], "<u4").tobytes() + b"".join(items)
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": '["ids", "x", "all"]', "children_spec": [leaf, leaf, leaf]}
    formats = ["json", "no_header_numpy:2", "jpeg_array"]
    config = {"data_format": formats, "data_spec": json.dumps([1, spec])}
    for compression, data in (
        ({}, chunk),
        ({"compression": "zstd", "compression_level": "batch"}, framed(chunk, 3)),
    ):
        about = {"filename": "chunk-0-0.bin", "chunk_size": len(items), "chunk_bytes": len(data)}
        index = {"config": {**config, **compression}, "chunks": [about]}
        (tmp_path / "index.json").write_text(json.dumps(index))
        (tmp_path / "chunk-0-0.bin").write_bytes(data)
        ref = yoga.from_litdata(tmp_path, cache_dir=tmp_path / "cache")
        assert_rows_equal(list(ref), rows)
        assert_rows_equal(pickle.loads(pickle.dumps(ref))[6], rows[6])
        assert yoga.jagged(ref.take(np.arange(4)))["ids"].values.tolist() == [0, 0, 1, 0, 1, 2]
    check_dataref(ref)
    assert decompressed(data, "frames", len(chunk)) == chunk
    table = range(24 + 4 * len(bounds), 24 + 4 * len(bounds) + 3 * 24)
    looked_at = (*range(10), *range(12, 16), *range(20, 24), *table)
    for damaged in flipped(data, (8 * byte + bit for byte in looked_at for bit in range(8))):
        with pytest.raises(CorruptError, match="cannot be decompressed by frames"):
            decompressed(damaged, "frames", len(chunk))
    (tmp_path / "chunk-0-0.bin").write_bytes(data[:20])
    with pytest.raises(CorruptError, match="is no index of LitData, or is damaged"):
        yoga.from_litdata(tmp_path, cache_dir=tmp_path / "other")
    (tmp_path / "chunk-0-0.bin").unlink()
    with pytest.raises(CorruptError, match=r"chunk-0-0\.bin is missing though the index names it"):
        yoga.from_litdata(tmp_path)


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="'thing' holds pickles, which can run code"):
        yoga.from_litdata(LITDATA / "pickles")
    assert list(yoga.from_litdata(LITDATA / "pickles", ["n"])) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_every_flipped_bit_of_a_table_is_an_error(tmp_path: Path) -> None:
    folder = edited(tmp_path)
    chunk = folder / json.loads((folder / "index.json").read_text())["chunks"][1]["filename"]
    sound = chunk.read_bytes()
    count = int.from_bytes(sound[:4], "little")
    ends = np.frombuffer(sound, "<u4", count + 1, 4)
    heads = [byte for start in ends[:-1].tolist() for byte in range(start, start + 4 * 12)]
    rng = np.random.default_rng(0)
    looked_at = [*range(4 * (count + 2)), *rng.choice(heads, 40).tolist()]
    for damaged in flipped(sound, (8 * byte + int(rng.integers(8)) for byte in looked_at)):
        chunk.write_bytes(damaged)
        with pytest.raises(CorruptError, match=chunk.name):
            list(yoga.from_litdata(folder))


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "10**9 rows": ({"chunk_size": 10**9}, {}, "1000000000 items in"),
    "more rows": ({"chunk_size": 90}, {}, "it says .* records in .* bytes, the index says 90"),
    "a file above": ({"filename": "../x.bin"}, {}, "leads out of the folder"),
    "a lying size": ({"chunk_bytes": 999}, {}, "where 999 are expected"),
    "no such chunk": ({"filename": "chunk-9.bin"}, {}, "chunk-9.bin is missing"),
    "fewer formats": ({}, {"data_format": ["int"]}, "is no index of LitData, or is damaged"),
    "a tree of something": ({}, {"data_spec": "[1, 3]"}, "is no index of LitData, or is damaged"),
    "no tree": ({}, {"data_spec": None}, "is no index of LitData, or is damaged"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_index_is_an_error(bad: str, tmp_path: Path) -> None:
    chunk, config, text = BAD[bad]
    with pytest.raises(CorruptError, match=text):
        list(yoga.from_litdata(edited(tmp_path, chunk, **config)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "its chunks are encrypted"),
        ({"compression": "zstd", "compression_level": "sample"}, "its items are compressed one by one"),
        ({"compression": "lz4"}, "its chunks are compressed by 'lz4'"),
        ({"item_loader": "ParquetLoader"}, "it is for 'ParquetLoader'"),
    ],
)
def test_what_cannot_be_read_in_place_says_so(config: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=text):
        yoga.from_litdata(edited(tmp_path, **config))
    with pytest.raises(NotFoundError, match=r"there is no .*index\.json"):
        yoga.from_litdata(tmp_path)
