"""Passes with an even share of each size: against an oracle that deals row by row."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from torchyoga.order.passes import EvenPasses, held_by_each, rows_of_each, sizes_of_each, strata_of


def dealt(sizes: list[int]) -> list[int]:
    """The size of the row at each place: half of the sizes are dealt to the left, to the nearest row."""
    if len(sizes) == 1:
        return [0] * sizes[0]
    middle = len(sizes) // 2
    left, total = sum(sizes[:middle]), sum(sizes)
    sides = iter(dealt(sizes[:middle])), iter(middle + n for n in dealt(sizes[middle:]))
    counts = [int(Fraction(k * left, total) + Fraction(total // 2, total)) for k in range(total + 1)]
    return [next(sides[one == other]) for one, other in itertools.pairwise(counts)]


@settings(max_examples=examples(150))
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), passes=st.integers(0, 5), keyed=st.booleans()
)
def test_rows_come_once_in_a_pass_and_sizes_evenly(sizes: list[int], passes: int, keyed: bool) -> None:
    total = sum(sizes)
    even = EvenPasses(tuple((size, 99 - n) for n, size in enumerate(sizes)), ("here", 7) if keyed else None)
    places, which = np.arange(total), np.full(total, passes)
    rows = even.rows(which, places)
    of = np.repeat(np.arange(len(sizes)), sizes)
    assert sorted(rows.tolist()) == list(range(total))
    expected = dealt(sizes)
    assert of[rows].tolist() == expected
    assert even.positions(which, rows).tolist() == places.tolist()
    assert sizes_of_each([even], np.array([0, total]), places).tolist() == [99 - n for n in expected]
    for place in range(total + 1):
        assert held_by_each([even], np.array([place])).tolist() == [sum(99 - n for n in expected[:place])]
    # Of any sizes that fall or rise, a prefix holds its share, to half of the largest for each depth.
    costs = np.sort(np.random.default_rng(total).integers(1, 100, len(sizes)))
    held = np.cumsum(costs[of[rows]])
    depth = len(sizes).bit_length()
    off = np.abs(held - held[-1] * (places + 1) / total).max()
    assert off <= depth * (costs[-1] - costs[0]) / 2 + 1e-9


@settings(max_examples=examples(60))
@given(sources=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=6))
def test_several_sources_are_looked_up_as_each_alone(sources: list[list[int]]) -> None:
    rng = np.random.default_rng(len(sources))
    for shuffle in (True, False):
        some = [
            EvenPasses(tuple((n, 9 - k) for k, n in enumerate(sizes)), ("here", number) if shuffle else None)
            for number, sizes in enumerate(sources)
        ]
        asked = [(rng.integers(0, 4, 5), rng.integers(0, sum(sizes), 5)) for sizes in sources]
        passes, places = (np.concatenate(each) for each in zip(*asked, strict=True))
        bounds, ends = np.arange(len(some) + 1) * 5, np.array([sum(sizes) for sizes in sources])
        alone = [one.rows(*each) for one, each in zip(some, asked, strict=True)]
        assert rows_of_each(some, bounds, passes, places).tolist() == np.concatenate(alone).tolist()
        held = [sizes_of_each([one], bounds[:2], place) for one, (_, place) in zip(some, asked, strict=True)]
        assert sizes_of_each(some, bounds, places).tolist() == np.concatenate(held).tolist()
        before = [int(held_by_each([one], ends[n : n + 1] // 2)[0]) for n, one in enumerate(some)]
        assert held_by_each(some, ends // 2).tolist() == before


def test_passes_differ_and_go_together() -> None:
    even = EvenPasses(((40, 9), (8, 5), (2, 1)), ("here", 7))
    both = even.rows(np.repeat([3, 4], 50), np.tile(np.arange(50), 2)).reshape(2, 50)
    assert (both[0] != both[1]).any()
    assert both[1].tolist() == even.rows(np.full(50, 4), np.arange(50)).tolist()


def test_rows_that_alternate_in_size_have_no_strata() -> None:
    assert strata_of([2, 3, 1], [9, 9, 4]) == ((5, 9), (1, 4))
    assert strata_of([2, 3, 1], [1, 4, 9]) == ((2, 1), (3, 4), (1, 9))
    assert strata_of([2, 3, 1], [9, 4, 9]) == strata_of([], []) == ()
    assert strata_of([2**30] * 2, [1, 2]) == ((2**30, 1), (2**30, 2))
    assert strata_of([2**30] * 3, [1, 2, 3]) == ()
    assert strata_of([1] * 5000, list(range(5000))) == ()
