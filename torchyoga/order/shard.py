"""The ranks of a job -> which positions of the order each takes.

Note 13. Positions go round the ranks, with `locality="shard"`, too.
Position p belongs to rank p mod W, and the order puts the rank's own rows there. So places, states, proofs
and batches need not know; only the number of shards is in the state, because it stays the same for an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .full import as_int

__all__ = ["Remainder", "Shard"]

Remainder = Literal["keep", "drop", "pad"]


@dataclass(frozen=True)
class Shard:
    """The positions of the global order that one rank takes: rank, rank + W, rank + 2W, ... from any start.

    Args:
        num_replicas: number of ranks W.
        rank: this one, in 0..W-1.
        remainder: what happens to the last rows if W does not divide their number: `keep` (every row once,
            ranks may differ by one), `drop` (equal ranks without the last rows), `pad` (equal ranks; rows
            from the front of the epoch, or from the last change of weights in it, come again).
        run_length: positions dealt to a rank at a time, one by default. With batches of just as many rows,
            the batches of all ranks, laid end to end, are in the global order.
    """

    num_replicas: int = 1
    rank: int = 0
    remainder: Remainder = "keep"
    run_length: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_replicas", as_int("num_replicas", self.num_replicas, low=1))
        object.__setattr__(self, "rank", as_int("rank", self.rank, low=0, high=self.num_replicas - 1))
        if self.remainder not in ("keep", "drop", "pad"):
            raise ValueError(f"remainder must be 'keep', 'drop' or 'pad', found {self.remainder!r}")

    def end(self, length: int, start: int = 0) -> int:
        """The global position at which an epoch of `length` rows, continued at `start`, ends on all ranks."""
        left = max(length - start, 0)
        whole, tail = divmod(left, self.num_replicas)
        if self.remainder == "drop":
            left = whole * self.num_replicas
        elif self.remainder == "pad":
            left = (whole + (tail > 0)) * self.num_replicas
        return start + left

    def count(self, length: int, start: int = 0, rank: int | None = None) -> int:
        """How many rows this rank (or `rank`) takes between `start` and the end."""
        first = self.rank if rank is None else rank
        return len(range(start + first, self.end(length, start), self.num_replicas))

    def steps(
        self, length: int, start: int, batch_size: int, drop_last: bool, rank: int | None = None
    ) -> int:
        """How many batches these rows are; `drop_last` leaves out a shorter last one."""
        rows = self.count(length, start, rank)
        return rows // batch_size if drop_last else -(-rows // batch_size)
