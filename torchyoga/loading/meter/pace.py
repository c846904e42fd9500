"""Measured seconds of a batch -> the number of workers with which the loop would wait least.

This is all the arithmetic of workers that there is: the meter and the doctor ask it, so they cannot differ.
It advises only what makes the wait a fifth shorter at least. More workers than CPUs only take turns where
batches are computed; where rows wait for a disk or a server, a few workers for each CPU wait at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_AS_GOOD = 1 / 0.95  # times the seconds of the best number of workers
_WORTH = 0.8  # of the wait: what is left of it, at most, where a change is worth it
_HOP = 2e-4  # seconds in which a batch comes from a worker, however small it is
_BYTES = 1e9  # a second, that cross to another process
_WAITING, _MOST_WAITING = 4, 64  # workers that wait, for each CPU and in all
_STARTS = {"fork": 0.05}  # seconds
_SPAWNS = 4.0  # seconds, of an interpreter that imports torch


def most_workers(cpus: int) -> int:
    """The largest number of workers to try where rows wait more than they compute."""
    return max(cpus, min(_WAITING * cpus, _MOST_WAITING))


def start_seconds(method: str) -> float:
    """Seconds until workers have started, where it was not measured yet."""
    return _STARTS.get(method, _SPAWNS)


class Advice(NamedTuple):
    """Another number of workers.

    Attributes:
        num_workers: that number.
        before, after: seconds that the loop waits for a batch, as measured, and as expected with it.
        is_persistent: the workers should live from epoch to epoch.
    """

    num_workers: int
    before: float
    after: float
    is_persistent: bool


@dataclass(frozen=True)
class Costs:
    """Seconds of a batch, on average.

    Attributes:
        make: in which one worker, or this process, makes it.
        cpu: of CPUs for that.
        loop: that the loop computes with it; 0 if it is not known.
        loop_cpu: of CPUs for that.
        transfer: in which it comes from a worker; None if there was no worker yet.
        batch_bytes: of the batch.
        start: until the workers of an epoch have started.
        started: so many workers, if it was measured; as many as there are CPUs start at once.
        batches: of an epoch.
        cpus: that may be used.
        is_ahead: without workers, a thread makes batches while the loop computes.
        are_threads: `num_workers` means threads.
        measured: seconds of a batch by number of workers, for a loop that computes nothing.
        waits: making it is mostly waiting, for what is neither a CPU nor this machine's disk.
    """

    make: float
    cpu: float
    loop: float = 0.0
    loop_cpu: float = 0.0
    transfer: float | None = None
    batch_bytes: int = 0
    start: float = 0.0
    started: int = 0
    batches: float = math.inf
    cpus: int = 1
    is_ahead: bool = False
    are_threads: bool = False
    measured: Mapping[int, float] = field(default_factory=dict)
    waits: bool = False

    def step(self, num_workers: int, is_persistent: bool = True, epochs: int = 1) -> float:
        """Seconds from one batch to the next with so many workers, over so many epochs."""
        steady = self._steady(num_workers)
        if num_workers in self.measured:
            seconds, is_beside = self.measured[num_workers], num_workers > 0 or self.is_ahead
            steady = max(self.loop, seconds) if is_beside else self.loop + seconds
        if not num_workers or self.are_threads:
            return steady
        # The first batch of an epoch has no worker ahead of it.
        alike = min(self.started, self.cpus)
        start = self.start * max(num_workers, alike) / self.started if self.started else self.start
        waits = self.make + start / (epochs if is_persistent else 1)
        return steady + waits / self.batches

    def _steady(self, num_workers: int) -> float:
        both = (self.cpu + self.loop_cpu) / self.cpus
        if self.are_threads or (not num_workers and self.is_ahead):
            makers = max(1, min(num_workers, self.cpus - 1))
            return max(self.loop, self.make / makers, both)
        if not num_workers:
            return self.loop + self.make
        sent = _HOP + self.batch_bytes / _BYTES if self.transfer is None else self.transfer
        # torch's operators use one thread in a worker, so what several did here takes all of their time.
        of_one = max(self.make, self.cpu) + sent
        return max(self.loop + min(sent, _HOP), of_one / num_workers, both + sent / self.cpus)

    def advice(
        self, current: int, is_persistent: bool, epochs: int = 1, waited: float | None = None
    ) -> Advice | None:
        """A number of workers that shortens the wait; None if the present one is good, as far as is known.

        Args:
            current: workers now.
            is_persistent: they live from epoch to epoch.
            epochs: so many have been seen, each of which started workers unless these are persistent.
            waited: seconds for a batch now, if they were measured.
        """
        lasts = is_persistent or epochs > 1
        most = most_workers(self.cpus) if self.waits and not self.are_threads else self.cpus
        numbers = self.measured if self.measured else range(most + 1)
        steps = {number: self.step(number, lasts, epochs) for number in numbers if number <= most}
        if not steps:
            return None
        if current and current in steps and lasts:
            steps[current] = self.step(current, lasts, 2 * epochs)  # it saves more in each epoch to come
        good = _AS_GOOD * min(steps.values())
        number = min(number for number, seconds in steps.items() if seconds <= good)
        expected = self.step(current, is_persistent, epochs)
        before = expected - self.loop if waited is None else waited
        # Without workers nothing but making remains, so the whole wait is what they cost. Another number of
        # them saves only what is expected to depend on it: the rest may come of something else.
        saved = (self.loop + before if number == 0 else expected) - steps[number]
        more_hands = number <= current or self._steady(number) < 0.9 * self._steady(current)
        if (number, lasts) == (current, is_persistent):
            return None
        if not more_hands or saved <= (1 - _WORTH) * before:
            return None
        lasts = lasts and number > 0 and not self.are_threads
        return Advice(number, before, max(0.0, before - saved), lasts)
