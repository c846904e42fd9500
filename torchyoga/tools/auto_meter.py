"""The number of workers that a loader with `num_workers="auto"` chooses, between two of its batches.

The loader begins without workers. Its meter counts what a batch and the loop cost, and employs as many
workers as its own advice says. Then it counts again: a number that was slower is left, and not tried again
until the loop or the rows take another time.

No worker is forked once making rows here has opened a file or a socket: all would share its position.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..process.control_group import cpu_delay, usable_cpus
from .meter import Meter, Sums, setting_of
from .meter_advice import Costs, Setting, costs_of, seconds_text

try:
    import fcntl
except ImportError:  # Windows, which forks nothing
    fcntl = None  # type: ignore[assignment]

_FEW, _MANY = 2, 25  # batches to count before a look, and those that are enough however fast they come
# Seconds to count: at first, after a change, and where the last look has changed nothing.
_LOOK, _SURE, _SETTLED = 0.03, 0.3, 0.25
_BETTER = 0.85  # of the seconds of a batch: a number of workers that was better for sure
_WORTH, _LESS = 0.9, 0.5  # of the seconds of a batch: what is expected of more workers, and of fewer
_OTHER, _SAME = 1.5, 1e-4  # times, and seconds: what was counted before says nothing any more
_FORK, _SPAWN = 0.05, 4.0  # seconds in which workers start, until it is known
_PAYS = 2.0  # times these seconds: what workers save at least
_OWN = (".mdb", ".h5")  # files that DataRefs read: forked readers share them without harm


class AutoMeter(Meter):
    """A meter that employs the workers of its loader."""

    def __init__(self, stages: Callable[[], Mapping[str, float]]) -> None:
        self.choice = "no workers yet"
        self._paces: dict[int, float] = {}  # seconds of a batch, by the number of workers
        self._costs: dict[int, Costs] = {}  # when these were counted
        self._iteration: object = None
        self._mark: Sums | None = None  # where counting began; None while workers start
        self._starts = 0  # of workers
        self._due, self._least = 0, _LOOK
        self._until = math.inf  # seconds of the loop at which enough are counted
        self._wish = 0  # the number of workers that the last look wanted
        self._open: set[tuple[int, int]] | None = None  # what was open before rows were made
        super().__init__(stages)

    def __call__(self, delivery: Any) -> Any:
        """See `Meter.__call__`; workers are employed before a batch is asked for, so that none is lost."""
        if self._open is None:
            self._open = {*_open_files()}
        is_due = self._due <= 0 or self._sums.waited + self._sums.away > self._until
        if is_due and self._iteration is delivery.iteration:
            self._look(delivery)
        batch = super().__call__(delivery)
        if self._iteration is not delivery.iteration:
            self._iteration = delivery.iteration
            self._settle(1, _LOOK)
        self._due -= 1
        return batch

    def verdict(self) -> str:
        """In words: what the loop waits for, and what was chosen."""
        return f'{super().verdict()}; num_workers="auto" has chosen {self.choice}'

    def _setting_of(self, loader: Any, plan: Any) -> Setting:
        text = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks = max(1, int(text) if text.isdecimal() else 1)  # of this machine, which share its CPUs
        return replace(setting_of(loader, plan), is_auto=True, num_cpus=max(1, usable_cpus() // ranks))

    def _begin_epoch(self, step: int) -> None:
        super()._begin_epoch(step)
        self._counts_cpu = True  # from the first batch on, as few are counted before a look

    def _settle(self, batches: int, least: float) -> None:
        """Leaves so many batches uncounted: workers start, and the batches they make ahead come at once."""
        self._due, self._mark, self._least, self._until = batches, None, least, math.inf
        self._starts += bool(self._setting.num_workers)

    def _count(self, least: float) -> None:
        """Counts from now on, for so many seconds at least."""
        self._mark, self._least = self._counts(), least
        self._until = self._sums.waited + self._sums.away + least

    def _look(self, delivery: Any) -> None:
        """Begins to count, or decides by what was counted."""
        mark, sums, few = self._mark, self._sums, _FEW * max(1, self._setting.number)
        self._due = few
        if mark is not None:
            batches = sums.batches - mark.batches
            seconds = sums.waited + sums.away - mark.waited - mark.away
            if batches < few:
                self._due, self._until = few - batches, math.inf
                return
            if seconds < self._least and (batches < _MANY or self._least == _SETTLED):
                self._due = max(few, batches)  # so that few of many batches are followed by a look
                return
        sums.delayed = cpu_delay()
        self._setting = self._setting_of(delivery.loader, delivery.plan)
        if mark is None:
            self._count(self._least)
            return
        numbers = self._numbers(mark)
        pace, waited = seconds / batches, numbers.waited / batches
        number = self._wanted(pace, costs_of(numbers, self._setting), delivery)
        # What changes a choice that has stood may have begun while it was counted: it is counted again.
        is_sure, self._wish = self._least != _SETTLED or number == self._wish, number
        if number == self._setting.number or not is_sure or not self._may_employ(number, delivery):
            self._count(_SETTLED)
            return
        before = self.workers
        delivery.employ(number)
        self._setting = self._setting_of(delivery.loader, delivery.plan)
        self.choice = (
            f"{self.workers}: with {before} a batch came every {seconds_text(pace)}, for which the loop "
            f"waited {seconds_text(waited)}"
        )
        self._settle(1 + delivery.plan.way.num_ahead, _SURE)

    def _may_employ(self, number: int, delivery: Any) -> bool:
        """False if workers cannot be started, or would share what rows made here have opened."""
        if not number or self._setting.are_threads:
            return True
        if not delivery.can_employ or multiprocessing.current_process().daemon:
            self.choice = "no workers, as none can be started"
            return False
        opened = {} if start_method(delivery.loader) != "fork" else _open_files(are_sockets=not self._starts)
        for place, name in opened.items():
            if place not in (self._open or ()) and not name.endswith(_OWN):
                self.choice = f"no workers: they would share {name}, which was opened as rows were made"
                return False
        return True

    def _wanted(self, pace: float, costs: Costs, delivery: Any) -> int:
        """The number of workers from now on, if a batch takes `pace` seconds and has these costs."""
        number, left = self._setting.number, delivery.iteration.num_steps - delivery.iteration.taken
        if not number and not costs.is_ahead:  # torch's threads, which workers do not have, take CPUs, too
            costs = replace(costs, cpu=min(costs.cpu, costs.make))
        if number in self._costs and _are_others(costs, self._costs[number]):
            self._paces, self._costs = {}, {}
        self._costs.setdefault(number, costs)
        start = 0.0 if costs.are_threads else self._seconds_to_start(delivery.loader)
        lasts = self._setting.is_persistent or not self._setting.num_batches
        of_start = 0.0 if lasts else start / self._setting.num_batches  # seconds of a batch
        self._paces[number] = now = pace + (of_start if number else 0.0)
        best = min(self._paces, key=lambda one: self._paces[one])
        if left and self._paces[best] < _BETTER * now:
            return best
        fastest = costs.fastest
        expected = pace * costs.step(fastest) / costs.step(number) + of_start if fastest else costs.step(0)
        if not left or fastest in self._paces or expected > now * (_WORTH if fastest > number else _LESS):
            return number
        # In this epoch, for which they start now, and in later ones: as many batches may come as came.
        saved = left * (now - expected + of_start) + self._sums.batches * (now - expected)
        return fastest if not fastest or saved > _PAYS * start else number

    def _seconds_to_start(self, loader: Any) -> float:
        """Seconds in which workers start, and end."""
        if self._starts:
            return self._stages()["start-up"] / self._starts
        return _FORK if start_method(loader) == "fork" else _SPAWN


def _are_others(costs: Costs, before: Costs) -> bool:
    """True if the loop, or making a batch, takes another time than it did."""
    pairs = ((costs.loop, before.loop), (costs.make, before.make))
    return any(max(pair) > _OTHER * min(pair) + _SAME for pair in pairs)


def start_method(loader: Any) -> str:
    """The start method of a loader's workers: fork, forkserver or spawn. Asking for it does not set it."""
    context = loader.multiprocessing_context or multiprocessing
    found: str = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return found


def _open_files(are_sockets: bool = True) -> dict[tuple[int, int], str]:
    """The files that this process has open for reading, and its sockets, by descriptor and inode."""
    found = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError):
            status, place = os.fstat(int(name)), os.readlink(f"/proc/self/fd/{name}")
            is_file = stat.S_ISREG(status.st_mode) and not place.startswith(("/dev/shm", "/memfd"))
            is_read = is_file and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            if is_read or (are_sockets and stat.S_ISSOCK(status.st_mode)):
                found[int(name), status.st_ino] = place
    return found
