"""Batches of equal budget: each row once an epoch, within the budget, of the same shapes in every epoch."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Own
from quick import examples
from records import in_every_format

import torchyoga as yoga
from torchyoga.reading.dataref import DataRef
from torchyoga.testing import check_view
from torchyoga.views.token_batches import BatchMembers, BatchPlan, planned

LENGTHS = [int(n) for n in np.random.default_rng(5).integers(0, 12, 90)]
ROWS = [{"ids": np.full(length, row, np.int32), "k": row} for row, length in enumerate(LENGTHS)]
SCHEMA = yoga.Schema.of({"ids": np.zeros(1, np.int32), "k": 1}, ragged=["ids"])


own = Own(ROWS, SCHEMA, "own")
own.is_thread_safe = True
ref = in_every_format(own, 9)


def members(plan: BatchPlan, epoch: int) -> list[list[int]]:
    counts, rows = BatchMembers(plan, 3, epoch).rows(np.arange(len(plan)))
    left = iter(rows.tolist())
    return [list(itertools.islice(left, count)) for count in counts.tolist()]


def greedy(lengths: list[int], budget: int, most: int) -> list[list[int]]:
    """Sorted lengths, cut by a loop: a row joins a batch if the first one's length allows it."""
    found: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        if found and len(found[-1]) < most and (len(found[-1]) + 1) * max(found[-1][0], 1) <= budget:
            found[-1].append(length)
        else:
            found.append([length])
    return found


@settings(max_examples=examples(200))
@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    budget=st.integers(1, 40),
    most=st.integers(1, 50),
    multiple=st.integers(1, 5),
    pool=st.none() | st.integers(1, 50),
    epoch=st.integers(0, 9),
)
def test_plans_are_those_of_loops(
    lengths: list[int], budget: int, most: int, multiple: int, pool: int | None, epoch: int
) -> None:
    plan = planned(np.array(lengths, np.int64), budget, most, multiple, pool, 11)
    rounded = [-(-length // multiple) * multiple for length in lengths]
    kept = [row for row, length in enumerate(rounded) if length <= budget]
    found = members(plan, epoch)
    assert sorted(row for batch in found for row in batch) == kept
    shapes = [[rounded[row] for row in batch] for batch in found]
    assert shapes == [[rounded[row] for row in batch] for batch in members(plan, 0)]
    for shape in shapes:
        assert shape == sorted(shape, reverse=True)
        assert len(shape) * max(shape[0], 1) <= budget
        assert len(shape) <= most
    if pool is None or pool >= len(kept):
        assert shapes == greedy([rounded[row] for row in kept], budget, most)
    else:
        ends = set(itertools.accumulate(map(len, shapes)))
        assert {min(end, len(kept)) for end in range(pool, len(kept) + pool, pool)} <= ends
        for start in range(0, len(kept), pool):  # within each pool as without one
            some = [
                shape
                for shape, end in zip(shapes, itertools.accumulate(map(len, shapes)), strict=True)
                if start < end <= start + pool
            ]
            assert some == greedy([length for shape in some for length in shape], budget, most)
    report = plan.report
    area = sum(len(shape) * shape[0] for shape in shapes)
    total = sum(lengths[row] for row in kept)
    assert report[:4] == (len(found), len(kept), max(map(len, shapes), default=0), total)
    assert report.padding == pytest.approx(1 - total / area if area else 0)
    assert report.dropped == len(lengths) - len(kept)


def test_rows_of_one_length_change_places_each_epoch() -> None:
    plan = planned(np.repeat([4, 2], [60, 40]), 16, 8, 1, None, 0)
    epochs = [members(plan, epoch) for epoch in range(3)]
    assert len({str(found) for found in epochs}) == 3
    assert epochs[1] == members(plan, 1)
    together = Counter(
        frozenset(pair)
        for epoch in range(300)
        for batch in members(plan, epoch)[:15]
        for pair in itertools.combinations(batch, 2)
    )
    # 300 epochs x 15 batches x 6 pairs, over the 1,770 pairs of 60 rows: 15.3 each.
    counts = np.array([together[frozenset(pair)] for pair in itertools.combinations(range(60), 2)])
    assert abs(counts.mean() - 27_000 / 1770) < 1e-9
    assert 0.8 < counts.var() / counts.mean() < 1.25


def test_pools_are_drawn_from_all_rows() -> None:
    lengths = np.arange(1000)
    plan = planned(lengths, 2**20, 1000, 1, 100, 1)
    found = members(plan, 0)
    assert len(found) == 10
    assert all(max(batch) - min(batch) > 800 for batch in found)
    assert found != members(planned(lengths, 2**20, 1000, 1, 100, 2), 0)


@pytest.mark.parametrize("options", [{}, {"pool": 20, "max_rows": 5, "multiple_of": 4}])
def test_batches_are_padded_rows(ref: DataRef, options: dict[str, Any]) -> None:
    batches = ref.token_batches("ids", 36, padding=-1, **options)
    multiple = options.get("multiple_of", 1)
    seen: list[int] = []
    for batch in batches.in_epoch(2):
        rows = batch["k"].tolist()
        width = -(-max(LENGTHS[row] for row in rows) // multiple) * multiple
        expected = torch.full((len(rows), width), -1, dtype=torch.int32)
        for place, row in enumerate(rows):
            expected[place, : LENGTHS[row]] = row
        assert torch.equal(batch["ids"].values, expected)
        assert batch["ids"].lengths.tolist() == [LENGTHS[row] for row in rows]
        assert len(rows) * width <= 36
        seen += rows
    assert sorted(seen) == list(range(len(ROWS)))
    later = [row for batch in batches.in_epoch(5) for row in batch["k"].tolist()]
    assert sorted(later) == sorted(seen)
    assert later != seen
    assert len(batches.in_epoch(5)) == len(batches)
    assert repr(batches).startswith("<batches of ")
    assert f": {len(batches)} rows" in repr(batches)


@pytest.mark.quick("own-options0", "lmdb-options1")
@pytest.mark.parametrize("options", [{}, {"pool": 30, "collate": yoga.jagged}])
def test_laws(ref: DataRef, options: dict[str, Any]) -> None:
    check_view(lambda base: base.token_batches("ids", 36, **options), ref)


@pytest.mark.rest
def test_laws_with_workers_and_random_rows(ref: DataRef) -> None:
    check_view(lambda base: base.token_batches("ids", 36), ref, workers=2)
    check_view(lambda base: base.map(noisy, schema=SCHEMA).token_batches(LENGTHS, 36), ref[:])


def noisy(row: Any) -> Any:
    return {"ids": row["ids"] + np.int32(np.random.randint(1000)), "k": row["k"]}


def test_over_other_views_and_with_fewer_columns(ref: DataRef) -> None:
    some = yoga.concat([ref[10:40], ref.where("k", lambda k: k >= 70)])
    batches = some.token_batches("ids", 30)
    rows = [row for batch in batches for row in batch["k"].tolist()]
    assert sorted(rows) == [*range(10, 40), *range(70, 90)]
    assert list(batches.columns(["ids"])[0]) == ["ids"]
    by_number = some.columns(["k"]).token_batches(np.array([LENGTHS[row] for row in sorted(rows)]), 30)
    assert len(by_number) == len(batches)
    assert sorted(row for batch in by_number[::2] for row in batch["k"].tolist()) != sorted(rows)
    jagged = ref.token_batches("ids", 30, collate=yoga.jagged)[3]
    assert jagged["ids"].offsets[-1] == len(jagged["ids"].values)

    class Steps(list[Any]):  # empty, so it is false
        def __call__(self, rows: Any) -> int:
            return len(rows)

    assert ref.token_batches("ids", 30, collate=Steps())[3] == len(jagged["k"])


def test_rows_longer_than_the_budget(ref: DataRef) -> None:
    long = [row for row, length in enumerate(LENGTHS) if length > 8]
    with pytest.raises(
        ValueError, match=f"^{len(long)} of 90 rows are longer than budget=8, the longest has 11"
    ):
        ref.token_batches("ids", 8)
    with pytest.warns(UserWarning, match="are left out, as long=.drop. asks"):
        batches = ref.token_batches("ids", 8, long="drop")
    assert batches.report().dropped == len(long)
    rows = sorted(row for batch in batches for row in batch["k"].tolist())
    assert rows == [row for row in range(90) if row not in long]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"budget": 0}, ValueError, "budget must be in 1..2147483647, found 0"),
        ({"budget": 2**31}, ValueError, "budget must be in 1..2147483647"),
        ({"budget": 2.5}, ValueError, "budget must be an int"),
        ({"pool": 0}, ValueError, "pool must be"),
        ({"max_rows": 0}, ValueError, "max_rows must be"),
        ({"multiple_of": 0}, ValueError, "multiple_of must be"),
        ({"long": "cut"}, ValueError, 'long must be "error" or "drop", found .cut.'),
        ({"collate": 3}, TypeError, "collate is a function"),
        ({"collate": yoga.padded(), "padding": 1}, ValueError, "either padding or collate"),
        ({"collate": yoga.padded(), "multiple_of": 2}, ValueError, "for the padding that is made here"),
        ({"column_or_lengths": "id"}, KeyError, "there is no column 'id'"),
        ({"column_or_lengths": "k"}, TypeError, "'k' is not ragged, .* an array of 90 lengths"),
        ({"column_or_lengths": [1.5] * 90}, TypeError, "whole numbers"),
        ({"column_or_lengths": [1] * 89}, ValueError, "one for each of the 90 rows"),
        ({"column_or_lengths": [-1] * 90}, ValueError, "at least 0"),
        ({"seed": None}, ValueError, "seed must be an int"),
    ],
)
def test_what_cannot_be_is_said(ref: DataRef, arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ref.token_batches(**{"column_or_lengths": "ids", "budget": 64, **arguments})


def test_no_rows_make_no_batches_and_empty_ones_as_many_as_fit() -> None:
    assert Own(ROWS, SCHEMA)[:0].token_batches("ids", 8).report() == (0, 0, 0, 0, 0.0, 0)
    empty_rows = yoga.from_arrays({"x": np.arange(100)}).token_batches(np.zeros(100, np.int64), 16)
    assert empty_rows.report()[:3] == (7, 100, 16)
    assert empty_rows.report().padding == 0
