"""A user's program, for type checkers: each line marked as wrong is an error, and no other line is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import assert_type

import torchyoga as yoga


class Squares(yoga.DataRef[int]):
    def __len__(self) -> int:
        return 10

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[int]:
        return [row**2 for row in rows.tolist()]


class Anything(yoga.DataRef):
    def __len__(self) -> int:
        return 10

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[dict[str, int]]:
        return [{"x": row} for row in rows.tolist()]


class Texts(yoga.DataRef[str]):
    def __len__(self) -> int:
        return 1

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[int]:  # wrong: rows are text
        return [1 for _ in rows]


def rows_of_a_dataset() -> None:
    squares = Squares()
    assert_type(squares[3], int)
    assert_type(squares[np.int64(3)], int)
    assert_type(squares[1:3], yoga.DataRef[int])
    assert_type(squares[[1, 2]], list[int])
    assert_type(squares[np.array([1, 2])], list[int])
    assert_type(squares[torch.tensor([1, 2])], list[int])
    assert_type(squares[5:][::2][0], int)
    assert_type(list(squares), list[int])
    assert_type(next(iter(squares.stream(shuffle=True))), int)
    for batch in squares.stream().batches(3):
        assert_type(batch, Sequence[int])
    assert_type(Anything()[3], Any)
    squares["x"]  # wrong: rows have numbers
    squares[1.5]  # wrong: rows have numbers
    squares.stream(shuffle="rows")  # wrong: True, False or "block"
    text: str = squares[3]  # wrong: a row is an int
    squares[1:3].append(4)  # wrong: a slice is a DataRef
    print(text)


def build(folder: Path) -> yoga.DataRef:
    storage = yoga.Storage(folder, format="hdf5")

    @storage.cacheable("numbers", "1.0")
    def numbers(count: int) -> list[dict[str, int]]:
        return [{"x": i} for i in range(count)]

    storage.submit([1, 2], "numbers")  # wrong: the version is missing
    yoga.Storage(3)  # wrong: a path or a URL
    assert_type(len(storage.submit([1, 2], "numbers", "2.0")), int)
    return storage.fetch("numbers", "1.0")


def load(ref: yoga.DataRef) -> None:
    loader: yoga.DataLoader[Any] = yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=1, num_workers=0)
    for batch in loader:
        print(batch["x"])
    state = loader.state_dict()
    resumed: yoga.DataLoader[Any] = yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    resumed.load_state_dict(3)  # wrong: a state is a dict
    yoga.DataLoader(ref, batch_size="4")  # wrong: an int
    sampler = yoga.ResumableSampler(ref, shuffle="block", shuffle_window=4)
    assert_type(next(iter(sampler)), int)
    try:
        sampler.load_state_dict(state)
    except yoga.errors.StateError as error:
        print(error)
