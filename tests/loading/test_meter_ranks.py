"""The meters of several ranks, together."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from advised import Sleeping, consumed

import torchyoga as yoga


def _on_two_ranks(rank: int) -> None:
    loader = yoga.DataLoader(Sleeping(80, 0.004 if rank else 0.0), batch_size=2, num_replicas=1, rank=0)
    consumed(loader, 0.002)
    ranks = loader.meter.over_ranks()
    assert len(ranks.shares) == len(ranks.hosts) == 2
    assert ranks.slowest == 1
    assert ranks.most == ranks.shares[1] > ranks.shares[0]
    assert ranks.shares[0] <= ranks.median <= ranks.most
    assert "(median of 2 ranks); rank 1 on " in str(ranks)
    assert str(ranks).endswith("worked most on transform")


def _joined(rank: int, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        _on_two_ranks(rank)
    finally:
        dist.destroy_process_group()


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(_joined, (str(tmp_path / "store"),), 2, start_method="forkserver")
