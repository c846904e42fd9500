"""What a meter has counted."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Numbers"]

_MUCH = 0.05  # of all work: what is less is not named


class Numbers(NamedTuple):
    """Seconds that a loop waited and was away, and that each stage of the loader took.

    Attributes:
        batches: how many were delivered.
        waited: seconds in which the loop stood in `next`.
        away: seconds between two calls of `next`.
        first: seconds that the first batch of the epoch was waited for; workers are started meanwhile.
        stages: seconds of work by stage, over all threads and worker processes.
    """

    batches: int
    waited: float
    away: float
    first: float
    stages: dict[str, float]

    @property
    def share(self) -> float:
        """The share of its time that the loop waited, in 0..1."""
        total = self.waited + self.away
        return self.waited / total if total else 0.0

    def flat(self) -> dict[str, float]:
        """All of it by name."""
        found = {"batches": float(self.batches), "waited": self.waited, "away": self.away}
        return {**found, "share": self.share, "first": self.first, **self.stages}

    def __str__(self) -> str:
        total = sum(self.stages.values()) or 1.0
        shares = [(seconds / total, name) for name, seconds in self.stages.items()]
        most = sorted((one for one in shares if one[0] >= _MUCH), reverse=True)
        shown = ", ".join(f"{name} {share:.0%}" for share, name in most[:3])
        did = f", worked on {shown}" if shown else ""
        return f"{self.batches} batches, waited {self.waited:.2f} s ({self.share:.1%}){did}"
