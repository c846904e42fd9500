"""Rows of a byte, of many columns, larger than a block, and of 100 MB come back as they went in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS


@pytest.fixture(params=FORMATS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path, request.param)


def loaders(ref: yoga.DataRef, batch_size: int, **options: Any) -> Iterator[Any]:
    """All ways to read, each as batches in the same order."""
    yield yoga.DataLoader(ref, batch_size, shuffle=True, seed=0, **options)
    yield yoga.DataLoader(ref, batch_size, shuffle=True, seed=0, num_workers=1, **options)
    sampler = yoga.ResumableSampler(ref, seed=0)
    yield torch.utils.data.DataLoader(ref, batch_size, sampler=sampler, **options)


@pytest.mark.slow("hdf5")
def test_rows_of_one_byte(storage: yoga.Storage) -> None:
    values = np.random.default_rng(0).integers(0, 256, 100_003, dtype=np.uint8)
    ref = storage.submit(values, "bytes", "1", progress=False)
    order = np.fromiter(yoga.ResumableSampler(ref, seed=0), np.int64)
    for loader in loaders(ref, 1000):
        assert np.array_equal(torch.cat(list(loader)).numpy(), values[order])


def test_three_hundred_columns(storage: yoga.Storage) -> None:
    kinds = ["u1", "i2", "f4", "f8"]
    data = {f"column {i}": np.arange(i, i + 70).astype(kinds[i % 4]) for i in range(300)}
    ref = storage.submit(data, "wide", "1", progress=False)
    order = list(yoga.ResumableSampler(ref, seed=0))
    for loader in loaders(ref, 70):
        (batch,) = loader
        assert len(batch) == 300
        for name, values in data.items():
            assert np.array_equal(batch[name].numpy(), values[order])


@pytest.mark.slow("hdf5")
def test_rows_larger_than_a_block(storage: yoga.Storage) -> None:
    rows = [np.full(9 * 2**20 + 3, i, np.uint8) for i in range(6)]
    ref = storage.submit(rows, "large", "1", progress=False)
    order = list(yoga.ResumableSampler(ref, seed=0))
    for loader in loaders(ref, 4):
        found = [row for batch in loader for row in batch]
        assert [int(row[0]) for row in found] == order
        assert all(bool((row == row[0]).all()) and len(row) == 9 * 2**20 + 3 for row in found)


@pytest.mark.parametrize("largest", [1_000_001, pytest.param(100_000_001, marks=pytest.mark.soak)])
def test_ragged_rows_of_very_different_lengths(largest: int, storage: yoga.Storage) -> None:
    lengths = [largest - 1, 0, 5, largest]
    rows = ({"x": np.full(n, i + 1, np.uint8)} for i, n in enumerate(lengths))
    schema = yoga.Schema.of({"x": np.zeros(1, np.uint8)}, ragged=["x"])
    ref = storage.submit(rows, "ragged", "1", schema=schema, progress=False)
    (batch,) = yoga.DataLoader(ref, batch_size=4, collate_fn=yoga.jagged)
    values, offsets = batch["x"]
    assert offsets.tolist() == np.cumsum([0, *lengths]).tolist()
    assert torch.equal(torch.bincount(values), torch.tensor([0, *lengths]))
    assert len(ref[3]["x"]) == lengths[3]
    assert [len(row["x"]) for row in ref] == lengths


def test_rows_without_any_bytes(storage: yoga.Storage) -> None:
    ref = storage.submit({"none": np.zeros((9, 0)), "y": np.arange(9)}, "empty", "1", progress=False)
    for loader in loaders(ref, 4):
        assert [tuple(batch["none"].shape) for batch in loader] == [(4, 0), (4, 0), (1, 0)]
