"""Rows of several versions, copied by one call."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import flip
from smallfiles import make_files_of
from waiting import at_once

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.reading.reader import JointReader
from torchyoga.testing import assert_rows_equal


def rows_of(kind: int, count: int) -> list[dict[str, Any]]:
    return [
        {"x": np.full((3, 5), 100 * kind + n, np.int16), "y": float(n), "empty": np.zeros(0, np.int8)}
        for n in range(count)
    ]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_files_of(8, monkeypatch.setattr)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read together, by each call that did."""
    real, counts = JointReader.take, list[int]()

    def take(self: JointReader, parts: Any, rows: Any) -> Any:
        found = real(self, parts, rows)
        counts.extend([len(rows)] if found is not None else [])
        return found

    monkeypatch.setattr(JointReader, "take", take)
    return counts


def submitted(folder: Path, kind: int, count: int, **options: Any) -> yoga.DataRef:
    rows = rows_of(kind, count)
    return yoga.Storage(folder, **options).submit(rows, f"v{kind}", "1", progress=False)


def call_warm(refs: list[Any]) -> None:
    """Announces their rows until it is known that they are in memory."""
    for ref in refs:
        reader = ref.open()
        for values in [False, True] * 500:
            if reader.is_cold:
                reader.announce(np.arange(len(ref)), values)


def warm(refs: list[Any]) -> None:
    """Reads until it is known that rows are in memory."""
    for ref in refs:
        ref.take(np.arange(len(ref)))
    call_warm(refs)


def test_what_is_compressed_is_read_by_itself(tmp_path: Path, together: list[int]) -> None:
    storage = yoga.Storage(tmp_path)
    ragged = [{"ids": np.ones((n % 4, 2 + n % 3))} for n in range(9)]
    schema = yoga.Schema.of(ragged[0], ragged=["ids"])
    pair = [storage.submit(ragged, name, "1", schema=schema, progress=False) for name in "ab"]
    packed = yoga.Storage(tmp_path / "packed", format="hdf5", compression="gzip")
    gzipped = [packed.submit(rows_of(n, 9), f"z{n}", "1", progress=False) for n in range(2)]
    for refs, are_together in ((pair, True), (gzipped, False)):
        warm(refs)
        joined = yoga.concat(refs)
        assert_rows_equal(joined[[0, 17, 5]], [refs[0][0], refs[1][8], refs[0][5]])
        assert bool(together) == are_together
        together.clear()


@pytest.mark.damages("a bit of a row is another")
def test_damage_is_found_before_it_is_copied(tmp_path: Path) -> None:
    refs = [submitted(tmp_path, number, 20) for number in range(2)]
    damaged = 0
    for path in (path for path in (tmp_path / "v1").rglob("*") if path.is_file()):
        if (held := np.full(15, 107, np.int16).tobytes()) in path.read_bytes():
            flip(path, held)
            damaged += 1
    assert damaged == 1
    fresh = [yoga.Storage(tmp_path).fetch(f"v{number}", "1") for number in range(2)]
    fresh[0].take(np.arange(20))
    call_warm(fresh)
    with pytest.raises(CorruptError, match="damaged"):
        yoga.concat(fresh)[[3, 27]]
    assert_rows_equal(yoga.concat(refs[:1])[3], refs[0][3])


def test_threads_and_files_that_are_opened_later(tmp_path: Path) -> None:
    refs = [submitted(tmp_path, number, 200) for number in range(2)]
    assert len(refs[0].file_starts) > 4
    joined = yoga.concat(refs)
    expected = [row for ref in refs for row in list(ref)]
    fresh = pickle.loads(pickle.dumps(joined))
    warm(list(fresh.sources))
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            numbers = rng.integers(0, 400, 20)
            found = fresh[numbers]
            wrong.extend(
                n for row, n in zip(found, numbers, strict=True) if row["x"][0, 0] != expected[n]["x"][0, 0]
            )

    at_once(*(partial(read, seed) for seed in range(3)))
    assert not wrong
