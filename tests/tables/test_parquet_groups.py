"""Decoded row groups: how many are kept, and which."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from children import status_of_child
from own import Mapped

import torchyoga as yoga
from torchyoga.rows.block import Block
from torchyoga.rows.collector import block_of
from torchyoga.tables import groups
from torchyoga.tables.groups import RowGroups

FORK = {0: None, 2: "fork"}  # by the number of workers
SIZE = 1000  # rows of a group, of 8 bytes


class Decoding:
    """Decodes groups of whole numbers, and notes which."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, group: int) -> Block:
        self.done.append(group)
        return block_of([{"x": n} for n in range(SIZE)])


def made(count: int, limit: int | None, decode: Any = None) -> RowGroups:
    starts = np.arange(count + 1) * SIZE
    return RowGroups("x", starts, np.full(count, SIZE * 8), decode or Decoding(), limit)


def leave_free(nbytes: int | None, patch: pytest.MonkeyPatch) -> None:
    """So much memory of the machine is said to be free; None where that is not known."""
    patch.setattr(groups, "free_memory", lambda: nbytes)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No groups of other tests are counted."""
    monkeypatch.setattr(groups, "_alive", [])


@pytest.fixture
def small(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for 80 groups, of which a fourth part is for them; no window asks for more."""
    leave_free(80 * SIZE * 8, monkeypatch)
    monkeypatch.setattr(groups, "_MOST_BYTES", SIZE * 8)
    monkeypatch.setattr(groups, "_MEASURED", 0)


def test_a_quarter_of_the_free_memory_is_shared_between_workers_and_ranks(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(4, None).limit >= 64 * 2**20  # of this machine
    leave_free(48 * 2**30, monkeypatch)
    for workers, ranks in ((0, 1), (2, 1), (2, 3)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        loader = torch.utils.data.DataLoader(
            Mapped(12, lambda _: made(4, None).limit),
            num_workers=workers,
            multiprocessing_context=FORK[workers],
        )
        assert {int(found) for found in loader} == {48 * 2**30 // 4 // max(1, workers) // ranks}


def test_a_window_is_kept_whatever_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(None, monkeypatch)
    assert made(4, None).limit == 64 * 2**20


def test_tables_of_a_process_share(small: None) -> None:
    one, other = made(40, None), made(40, None)
    for group in range(40):
        one.get(group)
    # What is kept counts as free, for the machine says here that it is: a quarter of 80 and 26.
    assert 20 <= one.nbytes // (SIZE * 8) <= 27
    for group in range(40):
        other.get(group)
    assert other.nbytes < one.nbytes // 4
    del one
    for group in range(40):
        other.get(group)
    assert 20 <= other.nbytes // (SIZE * 8) <= 27


def test_what_is_kept_is_used_before_others_take_its_place() -> None:
    decode = Decoding()
    kept = made(10, 8 * SIZE * 8, decode)
    every = np.arange(10 * SIZE)
    for _ in range(20):
        kept.take(every)
    assert len(decode.done) <= 10 + 19 * 2, "two of ten do not fit"


def test_a_forked_child_uses_what_its_parent_has_decoded() -> None:
    decode = Decoding()
    kept = made(6, 3 * SIZE * 8, decode)
    for group in range(6):
        kept.get(group)

    def work() -> None:
        del decode.done[:]
        assert kept.nbytes == 0
        for group in (3, 4, 5, 0, 1, 2, 3, 4, 5):
            kept.get(group)
        assert decode.done == [0, 1, 2]

    assert status_of_child(work) == 0


def table(folder: Path) -> Path:
    pq.write_table(pa.table({"x": np.arange(20_000)}), folder / "x.parquet", row_group_size=1000)
    return folder / "x.parquet"


def taken_apart(ref: yoga.DataRef, rows: Any, size: int) -> None:
    for start in range(0, len(rows), size):
        ref.take(rows[start : start + size])


def test_rows_in_any_order_warn_once_where_nobody_tells_the_order(tmp_path: Path) -> None:
    ref = yoga.from_parquet(table(tmp_path), cache_bytes=40_000)
    order = np.random.default_rng(0).permutation(20_000)
    with pytest.warns(UserWarning, match=r"decoded for each one .* 20 row groups .* keeps 4") as seen:
        taken_apart(ref, order[:2000], 20)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = yoga.from_parquet(tmp_path, cache_bytes=40_000)
        for epoch in range(4):
            taken_apart(quiet, np.roll(np.arange(20_000), epoch), 100)


def warned(ref: yoga.DataRef, _: int) -> int:
    """How many warnings there are if someone reads rows in an order that nobody sees."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for row in np.random.default_rng(0).integers(0, 20_000, 200).tolist():
            ref[row]
    return sum("are decoded for each one" in str(one.message) for one in seen)


def test_workers_warn_too(tmp_path: Path) -> None:
    ref = yoga.from_parquet(table(tmp_path), cache_bytes=40_000)
    loader = torch.utils.data.DataLoader(Mapped(4, partial(warned, ref)), 1, num_workers=2)
    assert [int(batch) for batch in loader] == [1, 0, 0, 0], "the first worker, once"
