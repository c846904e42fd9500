"""A plain loop that saves with torch.distributed.checkpoint, alone or under torchrun."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from common import WORLD, Log, Net, leave, make_loader, run, task_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel


class Trained(Stateful):
    """Model and optimizer, as in the tutorial."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def main() -> None:
    task = task_of()
    if WORLD > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    log, loader, net = Log(task), make_loader(task), Net()
    model = DistributedDataParallel(net) if WORLD > 1 else net
    # Not Adam: get_state_dict makes a first step of an optimizer that has not stepped yet.
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    states = {"trained": Trained(model, optimizer), "loader": loader}
    if task.resume:
        load(states, checkpoint_id=task.checkpoint)

    def step(epoch: int, batch: Any) -> None:
        log.train(epoch, model, optimizer, batch)

    run(log, loader, loader, step, lambda: save(states, checkpoint_id=task.checkpoint))
    log.done()
    leave()


if __name__ == "__main__":
    main()
