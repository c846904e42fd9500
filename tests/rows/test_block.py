"""Rows of any nesting go into columns and come back as they were; errors name values that cannot."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import tempfile
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from children import run_program
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import torchyoga as yoga
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.rows.block import Block, Rows, bounds_of, interleaved, joined
from torchyoga.rows.collector import Collector, block_of
from torchyoga.rows.column import MOST_DIMENSIONS
from torchyoga.rows.comparing import differing, equal_blocks
from torchyoga.rows.node import Node
from torchyoga.rows.schema import Schema
from torchyoga.testing import assert_rows_equal


class Point(NamedTuple):
    x: Any
    y: Any


dtypes = st.sampled_from(["|b1", "|u1", "<i2", ">i4", "<u8", "<f2", ">f8", "<c8", "<M8[ns]", "|S3", "<U2"])
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
tensors = st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.bool]).flatmap(
    lambda dtype: st.lists(st.integers(0, 1), max_size=6).map(lambda values: torch.tensor(values).to(dtype))
)
leaves = st.one_of(
    arrays,
    tensors,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.none(),
    st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("né"), np.bytes_(b"b")]),
)
keys = st.one_of(st.text(max_size=3).filter(lambda text: text.isprintable()), st.integers(-9, 9))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=6,
)


@given(trees, st.integers(1, 4))
def test_any_row_comes_back_as_it_went_in(row: Any, count: int) -> None:
    block = block_of([row] * count)
    assert block.num_rows == count
    for found in Rows(block).exact():
        assert_rows_equal(found, row)
    again = Schema.from_json(json.loads(json.dumps(block.schema.to_json())))
    assert again == block.schema
    assert_rows_equal(Rows(block_of([row], again)).exact()[0], row)


@given(
    st.lists(hnp.arrays("<i4", hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), min_size=1)
)
def test_ragged_rows_keep_their_shapes(rows: list[Any]) -> None:
    block = block_of(rows)
    assert_rows_equal(Rows(block).exact(), rows)
    for start in range(len(rows) + 1):
        assert_rows_equal(Rows(block.slice(start, len(rows))).exact(), rows[start:])


TORCH_DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128 "
    "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
)


@pytest.mark.parametrize("name", TORCH_DTYPES.split())
def test_tensors_of_every_type_come_back(name: str) -> None:
    tensor = torch.arange(48, dtype=torch.uint8).view(getattr(torch, name))
    rows = [{"x": tensor[:2]}, {"x": tensor[1:3]}]
    (column,) = block_of(rows).schema.columns
    assert column.dtype == name
    for found, row in zip(Rows(block_of(rows)).exact(), rows, strict=True):
        assert found["x"].dtype == row["x"].dtype
        assert found["x"].view(torch.uint8).tolist() == row["x"].view(torch.uint8).tolist()


def test_rows_are_a_sequence() -> None:
    rows = Rows(block_of([{"x": n} for n in range(7)]))
    assert repr(rows) == "<7 rows>"
    assert [row["x"] for row in rows[::2]] == [0, 2, 4, 6]
    assert [row["x"] for row in rows[5:1:-2]] == [5, 3]
    assert [row["x"] for row in rows[2:4]] == [2, 3]
    assert list(rows[4:2]) == []
    assert rows[-1]["x"] == 6


def test_negated_and_conjugated_tensors_are_stored_with_their_values() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    conjugated, negated = numbers.conj(), numbers.conj().imag
    assert conjugated.is_conj()
    assert negated.is_neg()
    found = Rows(block_of([{"conjugated": conjugated, "negated": negated}])).exact()[0]
    assert found["conjugated"].tolist() == [1 - 2j, 3 + 4j]
    assert found["negated"].tolist() == [-2, 4]


class Marked(torch.Tensor):
    """A tensor of a type of its own."""


class HasArray:
    """What other libraries' arrays have."""

    def __array__(self) -> np.ndarray:
        return np.zeros(3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": {"b": object()}}, r"at 'a/b': a value of type object cannot be kept; rows are made of dict"),
        ([1, HasArray()], r"type .*HasArray cannot be kept; turn it into an array with numpy.asarray"),
        (torch.zeros(2).as_subclass(Marked), r"use \.as_subclass\(torch\.Tensor\)"),
        ([1, {2, 3}], r"at '1': a value of type set"),
        (np.array([None]), r"at 'value': an array of dtype object"),
        (np.zeros(2, [("a", "i4")]), "turn structured arrays into a dict"),
        (2**63, "does not fit 64 bits"),
        (OrderedDict(a=1), "type collections.OrderedDict"),
        (torch.nn.Parameter(torch.zeros(2)), "as_subclass"),
        (torch.zeros(3).to_sparse(), "make it dense"),
        (np.ma.masked_array([1], [True]), "array subclasses lose their meaning"),
        (torch.zeros(3, device="meta"), "on the device 'meta' has no values"),
        (torch.zeros(3, requires_grad=True), r"requires grad cannot be kept.*\.detach\(\)"),
        (torch.ones(3, requires_grad=True) * 2, r"\.detach\(\)"),
        (torch.nn.Parameter(torch.zeros(2)), r"\.detach\(\)\.as_subclass"),
        (torch.eye(3).to_mkldnn(), "to_dense"),
        (torch.empty(3, dtype=torch.bits8), r"view\(torch.uint8\)"),
        (np.zeros((1,) * 32), "32 dimensions cannot be kept, a row may have 31; reshape it"),
        (torch.zeros((1,) * 65), "65 dimensions cannot be kept"),
        (np.broadcast_to(np.zeros(1, "|u1"), 2**41), "a row of shape .* is too large"),
        (torch.zeros((0, 2**41)), "is too large"),
        ([10**5000], "an int of 16610 bits does not fit 64 bits"),
        ({10**5000: 1}, "an int key of 16610 bits is too long"),
        ([()] * 5000, "more than 4999 containers"),
        ({(1, 2): 3}, "dict keys must be str or int"),
        ({None: 3}, "dict keys must be str or int"),
        (["x"] * 5000, "more than 4096 leaves"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_with_its_path(
    row: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyoga.rows.learning.MAX_NODES", 4999)
    with pytest.raises(SchemaError, match=message) as found:
        block_of([row])
    assert isinstance(row, list) or "row 0 does not fit: " in str(found.value)


@pytest.mark.filterwarnings("ignore")  # torch warns that these may change
def test_tensors_of_several_parts_are_refused() -> None:
    pair = [torch.zeros(2), torch.zeros(3)]
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(SchemaError, match=r"a list of its tensors, \.unbind\(\)"):
            Schema.of({"x": torch.nested.nested_tensor(pair, layout=layout)})
    with pytest.raises(SchemaError, match=r"\.dequantize\(\)"):
        Schema.of({"x": torch.quantize_per_tensor(pair[0], 0.1, 0, torch.quint8)})
    with pytest.raises(SchemaError, match=r"use \.to\(torch.complex64\)"):
        Schema.of({"x": torch.zeros(3, dtype=torch.complex32)})


def test_values_with_the_largest_number_of_dimensions_come_back(tmp_path: Path) -> None:
    for value in (np.ones((1,) * MOST_DIMENSIONS), torch.ones((1,) * MOST_DIMENSIONS)):
        ref = yoga.Storage(tmp_path).submit([value] * 2, "a", type(value).__name__)
        assert_rows_equal(list(ref), [value] * 2)


def test_endless_nesting_is_refused() -> None:
    row: list[Any] = []
    row.append(row)
    with pytest.raises(SchemaError, match="nested more than 64 levels deep"):
        Schema.of(row)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"a": 1.0, "b": "x"}, "column 'a': expected int <i8, found float <f8"),
        ({"a": True, "b": "x"}, r"column 'a': expected int <i8, found bool \|b1"),
        ({"a": 1}, r"expected a dict of \['a', 'b'\], found dict of \['a'\]"),
        ({"a": 1, "b": b"x"}, "column 'b': expected str"),
        ([1, "x"], "expected a dict of .* found list of 2"),
        (5, "expected a dict of .*, found int <i8"),
    ],
)
def test_rows_that_differ_are_refused(second: Any, message: str) -> None:
    collector = Collector()
    collector.add({"a": 1, "b": "x"}, 0)
    with pytest.raises(SchemaError, match=f"row 1 does not fit: .*{message}"):
        collector.add(second, 1)
    assert len(collector) == 1
    collector.add({"b": "y", "a": None}, 2)  # which shows something new; keys may come in any order
    assert Rows(collector.take()).exact() == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


def odd_rows() -> dict[str, Any]:
    """Rows of namedtuples whose classes were made in notebooks, functions, scripts and by hand."""

    class Row(NamedTuple):
        a: Any

    def named(name: str, fields: Any = "a b", **options: Any) -> Any:
        made: Any = namedtuple(name, fields, **options)
        return made(*range(len(made._fields)))

    odd = type("not a name", (Row,), {"__slots__": (), "__module__": 5, "__qualname__": "é:ß.<x> "})
    return {
        "of a function": Row(1),
        "renamed fields": named("Row", ["a", "class", "a", "_b"], rename=True),
        "fields of other letters": named("Row", ["größe", "名前", "\u00b5"]),
        "a name of other letters": named("Größe"),
        "an invalid name": odd(1),
        "no fields": named("Row", ""),
        "many fields": named("Row", [f"f{i}" for i in range(300)]),
        **{f"of the module {name!r}": named("Row", module=name) for name in ODD_MODULES},
    }


ODD_MODULES = ("__main__", "my-module", "<stdin>", "", "a:b", ":", "\ud800", "1.2", "a b", "x\0y", "." * 300)


@pytest.mark.parametrize("kind", odd_rows())
def test_any_namedtuple_comes_back(kind: str, tmp_path: Path) -> None:
    row = odd_rows()[kind]
    yoga.Storage(tmp_path).submit([row, row], "a", "1")
    for found in yoga.Storage(tmp_path).fetch("a", "1"):
        assert found == row
        assert found._fields == row._fields
        assert [getattr(found, field) for field in found._fields] == list(row)
        assert type(found).__name__ in (type(row).__name__, "Row")
        assert pickle.loads(pickle.dumps(found)) == row


MAIN = """
import collections, sys
import torchyoga as yoga
Row = collections.namedtuple("Row", ["a", "class"], rename=True)
storage = yoga.Storage(sys.argv[1])
storage.submit([Row(1, 2)], "a", "1")
assert [type(row) for row in storage.fetch("a", "1").stream()][0].__mro__[2] is Row
"""


def test_a_namedtuple_of_a_script_is_its_own_class(tmp_path: Path) -> None:
    finished = run_program(MAIN, str(tmp_path))
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    "fields",
    [
        *(("a b",), ("class",), ("_a",), ("_1",), ("a", "a"), ("a", ""), (1, 2), (["a"],)),
        ("ﬁ", "fi"),  # Python's compiler takes it for the same name
        ("\u217eef",),  # Python's compiler takes it for a keyword
        ("\uff3fcls",),  # a name of its own: not normalised
        ("x):__import__('os').abort()#",),
    ],
)
def test_a_tuple_that_only_looks_like_a_namedtuple_is_refused(fields: Any) -> None:
    cls = type("Row", (tuple,), {"_fields": fields})
    with pytest.raises(SchemaError, match=r"at 'n': Row has . items and the fields .*; make it of a class"):
        Schema.of({"n": cls(range(len(fields)))})
    with pytest.raises(SchemaError, match="Row has 3 items and the fields"):
        Schema.of({"n": type("Row", (tuple,), {"_fields": ("a", "b")})((1, 2, 3))})
    described = {"namedtuple": [[field, "leaf"] for field in fields], "type": "m:Row"}
    with pytest.raises((ValueError, TypeError)):
        Node.from_json(described)


@pytest.mark.parametrize("fields", [None, "ab", property(lambda row: 1 // 0)])
def test_a_tuple_whose_fields_are_not_names_is_refused(fields: Any) -> None:
    cls: Any = type("Row", (tuple,), {"_fields": fields})
    with pytest.raises(SchemaError, match=r"a value of type .*Row cannot be kept"):
        Schema.of(cls((1, 2)))
    pair = Point(1, 2)
    with pytest.raises(SchemaError, match=r"row 1 does not fit: .* a value of type .*Row cannot be kept"):
        block_of([pair, cls((1, 2))])
    with pytest.raises(SchemaError, match="expected a namedtuple"):
        block_of([pair, cls((1, 2))], Schema.of(pair))


def test_a_schema_pickles_after_its_rows_were_made() -> None:
    rows = Rows(block_of([odd_rows()["of a function"]]))
    assert rows[0].a == 1
    schema = pickle.loads(pickle.dumps(rows.block.schema))
    assert schema == rows.block.schema


# Any text: other letters, signs, lone surrogates, the empty text.
texts = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["", ".", "..", "%", "%2F", "/", "-1", " a. "]
)
fields = st.lists(st.text(st.characters(categories=["L", "N", "Pc"]), min_size=1, max_size=4), max_size=3)
namedtuples = st.tuples(texts, texts, fields, st.booleans()).map(
    lambda made: type(
        made[0].replace("\0", "") or "Row",
        (namedtuple("Row", made[2], rename=True) if made[3] else tuple,),
        {"__module__": made[1], **({} if made[3] else {"_fields": tuple(made[2])})},
    )
)


def filled(cls: Any) -> Any:
    return tuple.__new__(cls, range(len(cls._fields)))


@given(st.dictionaries(texts | st.integers(), namedtuples, max_size=3), texts, texts)
def test_whatever_is_published_can_be_read(classes: dict[Any, Any], id: str, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = yoga.Storage(folder)
        try:
            row = {key: filled(cls) for key, cls in classes.items()}
            storage.submit([row, row], id, version)
        except ValueError:  # a SchemaError, or a wrong id: raised before anything is published
            assert storage.list() == []
            return
        assert storage.list() == [(id, version)]
        assert list(storage.fetch(id, version)) == [row, row]
        storage.check(id, version)


HOSTILE = """
import json, sys
from torchyoga.rows.node import Node
from torchyoga.rows.schema import Schema
from torchyoga.errors import CorruptError
before = set(sys.modules)
for name in sys.argv[1:]:
    data = {"namedtuple": [["a", "leaf"], ["b", "leaf"]], "type": name}
    try:
        made = Node.from_json(data).row_type
        assert made._fields == ("a", "b") and made(1, 2) == (1, 2)
    except ValueError as error:
        print(error)
assert not set(sys.modules) - before, set(sys.modules) - before
"""


def test_no_name_in_a_schema_imports_a_module_or_runs_anything() -> None:
    names = ["antigravity:fly", "os:system", "torch.onnx:x", "this:x", "x:__import__('os')", "os"]
    command = [sys.executable, "-c", HOSTILE, *names, "a b:c", ":", "builtins:eval"]
    finished = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def damaged_schemas() -> dict[str, Any]:
    good = Schema.of({"a": np.zeros(3, np.int32), "b": "x"}).to_json()

    def change(**column: Any) -> Any:
        copy = json.loads(json.dumps(good))
        copy["columns"][0].update(column)
        return copy

    deep: Any = "leaf"
    for _ in range(5000):
        deep = {"list": [deep]}
    return {
        "object dtype": change(dtype="|O"),
        "void dtype": change(dtype="|V8"),
        "no dtype": change(dtype="int; import os"),
        "negative": change(shape=[-1]),
        "huge": change(shape=[2**62]),
        "shape and ndim": change(ndim=2),
        "float shape": change(shape=[3.0]),
        "kind": change(kind="pickle"),
        "tensor kind": change(kind="tensor", dtype="device"),
        "text as ints": change(kind="str", dtype="<i4"),
        "name": change(name="c"),
        "fewer": {**good, "columns": good["columns"][:1]},
        "no tree": {"columns": []},
        "deep": {"tree": deep, "columns": []},
        "bad key": {"tree": {"dict": [[[1], "leaf"]]}, "columns": good["columns"][:1]},
        "twice": {"tree": {"dict": [["a", "leaf"], ["a", "leaf"]]}, "columns": good["columns"][:1] * 2},
        "list": [],
        "none": None,
    }


@pytest.mark.parametrize("kind", damaged_schemas())
def test_a_damaged_schema_is_refused(kind: str) -> None:
    with pytest.raises(CorruptError, match="schema in the manifest is damaged"):
        Schema.from_json(damaged_schemas()[kind])


def test_schemas_name_their_columns() -> None:
    row = {"a/b": 1, 0: 2, "0": 3, "": 4, "..": 5, "n": Point(1, (2, [3]))}
    names = [column.name for column in Schema.of(row).columns]
    assert names == ["a%2Fb", "0", "%30", "%", "%2E.", "n/x", "n/y/0", "n/y/1/0"]
    assert Schema.of(5).columns[0].name == "value"
    with pytest.raises(SchemaError, match=r"ragged=\['z'\] are not columns"):
        Schema.of({"a": 1}, ragged=["z"])
    with pytest.raises(SchemaError, match="longer than 400 bytes"):
        Schema.of({"k" * 500: 1})


def ragged_rows() -> list[Any]:
    return [
        {"fixed": np.full(2, i, ">i4"), "text": "é" * (i % 3), "any": np.full((i % 4, i % 3 + 1), i)}
        for i in range(12)
    ]


def test_blocks_are_put_together_in_any_order() -> None:
    rows = ragged_rows()
    schema = Schema.of(rows[1], ragged=["any"])
    whole = block_of(rows, schema)
    assert_rows_equal(Rows(joined([whole.slice(0, 5), whole.slice(5, 5), whole.slice(5, 12)])).exact(), rows)
    places = np.random.default_rng(0).permutation(12)
    pieces = [(places[start:stop], whole.slice(start, stop)) for start, stop in ((0, 4), (4, 11), (11, 12))]
    found = Rows(interleaved(pieces)).exact()
    assert_rows_equal([found[place] for place in places], rows)


@given(hnp.arrays(st.sampled_from(["<i4", ">i2", "|u1", "|b1"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_bounds_are_a_zero_and_the_sums_of_all_lengths(lengths: Any) -> None:
    listed = [int(length) for length in lengths.reshape(-1)]
    for found in (bounds_of(lengths), bounds_of(listed), bounds_of(length for length in listed)):
        assert found.dtype == np.int64
        assert found.tolist() == [sum(listed[:number]) for number in range(len(listed) + 1)]


# -- which values of two blocks differ, bit by bit


SCHEMA = Schema.of(
    {"x": np.zeros(2), "text": "a", "tokens": np.arange(2), "grid": np.zeros((1, 2))},
    ragged=["tokens", "grid"],
)
ROWS = st.fixed_dictionaries(
    {
        "x": st.sampled_from([(0.0, 1.0), (0.0, math.nan), (-0.0, 1.0)]).map(np.array),
        "text": st.sampled_from(["", "a", "b", "ab"]),
        "tokens": st.lists(st.integers(0, 1), max_size=2).map(lambda found: np.array(found, np.int64)),
        "grid": st.sampled_from([(1, 2), (2, 1), (0, 2)]).map(np.zeros),
    }
)


def bits(value: Any) -> object:
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@given(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=6))
def test_it_is_as_values_one_by_one(pairs: list[tuple[Any, Any]]) -> None:
    one, other = (block_of(list(rows), SCHEMA) for rows in zip(*pairs, strict=True))
    names = [column.name for column in SCHEMA.columns]
    expected = [[bits(mine[name]) != bits(theirs[name]) for name in names] for mine, theirs in pairs]
    assert differing(one, other).tolist() == expected


def test_each_column_is_compared_by_itself() -> None:
    one, other = block_of([{"a": 1, "b": 2}]), block_of([{"a": 3, "b": 2}])
    assert differing(one, other).tolist() == [[True, False]]
    assert differing(one, other.slice(0, 1)).shape == (1, 2)
    assert differing(one.slice(0, 0), other.slice(0, 0)).shape == (0, 2)


def test_blocks_are_equal_if_schema_shapes_and_bytes_are() -> None:
    def of(*rows: Any, ragged: bool = True) -> Block:
        return block_of(list(rows), Schema.of(rows[0], ragged=["value"] if ragged else []))

    flat, across, up = np.zeros((2, 3)), np.zeros((3, 2)), np.ones((2, 3))
    assert equal_blocks(of(flat, up), of(flat, up))
    for other in (of(flat, across), of(flat, flat), of(flat, up, up), of(flat, up, ragged=False)):
        assert not equal_blocks(of(flat, up), other)
    assert not equal_blocks(of(flat, flat), of(flat, across))  # the same bytes
