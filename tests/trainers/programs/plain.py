"""A training loop without any framework; DDP under torchrun."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from common import RANK, WORLD, Log, Net, leave, make_loader, task_of
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    task = task_of()
    if WORLD > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    log, loader = Log(task), make_loader(task)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    if task.resume:
        saved = torch.load(task.checkpoint)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    model = DistributedDataParallel(net) if WORLD > 1 else net

    def stop() -> None:
        if RANK == 0:
            states = {"net": net, "optimizer": optimizer, "loader": loader}
            torch.save({name: each.state_dict() for name, each in states.items()}, task.checkpoint)
        leave()

    if log.due:
        stop()
    while (epoch := loader.state_dict()["epoch"]) < task.epochs:
        if task.set_epoch:
            loader.set_epoch(epoch)
        # Ranks may have one batch more or less than others.
        uneven = isinstance(model, DistributedDataParallel) and task.remainder == "keep"
        with Join([model]) if uneven else contextlib.nullcontext():  # type: ignore[list-item]
            for batch in loader:
                log.train(epoch, model, optimizer, batch)
                if log.due:
                    stop()
        proof = loader.prove()  # over all ranks
        assert proof, str(proof)
    if task.evaluate:
        for batch in make_loader(replace(task, remainder="keep"), shuffle=False):
            log.evaluated(task.epochs, batch["row"])
    log.done()
    leave()


if __name__ == "__main__":
    main()
