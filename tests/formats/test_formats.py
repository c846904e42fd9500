"""Files: the kit, the golden version, hostile manifests, and plain LMDB."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import torch
from children import run_program
from damaged import resealed, sealed
from golden.make import nested, rows
from infiles import written
from kits import check_format
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.formats import contract as formats
from torchyoga.reading.reader import Reader
from torchyoga.rows.block import Block, Data, Rows
from torchyoga.rows.collector import block_of
from torchyoga.rows.column import Column
from torchyoga.rows.node import Node
from torchyoga.rows.schema import Schema
from torchyoga.testing import assert_rows_equal
from torchyoga.versions.file_entry import FileEntry
from torchyoga.versions.names import SUFFIXES

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
HDF5_GOLDEN = ("hdf5", "hdf5 gzip")


KINDS = [(name, c) for name in formats.FORMATS for c in (None, *formats.format_named(name).COMPRESSIONS)]


def test_the_suffix_of_every_format_is_one_of_a_data_file() -> None:
    found = {formats.format_named(name).SUFFIX for name in formats.FORMATS}
    assert {f".{suffix}" for suffix in SUFFIXES} == {*found, ".list"}


@pytest.mark.slow("hdf5-gzip")
@pytest.mark.parametrize(("name", "compression"), KINDS)
def test_every_format_passes_the_kit(name: str, compression: str | None, tmp_path: Path) -> None:
    check_format(formats.format_named(name), tmp_path, compression)


def test_the_kit_finds_a_format_that_writes_something_else(tmp_path: Path) -> None:
    class Wrong:
        SUFFIX = ".mdb"
        read_extents = staticmethod(formats.format_named("lmdb").read_extents)

        class Writer:
            def __init__(self, path: str, schema: Any, compression: Any) -> None:
                self.inner = formats.format_named("lmdb").Writer(path, schema)

            def write(self, block: Any) -> list[int]:
                return [crc ^ 1 for crc in self.inner.write(block)]

            def close(self) -> Any:
                return self.inner.close()

    with pytest.raises(AssertionError, match="the checksum does not match the bytes"):
        check_format(Wrong, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("id", "versions", "make", "fingerprint"),
    [
        ("golden", ["1", "hdf5", "hdf5 gzip"], rows, "5e34989e41fe5a34ee6fc90b13d52432"),
        ("nested", ["hdf5", "lmdb"], nested, "bb526f7dab3abe0d958d0347ac9317f4"),
    ],
)
def test_the_golden_versions_are_readable_for_ever(
    id: str, versions: list[str], make: Any, fingerprint: str
) -> None:
    storage = yoga.Storage(GOLDEN)
    assert storage.versions(id) == versions
    for version in versions:
        ref = storage.fetch(id, version)
        assert_rows_equal(list(ref), make())
        assert ref.fingerprint == fingerprint
        storage.check(id, version)
    assert {path.name for path in GOLDEN.iterdir()} == {"golden", "grown", "nested", "wide"}  # nothing new


def test_golden_versions_are_those_of_today(tmp_path: Path) -> None:
    golden = yoga.Storage(GOLDEN).fetch("golden", "1")
    ref = yoga.Storage(tmp_path).submit(rows(), "golden", "1", record=False, progress=False)
    assert ref.fingerprint == golden.fingerprint
    one, other = (
        json.loads((root / "golden" / "1" / "manifest.json").read_bytes()) for root in (GOLDEN, tmp_path)
    )
    for of in (one, other):
        assert of["torchyoga"] == 1
        del of["build"], of["created"], of["checksum"], of["files"][0]["name"]
    assert one == other


def test_plain_lmdb_reads_the_blocks_by_key(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit({"x": np.arange(3000, dtype=np.int32).reshape(1000, 3)}, "a", "1")
    (path,) = (tmp_path / "a" / "1").glob("*.mdb")
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        value = transaction.get(b"0000000000/x/values")
        assert np.frombuffer(value[:12_000], "<i4").tolist() == list(range(3000))


def test_hostile_offsets_are_refused(tmp_path: Path) -> None:
    # Offsets that point outside of their values, in a file whose checksums are right.
    block = block_of([b"abc", b"", b"defg"])
    bad_offsets: list[list[int]] = [[0, 9, 9, 9], [0, 3, 2, 7], [-5, 3, 3, 7], [0, 2**62, 3, 7]]
    for number, offsets in enumerate(bad_offsets):
        name = f"{number:016x}-00000.mdb"
        data = Data(block.data[0].values, np.array(offsets, "<i8"))
        entry = written(tmp_path / name, Block(block.schema, 3, (data,)))
        with pytest.raises(CorruptError, match="point outside their block"):
            Reader(str(tmp_path), block.schema, [entry]).take(np.arange(3))


def test_counts_that_wrap_around_are_refused() -> None:
    schema = yoga.Schema.of(np.zeros(2))

    def check(counts: list[int], sizes: list[int], num_rows: int) -> None:
        starts = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
        zeros = np.zeros(len(counts), np.int64)
        extent = formats.Extent(starts, zeros, np.array(sizes, np.int64), zeros)
        formats.check_extents([extent], schema, 10**6, num_rows)

    check([3, 2], [48, 32], 5)
    check([5, 0], [80, 0], 5)
    for counts, sizes, num_rows in [
        ([2**62] * 4 + [5], [0, 0, 0, 0, 80], 5),  # 2**64 + 5 in all
        ([2**60], [0], 2**60),  # of 2**64 bytes
        ([2**60 + 1], [16], 2**60 + 1),
        ([6, -1], [96, 0], 5),
        ([5], [64], 5),
        ([], [], 5),
    ]:
        with pytest.raises(CorruptError, match="does not fit its rows and its size"):
            check(counts, sizes, num_rows)


def test_blocks_outside_the_file_are_refused() -> None:
    # A slice that goes beyond the end of an array is just shorter.
    ragged = yoga.Schema.of(np.zeros(2), ragged=["value"])
    numbers, places = np.array([0, 3]), np.array([0, 2])
    one = np.zeros(1, np.int64)

    def check(offset: int = 0, low: int = 0, high: int = 3) -> None:
        values = formats.Extent(numbers, one + offset, one + 24, one)
        offsets = formats.Extent(places, one, one + 24, one, one + low, one + high)
        formats.check_extents([values, offsets], ragged, 100, 2)

    check()
    check(offset=76)
    check(low=3)
    for wrong in ({"offset": 77}, {"offset": 101}, {"offset": -1}, {"high": 4}, {"low": 4}, {"low": -1}):
        with pytest.raises(CorruptError, match="does not fit its rows and its size"):
            check(**wrong)


def test_a_table_of_blocks_is_compared_with_its_checksum(tmp_path: Path) -> None:
    # Two blocks of equal size, each in the other's place: their rows would come in another order.
    schema = Schema.of(np.zeros(9))
    blocks = [block_of([np.full(9, float(i)) for i in range(start, start + 4)], schema) for start in (0, 4)]
    entry = written(tmp_path / "a.mdb", *blocks)
    index, data = entry.index, bytearray((tmp_path / "a.mdb").read_bytes())
    assert [row[0] for row in Rows(Reader(str(tmp_path), schema, [entry]).take(np.arange(8)))] == [*range(8)]
    start, half = index["offset"], index["nbytes"] // 2
    one, other = data[start : start + half], data[start + half : start + 2 * half]
    data[start : start + 2 * half] = other + one
    (tmp_path / "b.mdb").write_bytes(data)
    swapped = FileEntry("b.mdb", "lmdb", 8, len(data), index, ())
    with pytest.raises(CorruptError, match="the index of blocks inside the file is damaged"):
        Reader(str(tmp_path), schema, [swapped]).take(np.arange(8))


def test_compressed_files_and_others_do_not_mix(tmp_path: Path) -> None:
    schema, block = Schema.of(np.zeros(9)), block_of([np.arange(9.0)])
    entries = [
        written(tmp_path / name, block, compression=compression)
        for name, compression in (("a.h5", None), ("b.h5", "gzip"))
    ]
    for files in (entries, entries[::-1]):
        reader = Reader(str(tmp_path), schema, files)
        with pytest.raises(CorruptError, match="some of the files are compressed and some are not"):
            reader.take(np.arange(2))
        one_by_one = Reader(str(tmp_path), schema, files, most_open=1)
        for number in (0, 1, 0):  # a file makes room for the next
            assert one_by_one.take(np.array([number])).num_rows == 1
        assert reader.take(np.array([0])).num_rows == 1
        with pytest.raises(CorruptError, match="some of the files are compressed and some are not"):
            reader.take(np.array([1]))
        assert reader.take(np.array([0])).num_rows == 1
        for number in range(2):
            assert (
                Reader(str(tmp_path), schema, files[number : number + 1]).take(np.zeros(1, int)).num_rows == 1
            )


def test_hostile_shapes_are_refused(tmp_path: Path) -> None:
    # Shapes that do not make up their values, in a file whose checksums are right; some wrap around to 0.
    block = block_of([np.zeros((2, 3)), np.zeros((0, 2)), np.zeros(4)])
    schema, (data,) = block.schema, block.data
    whole = data.part("shapes")
    for number, (row, shape) in enumerate(
        [(2, [4, -1]), (0, [3, 3]), (1, [2, 2]), (1, [2**32, 2**32]), (0, [2**62 + 3, 2]), (0, [-1, -1])]
    ):
        name = f"{number:016x}-00000.mdb"
        shapes = whole.copy()
        shapes[row] = shape
        entry = written(tmp_path / name, Block(schema, 3, (Data(data.values, data.offsets, shapes),)))
        reader = Reader(str(tmp_path), schema, [entry])
        if not number:
            assert [found.shape for found in Rows(reader.take(np.arange(3)))] == [(2, 3), (0, 2), (4,)]
            continue
        with pytest.raises(CorruptError, match="the shapes of column 'value' do not fit its values"):
            reader.take(np.arange(3))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    for number, value in enumerate((b"\xff\xfe", np.bytes_(b"\xff\xfe"))):
        storage = yoga.Storage(tmp_path / str(number))
        storage.submit([value], "a", "1")
        manifest = storage.path / "a" / "1" / "manifest.json"
        content = json.loads(manifest.read_bytes())
        (column,) = content["schema"]["columns"]
        column["kind"] = column["kind"].replace("bytes", "str")
        manifest.write_bytes(sealed(content))
        with pytest.raises(CorruptError, match="not UTF-8"):
            storage.fetch("a", "1")[0]


@pytest.mark.slow("hdf5-gzip")
@pytest.mark.parametrize(("format", "compression"), KINDS)
def test_a_check_compares_the_rows_with_the_checks_of_the_manifest(
    format: str, compression: str | None, tmp_path: Path
) -> None:
    rows = [
        {"x": np.arange(300) + i, "t": "a" * (i % 40), "n": None, "r": np.ones((i % 3, 2))}
        for i in range(900)
    ]
    storage = yoga.Storage(tmp_path, format=format, compression=compression)
    storage.submit(rows, "a", "1")
    storage.check("a", "1")
    path = tmp_path / "a" / "1" / "manifest.json"
    content = json.loads(path.read_bytes())
    schema = Schema.from_json(content["schema"])
    names = [f"{column.name}/{part}" for column in schema.columns for part in column.parts]
    checks = content["files"][0]["checks"]
    assert len(checks) == len(names) == 7
    for number, name in enumerate(names):
        if name == "n/values":
            continue  # nothing to compare
        checks[number][1] ^= 1
        path.write_bytes(sealed(content))
        # Each block matches the table in the file; but it is not what was published.
        with pytest.raises(CorruptError, match=f"{name} has .* bytes of the CRC-32 .*, the manifest says"):
            storage.check("a", "1")
        checks[number][1] ^= 1
    path.write_bytes(sealed(content))
    storage.check("a", "1")


def test_a_forged_schema_is_refused_when_its_version_is_opened(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    ref = storage.submit({"x": np.arange(12, dtype="<f4").reshape(4, 3)}, "a", "1")
    path = tmp_path / "a" / "1" / "manifest.json"
    sound = path.read_bytes()

    def changed(**change: Any) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(sound)
        content["schema"]["columns"][0].update(change)
        return content

    for change in ({"dtype": "<i4"}, {"shape": [0]}, {"shape": [1, 3], "ndim": 2}):
        path.write_bytes(resealed(changed(**change)))
        for ask in (storage.fetch, storage.check):
            with pytest.raises(CorruptError, match=r"fingerprint is not that of|do not cover the bytes"):
                ask("a", "1")
    path.write_bytes(sealed(changed(shape=[0])))
    with pytest.raises(CorruptError, match="x/values do not cover the bytes that its rows have"):
        storage.fetch("a", "1")
    # If everything is made anew, it is another dataset, with another fingerprint.
    path.write_bytes(sealed(changed(dtype="<i4")))
    assert storage.fetch("a", "1").fingerprint != ref.fingerprint


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_writer_that_cannot_write_raises_and_closes_its_file(name: str, tmp_path: Path) -> None:
    writer, schema = formats.format_named(name).Writer, yoga.Schema.of(1)
    with pytest.raises(OSError, match=r"No such file or directory.*nowhere"):
        writer(str(tmp_path / "nowhere" / "x"), schema)
    # LMDB opens a file only once in a process: a file that is closed or abandoned can be opened again.
    for end in ("abort", "close", "abort"):
        getattr(writer(str(tmp_path / "x"), schema), end)()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")
def test_a_growing_file_is_written_to_the_disk_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = formats._sync_range, list[tuple[int, int, int]]()

    def noted(handle: int, start: int, nbytes: int, flags: int) -> int:
        asked.append((start, nbytes, real(handle, start, nbytes, flags)))
        return asked[-1][2]

    monkeypatch.setattr(formats, "_sync_range", noted)
    monkeypatch.setattr(formats, "_STRETCH", 100)
    (tmp_path / "x").touch()
    early = formats.Writeback(str(tmp_path / "x"))
    with (tmp_path / "x").open("ab", buffering=0) as file:
        for _ in range(5):
            file.write(b"x" * 60)
            early.grow(60)
    early.close()
    early.close()
    assert asked == [(0, 120, 0), (120, 120, 0)]


@pytest.mark.parametrize(("name", "compression"), KINDS)
def test_a_file_holds_nothing_else_of_the_memory_of_its_writer(
    name: str, compression: str | None, tmp_path: Path
) -> None:
    secret = b"not for publication "
    schema = Schema.of({"x": np.zeros(500)})
    for number in range(20):
        freed = [secret * size for size in range(50, 1000)]
        del freed  # malloc gives this memory to the next that asks
        writer = formats.format_named(name).Writer(str(tmp_path / str(number)), schema, compression)
        for count in (1, 5, 9):
            writer.write(Block(schema, count, (Data(np.ones((count, 500))),)))
        writer.close()
        assert secret not in (tmp_path / str(number)).read_bytes()


def test_values_of_any_size_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Around the size of a page, and of an LMDB map that has to grow more than once.
    monkeypatch.setattr("torchyoga.formats.lmdb._FIRST_MAP", 2**20)
    for size in (0, 1, 4079, 4080, 4081, 4095, 4096, 4097, 8192, 9 * 2**20):
        pair = [np.full(size, 7, np.uint8), np.full(size, 8, np.uint8)]
        ref = yoga.Storage(tmp_path).submit(pair, "a", str(size))
        assert_rows_equal(list(ref), pair)
        yoga.Storage(tmp_path).remove("a", str(size))


def test_plain_h5py_reads_every_column(tmp_path: Path) -> None:
    rows = [
        {
            "image": np.full((2, 3), i, np.uint8),
            "label": i,
            "meta": {"name": "né" * i, "flag": i % 2 == 0, "sizes": (i, float(i))},
            "tokens": torch.arange(i, dtype=torch.int16),
            "box": np.full((i, 2), i, ">f4"),
            "half": torch.full((2,), i / 2, dtype=torch.bfloat16),
            "when": np.array(["2020-01-01", "2021-01-01"], "M8[D]") + i,
            "wave": np.full(2, i * 1j, np.complex64),
            "word": np.array(["añ", "b"]),
            "none": None,
            "nothing": np.zeros((0, 3)),
        }
        for i in range(1, 8)
    ]
    for compression in (None, "gzip"):
        storage = yoga.Storage(tmp_path / str(compression), format="hdf5", compression=compression)
        ref = storage.submit(rows, "rows", "1")
        assert_rows_equal(list(ref), rows)
        (path,) = (storage.path / "rows" / "1").glob("*.h5")
        with h5py.File(path) as file:
            assert (file.attrs["torchyoga"], file.attrs["rows"]) == (1, 7)
            assert yoga.Schema.from_json(json.loads(file.attrs["schema"])) == ref.schema
            columns = file["columns"]
            assert np.array_equal(columns["image"], [row["image"] for row in rows])
            assert columns["label"][...].tolist() == [row["label"] for row in rows]
            assert columns["meta/flag"][...].tolist() == [row["meta"]["flag"] for row in rows]
            assert columns["meta/flag"].dtype == bool
            assert columns["meta/sizes/1"][...].tolist() == [row["meta"]["sizes"][1] for row in rows]
            name = columns["meta/name"]
            assert name.attrs["encoding"] == "utf-8"
            values, offsets = name["values"][...], name["offsets"][...]
            texts = [values[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)]
            assert texts == [row["meta"]["name"] for row in rows]
            values, offsets, shapes = (columns["box"][part][...] for part in ("values", "offsets", "shapes"))
            for row, a, b, shape in zip(rows, offsets, offsets[1:], shapes, strict=False):
                assert np.array_equal(values[a:b].reshape(shape), row["box"])
            assert columns["half"][...].tolist() == [row["half"].tolist() for row in rows]
            when = columns["when"]
            assert np.array_equal(when[...].view(when.attrs["dtype"]), [row["when"] for row in rows])
            assert columns["wave"][...].tolist() == [row["wave"].tolist() for row in rows]
            word = columns["word"][2]
            assert ["".join(map(chr, points)).strip("\0") for points in word.tolist()] == ["añ", "b"]
            assert columns["none"].shape == (7, 0)
            assert columns["nothing"].shape == (7, 0, 3)

            def check(name: str, thing: Any) -> None:
                if isinstance(thing, h5py.Dataset) and name.startswith("columns") and name != "columns/half":
                    assert zlib.crc32(thing[...].tobytes()) == thing.attrs["crc32"], name

            file.visititems(check)


def test_similar_columns_are_read_alike(tmp_path: Path) -> None:
    rows = [{**{f"t{i}": f"{i} {n}" * 9 for i in range(50)}, "x": np.full((2, 3), n)} for n in range(2)]
    for compression in ("gzip", None):
        storage = yoga.Storage(tmp_path / str(compression), format="hdf5", compression=compression)
        storage.submit(rows, "a", "1")
        (path,) = (storage.path / "a" / "1").glob("*.h5")
        with h5py.File(path) as file:
            for i in range(50):
                column = file[f"columns/t{i}"]
                assert column["offsets"].compression is None
                is_gzip = column["values"].compression == "gzip"
                assert is_gzip == column["values"].shuffle == (compression == "gzip")
                assert column["values"].maxshape == column["offsets"].maxshape == (None,)
                assert column["values"][...].tobytes() == (f"{i} 0" * 9 + f"{i} 1" * 9).encode()
            assert file["columns/x"].maxshape == (None, 2, 3)
        assert list(map(str, storage.fetch("a", "1"))) == list(map(str, rows))
        if compression is not None:
            content = json.loads((path.parent / "manifest.json").read_bytes())
            schema, index = Schema.from_json(content["schema"]), content["files"][0]["index"]
            data = np.frombuffer(path.read_bytes(), np.uint8)
            extents = formats.format_named("hdf5").read_extents(data, index, schema)
            assert sum(extent.decode is not None for extent in extents) == 51
            for extent in (extent for extent in extents if extent.decode is not None):
                start, out = int(extent.offsets[0]), np.empty(extent.block_bytes, np.uint8)
                extent.decode(0, data[start : start + int(extent.nbytes[0])], out)


def test_large_columns_are_cut_into_chunks_that_hdf5_can_cache(tmp_path: Path) -> None:
    # 3 MB of images and 2.4 MB of tokens, whose rows lie across chunks.
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 600, 1000)
    rows = [(rng.integers(0, 9, 3000, np.uint8), rng.integers(0, 99, length)) for length in lengths]
    for compression, size in ((None, 2**20), ("gzip", 2**16)):
        storage = yoga.Storage(tmp_path / str(compression), format="hdf5", compression=compression)
        ref = storage.submit(rows, "rows", "1")
        order = rng.permutation(1000).tolist()
        for number, row in zip(order, ref[order], strict=True):
            assert_rows_equal(row, rows[number])
        assert_rows_equal(ref[[3, 3, 999]], [rows[3], rows[3], rows[999]])
        (path,) = (storage.path / "rows" / "1").glob("*.h5")
        with h5py.File(path) as file:
            for name, row_bytes in (("columns/0", 3000), ("columns/1/values", 8)):
                assert size / 2 < file[name].chunks[0] * row_bytes <= size
                assert file[name].id.get_num_chunks() > 2
            joined = np.concatenate([tokens for _, tokens in rows])
            assert np.array_equal(file["columns/1/values"], joined)
        storage.check("rows", "1")


def test_an_error_names_values_that_hdf5_cannot_hold(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path, format="hdf5")
    deep = [np.zeros((1,) * 31)] * 2
    assert_rows_equal(list(storage.submit(deep, "deep", "1")), deep)
    with pytest.raises(SchemaError, match="up to 31 dimensions and 4 GiB"):
        storage.submit([np.full((1,) * 31, "ab")], "deeper", "1")  # whose letters have one of their own
    huge = Schema(Node("leaf"), (Column("value", "ndarray", "|u1", (2**32,), 1),))
    with pytest.raises(SchemaError, match=r"column 'value': HDF5 holds rows .*; make several rows"):
        formats.format_named("hdf5").Writer(str(tmp_path / "x.h5"), huge)
    assert storage.list() == [("deep", "1")]


def test_a_row_of_more_bytes_than_a_value_of_lmdb_is_refused(tmp_path: Path) -> None:
    writer: Any = formats.format_named("lmdb").Writer(str(tmp_path / "x.mdb"), Schema.of(1))
    with pytest.raises(SchemaError, match="LMDB holds less than 4 GiB; make several rows of it"):
        writer._put([(b"x", np.zeros(2**32, np.uint8))])  # pages that are never touched take no memory
    writer.abort()


def test_errors_list_the_known_formats_and_compressions() -> None:
    with pytest.raises(ValueError, match=r"format='zip' is not known; choose one of \['lmdb', 'hdf5'\]"):
        formats.format_named("zip")
    with pytest.raises(ValueError, match=r"format='lmdb' has no compression='gzip'.*or format='hdf5'"):
        formats.format_named("lmdb", "gzip")
    with pytest.raises(ValueError, match=r"no compression='zip'; choose one of \[None, 'gzip'\]"):
        formats.format_named("hdf5", "zip")


READ_FORGED = """
import json, sys, zlib
import numpy as np
from pathlib import Path
from torchyoga.reading.version_ref import VersionRef
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.versions.manifest import Manifest
from torchyoga.testing import assert_rows_equal
sys.path.insert(0, sys.argv[3])
from damaged import resealed
from golden.make import nested, rows
from infiles import written
from waiting import PATIENCE

directory, scratch = Path(sys.argv[1]), Path(sys.argv[2])
content = json.loads((directory / "manifest.json").read_bytes())
(entry,) = content["files"]
whole = np.frombuffer((directory / entry["name"]).read_bytes(), np.uint8)
index = entry["index"]
table = whole[index["offset"] : index["offset"] + index["nbytes"]].view("<i8")
rng = np.random.default_rng(0)
outcomes = {"read": 0, "refused": 0}
for place in range(0, len(table), int(sys.argv[4])):
    is_now = table[place]
    for value in (-1, 0, 1, 5, 7, 2**20, 2**31, 2**61, -(2**62), 2**63 - 1, is_now + 1, is_now - 8):
        forged = table.copy()
        forged[place] = value
        data = whole.copy()
        data[index["offset"] : index["offset"] + index["nbytes"]] = forged.view(np.uint8)
        (scratch / entry["name"]).write_bytes(data.tobytes())
        index["crc32"] = zlib.crc32(forged.tobytes())
        (scratch / "manifest.json").write_bytes(resealed(content))
        verify = bool(place % 2)
        ref = VersionRef(str(scratch), Manifest.from_bytes(resealed(content)), verify)
        try:
            found = list(ref)
            ref[[4, 0, 2]]
            if verify:
                assert_rows_equal(found, rows())
            outcomes["read"] += 1
        except CorruptError:
            outcomes["refused"] += 1
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize(
    "every", [30, pytest.param(7, marks=pytest.mark.rest), pytest.param(1, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("version", HDF5_GOLDEN)
@pytest.mark.damages("tables of chunks are forged")
def test_hostile_tables_of_chunks_never_crash(version: str, every: int, tmp_path: Path) -> None:
    directory = GOLDEN / "golden" / version
    arguments = [str(directory), str(tmp_path), str(GOLDEN.parents[1]), str(every)]
    finished = run_program(READ_FORGED, *arguments)
    assert finished.returncode == 0, finished.stderr
    outcomes = json.loads(finished.stdout)
    assert outcomes["refused"] > 500 // every
    assert outcomes["read"] > 100 // every  # for example, the same number, or a mask without meaning


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("num_rows", [3, 2**17 + 3])  # less than a chunk, and more
def test_the_memory_of_a_block_may_be_used_again_once_the_next_is_written(
    num_rows: int, compression: str | None, tmp_path: Path
) -> None:
    """However late the writing thread is."""
    schema = yoga.Schema.of(np.int64(1))
    writer = formats.format_named("hdf5").Writer(str(tmp_path / "x.h5"), schema, compression)
    gate = threading.Event()
    writer.later(lambda: gate.wait(PATIENCE))
    late = threading.Timer(0.2, gate.set)
    memory = [np.empty(num_rows, np.int64) for _ in range(2)]
    late.start()
    try:
        for number in range(6):
            values = memory[number % 2]
            values[:] = np.arange(number, number + num_rows)
            writer.write(Block(schema, num_rows, (Data(values),)))
        memory[0][:] = -1
        writer.close()
    finally:
        gate.set()
        late.join()
        writer.abort()
    with h5py.File(tmp_path / "x.h5") as file:
        (found,) = (each[...] for each in file["columns"].values())
    assert np.array_equal(found.reshape(6, num_rows), np.arange(num_rows) + np.arange(6)[:, None])
