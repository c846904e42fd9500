"""Batches are copied to a device whole, and their memory is not used again before that."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torchyoga.loading.delivery import Moving
from torchyoga.process.buffers import BufferPool
from torchyoga.process.stages import Stopwatch
from torchyoga.rows.collate import Jagged

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", "meta", pytest.param("cuda", marks=cuda)]


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
