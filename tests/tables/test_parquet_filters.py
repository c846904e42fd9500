"""Conditions on Parquet files keep the rows that a plain scan keeps, whatever statistics say."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import torchyoga as yoga
from torchyoga.tables.buffers import type_without_views

NAN, INF = float("nan"), float("inf")
NOON = dt.datetime(2024, 1, 1, 12)
UTC_NOON = NOON.replace(tzinfo=dt.timezone.utc)
FLOATS = [0.0, -0.0, NAN, 0.5, 1.0, INF, -INF, None]
# Values of each type, some of which only just fit.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.float16(): FLOATS,
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.int8(): [-128, 0, 127, None],
    pa.int64(): [-(2**63), 0, 2**53 + 1, 2**63 - 1, None],
    pa.uint64(): [0, 5, 2**63, 2**64 - 1, None],
    pa.bool_(): [True, False, None],
    pa.string(): ["", "a", "b" * 200, "b" * 200 + "c", None],
    pa.string_view(): ["", "a", "b" * 200, None],
    pa.binary(): [b"", b"a", b"\xff" * 80, None],
    pa.timestamp("ms", "America/New_York"): [UTC_NOON, UTC_NOON + dt.timedelta(1), None],
    pa.timestamp("ns"): [NOON, NOON + dt.timedelta(1), None],
    pa.date32(): [NOON.date(), dt.date(1900, 1, 1), None],
    pa.time64("us"): [dt.time(1), dt.time(2), None],
    pa.duration("us"): [dt.timedelta(1), dt.timedelta(2), None],
    pa.decimal128(5, 2): [Decimal("-1.50"), Decimal("0.00"), Decimal("999.99"), None],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", None],
    pa.dictionary(pa.int32(), pa.float64()): FLOATS,
}
COMPARISONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "==": (operator.eq, pc.equal),
    "!=": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow compares."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return {pa.string_view(): pa.large_string(), pa.float16(): pa.float32()}.get(kind, kind)


def term_of(rng: random.Random, kinds: list[pa.DataType]) -> tuple[str, str, Any]:
    number = rng.randrange(len(kinds))
    values = VALUES[kinds[number]]
    if rng.random() < 0.4:
        return (
            f"c{number}",
            rng.choice(["in", "not in"]),
            [rng.choice(values) for _ in range(rng.randint(1, 3))],
        )
    return f"c{number}", rng.choice(list(COMPARISONS)), rng.choice(values[:-1])


def kept_by(term: tuple[str, str, Any], table: pa.Table) -> pa.ChunkedArray:
    """Which rows a term keeps, by functions of Arrow's."""
    name, comparison, value = term
    kind = plain_type(table.schema.field(name).type)
    column = pa.chunked_array([chunk.cast(kind) for chunk in table[name].chunks], kind)
    if comparison in COMPARISONS:
        return COMPARISONS[comparison][1](column, pa.scalar(value, kind)).fill_null(False)
    found = pc.is_in(column, value_set=pa.array(value, kind))
    return found if comparison == "in" else pc.invert(found)


def expression_of(rng: random.Random, kinds: list[pa.DataType], depth: int = 2) -> ds.Expression:
    if depth and rng.random() < 0.6:
        first, second = (expression_of(rng, kinds, depth - 1) for _ in range(2))
        return rng.choice([~first, first & second, first | second])
    number = rng.randrange(len(kinds))
    kind = plain_type(kinds[number])
    field = ds.field(f"c{number}").cast(kind) if kind == pa.float32() else ds.field(f"c{number}")
    if rng.random() < 0.3:
        return rng.choice([field.is_null(), field.is_valid(), field.is_null(nan_is_null=True)])
    _, comparison, value = term_of(rng, [kinds[number]])
    if comparison in COMPARISONS:
        return COMPARISONS[comparison][0](field, pa.scalar(value, kind))
    return field.isin(pa.array(value, kind)) if comparison == "in" else ~field.isin(pa.array(value, kind))


@pytest.mark.slow("1", "2", "3", "4")
@pytest.mark.parametrize("seed", range(5))
def test_random_conditions_keep_what_a_scan_keeps(seed: int, tmp_path: Path) -> None:
    for rng in map(random.Random, range(60 * seed, 60 * seed + 60)):
        kinds = rng.choices(list(VALUES), k=2)
        length = rng.randint(1, 8)
        columns = {
            f"c{n}": pa.array(rng.choices(VALUES[kind], k=length), kind) for n, kind in enumerate(kinds)
        }
        table = pa.table({"i": range(length), **columns})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=rng.randint(1, 4))
        if rng.random() < 0.5:
            condition: Any = [[term_of(rng, kinds) for _ in range(rng.randint(1, 2))] for _ in range(2)]
            masks = [functools.reduce(pc.and_, [kept_by(term, table) for term in some]) for some in condition]
            expected = table["i"].filter(functools.reduce(pc.or_, masks)).to_pylist()
        else:
            condition = expression_of(rng, kinds)
            fields = [(one.name, type_without_views(one.type)) for one in table.schema]
            pq.write_table(table.cast(pa.schema(fields)), tmp_path / "plain.parquet", write_statistics=False)
            expected = ds.dataset(tmp_path / "plain.parquet").to_table(filter=condition)["i"].to_pylist()
        found = yoga.from_parquet(tmp_path / "x.parquet", ["i"], condition)
        assert [int(i) for i in found["i"]] == expected, (condition, columns)


def rows_of(path: Path, values: list[Any], kind: pa.DataType, condition: Any) -> list[int]:
    pq.write_table(pa.table({"i": range(len(values)), "x": pa.array(values, kind)}), path)
    return [int(i) for i in yoga.from_parquet(path, ["i"], condition)["i"]]


X = ds.field("x")


def test_floats_in_structs_are_not_taken_for_their_statistics(tmp_path: Path) -> None:
    box = pa.array([{"w": 0.5, "n": 1}, {"w": NAN, "n": 1}])
    pq.write_table(pa.table({"i": [0, 1], "box": box}), tmp_path / "x.parquet")
    for condition, expected in [(ds.field("box", "w") != 0.5, [1]), (ds.field("box", "n") != 1, [])]:
        assert [int(i) for i in yoga.from_parquet(tmp_path, ["i"], condition)["i"]] == expected


@pytest.mark.parametrize(
    "condition",
    [
        [("x", ">", 6.5)],
        [("x", "!=", 0.5), ("i", ">", 6)],
        (ds.field("i") > 6),
        [[("x", "==", 7.0)], [("i", "==", 8)]],
    ],
    ids=str,
)
def test_groups_in_which_a_condition_cannot_hold_are_not_read(condition: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"i": range(9), "x": np.arange(9.0)}), path, row_group_size=1)
    data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    for group, column in itertools.product(range(7), range(2)):
        chunk = footer.row_group(group).column(column)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    assert [int(i) for i in yoga.from_parquet(path, filters=condition)["i"]] == [7, 8]


NUMBERS: list[tuple[pa.DataType, list[Any], Any, list[int]]] = [
    (pa.uint64(), [2**63, 5, 2**64 - 1], ("x", "==", 2**63), [0]),
    (pa.uint64(), [2**63, 5, 2**64 - 1], ("x", ">", 5), [0, 2]),
    (pa.uint64(), [2**63, 5, None], ("x", ">", -1), [0, 1]),
    (pa.uint64(), [2**63, 5, 2**64 - 1], ("x", "<", 2**64), [0, 1, 2]),
    (pa.uint64(), [2**63, 5, 2**64 - 1], ("x", "in", [2**63, -1, 2.5]), [0]),
    (pa.uint64(), [2**63, 5, 2**64 - 1], ("x", ">=", np.uint64(2**63)), [0, 2]),
    (pa.uint64(), [2**63, 5, None], ("x", "not in", [5]), [0, 2]),
    (pa.uint64(), [2**63, 5, None], ("x", ">", pa.scalar(-1)), [0, 1]),
    (pa.uint64(), [2**63, 5, None], ("x", "in", pa.array([5, -1])), [1]),
    (pa.int64(), [2**53 + 1, 2, 3], ("x", "<", pa.scalar(2**63, pa.uint64())), [0, 1, 2]),
    (pa.int64(), [2**53 + 1, 2, 3], ("x", ">", 2.5), [0, 2]),
    (pa.int64(), [2**53 + 1, 2, 3], ("x", "<=", 2.5), [1]),
    (pa.int64(), [2**53 + 1, 2, None], ("x", "!=", 2.5), [0, 1]),
    (pa.int64(), [2**53 + 1, 2, 3], ("x", "<", INF), [0, 1, 2]),
    (pa.int64(), [1, 2, 3], ("x", ">", NAN), []),
    (pa.int8(), [1, 2, 3], ("x", "<", 1000), [0, 1, 2]),
    (pa.float32(), [0.1, 0.2], ("x", "==", 0.1), [0]),
    (pa.float32(), [0.1, INF], ("x", "<", 1e300), [0]),
    (pa.date32(), [NOON.date()], ("x", "<", NOON), [0]),
    (pa.date32(), [NOON.date()], ("x", "==", np.datetime64(NOON.date())), [0]),
    # Statistics hide no NaN and no zero.
    (pa.float64(), [0.5, 0.5, NAN], ("x", "!=", 0.5), [2]),
    (pa.float64(), [0.5, 0.5, NAN], ("x", "not in", [0.5]), [2]),
    (pa.float64(), [0.5, 0.5, NAN], ("x", "in", [NAN]), [2]),
    (pa.float64(), [0.5, 0.5, NAN], ~(X < 1.0), [2]),
    (pa.float64(), [0.5, 0.5, NAN], pc.is_nan(X), [2]),
    (pa.float64(), [0.0, -0.0], ("x", "in", [0.0]), [0]),
    (pa.float64(), [0.0, -0.0], ("x", "==", -0.0), [0, 1]),
]


@pytest.mark.parametrize(("kind", "values", "term", "expected"), NUMBERS)
def test_terms_are_compared_as_numbers_of_the_columns_type(
    kind: pa.DataType, values: list[Any], term: Any, expected: list[int], tmp_path: Path
) -> None:
    condition = [term] if isinstance(term, tuple) else term
    assert rows_of(tmp_path / "x.parquet", values, kind, condition) == expected
    pq.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / "x.parquet")  # no other column
    assert len(yoga.from_parquet(tmp_path, filters=condition)) == len(expected)


@pytest.mark.parametrize("has_statistics", [True, False])
def test_expressions_on_uint64_are_answered_without_statistics_too(
    has_statistics: bool, tmp_path: Path
) -> None:
    table = pa.table({"i": [0, 1], "x": pa.array([2**63, 5], pa.uint64())})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1, write_statistics=has_statistics)
    with pytest.raises(ValueError, match=r"not in range: 0 to 9223372036854775807; write terms"):
        yoga.from_parquet(tmp_path, filters=X == -1)
    for condition in (pa.scalar(2**63, pa.uint64()) == X, [("x", ">", 5)]):
        assert [int(i) for i in yoga.from_parquet(tmp_path, filters=condition)["i"]] == [0]


@pytest.mark.quick("UTC-*", "*-us")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+05:30"])
def test_terms_on_times_take_any_time(zone: str | None, unit: str, tmp_path: Path) -> None:
    kind = pa.timestamp(unit, zone)
    values = [NOON if zone is None else UTC_NOON, None, (UTC_NOON if zone else NOON) + dt.timedelta(1)]
    terms: list[Any] = [NOON, np.datetime64(NOON), np.datetime64(NOON, "h"), "2024-01-01 12:00"]
    terms += [pd.Timestamp(NOON), NOON + dt.timedelta(microseconds=1), dt.date(2024, 1, 2)]
    if zone is not None:
        terms += [UTC_NOON, UTC_NOON.astimezone(ZoneInfo("Europe/Berlin")), "2024-01-01T13:00+01:00"]
        terms += [pa.scalar(UTC_NOON), pa.scalar(UTC_NOON, pa.timestamp("ms", "+05:30")), pa.scalar(NOON)]
    for value in terms:
        assert rows_of(tmp_path / "x.parquet", values, kind, [("x", ">", value)]) == [2]
    assert rows_of(tmp_path / "x.parquet", values, kind, [("x", "in", [terms[0], None])]) == [0, 1]
    assert rows_of(tmp_path / "x.parquet", values, kind, [("x", "<", dt.datetime(9999, 1, 1))]) == [0, 2]
    late = [("x", ">=", pd.Timestamp(NOON) + pd.Timedelta(1, "ns"))]
    assert rows_of(tmp_path / "x.parquet", values, kind, late) == [2]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ([], "a list without terms"),
        ([("x", "like", "a")], "no comparison 'like'"),
        ([("x", "<", UTC_NOON)], "Cannot compare timestamp with timezone"),
        ([("x", "==", "today")], r"a term \('x', '==', 'today'\), which does not fit a column of timestamp"),
        (("x", ">=", 3), r"put the term into one, as in \[\('x', '>=', 3\)\]"),
    ],
)
def test_terms_that_do_not_fit_are_refused(condition: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError if type(condition) is tuple else ValueError, match=message):
        rows_of(tmp_path / "x.parquet", [NOON], pa.timestamp("us"), condition)
