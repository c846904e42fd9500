"""Lightning Fabric."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from common import WORLD, Log, Net, leave, make_loader, run, task_of


def main() -> None:
    task = task_of()
    fabric = lightning.Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto")
    fabric.launch()
    log, net = Log(task), Net()
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), 0.01))
    ours = make_loader(task)
    loader: Any = fabric.setup_dataloaders(ours)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if task.resume:
        fabric.load(task.checkpoint, state)

    def step(epoch: int, batch: Any) -> None:
        log.train(epoch, model, optimizer, batch, fabric.backward)

    run(log, ours, loader, step, lambda: fabric.save(task.checkpoint, state))
    log.done()
    leave()


if __name__ == "__main__":
    main()
