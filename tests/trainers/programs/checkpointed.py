"""A Checkpoint over a model, an optimizer and loaders that Accelerate or Fabric have prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common import WORLD, Log, Net, leave, make_loader, task_of
from torch import nn

import torchyoga as yoga


def prepared_by(trainer: str, net: nn.Module, optimizer: Any, loaders: list[Any]) -> list[Any]:
    """The trainer's `backward`, the model, the optimizer and the loaders, as a program prepares them."""
    if trainer == "fabric":
        import lightning

        fabric = lightning.Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto")
        fabric.launch()
        return [fabric.backward, *fabric.setup(net, optimizer), *fabric.setup_dataloaders(*loaders)]
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    return [accelerator.backward, *accelerator.prepare(net, optimizer, *loaders)]


def main() -> None:
    task = task_of()
    log, net = Log(task), Net()
    sgd = torch.optim.Adam(net.parameters(), 0.01)
    loaders = [make_loader(task), make_loader(task, shuffle=False)]
    backward, model, optimizer, train, valid = prepared_by(task.loop, net, sgd, loaders)
    run = yoga.Checkpoint(
        Path(task.folder) / "run",
        every=3,
        resume=True,
        model=model,
        optimizer=optimizer,
        loaders={"train": train, "valid": valid},
    )
    for epoch in run.epochs(task.epochs):
        for batch in train:
            log.train(epoch, model, optimizer, batch, backward)
            if log.due:
                leave()  # nothing more is saved
        model.eval()
        with torch.no_grad():
            for batch in valid:
                log.evaluated(epoch, batch["row"])
        model.train()
    log.done()
    leave()


if __name__ == "__main__":
    main()
