"""Data of any kind finds its adapter, and data that is not a dataset is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from children import run_program
from own import Made, Mapped
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import torchyoga as yoga
from torchyoga.adapters.map_style import MapSource
from torchyoga.adapters.sources import (
    DataflowSource,
    IteratorSource,
    RefSource,
    dataset_and_source,
    source_of,
)
from torchyoga.testing import assert_rows_equal


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


SQUARES = Mapped(5, lambda index: (index % 5) ** 2)  # it has no end if it is only iterated


def test_functions_may_return_any_source(tmp_path: Path) -> None:
    squares = [0, 1, 4, 9, 16]
    for number, made in enumerate((SQUARES, squares, iter(squares), (n for n in squares))):
        ref = yoga.Storage(tmp_path).submit(lambda made=made: made, "a", str(number))
        assert list(ref) == squares
    arrays = yoga.Storage(tmp_path).submit(lambda: np.arange(3), "a", "arrays")
    assert_rows_equal(list(arrays), list(np.arange(3)))
    storage = yoga.Storage(tmp_path)
    with pytest.raises(TypeError, match="returned None; let it return the dataset"):
        storage.submit(lambda: None, "a", "nothing")


def test_data_that_is_not_a_dataset_is_refused(storage: yoga.Storage) -> None:
    for data in ("text", b"bytes", {1: 2}, {1, 2}, 5, None, object()):
        with pytest.raises(TypeError, match="pass a"):
            storage.submit(data, "a", "1")
    with pytest.raises(ValueError, match="each worker all its rows"):
        storage.submit(Endless(), "a", "1", num_workers=2)
    with pytest.raises(ValueError, match="num_workers must be at least 0, found -1"):
        storage.submit([1], "a", "1", num_workers=-1)
    with pytest.raises(ValueError, match=r"version must be a non-empty str, found \[1, 2\]"):
        storage.submit("a", "1", [1, 2])  # type: ignore[arg-type]
    assert storage.list() == []


def test_what_a_function_returns_as_several_things_is_no_dataset(storage: yoga.Storage) -> None:
    x, y, rows, columns = np.zeros((3, 2)), np.arange(3), [{"x": 1}], {"x": [1, 2]}
    makers = (pd.DataFrame, pl.DataFrame, pa.table, datasets.Dataset.from_dict)
    sets = [SQUARES, *(make(columns) for make in makers)]
    several: list[Any] = [
        *((one, one) for one in sets),
        *([one, one] for one in sets),
        *({"train": one, "test": one} for one in sets),
        (rows, rows),
        ([1, 2], [3]),
        (x, x[:2]),
        (x, y),  # of TensorDataset, but as well a training and a test set
        (torch.zeros(3), torch.arange(3)),
        ((x, y), (x, y)),  # as Keras's load_data returns them
        ({"x": x}, {"x": x}),
        ({"x": [1]}, {"x": [2]}),
        (iter(rows), iter(rows)),
        (range(3), range(2)),
        (SQUARES, ["cat", "dog"]),
        (rows, None),
        {"train": [1, 2], "test": [3]},
        {"train": rows, "Validation": rows},
        {"train": x, "test": x[:2]},
        {"train": {"x": x}, "dev": {"x": x}},
        {"a": rows, "b": rows * 2},
    ]
    for data in several:
        acts = (
            lambda data=data: storage.submit(data, "a", "1"),
            lambda data=data: storage.cacheable("a", "1")(lambda: data)(),
        )
        for act in acts:
            said = r"2 datasets.*a version holds one.*mnist-\{split\}"
            with pytest.raises(TypeError, match=said) as caught:
                act()
            assert ('{"x": x, "y": y}' in str(caught.value)) == (type(data) is not list)
    assert storage.list() == []
    for number, plain in enumerate([(1, 2), ({"x": 1}, {"x": 2}), ((1, "a"), (2, "b")), ("a", None)]):
        assert list(storage.submit(plain, "a", str(number))) == list(plain)
    assert len(storage.submit({"train": x, "test": x}, "a", "columns")) == 3
    with pytest.raises(TypeError, match=r"'x' is a list; numpy\.asarray makes an array of it"):
        storage.submit({"x": [1, 2], "y": [3, 4]}, "b", "1")


ARRAYS = yoga.from_arrays({"x": np.arange(5)})
SOURCES: dict[str, tuple[Any, type]] = {
    "list": ([1, 2], MapSource),
    "range": (range(3), MapSource),
    "iterator": (iter([1, 2]), IteratorSource),
    "generator": ((n for n in (1, 2)), IteratorSource),
    "array": (np.arange(3), RefSource),
    "tensor": (torch.arange(3), RefSource),
    "dict of arrays": ({"x": np.arange(3), "y": torch.arange(3)}, RefSource),
    "DataRef": (ARRAYS, RefSource),
    "slice": (ARRAYS[1:3], RefSource),
    "Subset": (Subset(ARRAYS, [3, 1]), RefSource),
    "Subset of one": (Subset(ConcatDataset([ARRAYS, ARRAYS]), [7, 1]), RefSource),
    "DataRef without columns": (Made(3), MapSource),
    "Dataset": (SQUARES, MapSource),
    "Subset of a Dataset": (Subset(SQUARES, [1]), MapSource),
    "IterableDataset": (Endless(), IteratorSource),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_each_kind_of_data_has_its_adapter(kind: str) -> None:
    data, expected = SOURCES[kind]
    source = source_of(data)
    assert type(source) is expected
    assert source_of(source) is source
    for nothing in (lambda: data, None, 5, object()):
        assert source_of(nothing) is None


def test_a_dataref_is_read_row_by_row_if_another_schema_is_passed() -> None:
    other = yoga.Schema.of({"x": np.int64(0)})
    assert other == ARRAYS.schema
    assert isinstance(source_of(ARRAYS, schema=other), RefSource)
    assert isinstance(source_of(ARRAYS, schema=yoga.Schema.of({"x": 0})), MapSource)


def of_module(module: str, **methods: Any) -> Any:
    return type("Made", (), {"__module__": module, **methods})()


def test_a_framework_is_recognised_by_the_module_of_its_classes() -> None:
    flow = {"reset_state": lambda self: None, "__iter__": lambda self: iter([[1], [2]])}
    batches = {
        "__len__": lambda self: 2,
        "__getitem__": lambda self, index: np.arange(3) + 3 * index,
        "on_epoch_end": lambda self: None,
    }
    assert isinstance(source_of(of_module("tensorpack.dataflow.base", **flow)), DataflowSource)
    assert isinstance(source_of(of_module("elsewhere", **flow)), IteratorSource)
    for module, expected in {"keras.utils": 6, "tf_keras.utils": 6, "elsewhere": 2}.items():
        source = source_of(of_module(module, **batches))
        assert isinstance(source, MapSource)
        assert source.length == expected
    # For example, a layer: it is Keras's, but has no rows.
    assert source_of(of_module("keras.layers", __call__=lambda self: [1])) is None
    assert dataset_and_source(of_module("keras.layers", __call__=lambda self: [1]))[0] == [1]


PROGRAM = """
import sys
import numpy as np, torch
import torchyoga as yoga
from torchyoga.adapters.sources import source_of
ref = yoga.from_arrays(np.arange(3))
for data in ([1], iter([1]), {"x": np.arange(3)}, ref, torch.utils.data.Subset(ref, [0]), lambda: 1):
    source_of(data)
wanted = ("dataflow", "keras_sequence", "tensorflow")
print([name for name in wanted if f"torchyoga.adapters.{name}" in sys.modules])
"""


def test_no_adapter_is_loaded_for_data_of_other_frameworks() -> None:
    ended = run_program(PROGRAM)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_a_function_may_return_the_dataset(storage: yoga.Storage, caplog: pytest.LogCaptureFixture) -> None:
    dataset, source = dataset_and_source(lambda: lambda: [1, 2])
    assert dataset == [1, 2]
    assert isinstance(source, MapSource)

    def rows() -> Iterator[int]:
        yield from range(3)

    # Attributes of a function are not info about its rows, whether JSON can express them or not.
    for said in (["a"], {1}):
        rows.classes = said  # type: ignore[attr-defined]
        with caplog.at_level(logging.WARNING):
            assert storage.submit(rows, "a", str(said)).info == {}
    assert caplog.messages == []


def test_iterables_are_read_once() -> None:
    class Numbers:
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return iter([1, 2])

        def __call__(self) -> Any:
            raise AssertionError("an iterable is iterated, not called")

    numbers = Numbers()
    dataset, source = dataset_and_source(numbers)
    assert dataset is numbers
    assert isinstance(source, IteratorSource)
    assert (source.name, source.length, source.seekable, numbers.read) == ("Numbers", None, False, 0)
    assert list(source.rows(0)) == [1, 2]
    assert numbers.read == 1
