"""Views in nests of any kind: rows, columns, names, places; each row once under any ranks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from damaged import flip
from mixtures import ids
from own import Made
from records import OWN, ROWS, SCHEMA

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.rows.schema import Projection
from torchyoga.testing import assert_rows_equal, check_dataref
from torchyoga.views.chosen import SelectedRef
from torchyoga.views.joined import JoinedRef, RowMap

# -- columns


def test_columns_hold_what_the_rows_hold(ref: yoga.DataRef) -> None:
    views = (ref[7:50:3], yoga.concat([ref, ref]), ref.repeat(2), ref.where("id", lambda y: y > 3))
    for source in (ref, OWN, *views):
        whole = list(source)
        some = source.columns(["text", "meta/pair/1"])
        assert_rows_equal(
            list(some), [{"text": row["text"], "meta": {"pair": (row["meta"]["pair"][1],)}} for row in whole]
        )
        assert_rows_equal(list(source["meta"]), [row["meta"] for row in whole])
        assert_rows_equal(list(source["meta"]["pair/0"]), [row["meta"]["pair"][0] for row in whole])
        assert_rows_equal(list(source["ids"][[3, -1]]), [whole[3]["ids"], whole[-1]["ids"]])
        assert source["ids"].lengths(np.arange(len(source))).tolist() == [len(row["ids"]) for row in whole]
        half = source.columns(["meta/half"])
        assert source.columns(["meta", "text"]).columns(["meta/half"]).schema == half.schema
        assert source["meta"]["half"].fingerprint == source["meta/half"].fingerprint != half.fingerprint


@pytest.mark.damages("bytes of two columns are changed")
def test_columns_that_are_not_wanted_are_neither_read_nor_compared(tmp_path: Path) -> None:
    lengths = np.arange(64) % 3 * 1000
    images = np.random.default_rng(0).integers(0, 256, (64, 4096), np.uint8)
    rows = [{"image": images[n], "label": n, "x": np.arange(lengths[n]) + 10**6} for n in range(64)]
    schema = yoga.Schema.of(rows[0], ragged=["x"])
    yoga.Storage(tmp_path).submit(rows, "a", "1", schema=schema, progress=False)
    (path,) = (path for path in (tmp_path / "a" / "1").iterdir() if path.suffix != ".json")
    flip(path, rows[33]["image"].tobytes(), 100)
    flip(path, rows[32]["x"].tobytes(), 100)
    ref = yoga.Storage(tmp_path).fetch("a", "1")
    assert ref["label"][:][[32, 33]] == [32, 33]
    assert sorted(torch.cat(list(yoga.DataLoader(ref["label"], 8, shuffle=True))).tolist()) == list(range(64))
    assert len(ref.where("label", lambda y: y > 30)) == 33
    # Lengths are found without values.
    assert ref["x"].lengths(np.array([32, 0, 1, 32])).tolist() == [2000, 0, 1000, 2000]
    assert ref["x"].lengths(np.zeros(0, np.int64)).tolist() == []
    assert len(ref.where("x", lambda x: x.lengths > 100)) == np.count_nonzero(lengths)
    for act in (lambda: ref["image"][33], lambda: ref.where("x", lambda x: x.any(x.values < 0))):
        with pytest.raises(yoga.errors.CorruptError):
            act()


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda ref: ref.columns(["txt"]), KeyError, "no column 'txt'; there are 'text', "),
        (lambda ref: ref["meta/none"], KeyError, "no column 'meta/none'; there are 'meta/"),
        (lambda ref: ref.columns([]), ValueError, "name one or more columns, each once"),
        (lambda ref: ref.columns(["id", "id"]), ValueError, "each once; found"),
        (lambda ref: ref.columns("id"), TypeError, r"columns\(\['id'\]\), or by ref\['id'\]"),
        (lambda ref: ref["id"].lengths(np.arange(2)), TypeError, "not a ragged column"),
        (lambda ref: ref.where("meta", lambda y: y), ValueError, "several columns; name one of meta/half"),
        (lambda ref: ref.where("id", lambda y: y), ValueError, "rows 0 to 59 .*it returned int64 of shape"),
        (lambda ref: ref.where("id", lambda y: y[1:] > 3), ValueError, r"it returned bool of shape \(59,\)"),
        (lambda ref: ref.where("id", lambda y: None), ValueError, "it returned None"),
        (lambda r: r.where("ids", lambda y: y.any(y.lengths > 3)), ValueError, "a bool for each of the 120"),
        (lambda r: r.where(["id"], lambda c: c == 3), ValueError, r"shape \(\); names in a list .* dict of"),
        (lambda ref: ref.select([0, 60]), IndexError, "row 60 of a dataset of 60"),
        (lambda ref: ref.select([True, False]), TypeError, r"use where\(...\), or np.flatnonzero\(mask\)"),
        (lambda ref: ref.order_by("ids"), ValueError, "one number or text a row"),
        (lambda ref: ref.order_by(["x", "ids"]), TypeError, "the name of one column.*by the last one first"),
        (lambda ref: ref.repeat(-1), ValueError, "times"),
        (lambda ref: ref.repeat(2**60), ValueError, "more than"),
        (lambda ref: yoga.concat([]), ValueError, "at least one"),
        (lambda ref: yoga.concat([ref, [1]]), TypeError, "number 1 is a list"),
        (lambda ref: yoga.concat(ref), TypeError, "a list of DataRefs"),
        (lambda ref: ref.where([], lambda c: c), ValueError, "at least one column"),
    ],
)
def test_what_cannot_be_is_said(
    act: Callable[[yoga.DataRef], object], error: type[Exception], text: str, ref: yoga.DataRef
) -> None:
    with pytest.raises(error, match=text):
        act(ref)


def test_columns_have_names_only_where_rows_are_known() -> None:
    unknown = Made(3)
    acts: list[Callable[[yoga.DataRef], object]] = [
        lambda ref: ref.columns(["x"]),
        lambda ref: ref["x"],
        lambda ref: ref.where("x", lambda x: x > 1),
        lambda ref: ref.order_by("x"),
        lambda ref: ref.split([0.5, 0.5], by="x"),
        lambda ref: ref.filled({"x": 1}),
        lambda ref: ref.decoded(),
        lambda ref: ref.map_batches(lambda c: c)[0],
        lambda ref: ref.token_batches("x", 4),
        lambda ref: ref.windows(2),
    ]
    for act in acts:
        for ref in (unknown, yoga.from_arrays({"x": np.arange(3)}).map(lambda row: row)):
            with pytest.raises(
                TypeError, match=r"does not say what.*before map.*schema=yoga\.Schema\.of\(row"
            ):
                act(ref)
    assert list(unknown.select([2, 0])) == [2, 0]
    assert list(yoga.concat([unknown, unknown.repeat(2)])) == [0, 1, 2] * 3


# -- where, select, concat, repeat, order_by


def test_conditions_see_all_kinds_of_columns(ref: yoga.DataRef) -> None:
    assert ids(ref.where("text", lambda y: y == "bb")) == [n for n in range(60) if n % 3 == 1 and n % 4 == 2]
    assert ids(ref.where("meta/half", lambda y: y < 2)) == [0, 1, 2, 3]
    assert ids(ref.where("meta/pair/1", lambda y: y[:, 0] % 7 == 0)) == list(range(0, 60, 7))
    found = ref.where(["id", "ids"], lambda c: (c["id"] < 20) & c["ids"].any(c["ids"].values == 3))
    assert ids(found) == [4, 9, 14, 19]
    assert ids(ref[:9].where("ids", lambda y: y.all(y.values < 2))) == [0, 1, 2, 5, 6, 7]
    assert ids(ref[:6].where("ids", lambda y: y.offsets[1:] > 5)) == [3, 4, 5]
    assert ids(ref[:9].where("id", lambda y: np.ma.masked_where(y > 4, y) > 2)) == [3, 4]
    assert ids(ref[:6].where("id", lambda y: torch.from_numpy(y) > 3)) == [4, 5]
    nothing = ref.where("id", lambda y: y < 0)
    assert (len(nothing), list(nothing), nothing.schema) == (0, [], ref.schema)
    assert list(yoga.DataLoader(nothing, 4, shuffle=True)) == []
    halves = yoga.from_arrays({"x": torch.arange(5, dtype=torch.bfloat16)})
    assert len(halves.where("x", lambda x: x > 2)) == 2


def test_conditions_see_into_dicts_that_may_be_none(storage: yoga.Storage) -> None:
    rows = [{"m": {"x": n, "y": "ab"[n % 2]} if n % 3 else None} for n in range(1, 9)]
    ref = storage.submit(rows, "m", "1", schema=yoga.Schema.of(rows[0], nullable=["m"]), progress=False)
    found = ref.where(["m/y", "m/x"], lambda c: (c["m/x"] > 2) & (c["m/y"] == "a"))
    assert [row["m"]["x"] for row in found] == [4, 8]


def test_conditions_are_joined(ref: yoga.DataRef) -> None:
    both = ref.where("id", lambda y: y % 2 == 0).where("id", lambda y: y % 3 == 0)
    assert both.whole is ref
    assert ids(both) == list(range(0, 60, 6))
    assert both.fingerprint == ref.where("id", lambda y: y % 6 == 0).fingerprint


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "up", "down"),
    [
        ([3, None, -1, 0, None, 3], [2, 3, 0, 5, 1, 4], [0, 5, 3, 2, 1, 4]),
        ([NAN, 2.0, None, -1.0, NAN], [3, 1, 0, 4, 2], [1, 3, 0, 4, 2]),
        (["b", None, "", "a"], [2, 3, 0, 1], [0, 3, 2, 1]),
        ([True, None, False], [2, 0, 1], [0, 2, 1]),
        ([None, datetime(2024, 1, 1), datetime(1900, 1, 1)], [2, 1, 0], [1, 2, 0]),
        ([None, None], [0, 1], [0, 1]),
    ],
)
def test_none_comes_last_as_in_hugging_face(values: list[Any], up: list[int], down: list[int]) -> None:
    table = pa.table({"id": range(len(values)), "x": values})
    theirs = datasets.Dataset(table)
    for expected, descending in ((up, False), (down, True)):
        assert ids(yoga.from_arrow(table).order_by("x", descending)) == expected
        if values.count(None) < len(values):
            with warnings.catch_warnings():  # of a pyarrow that is newer than datasets
                warnings.simplefilter("ignore")
                assert theirs.sort("x", reverse=descending)["id"][:] == expected


def test_rows_are_selected_by_anything_that_gives_numbers(ref: yoga.DataRef) -> None:
    for rows in (iter([5, 0, -1]), (n for n in (5, 0, -1)), {0: 5, 1: 0, 2: -1}.values()):
        assert ids(ref.select(rows)) == [5, 0, 59]
    assert ids(ref.select(n for n in ())) == []
    down = ref.select(range(9, -1, -1))
    assert isinstance(down, JoinedRef)
    assert down.rows.piece == range(9, -1, -1)
    assert ids(down) == list(range(9, -1, -1))
    with pytest.raises(TypeError, match="rows are taken by an int, a list of ints"):
        ref.select(n / 2 for n in range(3))


ORDERS = [
    ["text", "id"],
    ["ids", "meta/pair", "text", "meta/half"],
    ["meta", "id"],
    ["meta/pair/1", "meta/pair/0"],
]


@pytest.mark.parametrize("names", ORDERS)
def test_columns_come_in_the_order_in_which_they_are_named(names: list[str], ref: yoga.DataRef) -> None:
    tops = list(dict.fromkeys(name.split("/")[0] for name in names))
    for whole in (ref, OWN):
        view = whole.columns(names)
        for row, before in zip(view, whole, strict=True):
            assert list(row) == tops
            assert repr(row) == repr(_picked(before, names))
        check_dataref(view)
        assert list(pickle.loads(pickle.dumps(view))[7]) == tops
        assert list(view.columns(tops[::-1])[0]) == tops[::-1]
        assert list(view.to_arrow().column_names) == tops
        # The rows are the same, and so are the states of loaders that know them by it.
        assert view.fingerprint == Projection.of(whole.schema, names).pinned(whole.fingerprint)
        assert list(yoga.concat([whole.columns(names[::-1]), view])[60]) == list(
            whole.columns(names[::-1])[0]
        )


def _picked(row: Any, names: list[str]) -> Any:
    """Some parts of a row, in the order of their names."""
    if not isinstance(row, dict):
        return row
    inside: dict[str, list[str]] = {}
    for name in names:
        top, _, rest = name.partition("/")
        inside.setdefault(top, []).extend([rest] if rest else [])
    return {top: _picked(row[top], rest) if rest else row[top] for top, rest in inside.items()}


def test_other_sources_keep_their_fingerprint_in_any_order(tmp_path: Path) -> None:
    table = pa.table({"a": range(9), "b": [str(n) for n in range(9)], "c": [[n] for n in range(9)]})
    pq.write_table(table, tmp_path / "x.parquet")
    arrays = yoga.from_arrays({"a": np.arange(9), "b": np.arange(9.0), "c": np.zeros((9, 2))})
    for ref in (arrays, yoga.from_arrow(table), yoga.from_parquet(tmp_path)):
        view = ref.columns(["c", "a"])
        assert list(view[3]) == ["c", "a"]
        assert view.fingerprint == ref.columns(["a", "c"]).fingerprint
        check_dataref(view)
        batch = next(iter(yoga.DataLoader(view[:1], 1)))
        assert list(batch) == ["c", "a"]
    assert list(yoga.from_parquet(tmp_path, ["c", "a"])[0]) == ["c", "a"]


def test_fingerprints_of_deep_nests_are_found_at_once(ref: yoga.DataRef) -> None:
    view = ref
    for _ in range(60):
        view = view[1:].repeat(1) if len(view) > 1 else view
    assert view.fingerprint


def test_datasets_of_users_are_scanned_as_they_are() -> None:
    class Odd(Made):
        columns = ("id", "text")
        most = 0

        def take(self, rows: Any) -> list[Any]:
            Odd.most = max(Odd.most, len(rows))
            return super().take(rows)

        def __getitem__(self, index: Any) -> Any:
            return "something else"

    image = {"image": np.zeros(2**16, np.uint8)}
    schema = yoga.Schema.of({**ROWS[0], **image}, ragged=["ids"])
    ref = Odd(3000, lambda number: {**ROWS[number % 60], **image}, schema)
    assert len(ref.where("id", lambda y: y < 5)) == 250
    assert Odd.most <= 2**25 // 2**16  # rows of 64 KiB


def test_a_version_without_rows_has_views_and_every_column(tmp_path: Path) -> None:
    nothing = yoga.Storage(tmp_path).submit([], "nothing", "1", progress=False)
    assert [len(part) for part in nothing.split([0.5, 0.5], by="x")] == [0, 0]
    empty = nothing.where("x", lambda x: x > 3)
    windows = nothing.windows(3)
    by_key = yoga.from_arrays({"x": np.arange(0)}).windows(3, group_by="x")
    columns = (nothing["x"], nothing.columns(["x", "y"]), nothing.repeat(3)["x"], nothing.order_by("x"))
    made = [windows, nothing.token_windows("x", 2), nothing.token_batches("x", 8), nothing.packed("x", 8)]
    assert [view.schema is None for view in (*made, by_key)] == [True] * 4 + [False]
    for view in (empty, empty["y"], *columns, by_key, *made):
        assert (len(view), list(view), len(pickle.loads(pickle.dumps(view)))) == (0, [], 0)
        check_dataref(view)


@pytest.mark.parametrize("files", [False, True])
def test_a_block_shuffle_of_a_sparse_selection_mixes_many_rows(files: bool) -> None:
    class Filed(Made):
        @property
        def file_starts(self) -> Any:
            return np.append(np.arange(0, 2**20, 1000), 2**20) if files else super().file_starts

    whole = Filed(2**20, schema=SCHEMA)

    def selected(step: int) -> Any:
        mask = np.zeros(2**20, np.bool_)
        mask[::step] = True
        return SelectedRef(whole, RowMap(np.flatnonzero(mask)))

    sparse = np.diff(selected(500).file_starts)
    assert sparse.sum() == -(-(2**20) // 500)
    assert (sparse[:-1] >= (200 if files else 2098)).all()
    assert (sparse <= 4096).all()
    dense = selected(1 if files else 4).file_starts
    assert np.array_equal(dense, whole.file_starts if files else np.arange(0, 2**18 + 1, 4096))
    halves = selected(2)
    if files:
        assert len(halves.file_starts) == len(whole.file_starts)
    assert sorted(yoga.ResumableSampler(selected(500), shuffle="block")) == list(range(len(selected(500))))


def test_very_many_repetitions_are_shuffled_in_little_memory() -> None:
    ref = yoga.from_arrays({"x": np.arange(3)})
    assert ref.repeat(4).file_starts.tolist() == [0, 3, 6, 9, 12]
    for view in (ref.repeat(10**7), yoga.from_arrays({"x": np.zeros(2**20, np.int8)}).repeat(10**5)):
        starts = view.file_starts
        assert len(starts) <= 2**21
        assert (starts[0], starts[-1]) == (0, len(view))
        assert (np.diff(starts) > 0).all()


def test_conditions_for_one_row_say_how_to_write_them_for_many(ref: yoga.DataRef) -> None:
    for condition in (lambda x: x > 3 and x < 9, lambda x: 3 < x < 9, lambda x: not x):
        with pytest.raises(
            ValueError, match=r"use &, \| and ~ with parentheses, as in \(x > 3\) & \(x < 9\)"
        ):
            ref.where("id", condition)

    def own(x: Any) -> Any:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        ref.where("id", own)


def test_a_column_that_cannot_be_ordered_says_what_it_holds(tmp_path: Path) -> None:
    rows = [{"x": None, "boxes": [{"a": n}] * n} for n in range(1, 4)]
    ref = yoga.Storage(tmp_path).submit(rows, "nothing", "1", progress=False)
    with pytest.raises(
        TypeError, match=r"order_by\('boxes'\) needs a column of numbers or text.* holds list"
    ):
        ref.order_by("boxes")
    assert list(ref.order_by("x")) == rows
    assert "x        None" in str(ref.schema).splitlines()


def test_columns_become_arrays(tmp_path: Path) -> None:
    rows = [{"x": np.full(3, n, np.float32), "n": n, "name": str(n)} for n in range(1000)]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1")
    x: Any = ref["x"]
    found = np.asarray(x)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.stack([row["x"] for row in rows]))
    assert np.array_equal(np.asarray(ref.where("n", lambda n: n > 5)["n"]), np.arange(6, 1000))  # type: ignore[call-overload]
    assert np.array(ref["n"], dtype=np.int16).dtype == np.int16  # type: ignore[call-overload]
    assert np.asarray(ref["name"]).tolist() == [row["name"] for row in rows]  # type: ignore[call-overload]
    assert np.asarray(ref[:2]).shape == (2,)  # type: ignore[call-overload]
    assert np.asarray(ref["x"][:0]).shape == (0, 3)  # type: ignore[call-overload]
    if not np.__version__.startswith("1."):
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(x, copy=False)


def test_concat_says_how_rows_differ(storage: yoga.Storage) -> None:
    one = storage.submit([{"x": 1, "y": 2}], "one", "1")
    some = storage.submit([{"x": 1, "y": None}, {"x": 1, "y": 2}], "some", "1")
    differ = r"DataRef 1 has the columns \['x', 'y'\], DataRef 2 \['x'\]; take the same of each"
    with pytest.raises(SchemaError, match=differ):
        yoga.concat([one[:0], one, one.columns(["x"])])
    with pytest.raises(SchemaError, match="'y' may be None in DataRef 1, but not in DataRef 0; use filled"):
        yoga.concat([one, some])
    assert [row["y"] for row in yoga.concat([one, some.filled({"y": -1})])] == [2, -1, 2]
