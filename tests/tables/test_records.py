"""Records of MDS and LitData: rows come as they were written, digits and empty lists too, or say why not."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch.utils._pytree import tree_flatten, treespec_dumps

import torchyoga as yoga
from torchyoga.errors import CorruptError, SchemaError

LEAF = {"type": None, "context": None, "children_spec": []}


def records(values: list[list[bytes]], bare: bool = False) -> bytes:
    """A file of records, each with the sizes of its values."""
    heads = [b"" if bare else b"".join(struct.pack("<I", len(one)) for one in row) for row in values]
    bodies = [head + b"".join(row) for head, row in zip(heads, values, strict=True)]
    ends = np.cumsum([4 * (len(bodies) + 2), *map(len, bodies)])
    return np.array([len(bodies), *ends], "<u4").tobytes() + b"".join(bodies)


def mds(
    folder: Path, encoding: str, values: list[bytes], *, said: int = 0, packed: str = "", **shard: Any
) -> Path:
    """MDS with one column, `a`; perhaps compressed, perhaps of another size than it has."""
    data = records([[value] for value in values])
    stored = pa.compress(data, codec=packed, asbytes=True) if packed else data
    folder.mkdir(exist_ok=True)
    (folder / "s").write_bytes(stored)
    raw = {"basename": "raw" if packed else "s", "bytes": said or len(data), "hashes": {}}
    entry = {
        "column_names": ["a"],
        "column_encodings": [encoding],
        "column_sizes": [None],
        "compression": {"brotli": "br"}.get(packed, packed) or None,
        "format": "mds",
        "raw_data": raw,
        "samples": len(values),
        "zip_data": {"basename": "s", "bytes": len(stored), "hashes": {}} if packed else None,
    }
    raw.update(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return folder


def litdata(
    folder: Path, chunks: list[bytes], rows: int, formats: list[str], spec: str, **config: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    told = []
    for number, data in enumerate(chunks):
        (folder / f"{number}.bin").write_bytes(data)
        told.append({"filename": f"{number}.bin", "chunk_size": rows, "chunk_bytes": len(data)})
    of = {"data_format": formats, "data_spec": spec, "item_loader": "PyTreeLoader", **config}
    (folder / "index.json").write_text(json.dumps({"config": of, "chunks": told}))
    return folder


def written(folder: Path, row: Any) -> Path:
    """One row of ints for LitData."""
    leaves, spec = tree_flatten(row)
    data = records([[struct.pack("<q", leaf) for leaf in leaves]])
    return litdata(folder, [data], 1, ["int"] * len(leaves), treespec_dumps(spec))


@pytest.mark.parametrize(
    "row",
    [
        [{}, 1],
        (1, (), 2),
        {"a": 1, "b": []},
        {"a": {}, "b": 1},
        {"a/b": 1, "a": {"b": 2}},
        {"/a": 1, "a": 2},
        {"a": [1, [[]]]},
        {0: 1, 1: 2},
    ],
    ids=repr,
)
def test_no_row_of_litdata_loses_a_container(row: Any, tmp_path: Path) -> None:
    ref = yoga.from_litdata(written(tmp_path, row))
    assert (list(ref), ref[0]) == ([row], row)


def test_columns_of_litdata_are_named_as_elsewhere(tmp_path: Path) -> None:
    folder = written(tmp_path, {"a": 1, "b/c": 2, 7: 3})
    assert list(yoga.from_litdata(folder, ["b/c", "a"])[0].items()) == [("b/c", 2), ("a", 1)]
    assert yoga.from_litdata(folder, [7])[0] == {7: 3}
    with pytest.raises(KeyError, match=r"no columns \['other'\]; it has \['a', 'b/c', 7\]"):
        yoga.from_litdata(folder, ["a", "other"])
    with pytest.raises(KeyError, match="rows that are no dicts"):
        yoga.from_litdata(written(tmp_path, [1, 2]), [1])
    with pytest.raises(TypeError, match="columns are named by a list"):
        yoga.from_litdata(written(tmp_path, {"a": 1}), "a")


def array(code: int, value: int, dtype: str) -> bytes:
    return bytes([code, 4, 1]) + np.array([value], dtype).tobytes()


def test_arrays_whose_digits_no_dtype_has_need_dtypes(tmp_path: Path) -> None:
    large = [array(64, 2**63 + 1, "<u8"), array(65, -1, "<i8")]
    folder = mds(tmp_path / "a", "ndarray", large)
    with pytest.raises(SchemaError, match=r"\['int64', 'uint64'\], and float64 has not all .*pass dtypes="):
        yoga.from_mds(folder)
    assert yoga.from_mds(folder, dtypes={"a": "float64"})["a"][1].tolist() == [-1.0]
    half = bytes([34, 4, 1]) + np.array([0.5], "<f4").tobytes()
    late = mds(tmp_path / "b", "ndarray", [half, array(65, 2**53 + 1, "<i8"), *[half] * 500])
    with pytest.raises(SchemaError, match="an array of int64, where others are of float32; pass dtypes="):
        list(yoga.from_mds(late))
    for options in ({"dtypes": {"b": "float32"}}, {"ndims": {"b": 2}}):
        with pytest.raises(KeyError, match=r"no arrays \['b'\]"):
            yoga.from_mds(folder, **options)
    for options in ({"dtypes": {"a": "O"}}, {"dtypes": {"a": "u8"}, "ndims": {"a": 0}}):
        with pytest.raises(ValueError, match="'a' cannot be arrays of"):
            yoga.from_mds(folder, **options)


def test_arrow_chunks_that_do_not_fit_together(tmp_path: Path) -> None:
    chunks = []
    for column in (pa.array([2**53 + 1]), pa.array([0.5])):
        table, sink = pa.table({"a": column}), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        chunks.append(bytes(16) + data + struct.pack("<I", len(data)) + b"LDARW01\0")
    spec = treespec_dumps(tree_flatten({"a": 1})[1])
    with pytest.raises(SchemaError, match="no schema that holds all values"):
        yoga.from_litdata(litdata(tmp_path, chunks, 1, ["int"], spec))


@pytest.mark.parametrize("packed", ["brotli", "snappy", "zstd"])
@pytest.mark.parametrize("more", [-1, 0, 1, 2**31])
def test_a_shard_decompresses_to_what_the_index_says(packed: str, more: int, tmp_path: Path) -> None:
    size = len(records([[b"x" * 20]]))
    folder = mds(tmp_path / "a", "bytes", [b"x" * 20], said=size + more, packed=packed)
    ref = yoga.from_mds(folder, cache_dir=tmp_path / "cache")
    if not more:
        assert ref[0] == {"a": b"x" * 20}
        return
    with pytest.raises(CorruptError, match="decompressed"):
        ref[0]


def test_what_can_be_told_of_places_of_tokens_is_told(tmp_path: Path) -> None:
    data = records([[np.arange(n, dtype="<i4").tobytes()] for n in (5, 0, 7)], bare=True)
    spec, loader = json.dumps([1, LEAF]), "TokensLoader"
    folder = litdata(tmp_path, [data], 3, ["no_header_tensor:16"], spec, item_loader=loader)
    assert [len(row["tokens"]) for row in yoga.from_litdata(folder)] == [5, 0, 7]
    for place, value in ((4, 24), (16, len(data) - 4), (8, len(data) - 4)):  # first, last, past the next
        bad = bytearray(data)
        bad[place : place + 4] = struct.pack("<I", value)
        (folder / "0.bin").write_bytes(bad)
        with pytest.raises(CorruptError, match="the places of its records are damaged"):
            yoga.from_litdata(folder)[0]
    (folder / "0.bin").write_bytes(data)
    index = json.loads((folder / "index.json").read_text())
    index["chunks"][0]["dim"] = 13
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptError, match="says 13 tokens in 48 bytes"):
        yoga.from_litdata(folder)


@pytest.mark.parametrize(
    "hashes",
    [
        {"shake_128": "aa"},
        {"XXHASH_VERSION": "aa"},
        {"__loader__": "a"},
        {"SHA256": "00"},
        {"": ""},
        ["sha1"],
        5,
    ],
    ids=repr,
)
def test_forged_hashes_are_an_error(hashes: Any, tmp_path: Path) -> None:
    with pytest.raises(CorruptError):
        yoga.from_mds(mds(tmp_path, "bytes", [b"x"], hashes=hashes))[0]


@pytest.mark.parametrize("shape", ["a", "-1", "-1,-1", str(10**20), "0", ",".join(["1"] * 70)])
def test_forged_shapes_are_an_error(shape: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="column 'a' holds arrays of the shape"):
        yoga.from_mds(mds(tmp_path, f"ndarray:int8:{shape}", [b"x"]))


@pytest.mark.parametrize(
    ("formats", "keys", "text"),
    [
        (["int", "int"], ["a", "a"], "a dict with the keys"),
        (["int"], [[1]], "a dict with the keys"),
        (["int"], [None], "a dict with the keys"),
        (["no_header_tensor:x"], ["a"], "holds the format 'no_header_tensor:x'"),
        (["no_header_tensor"], ["a"], "holds the format 'no_header_tensor'"),
    ],
)
def test_forged_indices_of_litdata_are_an_error(
    formats: list[str], keys: list[Any], text: str, tmp_path: Path
) -> None:
    tree = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [LEAF] * len(keys)}
    data = records([[bytes(8)] * len(keys)])
    with pytest.raises((CorruptError, SchemaError), match=text):
        yoga.from_litdata(litdata(tmp_path, [data], 1, formats, json.dumps([1, tree])))
    with pytest.raises(CorruptError, match="0 chunks"):
        yoga.from_litdata(litdata(tmp_path, [], 1, ["int"], json.dumps([1, LEAF])))


def test_values_that_cannot_be_read_name_their_place(tmp_path: Path) -> None:
    eight = bytes([8, 4, 1, 0])
    with pytest.raises(CorruptError, match=r"record 300 \(row 300\), a: an array of an unknown dtype, 7"):
        list(yoga.from_mds(mds(tmp_path, "ndarray", [*[eight] * 300, b"\x07\x04\x01\x00", *[eight] * 300])))
    with pytest.raises(
        CorruptError, match=r"record 1 .*'9223372036854775808' does not fit an int of 64 bits"
    ):
        list(yoga.from_mds(mds(tmp_path, "str_int", [b"-9223372036854775808", b"9223372036854775808"])))
    ref = yoga.from_mds(mds(tmp_path, "str", [b"b", "\ud800".encode("utf-8", "surrogatepass")]))
    assert ref[1] == ref.take(np.array([1]))[0]
    data = records([[struct.pack(">III", 10, 1, 2) + bytes(4)]])
    with pytest.raises(SchemaError, match="tensors of bfloat16, which are not supported"):
        yoga.from_litdata(litdata(tmp_path, [data], 1, ["tensor"], json.dumps([1, LEAF])))


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    texts = ["h\u00fc\0".encode() * (n % 3) for n in range(40)]
    ref = yoga.from_mds(mds(tmp_path, "str", [*texts[:17], b"h\xc3", *texts[18:]]))
    assert [row["a"].encode() for row in ref[18:]] == texts[18:]
    for act in (lambda: ref[17], lambda: ref.take(np.arange(30)), lambda: [*yoga.DataLoader(ref, 4)]):
        with pytest.raises(CorruptError, match=r"s: record 17 \(row 17\), a: .*not text"):
            act()


def test_the_fingerprint_names_more_than_the_index(tmp_path: Path) -> None:
    prints = [
        yoga.from_mds(mds(tmp_path / f"mds {n}", "str", values * 500)).fingerprint
        for n, values in enumerate([[b"aa", b"bbb"], [b"bbb", b"aa"], [b"aa", b"ccc"], [b"aa", b"bbb"]])
    ]
    assert prints[0] == prints[3]
    assert len({*prints}) == 3
    rows = [yoga.from_litdata(written(tmp_path / f"litdata {n}", [n])).fingerprint for n in range(2)]
    assert rows[0] != rows[1]


def test_a_shard_that_is_a_link_to_itself(tmp_path: Path) -> None:
    folder = mds(tmp_path / "mds", "str", [b"x"])
    (folder / "s").unlink()
    (folder / "s").symlink_to(folder / "s")
    with pytest.raises(CorruptError, match="is a link to itself"):
        yoga.from_mds(folder)
