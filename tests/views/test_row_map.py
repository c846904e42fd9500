"""Row maps: the rows of a view, however it is cut and put together."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.order.by_file import equal_runs
from torchyoga.views.joined import RowMap

FILES = np.array([0, 4, 4, 11, 20])
bounds, steps = st.integers(-21, 21), st.sampled_from([-3, -2, -1, 1, 2, 3])
slices = st.builds(slice, bounds, bounds, steps)
ranges = slices.map(lambda some: range(20)[some])
lists = st.lists(st.integers(0, 19), max_size=9).map(lambda rows: np.array(rows, np.int64))
pieces = st.one_of(ranges, lists)


def rows_of(found: RowMap) -> list[int]:
    return found.rows(np.arange(len(found))).tolist()


def flat(some: Any) -> list[int]:
    return [int(row) for row in some]


@given(pieces, slices, st.randoms(use_true_random=False))
def test_any_view_of_any_rows_equals_that_of_a_list(some: Any, cut: slice, random: Any) -> None:
    found, expected = RowMap(some), flat(some)
    assert rows_of(found) == expected
    assert rows_of(found.chosen(range(len(expected))[cut])) == expected[cut]
    if expected:
        picked = [random.randrange(len(expected)) for _ in range(5)]
        assert rows_of(found.chosen(np.array(picked))) == [expected[place] for place in picked]
    again = pickle.loads(pickle.dumps(found))
    assert (again.pin, rows_of(again)) == (found.pin, expected)


@given(pieces)
def test_the_rows_of_each_file_are_counted(some: Any) -> None:
    expected = [sum(low <= row < high for row in flat(some)) for low, high in itertools.pairwise(FILES)]
    assert RowMap(some).counts(FILES).tolist() == expected


@given(st.sets(st.integers(0, 19)) | slices.map(lambda some: set(range(20)[some])))
def test_ascending_rows_below_each_bound_are_counted(some: set[int]) -> None:
    expected = [sum(row < bound for row in some) for bound in range(21)]
    assert RowMap(np.array(sorted(some), np.uint32)).before(np.arange(21)).tolist() == expected


def check_runs(some: Any, file_starts: Any) -> None:
    starts, rows = RowMap(some).starts(file_starts), flat(some)
    assert (starts[0], starts[-1]) == (0, len(rows))
    if starts.tolist() == equal_runs(len(rows)).tolist():
        return
    files = np.searchsorted(file_starts, rows, side="right")
    for start, stop in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        assert start < stop
        assert len(set(files[start:stop].tolist())) == 1


@given(pieces)
def test_runs_of_one_file_begin_where_it_says(some: Any) -> None:
    check_runs(some, FILES)


def test_long_runs_of_one_file_begin_where_it_says() -> None:
    """Of more rows than are looked at together, 65,536."""
    spread = np.sort(np.random.default_rng(0).integers(0, 400_000, 90_000))
    file_starts = np.array(FILES) * 20_000
    for some in (range(150_000), range(400_000, 100_000, -3), spread):
        check_runs(some, file_starts)
        changes = np.flatnonzero(np.diff(np.searchsorted(file_starts, some, side="right"))) + 1
        assert RowMap(some).starts(file_starts).tolist() == [0, *changes.tolist(), len(some)]


def test_files_are_known_while_their_rows_stay_together() -> None:
    files, rows = np.arange(0, 20_001, 100), np.random.default_rng(0).permutation(20_000)[:9_000]
    assert RowMap(rows).starts(files).tolist() == equal_runs(9_000).tolist()
    assert len(RowMap(np.sort(rows)).starts(files)) == 201
    assert RowMap(range(150, 350)).starts(files).tolist() == [0, 50, 150, 200]
    assert RowMap(range(349, 149, -1)).starts(files).tolist() == [0, 50, 150, 200]
    in_files = np.concatenate([np.arange(100 * file, 100 * file + 100) for file in (7, 3, 190)])
    assert RowMap(in_files).starts(files).tolist() == [0, 100, 200, 300]


def test_ranges_stay_ranges() -> None:
    assert RowMap(np.arange(10, 0, -3)).piece == range(10, -2, -3)
    assert RowMap(range(0, 10**15, 7)).chosen(range(5, 10**14, 3)).piece.step == 21  # type: ignore[union-attr]


def test_pins_differ_if_rows_or_their_order_differ() -> None:
    made = [range(0), range(5), range(4, -1, -1), range(6), *map(np.array, ([3, 1, 2], [1, 3, 2], [1, 1]))]
    assert len({RowMap(some).pin for some in made}) == len(made)
    assert RowMap(np.array([2, 0, 1])).pin == "8172ae6324337b566b39b99d40945659"
