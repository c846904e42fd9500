"""Mixtures against simulations: proportions, bijection, ranks, other weights at every place."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from torchyoga.order import mixed
from torchyoga.order.full import Order
from torchyoga.order.mixed import MixOrder, Turns, unpacked
from torchyoga.order.mixture import MOST_WEIGHT, Era, MixStage, Mixture, Proportions, Source, whole_weights


def mixture(
    lengths: list[int], weights: list[int], rows: int, cell: int = 64, most: float | None = None
) -> Mixture:
    sources = tuple(Source(f"s{number}", length, most) for number, length in enumerate(lengths))
    return Mixture(sources, (MixStage.first(tuple(weights)),), rows, cell)


def order(lengths: list[int], weights: list[int], rows: int, cell: int = 64, **more: Any) -> MixOrder:
    return MixOrder(mixture(lengths, weights, rows, cell), **more)


def triples(found: MixOrder, numbers: Any) -> list[tuple[int, int, int]]:
    """Source, pass and row of each number."""
    return list(zip(*(part.tolist() for part in unpacked(found.mixture, np.asarray(numbers))), strict=True))


def check_each_once(lengths: tuple[int, ...], seen: list[tuple[int, int, int]]) -> None:
    """The first so many numbers of each source: whole passes, and the beginning of one, each row once."""
    assert len(set(seen)) == len(seen), "rows came twice within a pass"
    for source, length in enumerate(lengths):
        own = Counter(turn for other, turn, _ in seen if other == source)
        whole, rest = divmod(sum(own.values()), length or 1)
        expected = Counter({turn: length for turn in range(whole)}) + Counter({whole: rest})
        assert own == expected, f"source {source} gave {own}, expected {expected}"


CASES = [
    ([7, 3], [1, 1], 20, 4),
    ([5, 1, 12], [5, 0, 3], 33, 8),
    ([1], [1], 9, 64),
    ([30, 20, 10], [3, 2, 1], 60, 1),
    ([9, 4, 4, 2], [100, 10, 1, 1], 130, 64),
    ([5000, 6], [10, 1], 300, 16),  # beyond what is sorted, too
]


@pytest.mark.parametrize(("lengths", "weights", "rows", "cell"), CASES)
@pytest.mark.parametrize("kind", [True, False, "block"])
def test_each_row_of_each_pass_comes_once(
    lengths: list[int], weights: list[int], rows: int, cell: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed, "_FEW", 0)  # places that follow each other are a run
    files = tuple(np.array([0, length // 2, length]) for length in lengths)
    found = order(lengths, weights, rows, cell, seed=3, shuffle=kind, files=files, window=2)
    once, seen = replace(found, reshuffle=False), []
    for epoch in range(4):
        numbers = found.rows(epoch, np.arange(rows))
        assert found.positions(epoch, numbers).tolist() == list(range(rows))
        some = np.random.default_rng(epoch).integers(0, rows, 2 * rows).reshape(2, -1)
        assert np.array_equal(found.rows(epoch, some), numbers[some])
        seen += triples(found, numbers)
        check_each_once(found.mixture.lengths, seen)
        for source in range(len(lengths)) if kind is False else ():
            own = [row for other, _, row in seen if other == source]
            assert own == [row % lengths[source] for row in range(len(own))]
        is_first = np.array_equal(once.rows(epoch, np.arange(rows)), found.rows(0, np.arange(rows)))
        assert is_first == (kind is not False or epoch == 0)
        # At the ends of cells the shares are those of the proportions; within a cell places are random.
        ends = rows * epoch + np.array([*range(cell, rows, cell), rows])
        counts = np.cumsum(np.arange(len(lengths))[:, None] == [source for source, _, _ in seen], axis=1)
        assert np.array_equal(counts[:, ends - 1], Proportions(weights).counts(ends))


@pytest.mark.parametrize("kind", [True, False, "block"])
def test_long_runs_are_their_places_one_by_one(kind: Any) -> None:
    lengths, rows = [70_000, 5000, 6, 200_000], 150_000
    files = tuple(np.array([0, length // 3, length]) for length in lengths)
    found, fresh = (order(lengths, [9, 5, 1, 5], rows, seed=3, shuffle=kind, files=files) for _ in range(2))
    for epoch in (0, 3):
        numbers = found.rows(epoch, np.arange(rows))
        for step in (-1, 2):
            assert np.array_equal(fresh.rows(epoch, np.arange(rows)[::step]), numbers[::step])
        for start in range(70_001, rows, 999):
            some = np.arange(start, min(start + 999, rows))
            assert np.array_equal(fresh.rows(epoch, some), numbers[some])
            assert np.array_equal(fresh.positions(epoch, numbers[some]), some)


def test_a_pass_is_computed_as_a_whole_once_many_of_its_rows_were_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked, rows_of = order([10**5] * 4, [1] * 4, 10**6, seed=1), [0], Order.rows

    def rows(self: Order, epoch: int, positions: Any) -> Any:
        asked.append(len(positions))
        return rows_of(self, epoch, positions)

    monkeypatch.setattr(Order, "rows", rows)
    found.rows(0, np.arange(256))
    assert max(asked) < 256
    for start in range(256, 10**5, 4096):
        found.rows(0, np.arange(start, start + 4096))
    assert asked.count(10**5) == 4
    assert sum(asked) < 5 * 10**5


def test_of_many_sources_passes_are_not_kept() -> None:
    found = order([10**5] * 64, [1] * 64, 10**6, seed=1)
    tracemalloc.start()
    for start in range(0, 10**6, 2**17):
        found.rows(0, np.arange(start, start + 2**17))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2**20


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_no_rank_is_short_of_a_source(world: int) -> None:
    weights, rows = [3, 1], 64_000
    found = order([10**6, 10**6], weights, rows, seed=2)
    numbers = found.rows(0, np.arange(rows))
    source = np.array([one for one, _, _ in triples(found, numbers)])
    for rank in range(world):
        share = float((source[rank::world] == 1).mean())
        assert abs(share - 0.25) < 0.02
    # The same without permuted cells: regular shares leave some ranks without a source.
    plain = order([10**6, 10**6], weights, rows, cell=1, seed=2)
    source = np.array([one for one, _, _ in triples(plain, plain.rows(0, np.arange(rows)))])
    alone = [float((source[rank::4] == 1).mean()) for rank in range(4)]
    assert sorted(alone) == [0, 0, 0, 1]


def test_far_positions_there_and_back() -> None:
    found = order([10**12, 10**11, 17], [7, 2, 1], 10**12, seed=4)
    for start in (0, 10**6 - 31, 10**12 - 200):
        places = np.arange(start, start + 200)
        for epoch in (0, 3):
            numbers = found.rows(epoch, places)
            assert found.positions(epoch, numbers).tolist() == places.tolist()
    # Passes over a tiny source beside a huge one: their numbers go round after 2**61 rows in all.
    tiny = order([1, 10**12], [1, 1], 10**12, seed=4)
    numbers = tiny.rows(2, np.arange(10**11, 10**11 + 100))
    assert tiny.positions(2, numbers).tolist() == list(range(10**11, 10**11 + 100))
    # The third pass over a huge source has the numbers of the first one.
    huge = order([3, 2**59], [1, 1000], 2**58, seed=4)
    numbers = huge.rows(6, np.arange(100))
    assert {turn for source, turn, _ in triples(huge, numbers) if source == 1} == {0}
    assert huge.positions(6, numbers).tolist() == list(range(100))


def test_numbers_of_other_epochs_and_of_none() -> None:
    found = order([50, 50], [1, 1], 40, seed=1)
    later = found.rows(1, np.arange(40))
    with pytest.raises(ValueError, match="does not come in epoch 0 of this mixture"):
        found.positions(0, later[:1])
    with pytest.raises(ValueError, match="row numbers of this mixture are in"):
        found.positions(0, [3])
    with pytest.raises(ValueError, match="positions must be at least 0, found -1"):
        found.rows(0, [-1])
    assert found.rows(0, [40, 41]).tolist() == found.rows(0, [0, 1]).tolist()
    assert found.positions(0, []).tolist() == []


def test_golden_numbers() -> None:
    """States depend on them."""
    found = order([50, 6000, 3], [5, 3, 2], 1000, seed=7)
    assert triples(found, found.rows(1, np.arange(10))) == GOLDEN["rows"]
    assert found.consumed(77) == GOLDEN["consumed"]


GOLDEN: dict[str, Any] = {
    "rows": [
        (0, 10, 25),
        (0, 10, 17),
        (1, 0, 5844),
        (2, 66, 1),
        (0, 10, 20),
        (2, 67, 1),
        (1, 0, 5799),
        (2, 67, 2),
        (0, 10, 31),
        (0, 10, 46),
    ],
    "consumed": (38, 24, 15),
}


@pytest.mark.parametrize("most", [2.0, 1.5])
def test_more_passes_than_allowed_are_an_error_before_they_begin(most: float) -> None:
    found = MixOrder(mixture([10, 100], [1, 1], 20, most=most), seed=1)
    found.rows(0, np.arange(20))
    with pytest.raises(
        ValueError, match=r"by the end of epoch 2 the mixture reads the 10 rows of 's0' 3\.00"
    ):
        found.rows(2, [0])


def test_epochs_beyond_what_is_counted_are_an_error() -> None:
    found = order([50, 50], [1, 1], 10**6, seed=1)
    found.rows(10**12, [0])
    with pytest.raises(ValueError, match="epoch 1000000000000000 of 1000000 rows lies beyond"):
        found.rows(10**15, [0])


def test_it_pickles_small_and_equal() -> None:
    found = order([50, 6000, 3], [5, 3, 2], 1000, seed=7)
    data = pickle.dumps(found)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data).rows(2, np.arange(100)), found.rows(2, np.arange(100)))


# -- other weights from a place on


def restaged(found: MixOrder, place: int, weights: tuple[int, ...]) -> MixOrder:
    stage = MixStage(place, weights, found.consumed(place))
    return replace(found, mixture=replace(found.mixture, stages=(*found.mixture.stages, stage)))


@pytest.mark.quick("8")
@pytest.mark.parametrize("cell", [1, 8, 64])
def test_other_weights_at_every_place(cell: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "_FEW", 0)
    lengths, rows = [11, 7, 4], 50
    first = order(lengths, [5, 2, 1], rows, cell, seed=9)
    before = np.concatenate([first.rows(epoch, np.arange(rows)) for epoch in range(2)])
    for place in range(2 * rows + 1):
        found = restaged(first, place, (0, 1, 3))
        numbers = [found.rows(epoch, np.arange(rows)) for epoch in range(4)]
        for epoch in range(4):
            assert found.positions(epoch, numbers[epoch]).tolist() == list(range(rows)), (place, epoch)
        whole = np.concatenate(numbers)
        assert np.array_equal(whole[:place], before[:place])
        seen = triples(found, whole)
        check_each_once(found.mixture.lengths, seen)
        later = [source for source, _, _ in seen[place:]]
        assert 0 not in later
        assert abs(later.count(2) - 0.75 * len(later)) <= 1.24 + cell / 2
        # What comes later follows from the last weights alone.
        few = replace(found, mixture=found.mixture.since(place))
        assert len(few.mixture.stages) <= 2  # the last of before, for states at this very place
        epoch, position = divmod(place, rows)
        again = few.rows(epoch, np.arange(position, rows))
        assert np.array_equal(again, numbers[epoch][position:])
        assert few.positions(epoch, again).tolist() == list(range(position, rows))
        assert np.array_equal(few.rows(3, np.arange(rows)), numbers[3])
        few.check_place(epoch, position)
        if place:
            with pytest.raises(ValueError, match=f"lies before place {place}, from which on the weights are"):
                few.rows(*divmod(place - 1, rows))
            with pytest.raises(ValueError, match="does not come in epoch"):
                few.positions((place - 1) // rows, whole[place - 1 : place])
        # Again, a little later: the middle has its own weights.
        if place % 7 == 0:
            twice = restaged(found, place + 13, (1, 1, 1))
            whole = np.concatenate([twice.rows(epoch, np.arange(rows)) for epoch in range(4)])
            check_each_once(found.mixture.lengths, triples(twice, whole))
            for epoch in range(4):
                again = twice.positions(epoch, whole[epoch * rows : (epoch + 1) * rows])
                assert again.tolist() == list(range(rows))


def test_stages_as_states_list_them() -> None:
    for stage in (
        MixStage(80, (0, 1, 9), (39, 24, 17)),
        MixStage.first((5, 3, 2)),
        MixStage.first((1, 1, 1)),
        MixStage.first((4,)),
    ):
        assert MixStage.of_pin(stage.pin, 3) == stage
    damaged: list[Any] = [
        (),
        (80, (1, 2), (40, 40, 0)),
        (80, (1, 2, 3, 4), (20, 20, 20, 20)),
        (80, ("a", "b", "c"), (40, 40, 0)),
        (80, (1, 2, 3)),
        (80, (1, 2, -3), (40, 40, 0)),
        (80, (1, 2, 3), (0, 0, 1)),
        (80, (2**70, 1, 1), (40, 40, 0)),
        (0, 1, 2**60),
        (0, (0, 0, 0)),
    ]
    for pin in damaged:
        with pytest.raises((ValueError, IndexError)):
            MixStage.of_pin(pin, 3)


# -- shares of every prefix, against fractions


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


def test_rows_that_a_pass_does_not_have_have_no_number() -> None:
    turns = Turns([Era(0, 0, 3)], False, 1, None, "mix", 1)
    assert turns.keys(np.array([0, 0, 1]), np.array([2, 3, -1])).tolist() == [2, -1, -1]
