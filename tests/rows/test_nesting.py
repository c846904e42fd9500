"""None, lists of varying length, times and decimals in rows: they come back as they went in."""

from __future__ import annotations

import datetime
import json
import pickle
from collections import namedtuple
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.rows import column as leaf
from torchyoga.rows.block import Block, Data, Rows, plain_row
from torchyoga.rows.collector import Collector, block_of
from torchyoga.rows.learning import Learner
from torchyoga.rows.node import Node
from torchyoga.rows.schema import Projection, Schema
from torchyoga.testing.rows import assert_rows_equal

Pair = namedtuple("Pair", "one other")
BERLIN = ZoneInfo("Europe/Berlin")
FIXED = datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))

LEAVES: list[st.SearchStrategy[Any]] = [
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(st.characters(), max_size=3),
    st.binary(max_size=3),
    st.integers(0, 9).map(np.int16),
    st.integers(0, 9).map(lambda n: np.full((2,), n, "<f4")),
    st.integers(0, 9).map(lambda n: torch.full((2,), n).to(torch.bfloat16)),
    st.datetimes(),
    st.datetimes(datetime.datetime(1972, 1, 1), datetime.datetime(2037, 1, 1)).map(
        lambda found: found.replace(tzinfo=FIXED)
    ),
    st.dates(),
    st.times(),
    st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6)),
    st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-3)),
]


def _over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Strategies for values, of which each may be None, a list, or in a container."""
    return st.one_of(
        inner.map(lambda values: st.none() | values),
        inner.map(lambda values: st.lists(values, max_size=3)),
        st.lists(inner, max_size=2).map(
            lambda held: st.tuples(*held).map(lambda found: {f"k{i}": item for i, item in enumerate(found)})
        ),
        st.lists(inner, max_size=2).map(lambda held: st.tuples(*held)),
        st.tuples(inner, inner).map(lambda held: st.builds(Pair, *held)),
    )


SPECS = st.recursive(st.sampled_from(LEAVES), _over, max_leaves=5)


@settings(max_examples=examples(150))
@given(st.data())
def test_nests_of_all_kinds_come_back(data: Any) -> None:
    values = st.tuples(data.draw(SPECS), data.draw(SPECS)).map(
        lambda found: dict(zip("xy", found, strict=True))
    )
    rows = data.draw(st.lists(values, min_size=1, max_size=6))
    try:
        block = block_of(rows)
    except SchemaError:  # lists that are all empty, or whose items hold nothing, or differ in shape
        return
    assert_rows_equal(Rows(block).exact(), rows)
    assert_rows_equal([plain_row(Rows(block)[i]) for i in range(len(rows))], rows)
    assert Schema.from_json(json.loads(json.dumps(block.schema.to_json()))) == block.schema
    # Learned from all rows, not as they came.
    learner = Learner()
    for row in rows:
        learner.add(row)
    tree, columns, _ = learner.learned()
    assert block.schema == Schema(tree, columns)
    again = block_of(rows, block.schema)
    assert list(map(bytes, again.checked())) == list(map(bytes, block.checked()))


def test_a_build_continues_and_every_cut_into_blocks_is_the_same(tmp_path: Path) -> None:
    rows = [
        {
            "age": None if i % 3 == 0 else i,
            "ids": list(range(i % 4)),
            "words": ["né" * n for n in range(i % 3)],
            "boxes": [{"label": n or None, "at": np.full(2, n)} for n in range(i % 3)],
            "deep": [[i] * n for n in range(i % 3)],
            "when": datetime.datetime(2024, 3, 30, i % 24, tzinfo=BERLIN),
            "price": Decimal(i).scaleb(-2),
            "meta": None if i % 5 else {"x": i, "tags": [None, b"t"]},
        }
        for i in range(60)
    ]
    storage = yoga.Storage(tmp_path)
    prints = set()
    for format in ("lmdb", "hdf5"):
        ref = storage.submit(rows, "rows", format, format=format, progress=False)
        assert_rows_equal(list(ref), rows)
        assert_rows_equal([ref[i] for i in (5, -1)], [rows[5], rows[-1]])
        storage.check("rows", format)
        prints.add(ref.fingerprint)
    assert len(prints) == 1
    assert_rows_equal(list(storage.convert("rows", "lmdb", format="hdf5", to="c", progress=False)), rows)
    assert_rows_equal(
        list(storage.submit(ref["boxes{items}/label"], "labels", "1", progress=False)),
        [[box["label"] for box in row["boxes"]] for row in rows],
    )
    assert list(ref["meta/x"]) == [None if row["meta"] is None else row["meta"]["x"] for row in rows]


def test_daylight_saving_time_comes_back() -> None:
    rows = [datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)]
    found = Rows(block_of(rows)).exact()
    assert [time.utcoffset() for time in found] == [time.utcoffset() for time in rows]


def test_what_varies_later_in_the_first_block_is_learned() -> None:
    rows: list[Any] = [{"x": [1, 2], "y": None}] * 9
    rows += [{"x": [1], "y": np.zeros(2)}, {"x": [], "y": np.zeros(3)}, {"x": [None], "y": None}]
    assert_rows_equal(Rows(block_of(rows)).exact(), rows)


def test_empty_containers_in_lists_come_back() -> None:
    rows: list[Any] = [[{}, None], [], [None, {}, {}]]
    assert Rows(block_of(rows)).exact() == rows
    rows = [[{"x": 1, "e": {"f": {}, "g": ()}}], []]
    assert Rows(block_of(rows)).exact() == rows


def test_lists_of_arrays_have_the_same_bytes_whichever_way_they_went() -> None:
    rows = [{"x": [np.zeros((2, 2))]}, {"x": []}, {"x": [np.ones((2, 2))] * 2}]
    schema = block_of(rows).schema
    one, other = Collector(schema), [block_of([row], schema) for row in rows]
    for number, row in enumerate(rows):
        one.add(row, number)
    assert [bytes(part) for part in one.take().data[0].part("shapes")] == [
        bytes(part) for block in other for part in block.data[0].part("shapes")
    ]


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [
        (
            {},
            {"ids": [1], "b": []},
            "at 'ids': expected a list of 2, found list of 1; where its length varies",
        ),
        ({"ragged": ["ids"]}, {"ids": [1, None], "b": []}, r"nullable=\['ids{items}'\]"),
        ({"ragged": ["ids"]}, {"ids": None, "b": []}, r"nullable=\['ids'\]"),
        (
            {"ragged": ["ids"]},
            {"ids": [[1]], "b": []},
            "at 'ids{items}': expected a single value, found list",
        ),
        ({"ragged": ["ids", "b"]}, {"ids": [], "b": [{"c": None}]}, r"nullable=\['b{items}/c'\]"),
        ({"ragged": ["ids", "b"]}, {"ids": [], "b": [None]}, r"nullable=\['b{items}'\]"),
        (
            {"ragged": ["ids"]},
            {"ids": ["a", "bc"], "b": [{"c": 1}]},
            "row 0 .*'ids': expected int <i8, found str",
        ),
    ],
)
def test_a_row_that_does_not_fit_says_what_to_pass(options: Any, row: Any, message: str) -> None:
    collector = Collector(Schema.of({"ids": [1, 2], "b": [{"c": 1}]}, **options))
    with pytest.raises(SchemaError, match=message):
        collector.add(row, 0)


def test_items_of_lists_have_names() -> None:
    row = {"ids": [1], "b": [{"c": 1, "l": [2]}], "deep": [[1]], "long": list(range(300))}
    names = ["ids{items}", "b{items}", "b{items}/l{items}", "deep{items}{items}", "long"]
    schema = Schema.of(row, nullable=names)
    held = {"c": 3, "l": [None, 1]}
    rows = [
        row,
        {"ids": [None, 2], "b": [None, held], "deep": [[None], []], "long": None},
        {"ids": [], "b": [], "deep": [], "long": []},
    ]
    assert Rows(block_of(rows, schema)).exact() == rows


def test_columns_of_the_same_name_are_refused() -> None:
    with pytest.raises(SchemaError, match="call none of the keys 'value'"):
        block_of([{"value": None}, {"value": 1}, None])


def test_parts_of_containers_are_what_is_left() -> None:
    rows = [
        {"m": {"x": 1, "y": 2}, "l": [{"a": 1, "b": [2], "e": {}}], "n": None},
        {"m": {"x": 3, "y": 4}, "l": [], "n": {"k": None}},
        {"m": {"x": 5, "y": 6}, "l": [], "n": {"k": 7}},
    ]
    block = block_of(rows)
    part = Projection.of(block.schema, ["m/x", "l{items}/b", "n/k"])
    assert Rows(block.projected(part)).exact()[:2] == [
        {"m": {"x": 1}, "l": [{"b": [2]}], "n": None},
        {"m": {"x": 3}, "l": [], "n": {"k": None}},
    ]
    # None in what is None: one column says both, so that it can be stored.
    one = Projection.at(block.schema, "n/k")
    assert Rows(block.projected(one)).exact() == [None, None, 7]
    assert Schema.from_json(one.schema.to_json()) == one.schema
    for name in ("l{items}/e", "n/z"):
        with pytest.raises(KeyError, match="there is no column"):
            Projection.at(block.schema, name)
        with pytest.raises(KeyError, match="there is no column"):
            Projection.of(block.schema, [name])


def test_rows_and_their_batches_pickle_by_value(tmp_path: Path) -> None:
    rows = [{"x": ["a", None], "y": [1]}, {"x": None, "y": [1, 2]}]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    text = pickle.dumps(ref.take(np.arange(2)))
    assert len(text) < 5000  # not the addresses of a process
    assert list(pickle.loads(text)) == rows


# -- batches


def test_batches_hold_numbers_where_none_is_none() -> None:
    schema = Schema.of({"x": 1, "l": [1, 2], "d": {"y": 1.0}}, ragged=["l"], nullable=["x", "l", "d"])
    values = [{"x": 1, "l": [1, 2], "d": {"y": 1.0}}, {"x": None, "l": None, "d": None}]
    rows = Rows(block_of(values, schema))
    found = default_collate(rows[:1])
    assert found["x"].tolist() == [1]
    assert [part.tolist() for part in found["l"]] == [[1], [2]]
    assert found["d"]["y"].tolist() == [1.0]
    assert yoga.jagged(rows[:1])["l"].values.tolist() == [1, 2]
    for name, advice in (
        ("x", r"filled\({'x': 0}\)"),
        ("l", r"masked\(\['l'\]\)"),
        ("d", r"masked\(\['d'\]\)"),
    ):
        with pytest.raises(TypeError, match=f"column '{name}' is None in 1 of these 2 rows.*{advice}"):
            default_collate(Rows(rows.block.projected(Projection.of(rows.block.schema, [name]))))


MEANT: dict[str, tuple[Any, torch.Tensor]] = {
    "decimal": (Decimal("1.50"), torch.tensor(1.5, dtype=torch.float64)),
    "date": (datetime.date(1970, 1, 3), torch.tensor(2)),
    "datetime": (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc), torch.tensor(10**6)),
    "time": (datetime.time(0, 0, 2), torch.tensor(2 * 10**6)),
    "timedelta": (datetime.timedelta(microseconds=-5), torch.tensor(-5)),
    "datetime64": (np.datetime64(7, "s"), torch.tensor(7)),
    "timedelta64": (np.timedelta64(7, "ns"), torch.tensor(7)),
}


@pytest.mark.parametrize("kind", MEANT)
def test_times_and_decimals_are_the_same_numbers_in_every_batch(kind: str, tmp_path: Path) -> None:
    value, number = MEANT[kind]
    two = torch.stack([number, number])
    some = {
        "one": value,
        "pair": (value, value),
        "list": [value],
        "deep": [{"in": [value]}],
        "of": {"n": value},
    }
    rows = [some, {**some, "one": None}, {**some, "list": [value, value]}, {**some, "deep": [], "list": []}]
    schema = Schema.of(some, ragged=["list", "deep", "deep{items}/in"], nullable=["one"])
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", schema=schema, progress=False)
    bare = ref.select([0, 2])["one"]
    for loader in (yoga.DataLoader, torch.utils.data.DataLoader):
        (batch,) = loader(ref.select([0, 0]), 2)
        found = [batch["one"], *batch["pair"], *batch["list"], *batch["deep"][0]["in"], batch["of"]["n"]]
        assert_rows_equal(found, [two] * 6)
        assert_rows_equal(next(iter(loader(bare, 2))), two)
    for both in (ref.take(np.array([0, 2])), [rows[0], rows[2]]):  # of a DataRef, and of any dataset
        batch = yoga.jagged(both)
        assert batch["list"].offsets.tolist() == [0, 1, 3]
        assert_rows_equal(batch["list"].values, torch.stack([number] * 3))
        assert_rows_equal(batch["one"], two)
        batch = yoga.padded(0)(both)["list"].values
        assert_rows_equal(batch, torch.stack([number, number * 0, number, number]).view(2, 2))
    assert yoga.padded()(ref.take(np.arange(1)))["deep"] == [[{"in": [number.item()]}]]
    assert_rows_equal(default_collate([some, some])["list"], [two])
    assert_rows_equal(default_collate([ref[0], ref[0]])["of"]["n"], two)  # rows that were picked
    with pytest.raises(RuntimeError, match=r"the lists in 'list' differ in length.*jagged"):
        default_collate(ref.take(np.array([0, 2])))


@pytest.mark.parametrize("collate", [default_collate, yoga.jagged, yoga.padded()])
def test_none_where_a_tensor_was_to_be_is_an_error_that_names_the_column(
    collate: Any, tmp_path: Path
) -> None:
    rows = [
        {"l": [1, None], "t": [None, "a"], "n": None, "m": [None]},
        {"l": [3, 4], "t": ["b", "c"], "n": None, "m": [None]},
    ]
    schema = Schema.of({**rows[1], "m": [None]}, ragged=["l", "t", "m"], nullable=["l{items}", "t{items}"])
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", schema=schema, progress=False)
    for name, advice in (
        ("l", r"'l' has None in 1 of the 4 items of its lists.*ref\.filled\({'l': 0}\)"),
        ("n", r"'n' is always None.*ref\.columns"),
        ("m", r"'m' is always None.*ref\.columns"),
    ):
        with pytest.raises(TypeError, match=advice):
            collate(ref.columns([name]).take(np.arange(2)))
    (found,) = yoga.DataLoader(ref.columns(["l", "t"])[1:], 1, collate_fn=collate)
    numbers = (
        [part.item() for part in found["l"]] if collate is default_collate else found["l"].values.view(-1)
    )
    assert [*numbers] == [3, 4]
    texts = collate(ref.columns(["t"]).take(np.arange(2)))["t"]
    assert texts == ([(None, "b"), ("a", "c")] if collate is default_collate else [[None, "a"], ["b", "c"]])
    filled = collate(ref.columns(["l"]).filled({"l": 0}).take(np.arange(2)))["l"]
    assert filled[0].tolist() in ([1, 3], [[1, 0], [3, 4]], [1, 0, 3, 4])


# -- what no rows have


def _forged(schema: Schema, change: Any) -> Schema:
    data = json.loads(json.dumps(schema.to_json()))
    change(data)
    return Schema.from_json(data)


def _leaf(number: int, **values: Any) -> Any:
    return lambda data: data["columns"][number].update(values)


def _tree(tree: Any) -> Any:
    return lambda data: data.update(tree=tree)


@pytest.mark.parametrize(
    "change",
    [
        _leaf(0, shape=[], ndim=0),
        _leaf(0, ndim=2),
        _leaf(0, kind="str", dtype="|u1"),
        _leaf(1, dtype="<i4", kind="scalar"),
        _leaf(1, shape=[], ndim=0),
        _leaf(2, kind="scalar"),
        _leaf(2, shape=[2], ndim=1),
        _tree({"nullable": [{"varying": [{"varying": ["leaf"]}, "leaf"]}, "leaf"]}),
        _tree({"nullable": [{"varying": [{"varying": ["leaf", "leaf"]}]}]}),
        _tree({"nullable": [{"nullable": [{"varying": ["leaf"]}, "leaf"]}, "leaf"]}),
        _tree({"nullable": [{"texts": ["leaf", "leaf"]}, "leaf"]}),
        _tree({"varying": [{"dict": []}]}),
    ],
)
def test_schemas_that_no_rows_have_are_refused(change: Any) -> None:
    schema = block_of([[[1, 2], []], [[3]], None]).schema
    assert [column.name for column in schema.columns] == ["value{items}", "value{lengths}", "value{valid}"]
    with pytest.raises(CorruptError):
        _forged(schema, change)


@pytest.mark.parametrize("lengths", [[2, -1], [9, 0], [2**62, 2**62], [1, 1], [2**63 - 1, 1]])
def test_lengths_that_contradict_the_items_are_damage(lengths: list[int]) -> None:
    block = block_of([[[1, 2], [3]], [[4]]])
    values, counts = block.data
    forged = Data(np.array([*lengths, 1], "<i8"), counts.offsets)
    with pytest.raises(CorruptError):
        Rows(Block(block.schema, 2, (values, forged))).exact()


def test_a_column_of_more_dimensions_than_time_is_refused() -> None:
    with pytest.raises(ValueError, match="are too large"):
        leaf.Column("x", "ndarray", "<f4", (10**50,) * 300_000, 300_000)


def test_a_timezone_that_no_time_has_is_damage() -> None:
    for name in ("+" + "9" * 30 + ":00", "../x", "+1", ""):
        with pytest.raises(CorruptError, match="is unknown here"):
            leaf.timezone_of(name)


def test_a_key_longer_than_any_name_is_not_written_for_each_leaf() -> None:
    column = Schema.of({"x": 1}).columns[0].to_json()
    tree = {"dict": [["k" * 10**5, {"list": ["leaf"] * 50}]]}
    with pytest.raises(CorruptError, match="are not the leaves") as found:
        Schema.from_json({"tree": tree, "columns": [column] * 50})
    assert len(str(found.value)) < 1000


def test_a_list_of_more_nothing_than_memory_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_of([[np.zeros((0, 2))], []])
    shapes = block.data[0].part("shapes").copy()
    shapes[0] = [2**40, 0, 2]
    with pytest.raises(CorruptError, match="holds no lists"):
        Rows(Block(block.schema, 2, (Data(block.data[0].values, block.data[0].offsets, shapes),))).exact()
    shapes[0] = [1, 3, 3]
    with pytest.raises(CorruptError, match="do not have the shape"):
        Rows(Block(block.schema, 2, (Data(block.data[0].values, block.data[0].offsets, shapes),))).exact()
    monkeypatch.setattr(leaf, "MOST_EMPTY", 1000)
    with pytest.raises(SchemaError, match="without values cannot be kept"):
        block_of([[np.zeros(0)] * (leaf.MOST_EMPTY + 1)], Schema.of([np.zeros(0)], ragged=["value"]))


def test_wrappers_know_what_they_hold() -> None:
    assert Node.from_json({"varying": ["leaf"]}).kinds == {"varying", "leaf"}
    with pytest.raises(ValueError, match="does not hold"):
        Node.from_json({"nullable": ["leaf"]})
