"""Loaders whose state goes on over a version to which rows were appended."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.reading.dataref import DataRef

OLD, NEW = 40, 17


@pytest.fixture(params=["lmdb", pytest.param("hdf5", marks=pytest.mark.rest)])
def versions(request, tmp_path: Path) -> list[DataRef]:
    """Three versions, each with more rows than the one before."""
    storage = yoga.Storage(tmp_path, format=request.param)
    found = [storage.submit([{"x": n} for n in range(OLD)], "a", "1")]
    for version in (2, 3):
        start = len(found[-1])
        rows = [{"x": n} for n in range(start, start + NEW)]
        found.append(storage.append(rows, "a", str(version), after=str(version - 1)))
    return found


def numbers(batches) -> list[int]:
    return [int(x) for batch in batches for x in (batch["x"] if isinstance(batch, dict) else batch)]


def begun(ref: DataRef, batches: int, **options) -> tuple[list[int], dict]:
    """The rows of some batches, and the state after them."""
    loader = yoga.DataLoader(ref, batch_size=4, **{"shuffle": True, "seed": 5, **options})
    given = iter(loader)
    return numbers(next(given) for _ in range(batches)), loader.state_dict()


def saved(state: dict) -> dict:
    """A state that went through a file."""
    file = io.BytesIO()
    torch.save(json.loads(json.dumps(state)), file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.rest)])
@pytest.mark.parametrize("shuffle", [True, False, "block"])
def test_each_row_comes_once(shuffle, workers, versions):
    old, new, _ = versions
    first, state = begun(old, 6, shuffle=shuffle, num_workers=workers)
    options = {"batch_size": 4, "shuffle": shuffle, "seed": 5, "num_workers": workers}
    loader = yoga.DataLoader(new, appended="next", **options)
    loader.load_state_dict(saved(state))
    given = iter(loader)
    rest = numbers(next(given) for _ in range(2))
    later = yoga.DataLoader(new, **options)  # a state of the epoch under way needs no argument
    later.load_state_dict(saved(loader.state_dict()))
    ends = numbers(given)
    assert numbers(later) == ends
    assert sorted(first + rest + ends) == list(range(OLD))
    plain = yoga.DataLoader(old, **options)
    plain.load_state_dict(state)
    assert rest + ends == numbers(plain)
    assert sorted(numbers(later)) == list(range(OLD + NEW))
    assert "grown" not in later.state_dict()


def test_without_the_argument_the_error_names_it(versions):
    _, state = begun(versions[0], 3)
    loader = yoga.DataLoader(versions[2], batch_size=4, shuffle=True, seed=5)
    with pytest.raises(StateError, match=rf"{2 * NEW} rows were appended.*appended='next'"):
        loader.load_state_dict(state)
    for wrong in ("later", "now"):
        with pytest.raises(ValueError, match=f"appended must be 'next' or None, found '{wrong}'"):
            yoga.DataLoader(versions[2], appended=wrong)


VIEWS: dict[str, Callable[[DataRef], DataRef]] = {
    "a column": lambda ref: ref["x"],
    "one of a dict": lambda ref: ref.columns(["x"]),
    "map": lambda ref: ref.map(doubled),
    "map_batches": lambda ref: ref.map_batches(doubled_all),
    "map of columns": lambda ref: ref.columns(["x"]).map(doubled),
}


def doubled(row):
    return {"x": row["x"] * 2}


def doubled_all(batch):
    return {"x": batch["x"] * 2}


@pytest.mark.parametrize("kind", list(VIEWS))
def test_views_row_by_row_are_carried_over(kind, versions):
    old, new = (VIEWS[kind](ref) for ref in versions[:2])
    first, state = begun(old, 6)
    loader = yoga.DataLoader(new, batch_size=4, shuffle=True, seed=5, appended="next")
    loader.load_state_dict(state)
    expected = [row["x"] if isinstance(row, dict) else row for row in new]
    assert sorted(first + numbers(loader)) == sorted(map(int, expected[:OLD]))
    assert sorted(numbers(loader)) == sorted(map(int, expected))


def test_a_sampler_of_ones_own_refuses_the_argument(versions):
    sampler = torch.utils.data.RandomSampler(range(OLD), generator=torch.Generator().manual_seed(1))
    loader = yoga.DataLoader(versions[0], batch_size=4, sampler=sampler)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateError, match="draws its own order"):
        loader.load_state_dict(state, appended="next")


def test_a_version_without_some_rows_goes_on_only_from_versions_that_it_begins_with(versions, tmp_path):
    storage = yoga.Storage(tmp_path)
    _, state = begun(versions[0], 3)
    lacks = storage.delete_rows("a", "3", rows=[OLD - 1, OLD + 3], to="lacks an old row")
    with pytest.raises(StateError, match=r"length is|another"):
        yoga.DataLoader(lacks, batch_size=4, shuffle=True, seed=5, appended="next").load_state_dict(state)
    seen, state = begun(versions[0], 3)
    whole = storage.delete_rows("a", "3", rows=[OLD, OLD + 3], to="lacks new rows")
    loader = yoga.DataLoader(whole, batch_size=4, shuffle=True, seed=5, appended="next")
    loader.load_state_dict(state)
    assert sorted(seen + numbers(loader)) == list(range(OLD))
    assert sorted(numbers(loader)) == sorted(set(range(OLD + 2 * NEW)) - {OLD, OLD + 3})


def test_nothing_is_proved_of_an_epoch_whose_first_rows_were_others(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "proved")
    old = storage.submit({"x": np.arange(100)}, "a", "1")
    new = storage.delete_rows("a", "1", rows=range(10), to="2")
    loader = yoga.DataLoader(old, batch_size=10, shuffle=True, seed=1)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    for ref, is_whole in ((old, True), (new, False)):
        again = yoga.DataLoader(ref, batch_size=10, shuffle=True, seed=1)
        again.load_state_dict(state, strict=False)
        for _ in again:
            continue
        assert bool(again.prove()) is is_whole
        for _ in again:  # another epoch
            continue
        assert again.prove()
