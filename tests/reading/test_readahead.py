"""Rows are announced before they are taken, and read ahead of a sampler: the same rows as without."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from own import Squares

from torchyoga.errors import CorruptError
from torchyoga.reading.readahead import ReadAhead
from torchyoga.reading.stream import windows_of
from torchyoga.rows.block import Rows
from torchyoga.rows.collector import Collector


class Table:
    """Squares as gathered rows; counts the reads."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.reads = 0
        self.fails_at = fails_at

    def take(self, rows: np.ndarray) -> Rows:
        self.reads += 1
        if self.fails_at in rows.tolist():
            raise OSError("this row cannot be read")
        collector = Collector()
        for row in rows.tolist():
            collector.add(row * row, row)
        return Rows(collector.take())


def expecting(order: Any, row_bytes: int = 8) -> ReadAhead:
    """A ReadAhead over a sampler that hands out this order."""
    ahead = ReadAhead(row_bytes)
    assert [row for some in ahead.handed_out(list(order), np.array(order, np.int64)) for row in some] == list(
        order
    )
    return ahead


def test_batches_of_the_order_are_read_together() -> None:
    table, order = Table(), np.random.default_rng(0).permutation(1000)
    ahead = expecting(order.tolist())
    for start in range(0, 1000, 10):
        batch = order[start : start + 10].tolist()
        found = ahead.rows(batch, table.take)
        assert found.exact() == [row * row for row in batch]  # type: ignore[attr-defined]
    assert table.reads < 10


@given(st.lists(st.integers(0, 30), max_size=60), st.data())
def test_whatever_is_asked_for_the_rows_are_right(order: list[int], data: st.DataObject) -> None:
    table, ahead = Table(), expecting(order)
    for _ in range(8):
        start = data.draw(st.integers(0, max(0, len(order) - 1)))
        asked = data.draw(
            st.one_of(st.just(order[start : start + 5]), st.lists(st.integers(0, 30), min_size=1, max_size=5))
        )
        found = ahead.rows(asked, table.take) if asked else None
        if found is not None:
            assert found.exact() == [row * row for row in asked]  # type: ignore[attr-defined]


def test_a_batch_across_two_announcements_is_not_read_ahead_but_the_next_is() -> None:
    order = list(range(100, 140))
    table, ahead = Table(), expecting(order)
    assert ahead.rows([7, 8, 100, 101], table.take) is None
    found = ahead.rows([102, 103], table.take)
    assert found.exact() == [102**2, 103**2]  # type: ignore[attr-defined]


def test_a_later_row_that_fails_does_not_fail_this_batch() -> None:
    order = list(range(40))
    table = Table(fails_at=25)
    ahead = expecting(order, row_bytes=2**18)  # two batches at once
    delivered = 0
    for start in range(0, 20, 5):
        found = ahead.rows(order[start : start + 5], table.take)
        delivered += found is not None
    assert delivered >= 1  # the others are read one by one by the caller


def test_large_batches_are_read_one_by_one() -> None:
    assert ReadAhead(3 * 2**20).batches_of_read(1) == 1
    assert ReadAhead(1).batches_of_read(1) == 16
    assert ReadAhead(1).batches_of_read(0) == 16


class Disk:
    """Records what is announced to it."""

    def __init__(self, is_cold: bool = True) -> None:
        self.is_cold = is_cold
        self.probes = 0
        self.announcements: dict[bool, list[int]] = {False: [], True: []}

    def announce(self, rows: Any, values: bool) -> None:
        self.announcements[values] += rows.tolist()

    def probe(self) -> None:
        self.probes += 1

    def follow(self, order: Any, progress: Any) -> None:
        raise AssertionError("no iteration has begun")


SIZES = st.lists(st.integers(1, 300), max_size=30)


@given(SIZES, st.sampled_from([1, 12_288, 10**6, 10**9]))
def test_every_window_is_announced_once_in_two_steps_before_it_comes(
    sizes: list[int], row_bytes: int
) -> None:
    ends = np.cumsum([0, *sizes])
    windows = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    source = Disk()
    came = 0
    for found, expected in zip(ReadAhead(row_bytes, source).announced(iter(windows)), windows, strict=True):
        assert found is expected
        came += len(found)
        assert came <= len(source.announcements[True]) <= len(source.announcements[False])
        for announcements in source.announcements.values():
            assert announcements == list(range(len(announcements)))
        ahead = (len(source.announcements[False]) - came) * max(row_bytes, 4096)
        assert ahead <= max(16 * 2**20, 300 * row_bytes) + 600 * max(row_bytes, 4096)
    assert len(source.announcements[True]) == sum(sizes)


@given(SIZES, st.sets(st.integers(0, 29)))
def test_a_warm_source_gets_no_announcements_until_it_becomes_cold(sizes: list[int], cold: set[int]) -> None:
    windows = [np.full(size, number) for number, size in enumerate(sizes)]
    source = Disk(is_cold=0 in cold)
    for number, found in enumerate(ReadAhead(12_288, source).announced(iter(windows))):
        assert found is windows[number]
        assert (number in source.announcements[True]) or number not in cold
        source.is_cold = number + 1 in cold
    assert source.probes == 0
    if not cold:
        assert source.announcements == {False: [], True: []}


def test_where_others_read_the_source_is_probed_now_and_then() -> None:
    source = Disk(is_cold=False)
    windows = ReadAhead(1000, source).announced(iter([np.arange(3)] * 200), read_here=False)
    assert sum(1 for _ in windows) == 200
    assert 2 <= source.probes <= 10


def test_rows_that_cannot_be_announced_fail_when_they_are_taken() -> None:
    class Damaged(Disk):
        def announce(self, rows: Any, values: bool) -> None:
            raise CorruptError("cut")

    windows = [np.arange(3)] * 5
    assert list(ReadAhead(1, Damaged()).announced(iter(windows))) == windows
    assert list(ReadAhead(1).announced(iter(windows))) == windows


def test_a_dataset_without_a_row_size_has_no_readahead() -> None:
    assert Squares()._readahead is None
    assert Squares()[3:]._readahead is None
    assert [len(window.ends) for window in windows_of(Squares(), [np.arange(3)] * 20)] == [1] * 20
    small = Squares(row_bytes=8)
    assert small._readahead is small._readahead
    assert small._readahead is not small[3:]._readahead is not None
    assert [len(window.ends) for window in windows_of(small, [np.arange(3)] * 20)] == [16, 4]


def test_copies_and_pickles_read_ahead_for_themselves() -> None:
    ref = Squares(row_bytes=8)
    for _ in ref._readahead.handed_out([1, 2, 3], np.array([1, 2, 3])):
        pass
    for other in (copy.copy(ref), pickle.loads(pickle.dumps(ref))):
        assert other._readahead is not ref._readahead
        assert other[[1, 2]] == [1, 4]
