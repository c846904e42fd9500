"""Filters of rows: what they find and what they refuse."""

from __future__ import annotations

import datetime as dt
import operator
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.tools.view.filter import Filter

_ZONE = dt.timezone(dt.timedelta(hours=2))
_CLASSES = ["zero", "one", "two", "Ankle boot", "black or white", "5 stars", "6", "7", "8", "9"]


def _row(n: int) -> dict[str, Any]:
    """Row n of 100 with a column of each kind."""
    return {
        "label": n % 10,
        "text": f"row {n}",
        "when": dt.datetime(2024, 1, 1) + dt.timedelta(hours=n),
        "zoned": (dt.datetime(2024, 1, 1) + dt.timedelta(hours=n)).replace(tzinfo=_ZONE),
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=n),
        "clock": dt.time(n % 24, 5),
        "span": dt.timedelta(seconds=n),
        "price": Decimal(n).scaleb(-1),
        "flag": n % 2 == 0,
        "short": np.float32(n / 10),
        "half": torch.tensor(n / 8, dtype=torch.float16),
        "small": np.int8(n),
        "month": np.datetime64("2024-01", "M") + n,
        "image": np.full((3, 3), n, np.uint8),
        "\u540d": "x" if n else "",
        "tags": ["a", "b"][: n % 3],
        "ids": list(range(n % 4)),
        "known": None if n % 4 == 0 else n,
        "raw": bytes([n]),
        "pose": {"left or right": n % 2, "at": (n, -n)},
    }


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
    schema = yoga.Schema.of(_row(1), ragged=["tags", "ids"], nullable=["known"])
    storage = yoga.Storage(tmp_path_factory.mktemp("filters"))
    rows = map(_row, range(100))
    return storage.submit(rows, "a", "1", schema=schema, info={"classes": _CLASSES}, progress=False)


FOUND: list[tuple[str, list[int]]] = [
    ("label = 3", [*range(3, 100, 10)]),
    ("label == 3 and small < 30", [3, 13, 23]),
    ("label=3 AND(small<20 OR small>=90)", [3, 13, 93]),
    ("label = 'Ankle boot' and small < 20", [3, 13]),
    ("label = ankle boot and small < 20", [3, 13]),
    ("label = 'black or white' and small < 20", [4, 14]),
    ("label in (zero, 'Ankle boot', 7) and small < 11", [0, 3, 7, 10]),
    ("small in [1, 2,] or small in (7)", [1, 2, 7]),
    ("small not in (1, 2) and small < 4", [0, 3]),
    ("not small > 1", [0, 1]),
    ("not not small <= 1", [0, 1]),
    ("small = 1 or small = 5 and label = 5", [1, 5]),
    ("(small = 1 or small = 5) and label = 5", [5]),
    ('text = row 17 or text = "row 18"', [17, 18]),
    ("text contains ROW and text contains 99", [99]),
    ("text not contains '1' and small < 3", [0, 2]),
    ("text < 'row 10' and small < 3", [0, 1]),
    ("when >= 2024-01-05 02:30", [99]),
    ("when < 2024-01-01T02:00:00.000001", [0, 1, 2]),
    ("when = 2024-01-01", [0]),
    ("zoned = 2024-01-01 01:00", [1]),
    ("zoned = 2023-12-31T23:00Z", [1]),
    ("day = 2024-01-05", [4]),
    ("day > 2024-01-05 12:00 and small < 7", [5, 6]),
    ("month = 2024-03-01", [2]),
    ("price = 0.30", [3]),
    ("price > 9.75", [98, 99]),
    ("flag = true and small < 3", [0, 2]),
    ("flag != true and small < 3", [1]),
    ("short = 0.1", [1]),
    ("short > 0.1 and short <= 0.3", [2, 3]),
    ("half = 0.125", [1]),
    ("short = nan or short < nan or short = 1e300", []),
    ("small < 300 and small > -1e999 and small < 2.5", [0, 1, 2]),
    ("small != 2.5 and small != 300 and small < 2", [0, 1]),
    ("image contains 7", [7]),
    ("tags contains a and small < 4", [1, 2]),
    ("ids contains 2 and small < 8", [3, 7]),
    ("known = none and small < 9", [0, 4, 8]),
    ("known != NONE and small < 3", [1, 2]),
    ("known != 1 and small < 3", [0, 2]),
    ("known > 97", [98, 99]),
    ("\u540d = ''", [0]),
    ("raw contains A", [65]),
    ("pose/left or right = 1 and small < 4", [1, 3]),
    ('"pose/left or right" = 1 and pose/at/1 >= -3', [1, 3]),
]


@pytest.mark.parametrize(("text", "rows"), FOUND)
def test_what_a_filter_finds(ref: yoga.DataRef, text: str, rows: list[int]) -> None:
    found = Filter.of(text, ref.schema, ref.info)
    numbers, looked = found.first(ref)
    assert (numbers.tolist(), looked) == (rows, 100)
    assert found.first(ref, 3, 2, 50)[0].tolist() == [row for row in rows if 3 <= row < 50][:2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the end is not a column"),
        ("label", "write a column, a comparison and a value"),
        ("label is 3", "write a column, a comparison and a value"),
        ("labl = 3", "there is no column 'labl'; columns are label"),
        ("__import__('os') = 1", "is not a column"),
        ("= 3", "is not a column"),
        ("label =", "a value is missing before the end"),
        ("label = 3 and", "the end is not a column"),
        ("label = 3 or or label = 2", "there is no column 'or label'"),
        ("(label = 3", "a parenthesis is not closed before the end"),
        ("label = 3)", "is left over"),
        ("label in 3", "values in parentheses"),
        ("label in ()", "a value is missing"),
        ("label in (1, 2", "the list is not closed"),
        ("text = 'x", "is not closed"),
        ("text = black and white", "'white' is not a column"),
        ("x" * 1001, "at most 1,000 characters"),
        ("(" * 60 + "label = 1" + ")" * 60, "at most 50 parentheses"),
        (
            "label = cat",
            "'label' holds whole numbers, which cannot be compared with 'cat'; write a number or",
        ),
        ("label = Ankle boots", "such as Ankle boot"),
        ("small = none or short = x", "'short' holds float32, which cannot be compared with 'x'"),
        ("label > none", "is found by = or !="),
        ("label contains 3", "of which none contains"),
        (
            "image = 3",
            "'image' holds arrays or lists, which are not compared as a whole; write image contains 3",
        ),
        ("image contains x", "cannot be compared with 'x'"),
        ("tags = a", "write tags contains a"),
        ("ids contains a", "cannot be compared with 'a'"),
        ("when = 5", "write a date, as in"),
        ("when = 2024-13-05", "Month out of range"),
        ("when = 2024-01-01T00:00Z", "write it without Z"),
        ("clock = 12:00", "'clock' holds times of day, which a filter does not compare"),
        ("span > 3", "'span' holds spans of time, which a filter does not compare"),
        ("flag = maybe", "true or false"),
        ("label = 3.5", "'label' holds whole numbers, of which none can be '3.5'; compare it with < or >"),
        ("small in (1, 300)", "'small' holds int8, of which none can be '300'"),
        ("small = nan", "of which none can be 'nan'"),
        ("image contains 256", "of which none can be '256'"),
        ("price = 0.305", "of which none can be '0.305'"),
        ("day = 2024-01-05 12:00", "of which none can be '2024-01-05 12:00'"),
    ],
)
def test_what_is_no_filter_is_said(ref: yoga.DataRef, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Filter.of(text, ref.schema, ref.info)
    assert len(str(caught.value)) < 1500


def test_rows_without_a_schema_have_no_filter(ref: yoga.DataRef) -> None:
    with pytest.raises(ValueError, match="these rows have no schema; name it"):
        Filter.of("label = 3", ref.map(lambda row: row).schema)


def test_words_of_the_schema_are_classes() -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa

    table = pa.table({"kind": pa.array(["cat", "dog", "cat", None]).dictionary_encode()})
    ref = yoga.from_arrow(table, words=True)
    assert Filter.of("kind = cat", ref.schema).first(ref)[0].tolist() == [0, 2]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8),
    st.sampled_from(["<", "<=", ">", ">=", "=", "!="]),
    st.decimals(-(2**64), 2**64, places=1) | st.integers(-(2**64), 2**64),
)
def test_numbers_are_compared_exactly(values: list[int], how: str, wanted: Decimal | int) -> None:
    orders = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    order = {**orders, "=": operator.eq, "!=": operator.ne}[how]
    ref = yoga.from_arrays({"n": np.array(values, np.int64)})
    if how == "=" and not (wanted == int(wanted) and -(2**63) <= wanted < 2**63):
        with pytest.raises(ValueError, match="of which none can be"):
            Filter.of(f"n = {wanted}", ref.schema)
        return
    found = Filter.of(f"n {how} {wanted}", ref.schema).first(ref)[0].tolist()
    assert found == [place for place, value in enumerate(values) if order(value, wanted)]


_TERMS = st.sampled_from(["a = 1", "b < 2", "a in (0, 2)", "b != 0", "text contains x", "not a > 1"])


@given(
    st.recursive(
        _TERMS,
        lambda one: st.tuples(one, st.sampled_from(["and", "or"]), one).map(
            lambda parts: f"({parts[0]} {parts[1]} not ({parts[2]}))"
        ),
        max_leaves=8,
    )
)
def test_joined_conditions_are_those_of_python(text: str) -> None:
    """Each expression, in the grammar and in Python's."""
    columns: dict[str, Any] = {
        "a": [0, 1, 2, 3] * 4,
        "b": [n // 4 for n in range(16)],
        "text": ["x", "y"] * 8,
    }
    ref = yoga.from_arrays({name: np.array(values) for name, values in columns.items()})
    python = text.replace("a = 1", "a == 1").replace("text contains x", "'x' in text")
    wanted = [n for n in range(16) if eval(python, {name: values[n] for name, values in columns.items()})]
    assert Filter.of(text, ref.schema).first(ref)[0].tolist() == wanted


@given(st.text(alphabet="ab =<>()[],'\"01.andornticos%\u202e", max_size=40))
def test_any_text_is_a_filter_or_a_value_error(text: str) -> None:
    ref = yoga.from_arrays({"a": np.arange(3), "b": np.array(["a", "b", "o"])})
    try:
        found = Filter.of(text, ref.schema)
    except ValueError as error:
        said = str(error)
        event("refused")
    else:
        said = ""
        event("found")
        assert set(found.first(ref)[0].tolist()) <= {0, 1, 2}
    assert "\u202e" not in said


def test_only_its_columns_are_read(tmp_path: Path) -> None:
    """The files of other columns may even be gone."""
    rows = [{"x": n, "wide": np.zeros(2**10)} for n in range(50)]
    storage = yoga.Storage(tmp_path)
    ref = storage.submit(rows, "a", "1", progress=False)
    found = Filter.of("x > 47", ref.schema)
    assert found.columns == ("x",)
    assert found.first(ref)[0].tolist() == [48, 49]
    assert ref.columns(list(found.columns))._row_bytes == 8
