"""Rows are taken apart quickly or the long way, alike; values of other types fit, or are refused."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interrupting import interrupted

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.rows import collector as collector_room
from torchyoga.rows.block import Block, Rows, joined
from torchyoga.rows.collector import Collector, block_of
from torchyoga.rows.comparing import equal_blocks
from torchyoga.rows.schema import Schema
from torchyoga.testing import assert_rows_equal


class Point(NamedTuple):
    x: Any
    y: Any


def quick(rows: list[Any], schema: Schema) -> Block:
    """The first row shows how rows nest, all others are taken apart quickly."""
    return block_of(rows, schema)


def slow(rows: list[Any], schema: Schema) -> Block:
    """Each row is the first one."""
    return joined([quick([row], schema) for row in rows])


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "complex": st.complex_numbers(),
    "none": st.none(),
    "str": st.text(st.characters()),
    "bytes": st.binary(),
    "numpy.str": st.sampled_from([np.str_("né"), np.str_("")]),
    "numpy.bytes": st.sampled_from([np.bytes_(b"a"), np.bytes_(b"")]),
    "scalar": st.integers(0, 9).map(np.int16),
    "time": st.integers(0, 9).map(lambda n: np.datetime64(n, "ns")),
    "fixed": st.integers(0, 99).map(lambda n: np.full((2, 3), n, ">i4")),
    "across": st.integers(0, 99).map(lambda n: np.full((2, 3), n, "<f4").T),
    "empty": st.just(np.zeros((0, 4))),
    "zero-d": st.integers(0, 9).map(lambda n: np.array(n, "<U2")),
    "tensor": st.integers(0, 99).map(lambda n: torch.full((2, 2), n)),
    "bits": st.integers(0, 99).map(lambda n: torch.full((3,), n).to(torch.bfloat16)),
    "conjugated": st.integers(0, 99).map(lambda n: torch.full((3,), n * 1j).conj()),
    "ragged": st.integers(0, 9).map(lambda n: np.arange(n, dtype=np.int32)),
    "ragged tensor": st.integers(0, 9).map(lambda n: torch.arange(n)),
    "ragged any": st.integers(0, 3).map(lambda n: np.ones((n, 2)) if n else np.array(3.0)),
}
RAGGED = ["ragged", "ragged tensor", "ragged any"]


@pytest.mark.rest
@given(st.data(), st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
def test_quick_rows_are_the_same(data: Any, names: list[str]) -> None:
    first = {name: np.ones((2, 2)) if name == "ragged any" else data.draw(KINDS[name]) for name in names}
    shape = data.draw(st.sampled_from([dict, tuple, list, Point]))
    if shape is Point:
        names = (names * 2)[:2]

    def nested(row: dict[str, Any]) -> Any:
        if shape is dict:
            return row
        values = [row[name] for name in names]
        return Point(*values) if shape is Point else shape(values)

    keys = names if shape is dict else [str(i) for i in range(len(names))]
    ragged = [str(key) for key, name in zip(keys, names, strict=True) if name in RAGGED]
    if shape is Point:
        ragged = [field for field, name in zip(Point._fields, names, strict=True) if name in RAGGED]
    rows = [nested(first)]
    rows += [nested({n: data.draw(KINDS[n]) for n in first}) for _ in range(data.draw(st.integers(0, 5)))]
    schema = Schema.of(rows[0], ragged=ragged)
    found, expected = quick(rows, schema), slow(rows, schema)
    assert found.num_rows == len(rows)
    assert equal_blocks(found, expected)
    assert_rows_equal(Rows(found).exact(), Rows(expected).exact())


BUFFERS = {
    "array": np.zeros(3),
    "tensor": torch.zeros(3),
    "bits": torch.zeros(3, dtype=torch.bfloat16),
    "across": torch.zeros(6)[::2],
    "large array": np.zeros(40_000),
    "large tensor": torch.zeros(40_000),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("ragged", [[], ["x"]])
def test_quick_rows_are_copied_when_they_are_added(buffer: Any, ragged: list[str]) -> None:
    collector = Collector(Schema.of({"x": buffer}, ragged=ragged))
    for i in range(4):
        buffer[...] = i
        collector.add({"x": buffer}, i)
    assert [float(row["x"][-1]) for row in Rows(collector.take())] == [0, 1, 2, 3]


FITS: dict[str, Any] = {
    "a": 1,
    "b": True,
    "f": 0.5,
    "s": "x",
    "x": np.zeros((2, 2), np.float32),
    "t": torch.zeros(3),
    "r": np.zeros(4, np.int64),
    "u": torch.zeros(2),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": True}, "column 'a': expected int <i8, found bool"),
        ({"a": 2**63}, "an int of 64 bits does not fit 64 bits"),
        ({"a": -(2**63) - 1}, "does not fit 64 bits"),
        ({"a": 1.0}, "column 'a': expected int"),
        ({"a": np.int64(1)}, "column 'a': expected int"),
        ({"b": 1}, "column 'b': expected bool"),
        ({"f": 1}, "column 'f': expected float"),
        ({"s": b"x"}, "column 's': expected str"),
        ({"s": None}, "column 's': expected str"),
        ({"x": np.zeros((2, 2))}, "column 'x': expected ndarray <f4, found ndarray <f8"),
        ({"x": np.zeros((2, 3), np.float32)}, r"column 'x': expected shape \(2, 2\), found shape \(2, 3\)"),
        ({"x": torch.zeros(2, 2)}, "column 'x': expected ndarray"),
        ({"x": np.ma.zeros((2, 2), np.float32)}, "at 'x': a value of type numpy.ma.* cannot be kept"),
        ({"x": [[0.0, 0.0], [0.0, 0.0]]}, "at 'x': "),
        ({"t": torch.zeros(4)}, "column 't': expected shape"),
        ({"t": torch.zeros(3, requires_grad=True)}, "requires grad cannot be kept"),
        ({"t": torch.zeros(3).to_sparse()}, "cannot be kept"),
        ({"t": torch.nn.Parameter(torch.zeros(3))}, "tensor subclasses lose their type"),
        ({"t": torch.zeros(3, dtype=torch.int32)}, "column 't': expected tensor float32, found tensor int32"),
        ({"r": np.zeros((2, 2), np.int64)}, "column 'r': expected 1 dimension"),
        ({"u": torch.zeros(2, 2)}, "column 'u': expected 1 dimension"),
        ({"u": torch.zeros(2, dtype=torch.float64)}, "column 'u': expected tensor float32"),
        ({"new": 1}, "expected a dict of"),
    ],
)
def test_a_quick_row_that_does_not_fit_is_refused_and_leaves_nothing(
    change: dict[str, Any], message: str
) -> None:
    schema = Schema.of(FITS, ragged=["r", "u"])
    collector = Collector(schema)
    for number in range(3):
        collector.add({**FITS, "a": number}, number)
    before = collector.nbytes
    with pytest.raises(SchemaError, match=f"row 3 does not fit: .*{message}"):
        collector.add({**FITS, **change}, 3)
    assert (len(collector), collector.nbytes) == (3, before)
    collector.add({**FITS, "a": 3, "s": "longer"}, 3)
    rows = Rows(collector.take()).exact()
    assert [(row["a"], row["s"]) for row in rows] == [(0, "x"), (1, "x"), (2, "x"), (3, "longer")]
    assert all(len(row["r"]) == 4 for row in rows)


def test_a_row_without_a_key_is_refused() -> None:
    collector = Collector(Schema.of({"a": 1, "b": 2}))
    for number in range(2):
        collector.add({"a": 1, "b": 2}, number)
    for wrong in ({"a": 1}, {"a": 1, "c": 2}, (1, 2), None):
        with pytest.raises(SchemaError, match=r"row 2 does not fit: .*expected a dict"):
            collector.add(wrong, 2)
    collector.add({"b": 4, "a": 3}, 2)  # in another order
    assert Rows(collector.take()).exact()[1:] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_memmap_is_an_array(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    collector = Collector(Schema.of({"x": np.arange(3)}))
    for _ in range(3):
        collector.add({"x": np.load(tmp_path / "x.npy", mmap_mode="r")}, 0)
    assert collector.take().data[0].values.tolist() == [[0, 1, 2]] * 3


def test_what_an_interrupt_leaves_of_a_row_is_not_in_the_block() -> None:
    schema, is_interrupted, lengths = Schema.of({"a": 1, "b": 2}), True, []
    while is_interrupted:
        collector = Collector(schema)
        for number in range(3):
            collector.add({"a": number, "b": number}, number)
        row, line = {"a": 3, "b": 3}, len(lengths)
        is_interrupted = interrupted(partial(collector.add, row, 3), Collector.add.__code__.co_filename, line)
        a, b = (data.values.tolist() for data in collector.take().data)
        assert a == b == [*range(len(a))]
        lengths.append(len(a))
    assert (lengths[0], lengths[-1]) == (3, 4)


@pytest.mark.rest
@pytest.mark.parametrize("learns", [False, True])
def test_interrupted_while_it_is_emptied_it_has_all_rows_or_none(learns: bool) -> None:
    rows = [{"a": number, "b": "t" * number, "c": np.arange(number)} for number in range(5)]
    schema = Schema.of(rows[0], ragged=["c"])
    line, goes_on, outcomes = 0, True, set()
    while goes_on:
        collector = Collector(None if learns else schema)
        for number, row in enumerate(rows):
            collector.add(row, number)
        goes_on = interrupted(collector.take, collector_room.__file__, line)
        outcomes.add(bool(len(collector)))
        if len(collector):
            assert_rows_equal([*Rows(collector.take()).exact()], rows)
        line += 1
        assert line < 1000
    assert outcomes == {False, True}


# -- values of other types than their column's


TAKEN: list[tuple[Any, Any, Any]] = [
    (np.int64(1), 5, np.int64(5)),
    (1, np.int8(5), 5),
    (1, True, 1),
    (1.0, 2**53, 2.0**53),
    (1.0, np.float16(0.1), float(np.float16(0.1))),
    (np.float32(1), 0.5, np.float32(0.5)),
    (np.float32(1), float("nan"), np.float32("nan")),
    (np.uint8(1), 255, np.uint8(255)),
    (1j, 2, 2 + 0j),
    (1j, 1.5, 1.5 + 0j),
    (np.complex64(1), np.float32(0.5), np.complex64(0.5)),
    (torch.tensor(1), 7, torch.tensor(7)),
    (torch.tensor(1.0, dtype=torch.bfloat16), 256, torch.tensor(256, dtype=torch.bfloat16)),
    (1.5, torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (np.zeros(2, ">i4"), torch.tensor([1, 2]), np.array([1, 2], ">i4")),
    (np.zeros((1, 2)), [[1, 2]], np.array([[1.0, 2.0]])),
    ([1, 2], np.array([3, 4], np.int16), [3, 4]),
    ((1.0, (2, 3)), [4, torch.tensor([5, 6])], (4.0, (5, 6))),
    ("a", np.str_("b"), "b"),
    (np.bytes_(b"a"), b"b", np.bytes_(b"b")),
    (np.datetime64("2020-01-01", "ns"), np.datetime64("2021", "Y"), np.datetime64("2021-01-01", "ns")),
]
LOST: list[tuple[Any, Any]] = [
    (1, 5.0),
    (True, 1),
    (1.0, 1j),
    (1.0, 2**53 + 1),
    (1.0, np.uint64(2**64 - 1)),
    (np.float32(1), 0.1),
    (np.float32(1), 1e300),
    (np.int8(1), 128),
    (np.uint8(1), -1),
    (np.uint64(1), -1),
    (1, np.uint64(2**63)),
    (torch.tensor(1.0, dtype=torch.bfloat16), 257),
    (np.zeros(2, np.float32), [1, 0.1]),
    (np.datetime64("2020", "Y"), np.datetime64("2020-03", "M")),
]


def taken(like: Any, value: Any) -> Any:
    collector = Collector(yoga.Schema.of({"x": like}), converts=True)
    collector.add({"x": value}, 7)
    return Rows(collector.take()).exact()[0]["x"]


@pytest.mark.parametrize(("like", "value", "expected"), TAKEN, ids=repr)
def test_values_that_fit_are_taken(like: Any, value: Any, expected: Any) -> None:
    assert_rows_equal([taken(like, value)], [expected])


@pytest.mark.parametrize(("like", "value"), LOST, ids=repr)
def test_values_that_would_change_are_refused(like: Any, value: Any) -> None:
    with pytest.raises(
        SchemaError, match=r"row 7 .*column 'x': expected .*, found .*convert the new rows to "
    ):
        taken(like, value)


@pytest.mark.parametrize(
    ("like", "value"), [(1, "5"), ("5", 5), ([1, 2], [3]), (1, None), ([1, 2], np.zeros(3))]
)
def test_values_without_a_place_are_refused_as_ever(like: Any, value: Any) -> None:
    with pytest.raises(SchemaError, match=r"row 7 does not fit: .*expected"):
        taken(like, value)
