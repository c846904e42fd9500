"""Lightning Fabric."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from common import WORLD, Log, Net, leave, make_loader, task_of


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

    def stop() -> None:
        fabric.save(task.checkpoint, state)
        leave()

    if log.due:
        stop()
    while (epoch := ours.state_dict()["epoch"]) < task.epochs:
        for batch in loader:
            log.train(epoch, model, optimizer, batch, fabric.backward)
            if log.due:
                stop()
    log.done()
    leave()


if __name__ == "__main__":
    main()
