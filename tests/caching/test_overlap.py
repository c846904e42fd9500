"""Rows of a test set that occur in a training set."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from interrupting import calls_of

import torchyoga as yoga
from torchyoga.caching.comparing import spool
from torchyoga.errors import SchemaError
from torchyoga.rows.hashing import row_hashes


@pytest.mark.rest
@pytest.mark.parametrize("parts", [2, 2**21])
def test_all_small_sets(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PART_ROWS", parts)
    every = [rows for count in range(4) for rows in itertools.product(range(3), repeat=count)]
    for train, test in itertools.product(every, every):
        refs = [yoga.from_arrays({"x": np.array(rows, np.int64)}) for rows in (train, test)]
        found = yoga.overlap(*refs)
        expected = [[train.index(row), n] for n, row in enumerate(test) if row in train]
        assert found.rows.tolist() == expected
        assert found.share == len(expected) / max(1, len(test))


def test_another_label_hides_no_leak() -> None:
    images = np.arange(12).reshape(6, 2)
    train = yoga.from_arrays({"image": images[:4], "label": np.zeros(4, int)})
    test = yoga.from_arrays({"image": images[2:], "label": np.ones(4, int)})
    assert len(yoga.overlap(train, test).rows) == 0
    found = yoga.overlap(train, test, ["image"])
    assert found.rows.tolist() == [[2, 0], [3, 1]]
    assert str(found).splitlines() == [
        "2 of 4 rows of the test set (50.00%) are among the 4 of the training set, compared by image",
        "test row 0 is training row 2",
        "test row 1 is training row 3",
    ]
    assert str(yoga.overlap(test, test)).splitlines()[-1] == "test row 3 is training row 3"


def test_columns_that_cannot_be_compared_are_said() -> None:
    train = yoga.from_arrays({"id": np.arange(3), "x": np.zeros((3, 2)), "only": np.arange(3)})
    test = yoga.from_arrays({"id": np.arange(2, 9), "x": np.zeros((7, 3))})
    found = yoga.overlap(train, test)
    assert (found.columns, found.left_out, found.rows.tolist()) == (("id",), ("x",), [[2, 0]])
    assert "not compared, since types or shapes differ: x" in str(found)
    with pytest.raises(SchemaError, match="which are never equal"):
        yoga.overlap(train, test, ["x"])
    with pytest.raises(KeyError, match="there is no column 'only'"):
        yoga.overlap(train, test, ["only"])
    with pytest.raises(SchemaError, match="there is no column to compare"):
        yoga.overlap(train.columns(["x"]), test.columns(["x"]))
    with pytest.raises(TypeError, match=r"columns=\['id'\]"):
        yoga.overlap(train, test, "id")
    with pytest.raises(TypeError, match="overlap compares DataRefs"):
        yoga.overlap(train, [1])  # type: ignore[arg-type]


def test_kept_hashes_are_read(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "s")
    rows = [{"text": f"line {n}", "tags": ["a"] * (n % 3)} for n in range(300)]
    train = storage.submit(rows[:200], "a", "train", progress=False, row_hashes=True)
    test = storage.submit(rows[198:], "a", "test", progress=False, row_hashes=True)
    with calls_of(row_hashes) as read:
        assert yoga.overlap(train, test).rows.tolist() == [[198, 0], [199, 1]]
        assert yoga.overlap(train, test[:1]).rows.tolist() == [[198, 0]]
    assert sum(call["block"].num_rows for call in read) <= 41  # those that are looked at, and one
    assert yoga.overlap(train, train[::-1]).share == 1.0
    empty = storage.submit([], "a", "none", progress=False)
    assert yoga.overlap(train, empty).share == 0.0
    assert yoga.overlap(empty, test).rows.shape == (0, 2)
