"""Plans of packs: as many as best fit decreasing makes row by row; each document once in every epoch."""

from __future__ import annotations

import bisect
import pickle
import tracemalloc
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Made as Owned
from quick import examples

import torchyoga as yoga
from torchyoga.rows.block import Data
from torchyoga.views.packs import layout as made_file
from torchyoga.views.packs import plan as plan_file
from torchyoga.views.packs.layout import Made, write_labels, write_positions
from torchyoga.views.packs.packed import Request, packing_of
from torchyoga.views.packs.plan import Members, PackPlan, fitted, planned


def best_fit_decreasing(items: list[tuple[int, ...]], budgets: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What is left of each pack, if rows are put into packs one by one."""
    rooms: list[tuple[int, ...]] = []
    for cost in sorted(items, reverse=True):
        # Those before have too little left of the first budget.
        some = range(bisect.bisect_left(rooms, cost), len(rooms))
        fitting = (n for n in some if all(left >= each for left, each in zip(rooms[n], cost, strict=True)))
        number = next(fitting, None)
        room = budgets if number is None else rooms.pop(number)
        bisect.insort(rooms, tuple(left - each for left, each in zip(room, cost, strict=True)))
    return rooms


def rooms_of(costs: np.ndarray, counts: np.ndarray, budgets: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What is left of each pack, of those that `fitted` makes; all rows are in them."""
    groups = fitted(costs, counts, np.array(budgets))
    placed = np.zeros(len(counts), np.int64)
    rooms = []
    for group, packs in enumerate(groups.counts.tolist()):
        room = np.array(budgets)
        for part in range(*groups.bounds[group : group + 2].tolist()):
            number, each = int(groups.classes[part]), int(groups.each[part])
            placed[number] += packs * each
            room = room - each * costs[number]
        rooms += [tuple(room.tolist())] * packs
    assert placed.tolist() == counts.tolist()
    return sorted(rooms)


@settings(max_examples=examples(500))
@given(st.data())
def test_a_histogram_gives_the_packs_of_best_fit_decreasing(data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, 40))
    counts = data.draw(st.dictionaries(st.integers(1, budget), st.integers(1, 30), min_size=1, max_size=12))
    costs = np.array([[cost] for cost in counts])
    found = rooms_of(costs, np.array([*counts.values()]), (budget,))
    items = [(cost,) for cost, count in counts.items() for _ in range(count)]
    assert found == best_fit_decreasing(items, (budget,))


@settings(max_examples=examples(300))
@given(st.data())
def test_several_budgets_and_a_number_of_rows_are_kept(data: st.DataObject) -> None:
    budgets = tuple(data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=3)))
    cost = st.tuples(*[st.integers(0, budget) for budget in budgets]).filter(any)
    counts = data.draw(st.dictionaries(cost, st.integers(1, 12), min_size=1, max_size=9))
    found = rooms_of(np.array([*counts]), np.array([*counts.values()]), budgets)
    assert min(map(min, found)) >= 0
    items = [one for one, count in counts.items() for _ in range(count)]
    if len({room[0] for room in found}) < 10:  # else some that would fit may not be looked at
        assert found == best_fit_decreasing(items, budgets)


def test_hardly_any_padding_for_a_million_documents_of_usual_lengths() -> None:
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(6, 1, 10**6)), 1, 4096).astype(np.int64)
    plan = planned(np.arange(10**6), lengths[:, None], None, 10**6, np.array([4096]), False)
    assert 1 - lengths.sum() / (len(plan) * 4096) < 0.0001
    documents = Members(plan, 0, 3).documents(np.arange(len(plan)))
    assert np.array_equal(np.bincount(documents.rows, minlength=10**6), np.ones(10**6))
    assert np.array_equal(lengths[documents.rows], documents.costs)
    assert np.add.reduceat(documents.costs, documents.bounds[:-1]).max() <= 4096


def plan_of(lengths: list[int], budget: int, balance: bool = False) -> PackPlan:
    costs = np.array(lengths)[:, None]
    return planned(np.arange(len(lengths)), costs, None, len(lengths), np.array([budget]), balance)


@settings(max_examples=examples(150))
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=80),
    budget=st.integers(20, 60),
    seed=st.integers(-3, 3),
    epoch=st.integers(0, 5),
    balance=st.booleans(),
)
def test_each_document_is_in_one_pack_in_every_epoch(
    lengths: list[int], budget: int, seed: int, epoch: int, balance: bool
) -> None:
    plan = plan_of(lengths, budget, balance)
    whole = Members(plan, seed, epoch)
    documents = whole.documents(np.arange(len(plan)))
    assert sorted(documents.rows.tolist()) == list(range(len(lengths)))
    sums = np.add.reduceat(documents.costs, documents.bounds[:-1])
    assert sums.max() <= budget
    assert [lengths[row] for row in documents.rows.tolist()] == documents.costs.tolist()
    fresh = Members(plan, seed, epoch)
    for pack in range(len(plan)):  # one by one, and by another way at first
        one = fresh.documents(np.array([pack]))
        start, stop = documents.bounds[pack : pack + 2].tolist()
        assert one.rows.tolist() == documents.rows[start:stop].tolist()
    if balance:
        squares = np.add.reduceat(documents.costs**2, documents.bounds[:-1])
        assert (np.diff(squares) <= 0).all()


def test_other_epochs_and_seeds_fill_the_same_packs_with_other_rows() -> None:
    plan = plan_of([5] * 40 + [3] * 40 + [8] * 10, 16)
    numbers = np.arange(len(plan))
    first = Members(plan, 0, 0).documents(numbers)
    for seed, epoch in ((0, 1), (1, 0), (0, 2)):
        other = Members(plan, seed, epoch).documents(numbers)
        assert other.bounds.tolist() == first.bounds.tolist()
        assert other.costs.tolist() == first.costs.tolist()
        assert (other.rows != first.rows).mean() > 0.8


def test_documents_are_listed_once_many_were_asked() -> None:
    plan = plan_of(np.random.default_rng(0).integers(1, 200, 5000).tolist(), 400)
    whole = Members(plan, 1, 2).documents(np.arange(len(plan)))
    for most, is_listed in ((2**20, True), (4999, False)):
        members = Members(plan, 1, 2)
        with patch.object(plan_file, "_MOST_LISTED", most):
            for start in range(0, len(plan), 20):
                found = members.documents(np.arange(start, min(start + 20, len(plan))))
                low, high = whole.bounds[[start, min(start + 20, len(plan))]].tolist()
                assert found.rows.tolist() == whole.rows[low:high].tolist()
                if not start:
                    assert "_listed" not in vars(members)  # a first batch comes soon
        assert ("_listed" in vars(members)) == is_listed


def test_pieces_begin_where_they_are_cut() -> None:
    rows, begins = np.array([2, 0, 0, 0, 1]), np.array([0, 0, 4, 8, 0])
    costs = np.array([3, 4, 4, 1, 4])
    plan = planned(rows, costs[:, None], begins, 3, np.array([4]), False)
    for epoch in range(5):
        members = Members(plan, 1, epoch)
        found = members.documents(np.arange(len(plan)))
        pieces = zip(found.rows.tolist(), found.begins.tolist(), found.costs.tolist(), strict=True)
        assert sorted(pieces) == [(0, 0, 4), (0, 4, 4), (0, 8, 1), (1, 0, 4), (2, 0, 3)]
        alone = [members.documents(np.array([pack])).begins for pack in range(len(plan))]
        assert np.array_equal(np.concatenate(alone), found.begins)


def test_a_pickle_is_the_same_plan() -> None:
    plan = plan_of([3, 5, 3, 5, 3, 8, 1], 8)
    assert pickle.loads(pickle.dumps(plan)).pin == plan.pin
    assert plan_of([3, 5, 3, 5, 3, 8, 2], 8).pin != plan.pin


@settings(max_examples=examples(150))
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    first=st.sampled_from([0, 2]),
    long=st.sampled_from([1, 8, 1000]),
    data=st.data(),
)
def test_positions_and_labels_of_packs_and_of_some_of_them(
    lengths: list[int], first: int, long: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=5)))
    bounds = np.array([0, *cuts, len(lengths)])
    ends = np.cumsum([0, *lengths])
    tokens = Data(np.arange(ends[-1]) + 1000, ends[bounds])
    positions = np.concatenate([np.arange(length) + first for length in lengths])
    labels = tokens.values.copy()
    some = np.array(lengths) > 0  # rows of no tokens have no labels
    labels[ends[:-1][some]] = -100
    shifted = np.append(tokens.values, 0)[1:]
    shifted[ends[1:][some] - 1] = -100
    start = data.draw(st.integers(0, len(bounds) - 2))
    stop = data.draw(st.integers(start, len(bounds) - 1))
    with patch.object(made_file, "_LONG", long):
        for made, expected in (
            (Made(np.array(lengths), bounds, partial(write_positions, first)), positions),
            (Made(np.array(lengths), bounds, partial(write_labels, -100, False), tokens), labels),
            (Made(np.array(lengths), bounds, partial(write_labels, -100, True), tokens), shifted),
        ):
            for part, a, b in ((made, 0, len(bounds) - 1), (made.slice(start, stop), start, stop)):
                out = np.empty(part.nbytes.sum(), np.uint8)
                part.copy(out)
                wanted = expected[ends[bounds[a]] : ends[bounds[b]]]
                assert out.view(np.int64).tolist() == wanted.tolist()
                assert b"".join(part.texts()) == wanted.tobytes()
                wide = np.zeros((b - a, 8 * ends[-1] + 8), np.uint8)
                part.copy(wide.reshape(-1), range(0, wide.size, max(1, wide.shape[1])))
                for row, nbytes, text in zip(wide, part.nbytes.tolist(), part.texts(), strict=True):
                    assert row[:nbytes].tobytes() == text


class Lengths(Owned):
    """Documents that are nothing but long: lengths are enough."""

    def __init__(self, of: Any, schema: Any = None) -> None:
        super().__init__(len(of), schema=schema or yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]))
        self.of = of

    take: Any = None

    def lengths(self, rows: Any) -> Any:
        return self.of[rows].astype(np.int64)

    def _projected(self, of: Any) -> yoga.DataRef:
        return Lengths(self.of, of.schema)


@pytest.mark.slow("cut", "split", "drop")
@pytest.mark.parametrize("long", ["error", "cut", "split", "drop"])
def test_packing_takes_no_more_than_16_bytes_a_document(long: Any) -> None:
    """What is held at once, of all arrays; lengths are read some at a time."""
    count, budget = 4_000_000, 512
    lengths = np.random.default_rng(0).integers(0, 520 if long != "error" else 513, count, np.uint16)
    ref = Lengths(lengths)
    request = Request.of(ref.schema, "ids", budget, None, long, None, False)
    packing_of(Lengths(lengths[:1000] // 2), request)
    tracemalloc.start()
    packing = packing_of(ref, request)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    plan, chunk = packing.plan, 60 * 2**20
    assert most <= 16 * count + chunk
    assert kept <= 4.1 * len(plan.rows) + 16 * len(plan.pieces) + 2**20
    documents = packing.report.documents
    assert documents == len(plan.rows)
    if long != "split":
        costs = np.minimum(lengths, budget) if long == "cut" else np.where(lengths > budget, 0, lengths)
        expected = np.argsort(costs, kind="stable")[count - documents :]
        assert np.array_equal(plan.rows, expected)
        assert np.array_equal(np.repeat(plan.costs, plan.sizes), costs[expected])
    pickled = pickle.dumps(plan)
    assert len(pickled) <= 4.1 * documents + 16 * len(plan.pieces) + 2**20
    assert pickle.loads(pickled).pin == plan.pin


@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    begun=st.sets(st.integers(0, 39)),
    wide=st.booleans(),
)
def test_documents_are_sorted_alike_by_counting_and_by_costs(
    costs: list[int], begun: set[int], wide: bool
) -> None:
    """A cost that is too large to be counted to changes the way of all."""
    given_costs = np.array([*costs, 2**24 if wide else 10])
    begins = np.array([number + 1 if number in begun else 0 for number in range(len(given_costs))])
    rows = np.arange(len(given_costs))[::-1].copy()
    plan = planned(rows, given_costs[:, None], begins, 50, np.array([2**25]), False)
    order = sorted(range(len(rows)), key=lambda number: (given_costs[number], number))
    assert plan.rows.tolist() == [len(rows) - 1 - number for number in order]
    assert plan.pieces.tolist() == [place for place, number in enumerate(order) if begins[number]]
    assert plan.begins.tolist() == [begins[number] for number in order if begins[number]]


def test_a_billion_documents_of_ten_trillion_tokens() -> None:
    """Of a plan whose table is memory that is never written: packs are found without looking at all of it."""
    sizes, costs, budget = np.array([3, 10**9 - 10, 7]), np.array([9_000, 10_000, 20_001]), 40_000
    table = np.zeros(10**9, np.uint32)
    table[-7:] = np.arange(10**9 - 7, 10**9)
    nothing = np.zeros(0, np.int64)
    groups = fitted(costs[:, None], sizes, np.array([budget]))
    plan = PackPlan(table, sizes, costs, groups, nothing, nothing)
    tokens = int((sizes * costs).sum())
    assert tokens > 10**13 - 10**6
    assert -(-tokens // budget) <= len(plan) <= tokens // budget + 8
    tracemalloc.start()
    members = Members(plan, seed=7, epoch=2)
    numbers = np.concatenate(
        [np.arange(500), len(plan) // 2 + np.arange(500), len(plan) - 1 - np.arange(500)]
    )
    found = members.documents(numbers)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    held = np.add.reduceat(found.costs, found.bounds[:-1])
    assert held.max() <= budget
    assert (np.sort(found.rows[found.costs == 20_001]) >= 10**9 - 7).all()
    assert plan.slots.packs[-1] == len(plan)
    # Each slot of the largest class has a document of its own, from one end of the table to the other.
    start, stop = plan.slots.starts[1:3].tolist()
    slots = np.linspace(start, stop - 1, 20_000).astype(np.int64)
    within = members._permutations.within
    classes = np.ones(len(slots), np.int64)
    documents = within(slots, plan.slots.starts, classes, forward=True)
    assert start <= documents.min() < start + 10**6
    assert stop - 10**6 < documents.max() < stop
    assert within(documents, plan.slots.starts, classes, forward=False).tolist() == slots.tolist()
