"""A source that is read twice: every way in which a row can differ is detected, and nothing else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchyoga.adapters.map_style import MapSource
from torchyoga.checkpoint.loop import Watched

numbers = itertools.count()
DIFFER: dict[str, Callable[[int], Any]] = {
    "value": lambda i: {"x": i, "y": next(numbers)},
    "bit": lambda i: -0.0 if next(numbers) % 2 else 0.0,
    "shape": lambda i: np.zeros((2, 3) if next(numbers) % 2 else (3, 2)),
    "length": lambda i: [i, "text" * next(numbers)],
    "dtype": lambda i: torch.zeros(2, dtype=torch.int32 if next(numbers) % 2 else torch.float32),
    "type": lambda i: i if next(numbers) % 2 else float(i),
    "nesting": lambda i: {str(next(numbers)): i},
    "what cannot be stored": lambda i: i if next(numbers) < stop else object(),
}
SAME: dict[str, Callable[[int], Any]] = {
    "nan": lambda i: float("nan"),
    "order of keys": lambda i: {"a": 1, "b": i} if next(numbers) % 2 else {"b": i, "a": 1},
    "other memory": lambda i: (np.full(3, i), torch.arange(i)),
    "one memory": lambda i: filled(i),
}
SHARED = np.zeros(4)
stop = 0


def filled(i: int) -> Any:
    SHARED[:] = i
    return SHARED


class Made:
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 5:
            raise IndexError(index)
        return self.make(index)


@pytest.mark.parametrize("kind", [*DIFFER, *SAME])
def test_rows_that_differ_are_found(kind: str) -> None:
    global stop
    stop = next(numbers) + 6
    watched = Watched(MapSource(Made({**DIFFER, **SAME}[kind])))
    assert not watched.differ()  # nothing has been read yet
    assert len(list(watched.rows(0))) == watched.length == 5
    assert watched.differ() is (kind in DIFFER)


def test_rows_of_a_build_that_is_continued() -> None:
    drawn = [7, 7, 7, 7, 7]
    watched = Watched(MapSource(Made(lambda i: drawn[i])))
    assert list(watched.rows(3)) == [7, 7]
    drawn[0] = drawn[2] = 8  # these were read by another build
    assert not watched.differ()
    drawn[4] = 8
    assert watched.differ()


def test_rows_that_cannot_be_stored_are_left_to_the_build() -> None:
    watched = Watched(MapSource(Made(lambda i: object())))
    assert len(list(watched.rows(0))) == 5
    assert not watched.differ()


def test_rows_that_take_long_are_read_once() -> None:
    class Slow:
        read = 0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            self.read += 1
            time.sleep(0.6)
            return self.read

    slow = Slow()
    watched = Watched(MapSource(slow))
    assert list(watched.rows(0)) == [1, 2]
    assert not watched.differ()
    assert slow.read == 2
