"""What is particular to sequences that are none of Keras's own classes; the others are in frameworks/."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchyoga.adapters.sequence import as_dataref, source_of
from torchyoga.testing import assert_rows_equal


class Old:
    """As Keras 2 has sequences: a length, batches, and a hook that shuffles."""

    def __init__(self, length: int) -> None:
        self.numbers = np.arange(length)

    def __len__(self) -> int:
        return -(-len(self.numbers) // 3)

    def __getitem__(self, index: int) -> Any:
        return {"n": self.numbers[3 * index : 3 * index + 3]}

    def on_epoch_end(self) -> None:
        raise AssertionError("the order of the rows would change")


@pytest.mark.parametrize("length", range(8))
def test_every_length(length: int) -> None:
    ref = as_dataref(Old(length))
    assert len(ref) == length
    assert [row["n"] for row in ref] == list(range(length))
    for number in range(-length, length):
        assert_rows_equal(ref[number], {"n": np.arange(length)[number]})


def test_only_sequences_are_taken_for_sources() -> None:
    assert source_of(Old(3)) is not None
    assert source_of([1, 2]) is None
    assert source_of(object()) is None
