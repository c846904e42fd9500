"""A growing file is written to the disk early, where the system can be asked to; nothing else changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torchyoga.formats import writeback
from torchyoga.formats.writeback import Writeback


def test_each_stretch_is_asked_for_once(tmp_path: Path) -> None:
    asked: list[tuple[int, int, int]] = []

    def sync_range(handle: int, start: int, nbytes: int, flags: int) -> int:
        assert os.fstat(handle).st_ino == path.stat().st_ino
        asked.append((start, nbytes, flags))
        return 0

    path = tmp_path / "file"
    path.touch()
    early = Writeback(str(path), 100, sync_range)
    with path.open("ab", buffering=0) as file:
        for _ in range(5):
            file.write(b"x" * 60)
            early.grow(60)
    early.close()
    early.close()
    assert asked == [(0, 120, 2), (120, 120, 2)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")
def test_the_system_takes_it(tmp_path: Path) -> None:
    real, answers = writeback.sync_range, list[int]()
    assert real is not None
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    early = Writeback(str(path), 1, lambda *asked: answers.append(real(*asked)) or 0)
    early.grow(10_000)
    early.close()
    assert answers == [0]


def test_where_there_is_no_such_call_nothing_is_opened(tmp_path: Path) -> None:
    early = Writeback(str(tmp_path / "not there"), 1, None)
    early.grow(2**40)
    early.close()
