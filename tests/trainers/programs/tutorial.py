"""The loop of PyTorch's DDP tutorial: it looks at a batch, calls set_epoch, and then iterates."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from common import RANK, WORLD, Log, Net, Rows, leave, make_loader, task_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import torchyoga as yoga

TASK = task_of()


class Trainer:
    def __init__(self, net: Net, train_data: Any, optimizer: torch.optim.Optimizer, log: Log) -> None:
        self.train_data, self.optimizer, self.log, self.net = train_data, optimizer, log, net
        self.epochs_run = 0
        if TASK.resume:
            saved = torch.load(TASK.checkpoint)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
            train_data.sampler.load_state_dict(saved["data"])
            self.epochs_run = saved["data"]["epoch"]
        self.model = DistributedDataParallel(net) if WORLD > 1 else net

    def run_epoch(self, epoch: int) -> None:
        b_sz = len(next(iter(self.train_data))["row"])
        assert b_sz == TASK.batch_size
        self.train_data.sampler.set_epoch(epoch)
        for batch in self.train_data:
            self.log.train(epoch, self.model, self.optimizer, batch)
            if self.log.due:
                self.save()
                leave()

    def save(self) -> None:
        if RANK == 0:
            saved = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**saved, "data": self.train_data.sampler.state_dict()}, TASK.checkpoint)

    def train(self) -> None:
        for epoch in range(self.epochs_run, TASK.epochs):
            self.run_epoch(epoch)
            proof = self.train_data.sampler.prove()
            assert proof, str(proof)
            assert (proof.epoch, proof.rows) == (epoch, TASK.length)


def main() -> None:
    warnings.filterwarnings("error", ".*(left out|begun again|counts its)")
    if WORLD > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    if TASK.ours:
        train_data = make_loader(TASK)
    else:
        rows = Rows(TASK.length, noise=False)
        sampler = yoga.ResumableSampler(rows, seed=TASK.seed, remainder=TASK.remainder)
        train_data = DataLoader(rows, TASK.batch_size, sampler=sampler)
    net, log = Net(), Log(TASK)
    Trainer(net, train_data, torch.optim.Adam(net.parameters(), 0.01), log).train()
    log.done()
    leave()


if __name__ == "__main__":
    main()
