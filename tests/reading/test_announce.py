"""Rows are told of before they are taken: places first, values later, each once, and none while warm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.errors import CorruptError
from torchyoga.reading.announce import announced


class Source:
    """Notes what it is told of."""

    def __init__(self, row_bytes: int, is_cold: bool = True) -> None:
        self.row_bytes = row_bytes
        self.is_cold = is_cold
        self.probes = 0
        self.told: dict[bool, list[int]] = {False: [], True: []}

    def announce(self, rows: Any, values: bool) -> None:
        self.told[values] += rows.tolist()

    def probe(self) -> None:
        self.probes += 1


SIZES = st.lists(st.integers(1, 300), max_size=30)


@given(SIZES, st.sampled_from([1, 12_288, 10**6, 10**9]))
def test_every_window_is_told_once_in_two_steps_before_it_comes(sizes: list[int], row_bytes: int) -> None:
    ends = np.cumsum([0, *sizes])
    windows = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    source = Source(row_bytes)
    came = 0
    for found, expected in zip(announced(source, iter(windows)), windows, strict=True):
        assert found is expected
        came += len(found)
        assert came <= len(source.told[True]) <= len(source.told[False])
        for told in source.told.values():
            assert told == list(range(len(told)))
        ahead = (len(source.told[False]) - came) * max(row_bytes, 4096)
        assert ahead <= max(16 * 2**20, 300 * row_bytes) + 600 * max(row_bytes, 4096)
    assert len(source.told[True]) == sum(sizes)


@given(SIZES, st.sets(st.integers(0, 29)))
def test_a_warm_source_is_told_nothing_and_a_cooling_one_what_follows(
    sizes: list[int], cold: set[int]
) -> None:
    windows = [np.full(size, number) for number, size in enumerate(sizes)]
    source = Source(12_288, is_cold=0 in cold)
    for number, found in enumerate(announced(source, iter(windows))):
        assert found is windows[number]
        assert (number in source.told[True]) or number not in cold
        source.is_cold = number + 1 in cold
    assert source.probes == 0
    if not cold:
        assert source.told == {False: [], True: []}


def test_where_others_read_it_is_found_out_anew_now_and_then() -> None:
    source = Source(1000, is_cold=False)
    assert sum(1 for _ in announced(source, iter([np.arange(3)] * 200), read_here=False)) == 200
    assert 2 <= source.probes <= 10


def test_what_cannot_be_told_of_fails_when_it_is_taken() -> None:
    class Damaged(Source):
        def announce(self, rows: Any, values: bool) -> None:
            raise CorruptError("cut")

    windows = [np.arange(3)] * 5
    assert list(announced(Damaged(1), iter(windows))) == windows
    assert list(announced([1, 2, 3], iter(windows))) == windows
