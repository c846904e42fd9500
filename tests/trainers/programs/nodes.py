"""torchdata.nodes over our sampler."""

from __future__ import annotations

from typing import Any

import torch
from common import Log, Net, Rows, leave, task_of
from torch import nn
from torch.utils.data import default_collate
from torchdata import nodes  # type: ignore[import-untyped]

import torchyoga as yoga


def main() -> None:
    task = task_of()
    log, net = Log(task), Net()
    rows = Rows(task.length, noise=False)

    def fetch(numbers: list[int]) -> Any:
        return default_collate([rows[number] for number in numbers])

    sampler = yoga.ResumableSampler(rows, seed=task.seed, remainder=task.remainder)
    numbers = nodes.Batcher(nodes.SamplerWrapper(sampler), task.batch_size, drop_last=task.drop_last)
    loader: Any = nodes.Loader(
        nodes.ParallelMapper(numbers, fetch, task.workers, in_order=task.in_order, method="thread")
        if task.workers
        else nodes.Mapper(numbers, fetch)
    )
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
        for batch in loader:
            loss = nn.functional.mse_loss(net(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            log.step(epoch, batch["row"], loss.item())
            if log.due:
                stop()
    log.done()


if __name__ == "__main__":
    main()
