"""Seconds of some batches, as a meter counted them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_MUCH = 0.05  # of all work: what is less is not named
_BINS = 16  # between a power of two and the next: 4 % apart
_BURST, _BURSTS = 2e-3, 4.0  # seconds, and times the median
_LEAST, _MOST = -24, 24  # powers of two, in seconds: from 60 ns to half a year


class Waits(NamedTuple):
    """How long single batches were waited for, in seconds.

    Attributes:
        p50, p99: half of the batches, and 99 of 100, came within this.
        longest: the longest wait.
        epoch, step: the batch that it was for, counted from 0 as `enumerate` does.
        bursts: seconds waited for the few batches, none of them the first of an epoch, that took much longer
            than most; 0 if it was only one.
        burst: the longest of these waits.
    """

    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    epoch: int = 0
    step: int = 0
    bursts: float = 0.0
    burst: float = 0.0

    def __str__(self) -> str:
        return (
            f"p50 {seconds_text(self.p50)}, p99 {seconds_text(self.p99)}, longest "
            f"{seconds_text(self.longest)} at step {self.step} of epoch {self.epoch}"
        )


class WaitHistogram:
    """Counts of waits, each within 4 % of its length, so that an epoch of any length takes 6 KiB."""

    def __init__(self, counts: list[int] | None = None) -> None:
        self._counts = counts or [0] * ((_MOST - _LEAST) * _BINS)

    def with_waits(self, waits: Sequence[float]) -> WaitHistogram:
        """It with some more waits; many at once take a third of the time."""
        counts, last = list(self._counts), len(self._counts) - 1
        for seconds in waits:
            share, power = math.frexp(seconds)
            place = (power - _LEAST) * _BINS + int((2 * share - 1) * _BINS)
            counts[place if 0 <= place <= last else 0 if place < 0 else last] += 1
        return WaitHistogram(counts)

    def quantile(self, share: float) -> float:
        """The wait that this share of all came within."""
        wanted = share * sum(self._counts)
        for place, count in enumerate(self._counts):
            wanted -= count
            if count and wanted <= 0:
                power, part = divmod(place, _BINS)
                return math.ldexp(0.5 + (part + 0.5) / (2 * _BINS), power + _LEAST)
        return 0.0


def waits_of(waits: Sequence[float], places: Sequence[tuple[int, int]]) -> Waits:
    """Of some waits, each for the batch (epoch, step)."""
    if not waits:
        return Waits()
    ordered = sorted(waits)
    longest = max(range(len(waits)), key=waits.__getitem__)

    def within(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    later = [wait for wait, (_, step) in zip(waits, places, strict=True) if step]
    much = max(_BURST, _BURSTS * median(later)) if later else 0.0
    bursts = [wait for wait in later if wait > much]
    of_bursts = (sum(bursts), max(bursts)) if len(bursts) > 1 else (0.0, 0.0)
    return Waits(within(0.5), within(0.99), ordered[-1], *places[longest], *of_bursts)


class Numbers(NamedTuple):
    """Seconds that a loop waited and was away, and that each stage of the loader took.

    Attributes:
        batches: how many were delivered.
        waited: seconds in which the loop stood in `next`.
        away: seconds between two calls of `next`.
        first: seconds that the first batches of epochs were waited for; workers are started meanwhile.
        stages: seconds of work by stage, over all threads and worker processes.
        waits: of single batches.
        epochs: how many began.
        cpu: seconds of CPUs that making the batches took.
        loop_cpu: seconds of CPUs that this process took besides.
        delayed: seconds in which makers of batches wanted a CPU and had none.
        batch_bytes: of a batch.
    """

    batches: int
    waited: float
    away: float
    first: float
    stages: dict[str, float]
    waits: Waits = Waits()
    epochs: int = 1
    cpu: float = 0.0
    loop_cpu: float = 0.0
    delayed: float = 0.0
    batch_bytes: int = 0

    @property
    def share(self) -> float:
        """The share of its time that the loop waited, in 0..1."""
        total = self.waited + self.away
        return self.waited / total if total else 0.0

    @property
    def most(self) -> str:
        """The stage that took most of the work."""
        return max(self.stages, key=lambda name: self.stages[name])

    def flat(self) -> dict[str, float]:
        """All of it by name."""
        waits = self.waits
        return {
            "batches": float(self.batches),
            "waited": self.waited,
            "away": self.away,
            "share": self.share,
            "first": self.first,
            "p50": waits.p50,
            "p99": waits.p99,
            "longest": waits.longest,
            "longest_epoch": float(waits.epoch),
            "longest_step": float(waits.step),
            "cpu": self.cpu,
            "loop_cpu": self.loop_cpu,
            "delayed": self.delayed,
            **self.stages,
        }

    def __str__(self) -> str:
        total = sum(self.stages.values()) or 1.0
        shares = [(seconds / total, name) for name, seconds in self.stages.items()]
        most = sorted((one for one in shares if one[0] >= _MUCH), reverse=True)
        shown = ", ".join(f"{name} {share:.0%}" for share, name in most[:3])
        did = f", worked on {shown}" if shown else ""
        each = f" ({self.waits})" if self.waits.longest else ""
        return f"{self.batches} batches, waited {self.waited:.2f} s, {self.share:.1%} of the time{each}{did}"


def seconds_text(seconds: float) -> str:
    """Such as 1.2 s, 35 ms or 80 us."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 us"
