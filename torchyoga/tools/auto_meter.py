"""The number of workers that a loader with `num_workers="auto"` chooses, between two of its batches.

The loader begins without workers. Its meter counts what a batch and the loop cost, and employs as many
workers as its own advice says. Then it counts again: a number that was slower is left, and not tried again
until the loop or the rows take another time.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..order.epoch import Iteration
from ..process.control_group import cpu_delay, usable_cpus
from .meter import Meter, Sums, setting_of
from .meter_advice import Costs, Setting, costs_of, seconds_text

_FEW, _MANY = 2, 25  # batches to count before a look, and those that are enough however fast they come
_LOOK, _SETTLED = 0.03, 1.0  # seconds to count, at first and once a look has changed nothing
_BETTER = 0.95  # of the seconds of a batch: a number of workers that pays
_OTHER, _SAME = 1.5, 1e-4  # times, and seconds: what was counted before says nothing any more
_FORK, _SPAWN = 0.1, 4.0  # seconds in which workers start
_PAYS = 2.0  # times these seconds: what workers save at least


class AutoMeter(Meter):
    """A meter that employs the workers of its loader.

    Attributes:
        choice: what was chosen, and why.
    """

    def __init__(self, stages: Callable[[], Mapping[str, float]]) -> None:
        self.choice = "no workers yet"
        self._paces: dict[int, float] = {}  # seconds of a batch, by the number of workers
        self._costs: Costs | None = None  # when the first of these was counted
        self._iteration: Iteration | None = None
        self._mark: Sums | None = None  # where counting began; None while workers start
        super().__init__(stages)

    def __call__(self, delivery: Any) -> Any:
        """See `Meter.__call__`; workers are employed between two batches."""
        batch = super().__call__(delivery)
        if self._iteration is not delivery.iteration:
            self._iteration = delivery.iteration
            self._settle(1)
        self._due -= 1
        if self._due <= 0:
            self._look(delivery)
        return batch

    def verdict(self) -> str:
        """In words: what the loop waits for, and what was chosen."""
        return f'{super().verdict()}; num_workers="auto" has chosen {self.choice}'

    def _setting_of(self, loader: Any, plan: Any) -> Setting:
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # of this machine, which share its CPUs
        return replace(setting_of(loader, plan), is_auto=True, num_cpus=max(1, usable_cpus() // ranks))

    def _begin_epoch(self, step: int) -> None:
        super()._begin_epoch(step)
        self._counts_cpu = True  # from the first batch on, as few are counted before a look

    def _settle(self, batches: int) -> None:
        """So many batches are not counted: workers start, and what they have made ahead comes at once."""
        self._due, self._mark, self._least = batches, None, _LOOK

    def _look(self, delivery: Any) -> None:
        """Begins to count, or decides by what was counted."""
        self._sums.delayed, self._due = cpu_delay(), _FEW
        if self._mark is None:
            self._mark = self._counts()
            return
        numbers = self._numbers(self._mark)
        seconds = numbers.waited + numbers.away
        if seconds < self._least and numbers.batches < _MANY:
            return
        pace, waited = seconds / numbers.batches, numbers.waited / numbers.batches
        number = self._wanted(pace, waited, costs_of(numbers, self._setting), delivery)
        if number == self._setting.number:
            self._mark, self._least = self._counts(), _SETTLED
            return
        before = self.workers
        delivery.employ(number)
        self._setting = self._setting_of(delivery.loader, delivery.plan)
        self.choice = (
            f"{self.workers}: with {before} a batch came every {seconds_text(pace)}, for which the loop "
            f"waited {seconds_text(waited)}"
        )
        self._settle(1 + delivery.plan.way.num_ahead)

    def _wanted(self, pace: float, waited: float, costs: Costs, delivery: Any) -> int:
        """The number of workers from now on.

        Args:
            pace: seconds of a batch.
            waited: seconds of these in which the loop waited.
            costs: of a batch.
            delivery: of this iteration.
        """
        number, left = self._setting.number, delivery.iteration.num_steps - delivery.iteration.taken
        if self._costs is None or _are_others(costs, self._costs):
            self._paces, self._costs = {}, costs
        self._paces[number] = pace
        best = min(self._paces, key=lambda one: self._paces[one])
        if left and self._paces[best] < _BETTER * pace:
            return best
        advised = costs.advice(number, waited)
        if not left or advised is None or advised in self._paces:
            return number
        if delivery.loader.persistent_workers:
            left += self._sums.batches  # as many may come as came
        starts = 0.0 if costs.are_threads or not advised else _seconds_to_start(delivery.loader)
        return advised if left * (pace - costs.step(advised)) > _PAYS * starts else number


def _are_others(costs: Costs, before: Costs) -> bool:
    """True if the loop, or making a batch, takes another time than it did."""
    pairs = ((costs.loop, before.loop), (costs.make, before.make))
    return any(max(pair) > _OTHER * min(pair) + _SAME for pair in pairs)


def _seconds_to_start(loader: Any) -> float:
    context = loader.multiprocessing_context or multiprocessing
    return _FORK if context.get_start_method() == "fork" else _SPAWN
