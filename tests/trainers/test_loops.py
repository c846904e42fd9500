"""Training loops as people write them: some look at a batch first, others are a batch ahead."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import Step, runs, trained
from torch.utils.data import DataLoader as TorchLoader

import torchyoga as yoga
from torchyoga.errors import StateError

LENGTH, EPOCHS = 20, 2
pytestmark = pytest.mark.xdist_group("torch")


def assert_each_row_once(ranks: list[list[Step]], epochs: int = EPOCHS) -> None:
    for epoch in range(epochs):
        rows = Counter(row for rank in ranks for step in rank if step.epoch == epoch for row in step.rows)
        assert rows == Counter(range(LENGTH))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "torch's loader"])
def test_the_ddp_tutorial_is_resumed_in_the_middle_of_an_epoch(
    ours: bool, world: int, tmp_path: Path
) -> None:
    options = {"ours": ours, "length": LENGTH, "batch_size": 4 // world, "remainder": "pad"}
    whole = trained("tutorial", tmp_path / "whole", world=world, **options)
    assert_each_row_once(whole)
    # After 12 of 20 rows, and then at the end of that epoch, and in the next one.
    found = trained("tutorial", tmp_path / "stopped", [3, 2, 1], world=world, **options)
    assert found == whole


def test_the_ddp_tutorial_is_resumed_by_another_number_of_ranks(tmp_path: Path) -> None:
    options = {"length": LENGTH, "batch_size": 2, "remainder": "pad"}
    found = runs("tutorial", tmp_path, [3], [2, 1], **options)
    assert_each_row_once([rank for run in found for rank in run])


@pytest.mark.parametrize("loop", ["prefetcher", "nanogpt", "to_device"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loops_that_are_a_batch_ahead(loop: str, workers: int, tmp_path: Path) -> None:
    options = {"loop": loop, "workers": workers, "length": LENGTH}
    whole = trained("ahead", tmp_path / "whole", **options)
    assert_each_row_once(whole)
    assert trained("ahead", tmp_path / "stopped", [3, 2, 1], **options) == whole


# -- torch's DataLoader, whose workers ask ahead


def batches_of(kind: str, workers: int, length: int = 40) -> tuple[Any, Any]:
    """A sampler, and torch's loader over it."""
    sampler = yoga.ResumableSampler(length, seed=5)
    data = list(range(length))
    if kind == "sampler":
        return sampler, TorchLoader(data, 4, sampler=sampler, num_workers=workers)
    batches = yoga.ResumableBatchSampler(sampler, 4)
    return batches, TorchLoader(data, batch_sampler=batches, num_workers=workers)


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_a_state_that_is_ahead_warns_once_and_state_after_is_exact(kind: str) -> None:
    sampler, loader = batches_of(kind, 0)
    whole = [batch.tolist() for batch in loader]
    arguments = (4,) if kind == "sampler" else ()
    for steps, is_held in ((1, True), (3, False), (5, True)):
        sampler, loader = batches_of(kind, 2)
        batches = iter(loader)
        done = [next(batches).tolist() for _ in range(steps)]
        if not is_held:  # like a loop that breaks, and then saves
            del batches
        with pytest.warns(UserWarning, match=r"save\s+sampler.state_after\(steps, batch_size\)"):
            ahead = sampler.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sampler.state_dict() == ahead
            exact = sampler.state_after(steps, *arguments)
        assert (ahead["position"], exact["position"]) == (4 * (steps + 4), 4 * steps)
        resumed, loader = batches_of(kind, 2)
        resumed.load_state_dict(exact)
        assert done + [batch.tolist() for batch in loader] == whole
        assert resumed.prove()


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_without_workers_no_state_is_ahead(kind: str) -> None:
    sampler, loader = batches_of(kind, 0)
    next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sampler.state_dict()["position"] == 4


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_at_the_end_of_an_epoch_no_state_is_ahead(kind: str) -> None:
    sampler, loader = batches_of(kind, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loader:
            pass
        assert sampler.state_dict()["epoch"] == 1
        next(iter(loader))
        sampler.set_epoch(5)
        assert sampler.state_dict()["epoch"] == 5


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_a_look_at_a_batch_of_workers_moves_nothing(kind: str) -> None:
    _, loader = batches_of(kind, 0)
    whole = [batch.tolist() for batch in loader]
    _, loader = batches_of(kind, 2)
    gc.disable()  # the workers end when the iterator is dropped, not when the garbage collector runs
    try:
        looked = iter(loader)
        next(looked)
        held = weakref.ref(looked)
        del looked
        assert held() is None
        assert [batch.tolist() for batch in loader] == whole
    finally:
        gc.enable()


def test_steps_that_were_not_handed_out_are_refused() -> None:
    batches, loader = batches_of("batch sampler", 0)
    with pytest.raises(StateError, match="no iteration of this sampler has begun"):
        batches.state_after(0)
    assert len([batch for batch, _ in zip(loader, range(2), strict=False)]) == 2  # three were requested
    with pytest.raises(ValueError, match=r"steps must be in 0\.\.3, the batches of 4 rows"):
        batches.state_after(4)
    assert batches.state_after(2)["position"] == 8
