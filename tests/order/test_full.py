"""Order and shards against plain models; all small sizes; the order pinned in numbers."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from randomness import parities, together

from torchyoga.order.full import ORDER_VERSION, Order
from torchyoga.order.place import Place, Shard, chunks
from torchyoga.process.digests import keyed_bytes


@pytest.mark.parametrize("length", [*range(70), 1000, 5000, 16_384, 65_537, 200_000])
def test_an_epoch_is_a_permutation_and_positions_its_inverse(length: int) -> None:
    order = Order(length, seed=5)
    rows = order.rows(2, np.arange(length))
    assert np.array_equal(np.sort(rows), np.arange(length))
    assert np.array_equal(order.positions(2, rows), np.arange(length))
    for some in np.array_split(np.arange(length), 5):  # all of few rows are computed in another way
        assert np.array_equal(order.rows(2, some), rows[some])
        assert np.array_equal(order.positions(2, rows[some]), some)


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
    for (length, seed, epoch), text in GOLDEN.items():
        rows = [int(number) for number in text.split()]
        order = Order(length, seed)
        assert order.rows(epoch, np.arange(len(rows))).tolist() == rows, (length, seed, epoch)
        assert order.positions(epoch, rows).tolist() == list(range(len(rows)))
    assert ORDER_VERSION == 1


def test_orders_of_different_lengths_differ() -> None:
    for length in (1000, 5000):
        orders = [Order(n, 3).rows(1, np.arange(length)) for n in (length, length + 1)]
        assert (orders[0] == orders[1]).sum() < 10


def test_keys_differ_if_any_part_differs() -> None:
    keys = [(0, 1), (1, 0), ("0", 1), (0, "1"), ("0\x001",), (1, -1), (11,), (1, 1)]
    assert len({keyed_bytes(8, *key) for key in keys}) == len(keys)


def orders_of(length: int, count: int) -> Iterator[Any]:
    """`count` orders, of some seeds and of many epochs."""
    whole = np.arange(length)
    for epoch in range(count):
        yield Order(length, epoch % 7 - 3).rows(epoch, whole)


SIZES = (2, 3, 4, 5, 6, 7, 8, 11, 16, 31, 48, 64, 100, 127, 128, 200, 256, 512, 1000, 2048, 4096)
ABOVE = (4097, 5000, 8192, 16_384)  # where a network is used instead of a sort


@pytest.mark.quick("3", "128", "4096", "4097")
@pytest.mark.parametrize("length", [*SIZES, *ABOVE])
def test_orders_are_as_those_of_a_fair_shuffle(length: int) -> None:
    deviation, name = together(orders_of(length, min(2000, 2**20 // length)), length).worst()
    assert deviation < 5, name


@pytest.mark.soak
@pytest.mark.parametrize("length", [*range(2, 34), *SIZES[10:], 1500, *ABOVE[:3]])
def test_a_hundred_thousand_orders_are_as_those_of_a_fair_shuffle(length: int) -> None:
    deviation, name = together(orders_of(length, 100_000 if length <= 4096 else 20_000), length).worst()
    assert deviation < 5, name


def test_the_statistics_find_a_shuffle_that_is_not_fair() -> None:
    """Rows that are multiplied and shifted, as a linear congruence does."""
    draw, whole = np.random.default_rng(5), np.arange(128)
    orders = ((whole * (2 * draw.integers(64) + 1) + draw.integers(128)) % 128 for _ in range(500))
    assert max(abs(deviation) for _, deviation in together(orders, 128).deviations()) > 5


@pytest.mark.soak
def test_where_the_network_begins_two_rows_do_not_keep_their_difference() -> None:
    """The weakest point of such networks."""
    length, whole = 8192, np.arange(8192)
    kept = [
        sum(int(((rows ^ rows[whole ^ apart]) == apart).sum()) // 2 for apart in range(1, 128))
        for rows in orders_of(length, 1000)
    ]
    expected = 127 * length / 2 / (length - 1)
    deviation = (np.mean(kept) - expected) / (np.std(kept) / math.sqrt(len(kept)))
    assert abs(deviation) < 5


def test_parities_are_those_of_the_inversions() -> None:
    for length in (2, 3, 5):
        orders = np.array(list(itertools.permutations(range(length))))
        inversions = [sum(b < a for a, b in itertools.combinations(order, 2)) for order in orders.tolist()]
        assert parities(orders).tolist() == [count % 2 for count in inversions]


def forget_orders() -> None:
    """The next order is computed, not one that was kept: others have taken the place of all."""
    for epoch in range(128):
        Order(2, 2).rows(epoch, 0)


def test_the_cache_of_orders_is_bounded() -> None:
    positions = np.arange(10)
    tracemalloc.start()
    for epoch in range(400):
        Order(4096, 21).rows(epoch, positions)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 16e6
    # The cached orders cannot be changed.
    rows = Order(100, 1).rows(0, np.arange(100))
    before = rows.tolist()
    rows[:] = 0
    assert Order(100, 1).rows(0, np.arange(100)).tolist() == before


def test_many_threads_see_the_same_order() -> None:
    whole = np.arange(4096)
    expected = [Order(4096, 9).rows(epoch, whole).tolist() for epoch in range(20)]
    forget_orders()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda e: Order(4096, 9).rows(e % 20, whole).tolist(), range(200)))
    assert found == expected * 10


def test_epochs_and_positions_of_any_kind_of_int() -> None:
    for length in (50, 5000):
        order = Order(length, 3)
        rows = order.rows(4, np.arange(length)).tolist()
        forget_orders()
        assert order.rows(np.int64(4), np.arange(length)).tolist() == rows  # type: ignore[arg-type]
        assert int(order.rows(4, 7)) == rows[7]
        assert order.rows(4, 7).shape == ()
        found = order.rows(4, [[1, length], [2 * length + 3, 2]])
        assert found.tolist() == [[rows[1], rows[0]], [rows[3], rows[2]]]
        assert order.rows(4, []).tolist() == []


def test_memory_does_not_grow_with_the_length() -> None:
    tracemalloc.start()
    found = chunks(Order(10**12, 1), Shard(), Place(0, 10**11))
    rows = sum(len(next(found)) for _ in range(8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows > 100_000
    assert peak < 10e6


def test_without_shuffle_rows_come_in_order_and_once_means_epoch_zero() -> None:
    assert Order(5, shuffle=False).rows(3, [0, 4, 6]).tolist() == [0, 4, 1]
    assert Order(0).rows(0, [0, 3]).tolist() == [0, 3]  # there is no front to wrap around to
    once = Order(50, 1, reshuffle=False)
    assert once.rows(7, np.arange(50)).tolist() == Order(50, 1).rows(0, np.arange(50)).tolist()
    assert once.positions(7, once.rows(7, [3])).tolist() == [3]
    kinds = [
        order.pins(0)["shuffle"] for order in (once, Order(50), Order(50, shuffle=False, reshuffle=False))
    ]
    assert kinds == ["once", True, False]


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
        (lambda: Order(5).positions(0, [-1]), r"rows must be in 0\.\.4, found -1"),
        (lambda: Order(5).rows(0, [1, -1]), "positions must be at least 0, found -1"),
        (lambda: Order(5000).rows(0, [-(2**40)]), "positions must be at least 0, found -1099511627776"),
        (lambda: Order(5).rows("0", [1]), "epoch must be an int, found '0'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_out_of_range_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


# The numbers of each order, with spaces between them.
GOLDEN: dict[tuple[int, int, int], str] = {
    (2, 0, 0): "1 0",
    (3, 1, 0): "2 0 1",
    (10, 0, 0): "8 3 6 9 5 2 1 0",
    (10, 0, 1): "4 8 7 3 6 0 1 5",
    (10, -1, 0): "9 5 7 3 8 2 1 0",
    (64, 7, 3): "6 0 8 23 7 56 15 37",
    (1000, 7, 3): "187 70 414 539 306 700 87 89",
    (1000, 1180591620717411303424, 3): "744 188 119 766 555 213 31 340",
    (4095, 1, 0): "1982 3792 2924 388 157 2364 1737 793",
    (4096, 1, 0): "1481 2260 3764 2967 1424 1598 3830 3651",
    (4096, 1, 1099511627776): "3474 813 1228 3287 668 240 4055 2578",
    (4097, 1, 0): "1459 2566 208 2814 1749 3388 2469 3683",
    (5000, -5, 2): "3 4458 2437 803 2488 2768 1572 472",
    (8192, 0, 0): "1762 2847 7552 2838 3794 2413 496 4105",
    (65536, 3, 1): "47255 62328 30081 28502 14222 27304 45512 58583",
    (65537, 3, 1): "43913 57027 27740 18642 30138 61739 16666 12331",
    (1000000, 42, 9): "748654 37856 22043 990399 645732 904355 582185 301963",
    (1000000000, 1, 0): "134212046 254483874 748426137 377537900 825533362 770064004 178080181 584254070",
    (4294967296, 1, 0): (
        "888680344 3536488841 1290843516 1025527675 2683628055 3637884938 1084094923 48835998"
    ),
    (4294967297, 1, 0): (
        "2618367117 2365789331 725786621 672182592 1675325364 111618111 2403706563 2382375726"
    ),
    (1000000000000, -5, 2): (
        "982460482579 648577273137 394073872858 64633904955 598757129064 687199009749 225734444372 "
        "382383206574"
    ),
    (4611686018427387904, -1180591620717411303424, 5): (
        "1343242797321481206 2459908826296874214 2036030844683333085 3062147591863463183 "
        "3453283439840138902 3454002440979923891 163858022027020249 1053213771540161710"
    ),
}
