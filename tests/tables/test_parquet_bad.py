"""Parquet files that are wrong, change, or cannot be rows: each is refused by file and column, none hangs."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from children import status_of_child
from damaged import flip

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError, YogaError
from torchyoga.tables.parquet import thrift
from torchyoga.tables.parquet.thrift import described

TABLE = pa.table({"id": np.arange(40), "text": [f"row {i}" for i in range(40)]})


def written(path: Path, table: pa.Table = TABLE, **how: Any) -> Path:
    pq.write_table(table, path, row_group_size=8, **how)
    return path


def footer_of(data: bytes) -> int:
    """Where the footer of a file begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


# What becomes of the bytes of a file, and what is said then.
AT_OPEN: dict[str, tuple[Callable[[bytes], bytes], type[Exception], str]] = {
    "nothing": (lambda data: b"", CorruptError, "is empty, it has 0 bytes"),
    "text": (lambda data: b"id,text\n1,row\n" * 50, CorruptError, "is not a Parquet file"),
    "few bytes": (lambda data: b"PAR1", CorruptError, "is cut"),
    "cut": (lambda data: data[:-100], CorruptError, "is cut: it begins as a Parquet file"),
    "a footer too long": (
        lambda data: data[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
        CorruptError,
        "its footer has 2147483655 bytes",
    ),
    "a footer damaged": (
        lambda data: data[: footer_of(data)] + b"\xff" * (len(data) - 8 - footer_of(data)) + data[-8:],
        CorruptError,
        "its footer is damaged",
    ),
    "a footer encrypted": (lambda data: data[:-4] + b"PARE", SchemaError, "is encrypted"),
}
for stop in (*range(7, 60, 7), 200, 500):
    AT_OPEN[f"cut after {stop} bytes"] = (lambda data, stop=stop: data[:stop], CorruptError, "is cut")


@pytest.mark.parametrize("what", AT_OPEN)
def test_what_is_no_parquet_file_is_refused_by_name(what: str, tmp_path: Path) -> None:
    damage, error, message = AT_OPEN[what]
    good = written(tmp_path / "good.parquet")
    (tmp_path / "x.parquet").write_bytes(damage(good.read_bytes()))
    with pytest.raises(error, match=message) as raised:
        yoga.from_parquet([good, tmp_path / "x.parquet"])
    assert "x.parquet" in str(raised.value)


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo], ids=["nothing", "a pipe"])
def test_what_is_no_file_is_refused_by_name(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x.parquet")
    with pytest.raises(NotFoundError, match=r"there is no file .*x\.parquet"):
        yoga.from_parquet([written(tmp_path / "good.parquet"), tmp_path / "x.parquet"])


class _Keys(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return key.hex().encode()

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return bytes.fromhex(key.decode())


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_an_encrypted_column_is_refused(plaintext_footer: bool, tmp_path: Path) -> None:
    how = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(_Keys)  # kept: pyarrow's properties point into it
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    written(tmp_path / "x.parquet", encryption_properties=properties)
    with pytest.raises((SchemaError, CorruptError), match=r"x\.parquet.*(is encrypted)"):
        yoga.from_parquet(tmp_path, ["text"])[0]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"columns": ["texts"]}, KeyError, "no column 'texts'; there are 'text', 'id'"),
    ({"columns": "id"}, TypeError, r"columns=\['id'\]"),
    ({"filters": [("idd", ">", 1)]}, KeyError, r"names a column 'idd', which there is not; there are 'id'"),
    ({"filters": pa.compute.field("idd") > 1}, KeyError, "names a column 'idd'"),
    ({"filters": [("id", ">")]}, TypeError, r"filters= takes terms such as .* found \[\('id', '>'\)\]"),
    ({"filters": [("text", ">", 1)]}, ValueError, r"filters= does not fit the columns of .*abc\.parquet"),
]


def test_no_files_and_no_columns_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "*.parquet", [], f"memory://{uuid.uuid4().hex}/*.parquet"):
        with pytest.raises(NotFoundError, match=r"no files match|empty list of paths"):
            yoga.from_parquet(path if isinstance(path, list) else str(path))
    written(tmp_path / "abc.parquet")
    with pytest.raises(NotFoundError, match=r"there is no file .*abd\.parquet; .* has abc\.parquet"):
        yoga.from_parquet(tmp_path / "abd.parquet")
    with pytest.raises(NotFoundError, match="there is no file memory://"):
        yoga.from_parquet(f"memory://{uuid.uuid4().hex}/x.parquet")
    for options, error, message in REFUSED:
        with pytest.raises(error, match=message):
            yoga.from_parquet(tmp_path, **options)


UNLIKE: dict[str, tuple[pa.Table, str]] = {
    "type": (
        pa.table({"id": np.arange(3.0), "text": ["a"] * 3}),
        "column 'id' is int64 in .*a.parquet and double in .*b.parquet; pass schema=",
    ),
    "missing": (
        pa.table({"id": np.arange(3)}),
        "a.parquet has a column 'text', .*b.parquet has none; .*pass schema=",
    ),
    "more": (TABLE.append_column("x", TABLE["id"]), "b.parquet has a column 'x', .*a.parquet has none"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_files_of_unlike_schemas_are_refused_by_file_and_field(name: str, tmp_path: Path) -> None:
    table, message = UNLIKE[name]
    written(tmp_path / "a.parquet")
    written(tmp_path / "b.parquet", table)
    with pytest.raises(SchemaError, match=message):
        yoga.from_parquet(tmp_path)
    alike = ["text"] if name == "type" else ["id"]
    assert len(yoga.from_parquet(tmp_path, alike)) == 40 + len(table)


def test_empty_files_and_groups_have_no_rows(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", TABLE.schema) as writer:
        for part in (TABLE[:0], TABLE[:5], TABLE[:0], TABLE[5:7], TABLE[:0]):
            writer.write_table(part)
    written(tmp_path / "b.parquet", TABLE[:0])
    ref = yoga.from_parquet(tmp_path)
    assert ref.file_starts.tolist() == [0, 5, 7]
    assert [int(i) for i in ref["id"]] == [*range(7)]
    empty = yoga.from_parquet(tmp_path / "b.parquet")
    assert len(empty) == 0
    assert list(empty) == []
    assert empty.schema == ref.schema
    assert list(yoga.DataLoader(empty, 4)) == []
    assert len(yoga.Storage(tmp_path / "storage").submit(empty, "empty", "1")) == 0
    assert list(yoga.from_parquet(tmp_path, filters=[("id", ">", 99)]).stream(shuffle="block")) == []


def test_columns_that_cannot_be_rows_are_refused_unless_they_are_left_out(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    wide = pa.table({"id": [1], "x": pa.array([1], pa.decimal128(38, 2))})
    for table, message in ((twice, r"x\.parquet has several columns called 'x'"), (wide, "column 'x'")):
        path = written(tmp_path / "x.parquet", table)
        with pytest.raises(SchemaError, match=message):
            yoga.from_parquet(path)
    assert list(yoga.from_parquet(path, ["id"])["id"]) == [1]


@pytest.mark.parametrize("kind", [pl.Int128, pl.List(pl.UInt128)], ids=str)
def test_integers_of_128_bits_are_refused(kind: Any, tmp_path: Path) -> None:
    odd = [1, 2] if kind == pl.Int128 else [[1], [2]]
    frame = pl.DataFrame({"id": [1, 2], "odd": pl.Series(odd, dtype=kind)})
    frame.write_parquet(tmp_path / "x.parquet")
    with pytest.raises(SchemaError, match=r"x\.parquet: pyarrow cannot read its schema"):
        yoga.from_parquet(tmp_path)


# -- files that change


def written_over(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(b"PAR1".ljust(footer_of(data), b"\x07") + data[footer_of(data) :])


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other rows": (
        lambda path: written(path, TABLE.set_column(0, "id", pa.array(np.arange(40) * 7))),
        "has changed since it was opened",
    ),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "has changed since it was opened"),
    "written over": (written_over, "row group 4 is damaged"),
    "removed": (Path.unlink, "is gone since it was opened"),
}


@pytest.mark.parametrize(
    "how", [lambda ref: ref, lambda ref: pickle.loads(pickle.dumps(ref))], ids=["here", "sent"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_is_an_error_never_other_rows(
    change: str, how: Callable[[Any], Any], tmp_path: Path
) -> None:
    act, message = CHANGES[change]
    path = written(tmp_path / "x.parquet")
    ref = yoga.from_parquet(path)
    assert ref[3]["id"] == 3
    act(path)
    with pytest.raises(CorruptError, match=rf"x\.parquet.*{message}|x\.parquet {message}"):
        how(ref)[39]


def test_an_object_in_a_store_that_changes_is_an_error(tmp_path: Path) -> None:
    files, url = fsspec.filesystem("memory"), f"memory://{uuid.uuid4().hex}/x.parquet"
    files.pipe_file(url, written(tmp_path / "x.parquet").read_bytes())
    ref = yoga.from_parquet(url)
    assert ref[0]["id"] == 0
    files.pipe_file(url, written(tmp_path / "x.parquet", TABLE[:30]).read_bytes())
    with pytest.raises(CorruptError, match="has changed since it was opened"):
        ref[39]
    files.rm_file(url)
    with pytest.raises(CorruptError, match="is gone since it was opened"):
        ref[39]


def test_bytes_changed_at_random_are_errors_or_the_same_rows(tmp_path: Path) -> None:
    path, rng = tmp_path / "x.parquet", np.random.default_rng(0)
    data = written(path, use_dictionary=False, compression="none", write_page_checksum=False).read_bytes()
    for _ in range(60):
        damaged = bytearray(data)
        for place in rng.integers(4, len(data) - 8, 3):
            damaged[place] = int(rng.integers(256))
        path.write_bytes(damaged)
        message = ""
        try:
            list(yoga.from_parquet(path))
        except (CorruptError, SchemaError) as error:
            message = str(error)
        assert not message or re.search(r"x\.parquet|UTF-8", message)


@pytest.mark.quick("1")
@pytest.mark.parametrize("bit", [1, 2, 4])
def test_no_damaged_footer_ends_the_process(bit: int, tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", TABLE[:9].select(["id"]), store_schema=False)
    data = path.read_bytes()

    def work() -> None:
        for place in range(footer_of(data), len(data) - 8):
            damaged = bytearray(data)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            with contextlib.suppress(YogaError, KeyError, ValueError):
                yoga.from_parquet(tmp_path, filters=[("id", ">", 3)])

    assert status_of_child(work) == 0


@pytest.mark.parametrize("group", [1, 8, 40])
def test_footers_say_what_pyarrow_says(group: int, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet", row_group_size=group)
    data, metadata = (tmp_path / "x.parquet").read_bytes(), pq.read_metadata(tmp_path / "x.parquet")
    found = described(data[footer_of(data) : -8])
    assert found is not None
    for number in range(metadata.num_row_groups):
        assert found.rows[number] == metadata.row_group(number).num_rows
        for index in range(metadata.num_columns):
            column = metadata.row_group(number).column(index)
            assert found.unpacked[number, index] == column.total_uncompressed_size
            assert found.nulls[number, index] == column.statistics.null_count


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"write_statistics": False}], ids=str)
def test_columns_read_in_one_step_are_those_read_value_by_value(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = pa.array([None, [], [None, 1], [2]] * 10, pa.list_(pa.int32()))
    pq.write_table(TABLE.append_column("ids", lists), tmp_path / "x.parquet", row_group_size=7, **options)
    data = (tmp_path / "x.parquet").read_bytes()
    footer = data[footer_of(data) : -8]
    rng = np.random.default_rng(0)
    footers = [footer]
    for _ in range(300):
        damaged = bytearray(footer)
        damaged[rng.integers(len(footer))] = rng.integers(256)
        footers.append(bytes(damaged))
    quick = [seen(one) for one in footers]
    monkeypatch.setattr(thrift, "_USUAL", re.compile(b"(?!)"))
    assert [seen(one) for one in footers] == quick
    assert {"ValueError", "tuple"} <= {kind for kind, _ in quick}


def seen(footer: bytes) -> tuple[str, object]:
    """What a footer says, or the error that it is."""
    try:
        found = described(footer)
    except (ValueError, OverflowError) as error:
        return type(error).__name__, None
    return "tuple", None if found is None else [np.asarray(part).tolist() for part in found]


@pytest.mark.parametrize("inner", [b"\x19", b"\x01\xbb", b"\x1c"], ids=["lists", "maps", "structs"])
def test_footers_that_nest_too_deeply_are_refused(inner: bytes) -> None:
    head = b"\x1b" if inner == b"\x01\xbb" else b""
    with pytest.raises(ValueError, match="it nests too deeply"):
        described(head + inner * 5000)


def test_checksums_of_pages_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(5000) * 7919})
    options: Any = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(table, path, **options)
    assert yoga.from_parquet(path)[4999]["a"] == 4999 * 7919
    flip(path, 9000)
    with pytest.raises(CorruptError, match=r"is damaged: .*CRC"):
        yoga.from_parquet(path)[0]


@pytest.mark.parametrize("change", [-1, 1, -400])
def test_forged_counts_of_rows_lose_none(change: int, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": np.arange(500)}), path, row_group_size=200)
    whole = path.read_bytes()
    count = b"\x16\x90\x03"  # 200, as a number of 64 bits: of a column, or of a group
    places = [at + 1 for at in range(footer_of(whole), len(whole)) if whole[at : at + 3] == count]
    forged = 2 * (200 + change) if change > -200 else -2 * (200 + change) - 1  # as Thrift writes numbers
    refused = []
    for at in places:
        path.write_bytes(whole[:at] + bytes([forged & 0x7F | 0x80, forged >> 7]) + whole[at + 2 :])
        try:
            assert len(list(yoga.from_parquet(path))) == 500
        except CorruptError as error:
            refused.append(str(error))
    assert sum("its row groups have" in text or "fewer than 0 rows" in text for text in refused) == 2


def test_a_footer_that_counts_no_rows_at_all_has_those_of_its_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"  # as parquet-testing's repeated_no_annotation.parquet
    pq.write_table(pa.table({"a": np.arange(500)}), path, row_group_size=200)
    whole = path.read_bytes()
    count = b"\x16\xe8\x07"  # 500, as a number of 64 bits
    assert whole.count(count) == 1
    path.write_bytes(whole.replace(count, b"\x16\x80\x00"))
    assert pq.read_metadata(path).num_rows == 0
    assert list(yoga.from_parquet(path)["a"]) == list(range(500))
    assert len(yoga.from_parquet(path, filters=[("a", ">=", 490)])) == 10
