"""A loop with Hugging Face Accelerate."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from common import RANK, Log, Net, leave, make_loader, run, task_of
from torch import nn


def main() -> None:
    task = task_of()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.accumulate)
    log, net = Log(task, RANK), Net()
    optimizer: Any
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.Adam(net.parameters(), 0.01), make_loader(task)
    )
    if task.resume:
        accelerator.load_state(str(task.checkpoint))

    def step(epoch: int, batch: Any) -> None:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log.step(epoch, batch["row"], loss.item())

    run(log, loader, loader, step, lambda: accelerator.save_state(str(task.checkpoint)))
    if task.evaluate:
        model.eval()
        for batch in accelerator.prepare(make_loader(task, shuffle=False)):
            log.evaluated(task.epochs, accelerator.gather_for_metrics(batch["row"]))
    log.done()
    accelerator.end_training()
    leave()


if __name__ == "__main__":
    main()
