"""Marks are one memory for a process and those that it forks and starts, and about one file each."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from children import status_of_child
from starts import FRESH_STARTS
from waiting import PATIENCE

from torchyoga.formats.checks import CELL, Marks

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
        child = get_context(start).Process(target=mark_last, args=(marks,))  # type: ignore[attr-defined]
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert marks.cells[-1] == 1
        marks.cells[-1] = 0


@linux
def test_nothing_stays_open() -> None:
    folder = Path("/proc/self/fd")

    def names() -> set[str]:
        return {os.readlink(path) for path in folder.iterdir() if path.is_symlink() and path.exists()}

    marks = Marks([CELL])
    marks.cells[0] = 1
    child = get_context("forkserver").Process(target=mark_last, args=(marks,))
    child.start()
    child.join(PATIENCE)
    assert any("torchyoga-marks" in name for name in names())
    del marks
    gc.collect()
    assert not any("torchyoga-marks" in name for name in names())
