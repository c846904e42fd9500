"""Loops that hold a batch that they have not trained on yet, and count their steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from common import Log, Net, leave, make_loader, task_of

import torchyoga as yoga

TASK = task_of()


class Prefetcher:
    """Asks for the next batch before it yields one, as timm's PrefetchLoader does."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        held = None
        for batch in self.loader:
            if held is not None:
                yield held
            held = batch
        if held is not None:
            yield held


def main() -> None:
    log, loader, net = Log(TASK), make_loader(TASK), Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    if TASK.resume:
        saved = torch.load(TASK.checkpoint)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])

    def train(batch: Any, epoch: int, state: Any) -> None:
        log.train(epoch, net, optimizer, batch)
        if log.due:
            saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "data": state()}
            torch.save(saved, TASK.checkpoint)
            leave()

    if TASK.loop == "nanogpt":  # one loop over all epochs, the next batch on its way while this one is used
        batches, steps = iter(loader), 0
        epoch = loader.state_dict()["epoch"]
        batch = next(batches)
        while epoch < TASK.epochs:
            following, now = next(batches, None), steps + 1
            train(batch, epoch, lambda now=now: loader.state_after(now))  # type: ignore[misc]
            steps = now
            if following is None:
                epoch, steps = epoch + 1, 0
                if epoch == TASK.epochs:
                    break
                batches = iter(loader)
                following = next(batches)
            batch = following
    while (epoch := loader.state_dict()["epoch"]) < TASK.epochs:
        if TASK.loop == "prefetcher":
            for step, batch in enumerate(Prefetcher(loader), 1):
                train(batch, epoch, lambda step=step: loader.state_after(step))  # type: ignore[misc]
        else:
            for batch in yoga.to_device(loader, "cpu"):
                train(batch, epoch, loader.state_dict)
    log.done()
    leave()


if __name__ == "__main__":
    main()
