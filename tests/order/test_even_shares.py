"""Shares of what rows hold: against an oracle that deals row by row, with fractions, and every prefix."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyoga.order.mixing.even_shares import EvenShares, Measured, chunk_size
from torchyoga.order.mixing.turns import Era
from torchyoga.order.passes import EvenPasses, Strata, sizes_of_each


def check_dealt(source: Sequence[int], weights: Sequence[int], sizes: Sequence[Sequence[int]]) -> None:
    """Of the rows that would have begun on the ideal line, the one comes next that would end first."""
    rates, close = rates_of(weights, sizes), Fraction(1, 10**9)
    held, at = [0] * len(weights), [0] * len(weights)
    for one in source:
        now = sum(held)
        ends = [
            (held[n] + sizes[n][at[n] % len(sizes[n])]) / rate
            for n, rate in enumerate(rates)
            if rate and held[n] < now * rate - close
        ]
        assert held[one] <= now * rates[one] + close
        own = sizes[one][at[one] % len(sizes[one])]
        assert (held[one] + own) / rates[one] <= min(ends, default=now + 10**9) + close
        held[one] += own
        at[one] += 1


def rates_of(weights: Sequence[int], sizes: Sequence[Sequence[int]]) -> list[Fraction]:
    rates = [weight * Fraction(sum(some), len(some)) for weight, some in zip(weights, sizes, strict=True)]
    return [rate / sum(rates) for rate in rates]


def sizes_of(strata: Strata) -> list[int]:
    rows = sum(count for count, _ in strata)
    return sizes_of_each([EvenPasses(strata, None)], np.array([0, rows]), np.arange(rows)).tolist()


def measured(strata: Strata, eras: tuple[Era, ...] = ()) -> Measured:
    rows, held = sum(n for n, _ in strata), sum(n * size for n, size in strata)
    return Measured(eras or (Era(0, 0, rows),), (strata,), held / rows)


def strata_of(counts: list[int], sizes: list[int]) -> Strata:
    return tuple(zip(counts, sorted(set(sizes), reverse=True), strict=False))


STRATA = st.builds(
    strata_of,
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
)


def off(source: Sequence[int], weights: Sequence[int], sizes: Sequence[Sequence[int]]) -> float:
    """How much a prefix is off its share, at most, in rows of the largest size."""
    rows = [itertools.cycle(some) for some in sizes]
    held = np.zeros((len(weights), len(source)))
    for place, one in enumerate(source):
        held[one, place] = next(rows[one])
    held = np.cumsum(held, axis=1)
    shares = np.array(list(map(float, rates_of(weights, sizes))))[:, None] * held.sum(0)
    largest = max(max(some) for some, weight in zip(sizes, weights, strict=True) if weight)
    return float(np.abs(held - shares).max()) / largest


@settings(max_examples=40, deadline=None)
@given(
    strata=st.lists(STRATA, min_size=1, max_size=6),
    weights=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    cell=st.sampled_from([1, 2, 6, 8, 64]),
    rows=st.integers(1, 90),
    start=st.integers(0, 40),
    key=st.integers(0, 9),
)
def test_every_prefix_has_its_shares_to_a_row(
    strata: list[Strata], weights: list[int], cell: int, rows: int, start: int, key: int
) -> None:
    weights = [max(weights[0], 1), *weights[1 : len(strata)]]
    sizes, count = list(map(sizes_of, strata)), 100
    shares = EvenShares(weights, tuple(map(measured, strata)), (0,) * len(strata), cell, start, rows)
    places = np.arange(count)
    plain = EvenShares(weights, tuple(map(measured, strata)), (0,) * len(strata), 1, start, rows)
    expected = plain.dealt(places, key)[0].tolist()
    check_dealt(expected, weights, sizes)
    counts = [[expected[:place].count(n) for place in range(count)] for n in range(len(strata))]
    assert shares.counts(places).tolist() == counts
    source, number = shares.dealt(places, key)
    assert off(source.tolist(), weights, sizes) <= 1 + 1e-8
    # Each source goes on from number to number; places of a cell and an epoch change with each other only.
    for one in range(len(strata)):
        own = np.flatnonzero(source == one)
        assert number[own].tolist() == list(range(len(own)))
        assert shares.places(one, number[own], key).tolist() == own.tolist()
    ends = [n for n in range(1, count) if (n % cell == 0 and cell > 1) or (n + start) % rows == 0]
    for end in ends:
        assert sorted(source[:end].tolist()) == sorted(expected[:end])
    again = pickle.loads(pickle.dumps(shares))
    assert [some.tolist() for some in again.dealt(places[::-1], key)] == [
        source[::-1].tolist(),
        number[::-1].tolist(),
    ]


def test_all_small_weights_and_sizes() -> None:
    """Exhaustively: every three weights up to 3, and rows of one or two sizes."""
    kinds: list[Strata] = [((3, 2),), ((1, 3), (2, 1)), ((2, 4), (1, 1))]
    for weights in itertools.product(range(1, 4), repeat=3):
        for strata in itertools.product(kinds, repeat=3):
            shares = EvenShares(weights, tuple(map(measured, strata)), (0, 0, 0), 8, 0, 1000)
            source = shares.dealt(np.arange(32), 3)[0].tolist()
            assert off(source, weights, list(map(sizes_of, strata))) <= 1 + 1e-8


def test_ranks_see_every_source() -> None:
    """Even shares are regular, and ranks take every W-th place: cells see to it that none is left out."""
    for weights, world in (((1, 1), 2), ((3, 1), 4), ((63, 1), 64), ((7, 1), 8), ((1, 1, 1, 1), 4)):
        one = measured(((5, 1),))
        shares = EvenShares(weights, (one,) * len(weights), (0,) * len(weights), 64, 0, 10**9)
        places = np.arange(world * 400)
        source = shares.dealt(places, 7)[0].reshape(-1, world)
        for number, weight in enumerate(weights):
            expected = 400 * weight / sum(weights)
            assert np.abs((source == number).sum(0) - expected).max() < 5 * max(expected, 1) ** 0.5 + 2


def test_a_source_that_grew_goes_on() -> None:
    """Passes of before have the sizes of before, later ones those of all rows."""
    old, new = ((2, 5), (1, 2)), ((3, 5), (2, 1))
    eras = (Era(0, 0, 3), Era(6, 2, 5))
    grown = Measured(eras, (old, new), 3.0)
    expected = [*sizes_of(old) * 2, *sizes_of(new) * 3]
    assert grown.held(0, 20).tolist() == [0, *itertools.accumulate(expected[:20])]
    for first, stop in itertools.combinations(range(21), 2):
        assert grown.between(first, stop) == sum(expected[first:stop])
    assert Measured((Era(0, 0, 3),), (), 2.5).between(1, 5) == 10
    assert grown.most() == 5


def test_places_far_on_are_those_of_before() -> None:
    kinds = (measured(((90, 8), (7, 3))), measured(((1000, 8), (1, 1))))
    one, other = (EvenShares((1, 5), kinds, (0, 0), 64, 0, 500) for _ in range(2))
    places = np.array([9999, 3, 5000, 5001])
    whole = one.dealt(np.arange(10_000), 1)
    assert [some.tolist() for some in other.dealt(places, 1)] == [some[places].tolist() for some in whole]
    assert (whole[0] != one.dealt(np.arange(10_000), 2)[0]).any()


@settings(max_examples=20, deadline=None)
@given(
    strata=st.lists(STRATA, min_size=1, max_size=4), cell=st.sampled_from([1, 6, 64]), chunk=st.integers(0, 3)
)
def test_what_is_known_before_a_chunk_changes_nothing(strata: list[Strata], cell: int, chunk: int) -> None:
    weights, sources = tuple(range(len(strata), 0, -1)), tuple(map(measured, strata))
    size = chunk_size(len(strata), cell)
    plain = EvenShares(weights, sources, (0,) * len(strata), cell, 0, 500)
    counts = tuple(plain.counts(np.array([chunk * size]))[:, 0].tolist())
    marked = EvenShares(weights, sources, (0,) * len(strata), cell, 0, 500, (chunk, counts))
    places = np.arange(max(0, chunk * size - 70), 4 * size + 70)[::37]
    for shares in (marked, pickle.loads(pickle.dumps(marked))):
        source, number = shares.dealt(places, 5)
        expected = plain.dealt(places, 5)
        assert [source.tolist(), number.tolist()] == [some.tolist() for some in expected]
        assert shares.counts(places).tolist() == plain.counts(places).tolist()
        for one in range(len(strata)):
            own = np.flatnonzero(source == one)
            assert shares.places(one, number[own][::-1], 5).tolist() == places[own][::-1].tolist()
            assert shares.places(one, number[own]).tolist() == plain.places(one, number[own]).tolist()
