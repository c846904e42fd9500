"""Block shuffles and shards of files against plain models; all small sizes; orders pinned in numbers."""

from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infiles import InFiles, cells_of
from randomness import Statistics, together

from torchyoga.order.by_file import BlockOrder, _layout, equal_runs
from torchyoga.order.full import Order
from torchyoga.order.options import OrderOptions
from torchyoga.order.place import Place, Shard, chunks

KINDS: list[Any] = ["block", True, False]


def starts_of(sizes: Any) -> Any:
    return np.cumsum([0, *sizes], dtype=np.int64)


def whole(order: Any, epoch: int = 0) -> list[int]:
    return order.rows(epoch, np.arange(order.length)).tolist()  # type: ignore[no-any-return]


def permuted(some: list[list[int]], by: Any) -> list[list[int]]:
    """Lists of rows, each by the permutation of its number."""
    if not any(some):
        return some
    sizes = [len(rows) for rows in some]
    numbers = np.concatenate([*map(np.arange, sizes)])
    places = iter(by.turned(numbers, np.repeat(np.arange(len(some)), sizes), True).tolist())
    return [[rows[next(places)] for _ in rows] for rows in some]


def dealt(order: BlockOrder, epoch: int) -> list[list[int]]:
    """The rows of each shard, laid out and shuffled in plain Python by the permutations of the plan."""
    plan = order._plan(epoch)
    ends = zip(plan.unit_row.tolist(), (plan.unit_row + plan.unit_size).tolist(), strict=True)
    units = [list(range(start, stop)) for start, stop in ends]
    if order.shuffle == "block":
        units = permuted(units, plan.in_units)
    owners = plan.unit_shard.tolist()
    cells = []  # of each shard
    for shard in range(order.shards or 1):
        mine = [rows for rows, owner in zip(units, owners, strict=True) if owner == shard]
        together = [[row for rows in mine for row in rows]]
        cells.append(cells_of(mine, min(order.window, len(mine))) if order.shuffle == "block" else together)
    turned = [cell for some in cells for cell in some]
    mixed = iter(permuted(turned, plan.in_cells) if order.shuffle else turned)
    return [[row for _ in some for row in next(mixed)] for some in cells]


def test_every_small_order_equals_the_model() -> None:
    kinds: list[Any] = [*(("block", window) for window in (1, 2, 4)), (True, 1), (False, 1)]
    for sizes in itertools.product((0, 1, 5), repeat=3):
        length = sum(sizes)
        for (kind, window), shards in itertools.product(kinds, (None, 2, 3, 13)):
            order = BlockOrder(starts_of(sizes), 3, kind, window=window, shards=shards)
            ranks, found = dealt(order, 1), whole(order, 1)
            assert [len(rows) for rows in ranks] == [
                len(range(r, length, shards or 1)) for r in range(shards or 1)
            ]
            for rank, rows in enumerate(ranks):
                assert found[rank :: shards or 1] == rows, (sizes, window, shards, kind)
            assert sorted(found) == list(range(length))
            assert order.positions(1, found).tolist() == list(range(length))


def test_shards_are_runs_of_whole_files_the_same_in_every_epoch() -> None:
    sizes = (3, 1, 4, 1, 5, 9, 2, 6)
    files = [range(a, b) for a, b in itertools.pairwise(starts_of(sizes).tolist())]
    for world, kind in itertools.product((1, 2, 3, 5), KINDS):
        order = BlockOrder(starts_of(sizes), 5, kind, window=2, shards=world)
        line: list[int] = []
        for row in order_of_files(order, world):
            line += next(file for file in files if row in file)
        assert sorted(line) == list(range(31))
        cuts = [0, *itertools.accumulate(len(range(r, 31, world)) for r in range(world))]
        for epoch in (0, 1, 7):
            for rank in range(world):
                assert sorted(whole(order, epoch)[rank::world]) == sorted(line[cuts[rank] : cuts[rank + 1]])
    assert whole(BlockOrder(starts_of(sizes), 5, False, shards=1)) == list(range(31))


def test_units_are_the_files_of_each_shard_and_how_many_of_them_are_mixed() -> None:
    sizes = (3, 1, 4, 1, 5, 9, 2, 6)
    for world, window in itertools.product((1, 3), (2, 5)):
        order = BlockOrder(starts_of(sizes), 5, "block", window=window, shards=world)
        found = [(some.tolist(), mixed) for some, mixed in order.units(1)]
        assert [sum(some) for some, _ in found] == [len(range(r, 31, world)) for r in range(world)]
        assert [mixed for _, mixed in found] == [min(window, len(some)) for some, _ in found]
        for rank, (some, _) in enumerate(found):
            files = np.searchsorted(order.starts, whole(order, 1)[rank::world], "right").tolist()
            assert sorted(some) == sorted(Counter(files).values())


def order_of_files(order: BlockOrder, world: int) -> list[int]:
    """A row of each file, in the order in which the files are laid out."""
    seen: dict[int, int] = {}
    for row in _layout(order).row.tolist():
        seen.setdefault(int(np.searchsorted(order.starts, row, "right")), row)
    return list(seen.values())


@pytest.mark.parametrize("kind", KINDS)
def test_positions_past_the_end_wrap_around_to_the_rows_of_their_rank(kind: Any) -> None:
    for shards in (None, 2, 4, 12):
        order = BlockOrder(starts_of((2, 0, 3, 4, 1)), 2, kind, window=2, shards=shards)
        rows, expected = whole(order, 1), []
        for position in range(10, 40):
            turn, shard = divmod(position, shards or 1)
            own = rows[shard :: shards or 1]  # without rows of its own, a shard pads by the first of all
            expected.append(own[turn % len(own)] if own else rows[position % 10])
        assert order.rows(1, np.arange(10, 40)).tolist() == expected, shards


@st.composite
def orders(draw: Any, most: int = 400) -> BlockOrder:
    sizes = draw(st.lists(st.integers(0, most), min_size=1, max_size=12).filter(any))
    return BlockOrder(
        starts_of(sizes),
        draw(st.integers()),
        draw(st.sampled_from(KINDS)),
        window=draw(st.integers(1, 14)),
        shards=draw(st.sampled_from([None, 1, 2, 3, 7])),
    )


@given(orders(), st.integers(0, 2**40))
def test_an_epoch_is_a_permutation_and_positions_its_inverse(order: BlockOrder, epoch: int) -> None:
    rows = order.rows(epoch, np.arange(order.length))
    assert np.array_equal(np.sort(rows), np.arange(order.length))
    assert np.array_equal(order.positions(epoch, rows), np.arange(order.length))
    some = np.arange(order.length)[:: -max(1, order.length // 7)].reshape(-1, 1)
    assert np.array_equal(order.rows(epoch, some), rows[some])


@given(orders(2**50), st.integers(0, 2**40), st.data())
def test_any_position_of_any_size_turns_into_its_row_and_back(
    order: BlockOrder, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, order.length - 1), min_size=1, max_size=9, unique=True))
    rows = order.rows(epoch, positions)
    assert bool(((rows >= 0) & (rows < order.length)).all())
    assert order.positions(epoch, rows).tolist() == positions
    assert len(set(rows.tolist())) == len(positions)


@given(orders())
def test_a_rank_needs_a_window_of_files_and_each_file_once(order: BlockOrder) -> None:
    if order.shuffle != "block":
        return
    for rank in range(order.shards or 1):
        rows = whole(order)[rank :: order.shards or 1]
        files = np.searchsorted(order.starts, rows, "right").tolist()
        first, last = ({f: i for i, f in some} for some in (reversed([*enumerate(files)]), enumerate(files)))
        held = [sum(first[f] <= i <= last[f] for f in first) for i in range(len(files))]
        assert max(held, default=0) <= order.window
        if order.window > 1 and len(rows) > 1000:
            # A file is finished after a window of files, not kept until the end.
            most = np.sort(np.diff(order.starts))[::-1][: 2 * order.window].sum()
            assert max(last[f] - first[f] for f in first) <= most


def test_the_order_is_pinned() -> None:
    # These numbers are part of every saved state. If they change, ORDER_VERSION must.
    for (sizes, options), text in GOLDEN.items():
        rows = [int(number) for number in text.split()]
        order = BlockOrder(starts_of(sizes), **dict(options))
        assert order.rows(3, np.arange(5, 15)).tolist() == rows, (sizes, options)
        assert order.positions(3, rows).tolist() == list(range(5, 15))


def test_epochs_and_seeds_differ_and_once_means_epoch_zero() -> None:
    for kind, shards in (("block", None), ("block", 2), (True, 2)):
        made = [BlockOrder(starts_of([30, 40]), seed, kind, shards=shards) for seed in range(3)]  # type: ignore[arg-type]
        assert len({tuple(whole(order, epoch)) for order in made for epoch in range(3)}) == 9
        once = BlockOrder(starts_of([30, 40]), 1, kind, reshuffle=False, shards=shards)  # type: ignore[arg-type]
        assert whole(once, 5) == whole(made[1], 0)


@pytest.mark.rest
def test_rows_are_equally_likely_anywhere_in_their_cells_and_files_in_any_order() -> None:
    draws, sizes = 1500, (20, 20, 20, 20)
    drawn = np.stack([whole(BlockOrder(starts_of(sizes), seed, window=2), 1) for seed in range(draws)])
    for position, among in ((0, 80), (35, 80), (79, 80)):
        counts = np.bincount(drawn[:, position], minlength=among)
        chi = ((counts - draws / among) ** 2 / (draws / among)).sum()
        assert chi < among - 1 + 5 * math.sqrt(2 * (among - 1))
    # In a cell of two files, the rows of the two are mixed fairly: each file comes first equally often.
    same = (drawn[:, 10:29] // 20 == drawn[:, 11:30] // 20).mean()
    assert abs(same - 9 / 19) < 0.01
    # And the steps between rows of a file are those of a random order.
    inner = drawn[:, :10] % 20
    steps = np.bincount((np.diff(inner, axis=1) % 20).ravel(), minlength=20)[1:]
    chi = ((steps - steps.mean()) ** 2 / steps.mean()).sum()
    assert chi < 18 + 6 * math.sqrt(36)


def of_units(size: int, epochs: int, units: int) -> Statistics:
    """Statistics of how the rows of files of one size are permuted, over all files in some epochs."""
    order = BlockOrder(np.arange(units + 1) * size, 5)
    found, which = Statistics(size), np.repeat(np.arange(units), size)
    for epoch in range(epochs):
        plan = order._plan(epoch)
        inner = plan.in_units.turned(np.tile(np.arange(size), units), which, forward=True)
        found.add(inner.reshape(units, size))
    return found


def of_cells(size: int, epochs: int) -> Statistics:
    """Statistics of the order of one shard's rows in `epochs` epochs."""
    orders = [BlockOrder([0, size], seed, True, shards=1) for seed in range(5)]
    found = (orders[epoch % 5].rows(epoch, np.arange(size)) for epoch in range(epochs))
    return together(found, size)


UNITS = (2, 3, 4, 5, 7, 8, 11, 16, 31, 64, 65, 100, 127, 128, 129, 200, 256, 500, 512, 513, 1000, 2048, 4096)


@pytest.mark.quick("3")
@pytest.mark.parametrize("size", [*UNITS, 4097, 10_000])
def test_rows_of_files_come_as_in_a_fair_shuffle(size: int) -> None:
    units = max(10, min(2000, 2**19 // size))
    for found in (of_units(size, 2, units), of_cells(size, max(10, min(500, 2**19 // size)))):
        deviation, name = found.worst()
        assert deviation < 5, name


@pytest.mark.soak
@pytest.mark.parametrize("size", [*range(2, 34), *UNITS[9:], 1500, 4097])
def test_rows_of_a_hundred_thousand_files_come_as_in_a_fair_shuffle(size: int) -> None:
    units = max(10, min(10_000, 2**20 // size))
    for found in (of_units(size, 100_000 // units, units), of_cells(size, 5000)):
        deviation, name = found.worst()
        assert deviation < 5, name


@pytest.mark.rest
def test_files_come_in_every_order_equally_often() -> None:
    """The orders of seven files, by their first rows; with a window of one, rows of a file stay together."""
    turns = (
        np.array(whole(BlockOrder([0, 1, 3, 6, 10, 15, 21, 28], seed, window=1), epoch))
        for seed in range(2)
        for epoch in range(250)
    )
    files = np.repeat(np.arange(7), np.arange(1, 8))
    found = together((list(dict.fromkeys(files[turn].tolist())) for turn in turns), 7)
    deviation, name = found.worst()
    assert deviation < 5, name


def test_memory_does_not_grow_with_the_rows() -> None:
    tracemalloc.start()
    order = BlockOrder(starts_of([10**10] * 100), 1)
    rows = sum(len(some) for some in itertools.islice(chunks(order, Shard(), Place(0, 10**11)), 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows > 100_000
    assert peak < 20e6


def test_files_are_those_of_the_dataset_or_runs_of_rows() -> None:
    for order in (make(InFiles()), make(InFiles((4, 7, 5, 1, 6)))):  # a file without rows makes no difference
        assert order.starts.tolist() == [0, 4, 11, 16, 17, 23]
    assert make(InFiles()).files == make(InFiles((4, 7, 5, 1, 6))).files != make(InFiles((23,))).files
    for source in (10_000, range(10_000)):
        assert make(source).starts.tolist() == [0, 4096, 8192, 10_000]
    assert equal_runs(0).tolist() == [0]
    assert len(equal_runs(2**62)) < 2**17
    assert isinstance(make(5, shuffle=True), Order)
    assert whole(make(1)) == [0]
    assert whole(make(0)) == []
    copy = pickle.loads(pickle.dumps(make(InFiles())))
    assert whole(copy) == whole(make(InFiles()))


def test_numbers_to_permute_are_left_as_they_are() -> None:
    for seed in range(20):  # every other one exchanges 0 and 1
        plan, numbers = BlockOrder([0, 4], seed)._plan(0), np.arange(4)
        plan.in_units.turned(numbers, np.zeros(4, np.int64), forward=True)
        assert numbers.tolist() == [0, 1, 2, 3]


def make(source: Any, shuffle: Any = "block", window: Any = 8, locality: Any = "global") -> Any:
    return OrderOptions(shuffle, 0, True, window, locality, Shard(2)).order_of(source)


class Sized:
    def __init__(self, *starts: Any) -> None:
        self.file_starts = starts

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: make(5, True, 0), r"shuffle_window must be in 1\.\.1024, found 0"),
        (lambda: make(5, window=2.0), "shuffle_window must be an int, found 2.0"),
        (lambda: make(Sized(0, 9)), "must end with the 10 rows of the dataset, found 9"),
        (lambda: make(Sized(1, 10)), r"begin with 0 .* found \[1, 10\]"),
        (lambda: make(Sized(0, 7, 3, 10)), "rise by at most"),
        (lambda: make(Sized(0, 2**60)), r"rise by at most 2\*\*52"),
        (lambda: make(5).rows(0, [3, -1]), "positions must be at least 0, found -1"),
        (lambda: make(Sized(0.0, 10)), "must be row numbers"),
        (lambda: make(Sized([0, 1], [2, 10])), "must be row numbers"),
        (lambda: make(Sized()), "file_starts must"),
        (lambda: BlockOrder(starts_of([5])).positions(0, [5]), r"rows must be in 0\.\.4, found 5"),
        (lambda: BlockOrder([0, 5], seed=1.5), "seed must be an int, found 1.5"),
        (lambda: BlockOrder([0, 5], shards=0), r"shards must be in 1\.\.1048576, found 0"),
        (lambda: BlockOrder([0, 5], shards=2**20 + 1), r"shards must be in 1\.\.1048576, found 1048577"),
    ],
)
def test_arguments_out_of_range_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


# The numbers of each order, with spaces between them.
GOLDEN: dict[Any, str] = {
    ((10, 20, 30), (("seed", 7), ("window", 2))): "30 43 4 8 57 42 32 53 37 38",
    ((100_000,) * 20, (("seed", 1),)): (
        "1149816 1156045 1140125 1190126 1193771 1187441 1194704 1184590 1187585 1175244"
    ),
    ((1000000000000, 100000000000), (("seed", -5), ("window", 2), ("shards", 3))): (
        "1077838236111 162438216328 704782956700 1080758750929 89068984788 724282660672 1040540326928 "
        "282450676813 570612258601 1098431738728"
    ),
    ((10, 20, 30), (("seed", 7), ("shuffle", True), ("shards", 2))): "9 18 41 39 8 23 55 27 48 36",
    ((10, 20, 30), (("seed", 7), ("shuffle", False), ("shards", 2))): "32 3 33 4 34 5 35 6 36 7",
    ((2, 3, 4, 5, 9, 17, 40, 70), (("seed", 1180591620717411303424), ("window", 3))): (
        "60 68 65 50 55 9 47 13 71 62"
    ),
    ((4096,) * 6, (("seed", 3), ("window", 4))): "5392 7289 6573 7492 7691 7293 6847 7587 8063 4384",
    ((600, 1500, 300), (("seed", 0), ("shards", 1))): "70 223 329 240 483 96 416 584 131 420",
    ((8589934592, 4294967296, 1099511627776), (("seed", 8), ("window", 2))): (
        "918532945239 1050920960380 840630106207 497132889458 385474260591 141755913498 83478261815 "
        "1061326566476 955128474165 533734591449"
    ),
    ((100, 200), (("seed", 4), ("shuffle", True), ("shards", 1))): "162 209 254 190 48 18 41 36 230 159",
}
