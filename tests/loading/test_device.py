"""Batches on a device: the same, in order; the state counts those that were handed out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import torchyoga as yoga

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", "meta", pytest.param("cuda", marks=cuda)]


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    rows = [{"x": np.full(3, i, np.float32), "y": i, "s": str(i)} for i in range(23)]
    return yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)


def loader_of(ref: Any, **options: Any) -> yoga.DataLoader:
    return yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=3, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_on_the_device(ref: yoga.DataRef, device: str, workers: int) -> None:
    pinned = device == "cuda"
    batches = yoga.to_device(loader_of(ref, num_workers=workers, pin_memory=pinned), device)
    assert len(batches) == 6
    assert batches.batch_size == 4
    for _ in range(2):
        for found, expected in zip(batches, loader_of(ref), strict=True):
            assert found["s"] == expected["s"] or batches.loader.epoch
            assert found["x"].device.type == device
            assert found["x"].shape == expected["x"].shape


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
@pytest.mark.parametrize("workers", [0, 1])
def test_stopped_after_any_batch_it_goes_on_with_the_next(
    ref: yoga.DataRef, device: str, workers: int
) -> None:
    whole = [batch["y"].tolist() for _ in range(2) for batch in loader_of(ref)][:6]
    for stop in range(7):
        batches = yoga.to_device(loader_of(ref, num_workers=workers), device)
        iterator = iter(batches)
        got = [next(iterator)["y"].tolist() for _ in range(stop)]
        state = batches.state_dict()
        assert state == batches.loader.state_dict()
        assert (state["epoch"], state["position"]) == ((1, 0) if stop == 6 else (0, 4 * stop))
        again = yoga.to_device(loader_of(ref), device)
        again.load_state_dict(state)
        rest = [] if stop == 6 else [batch["y"].tolist() for batch in again]
        assert got + rest == whole


def test_a_failing_batch_fails_in_its_turn(broken: Dataset[int]) -> None:
    iterator = iter(yoga.to_device(yoga.DataLoader(broken, batch_size=4), "cpu"))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    assert next(iterator).tolist() == [4, 5, 6, 7]
    with pytest.raises(RuntimeError, match="row 9 is broken"):
        next(iterator)
    assert next(iterator).tolist() == [12, 13, 14, 15]
    assert next(iterator).tolist() == [16, 17, 18, 19]
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_other_loaders_are_refused() -> None:
    other: Any = torch.utils.data.DataLoader([1, 2])
    with pytest.raises(TypeError, match=r"takes a torchyoga\.DataLoader, found DataLoader"):
        yoga.to_device(other, "cpu")
    batches: Any = enumerate(yoga.DataLoader([1, 2]))
    with pytest.raises(
        TypeError, match=r"found enumerate, an iterator, .* Checkpoint in loaders=\{'train': to_device"
    ):
        yoga.to_device(batches, "cpu")


def test_pinning_without_an_accelerator_says_so(ref: yoga.DataRef) -> None:
    if torch.cuda.is_available():
        assert next(iter(loader_of(ref, pin_memory=True)))["x"].is_pinned()
        return
    with pytest.warns(UserWarning, match="no accelerator"):
        assert len(list(loader_of(ref, pin_memory=True))) == 6
