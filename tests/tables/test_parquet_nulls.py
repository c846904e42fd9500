"""Nulls at any place of nested columns, in whichever group they come, are those that pyarrow gives."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.tables import arrow
from torchyoga.tables.parquet import files
from torchyoga.tables.parquet.footers import footers_of, nulls_at, nulls_below
from torchyoga.tables.parquet.places import LocalFile

PAIR = pa.struct([("a", pa.int16()), pa.field("b", pa.string(), nullable=False)])
# Of each type, values whose nulls lie at different places; the last one has none.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.list_(pa.int32()): [None, [], [None, 1], [2, 3]],
    pa.list_(pa.field("item", pa.int32(), nullable=False)): [None, [], [1]],
    pa.large_list(pa.list_(pa.string())): [None, [], [None], [[]], [[None]], [["a"]]],
    pa.list_(pa.bool_(), 2): [None, [None, True], [True, False]],
    PAIR: [None, {"a": None, "b": "x"}, {"a": 1, "b": "y"}],
    pa.list_(PAIR): [None, [], [None], [{"a": None, "b": "x"}], [{"a": 1, "b": "y"}]],
    pa.struct([("in", PAIR), ("ids", pa.list_(pa.int8()))]): [
        None,
        {"in": None, "ids": [1]},
        {"in": {"a": None, "b": ""}, "ids": None},
        {"in": {"a": 1, "b": ""}, "ids": []},
        {"in": {"a": 1, "b": ""}, "ids": [None]},
        {"in": {"a": 1, "b": ""}, "ids": [1]},
    ],
    pa.map_(pa.string(), pa.float32()): [None, [], [("k", None)], [("k", 1.5)]],
    pa.map_(pa.int8(), pa.list_(pa.date32())): [[], [(1, None)], [(1, [datetime.date(2024, 1, 1)])]],
    pa.struct([("words", pa.dictionary(pa.int8(), pa.string()))]): [None, {"words": None}, {"words": "a"}],
}
CASES = [
    pytest.param(kind, value, id=f"{kind}-{value}") for kind, values in VALUES.items() for value in values
]


def file_of(folder: Path, column: pa.Array) -> Path:
    pq.write_table(pa.table({"c": column}), folder / "x.parquet", row_group_size=1)
    return folder / "x.parquet"


def in_pairs(value: Any) -> Any:
    """Maps as they are kept: lists of dicts."""
    if isinstance(value, tuple):
        return {"key": value[0], "value": in_pairs(value[1])}
    if isinstance(value, dict):
        return {key: in_pairs(item) for key, item in value.items()}
    return [in_pairs(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("kind", "value"), CASES)
def test_levels_say_where_nulls_are(kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    plain = VALUES[kind][-1]
    path = file_of(tmp_path, pa.array([plain, plain, value, plain], kind))
    table = pq.read_table(path)
    found = nulls_below("c", footers_of([LocalFile(str(path))]))
    assert found == arrow.found_in(table).nulls
    ref = yoga.from_parquet(path, words=True)
    assert ref.to_arrow().to_pylist() == in_pairs(table.to_pylist())


@pytest.fixture
def without_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with pyarrow before 19."""
    monkeypatch.setattr(files, "nulls_below", lambda *_: None)


# Of dictionaries within others, pyarrow does not count nulls.
@pytest.mark.parametrize(("kind", "value"), [case for case in CASES if "dictionary" not in str(case.id)])
def test_without_levels_some_groups_are_looked_at(
    kind: pa.DataType, value: Any, tmp_path: Path, without_levels: None
) -> None:
    plain = VALUES[kind][-1]
    path = file_of(tmp_path, pa.array([plain, plain, value, plain], kind))
    ref, table = yoga.from_parquet(path, words=True), pq.read_table(path)
    assert ref.to_arrow().to_pylist() == in_pairs(table.to_pylist())


def test_what_is_found_in_none_of_the_groups_that_were_looked_at_is_refused(
    tmp_path: Path, without_levels: None
) -> None:
    path = file_of(tmp_path, pa.array([[], [1], [None], [2], [], []], pa.list_(pa.int32())))
    with pytest.raises(SchemaError, match=r"row group 2.*name it in nulls=, with a value"):
        list(yoga.from_parquet(path))
    ref = yoga.from_parquet(path, nulls={"c{items}": 0})
    assert [[*map(int, row["c"])] for row in ref] == [[], [1], [0], [2], [], []]


def test_levels_that_do_not_fit_are_not_used() -> None:
    field = pa.field("c", pa.list_(pa.int8()))
    assert nulls_at(field, [[0, 0, 0, 1]]) == {}  # type: ignore[list-item]
    assert nulls_at(field, [[0, 0, 1]]) is None  # type: ignore[list-item]
    assert nulls_at(field, [[0, 0, 0, 1]] * 2) is None  # type: ignore[list-item]
    assert nulls_at(field, []) is None
