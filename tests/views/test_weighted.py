"""Rows drawn by weights of their own, and batches with as many rows of each class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from mixtures import delivered, ids

import torchyoga as yoga
from torchyoga.errors import StateError


def test_other_weights_of_rows_from_an_epoch_on(labelled: yoga.DataRef) -> None:
    ref, other = (labelled.weighted(weights, rows=60) for weights in (np.ones(100), [0] * 98 + [1, 2]))
    _, state = delivered(ref, 5, world=2, batch=4)
    with pytest.raises(StateError, match="stages"):
        delivered(other, None, state)
    _, end = delivered(ref, None, state)
    loader = yoga.DataLoader(other, 4, shuffle=True, seed=7)
    loader.load_state_dict(end, strict=False)
    assert loader.epoch == 1
    assert Counter(int(row) for batch in loader for row in batch["id"]) == {98: 20, 99: 40}


def test_weights_that_do_not_fit(labelled: yoga.DataRef) -> None:
    with pytest.raises(
        ValueError, match=r"a weight for each of the 100 rows, found an array of shape \(3,\)"
    ):
        labelled.weighted([1, 2, 3])
    with pytest.raises(ValueError, match="rows must be in 1"):
        labelled.weighted([1] * 100, rows=2**31)


@pytest.mark.parametrize("column", ["label", "name"])
def test_batches_have_as_many_of_each_class(labelled: yoga.DataRef, column: str) -> None:
    ref = labelled.balanced(column, batch=12, rows=120)
    rows, _ = delivered(ref, batch=12)
    for start in range(0, 120, 12):
        assert Counter(row["label"] for row in rows[start : start + 12]) == {0: 4, 1: 4, 2: 4}
    counts = Counter(ids(rows))
    assert {counts[n] for n in range(90, 100)} == {4}
    assert {counts[n] for n in range(70, 90)} == {2}
    assert {counts[n] for n in range(70)} == {0, 1}
    together, _ = delivered(ref, 1, world=3, batch=4)
    assert Counter(row["label"] for row in together) == {0: 4, 1: 4, 2: 4}


def test_balance_in_blocks_by_shares_and_from_a_state_on(labelled: yoga.DataRef) -> None:
    ref = labelled.balanced("name", batch=10, rows=100, shares={"a": 0.5, "b": 0.4, "c": 0.1})
    assert ref.counts(100) == {"a": 50, "b": 40, "c": 10}  # type: ignore[attr-defined]
    rows, _ = delivered(ref, shuffle="block", batch=10)
    assert Counter(row["name"] for row in rows) == {"a": 50, "b": 40, "c": 10}
    before, state = delivered(ref, 4, batch=10)
    after, _ = delivered(ref.reweighted({"a": 0, "b": 0, "c": 1}, at=state), None, state)
    assert {row["name"] for row in after} == {"c"}
    assert Counter(row["name"] for row in before) == {"a": 20, "b": 16, "c": 4}
    assert "balanced over 3 classes: " in repr(ref)


def test_balance_of_what_is_no_class(labelled: yoga.DataRef) -> None:
    for given, message in [
        ({"shares": {"a": 1}}, r"without a share are \['b', 'c'\], unknown are \[\]"),
        ({"shares": {"a": 1, "b": 1, "c": 1, "d": 1}}, r"unknown are \['d'\]"),
        ({"shares": dict.fromkeys("abc", 0)}, "all shares are 0"),
        ({"shares": {"a": -1, "b": 1, "c": 1}}, "the weight of 'a' must be a number"),
        ({"shares": 3}, "shares must be a dict"),
        ({"batch": 0}, "batch must be in 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            labelled.balanced("name", **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no rows to balance"):
        labelled[:0].balanced("name")
    with pytest.raises(KeyError, match="there is no column"):
        labelled.balanced("kind")
    many = yoga.from_arrays({"x": np.arange(70_000)})
    with pytest.raises(ValueError, match="more than 65536 different values; is it a label"):
        many.balanced("x")


def test_a_label_that_is_none_in_some_rows(tmp_path: Path) -> None:
    rows = [{"x": n, "label": None if n == 3 else n % 2, "name": None if n == 3 else "a"} for n in range(8)]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    for column in ("label", "name"):
        acts = (lambda of: ref.balanced(of), lambda of: ref.split([0.5, 0.5], by=of))
        for act in (*acts, lambda of: ref.split([0.5, 0.5], stratify=of)):
            with pytest.raises(TypeError, match=rf"'{column}' is None in some rows; use ref\.filled"):
                act(column)
    assert ref.filled({"label": -1}).balanced("label", batch=3).counts(9) == {-1: 3, 0: 3, 1: 3}  # type: ignore[attr-defined]
