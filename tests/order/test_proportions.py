"""Shares of every prefix, and the way back, against fractions."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from torchyoga.order.mixture import MOST_WEIGHT, Proportions, whole_weights

WEIGHTS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**24)), min_size=1, max_size=12).filter(
    lambda weights: sum(weights) > 0
)


@settings(max_examples=examples(150))
@given(WEIGHTS, st.sampled_from([0, 1, 10**6, 10**12, 2**61 - 500]))
def test_every_prefix_has_its_shares(weights: list[int], start: int) -> None:
    shares, places = Proportions(weights), np.arange(start, start + 300)
    counts = shares.counts(places)
    assert (counts.sum(axis=0) == places).all()
    steps = np.diff(counts, axis=1)
    assert (steps.sum(axis=0) == 1).all()
    assert (steps >= 0).all()
    # Each node above a weight is off by half a place at most, and scales what the one above it is off.
    most = Fraction(3, 2)
    for weight, found in zip(weights, counts.tolist(), strict=True):
        exact = [Fraction(place * weight, sum(weights)) for place in places.tolist()]
        assert max(abs(a - b) for a, b in zip(found, exact, strict=True)) <= most


@settings(max_examples=examples(150))
@given(WEIGHTS, st.sampled_from([0, 10**12, 2**61 - 500]))
def test_places_of_numbers_are_those_of_the_counts(weights: list[int], start: int) -> None:
    shares, places = Proportions(weights), np.arange(start, start + 300)
    counts = shares.counts(places)
    for owner, weight in enumerate(weights):
        own = np.flatnonzero(np.diff(counts[owner]))
        if weight:
            assert shares.places(owner, counts[owner][own]).tolist() == places[own].tolist()


def test_a_prefix_is_at_most_1_24_rows_off_for_many_weights() -> None:
    rng, worst = np.random.default_rng(0), 0.0
    for size in (2, 4, 16, 64):
        for weights in ([1] * size, rng.integers(1, 100, size).tolist()):
            places = np.arange(20_000)
            exact = places * np.array(weights)[:, None] / sum(weights)
            worst = max(worst, float(np.abs(Proportions(weights).counts(places) - exact).max()))
    assert 0.5 <= worst <= 1.24


def test_equal_weights_take_turns() -> None:
    assert np.diff(Proportions([1, 1]).counts(np.arange(9))[0]).tolist() in ([0, 1] * 4, [1, 0] * 4)


def test_a_single_weight_and_weights_of_0() -> None:
    shares = Proportions([0, 3, 0])
    assert shares.counts(np.array([7])).tolist() == [[0], [7], [0]]
    assert shares.places(1, np.array([0, 5])).tolist() == [0, 5]
    with pytest.raises(ValueError, match="owner 0 has weight 0"):
        shares.places(0, np.array([0]))


@pytest.mark.parametrize("weights", [[0], [-1, 2], [MOST_WEIGHT, 1]])
def test_weights_that_are_none(weights: list[int]) -> None:
    with pytest.raises(ValueError, match=r"weights must be at least 0 and sum to 1\.\.2\*\*31"):
        Proportions(weights)


def test_it_pickles_as_its_weights() -> None:
    found = pickle.loads(pickle.dumps(Proportions([3, 1])))
    assert found.weights == (3, 1)
    assert len(pickle.dumps(found)) < 200


def test_whole_weights_are_exact_where_they_can_be() -> None:
    assert whole_weights([Fraction("0.1"), Fraction("0.9")]) == (1, 9)
    assert whole_weights([Fraction(6), Fraction(0), Fraction(4)]) == (3, 0, 2)
    large = whole_weights([Fraction(10**12), Fraction(3 * 10**12 + 1), Fraction(10**6), Fraction(0)])
    assert sum(large) <= MOST_WEIGHT
    assert large[2:] == (537, 0)
    assert abs(large[0] / sum(large) - 10**12 / (4 * 10**12 + 10**6 + 1)) < 1e-8


@pytest.mark.parametrize("small", ["1e-300", "1e-12", "1.7e-9"])
def test_weights_that_would_get_another_share_are_an_error(small: str) -> None:
    with pytest.raises(ValueError, match=r"weight 1 is .* of all weights.*more than 1 %.*5e-8 of them, or 0"):
        whole_weights([Fraction(1), Fraction(small)])


@pytest.mark.parametrize("small", ["0.00000005", "0.0000000512345678901"])
def test_small_weights_keep_their_share(small: str) -> None:
    large, less = whole_weights([Fraction(1), Fraction(small)])
    assert abs(Fraction(less, large) / Fraction(small) - 1) < Fraction(1, 100)
