"""Training loops as people write them: some look at a batch first, others are a batch ahead."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Step, launch, runs, trained
from own import Mapped
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


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("trainer", ["accelerate", "fabric"])
def test_a_checkpoint_over_what_a_trainer_has_prepared(trainer: str, world: int, tmp_path: Path) -> None:
    options = {"loop": trainer, "length": LENGTH, "batch_size": 4 // world, "dropout": 0.3}
    ((*whole,),) = runs("checkpointed", tmp_path / "whole", [], [world], **options)
    assert_each_row_once(whole)
    # Killed after steps 5 and 8 of 10: it has saved step 3, and then step 6.
    found = runs("checkpointed", tmp_path / "stopped", [5, 5], [world] * 3, **options)
    for rank, steps in enumerate(whole):
        assert [run[rank] for run in found] == [steps[:5], steps[3:8], steps[6:]]


# -- random numbers, restored with the state, or not


def rows(length: int, is_noisy: bool = False) -> Mapped:
    return Mapped(length, lambda row: torch.arange(4.0) * row / length + (torch.rand(4) if is_noisy else 0.0))


class Run:
    """Three epochs, each with an evaluation, from a checkpoint or from the beginning.

    Torch's random numbers are restored "first", "before" the loader's state, "after" it, or when the iterator
    was made ("late").
    """

    def __init__(self, valid: Any, found: Any = None, restored: str = "first") -> None:

        def restore(moment: str) -> None:
            if found and restored == moment:
                torch.set_rng_state(found["numbers"])

        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.1)
        restore("first")
        self.loader, self.valid = yoga.DataLoader(rows(11, is_noisy=True), 4, shuffle=True), valid()
        if found:
            restore("before")
            self.loader.load_state_dict(found["data"])
            self.net.load_state_dict(found["net"])
            restore("after")
        self.losses: list[tuple[Any, ...]] = []
        self.evaluated: dict[int, float] = {}
        self.saved = [self.checkpoint()]
        moment = "late"
        while (epoch := self.loader.state_dict()["epoch"]) < 3:
            batches = iter(self.loader)
            restore(moment)
            moment = "never again"
            for batch in batches:
                loss = self.net(batch).square().mean()
                self.losses.append((epoch, loss.item().hex()))
                self.sgd.zero_grad()
                loss.backward()
                self.sgd.step()
                self.saved.append(self.checkpoint())
            self.net.eval()
            self.valid.set_epoch(epoch)
            self.evaluated[epoch] = sum(self.net(batch).square().mean().item() for batch in self.valid)
            self.net.train()
        restore(moment)
        self.left = torch.rand(()).item()  # what is drawn after it

    def checkpoint(self) -> dict[str, Any]:
        net = {name: value.clone() for name, value in self.net.state_dict().items()}
        return {"data": self.loader.state_dict(), "numbers": torch.get_rng_state(), "net": net}


def plain() -> yoga.DataLoader:
    return yoga.DataLoader(rows(9), 4, remainder="keep")


def collated() -> yoga.DataLoader:
    return yoga.DataLoader([rows(9)[row] for row in range(9)], 4, collate_fn=torch.stack)


def random() -> yoga.DataLoader:
    """An evaluation that shuffles, drops rows and augments the others."""
    return yoga.DataLoader(rows(9, is_noisy=True), 4, shuffle=True, drop_last=True, seed=5)


@pytest.mark.parametrize("restored", ["first", "before", "after", "late"])
@pytest.mark.parametrize("valid", [plain, collated, random])
def test_losses_are_the_same_wherever_a_run_was_stopped(valid: Any, restored: str) -> None:
    whole = Run(valid)
    assert len(whole.saved) == 10
    for step, checkpoint in enumerate(whole.saved):
        found = Run(valid, checkpoint, restored)
        assert found.losses == whole.losses[step:]
        assert found.evaluated.items() <= whole.evaluated.items()
        assert found.left == whole.left


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
        assert sampler.state_dict() == ahead
        exact = sampler.state_after(steps, *arguments)
        assert (ahead["position"], exact["position"]) == (4 * (steps + 4), 4 * steps)
        resumed, loader = batches_of(kind, 2)
        resumed.load_state_dict(exact)
        assert done + [batch.tolist() for batch in loader] == whole
        assert resumed.prove()


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_no_state_is_ahead_without_workers_or_at_the_end_of_an_epoch(kind: str) -> None:
    sampler, loader = batches_of(kind, 0)
    next(iter(loader))
    assert sampler.state_dict()["position"] == 4
    sampler, loader = batches_of(kind, 2)
    for _ in loader:
        pass
    assert sampler.state_dict()["epoch"] == 1
    next(iter(loader))
    sampler.set_epoch(5)
    assert sampler.state_dict()["epoch"] == 5


def test_steps_that_were_not_handed_out_are_refused() -> None:
    batches, loader = batches_of("batch sampler", 0)
    with pytest.raises(StateError, match="no iteration of this sampler has begun"):
        batches.state_after(0)
    assert len([batch for batch, _ in zip(loader, range(2), strict=False)]) == 2  # three were requested
    with pytest.raises(ValueError, match=r"steps must be in 0\.\.3, the batches of 4 rows"):
        batches.state_after(4)
    assert batches.state_after(2)["position"] == 8


@pytest.mark.xdist_group("accelerate")
def test_accelerate_plans_the_learning_rates_that_it_plans_for_torchs_loader(tmp_path: Path) -> None:
    launch("accelerate_rates", {"folder": str(tmp_path), "remainder": "pad"}, world=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"rates{rank}.json").read_text())
        for (torchs, ours), lengths in zip(found, ([11, 6], [10, 5]), strict=True):  # 42 rows by 4
            assert ours[0] == torchs[0] == lengths
            assert ours[1] == torchs[1]


# -- loops that count


def accumulated(loader: Any, epochs: int, every: int, stop_after: int | None, log: list[Any]) -> Any:
    """A loop in the shape of timm's: an update after each `every` batches, and after the last of an epoch.

    The number of the epoch comes from the loader. Returns a state after `stop_after` updates.
    """
    for epoch in range(loader.epoch, epochs):
        gathered: list[int] = []
        for step, batch in enumerate(loader, loader.steps):
            gathered += batch.tolist()
            if (step + 1) % every and step != len(loader) - 1:
                continue
            log.append((epoch, step, gathered))
            gathered = []
            if len(log) == stop_after:
                return loader.state_dict()
        assert not gathered, "batches were never stepped"
    return None


def foreign(length: int) -> yoga.DataLoader:
    return yoga.DataLoader(
        range(length), 3, sampler=torch.utils.data.SubsetRandomSampler(list(range(length))), seed=5
    )


@pytest.mark.parametrize("make", [lambda length: yoga.DataLoader(range(length), 3, True, seed=5), foreign])
def test_a_loop_that_accumulates_and_counts_epochs_goes_on_where_it_was_stopped(make: Any) -> None:
    whole: list[Any] = []
    accumulated(make(20), 3, 2, None, whole)
    assert len(whole) == 3 * 4
    for updates in range(1, len(whole) + 1):  # the last one of an epoch, and of all, among them
        log: list[Any] = []
        state = accumulated(make(20), 3, 2, updates, log)
        resumed = make(20)
        resumed.load_state_dict(state)
        assert (resumed.steps, resumed.epoch) == (state["steps"], state["epoch"])
        accumulated(resumed, 3, 2, None, log)
        assert log == whole


def test_the_steps_of_a_loader_are_those_before_the_next_batch() -> None:
    loader = yoga.DataLoader(range(20), 3, True, seed=5)
    assert (loader.steps, loader.epoch) == (0, 0)
    next(iter(loader))  # a look
    assert (loader.steps, loader.epoch) == (0, 0)
    for step, _ in enumerate(loader, loader.steps):
        assert loader.steps == loader.state_dict()["steps"] == (step + 1) % 7
        if step == 3:
            state = loader.state_dict()
    assert (loader.steps, loader.epoch) == (0, 1)
    for _ in zip(loader, range(3), strict=False):
        pass
    assert loader.steps == 0  # another iteration would begin the next epoch
    for world, size in ((1, 3), (2, 1), (1, 8)):
        other = yoga.DataLoader(range(20), size, True, seed=5, num_replicas=world, rank=0)
        other.load_state_dict(state)
        next(iter(other))
        counted = [step for step, _ in enumerate(other, other.steps)]
        assert (counted[0], counted[-1]) == (4, 4 + -(-8 // (world * size)) - 1)
    offset = yoga.DataLoader(range(20), 3, start_offset=6)
    assert [step for step, _ in enumerate(offset, offset.steps)] == [2, 3, 4, 5, 6]
    batches = yoga.ResumableBatchSampler(yoga.ResumableSampler(20, seed=5), 3)
    batches.load_state_dict(state)
    torchs: Any = TorchLoader(range(20), batch_sampler=batches)  # type: ignore[arg-type]
    assert [step for step, _ in enumerate(torchs, batches.steps)] == [4, 5, 6]
    assert (batches.steps, batches.epoch) == (0, 1)
