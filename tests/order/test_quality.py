"""The quality of a shuffle, compared with counts of all orders of a few rows, and at its limits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from infiles import InFiles, cells_of

import torchyoga as yoga


def orders_of(sizes: tuple[int, ...], window: int) -> set[tuple[int, ...]]:
    """All orders that a block shuffle may give, counted one by one."""
    starts = [0, *itertools.accumulate(sizes)]
    window = min(window, len(sizes))
    found = set()
    for turn in itertools.permutations(range(len(sizes))):
        for units in itertools.product(
            *(itertools.permutations(range(starts[f], starts[f + 1])) for f in turn)
        ):
            cells = cells_of(units, window)
            for made in itertools.product(*map(itertools.permutations, cells)):
                found.add(sum(made, ()))
    return found


@pytest.mark.parametrize(
    ("sizes", "window"), [((2, 2), 2), ((2, 2, 2), 2), ((4, 2), 2), ((3, 3), 3), ((5,), 4)]
)
def test_randomness_counts_the_orders_that_there_are(sizes: Any, window: int) -> None:
    counted = math.log(len(orders_of(sizes, window))) / math.lgamma(sum(sizes) + 1)
    found = yoga.shuffle_quality(InFiles(sizes), "block", window).randomness
    assert found == pytest.approx(min(counted, 1), abs=0.12)
    assert found >= counted - 1e-9  # some orders are possible in two ways


def test_the_quality_of_a_full_shuffle_a_block_shuffle_and_none() -> None:
    ref = InFiles((500,) * 40)
    full, none = yoga.shuffle_quality(ref, True), yoga.shuffle_quality(ref, False)
    assert (full.randomness, full.files_at_once, full.rows_at_once) == (1, 40, 20_000)
    assert (none.randomness, none.files_at_once, none.rows_at_once) == (0, 1, 500)
    before = none
    for window in (1, 2, 4, 8, 40):
        block = yoga.shuffle_quality(ref, "block", window)
        assert before.randomness < block.randomness < 1
        assert (block.files_at_once, block.rows_at_once) == (window, 500 * window)
        before = block
    assert str(full) == "100.0% of a full shuffle's randomness; 40 files with 20,000 rows at once"


def test_with_shards_a_rank_needs_its_own_files_only() -> None:
    ref = InFiles((500,) * 40)
    for kind, files in ((True, 10), ("block", 8), (False, 1)):
        shards = yoga.shuffle_quality(ref, kind, locality="shard", num_replicas=4)  # type: ignore[arg-type]
        whole = yoga.shuffle_quality(ref, kind)  # type: ignore[arg-type]
        assert shards.files_at_once == files
        assert shards.randomness < whole.randomness or not kind


@pytest.mark.parametrize("length", [0, 1, 2])
def test_the_quality_of_very_few_rows(length: int) -> None:
    for kind in ("block", True, False):
        found = yoga.shuffle_quality(length, kind)  # type: ignore[arg-type]
        assert 0 <= found.randomness <= 1
        assert found.rows_at_once == length
