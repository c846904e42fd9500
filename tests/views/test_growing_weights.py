"""Weighted rows whose dataset grows, and whose weights change: the past stays to the row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from growing import Rows, delivered
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyoga.errors import StateError

FEW, MANY = Rows("a", [20]), Rows("a", [20, 33])
BEFORE = np.arange(20) % 4 + 1
AFTER = np.arange(33) % 5


def numbers(rows: list[Any]) -> list[int]:
    return [row for _, row in rows]


@settings(max_examples=30, deadline=None)
@given(
    steps=st.integers(1, 40),
    worlds=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    batch=st.integers(1, 4),
    kind=st.sampled_from([True, "block"]),
)
def test_rows_that_were_appended_come_from_a_state_on(
    steps: int, worlds: list[int], batch: int, kind: Any
) -> None:
    view = FEW.weighted(BEFORE, rows=60)
    plain = numbers(delivered(view, None, 1, 1, 500, shuffle=kind)[0])
    first, state = delivered(view, None, worlds[0], batch, steps, shuffle=kind)
    assert numbers(first) == plain[: len(first)]
    grown = view.reweighted(AFTER, at=state, over=MANY)
    place = state["epoch"] * 60 + state["position"]
    whole = numbers(delivered(grown, state, 1, 1, 240, shuffle=kind)[0])
    rest = (60 - place % 60) % 60
    for start in range(rest, 181, 60):  # whole epochs
        found, expected = Counter(whole[start : start + 60]), 60 * AFTER / AFTER.sum()
        assert all(abs(found[row] - share) < 1 for row, share in enumerate(expected.tolist()))
    # Under other ranks, resumed on the way, and made anew from the state of the change.
    some, then = delivered(grown, state, worlds[1], batch, 3, shuffle=kind)
    again = FEW.weighted(BEFORE, rows=60).reweighted(AFTER, at=state, over=MANY)
    more, _ = delivered(again, then, worlds[2], 1, 9, shuffle=kind)
    assert numbers(some + more) == whole[: len(some + more)]


def test_batches_that_came_early_keep_their_weights() -> None:
    view = FEW.weighted(BEFORE, rows=60)
    rows, state = delivered(view, None, 1, 3, 5)
    early = {**state, "left": [[3, 6]], "position": 12, "proof": None}
    grown = view.reweighted(AFTER, at=early, over=MANY)
    rest = numbers(delivered(grown, early, 1, 3, 1)[0])
    assert rest == numbers(rows)[3:6]


def test_what_does_not_go_on_is_refused() -> None:
    view = FEW.weighted(BEFORE, rows=60)
    _, state = delivered(view, None, 1, 4, 3)
    with pytest.raises(ValueError, match=r"a version that storage.append\(...\) made of these 20 rows"):
        view.reweighted(np.ones(9), at=state, over=Rows("b", [9]))
    with pytest.raises(ValueError, match="a weight for each of the 33 rows"):
        view.reweighted(BEFORE, at=state, over=MANY)
    with pytest.raises(StateError, match="step 3 of epoch 0, position 12, was saved with other weights"):
        FEW.weighted(BEFORE[::-1], rows=60).reweighted(AFTER, at=state, over=MANY)
    grown = view.reweighted(AFTER, at=state, over=MANY)
    with pytest.raises(StateError):
        delivered(grown, {**state, "fingerprint": "other"}, 1, 4, 1)
