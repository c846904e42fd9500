"""Sequences that are not of Keras's own classes; tests of the others are in frameworks/."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchyoga.adapters.keras_sequence import as_dataref, source_of
from torchyoga.testing import assert_rows_equal


class Old:
    """A sequence as in Keras 2: a length, batches, and a hook that shuffles."""

    def __init__(self, length: int) -> None:
        self.numbers = np.arange(length)

    def __len__(self) -> int:
        return -(-len(self.numbers) // 3)

    def __getitem__(self, index: int) -> Any:
        return {"n": self.numbers[3 * index : 3 * index + 3]}

    def on_epoch_end(self) -> None:
        raise AssertionError("the order of the rows would change")


@pytest.mark.parametrize("length", range(8))
def test_sequences_of_every_length(length: int) -> None:
    ref = as_dataref(Old(length))
    assert len(ref) == length
    assert [row["n"] for row in ref] == list(range(length))
    for number in range(-length, length):
        assert_rows_equal(ref[number], {"n": np.arange(length)[number]})


def test_only_sequences_are_taken_for_sources() -> None:
    assert source_of(Old(3)) is not None
    assert source_of([1, 2]) is None
    assert source_of(object()) is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_processes_read_whole_batches(num_workers: int) -> None:
    source = source_of(Counting(20), num_workers)
    assert source is not None
    rows = list(source.rows(0))
    assert [row["n"] for row in rows] == list(range(20))
    # In its own process each batch is read once, except for the two that show the length.
    assert max(row["times"] for row in rows) <= 2


class Counting(Old):
    """A sequence that counts how often this process has read each batch."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.times: dict[int, int] = {}

    def __getitem__(self, index: int) -> Any:
        self.times[index] = self.times.get(index, 0) + 1
        batch = super().__getitem__(index)
        return {**batch, "times": np.full(len(batch["n"]), self.times[index])}
