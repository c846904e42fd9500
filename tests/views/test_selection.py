"""Selections of rows: the same in every form, there and back."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from torchyoga.views import selection
from torchyoga.views.selection import Selection

Mask = npt.NDArray[np.bool_]


def check(mask: Mask, found: Selection) -> None:
    """All that a selection says, against the mask."""
    rows = np.flatnonzero(mask)
    assert (len(found), found.total) == (len(rows), len(mask))
    assert found.rows(np.arange(len(rows))).tolist() == rows.tolist()
    assert found.before(np.arange(len(mask) + 1)).tolist() == [0, *np.cumsum(mask).tolist()]


def test_every_mask_of_few_rows() -> None:
    for length in range(9):
        for bits in itertools.product([False, True], repeat=length):
            mask = np.array(bits, np.bool_)
            check(mask, Selection.of_mask(mask))


@pytest.mark.parametrize("density", [0.5, 0.97])
@pytest.mark.parametrize("run", [1, 3])
def test_rows_of_many_are_found_without_a_list_of_all(density: float, run: int) -> None:
    """Of more than 2**19, of which a list is made when they are first looked up."""
    length = int(2**19 * 1.1 / density)
    mask = np.repeat(np.random.default_rng(run).random(length // run + 1) < density, run)[:length]
    rows, found = np.flatnonzero(mask), Selection.of_mask(mask)
    some = np.r_[np.arange(3000), np.arange(3, len(rows), 97), np.arange(len(rows) - 3000, len(rows))]
    assert found.rows(some).tolist() == rows[some].tolist()


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Masks of all densities, of runs of all lengths, and of lengths around words and runs of words."""
    length = draw(st.sampled_from([0, 1, 63, 64, 65, 127, 511, 512, 513, 1024, 1025, 5000]))
    seed, density = draw(st.integers(0, 2**32)), draw(st.sampled_from([0.0, 0.003, 0.1, 0.5, 0.97, 1.0]))
    run = draw(st.sampled_from([1, 2, 64, 700]))
    found = np.random.default_rng(seed).random(length // run + 1) < density
    return np.repeat(found, run)[:length]


@settings(max_examples=examples(200))
@given(masks(), st.lists(st.integers(0, 5000), max_size=4))
def test_selections_hold_what_their_masks_say(mask: Mask, cuts: list[int]) -> None:
    found = Selection.of_masks(np.split(mask, sorted(min(cut, len(mask)) for cut in cuts)))
    check(mask, found)
    rows = np.flatnonzero(mask)
    again = Selection.of_rows(np.array_split(rows[::-1], 3), len(mask))
    assert again.pin == found.pin
    check(mask, pickle.loads(pickle.dumps(again)))
    parts = Selection.of_parts(np.split(mask.astype(np.int64), [len(mask) // 3]), 2)
    check(~mask, parts[0])
    check(mask, parts[1])


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (np.arange(10**6) // 250_000 % 2 == 1, 100),  # two runs
        (np.arange(10**6) % 1000 == 7, 4 * 1000),  # a list
        (np.arange(10**6) % 3 == 1, 10**6 // 8 * 1.13),  # bits
    ],
    ids=["runs", "list", "bits"],
)
def test_the_smallest_form_is_taken(mask: Mask, most: float) -> None:
    found = Selection.of_mask(mask)
    assert found.nbytes <= most
    assert len(pickle.dumps(found)) <= most + 1000
    check(mask[:0], Selection.of_mask(mask[:0]))
    some = np.random.default_rng(0).integers(0, len(found), 1000)
    assert np.array_equal(found.rows(some), np.flatnonzero(mask)[some])


def test_pins_tell_rows_and_totals_apart() -> None:
    pins = {
        Selection.of_mask(np.array(bits + (False,) * more, np.bool_)).pin
        for bits in itertools.product([False, True], repeat=6)
        for more in (0, 1, 70)
    }
    assert len(pins) == 3 * 2**6


def test_ones_are_counted_alike_without_numpy_2() -> None:
    words = np.random.default_rng(0).integers(0, 2**64, (50, 8), np.uint64)
    expected = [[bin(word).count("1") for word in run] for run in words.tolist()]
    for some, ones in ((words, expected), (words[:, 0], [run[0] for run in expected])):
        assert selection.ones_of(some).tolist() == ones


def test_what_is_unpacked_is_not_pickled() -> None:
    found = Selection.of_mask(np.random.default_rng(0).random(4096) < 0.5)
    before = pickle.dumps(found)
    assert len(before) < 2000
    rows = found.rows(np.arange(len(found)))
    assert len(pickle.dumps(found)) == len(before)
    assert pickle.loads(before).rows(np.arange(len(found))).tolist() == rows.tolist()
