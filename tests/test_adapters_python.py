"""Arrays and Python's own collections: their rows are what indexing them gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import torchyoga as yoga
from torchyoga.adapters.python import ArraySource, IteratorSource, is_arrays, source_of_arrays
from torchyoga.columns import Collector, Rows
from torchyoga.errors import SchemaError
from torchyoga.testing import assert_rows_equal, check_source

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.boolean_dtypes(),
    hnp.datetime64_dtypes(),
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
)


@given(ARRAYS, st.integers(1, 4), st.booleans())
def test_blocks_of_an_array_hold_its_rows(array: Any, step: int, turned: bool) -> None:
    if turned and array.ndim > 1:
        array = np.asfortranarray(array)[:, ::-1]
    source = source_of_arrays({"x": array})
    assert isinstance(source, ArraySource)
    assert source.length == len(array)
    for start in range(0, len(array), step):
        block = source.block(start, min(start + step, len(array)))
        rows = [{"x": row} for row in array[start : start + step]]
        assert_rows_equal(Rows(block).exact(), rows)
        assert block.data[0].values.dtype == block.schema.columns[0].storage
        # The same as if each row had come alone.
        collector = Collector()
        for i, row in enumerate(rows):
            collector.add(row, i)
        assert collector.take().schema == block.schema == source.schema


TENSORS = {
    "turned": torch.arange(12).reshape(3, 4).t(),
    "with gradients": torch.arange(6.0, requires_grad=True).reshape(3, 2),
    "a parameter": torch.nn.Parameter(torch.arange(6.0).reshape(3, 2)),
    "conjugate": torch.tensor([[1 + 2j], [3j]]).conj(),
    "negative": torch.tensor([[1 + 2j], [3j]]).conj().imag,
    "expanded": torch.zeros(1, 3).expand(4, 3),
    "bfloat16, turned": torch.arange(6).reshape(2, 3).t().bfloat16(),
    "float8": torch.arange(6).reshape(2, 3).to(torch.float8_e4m3fn),
    "uint16": torch.arange(6).reshape(2, 3).to(torch.uint16),
    "bool": torch.arange(6).reshape(2, 3) % 2 == 0,
    "scalars": torch.arange(4),
    "no rows": torch.zeros(0, 5),
    "empty rows": torch.zeros(5, 0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_rows_of_tensors(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    check_source(lambda: tensor, [tensor.detach()[i] for i in range(len(tensor))], tmp_path)


def test_rows_of_a_file_mapped_as_an_array(tmp_path: Path) -> None:
    np.arange(12.0).tofile(tmp_path / "data")
    array = np.memmap(tmp_path / "data", float, "r", shape=(4, 3))
    rows = [np.array(row) for row in array]
    check_source(lambda: array, rows, tmp_path / "array")
    check_source(
        lambda: {"a": array, "b": array[:, 0]}, [{"a": r, "b": r[0]} for r in rows], tmp_path / "dict"
    )
    check_source(lambda: list(array), rows, tmp_path / "list")


def test_rows_of_text(tmp_path: Path) -> None:
    for number, array in enumerate(
        [np.array(["a", "", "löng"]), np.array([b"a", b"", b"long"]), np.array([["ab", "c"], ["", "d"]])]
    ):
        check_source(lambda array=array: array, list(array), tmp_path / str(number))
        many = {"text": array, "number": np.arange(len(array))}
        rows = [{"text": row, "number": i} for row, i in zip(array, many["number"], strict=True)]
        check_source(lambda many=many: many, rows, tmp_path / f"{number} of a dict")


def test_what_counts_as_arrays() -> None:
    for data in (np.zeros(3), torch.zeros(3), {"a": np.zeros(3), "b": torch.zeros(3)}):
        assert is_arrays(data)
    for other in ({}, {"a": [1]}, {"a": np.zeros(3), "b": 1}, [np.zeros(3)], 3, "text", np.float32(1)):
        assert not is_arrays(other)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array(3), "'the array' has 0 dimensions"),
        ({"x": np.zeros(3), "y": torch.tensor(1)}, "'y' has 0 dimensions"),
        ({"x": np.zeros(3), "y": torch.zeros(4)}, r"different numbers of rows: \{'x': 3, 'y': 4\}"),
        (np.array([1, None]), "dtype object"),
        ({"x": np.zeros(2, [("o", "O")])}, "'x' is an array of dtype .* cannot be kept"),
        (np.zeros(3, "i4,f4"), "turn structured arrays into a dict"),
        (np.zeros(3, "V8"), "use a numeric dtype"),
        (np.ma.zeros((3, 2)), "array subclasses lose their meaning"),
        (torch.eye(3).to_sparse(), "make it dense"),
        ({3.5: np.zeros(3)}, "dict keys must be str or int"),
    ],
)
def test_what_cannot_be_kept_is_said(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=message):
        yoga.Storage(tmp_path).submit(data, "a", "1")
    assert yoga.Storage(tmp_path).list() == []


def test_iterables_are_read_once() -> None:
    class Numbers:
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return iter([1, 2])

        def __call__(self) -> Any:
            raise AssertionError("an iterable is iterated, not called")

    numbers = Numbers()
    source = IteratorSource(numbers)
    assert (source.name, source.length, source.seekable, numbers.read) == ("Numbers", None, False, 0)
    assert list(source.rows(0)) == [1, 2]
    assert numbers.read == 1


class Squares(torch.utils.data.Dataset[int]):
    """Has no end for who only iterates it."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return (index % 5) ** 2


def test_functions_may_return_any_source(tmp_path: Path) -> None:
    squares = [0, 1, 4, 9, 16]
    for number, made in enumerate((Squares(), squares, iter(squares), (n for n in squares))):
        ref = yoga.Storage(tmp_path).submit(lambda made=made: made, "a", str(number))
        assert list(ref) == squares
    arrays = yoga.Storage(tmp_path).submit(lambda: np.arange(3), "a", "arrays")
    assert_rows_equal(list(arrays), list(np.arange(3)))
    storage = yoga.Storage(tmp_path)
    numbers = type("Both", (), {"__iter__": lambda self: iter(squares), "__call__": lambda self: 1 / 0})()
    assert list(storage.submit(numbers, "a", "both")) == squares
    with pytest.raises(TypeError, match="a NoneType"):
        storage.submit(lambda: None, "a", "nothing")
