"""A DataRef is a Dataset of torch's, and needs no torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from own import Squares
from torch.utils.data import ConcatDataset, Dataset, random_split

import torchyoga as yoga

PROGRAM = """
import sys
import numpy as np
import torchyoga as yoga
class Squares(yoga.DataRef):
    def __len__(self):
        return 10
    def take(self, rows):
        return [int(row) ** 2 for row in rows]
squares, part = Squares(), Squares()[3:]
assert len(list(squares.stream(shuffle=True))) == 10 and not isinstance(squares, np.ndarray)
assert "torch" not in sys.modules
{}
from torch.utils.data import Dataset
print(isinstance(squares, Dataset), isinstance(part, Dataset), issubclass(Squares, Dataset))
print(yoga.DataRef.__mro__[2:4] == (__import__("abc").ABC, Dataset), list(yoga.DataLoader(squares, 10))[0][3])
"""


@pytest.mark.parametrize(
    "loading",
    [
        "import torch",
        pytest.param("yoga.DataLoader", marks=pytest.mark.rest),
        pytest.param("import torch.utils.data.dataset", marks=pytest.mark.rest),
    ],
)
def test_it_becomes_one_when_torch_is_loaded(loading: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(loading)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.stdout.split("\n") == ["True True True", "True tensor(9)", ""], finished.stderr


def test_what_torch_makes_of_datasets_takes_it() -> None:
    squares = Squares()
    assert isinstance(squares, Dataset)
    assert isinstance(squares[3:], Dataset)
    first, second = random_split(squares, [4, 6])
    assert sorted([*first, *second]) == list(squares)
    joined = squares + squares[:2]
    assert type(joined) is ConcatDataset
    assert [int(row) for row in yoga.DataLoader(joined, batch_size=None)] == [*squares, 0, 1]


def test_a_class_may_be_both() -> None:
    class Both(Squares, Dataset[Any]):
        pass

    assert Both()[3] == 9
