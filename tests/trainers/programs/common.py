"""The task, the data, the model and the log that the training programs share."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import becoming
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

import torchyoga as yoga

# One import of torch for all workers that a run forks from its server.
multiprocessing.set_forkserver_preload(["torch", "torchyoga"])
faulthandler.dump_traceback_later(270)  # where it hangs, before the harness's patience ends
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@dataclass(frozen=True)
class Task:
    """One process of a sequence of stops and resumes; made from the JSON on the command line."""

    folder: str
    run: int = 0
    epochs: int = 2
    stop_after: int | None = None  # batches of this run, on every rank; 0: before the first
    resume: bool = False
    length: int = 42
    batch_size: int = 4  # per rank
    workers: int = 0
    start_method: str | None = None
    persistent: bool = False
    prefetch: int | None = None
    in_order: bool = True
    remainder: Literal["pad", "drop", "keep"] = "keep"
    seed: int = 7
    set_epoch: bool = False
    drop_last: bool = False
    accumulate: int = 1
    evaluate: bool = False
    validate: bool = False
    noise: bool = True
    uneven: bool = False  # some rows take longer than others
    ours: bool = True  # False: torch's DataLoader over a sampler of ours
    dropout: float = 0.0
    loop: str = ""  # for loops that are a batch ahead

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint"

    def torch_arguments(self) -> dict[str, Any]:
        """The arguments of any loader like torch's."""
        found: dict[str, Any] = {"batch_size": self.batch_size, "num_workers": self.workers}
        if self.workers:
            found["multiprocessing_context"] = self.start_method
            found["persistent_workers"] = self.persistent
            found["prefetch_factor"] = self.prefetch
        if not self.in_order:
            found["in_order"] = False
        return {**found, "drop_last": self.drop_last}


class Rows(Dataset[Any]):
    """A few numbers for each row, augmented with noise."""

    def __init__(self, length: int, noise: bool = True, uneven: bool = False) -> None:
        self.length, self.noise, self.uneven = length, noise, uneven

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < self.length:
            raise IndexError(row)
        if self.uneven and row % 7 == 0:
            time.sleep(0.05)
        x = torch.sin(torch.arange(8.0) * (row + 1))
        if self.noise:
            x = x + 0.1 * torch.randn(8)
        return {"row": int(row), "x": x, "y": torch.tensor(float(row % 5))}


def inputs_and_targets(rows: list[dict[str, Any]]) -> Any:
    """Batches for Keras."""
    batch = default_collate(rows)
    return {"row": batch["row"], "x": batch["x"]}, batch["y"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        if (dropout := task_of().dropout) > 0:
            self.layers.insert(2, nn.Dropout(dropout))
            torch.manual_seed(11 + RANK)  # each rank drops others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found[:, 0]


class Log:
    """One line for each batch trained on; says when to stop."""

    def __init__(self, task: Task, rank: int = RANK) -> None:
        self.task, self.count = task, 0
        self._base = Path(task.folder) / f"run{task.run}-rank{rank}"
        self._steps = open(f"{self._base}.jsonl", "a")  # noqa: SIM115

    @property
    def due(self) -> bool:
        """True if it is time to save a checkpoint and leave."""
        return self.count == self.task.stop_after

    def step(self, epoch: int, rows: torch.Tensor, loss: float) -> None:
        self.count += 1
        line = {"epoch": epoch, "rows": rows.tolist(), "loss": float(loss).hex()}
        self._steps.write(json.dumps(line) + "\n")
        self._steps.flush()

    def train(
        self, epoch: int, model: Any, optimizer: Any, batch: Any, backward: Any = Tensor.backward
    ) -> None:
        """One step, logged."""
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        self.step(epoch, batch["row"], loss.item())

    def evaluated(self, epoch: int, rows: torch.Tensor) -> None:
        with open(f"{self._base}-eval.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "rows": rows.tolist()}) + "\n")

    def done(self) -> None:
        Path(f"{self._base}.done").touch()


def task_of() -> Task:
    return Task(**json.loads(sys.argv[1]))


def make_loader(task: Task, shuffle: bool = True) -> Any:
    """One of our loaders."""
    return yoga.DataLoader(
        Rows(task.length, task.noise, task.uneven),
        shuffle=shuffle,
        seed=task.seed,
        remainder=task.remainder,
        **task.torch_arguments(),
    )


def run(log: Log, ours: Any, loader: Any, step: Callable[[int, Any], None], save: Callable[[], None]) -> None:
    """Trains through all epochs, which our loader counts, on batches of what a trainer has made of it.

    Where it is due, it saves and leaves.
    """

    def stop_if_due() -> None:
        if log.due:
            save()
            leave()

    stop_if_due()
    while (epoch := ours.state_dict()["epoch"]) < log.task.epochs:
        for batch in loader:
            step(epoch, batch)
            stop_if_due()


def leave() -> NoReturn:
    """Ends the process at once: like a preempted job after its checkpoint, and if there were ranks.

    Torch waits for ever if DDP holds the last reference to a process group while a thread of gloo wants the
    GIL (seen in 2.13; pytorch #190489). A process that ends at once destroys no objects.
    """
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    becoming.leave(0)
