"""Python's own collections, and functions that return any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchyoga as yoga
from torchyoga.adapters.python import IteratorSource
from torchyoga.testing import assert_rows_equal


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
