"""The quality of a shuffle, at its limits."""

from __future__ import annotations

import pytest
from infiles import InFiles

import torchyoga as yoga


def test_the_quality_of_a_full_shuffle_a_block_shuffle_and_none() -> None:
    ref = InFiles((500,) * 40)
    full, none = yoga.shuffle_quality(ref, True), yoga.shuffle_quality(ref, False)
    assert (full.files_at_once, full.rows_at_once) == (40, 20_000)
    assert full.neighbour_distance == pytest.approx(full.full_distance, rel=0.02)
    assert (none.files_at_once, none.rows_at_once) == (1, 500)
    assert none.neighbour_distance == 1
    before = none
    for window in (1, 2, 4, 8, 40):
        block = yoga.shuffle_quality(ref, "block", window)
        assert before.neighbour_distance < block.neighbour_distance < full.full_distance * 1.02
        assert (block.files_at_once, block.rows_at_once) == (window, 500 * window)
        before = block
    assert str(full).endswith("in a full shuffle; 40 files with 20,000 rows at once")


def test_with_shards_a_rank_needs_its_own_files_only() -> None:
    ref = InFiles((500,) * 40)
    for kind, files in ((True, 10), ("block", 8), (False, 1)):
        shards = yoga.shuffle_quality(ref, kind, locality="shard", num_replicas=4)  # type: ignore[arg-type]
        assert shards.files_at_once == files
        assert kind or shards.neighbour_distance == 1  # for the rows that one rank reads


@pytest.mark.parametrize("length", [0, 1, 2])
def test_the_quality_of_very_few_rows(length: int) -> None:
    for kind in ("block", True, False):
        found = yoga.shuffle_quality(length, kind)  # type: ignore[arg-type]
        assert found.rows_at_once == length


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="shuffle must be"):
        yoga.shuffle_quality(5, "full")  # type: ignore[arg-type]
