from __future__ import annotations

import datetime as dt
import os
import pickle
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from types_of_arrow import SHAPES, VALUES, column, in_pairs, plain

import torchyoga as yoga
from torchyoga import errors
from torchyoga.rows.block import Rows
from torchyoga.tables.arrow import found_in, plan_of
from torchyoga.testing import check_dataref


def naive(value: Any) -> Any:
    """Times in UTC without their zone, as rows have them."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return value


def rows_of(ref: yoga.DataRef, numbers: Any) -> list[Any]:
    assert ref.schema is not None
    words = ref.schema.columns[0].meaning.words
    return [plain(row["c"], words) for row in ref[numbers]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_rows_are_what_arrow_says_and_come_back(kind: pa.DataType, shape: str, tmp_path: Path) -> None:
    table = pa.table({"c": column(kind, shape)})
    wanted = [naive(value) for value in in_pairs(table.column("c").to_pylist())]
    ref = yoga.from_arrow(table)
    assert rows_of(ref, range(len(ref))) == wanted
    order = np.random.default_rng(0).integers(0, len(ref), 20)
    assert rows_of(ref, order) == [wanted[i] for i in order]
    found = found_in(table.to_batches())
    block = plan_of(table.schema, found.nulls, found.words).block(table, "here")
    assert repr(Rows(block).exact()) == repr(list(ref))
    assert repr(list(yoga.from_arrow(table.slice(1)))) == repr(list(ref)[1:]) or shape != "whole"
    again = pickle.loads(pickle.dumps(ref))
    assert repr(list(again)) == repr(list(ref))
    assert again.fingerprint == ref.fingerprint
    made = ref.to_arrow().column("c").to_pylist()
    assert made == in_pairs(table.column("c").to_pylist())
    if not pa.types.is_list(kind) or not pa.types.is_fixed_size_list(kind.value_type):
        assert repr(list(yoga.from_arrow(ref.to_arrow()))) == repr(list(ref))
    ref.to_parquet(tmp_path / "t.parquet", group_bytes=1)
    file = pq.ParquetFile(tmp_path / "t.parquet")
    assert file.num_row_groups == len(ref)
    assert file.read().column("c").to_pylist() == made


@pytest.fixture
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 1000)
    return pa.table(
        {
            "x": np.arange(1000),
            "ids": pa.array([rng.integers(0, 99, n) for n in lengths]),
            "name": [f"row {i}" for i in range(1000)],
            "tags": [["a", "b"][: i % 3] for i in range(1000)],
            "label": [None if i % 10 == 0 else i % 7 for i in range(1000)],
        }
    )


@pytest.fixture(params=["file", "stream", "compressed"])
def path(request: pytest.FixtureRequest, table: pa.Table, tmp_path: Path) -> Path:
    found = tmp_path / "t.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd" if request.param == "compressed" else None)
    make = pa.ipc.new_stream if request.param == "stream" else pa.ipc.new_file
    with make(found, table.schema, options=options) as writer:
        for batch in table.to_batches(max_chunksize=300):
            writer.write_batch(batch)
    return found


def test_files_are_read_in_place_and_pickle_by_their_path(path: Path, table: pa.Table) -> None:
    ref = yoga.from_arrow(path)
    assert repr(list(ref)) == repr(list(yoga.from_arrow(table)))
    check_dataref(ref.filled({"label": -1}))
    assert ref.file_starts.tolist() == [0, 300, 600, 900, 1000]
    sent = pickle.dumps(ref.columns(["ids", "x"]))
    assert len(sent) < 2000
    assert repr(pickle.loads(sent)[[999, 3]]) == repr(ref.columns(["ids", "x"])[[999, 3]])
    os.utime(path, (1, 1))
    with pytest.raises(errors.NotFoundError, match="has changed"):
        pickle.loads(sent)


def test_batches_of_what_is_converted_may_be_written_to() -> None:
    table = pa.table({"c": pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2)))})
    ref = yoga.from_arrow(table)
    first, second = (row["c"] for row in ref.take(np.arange(2)))
    first += 1
    second += 1
    assert [row["c"].tolist() for row in ref] == [[[1, 2]], [[3, 4]]]


def by_parquet(table: pa.Table, folder: Path, *columns: Any, **options: Any) -> yoga.DataRef:
    pq.write_table(table, folder / "x.parquet", row_group_size=2)
    return yoga.from_parquet(folder / "x.parquet", *columns, **options)


@pytest.mark.parametrize("way", ["arrow", "parquet"])
def test_nulls_are_none_filled_or_masked(way: str, tmp_path: Path) -> None:
    table = pa.table({"id": [1, None, 3, 4, 5], "y": [1.0, 2.0, 3.0, 4.0, 5.0]})
    read: Any = partial(yoga.from_arrow, table) if way == "arrow" else partial(by_parquet, table, tmp_path)
    assert [row["id"] for row in read()] == [1, None, 3, 4, 5]
    assert "nullable" not in read()["y"].schema.tree.kinds
    assert [int(row["id"]) for row in read().filled({"id": -1, "y": -1})] == [1, -1, 3, 4, 5]
    masked = read().masked()[1]
    assert (masked["id"], masked["id_is_valid"]) == (0, False)


def test_nulls_where_none_were_found_are_refused() -> None:
    table = pa.table({"a": [1, None], "b": [{"x": [1, None]}, {"x": []}]})
    with pytest.raises(errors.SchemaError, match="column 'a' has 1 nulls among 2 values"):
        plan_of(table.schema).block(table, "here")
    with pytest.raises(errors.SchemaError, match=r"column 'b/x\{items\}' has 1 nulls"):
        plan_of(table.schema, ["a"]).block(table, "here")


def test_what_lies_below_a_null_is_empty() -> None:
    inner = pa.array([[1, 2], [3], [4, 5, 6]])
    hidden = pa.ListArray.from_arrays(inner.offsets, inner.values, mask=pa.array([False, True, False]))
    text = pa.array(["ab", "cd", "e"])
    struct = pa.StructArray.from_arrays([hidden, text], ["l", "t"], mask=pa.array([True, False, False]))
    ref = yoga.from_arrow(pa.table({"c": struct}))
    assert [plain(row["c"]) for row in ref] == [None, {"l": None, "t": "cd"}, {"l": [4, 5, 6], "t": "e"}]
    block = ref.take(np.arange(3)).block  # type: ignore[attr-defined]
    sizes = [np.diff(data.offsets).tolist() for data in block.data if data.offsets is not None]
    assert sizes == [[0, 0, 3], [0, 2, 1]]
    table = pa.table({"c": struct})
    converted = plan_of(table.schema, found_in(table.to_batches()).nulls).block(table, "here")
    sizes = [np.diff(data.offsets).tolist() for data in converted.data if data.offsets is not None]
    assert sizes == [[0, 0, 3], [0, 2, 1]]


def test_words_are_codes_or_text() -> None:
    one, other = pa.array(["b", "a", None]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()
    table = pa.table({"c": pa.chunked_array([one, other])})
    ref = yoga.from_arrow(table)
    assert ref.schema.columns[0].meaning.words == ("b", "a", "c")  # type: ignore[union-attr]
    assert rows_of(ref, range(5)) == ["b", "a", None, "c", "a"]
    assert [row["c"] for row in yoga.from_arrow(table, words=True)] == ["b", "a", None, "c", "a"]
    plan = plan_of(table.schema, ["c"], {"c": ["a", "b"]})
    with pytest.raises(errors.SchemaError, match="the word 'c' is not one of the 2"):
        plan.block(table, "here")


DICTIONARIES: list[pa.Array] = [
    pa.array(["a", None, "b"]),
    pa.array(["a", None, "b"], pa.string_view()),
    pa.array([1, None, 2]),
    pa.array([b"a", None, b"b"]),
    pa.array([[1, 2], None, []]),
    pa.array([["a", None], None, []]),
    pa.array([{"a": 1, "b": [None]}, None, {"a": None, "b": []}]),
    pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
]


@pytest.mark.parametrize("held", ["flat", "list", "struct"])
@pytest.mark.parametrize("values", DICTIONARIES, ids=lambda values: str(values.type))
def test_dictionaries_with_nulls_and_of_lists_are_read_in_several_chunks(values: pa.Array, held: str) -> None:
    chunks = []
    for first in (0, 1):
        array = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None, 1 - first], pa.int8()), values.slice(first)
        )
        if held == "list":
            array = pa.ListArray.from_arrays(pa.array([0, 2, 2, 4], pa.int32()), array)
        chunks.append(pa.StructArray.from_arrays([array], ["d"]) if held == "struct" else array)
    table = pa.table({"c": pa.chunked_array(chunks)})
    expected = table["c"].to_pylist()
    ref = yoga.from_arrow(table, words=True)
    assert [plain(value) for value in ref["c"]] == expected
    order = [len(ref) - 1, 0, 1, 0, len(ref) // 2]
    assert [plain(row["c"]) for row in ref[order]] == [expected[i] for i in order]
    assert len(list(yoga.from_arrow(table))) == len(table)


def test_extension_types() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    storage = pa.array([range(6), range(6, 12)], kind.storage_type)
    ref = yoga.from_arrow(pa.table({"c": pa.ExtensionArray.from_storage(kind, storage)}))
    assert ref[1]["c"].tolist() == [[6, 9], [7, 10], [8, 11]]
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], [5, None])
    assert rows_of(yoga.from_arrow(pa.table({"c": runs})), [2, 0, 1]) == [None, 5, 5]
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))
    assert yoga.from_arrow(pa.table({"c": uuids}))[0]["c"] == b"a" * 16


def refused() -> Iterator[tuple[pa.Table, str]]:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    yield pa.table({"u": union}), "column 'u' is of the type sparse_union.*cast it to a struct"
    yield pa.table({"d": pa.array([1], pa.decimal128(30, 2))}), "column 'd'.*decimals=\"float\""
    yield pa.table([[1], [2]], names=["a", "a"]), "two columns are called 'a'"
    yield (
        pa.table({"l": pa.array([[]], pa.list_(pa.struct([])))}),
        r"column 'l\{items\}' holds lists of structs without",
    )
    yield pa.table({"i": pa.array([None], pa.month_day_nano_interval())}), "column 'i'.*duration"


@pytest.mark.parametrize(("table", "message"), list(refused()))
def test_what_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(errors.SchemaError, match=message):
        yoga.from_arrow(table)


def test_nulls_may_lie_over_any_bytes() -> None:
    held = [pa.py_buffer(b"\1"), pa.py_buffer(np.array([125, 0, 2**62, 2**62]))]
    table = pa.table({"d": pa.Array.from_buffers(pa.decimal128(10, 2), 2, held), "long": ["word" * 99] * 2})
    ref = yoga.from_arrow(table)
    assert [row["d"] for row in ref] == [Decimal("1.25"), None]
    assert ref._row_bytes > 10 * ref.columns(["d"])._row_bytes > 0


def test_dates_that_are_none_and_beyond_arrow_s() -> None:
    days = yoga.from_arrays({"d": np.array(["2020-01-02", "NaT"], "M8[D]")}).to_arrow()["d"]
    assert days.to_pylist() == [dt.date(2020, 1, 2), None]
    with pytest.raises(pa.ArrowInvalid, match="4294967296 not in range"):
        yoga.from_arrays({"d": np.array([2**32], "M8[D]")}).to_arrow()
    for unit, kind, expected in (("10ms", "ms", 15_000), ("ps", "ns", 1), ("h", "s", 5_400_000)):
        times = yoga.from_arrays({"t": np.array([1500], f"m8[{unit}]")}).to_arrow()["t"]
        assert (times.type, times.cast(pa.int64()).to_pylist()) == (pa.duration(kind), [expected])


def test_arrays_of_texts_become_lists() -> None:
    for texts in (["ab", "c"], [b"ab", b"c"]):
        assert yoga.from_arrays({"a": np.array([texts] * 2)}).to_arrow()["a"].to_pylist() == [texts] * 2


def test_wide_decimals() -> None:
    table = pa.table({"d": pa.array(["1.25", None]).cast(pa.decimal128(30, 2))})
    assert [row["d"] for row in yoga.from_arrow(table, decimals="text")] == ["1.25", None]
    assert yoga.from_arrow(table, decimals="float")[0]["d"] == 1.25


def test_a_file_with_integers_of_128_bits_is_not_told_as_damaged(tmp_path: Path) -> None:
    pl.DataFrame({"n": pl.Series([1], dtype=pl.Int128)}).write_ipc(tmp_path / "x.arrow")
    with pytest.raises(errors.SchemaError, match=r"x\.arrow has columns that pyarrow cannot read"):
        yoga.from_arrow(tmp_path / "x.arrow")


def test_damaged_files(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    with pytest.raises(errors.NotFoundError, match="there is no file"):
        yoga.from_arrow(path)
    path.write_bytes(b"not an Arrow file")
    with pytest.raises(errors.CorruptError, match="cannot be read as an Arrow file"):
        yoga.from_arrow(path)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 4, 8):
        path.write_bytes(whole[:size])
        with pytest.raises(errors.CorruptError):
            yoga.from_arrow(path)


@pytest.mark.parametrize("offsets", [[0, 100, 2], [0, 5, 3], [0, 2, 1]])
def test_offsets_that_lead_elsewhere(offsets: list[int]) -> None:
    buffers = [None, pa.py_buffer(np.array(offsets, "<i4")), pa.py_buffer(b"abc")]
    forged = pa.table({"c": pa.Array.from_buffers(pa.string(), 2, buffers)})
    with pytest.raises(errors.CorruptError, match="offsets"):
        list(yoga.from_arrow(forged))
    with pytest.raises(errors.CorruptError, match="offsets"):
        plan_of(forged.schema).block(forged, "here")
    outer = [None, pa.py_buffer(np.array([0, 2], "<i4"))]
    within = pa.Array.from_buffers(pa.list_(pa.string()), 1, outer, children=[forged["c"].chunk(0)])
    with pytest.raises(errors.CorruptError, match="is damaged"):
        list(yoga.from_arrow(pa.table({"c": within})))


def test_codes_beyond_a_dictionary() -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 2**28]), pa.array([1.5, 2.5]), safe=False)
    with pytest.raises(errors.CorruptError, match="lacks a value: Index 268435456 out of bounds"):
        list(yoga.from_arrow(pa.table({"c": codes})))


def test_tables_without_rows() -> None:
    ref = yoga.from_arrow(pa.table({"a": pa.array([], pa.list_(pa.string())), "b": pa.array([], pa.int8())}))
    assert len(ref) == 0
    assert list(ref) == []
    assert ref.to_arrow().column_names == ["a", "b"]
    assert ref.to_arrow().schema.field("b").type == pa.int8()


VIEWED = pa.string_view()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.struct([("a", VIEWED), ("b", pa.list_(pa.float32()))]), [None, {"a": "x", "b": [1.0]}]),
        (pa.list_(VIEWED), [None, ["a", None]]),
        (pa.list_(VIEWED, 2), [None, ["a", "b"]]),
        (pa.large_list(pa.list_(pa.binary_view())), [None, [[b"a"], None]]),
        (pa.list_(pa.struct([("a", VIEWED)])), [None, [{"a": "a" * 50}, None]]),
    ],
    ids=str,
)
def test_texts_that_are_views_may_be_in_others_beside_nulls(
    kind: pa.DataType, values: list[Any], tmp_path: Path
) -> None:
    table = pa.table({"c": pa.array([*values, *values], kind)}).slice(1)
    for given in (table, pa.concat_tables([table, table.slice(1)])):
        ref = yoga.from_arrow(given)
        assert ref.to_arrow().to_pylist() == given.to_pylist()
        if "list<item: struct" in str(kind):  # which pyarrow cannot write
            continue
        whole = pa.array(given["c"].to_pylist(), kind)  # nor slices of structs with views
        pq.write_table(pa.table({"c": whole}), tmp_path / "x.parquet")
        assert yoga.from_parquet(tmp_path / "x.parquet").to_arrow().to_pylist() == given.to_pylist()
