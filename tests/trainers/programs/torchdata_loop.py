"""A loop over a loader of torchdata, whose own state is the checkpoint; it counts epochs by itself."""

from __future__ import annotations

from typing import Any

import torch
from common import Log, Net, Task, leave

import torchyoga as yoga


def train(task: Task, loader: Any, sampler: yoga.ResumableSampler) -> None:
    log, net = Log(task), Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    step = 0
    per_epoch = -(-task.length // task.batch_size)
    if task.resume:
        saved = torch.load(task.checkpoint, weights_only=False)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    def stop() -> None:
        states = {"net": net, "optimizer": optimizer, "loader": loader}
        saved = {name: each.state_dict() for name, each in states.items()}
        torch.save({**saved, "step": step}, task.checkpoint)
        leave()

    if log.due:
        stop()
    while (epoch := step // per_epoch) < task.epochs:
        if task.set_epoch:
            sampler.set_epoch(epoch)
        for batch in loader:
            log.train(epoch, net, optimizer, batch)
            step += 1
            if log.due:
                stop()
    log.done()
