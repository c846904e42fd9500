"""Batches on a device: the same, whole, in order; the state counts those that were handed out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset

import torchyoga as yoga
from torchyoga.loading.delivery import Moving
from torchyoga.process.buffers import BufferPool
from torchyoga.process.stages import Stopwatch
from torchyoga.rows.collate import Jagged

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


class Batch:
    """A batch with a method that moves it to a device."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Batch:
        return Batch(self.x.to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_can_move_to_a_device_move_themselves(device: str) -> None:
    batch = {
        "packed": pack_sequence([torch.arange(3.0), torch.arange(2.0)]),
        "own": Batch(torch.ones(2)),
        "jagged": Jagged(torch.arange(3), torch.tensor([0, 1, 3])),
        "text": ["a", None, 3],
    }
    (found,) = Moving(torch.device(device), Stopwatch(), iter([batch]))
    assert type(found["packed"]) is PackedSequence
    assert found["packed"].data.device.type == device
    assert found["packed"].batch_sizes.device.type == "cpu"  # as torch requires
    assert found["own"].x.device.type == device
    assert type(found["jagged"]) is Jagged
    assert found["jagged"].values.device.type == device
    assert found["text"] == ["a", None, 3]


@cuda
def test_tensors_of_other_layouts_arrive_whole() -> None:
    batch = [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)]),
        torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged),
    ]
    (found,) = Moving(torch.device("cuda"), Stopwatch(), iter([batch]))
    for one, other in zip(found[:2], batch[:2], strict=True):
        assert torch.equal(one.cpu().to_dense(), other.to_dense())
    for one, other in zip(found[2:], batch[2:], strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(one.unbind(), other.unbind(), strict=True))


@cuda
def test_memory_that_is_used_again_is_read_first() -> None:
    pool = BufferPool()

    def made(number: int) -> torch.Tensor:
        memory = pool.empty(2**26)
        memory[:] = number
        return torch.from_numpy(memory)

    for number, found in enumerate(Moving(torch.device("cuda"), Stopwatch(), map(made, range(12)))):
        assert bool((found == number).all())
