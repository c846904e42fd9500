"""Files whose columns are written in different types, or are missing in some, as one table."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.tables.parquet.unified import common_type
from torchyoga.testing import check_dataref

TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


def written(folder: Path, *tables: pa.Table) -> Path:
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2)
    return folder


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(TEXTS, 2)), ids=str)
def test_text_is_read_however_each_file_holds_it(
    one: pa.DataType, other: pa.DataType, tmp_path: Path
) -> None:
    first, second = pa.array(["a", None, "b"], one), pa.array(["c", "a"], other)
    ref = yoga.from_parquet(written(tmp_path, pa.table({"x": first}), pa.table({"x": second})))
    words = ref.schema.columns[0].meaning.words
    assert words == (("a", "b", "c") if all(map(pa.types.is_dictionary, (one, other))) else None)
    found = [value if value is None or words is None else words[value] for value in ref["x"]]
    assert found == ["a", None, "b", "c", "a"]
    kept = yoga.from_parquet(tmp_path, filters=[("x", "in", ["a", "c"])], words=True)
    assert list(kept["x"]) == ["a", "c", "a"]


ALIKE: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.binary(), pa.large_binary(), b"a"),
    (pa.list_(pa.int32()), pa.large_list(pa.int32()), [1, None]),
    (pa.list_(pa.int32(), 2), pa.list_(pa.int32()), [1, 2]),
    (pa.list_(pa.field("x", pa.int8(), nullable=False)), pa.list_(pa.int8()), [1]),
    (pa.list_(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a"]),
    (pa.struct({"s": pa.string()}), pa.struct({"s": pa.large_string()}), {"s": "a"}),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int8()), [("a", 1)]),
    (pa.list_(pa.null()), pa.list_(pa.int64()), [None]),
    (pa.null(), pa.struct({"a": pa.list_(pa.int8())}), None),
    (pa.dictionary(pa.int8(), pa.int64()), pa.int64(), 5),
]


@pytest.mark.parametrize(("one", "other", "value"), ALIKE, ids=str)
def test_what_differs_only_in_how_it_is_written_is_read(
    one: pa.DataType, other: pa.DataType, value: Any, tmp_path: Path
) -> None:
    assert common_type(one, other) == common_type(other, one) is not None
    tables = [pa.table({"x": pa.array([value, None], kind)}) for kind in (one, other)]
    ref = yoga.from_parquet(written(tmp_path, *tables))
    expected = [{"key": "a", "value": 1}] if pa.types.is_map(one) else value
    assert ref.to_arrow()["x"].to_pylist() == [expected, None] * 2


UNLIKE: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.int32(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()})),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8()), pa.int8()),
]


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=str)
def test_what_differs_in_more_has_no_common_type(one: pa.DataType, other: pa.DataType) -> None:
    assert common_type(one, other) is None


def test_a_column_that_may_be_null_in_one_file_only(tmp_path: Path) -> None:
    field = pa.field("x", pa.int64(), nullable=False)
    whole = pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field]))
    assert list(yoga.from_parquet(written(tmp_path, whole, pa.table({"x": [None, 2]})))["x"]) == [1, None, 2]


# -- schema=

# Of each type, others that become it, and values.
PROMOTED: dict[pa.DataType, tuple[list[pa.DataType], list[Any]]] = {
    pa.int64(): ([pa.int8(), pa.int32(), pa.uint8()], [1, 127, None]),
    pa.float64(): ([pa.int8(), pa.float32()], [1, 127, None]),
    pa.large_string(): (TEXTS, ["a", "", None]),
    pa.dictionary(pa.int32(), pa.string()): (TEXTS, ["a", "b", None]),
    pa.timestamp("ns", "UTC"): (
        [pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Berlin")],
        [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), None],
    ),
    pa.list_(pa.int64()): ([pa.list_(pa.int8()), pa.large_list(pa.int64())], [[1], [], [None, 2], None]),
    pa.struct({"s": pa.large_string(), "l": pa.list_(pa.string())}): (
        [pa.struct({"s": pa.string(), "l": pa.large_list(pa.string())})],
        [{"s": "a", "l": ["x", None]}, {"s": None, "l": None}, None],
    ),
}


@pytest.mark.quick("?", "1?")
@pytest.mark.parametrize("seed", range(30))
def test_a_schema_promotes_what_files_have_and_fills_in_what_they_lack(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kinds = rng.sample(list(PROMOTED), 3)
    schema = pa.schema([("i", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(kinds))])
    tables: list[pa.Table] = []
    for part in range(3):
        columns: dict[str, Any] = {"i": range(4 * part, 4 * part + 4), "extra": ["not wanted"] * 4}
        for number, kind in enumerate(kinds):
            others, values = PROMOTED[kind]
            made = pa.array(rng.choices(values, k=4), rng.choice(others))
            columns[f"c{number}"] = rng.choice([made, made, made, pa.nulls(4), None])
        tables.append(pa.table({name: column for name, column in columns.items() if column is not None}))
    rows = [{name: row.get(name) for name in schema.names} for part in tables for row in part.to_pylist()]
    for number in range(3):  # a name that no file has is told
        if not any(f"c{number}" in part.column_names for part in tables):
            tables[0] = tables[0].append_column(f"c{number}", pa.nulls(4))
    ref = yoga.from_parquet(written(tmp_path, *tables), schema=schema, words=True)
    assert ref.to_arrow().to_pylist() == pa.Table.from_pylist(rows, schema).to_pylist()
    again = pickle.loads(pickle.dumps(ref.columns(["c1"])))
    assert again.to_arrow()["c1"].to_pylist() == ref.to_arrow()["c1"].to_pylist()
    if not pa.types.is_timestamp(kinds[0]):  # whose rows have no zone
        check_dataref(yoga.from_parquet(tmp_path, ["i", "c0"], schema=schema))
    for name in schema.names:
        found = yoga.from_parquet(tmp_path, ["i"], ds.field(name).is_null(), schema=schema)
        assert [int(i) for i in found["i"]] == [row["i"] for row in rows if row[name] is None]
    value = rng.choice(PROMOTED[kinds[0]][1][:-1])
    if not pa.types.is_nested(kinds[0]):
        found = yoga.from_parquet(tmp_path, ["i"], [("c0", "==", value)], schema=schema)
        assert [int(i) for i in found["i"]] == [row["i"] for row in rows if row["c0"] == value]


MOMENTS = [dt.datetime(1969, 1, 1, 5), dt.datetime(2020, 1, 1, 5), dt.datetime(2020, 1, 1, 6)]
# Types, others that their values become, and values.
NARROWED: list[tuple[pa.DataType, list[pa.DataType], list[Any]]] = [
    (pa.timestamp("ms"), [pa.date32(), pa.date64(), pa.string(), pa.timestamp("us"), pa.int64()], MOMENTS),
    (pa.timestamp("us"), [pa.date32(), pa.timestamp("s"), pa.timestamp("us", "Asia/Kolkata")], MOMENTS),
    (
        pa.timestamp("us", "Asia/Kolkata"),
        [pa.timestamp("us"), pa.date32(), pa.timestamp("ns", "UTC"), pa.string()],
        MOMENTS,
    ),
    (
        pa.date32(),
        [pa.timestamp("ns"), pa.string(), pa.int32()],
        [dt.date(1969, 12, 31), dt.date(2020, 1, 1)],
    ),
    (pa.float64(), [pa.float32(), pa.float16(), pa.string()], [0.1, 0.05, -0.1, 16777217.0, float("nan")]),
    (pa.float64(), [pa.int64(), pa.decimal128(9, 2)], [2.0, 10.0, -3.0]),
    (pa.float32(), [pa.float64(), pa.float16()], [0.1, 0.3, -0.1]),
    (pa.int64(), [pa.float64(), pa.float32()], [2**53, 2**53 - 1, -7]),
    (pa.int32(), [pa.float64(), pa.float16(), pa.string(), pa.bool_(), pa.uint8()], [9, 10, 100, 0]),
    (pa.uint8(), [pa.int64(), pa.float32()], [3, 255]),
    (pa.string(), [pa.int64(), pa.float64(), pa.decimal128(9, 2), pa.binary()], ["9", "10", "010", "2"]),
    (pa.string(), [pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ["b", "", "é"]),
    (pa.bool_(), [pa.string(), pa.int8()], [True, False]),
    (
        pa.decimal128(5, 2),
        [pa.float64(), pa.float32(), pa.string(), pa.decimal128(9, 4)],
        [decimal.Decimal("0.10"), decimal.Decimal("10.25"), decimal.Decimal("-9.99")],
    ),
    (pa.time32("ms"), [pa.time64("us"), pa.string()], [dt.time(1, 2, 3), dt.time(11)]),
]


@pytest.mark.quick("?")
@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(15, 60))]
)
def test_a_filter_keeps_the_same_rows_with_and_without_statistics(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kind, others, values = NARROWED[seed % len(NARROWED)]
    for number, wanted in enumerate(others):
        column = pa.array(rng.choices([*values, None], k=6), kind)
        value = pa.array([*values], kind).cast(_plain(wanted), safe=False)
        table = pa.table({"i": range(6), "x": column})
        schema = pa.schema([("i", pa.int64()), ("x", wanted)])
        for name, statistics in (("with", True), ("without", False)):
            (tmp_path / f"{name}{number}").mkdir()
            path = tmp_path / f"{name}{number}" / "0.parquet"
            pq.write_table(table, path, row_group_size=rng.choice([1, 2, 6]), write_statistics=statistics)
        for comparison in ("==", "!=", "<", "<=", ">", ">=", "in", "not in"):
            asked = rng.choices(value.to_pylist(), k=2)
            filters: Any = [("x", comparison, asked if "in" in comparison else asked[0])]
            if rng.random() < 0.3:
                filters = [filters, [("i", "<", 1), ("x", "==", asked[1])]]
            kept = [
                _kept(tmp_path / f"{name}{number}", filters=filters, schema=schema)
                for name in ("with", "without")
            ]
            assert kept[0] == kept[1], (kind, wanted, filters)
        expression = ds.field("x") <= rng.choice(value)
        if not pa.types.is_dictionary(wanted) and not pa.types.is_float16(wanted):
            kept = [_kept(tmp_path / f"{name}{number}", expression, schema) for name in ("with", "without")]
            assert kept[0] == kept[1], (kind, wanted, expression)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _kept(folder: Path, filters: Any, schema: pa.Schema) -> object:
    """The numbers of the rows that a filter keeps, or how it is refused."""
    try:
        return [int(i) for i in yoga.from_parquet(folder, ["i"], filters, schema=schema)["i"]]
    except (ValueError, SchemaError) as error:
        return type(error)


def test_other_columns_than_those_whose_order_changes_pass_over_groups(tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2020, 1, 1, hour) for hour in (5, 6)], pa.timestamp("us"))
    days = pa.array([dt.date(2020, 1, 1), dt.date(2021, 1, 1)])
    for number, (column, text) in enumerate([(times, ["1", "2"]), (days, ["3", "no number"])]):
        table = pa.table({"x": column, "y": text, "z": [1, 2]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=1)
    schema = pa.schema([("x", pa.date32()), ("y", pa.int64()), ("z", pa.int64())])
    new_year = ("x", "==", dt.date(2020, 1, 1))
    # A group that is read would be refused for the text in it.
    for terms, expected in (([new_year, ("y", ">", 0)], [1, 2, 3]), ([("y", ">", 0), ("z", "<", 2)], [1, 3])):
        ref = yoga.from_parquet(tmp_path, ["y"], terms, schema=schema)
        assert [int(y) for y in ref["y"]] == expected


def test_a_schema_says_what_the_names_of_folders_are(tmp_path: Path) -> None:
    for year in ("2020", "2021"):
        (tmp_path / f"year={year}" / "day=2024-02-29").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"year={year}" / "day=2024-02-29" / "0.parquet")
    fields = [("x", pa.float32()), ("year", pa.string()), ("day", pa.date32())]
    ref = yoga.from_parquet(tmp_path, schema=pa.schema(fields))
    assert [(row["year"], row["day"]) for row in ref] == [
        (year, np.datetime64("2024-02-29")) for year in ("2020", "2021")
    ]
    only = yoga.from_parquet(tmp_path, filters=[("day", ">", dt.date(2024, 1, 1))], schema=pa.schema(fields))
    assert len(only) == 2
    assert list(yoga.from_parquet(tmp_path, schema=pa.schema(fields[:1]))[0]) == ["x"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.list_(pa.int64()), r"column 'x' is int64 in .*0\.parquet, which cannot become list"),
        (pa.date32(), "cannot become date32"),
        (pa.struct({"a": pa.int64()}), "cannot become struct"),
    ],
)
def test_what_no_value_can_become_is_refused_when_opened(
    kind: pa.DataType, message: str, tmp_path: Path
) -> None:
    table = pa.table({"x": [1, 2**40], "y": [1, 2]})
    schema = pa.schema([("x", kind), ("y", pa.int64())])
    with pytest.raises(SchemaError, match=message):
        yoga.from_parquet(written(tmp_path, table), schema=schema)


def test_a_value_that_does_not_fit_is_refused_when_read(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, 2**40], "y": [1, 2, 3]})
    schema = pa.schema([("x", pa.int32()), ("y", pa.int64())])
    ref = yoga.from_parquet(written(tmp_path, table), schema=schema)
    assert ref[1]["x"].dtype == np.int32
    with pytest.raises(SchemaError, match=r"row group 1: column 'x' does not become int32"):
        ref[2]
    assert list(ref["y"]) == [1, 2, 3]
    with pytest.raises(TypeError, match=r"takes a pyarrow\.Schema"):
        yoga.from_parquet(tmp_path, schema={"x": pa.int32()})  # type: ignore[arg-type]


def test_columns_that_all_files_lack_are_none(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("z", pa.list_(pa.string()))])
    with pytest.warns(UserWarning, match=r"schema= names 'z', which no file has.*\['x'\]"):
        ref = yoga.from_parquet(written(tmp_path, pa.table({"x": [1, 2]})), schema=schema)
    assert list(ref) == [{"x": 1, "z": None}, {"x": 2, "z": None}]
    with pytest.warns(UserWarning, match="names 'z', which no file has"):
        assert list(yoga.from_parquet(tmp_path, ["z"], schema=schema)) == [{"z": None}] * 2
    assert pc.sum(ref.to_arrow()["x"]).as_py() == 3
