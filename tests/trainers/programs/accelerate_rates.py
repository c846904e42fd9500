"""The learning rates of Accelerate's cv_example: a scheduler from `len(loader)`, made before `prepare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from common import RANK, Rows, Task, leave, make_loader, task_of
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import torchyoga as yoga


def rates_of(task: Task, ours: bool) -> tuple[list[int], list[Any]]:
    """The length of a loader before and after `prepare`, and the learning rates of two schedulers."""
    torchs = torch.utils.data.DataLoader
    loader: Any = make_loader(task) if ours else torchs(Rows(task.length), **task.torch_arguments())
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(8, 1)
    sgd: Any = torch.optim.SGD(net.parameters(), 1.0)
    next(iter(loader))  # for the shape of a batch
    before, steps = len(loader), len(loader) * task.epochs
    cycle: Any = OneCycleLR(sgd, max_lr=1.0, epochs=task.epochs, steps_per_epoch=before)
    line: Any = LambdaLR(sgd, lambda step: max(0.0, 1 - step / steps))
    model, sgd, loader, cycle, line = accelerator.prepare(net, sgd, loader, cycle, line)
    rates = []
    for _ in range(task.epochs):
        for batch in loader:
            accelerator.backward(model(batch["x"]).square().mean())
            sgd.step()
            cycle.step()
            line.step()
            rates.append((cycle.get_last_lr(), line.get_last_lr()))
            sgd.zero_grad()
    accelerator.free_memory()
    return [before, len(loader)], rates


def check_lengths() -> None:
    """Ranks that were given divide a loader at once, and one that has run an epoch is as it is."""
    Accelerator(cpu=True)
    given: Any = yoga.DataLoader(range(16), 2, num_replicas=2, rank=RANK)
    sampler = yoga.ResumableSampler(16, num_replicas=2, rank=RANK)
    assert len(given) == len(yoga.DataLoader(range(16), 2, sampler=sampler)) == 4
    short = yoga.DataLoader(range(4), 2)
    next(iter(short))  # a look
    assert len(short) == 2
    assert len(list(short)) == len(short) == 1


def main() -> None:
    task = task_of()
    check_lengths()
    found = [
        [rates_of(replace(task, drop_last=drop_last), ours) for ours in (False, True)]
        for drop_last in (False, True)
    ]
    (Path(task.folder) / f"rates{RANK}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
