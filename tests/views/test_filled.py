"""Values, or masks, in place of None."""

from __future__ import annotations

import datetime
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from records import in_a_version

import torchyoga as yoga

ROWS = [
    {
        "label": None if i % 2 else i,
        "name": None if i % 3 else "né" * i,
        "image": None if i % 2 else np.full((2, 2), i, "f4"),
        "tokens": None if i % 2 else np.arange(i),
        "tall": None if i % 2 else np.full((i, 2), i),
        "when": None if i % 2 else datetime.date(2024, 1, 1 + i),
        "price": None if i % 2 else Decimal(i).scaleb(-2),
        "ids": [None if k == 1 else k for k in range(i % 4)],
        "list": None if i % 2 else list(range(i)),
        "box": None if i % 2 else {"x": i, "y": None},
    }
    for i in range(7)
]
# A column, the value that takes the place of None, and what its rows hold then; of ids None is within lists.
VALUES: list[tuple[str, Any, Any]] = [
    ("label", -1, -1),
    ("name", "?", "?"),
    ("image", 3, np.full((2, 2), 3, "f4")),
    ("tokens", np.array([7, 8]), np.array([7, 8])),
    ("tokens", [7], np.array([7])),
    ("tokens", [], np.arange(0)),
    ("tall", np.ones((1, 3), int), np.ones((1, 3), int)),
    ("when", datetime.date(1970, 1, 1), datetime.date(1970, 1, 1)),
    ("price", Decimal("0.5"), Decimal("0.5")),
    ("ids", -2, -2),
    ("list", [], []),
    ("list", [5, 6], [5, 6]),
    ("box", {"x": 9, "y": None}, {"x": 9, "y": None}),
    ("box", {"x": 9, "y": 0.5}, {"x": 9, "y": 0.5}),
]


SCHEMA = yoga.Schema.of(
    {**ROWS[0], "name": "", "ids": [0], "list": [0], "box": {"x": 0, "y": 1.5}},
    ragged=["tokens", "tall", "list"],
    nullable=re.findall(r"\S+", "label name image tokens tall when price ids{items} list box box/y"),
)
ref = in_a_version(ROWS, SCHEMA)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        is_alike = isinstance(found, np.ndarray) and found.dtype == expected.dtype
        return is_alike and np.array_equal(found, expected)
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize(("name", "value", "expected"), VALUES)
def test_a_value_is_where_none_was(
    ref: yoga.DataRef, tmp_path: Path, name: str, value: Any, expected: Any
) -> None:
    view = ref.filled({name: value})
    kept = yoga.Storage(tmp_path).submit(view, "kept", "1", progress=False)
    for found in (view, kept, pickle.loads(pickle.dumps(view)), view.columns([name])):
        for row, before in zip(found, ROWS, strict=True):
            old: Any = before[name]
            wanted = expected if old is None else old
            if name == "ids":
                wanted = [expected if item is None else item for item in old]
            assert same(row[name], wanted)
    assert ref[1]["label"] is None  # unchanged
    assert view.fingerprint != ref.fingerprint


def test_lists_of_tables_are_filled_with_lists() -> None:
    table = pa.table(
        {
            "ids": [[1, 2], None, []],
            "some": [[1, None], None, []],
            "tags": [["a"], None, ["b", None]],
            "deep": [[["a"]], None, [[]]],
            "boxes": [[{"x": 1}], None, []],
        }
    )
    for name in table.column_names:
        expected = [[] if value is None else value for value in table[name].to_pylist()]
        for ref in (yoga.from_arrow(table).filled({name: []}), yoga.from_arrow(table)[:3].filled({name: []})):
            assert ref.to_arrow()[name].to_pylist() == expected
    (batch,) = yoga.DataLoader(
        yoga.from_arrow(table).filled({"ids": [9]}).columns(["ids"]), 3, collate_fn=yoga.jagged
    )
    assert batch["ids"].values.tolist() == [1, 2, 9]
    with pytest.raises(ValueError, match=r"^1\.5 is not a value of column 'some'"):
        yoga.from_arrow(table.select(["some"]).slice(0, 1)).filled({"some": 1.5})


def test_masks_say_what_was_there(ref: yoga.DataRef) -> None:
    view = ref.masked()
    for row, before in zip(view, ROWS, strict=True):
        for name in ("label", "name", "image", "tokens", "tall", "when", "price", "list", "box"):
            assert row[f"{name}_is_valid"] is (before[name] is not None)
            assert row[name] is not None
        assert row["box"]["y"] == 0
        assert row["box"]["y_is_valid"] is False
        assert row["list"] == (before["list"] or [])
    (batch,) = yoga.DataLoader(view.columns(["label", "label_is_valid"]), 7)
    assert batch["label"].tolist() == [0, 0, 2, 0, 4, 0, 6]
    assert batch["label_is_valid"].tolist() == [True, False] * 3 + [True]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda ref: ref.filled({"labl": 0}), KeyError, "there is no column 'labl'; there are 'label'"),
        (lambda ref: ref.filled({"label": "x"}), ValueError, "expected int <i8, found str"),
        (lambda ref: ref.filled({"label": 1.5}), ValueError, "expected int <i8, found float"),
        (lambda ref: ref.filled({"price": Decimal("0.001")}), ValueError, "digits behind the point"),
        (lambda ref: ref.filled({"box": 1}), ValueError, r"filled\(\{'box': 1\}\): .*found int"),
        (lambda ref: ref.filled({"list": 1}), ValueError, "expected a list, found int"),
        (lambda ref: ref.filled({"list": ["a"]}), ValueError, "expected int <i8, found str"),
        (lambda ref: ref.filled({"tokens": [1.5]}), ValueError, "expected numbers of <i8"),
        (lambda ref: ref.filled({"tokens": ["a"]}), ValueError, "expected numbers of <i8"),
        (lambda ref: ref.filled({}), TypeError, "takes a value for each"),
        (lambda ref: ref.filled(3), TypeError, "takes a value for each"),
        (lambda ref: ref.masked("label"), TypeError, r"masked\(\['label'\]\)"),
        (lambda ref: ref.masked(["ids{items}"]), ValueError, "no name of its own"),
        (lambda ref: ref.masked(["nothing"]), KeyError, "there is no column"),
    ],
)
def test_what_cannot_be_filled_is_an_error(ref: yoga.DataRef, change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        change(ref)


def test_columns_that_are_never_none_stay_as_they_are() -> None:
    plain = yoga.from_arrays({"x": np.arange(3)})
    assert [row["x"] for row in plain.filled({"x": 9})] == [0, 1, 2]
    assert [row["x"] for row in plain.masked()] == [0, 1, 2]


def test_items_are_filled_in_as_many_rows_as_items(storage: yoga.Storage) -> None:
    rows = [{"ids": [None, 1]}, {"ids": []}, {"ids": [2]}]
    assert list(storage.submit(rows, "items", "1").filled({"ids": 0})["ids"]) == [[0, 1], [], [2]]
    for item in (np.zeros(2), "text"):
        ref = storage.submit([{"ids": [None, item]}, {"ids": []}], "items", "1", overwrite=True)
        with pytest.raises(ValueError, match="items are not filled; use map"):
            ref.filled({"ids": item})


def test_an_int_that_a_float_column_holds_exactly_is_taken(tmp_path: Path) -> None:
    rows = [{"score": 0.5, "parts": [1.5, None]}, {"score": None, "parts": []}]
    schema = yoga.Schema.of(
        {"score": 0.5, "parts": [0.5]}, ragged=["parts"], nullable=["score", "parts{items}"]
    )
    ref = yoga.Storage(tmp_path).submit(rows, "floats", "1.0", schema=schema)
    assert list(ref.filled({"score": 0, "parts": np.int64(-1)})) == [
        {"score": 0.5, "parts": [1.5, -1.0]},
        {"score": 0.0, "parts": []},
    ]
    assert type(ref.filled({"score": 0})[1]["score"]) is float
    for wrong in (2**53 + 1, 10**400, True):
        with pytest.raises(ValueError, match=r"filled\(\{.score.: .*: .*(expected|64 bits)"):
            ref.filled({"score": wrong})
