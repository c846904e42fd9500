"""What the meters of all ranks say together."""

from __future__ import annotations

import socket
from statistics import median
from typing import NamedTuple

import torch.distributed

from .numbers import Numbers

__all__ = ["Ranks", "of_ranks"]


class Ranks(NamedTuple):
    """The share of its time that each rank waited.

    Attributes:
        shares: (ranks,) in 0..1.
        hosts: (ranks,) the name of each rank's machine.
        stages: (ranks,) the stage that each rank worked on most.
    """

    shares: tuple[float, ...]
    hosts: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def most(self) -> float:
        """The share of the rank that waited most."""
        return max(self.shares)

    @property
    def median(self) -> float:
        """The median of the shares."""
        return median(self.shares)

    @property
    def slowest(self) -> int:
        """The rank that waited most: the others wait for it when gradients are added."""
        return self.shares.index(self.most)

    def __str__(self) -> str:
        rank = self.slowest
        return (
            f"waited {self.median:.1%} of the time (median of {len(self.shares)} ranks); rank {rank} on "
            f"{self.hosts[rank]} waited most, {self.most:.1%}, and worked most on {self.stages[rank]}"
        )


def of_ranks(found: Numbers, group: torch.distributed.ProcessGroup | None) -> Ranks:
    """One gathering of a few numbers; alone, this process is all there is."""
    stage = max(found.stages, key=lambda name: found.stages[name])
    own = found.share, socket.gethostname(), stage
    every = [own]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        every = [own] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(every, own, group)
    shares, hosts, stages = zip(*every, strict=True)
    return Ranks(shares, hosts, stages)
