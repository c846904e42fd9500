"""Curricula and buckets: which rows may come where, each as often as promised, and back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from torchyoga.order.bucketed import BucketOrder
from torchyoga.order.by_file import BlockOrder
from torchyoga.order.contract import ARRANGED
from torchyoga.order.curriculum import OpenStage, StagedOrder
from torchyoga.order.full import Order


@pytest.mark.parametrize("seed", range(60))
def test_rows_come_when_they_may_and_equally_often(seed: int) -> None:
    chance = random.Random(seed)
    num_rows, length = chance.randint(1, 40), chance.randint(1, 80)
    stages = [OpenStage(0, chance.randint(1, num_rows))]
    for _ in range(chance.randint(0, 3)):
        stages.append(OpenStage(stages[-1].start + chance.randint(1, 60), chance.randint(1, num_rows)))
    kind: Any = chance.choice([True, "block", False])
    files = np.array([0, num_rows // 3, num_rows]) if kind == "block" else None
    found = StagedOrder(tuple(stages), num_rows, length, seed, kind, files=files)
    seen: list[int] = []
    for epoch in range(3):
        numbers = found.rows(epoch, np.arange(length))
        assert len(set(numbers.tolist())) == length
        assert found.positions(epoch, numbers).tolist() == list(range(length))
        rows = ((numbers - ARRANGED.start) % num_rows).tolist()
        first = epoch * length
        for number, stage in enumerate(stages):
            end = stages[number + 1].start if number + 1 < len(stages) else 2**60
            part = rows[max(stage.start - first, 0) : max(end - first, 0)]
            counts = np.bincount(np.array(part, int), minlength=num_rows)
            assert not counts[stage.rows :].any(), "a row came that may not"
            assert not part or counts[: stage.rows].max() - counts[: stage.rows].min() <= 1
        seen += rows
    if stages[-1].start <= length and stages[-1].rows == num_rows == length:
        assert sorted(seen[length : 2 * length]) == list(range(num_rows))


def test_epochs_and_passes_have_orders_of_their_own() -> None:
    found = StagedOrder((OpenStage(0, 5000),), 5000, 10_000, seed=1)
    one, other = found.rows(0, np.arange(10_000)), found.rows(1, np.arange(10_000))
    rows = [(part - ARRANGED.start) % 5000 for part in (one[:5000], one[5000:], other[:5000], other[5000:])]
    assert all(sorted(part.tolist()) == list(range(5000)) for part in rows)
    assert len({tuple(part[:50].tolist()) for part in rows}) == 4


def test_rows_that_do_not_come() -> None:
    found = StagedOrder((OpenStage(0, 2),), 4, 6, seed=1)
    for number in (ARRANGED.start + 3, ARRANGED.start + 4 * 3, 7):
        with pytest.raises(ValueError, match="does not come in epoch 0 of these stages"):
            found.positions(0, [number])
    with pytest.raises(ValueError, match="positions must be at least 0"):
        found.rows(0, [-2])


def test_epochs_beyond_what_is_counted_are_an_error() -> None:
    found = StagedOrder((OpenStage(0, 5),), 5, 10, seed=1)
    found.rows(10**15, [0])
    with pytest.raises(ValueError, match="lies beyond"):
        found.rows(10**18, [0])


# -- buckets


@pytest.mark.parametrize("seed", range(40))
def test_buckets_hold_rows_of_like_lengths(seed: int) -> None:
    chance = random.Random(seed)
    size, run = chance.randint(1, 90), chance.randint(1, 7)
    pool = run * chance.randint(1, 8)
    lengths = np.array([chance.randint(0, 20) for _ in range(size)])
    base: Any = Order(size, seed) if seed % 3 else BlockOrder([0, size // 2, size], seed)
    found = BucketOrder(base, lengths, pool, run)
    for epoch in range(2):
        rows = found.rows(epoch, np.arange(size))
        assert sorted(rows.tolist()) == list(range(size))
        assert found.positions(epoch, rows).tolist() == list(range(size))
        given = base.rows(epoch, np.arange(size))
        for start in range(0, size, pool):
            part = rows[start : start + pool]
            assert sorted(part.tolist()) == sorted(given[start : start + pool].tolist())
            # Each run is a run of the sorted pool.
            expected = np.sort(lengths[part])
            runs = [lengths[part[at : at + run]].tolist() for at in range(0, len(part), run)]
            assert sorted(runs) == sorted(expected[at : at + run].tolist() for at in range(0, len(part), run))
            if len(part) % run:
                assert runs[-1] == expected[len(part) // run * run :].tolist()


def test_runs_are_mixed_and_epochs_differ() -> None:
    lengths = np.random.default_rng(0).integers(0, 1000, 10_000)
    found = BucketOrder(Order(10_000, 1), lengths, 4096, 64)
    rows = found.rows(0, np.arange(4096))
    means = lengths[rows].reshape(64, 64).mean(axis=1)
    assert (np.diff(means) > 0).mean() < 0.7
    assert not np.array_equal(rows, found.rows(1, np.arange(4096)))
    plain = BucketOrder(Order(10_000, 1, shuffle=False), lengths, 4096, 64).rows(0, np.arange(4096))
    assert (np.diff(lengths[plain]) >= 0).all()


def test_buckets_follow_the_version_of_their_base() -> None:
    found = BucketOrder(Order(9, 1), np.arange(9), 4, 2)
    again = found.resumed(3, None, 1)
    assert (again.version_in(3), again.version_in(4)) == (1, 2)
    assert sorted(again.rows(3, np.arange(9)).tolist()) == list(range(9))
    assert found.changed(seed=5).seed == 5
    assert found.pins(0) == found.whole.pins(0)
