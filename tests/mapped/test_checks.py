"""Every unit is compared once, when it is first read, whoever reads; marks say so to other processes."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import in_processes, status_of_child
from hypothesis import given
from hypothesis import strategies as st
from starts import FRESH_STARTS

from torchyoga.formats.checks import CELL, Checks, Marks, num_units, unit_bytes_of, unit_checksums


@given(st.integers(0, 100_000))
def test_units_are_whole_items_of_a_page_or_more(item_bytes: int) -> None:
    size = unit_bytes_of(item_bytes)
    assert size % max(1, item_bytes) == 0
    assert 4096 <= size < 4096 + max(1, item_bytes)


@given(st.binary(max_size=50), st.integers(1, 20))
def test_checksums_of_units(data: bytes, size: int) -> None:
    found = unit_checksums(np.frombuffer(data, np.uint8), size)
    assert found.tolist() == [zlib.crc32(data[i : i + size]) for i in range(0, len(data), size)]
    assert num_units(np.array([len(data)]), size).tolist() == [len(found)]


FILES = st.lists(
    st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 9)), min_size=1, max_size=4
)


class Model:
    """Some checks, and the set of units that they should know to be compared."""

    def __init__(self, files: list[tuple[list[int], int]], marks: Marks, together: bool) -> None:
        self.checks = Checks(marks)
        # Bytes of each block, and of its units.
        self.sizes = [(n, unit) for nbytes, unit in files for n in nbytes]
        sizes, units = np.array(self.sizes).T
        cells = np.arange(len(sizes))
        shared = np.where(cells % 3 == 0, -1, cells)  # every third is known here alone
        start = 0
        for stop in [len(sizes)] if together else np.cumsum([len(nbytes) for nbytes, _ in files]).tolist():
            some = slice(start, stop)
            self.checks.append(num_units(sizes[some], units[some]), units[some], shared[some])
            start = stop
        self.done: set[tuple[int, int]] = set()
        self.every = {unit for block in range(len(self.sizes)) for unit in self.units_of(block)}

    def units_of(self, block: int) -> set[tuple[int, int]]:
        nbytes, unit = self.sizes[block]
        return {(block, nth) for nth in range(-(-nbytes // unit))}

    @property
    def done_blocks(self) -> set[int]:
        return {block for block in range(len(self.sizes)) if self.units_of(block) <= self.done}

    def read_units(self, blocks: list[int], spans: list[tuple[int, int]]) -> None:
        low, high = np.array(spans).T
        wanted = {
            (block, nth)
            for block, (a, b) in zip(blocks, spans, strict=True)
            for nth in range(a // self.sizes[block][1], (b - 1) // self.sizes[block][1] + 1 if b > a else 0)
        }
        units, found = self.checks.missing(np.array(blocks), low, high)
        named = set()
        places = np.stack(self.checks.places(units, found), axis=1).tolist()
        for (nth, begin, size), block in zip(places, found.tolist(), strict=True):
            assert (begin, size) == (nth * self.sizes[block][1], self.sizes[block][1])
            named.add((block, nth))
        assert named == wanted - self.done
        self.checks.mark(units, found)
        self.done |= wanted
        assert not len(self.checks.missing(np.array(blocks), low, high)[0])

    def read_blocks(self, blocks: list[int], known_elsewhere: set[int]) -> None:
        left = self.checks.open(np.array(blocks)).tolist()
        assert left == sorted({*blocks} - self.done_blocks - known_elsewhere)
        self.checks.mark_blocks(np.array(left, np.int64))
        for block in blocks:
            self.done |= self.units_of(block)
        assert not len(self.checks.open(np.array(blocks)))


@given(FILES, st.data())
def test_what_is_missing_against_a_set(files: list[tuple[list[int], int]], data: Any) -> None:
    """Two processes' checks, with marks that they share."""
    marks = Marks([16 * CELL])
    models = [Model(files, marks, together) for together in (False, True)]
    shared: set[int] = set()
    full = [block for block, (n, _) in enumerate(models[0].sizes) if n]
    for _ in range(8 if full else 0):
        model = data.draw(st.sampled_from(models))
        blocks = data.draw(st.lists(st.sampled_from(full), min_size=1, max_size=4))
        if data.draw(st.booleans()):
            model.read_blocks(blocks, shared)
        else:
            spans = []
            for block in blocks:
                low = data.draw(st.integers(0, model.sizes[block][0] - 1))
                spans.append((low, data.draw(st.integers(low, model.sizes[block][0]))))
            model.read_units(blocks, spans)
        shared |= {block for block in model.done_blocks if block % 3}
        assert model.checks.complete == (model.done >= model.every)
    assert {cell for cell in np.flatnonzero(marks.cells).tolist()} == {b for b in shared if b in full}


def test_what_needs_no_check_is_complete() -> None:
    checks = Checks(Marks([]))
    checks.append(np.array([3, 9]), 10, done=True)
    assert checks.complete
    assert not len(checks.open(np.array([0, 1])))
    checks.append(np.array([0, 0]), 10)
    assert checks.complete
    checks.append(np.array([2, 2, 2]), 10, done=np.array([True, False, True]))
    assert not checks.complete
    assert checks.open(np.arange(7)).tolist() == [5]
    checks.mark_blocks(np.array([5]))
    assert checks.complete


def test_what_is_known_to_be_sound_is_not_read_ahead_as_a_unit() -> None:
    checks = Checks(Marks([]))
    checks.append(np.array([4, 4]), 10)
    zero, one = np.array([0]), np.array([1])
    checks.mark_blocks(zero)
    low, high = np.array([13]), np.array([14])
    assert [found.tolist() for found in checks.widened(zero, low, high)] == [[13], [14]]
    assert [found.tolist() for found in checks.widened(one, low, high)] == [[10], [20]]


# -- marks, which processes share


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memory with a descriptor")


def test_each_file_has_cells_of_its_own() -> None:
    sizes = [1, CELL, CELL + 1, 9 * CELL, 0]
    marks = Marks(sizes)
    for file, size in enumerate(sizes):
        first = marks.first_cell(file, ("file", file))
        count = -(-size // CELL)
        assert not marks.cells[first : first + count].any()
        marks.cells[first : first + count] = file + 1
    for file, size in enumerate(sizes):
        first = marks.first_cell(file, ("file", file))
        assert marks.cells[first : first + -(-size // CELL)].tolist() == [file + 1] * -(-size // CELL)


def test_another_file_of_a_name_has_no_marks() -> None:
    marks = Marks([CELL])
    assert marks.first_cell(0, ("a", 1)) >= 0
    assert marks.first_cell(0, ("a", 2)) == -1
    assert marks.first_cell(0, ("a", 1)) >= 0


def test_files_that_are_too_large_have_no_marks() -> None:
    """A forged manifest may say any size; and it must cost no memory."""
    for sizes in ([2**61], [2**62] * 3, [2**43, 2**43, 1]):
        marks = Marks(sizes)
        assert len(marks.cells) < 100
        assert {marks.first_cell(file, ("a",)) for file in range(len(sizes))} == {-1}
    marks = Marks([2**43, 2**43])  # only what is written takes memory
    first = marks.first_cell(1, ("a",))
    marks.cells[first + 2**43 // CELL - 1] = 1


def test_a_copy_in_the_same_process_begins_anew() -> None:
    marks = Marks([CELL])
    marks.cells[:] = 1
    copy = pickle.loads(pickle.dumps(marks))
    assert len(copy.cells) == len(marks.cells)
    assert not copy.cells.any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_forked_child_shares_them() -> None:
    marks = Marks([2 * CELL])
    first = marks.first_cell(0, ("a",))
    marks.cells[first] = 1

    def in_child() -> None:
        assert marks.cells[first] == 1
        marks.cells[marks.first_cell(0, ("a",)) + 1] = 1

    assert status_of_child(in_child) == 0
    assert marks.cells[first : first + 2].tolist() == [1, 1]


def mark_last(marks: Marks) -> None:
    """The work of a process that was started with them."""
    assert marks.cells[0] == 1
    marks.cells[-1] = 1


@linux
@pytest.mark.parametrize("start", FRESH_STARTS)
def test_a_started_process_shares_them(start: str) -> None:
    marks = Marks([2 * CELL])
    marks.cells[0] = 1
    for _ in range(2):  # the second one is given what the first has left
        in_processes(start, partial(mark_last, marks))
        assert marks.cells[-1] == 1
        marks.cells[-1] = 0


@linux
def test_nothing_stays_open() -> None:
    folder = Path("/proc/self/fd")

    def names() -> set[str]:
        return {os.readlink(path) for path in folder.iterdir() if path.is_symlink() and path.exists()}

    marks = Marks([CELL])
    marks.cells[0] = 1
    in_processes("forkserver", partial(mark_last, marks))
    assert any("torchyoga-marks" in name for name in names())
    del marks
    gc.collect()
    assert not any("torchyoga-marks" in name for name in names())
