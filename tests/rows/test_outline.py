"""What people read of a schema: names as they are, a table, a `repr` of ten lines."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own import Made

import torchyoga as yoga
from torchyoga.process.messages import width_of
from torchyoga.rows.node import path_name, readable_name, spelled

KEYS = st.one_of(
    st.text(max_size=4), st.integers(0, 3), st.sampled_from(["a", "名", "a/b", "x y", "0", "", "\n"])
)
VALUES = st.recursive(
    st.sampled_from(
        [1, 0.5, True, "text", b"bytes", np.zeros((2, 3), np.float32), np.int8(1), torch.ones(2)]
    ),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=3), st.tuples(inner, inner), st.lists(inner, max_size=2)
    ),
    max_leaves=6,
)


def texts(row: Any, **told: list[str]) -> list[str]:
    return list(map(str, yoga.Schema.of(row, **told).shown))


def test_each_type_is_named_plainly() -> None:
    named = {
        **{"int": 1, "float": 0.5, "bool": True, "str": "text", "bytes": b"bytes", "None": None},
        "ndarray uint8 28x28x3": np.zeros((28, 28, 3), np.uint8),
        "tensor bfloat16 2": torch.zeros(2, dtype=torch.bfloat16),
        "scalar float32": np.float32(1),
        "ndarray bool 3": np.zeros(3, bool),
        "ndarray >f4 2": np.zeros(2, ">f4"),
        "ndarray U2 1": np.array(["ab"]),
        "datetime": datetime.datetime(2024, 1, 1),
        "scalar datetime64[ns]": np.datetime64("2024-01-01T00:00:00", "ns"),
    }
    assert texts(named) == [f"{name}: {name}" for name in named]


def test_wrappers_are_one_column_each() -> None:
    row = {
        "age": 1,
        "ids": [1, 2],
        "words": ["a"],
        "boxes": [{"x": 0.5, "名": "a"}],
        "who": {"a": 1},
        "all": [[1]],
    }
    ragged = ["ids", "words", "boxes", "all", "all{items}"]
    assert texts(row, ragged=ragged, nullable=["age", "words{items}", "who", "ids"]) == [
        *("age: int or None", "ids: list of int or None", "words: list of (str or None)"),
        *("boxes: list of dict", "boxes/x: float", "boxes/名: str"),
        *("who: dict or None", "who/a: int", "all: list of list of int"),
    ]
    assert texts(np.zeros(3), ragged=["value"]) == ["value: ndarray float64 ragged, 1-d"]
    assert texts([1], ragged=["value"]) == ["value: list of int"]
    assert texts({}) == []


def test_names_are_those_of_the_rows_and_find_their_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"名": n, "größe": {"a b": n, "%41": n}, "0": n, "a/b": n} for n in range(3)
    ]
    ref = yoga.Storage(tmp_path).submit(rows, "named", "1", progress=False)
    names = ["名", "größe/a b", "größe/%41", "0", "a/b"]
    assert [one.name for one in ref.schema.shown] == names
    for name in [*names, "größe"]:
        (path,) = {one.column for one in ref.columns([name]).schema.shown} if name != "größe" else {""}  # type: ignore[union-attr]
        assert len(ref.columns([name])) == 3
        assert not path or readable_name(path) == name
    assert list(ref.columns(["a/b", "名"])[1]) == ["a/b", "名"]
    assert ref["名"][2] == 2
    with pytest.raises(KeyError, match="there is no column 'nam'; there are '名', 'größe/a b'"):
        ref.columns(["nam"])


def test_names_that_mean_two_columns_stay_as_they_are() -> None:
    tree = yoga.Schema.of({"a": {"b": 1}, "a/b": 2, "é": 3, "%C3%A9": 4}).tree
    assert spelled(tree, ["a/b", "a%2Fb", "é", "nosuch"]) == ["a/b", "a%2Fb", "%C3%A9", "nosuch"]
    both = yoga.Schema.of({"c/d": {"é": 1}, "c": {"d": {"é": 2}}}).tree
    assert spelled(both, ["c/d/é"]) == ["c/d/é"]


@given(VALUES)
def test_any_schema_is_shown_on_few_lines(row: Any) -> None:
    try:
        schema = yoga.Schema.of(row)
    except yoga.SchemaError:
        return
    shown = schema.shown
    assert [one.column for one in shown] == [column.name for column in schema.columns]
    for one in shown:
        assert str(one).isprintable()
    assert len(repr(schema).splitlines()) == max(1, len(shown) + bool(shown))


@pytest.mark.slow("4096")
@pytest.mark.parametrize("width", [1, 9, 10, 11, 4096])
def test_a_repr_has_ten_lines_at_most(tmp_path: Path, width: int) -> None:
    rows = [{f"a long name of a column {n}": n for n in range(width)}] * 3
    ref = yoga.Storage(tmp_path).submit(rows, "wide", "1", progress=False)
    views = [ref, ref[1:], ref.select([0]), ref.repeat(2), yoga.concat([ref, ref[::2]]), ref.map(len)]
    for view in views:
        lines = repr(view).splitlines()
        assert len(lines) <= 10
        assert max(map(len, lines)) <= 300
        assert f": {len(view)} row" in lines[0]
    last = repr(ref).splitlines()[-1]
    assert last.startswith(
        "<" if width == 1 else "  a long" if width < 10 else f"  and {width - 8:,} more columns>"
    )
    table = repr(ref.schema).splitlines()
    assert len(table) == min(width, 60) + 1 + (width > 60)


def test_a_repr_makes_no_row() -> None:
    calls: list[int] = []

    def doubled(columns: Mapping[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"y": columns["x"] * 2}

    ref = yoga.from_arrays({"x": np.arange(3)})
    made = ref.map_batches(doubled)
    for view in (made, made[1:], made.repeat(2), made[::-1][:2]):
        assert ";" not in repr(view)
    assert not calls
    assert made[0] == {"y": 0}
    assert repr(made[1:]).endswith("doubled[1:3]: 2 rows; y: scalar int64>")


def test_a_schema_that_fails_does_not_spoil_a_repr() -> None:
    class Broken(Made):
        @property
        def schema(self) -> yoga.Schema:
            raise OSError("the disk is gone")

    assert repr(Broken(2)) == "<Broken: 2 rows>"
    assert repr(Broken(2)[:1]) == "<Broken[0:1]: 1 row>"


def test_names_and_tables_cannot_break_lines(tmp_path: Path) -> None:
    rows = [{"one\ntwo\x1b[31m": 1, "名字": 2, "k" * 200: 3, "b": 4, "c": 5}] * 2
    ref = yoga.Storage(tmp_path).submit(rows, "odd", "1", progress=False)
    assert "\x1b" not in repr(ref)
    assert "one\\ntwo\\x1b[31m: int" in repr(ref)
    assert all(len(line) < 80 for line in repr(ref).splitlines())
    lines = repr(ref.schema).splitlines()
    assert {width_of(line[: line.index("int")]) for line in lines[1:]} == {62}


def test_the_parts_of_a_path_are_read_as_they_were_written() -> None:
    for path in [("名",), ("a/b", 0), ("{valid}",), ("%",), ("0",), ("",)]:
        assert readable_name(path_name(path)) == "/".join(map(str, path))
