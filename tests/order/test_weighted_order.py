"""Weights against counts: each row floor or ceil of its share, there and back."""

from __future__ import annotations

import gc
import itertools
import pickle
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from torchyoga.order.contract import ARRANGED, AnyOrder
from torchyoga.order.full import Order
from torchyoga.order.weighted import BucketOrder, RowWeights, WeightedOrder, whole_ends

Weights = Any


def order(weights: Weights, rows: int, **more: Any) -> WeightedOrder:
    return WeightedOrder(RowWeights.of(whole_ends(np.asarray(weights))), rows, **more)


def counted(found: WeightedOrder, epoch: int) -> Any:
    numbers = found.rows(epoch, np.arange(found.length))
    assert len(set(numbers.tolist())) == found.length, "two places have one number"
    assert found.positions(epoch, numbers).tolist() == list(range(found.length))
    return np.bincount((numbers - ARRANGED.start) % found.num_rows, minlength=found.num_rows)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(0, 9)), min_size=1, max_size=20
    ).filter(lambda weights: sum(weights) > 0),
    st.integers(1, 60),
    st.integers(0, 3),
)
def test_each_row_comes_floor_or_ceil_of_its_share(weights: list[float], rows: int, seed: int) -> None:
    for shuffle, epoch in itertools.product((True, False), (0, 1)):
        counts = counted(order(weights, rows, seed=seed, shuffle=shuffle), epoch)
        share = rows * np.array(weights, float) / sum(weights)
        assert (counts >= np.floor(share - 1e-9)).all()
        assert (counts <= np.ceil(share + 1e-9)).all()


@pytest.mark.parametrize("weight", [1, 0.1, 3, 1e-30, 1e300])
def test_equal_weights_give_each_row_once(weight: float) -> None:
    for size in (1, 7, 1000, 12_345):
        assert (counted(order([weight] * size, size, seed=1), 0) == 1).all()
        assert (counted(order([weight] * size, 2 * size, seed=1), 3) == 2).all()


def test_pareto_weights() -> None:
    weights = np.random.default_rng(0).pareto(1.2, 100_000)
    counts = counted(order(weights, 150_000, seed=1), 2)
    share = 150_000 * weights / weights.sum()
    assert ((counts == np.floor(share)) | (counts == np.ceil(share))).all()
    # What is left to chance is fair: rows of small shares come as often as these say, on average.
    small = share < 0.5
    assert abs(counts[small].sum() / share[small].sum() - 1) < 0.02


def test_which_rows_come_and_where_changes_with_seed_and_epoch() -> None:
    weights, places = np.arange(1, 200), np.arange(50)
    found = order(weights, 50, seed=1)
    rows = [found.rows(epoch, places) % 199 for epoch in (0, 1)]
    assert not np.array_equal(*rows)
    assert set(rows[0].tolist()) != set(rows[1].tolist())
    assert not np.array_equal(found.rows(0, places), order(weights, 50, seed=2).rows(0, places))
    once = order(weights, 50, seed=1, reshuffle=False)
    assert np.array_equal(once.rows(4, places), found.rows(0, places))
    plain = order(weights, 50, shuffle=False).rows(0, places)
    assert (np.diff((plain - ARRANGED.start) % 199) >= 0).all()


def test_neighbours_are_independent() -> None:
    found = order([3, 2, 1], 60_000, seed=5)
    rows = (found.rows(0, np.arange(60_000)) - ARRANGED.start) % 3
    pairs = np.bincount(rows[:-1] * 3 + rows[1:], minlength=9).reshape(3, 3)
    expected = np.outer([3, 2, 1], [3, 2, 1]) / 36 * 59_999
    assert ((pairs - expected) ** 2 / expected).sum() < 26  # chi-square with 4 degrees of freedom: p = 3e-5


def test_more_rows_than_torchs_sampler_can() -> None:
    size = 2**24 + 5
    found = order(np.ones(size, np.uint8), 10**6, seed=1)
    numbers = found.rows(0, np.arange(2000))
    assert found.positions(0, numbers).tolist() == list(range(2000))
    assert int((numbers - ARRANGED.start).max()) > 2**24 - 2**18


def test_a_block_shuffle_needs_a_few_files_at_a_time() -> None:
    files = np.arange(0, 1001, 100)
    found = order(np.ones(1000), 1000, seed=1, shuffle="block", files=files, window=2)
    rows = (found.rows(0, np.arange(1000)) - ARRANGED.start) % 1000
    assert sorted(rows.tolist()) == list(range(1000))
    assert all(len(set((rows[start : start + 50] // 100).tolist())) <= 3 for start in range(0, 1000, 50))


def test_numbers_that_do_not_come() -> None:
    found = order([1, 0], 4, seed=1)
    for number in (ARRANGED.start + 1, ARRANGED.start + 2 * 4, 0):
        with pytest.raises(ValueError, match="does not come in epoch 0 of these weights"):
            found.positions(0, [number])
    with pytest.raises(ValueError, match="positions must be at least 0"):
        found.rows(0, [-1])
    assert found.rows(0, [4]).tolist() == found.rows(0, [0]).tolist()


BAD = {
    "negative": ([1.0, -0.5], "weights must be finite and at least 0, found -0.5 for row 1"),
    "not a number": ([1.0, float("nan")], "found nan for row 1"),
    "infinite": ([float("inf"), 1.0], "found inf for row 0"),
    "all 0": ([0, 0, 0], "all 3 weights are 0"),
    "none": (np.zeros(0), "all 0 weights are 0"),
    "text": (np.array(["a"]), "weights must be numbers"),
    "of two dimensions": (np.ones((2, 2)), r"of shape \(2, 2\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_weights_that_are_none(name: str) -> None:
    weights, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        whole_ends(np.asarray(weights))


def test_huge_and_tiny_weights() -> None:
    ends = whole_ends(np.array([1e308, 1e308, 1e-300, 0.0]))
    assert np.diff(ends, prepend=0)[2:].tolist() == [1, 0]
    assert 2**60 < int(ends[-1]) < 2**62
    assert whole_ends(np.array([2**63 - 1, 2**63 - 1], np.int64))[-1] < 2**62


def test_it_pickles() -> None:
    found = order([1, 2, 3], 9, seed=1)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.rows(1, np.arange(9)), found.rows(1, np.arange(9)))


@pytest.mark.quick("made0")
@pytest.mark.parametrize("made", [order([1, 2, 3], 6), BucketOrder(Order(6), np.arange(6), 6, 2)])
def test_an_order_is_freed_with_what_it_has_computed(made: AnyOrder) -> None:
    kept = [replace(made)]  # type: ignore[type-var]
    assert sorted(kept[0].positions(1, kept[0].rows(1, np.arange(6))).tolist()) == list(range(6))
    is_there = weakref.ref(kept.pop())
    gc.collect()
    assert is_there() is None
