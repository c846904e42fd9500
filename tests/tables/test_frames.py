from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import torchyoga as yoga
from torchyoga import errors
from torchyoga.errors import SchemaError


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "x": [0.5, float("nan"), 2.5],
            "n": pd.array([1, None, 3], dtype="Int64"),
            "kind": pd.Categorical(["b", None, "a"]),
            "name": ["one", None, "three"],
            "when": pd.to_datetime(["2024-02-29 12:00", None, "2024-03-01 00:00"]).tz_localize("UTC"),
            "ids": [np.arange(2), np.arange(0), np.arange(1)],
        }
    )


def test_pandas_comes_in_and_back(frame: pd.DataFrame) -> None:
    ref = yoga.from_arrow(frame)
    assert np.isnan(ref[1]["x"])
    assert [ref[1][name] for name in ("n", "kind", "name", "when")] == [None] * 4
    assert [row["kind"] for row in yoga.from_arrow(frame, words=True)] == ["b", None, "a"]
    assert ref[0]["ids"].tolist() == [0, 1]
    columns = {column.name: column for column in ref.schema.columns}  # type: ignore[union-attr]
    assert columns["when"].meaning.timezone == "UTC"
    assert columns["kind"].meaning.words == ("a", "b")
    again = ref.to_pandas()
    assert [again["name"][0], again["name"][2]] == ["one", "three"]
    assert again["name"].isna().tolist() == again["n"].isna().tolist() == [False, True, False]
    assert list(again["kind"].cat.categories) == ["a", "b"]
    assert again["when"].dt.tz is not None
    assert np.array_equal(again["x"], frame["x"], equal_nan=True)


def test_an_index_with_a_name_is_a_column() -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index(["a", "b"], name="key"))
    assert yoga.from_arrow(frame)[1] == {"x": 2, "key": "b"}
    assert yoga.from_arrow(frame.reset_index(drop=True))[1] == {"x": 2}
    assert yoga.from_arrow(frame.set_index(pd.RangeIndex(5, 7, name="n")))[1] == {"x": 2, "n": 6}


def test_columns_of_several_types_or_of_one_name_are_refused() -> None:
    for values, text in (([1, "a", object()], "odd"), ([2**63, -1], "too large")):
        with pytest.raises(errors.SchemaError, match=f"the DataFrame cannot be kept.*{text}"):
            yoga.from_arrow(pd.DataFrame({"odd": pd.Series(values, dtype=object)}))
    with pytest.raises(SchemaError, match=r"rename one of the columns \['a'\]"):
        yoga.from_arrow(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_polars_comes_in_and_back() -> None:
    frame = pl.DataFrame(
        {
            "x": [1, None, 3],
            "tags": [["a"], [], ["b", None]],
            "box": [{"a": 1, "b": "u"}, {"a": 2, "b": "v"}, {"a": 3, "b": None}],
            "kind": pl.Series(["u", "v", "u"], dtype=pl.Enum(["u", "v"])),
        }
    )
    ref = yoga.from_arrow(frame)
    assert ref[2]["tags"] == ["b", None]
    assert ref[1]["x"] is None
    assert ref[2]["box"] == {"a": 3, "b": None}
    again = ref.to_polars()
    assert (
        again.with_columns(pl.col("kind").cast(pl.String)).to_dicts()
        == frame.with_columns(pl.col("kind").cast(pl.String)).to_dicts()
    )
    with pytest.raises(TypeError, match=r"collect\(\)"):
        yoga.from_arrow(frame.lazy())


@pytest.mark.parametrize("zone", ["+05:30", "-15:00", "+01:00", "Europe/Berlin"])
def test_times_of_any_zone_come_to_polars(zone: str) -> None:
    kind = pa.timestamp("us", zone)
    moments = pa.array([0, None, 2**50]).cast(kind)
    table = pa.table(
        {
            "at": moments,
            "list": pa.ListArray.from_arrays([0, 2, 2, 3], moments),
            "box": pa.StructArray.from_arrays([moments], ["at"]),
        }
    )
    frame = yoga.from_arrow(table).to_polars()
    again = frame.to_arrow().cast(table.schema)
    assert again.to_pylist() == table.to_pylist()
    assert frame.schema["at"].time_zone == {"+01:00": "Etc/GMT-1", "Europe/Berlin": zone}.get(zone, "UTC")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [pl.Int128(), pl.UInt128(), pl.List(pl.Int128), pl.Object()], ids=str)
def test_columns_that_arrow_lacks_are_named(kind: Any) -> None:
    odd = [[1]] if isinstance(kind, pl.List) else [1]
    frame = pl.DataFrame({"x": [1], "odd": pl.Series(odd, dtype=kind)})
    with pytest.raises(SchemaError, match=r"column 'odd' is of the type .*128.*drop\('odd'\)|type Object"):
        yoga.from_arrow(frame)
    assert list(yoga.from_arrow(frame.drop("odd"))["x"]) == [1]


def of_every_kind(frame: pd.DataFrame) -> dict[str, Any]:
    plain = frame[["x", "ids"]].fillna({"x": 9.0})
    table = pa.Table.from_pandas(plain, preserve_index=False)
    return {"pandas": plain, "polars": pl.from_arrow(table), "table": table, "batch": table.to_batches()[0]}


@pytest.mark.parametrize("kind", ["pandas", "polars", "table", "batch"])
def test_bare_tables_work(kind: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    bare = of_every_kind(frame)[kind]
    ref = yoga.Storage(tmp_path).submit(bare, "numbers", "1", progress=False)
    assert [row["ids"].tolist() for row in ref] == [[0, 1], [], [0]]
    only = bare.select(["x"]) if kind != "pandas" else bare[["x"]]
    (batch,) = yoga.DataLoader(only, 3, shuffle=True, seed=1)
    assert isinstance(batch["x"], torch.Tensor)
    assert sorted(batch["x"].tolist()) == [0.5, 2.5, 9.0]


def test_parts_become_tables(frame: pd.DataFrame, tmp_path: Path) -> None:
    ref = yoga.from_arrays({"x": np.arange(1000), "y": np.zeros((1000, 2, 3), np.float32)})
    assert ref[:10].to_pandas()["x"].tolist() == list(range(10))
    assert ref.where("x", lambda x: x % 100 == 0).to_polars()["x"].to_list() == list(range(0, 1000, 100))
    assert pickle.loads(pickle.dumps(yoga.from_arrow(ref.to_arrow())))[999]["y"].shape == (2, 3)
    with pytest.raises(TypeError, match="does not say what its rows look like"):
        ref.map(dict).to_arrow()


def test_rows_that_are_not_dicts(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    pairs = storage.submit([(1, "a"), (2, None)], "pairs", "1", progress=False)
    assert pairs.to_arrow().to_pylist() == [{"0": 1, "1": "a"}, {"0": 2, "1": None}]
    single = storage.submit([[1], [2, 3]], "lists", "1", progress=False)
    assert single.to_arrow().to_pylist() == [{"value": [1]}, {"value": [2, 3]}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(2, np.complex64), "column 'x' is complex"),
        (torch.zeros(2, dtype=torch.bfloat16), "column 'x' is of bfloat16"),
        (np.zeros((2, 0)), "column 'x' has rows of the shape"),
    ],
)
def test_what_arrow_lacks(values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.SchemaError, match=message):
        yoga.from_arrays({"x": values}).to_arrow()
    with pytest.raises(errors.SchemaError, match=message):
        yoga.from_arrays({"x": values}).to_parquet(tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_finished_does_not_appear(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path / "cache").submit([{"x": "a"}, {"x": "\ud800"}], "odd", "1", progress=False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.parquet").write_bytes(b"kept")
    with pytest.raises(errors.SchemaError, match="column 'x' holds text that is not UTF-8"):
        ref.to_parquet(tmp_path / "out" / "x.parquet", group_bytes=1)
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"kept"]


def test_whole_numbers_and_bools_with_nulls_keep_their_values(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "a": pd.array([2**53 + 1, None, 2**63 - 1], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "c": [1, 2, 3],
            "d": pd.array([1, None, 255], dtype="UInt8"),
        }
    )
    kept = yoga.Storage(tmp_path).submit(frame, "frame", "1", progress=False)
    for ref in (yoga.from_arrow(frame), kept):
        pd.testing.assert_frame_equal(ref.to_pandas(), frame)
        assert ref[:1].to_pandas()["a"].dtype == np.int64


def test_whole_numbers_within_lists_and_dicts_keep_their_values_beside_none() -> None:
    large = 2**53 + 1
    table = pa.table(
        {
            "ids": [[large, None], [1, 2], None],
            "box": [{"n": large, "ids": [large, None]}, {"n": None, "ids": []}, None],
            "pairs": pa.array([[("a", large), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    frame = yoga.from_arrow(table).to_pandas()
    assert frame["ids"][0].tolist() == [large, None]
    assert [type(value) for value in frame["ids"][1].tolist()] == [int, int]
    assert (frame["box"][0]["n"], frame["box"][0]["ids"].tolist()) == (large, [large, None])
    assert frame["pairs"][0][0] == {"key": "a", "value": large}
    assert yoga.from_arrow(table[1:2].select(["ids"])).to_pandas()["ids"][0].dtype == np.int64
    assert yoga.from_arrow(frame).to_arrow().to_pylist() == yoga.from_arrow(table).to_arrow().to_pylist()


def test_words_are_shown_and_fill_what_is_none() -> None:
    ref = yoga.from_arrow(pd.DataFrame({"kind": pd.Categorical(["x", None, "y"])}))
    assert "codes of x, y" in str(ref.schema)
    assert [int(row["kind"]) for row in ref.filled({"kind": "y"})] == [0, 1, 1]
    with pytest.raises(ValueError, match="'z' is not one of the words of 'kind': x, y"):
        ref.filled({"kind": "z"})
