"""Order and shards against plain models, small sizes to exhaustion; the order pinned in numbers."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.order import Order, Shard, keyed_bytes
from torchyoga.place import Place, batches, chunks

POLICIES = ("keep", "drop", "pad")


def model(length: int, world: int, rank: int, start: int, policy: str, order: list[int]) -> list[int]:
    """What a rank gets, in plain Python."""
    positions = list(range(start, length))
    if policy == "drop":
        positions = positions[: len(positions) // world * world]
    while policy == "pad" and len(positions) % world:
        positions.append(start + len(positions))
    return [order[position % length] for position in positions[rank::world]]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_small_shard_is_the_models(policy) -> None:  # type: ignore[no-untyped-def]
    for length, world in itertools.product(range(1, 13), range(1, 7)):
        order = Order(length, seed=3, shuffle=length == 7)  # walking a tiny domain is slow
        rows = order.rows(1, np.arange(length)).tolist()
        for start, rank in itertools.product(range(length + 1), range(world)):
            shard = Shard(world, rank, policy)
            expected = model(length, world, rank, start, policy, rows)
            found = [row for chunk in chunks(order, shard, Place(1, start)) for row in chunk.tolist()]
            assert found == expected, (length, world, start, rank)
            assert shard.count(length, start) == len(expected)
            for size, drop_last in itertools.product((1, 2, 5), (False, True)):
                made = [batch.tolist() for batch in batches(order, shard, Place(1, start), size, drop_last)]
                cut = [expected[i : i + size] for i in range(0, len(expected), size)]
                assert made == [batch for batch in cut if len(batch) == size or not drop_last]
                assert shard.steps(length, start, size, drop_last) == len(made)


def test_an_empty_dataset_has_nothing_for_anybody() -> None:
    for policy in POLICIES:
        assert list(chunks(Order(0), Shard(3, 1, policy), Place(0, 0))) == []  # type: ignore[arg-type]
        assert Shard(3, 1, policy).end(0) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [*range(70), 1000, 65_537, 200_000])
def test_an_epoch_is_a_permutation_and_positions_its_inverse(length: int) -> None:
    order = Order(length, seed=5)
    rows = order.rows(2, np.arange(length))
    assert np.array_equal(np.sort(rows), np.arange(length))
    assert np.array_equal(order.positions(2, rows), np.arange(length))


@given(st.integers(1, 2**62), st.integers(), st.integers(0, 2**40), st.data())
def test_any_position_of_any_size_turns_into_its_row_and_back(
    length: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    order = Order(length, seed)
    positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    rows = order.rows(epoch, positions)
    assert bool(((rows >= 0) & (rows < length)).all())
    assert order.positions(epoch, rows).tolist() == positions
    assert len(set(rows.tolist())) == len(set(positions))


def test_the_order_is_pinned() -> None:
    # These numbers are part of every saved state. If they change, ORDER_VERSION must.
    golden = {
        (10, 0, 0): GOLDEN_10,
        (1000, 7, 3): GOLDEN_1000,
        (10**9, 1, 0): GOLDEN_BILLION,
        (10**12, -5, 2): GOLDEN_TRILLION,
    }
    for (length, seed, epoch), rows in golden.items():
        assert Order(length, seed).rows(epoch, np.arange(len(rows))).tolist() == rows


def test_keys_tell_every_part_apart() -> None:
    keys = [(0, 1), (1, 0), ("0", 1), (0, "1"), ("0\x001",), (1, -1), (11,), (1, 1)]
    assert len({keyed_bytes(8, *key) for key in keys}) == len(keys)


def test_epoch_one_of_seed_zero_is_not_epoch_zero_of_seed_one() -> None:
    positions = np.arange(100)
    orders = [Order(100, seed).rows(epoch, positions).tolist() for seed in range(4) for epoch in range(4)]
    assert len(set(map(tuple, orders))) == 16


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_rows_are_equally_likely(length: int) -> None:
    draws, kinds = 1200, math.factorial(length)
    found = Counter(tuple(Order(length, seed).rows(0, np.arange(length)).tolist()) for seed in range(draws))
    expected = draws / kinds
    chi = sum((found[order] - expected) ** 2 / expected for order in itertools.permutations(range(length)))
    # Five standard deviations of the chi-square distribution.
    assert chi < kinds - 1 + 5 * math.sqrt(2 * (kinds - 1))


def test_every_row_comes_as_likely_first_and_neighbours_do_not_stick_together() -> None:
    length, draws = 100, 5000
    orders = np.stack([Order(length, seed).rows(1, np.arange(length)) for seed in range(draws)])
    for position in (0, 1, 50, 99):
        counts = np.bincount(orders[:, position], minlength=length)
        chi = ((counts - draws / length) ** 2 / (draws / length)).sum()
        assert chi < length - 1 + 5 * math.sqrt(2 * (length - 1))
    steps = np.diff(orders, axis=1) % length  # uniform over 1..99 in a random order
    counts = np.bincount(steps.ravel(), minlength=length)[1:]
    expected = steps.size / (length - 1)
    chi = ((counts - expected) ** 2 / expected).sum()
    assert counts.sum() == steps.size
    assert chi < length - 2 + 6 * math.sqrt(2 * (length - 2))
    assert abs(np.corrcoef(orders[:, :-1].ravel(), orders[:, 1:].ravel())[0, 1] + 1 / (length - 1)) < 0.01


def test_memory_does_not_grow_with_the_length() -> None:
    tracemalloc.start()
    found = chunks(Order(10**12, 1), Shard(), Place(0, 10**11))
    rows = sum(len(next(found)) for _ in range(3))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows > 100_000
    assert peak < 10e6


def test_without_shuffle_rows_come_in_order_and_once_means_epoch_zero() -> None:
    assert Order(5, shuffle=False).rows(3, [0, 4, 6]).tolist() == [0, 4, 1]
    once = Order(50, 1, reshuffle=False)
    assert once.rows(7, np.arange(50)).tolist() == Order(50, 1).rows(0, np.arange(50)).tolist()
    assert once.positions(7, once.rows(7, [3])).tolist() == [3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Order(-1), "length must be"),
        (lambda: Order(2**63), "length must be"),
        (lambda: Order(3, seed=1.5), "seed must be an int, found 1.5"),  # type: ignore[arg-type]
        (lambda: Shard(0), "num_replicas must be at least 1, found 0"),
        (lambda: Shard(2, 2), r"rank must be in 0\.\.1, found 2"),
        (lambda: Shard(2, -1), "rank must be"),
        (lambda: Shard(1, 0, "loop"), "remainder must be 'keep', 'drop' or 'pad', found 'loop'"),  # type: ignore[arg-type]
        (lambda: Order(5).positions(0, [5]), r"rows must be in 0\.\.4, found 5"),
    ],
)
def test_what_is_out_of_range_is_said(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


GOLDEN_10 = [1, 0, 6, 3, 9, 2, 5, 8, 7, 4]
GOLDEN_1000 = [198, 170, 586, 446, 945, 246, 458, 219, 855, 154]
GOLDEN_BILLION = [
    68555521,
    140786003,
    370330679,
    445049201,
    180096112,
    754425466,
    380321011,
    578615036,
    321641716,
    457478642,
]
GOLDEN_TRILLION = [
    830366909336,
    406792088940,
    910955724057,
    2268488845,
    670996907839,
    201023976422,
    345648562096,
    123821757753,
    218323590818,
    755030155280,
]
