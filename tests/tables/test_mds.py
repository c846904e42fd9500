"""MDS in place: each value is what MosaicML Streaming wrote, locally and behind URLs; damage is an error."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from behind_urls import in_memory
from damaged import flipped
from golden.foreign_rows import ENCODINGS, FOREIGN, pixels, samples
from mds_files import encoded, write
from PIL import Image

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.testing import check_dataref

MDS = FOREIGN / "mds"
ROWS = samples()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write(tmp_path / "plain", encoded(50), 9, {"n": 8})
    return tmp_path / "plain"


def edited(folder: Path, **changes: Any) -> None:
    """Changes the first shard in an index."""
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0].update(changes)
    (folder / "index.json").write_text(json.dumps(index))


def test_every_encoding_is_read_as_by_their_own_reader() -> None:
    ref = yoga.from_mds(MDS / "all")
    assert len(ref) == len(ROWS)
    assert {column.name.partition("{")[0] for column in ref.schema.columns} == set(ENCODINGS)
    for i, (found, row) in enumerate(zip(ref, ROWS, strict=True)):
        for name, value in row.items():
            read = json.loads(found[name]) if name == "meta" else found[name]
            if isinstance(value, np.ndarray):
                assert np.array_equal(read, value)
                assert read.shape == value.shape
                assert name == "any" or read.dtype == value.dtype
            else:
                assert read == (str(value) if name == "price" else value)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["mask"]))), pixels(i, "L"))
        assert np.array_equal(found["raw"], pixels(i) if i % 2 else pixels(i, "L"))
        assert (len(found["photos"]), len(found["masks"]), len(found["files"])) == (i % 3, i % 2, 1 + i % 2)
        for data in found["masks"]:
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels(i))
        assert set(found["files"]) <= {found["photo"]}
    assert ref["any"][0].dtype == np.float32  # of the dtypes that they have, the one that holds all
    photo = ref.columns(["photo"]).decoded()[5]["photo"]
    assert np.array_equal(photo, np.asarray(Image.open(io.BytesIO(ref[5]["photo"]))))


@pytest.mark.parametrize("name", ["my data", "jos\u00e9", "c++", "#1", "a[1]", "half?", "50%20"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    shutil.copytree(MDS / "gz", tmp_path / name)
    ref = yoga.from_mds(tmp_path / name, cache_dir=tmp_path / "cache")
    assert [row["number"] for row in ref] == [row["number"] for row in ROWS]


@pytest.mark.parametrize("name", ["zstd", "br", "snappy", "gz", "bz2"])
def test_compressed_shards_are_decompressed_into_the_cache(name: str, tmp_path: Path) -> None:
    ref = yoga.from_mds(MDS / name, cache_dir=tmp_path / "cache")
    for found, row in zip(ref, ROWS, strict=True):
        assert (found["text"], found["number"]) == (row["text"], row["number"])
        assert np.array_equal(found["tokens"], row["tokens"])
    assert {path.suffix for path in (tmp_path / "cache" / "files").iterdir()} == {".shard"}
    shutil.copytree(MDS / name, tmp_path / "bad")
    file = next((tmp_path / "bad").glob("*.mds.*"))
    file.write_bytes(file.read_bytes()[:-9] + bytes(9))
    with pytest.raises(CorruptError, match=r"shard\.0000\d\.mds.* is damaged"):
        list(yoga.from_mds(tmp_path / "bad", cache_dir=tmp_path / "cache"))


def test_arrays_may_be_declared(tmp_path: Path) -> None:
    ref = yoga.from_mds(MDS / "all", ["any", "grid"], dtypes={"any": "float64"}, ndims={"grid": 4})
    assert ref[1]["any"].dtype == np.float64
    assert [column.ndim for column in ref.schema.columns] == [1, 4]
    assert ref[1]["grid"].shape == (2, 2)
    with pytest.raises(SchemaError, match="any: an array of uint16, where others are of int16; pass"):
        list(yoga.from_mds(MDS / "all", ["any"], dtypes={"any": "int16"}))
    with pytest.raises(SchemaError, match="grid: an array of 2 dimensions, where others have 1; pass ndims="):
        list(yoga.from_mds(MDS / "all", ["grid"], ndims={"grid": 1})["grid"])


def test_pickles_are_refused_with_a_way_out() -> None:
    with pytest.raises(SchemaError, match="column 'thing' holds pickles, which can run code"):
        yoga.from_mds(MDS / "pkl")
    assert list(yoga.from_mds(MDS / "pkl", ["number"]))[3] == {"number": ROWS[3]["number"]}
    with pytest.raises(KeyError, match=r"no columns \['other'\]; it has number, thing"):
        yoga.from_mds(MDS / "pkl", ["other"])


@pytest.mark.parametrize("file", ["index.json", "shard.00002.mds"])
def test_flipped_bits_with_hashes_are_errors(file: str, tmp_path: Path) -> None:
    shutil.copytree(MDS / "all", tmp_path / "all")
    sound = (tmp_path / "all" / file).read_bytes()
    expected = [row["number"] for row in ROWS]
    rng = np.random.default_rng(0)
    for damaged in flipped(sound, rng.integers(0, 8 * len(sound), 150).tolist()):
        (tmp_path / "all" / file).write_bytes(damaged)
        try:
            assert [row["number"] for row in yoga.from_mds(tmp_path / "all", ["number"])] == expected
        except (CorruptError, SchemaError, KeyError, NotFoundError, ImportError):
            continue
        assert file == "index.json"  # where it was in what is not looked at


def test_every_flipped_bit_of_a_table_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, encoded(8), 4, {"n": 8})
    shard = tmp_path / "shard.00001.mds"
    sound = shard.read_bytes()
    ends = np.frombuffer(sound, "<u4", 5, 4)
    heads = [byte for start in ends[:-1].tolist() for byte in range(start, start + 8)]
    bits = [8 * byte + bit for byte in (*range(24), *heads) for bit in range(8)]
    for damaged in flipped(sound, bits):
        shard.write_bytes(damaged)
        said = r"shard\.00001\.mds: (record \d \(row [4-7]\)|it says \d+ records)"
        with pytest.raises(CorruptError, match=said):
            list(yoga.from_mds(tmp_path))


def raw(name: str, nbytes: int | None = 99, **hashes: str) -> dict[str, Any]:
    return {"raw_data": {"basename": name, "bytes": nbytes, "hashes": hashes}}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"format": "json"}, "shards of format 'json'"),
    "10**9 rows": ({"samples": 10**9}, "1000000000 samples in"),
    "rows below 0": ({"samples": -1}, "-1 samples in"),
    "more rows": ({"samples": 10}, "it says 9 records in .* bytes, the index says 10"),
    "no whole number": ({"samples": 1.5}, "is not an index of MDS, or is damaged"),
    "a column twice": ({"column_names": ["x", "x", "y"]}, "columns .* of encodings"),
    "columns without sizes": ({"column_sizes": [8]}, "columns .* of encodings"),
    "a size below 0": ({"column_sizes": [-8, None, None]}, "columns of sizes"),
    "a file above": (raw("../x"), "leads out of the folder"),
    "a file elsewhere": (raw("/etc/passwd"), "leads out of the folder"),
    "a file of Windows": (raw("..\\x"), "is no name of a file"),
    "a lying size": (raw("shard.00000.mds"), "where 99 are expected"),
    "another hash": (raw("shard.00000.mds", None, sha1="00"), "its sha1 is .*, the index says 00"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_index_is_an_error(bad: str, plain: Path) -> None:
    changes, text = BAD[bad]
    if changes.get("raw_data", {}).get("bytes", 0) is None:
        changes["raw_data"]["bytes"] = (plain / "shard.00000.mds").stat().st_size
    edited(plain, **changes)
    with pytest.raises(CorruptError, match=text):
        list(yoga.from_mds(plain))


def test_other_bad_input(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no .*none.*index\.json"):
        yoga.from_mds(tmp_path / "none")
    edited(plain, column_encodings=["int", "bytes", "str"])
    with pytest.raises(SchemaError, match="the first shard"):
        yoga.from_mds(plain)
    for text in ("[]", "{", '{"shards": 3, "version": 2}', '{"version": 3}'):
        (plain / "index.json").write_text(text)
        with pytest.raises(CorruptError, match=r"index\.json"):
            yoga.from_mds(plain)


@pytest.mark.parametrize("columns", [None, ["n"]])
def test_a_dataset_without_a_sample_is_empty(columns: Any, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    ref = yoga.from_mds(tmp_path, columns)
    assert (len(ref), list(ref), list(yoga.DataLoader(ref, 2, shuffle=True))) == (0, [], [])
    check_dataref(ref)
    assert len(yoga.Storage(tmp_path / "s").submit(ref, "none", "1", progress=False)) == 0


def test_damage_behind_a_url(plain: Path, tmp_path: Path) -> None:
    fs, url = fsspec.filesystem("memory"), in_memory(plain)
    fs.pipe_file(f"{url}/shard.00003.mds", fs.cat_file(f"{url}/shard.00003.mds")[:-1])
    with pytest.raises(CorruptError, match=rf"{url}/shard\.00003\.mds has \d+ bytes, not"):
        yoga.from_mds(url, cache_dir=tmp_path)
    fs.rm_file(f"{url}/shard.00003.mds")
    with pytest.raises(CorruptError, match=r"shard\.00003\.mds is missing though the index names it"):
        yoga.from_mds(url, cache_dir=tmp_path)
    data = (plain / "shard.00000.mds").read_bytes()
    digits = hashlib.md5(data, usedforsecurity=False).hexdigest()
    edited(plain, raw_data={"basename": "shard.00000.mds", "bytes": len(data), "hashes": {"md5": digits}})
    fs.pipe_file(f"{url}/index.json", (plain / "index.json").read_bytes())
    fs.pipe_file(f"{url}/shard.00003.mds", (plain / "shard.00003.mds").read_bytes())
    fs.pipe_file(f"{url}/shard.00000.mds", data[:-1] + b"!")
    with pytest.raises(CorruptError, match=r"is damaged: its md5 is .*, the index says"):
        yoga.from_mds(url, cache_dir=tmp_path)[0]
    assert yoga.from_mds(url, cache_dir=tmp_path, verify=False)[0]["n"] == 0


def test_indices_of_the_other_library_are_told(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"chunks": [], "config": {}}')
    with pytest.raises(CorruptError, match=r"damaged: 'version'; it has chunks of LitData, for from_litdata"):
        yoga.from_mds(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    with pytest.raises(CorruptError, match="; it has shards of MDS, for from_mds"):
        yoga.from_litdata(tmp_path)
