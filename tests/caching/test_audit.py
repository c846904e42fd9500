"""Rows of a version made anew from what it was made of."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchyoga as yoga
from torchyoga.errors import AuditError, NotFoundError

COUNT = 500


class Squares:
    """Rows by number, of which some may be changed."""

    def __init__(self) -> None:
        self.count = COUNT
        self.rows: dict[int, Any] = {}
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.asked.append(number)
        row = {
            "n": number,
            "half": number / 2,
            "image": np.full((4, 4), number % 256, np.uint8),
            "text": f"row {number}",
            "ids": np.arange(number % 3),
            "age": None if number % 7 == 3 else number,
        }
        return {**row, **self.rows.get(number, {})}


@pytest.fixture(params=["lmdb", "hdf5"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> yoga.Storage:
    storage = yoga.Storage(tmp_path / "storage", format=request.param)
    storage.submit(Squares(), "a", "1", progress=False)
    return storage


def test_equal_rows(storage: yoga.Storage) -> None:
    data = Squares()
    found = storage.audit("a", "1", data, rows=100, seed=3)
    assert {0, COUNT - 1} <= set(data.asked)
    assert found.rows == len(set(data.asked)) == len(data.asked)
    assert 100 <= found.rows <= 102
    assert (found.total, found.is_prefix) == (COUNT, False)
    assert found.share == pytest.approx(1 - 0.05**0.01)
    assert "if 2.95% or more were wrong" in str(found)
    first = set(data.asked)
    data.asked.clear()
    storage.audit("a", "1", lambda: data, rows=100, seed=3)
    assert set(data.asked) == first
    data.asked.clear()
    storage.audit("a", "1", data, rows=100)
    assert set(data.asked) != first
    whole = storage.audit("a", "1", data, rows=10**6)
    assert (whole.rows, whole.share) == (COUNT, 0.0)
    assert str(whole) == "all 500 rows are as the source gives them"
    assert storage.audit("a", "1", data, rows=0).rows == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": -1}, "column 'n': expected 499, found -1"),
        ({"text": "other"}, "column 'text': expected 'row 499', found 'other'"),
        ({"half": math.nan}, "column 'half': expected 249.5, found nan"),
        ({"ids": np.arange(5)}, r"column 'ids': expected shape \(1,\), found \(5,\)"),
        (
            {"age": None},
            r"column 'age': expected 499, found 0; column 'age\{valid\}': expected True, found False",
        ),
        ({"n": 1, "half": 1.0, "text": "", "age": 1}, "and 1 more columns"),
        ({"n": "text"}, "row 499 does not fit: column 'n': expected int <i8, found str"),
        ({"extra": 1}, "row 499 does not fit"),
    ],
)
def test_the_first_row_that_differs_is_named(storage: yoga.Storage, change: Any, said: str) -> None:
    data = Squares()
    data.rows[COUNT - 1] = change
    with pytest.raises(AuditError, match=said):
        storage.audit("a", "1", data, rows=5)


def test_where_an_array_differs(storage: yoga.Storage) -> None:
    data, image = Squares(), np.zeros((4, 4), np.uint8)
    image[2, 1] = 7
    data.rows[0] = {"image": image}
    with pytest.raises(
        AuditError,
        match=r"row 0 of 'a' '1' is not what Squares gives now: column 'image': 1 of 16 values differ, "
        r"at \[2, 1\] expected 0, found 7",
    ):
        storage.audit("a", "1", data, rows=5)


@pytest.mark.parametrize("row", [17, 250])
def test_every_wrong_row_is_found_if_all_are_compared(storage: yoga.Storage, row: int) -> None:
    data = Squares()
    data.rows[row] = {"n": 0}
    with pytest.raises(AuditError, match=f"row {row} of"):
        storage.audit("a", "1", data, rows=COUNT)


def test_a_share_of_wrong_rows_is_found_as_often_as_is_said(storage: yoga.Storage) -> None:
    data = Squares()
    rng = np.random.default_rng(0)
    wrong = set((1 + rng.choice(COUNT - 2, 15, replace=False)).tolist())  # 3 %
    data.rows = {row: {"n": -1} for row in wrong}
    missed = 0
    for seed in range(40):
        try:
            found = storage.audit("a", "1", data, rows=98, seed=seed)
            assert found.share == pytest.approx(0.03, abs=0.001)
            missed += 1
        except AuditError:
            pass
    assert missed <= 6  # 2 are expected; the seeds are always the same


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1])
def test_other_lengths_are_said(storage: yoga.Storage, count: int) -> None:
    data = Squares()
    data.count = count
    with pytest.raises(AuditError, match=f"Squares has {count} rows, but 'a' '1' has 500"):
        storage.audit("a", "1", data)
    rows = [Squares()[n % COUNT] for n in range(count)]
    said = "has 499 rows" if count < COUNT else "has more rows than 'a' '1', which has 500"
    with pytest.raises(AuditError, match=said):
        storage.audit("a", "1", iter(rows), rows=COUNT)


def test_iterables_are_compared_from_their_beginning(storage: yoga.Storage) -> None:
    def rows() -> Any:
        for number in range(COUNT):
            asked.append(number)
            yield Squares()[number]

    asked: list[int] = []
    found = storage.audit("a", "1", rows, rows=40)
    assert asked == list(range(40))
    assert (found.rows, found.is_prefix, found.share) == (40, True, 1.0)
    assert str(found) == "the first 40 of 500 rows are as the source gives them"
    assert not storage.audit("a", "1", rows(), rows=COUNT).is_prefix
    changed = Squares()
    changed.rows[3] = {"n": 0}
    with pytest.raises(AuditError, match="row 3 of"):
        storage.audit("a", "1", (changed[n] for n in range(COUNT)), rows=4)


def test_random_rows_are_said_and_generators_stay(storage: yoga.Storage) -> None:
    class Noisy(Squares):
        def __getitem__(self, number: int) -> Any:
            return {**super().__getitem__(number), "half": random.random() + float(torch.rand(()))}

    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state().tolist()
    with pytest.raises(
        AuditError, match="row 0 of Noisy differs each time it is read, as if augmented at random"
    ):
        storage.audit("a", "1", Noisy())
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tolerance_for_floats(tmp_path: Path, dtype: torch.dtype) -> None:
    storage = yoga.Storage(tmp_path / "s")

    def rows(add: float) -> list[Any]:
        return [
            {"x": torch.full((3,), n + add, dtype=dtype), "n": n, "y": np.ones(n % 3) + add} for n in range(9)
        ]

    storage.submit(rows(0), "f", "1", progress=False)
    with pytest.raises(AuditError, match=r"3 of 3 values differ, at \[0\] expected"):
        storage.audit("f", "1", rows(0.25))
    assert storage.audit("f", "1", rows(0.25), tolerance=0.25).rows == 9
    assert storage.audit("f", "1", rows(0.25), tolerance={"x": 0.25, "y": 1}).rows == 9
    with pytest.raises(AuditError, match="column 'y'"):
        storage.audit("f", "1", rows(0.25), tolerance={"x": 0.25})
    with pytest.raises(AuditError, match="column 'x'"):
        storage.audit("f", "1", rows(0.5), tolerance=0.25)
    changed = rows(0)
    changed[8]["n"] = 9
    with pytest.raises(AuditError, match="column 'n': expected 8, found 9"):
        storage.audit("f", "1", changed, tolerance=5.0)
    for wrong in (-1.0, math.nan, math.inf, True, "1"):
        with pytest.raises(ValueError, match="tolerance must be a number of at least 0"):
            storage.audit("f", "1", rows(0), tolerance=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a tolerance is for floats"):
        storage.audit("f", "1", rows(0), tolerance={"n": 1.0})
    with pytest.raises(KeyError, match="there is no column 'z'"):
        storage.audit("f", "1", rows(0), tolerance={"z": 1.0})


def test_arrays_and_datarefs(storage: yoga.Storage) -> None:
    data = {"x": np.arange(300), "y": np.ones((300, 2), np.float32)}
    ref = storage.submit(data, "arrays", "1", progress=False)
    assert storage.audit("arrays", "1", data, rows=20).total == 300
    assert storage.audit("arrays", "1", ref.map(lambda row: row), rows=20).total == 300
    assert storage.audit("arrays", "1", ref.select(range(300)), rows=20).total == 300
    with pytest.raises(AuditError, match=r"row 0 of .*: column 'x': expected 0, found 299"):
        storage.audit("arrays", "1", ref[::-1])
    with pytest.raises(AuditError, match=r"columns of .* differ: removed: y"):
        storage.audit("arrays", "1", ref.columns(["x"]))
    data["x"][150] = 0
    with pytest.raises(AuditError, match="row 150 of"):
        storage.audit("arrays", "1", data, rows=300)


def test_the_version_itself_is_refused(storage: yoga.Storage) -> None:
    with pytest.raises(ValueError, match="the source is the version itself"):
        storage.audit("a", "1", storage.fetch("a", "1"))

    count = 9

    @storage.cacheable("powers", "1", stale="ignore")
    def powers() -> Any:
        return [n**2 for n in range(count)]

    powers()
    assert storage.audit("powers", "1", powers).rows == 9
    count = 8
    with pytest.raises(AuditError, match="list has 8 rows, but 'powers' '1' has 9"):
        storage.audit("powers", "1", powers)
    with pytest.raises(AuditError, match="list has 8 rows"):
        storage.audit("powers", "1", lambda: powers.__wrapped__())  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the source is the version itself"):
        storage.audit("powers", "1", lambda: powers())


@pytest.mark.parametrize("codec", ["zstd", "dictionary", "png", "jpeg"])
def test_encoded_columns(storage: yoga.Storage, codec: str) -> None:
    encoder: Any = {
        "zstd": yoga.codecs.zstd(),
        "dictionary": yoga.codecs.zstd(dictionary=True),
        "png": yoga.codecs.png(),
        "jpeg": yoga.codecs.jpeg(60),
    }[codec]
    rng = np.random.default_rng(0)
    if codec in ("zstd", "dictionary"):
        rows = [{"value": f"a line of text, number {n} " * 4, "n": n} for n in range(80)]
    else:
        rows = [{"value": rng.integers(0, 256, (8, 8, 3), np.uint8), "n": n} for n in range(20)]
    codecs = {"value": encoder}
    storage.submit(rows, "coded", "1", progress=False, codecs=codecs)
    assert storage.audit("coded", "1", rows, codecs=codecs).rows == len(rows)
    if codec == "jpeg":
        with pytest.raises(
            AuditError, match=r"column 'value': .* If it was submitted with codecs=, pass the same"
        ):
            storage.audit("coded", "1", rows)
        with pytest.raises(AuditError, match=r"column 'value': expected b.* bytes\), found"):
            storage.audit("coded", "1", rows, codecs={"value": yoga.codecs.jpeg(90)})
    else:
        assert storage.audit("coded", "1", rows).rows == len(rows)
        assert storage.audit("coded", "1", iter(rows)).is_prefix is False
    # What a version has encoded is given as it is.
    assert storage.audit("coded", "1", storage.fetch("coded", "1").select(range(len(rows)))).rows == len(rows)
    assert storage.audit("coded", "1", list(storage.fetch("coded", "1"))).rows == len(rows)
    changed = [dict(row) for row in rows]
    changed[-1]["n"] = -1
    with pytest.raises(AuditError, match=r"column 'n': expected .*, found -1"):
        storage.audit("coded", "1", changed, codecs=codecs)


def test_versions_without_rows_and_bad_arguments(storage: yoga.Storage) -> None:
    storage.submit([], "none", "1", progress=False)
    assert storage.audit("none", "1", []).rows == 0
    with pytest.raises(AuditError, match="list has 1 rows, but 'none' '1' has 0"):
        storage.audit("none", "1", [1])
    with pytest.raises(AuditError, match="has more rows than 'none' '1', which has 0"):
        storage.audit("none", "1", iter([1]))
    with pytest.raises(NotFoundError):
        storage.audit("none", "2", [])
    with pytest.raises(ValueError, match="rows must be at least 0"):
        storage.audit("a", "1", Squares(), rows=-1)
    with pytest.raises(TypeError, match="no rows can be read"):
        storage.audit("a", "1", 7)
