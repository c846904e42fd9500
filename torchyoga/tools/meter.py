"""How long the training loop waited for data, what the loader did meanwhile, and the setting to change."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ..process.control_group import cpu_delay, usable_cpus
from ..process.numbers import as_int
from ..reading.dataref import DataRef
from . import meter_advice

_STEP = 25  # batches between two looks at the stages
_LAST = 100  # batches, and up to _STEP more
_KEPT = 2**14  # batches, whose waits are sorted for `p50` and `p99`
_WORTH_CPU = 1e-4  # seconds of a batch, from which on asking for CPU seconds costs less than a hundredth
_DELAYS = 0.02  # seconds between two looks at what the kernel says of this thread
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sums:
    """All that a meter adds up, since it was made."""

    batches: int = 0
    epochs: int = 0
    waited: float = 0.0
    away: float = 0.0
    first: float = 0.0
    cpu_batches: int = 0
    cpu_waited: float = 0.0
    cpu_away: float = 0.0
    delayed: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """How long the loop waited for data in this epoch, and over the last 100 batches.

    *Waited* is the time that the loop stood in `next`, *away* the time between two calls, in which it
    computes. The stages say what the loader worked on, in this process, its threads and its workers; with
    several of them they add up to more than the time that passed. It costs less than a microsecond a batch,
    where a batch takes less than 0.1 ms, and two microseconds where it takes longer.

    Args:
        stages: says the seconds of each stage, and the `cpu` and `delay` of workers.

    Attributes:
        choice: the workers that `num_workers="auto"` has chosen, and why; "" if their number was given.

    Example:
        >>> loader = yoga.DataLoader(list(range(1000)), batch_size=10)
        >>> for batch in loader:
        ...     pass
        >>> loader.meter.epoch.batches
        100
        >>> sorted(loader.meter.epoch.stages) == sorted(loader.meter.last.stages)
        True
    """

    choice = ""

    def __init__(self, stages: Callable[[], Mapping[str, float]]) -> None:
        self._stages = stages
        self._calls: list[tuple[int, Callable[[Meter], object]]] = []
        self._failed: list[object] = []  # of these functions
        self._setting = meter_advice.Setting(0, 1)
        self._sums, self._delay_due = Sums(delayed=cpu_delay()), 0.0
        self._waits: deque[tuple[float, int, int]] = deque(maxlen=_KEPT)  # with epoch and step
        self._looks: deque[Sums] = deque([self._counts()], _LAST // _STEP + 1)
        self._batch_bytes = 0
        self._begin_epoch(0)

    def _begin_epoch(self, step: int) -> None:
        self._epoch, self._step = 0, step
        self._left = 0.0  # when the loop got its last batch
        self._cpu_left = self._cpu_asked = -1.0
        self._counts_cpu = False
        self._sums.delayed = cpu_delay()
        self._before = self._counts()
        self._longest = 0.0, 0, step

    def __call__(self, delivery: Any) -> Any:
        """The next batch of an iteration of the loader, which hands out all of its batches through this.

        Args:
            delivery: has `following()`, which makes that batch, the `loader`, its `plan`, and its `iteration`
                once that has begun.
        """
        if delivery.iteration is None:
            loader, plan = delivery.loader, delivery.plan
            self._setting = self._setting_of(loader, plan)
            # Not `loader.steps`: a Checkpoint takes note of who asks for that.
            self._begin_epoch(plan.indices.steps_before(loader.batch_size or 1, loader.drop_last))
            self._sums.epochs += 1
        if self._counts_cpu:
            self._cpu_asked = process_time()
        asked = perf_counter()
        try:
            batch = delivery.following()
        except BaseException as error:
            # An error, after which the loop may go on, or the end: it was waited for, and nothing came.
            self._sums.away += asked - self._left if self._left else 0.0
            self._left = perf_counter()
            self._sums.waited += self._left - asked
            if isinstance(error, StopIteration):  # the numbers of the epoch are complete
                self._sums.delayed, self._left = cpu_delay(), 0.0
            raise
        now = perf_counter()
        sums, waited, left = self._sums, now - asked, self._left
        away = asked - left if left else 0.0
        sums.waited += waited
        sums.away += away
        if self._counts_cpu:
            self._count_cpu()
        total = sums.batches
        if total == self._before.batches:
            self._epoch = delivery.iteration.start.epoch
            self._batch_bytes = _bytes(batch)
            sums.first += 0.0 if left else waited
        wait = waited, self._epoch, self._step
        self._waits.append(wait)
        if waited > self._longest[0]:
            self._longest = wait
        sums.batches = total = total + 1
        self._step += 1
        self._counts_cpu = waited + away > _WORTH_CPU
        self._left = now
        if not total % _STEP:
            if now > self._delay_due:
                sums.delayed, self._delay_due = cpu_delay(), now + _DELAYS
            self._looks.append(self._counts())
        if self._calls:
            self._call()
        return batch

    def _setting_of(self, loader: Any, plan: Any) -> meter_advice.Setting:
        return setting_of(loader, plan)

    def _count_cpu(self) -> None:
        now = process_time()
        if self._cpu_asked >= 0.0 <= self._cpu_left:
            self._sums.cpu_batches += 1
            self._sums.cpu_waited += now - self._cpu_asked
            self._sums.cpu_away += self._cpu_asked - self._cpu_left
        self._cpu_left, self._cpu_asked = now, -1.0

    @property
    def workers(self) -> str:
        """The makers of the batches: "this process", "2 threads" of it, or "2 processes".

        Where rows are only copied, `num_workers` means threads: see docs/performance.md.

        Example:
            >>> loader = yoga.DataLoader(list(range(100)), batch_size=4)
            >>> rows = [batch for batch in loader]
            >>> loader.meter.workers
            'this process'
        """
        processes, threads = self._setting.num_workers, self._setting.num_threads
        number, kind = (processes, "process") if processes else (threads, "thread")
        plural = "" if number == 1 else "es" if processes else "s"
        return f"{number} {kind}{plural}" if number else "this process"

    @property
    def epoch(self) -> meter_advice.Numbers:
        """This epoch so far."""
        found, (longest, epoch, step) = self._numbers(self._before), self._longest
        return found._replace(waits=found.waits._replace(longest=longest, epoch=epoch, step=step))

    @property
    def last(self) -> meter_advice.Numbers:
        """The last 100 to 124 batches, also those of earlier epochs."""
        return self._numbers(self._looks[0])

    def _counts(self) -> Sums:
        return replace(self._sums, stages=self._stages())

    def _numbers(self, before: Sums) -> meter_advice.Numbers:
        now, setting = self._counts(), self._setting
        batches = now.batches - before.batches
        stages = {name: seconds - before.stages[name] for name, seconds in now.stages.items()}
        worker_cpu, worker_delay = stages.pop("cpu"), stages.pop("delay")
        share = batches / max(1, now.cpu_batches - before.cpu_batches)
        cpu, loop_cpu = share * (now.cpu_waited - before.cpu_waited), share * (now.cpu_away - before.cpu_away)
        delayed = max(0.0, now.delayed - before.delayed) * cpu / ((cpu + loop_cpu) or 1.0)
        if setting.num_workers:
            cpu, loop_cpu, delayed = worker_cpu, cpu + loop_cpu, worker_delay
        elif setting.num_threads or setting.is_ahead:
            of_threads = sum(stages[name] for name in ("read", "transform", "decode", "collate"))
            cpu, loop_cpu = of_threads, max(0.0, cpu + loop_cpu - of_threads)
        return meter_advice.Numbers(
            batches,
            now.waited - before.waited,
            now.away - before.away,
            now.first - before.first,
            stages,
            _waits_of(list(self._waits.copy())[-batches:] if batches else []),
            now.epochs - before.epochs,
            cpu,
            loop_cpu,
            delayed,
            self._batch_bytes,
        )

    def numbers(self) -> dict[str, float]:
        """The epoch and the last 100 batches as one flat dict, for exporters.

        `batches`, `waited` and `away` in seconds, `share` of the time that the loop waited in 0..1, `first`
        in seconds for the first batch, `p50`, `p99` and `longest` wait in seconds, `longest_epoch` and
        `longest_step` at which that came, CPU seconds of making batches (`cpu`) and of the loop (`loop_cpu`),
        seconds in which makers wanted a CPU and there was none (`delayed`), and the seconds of each stage;
        those of the last 100 batches begin with `last/`.
        """
        epoch, last = self.epoch.flat(), self.last.flat()
        return {**epoch, **{f"last/{name}": value for name, value in last.items()}}

    def verdict(self) -> str:
        """In words: what the loop waits for, and the setting to change."""
        return counted(self).text

    def every(self, batches: int, function: Callable[[Meter], object]) -> None:
        """Calls a function with this meter after each so many batches, counted over all epochs.

        docs/measure.md shows it in a progress bar. The time of the function counts neither as waiting nor as
        away. If it raises, that is logged once, and training goes on. Copies of the loader do not call it.

        Args:
            batches: from one call to the next.
            function: takes the meter.

        Raises:
            TypeError: `function` cannot be called.
            ValueError: `batches` is not an integer of at least 1.

        Example:
            >>> shares = []
            >>> loader = yoga.DataLoader(list(range(40)), batch_size=2)
            >>> loader.meter.every(10, lambda meter: shares.append(meter.last.share))
            >>> count = sum(1 for batch in loader)
            >>> count, len(shares)
            (20, 2)
        """
        if not callable(function):
            raise TypeError(f"every calls a function that takes the meter, found a {type(function).__name__}")
        self._calls = [*self._calls, (as_int("batches", batches, low=1), function)]

    def _call(self) -> None:
        for batches, function in self._calls:
            if self._sums.batches % batches:
                continue
            try:
                function(self)
            except Exception:  # training goes on
                if function not in self._failed:
                    self._failed.append(function)
                    _logger.exception("%r cannot show the loader's meter; this is said once", function)
            self._left = perf_counter()  # what the function takes is not the loop's
            self._cpu_left = -1.0

    def __reduce__(self) -> tuple[type[Meter], tuple[object, ...]]:
        return type(self), (self._stages,)

    def __str__(self) -> str:
        return f"last {self.last}; {self.verdict()}"

    def __repr__(self) -> str:
        return f"Meter({self.epoch})"


def counted(meter: Meter) -> meter_advice.Verdict:
    """The verdict of a meter about the last batches, with the number of workers that it advises."""
    return meter_advice.verdict_of(meter.last, meter._setting)


def _waits_of(waits: Sequence[tuple[float, int, int]]) -> meter_advice.Waits:
    """Numbers of some waits, each with the epoch and the step of its batch."""
    if not waits:
        return meter_advice.Waits()
    ordered = sorted(wait for wait, *_ in waits)
    p50, p99 = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.99))
    return meter_advice.Waits(p50, p99, *max(waits, key=lambda wait: wait[0]))


def setting_of(loader: Any, plan: Any) -> meter_advice.Setting:
    """The settings of a loader that makes its batches by this plan."""
    way, schema = plan.way, loader.dataset.schema if isinstance(loader.dataset, DataRef) else None
    num_batches = 0
    with suppress(TypeError, NotImplementedError):  # a sampler without a length
        num_batches = len(plan)
    is_so = {
        meter_advice.BLOCK: getattr(loader.sampler, "shuffle", None) in (False, "block"),
        meter_advice.FEWER: schema is not None and len(schema.columns) == 1,
        meter_advice.AT_ONCE: way.is_batched,
        meter_advice.KEPT: isinstance(loader.dataset, DataRef),
        meter_advice.COLLATE_FN: not way.collates,
        meter_advice.FEW_LEAVES: way.collates,
        meter_advice.SMALLER: way.collates,
        # Asking if CUDA is available would keep it from workers that are forked later.
        meter_advice.PIN: loader.pin_memory or not torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
    }
    return meter_advice.Setting(
        num_workers=0 if way.num_threads else loader.num_workers,
        asked=loader.num_workers,
        num_cpus=usable_cpus(),
        is_persistent=loader.persistent_workers,
        num_threads=way.num_threads,
        are_threads=way.may_be_threads,
        is_ahead=way.is_ahead,
        prefetch=(way.num_ahead if way.is_ahead else loader.prefetch_factor) or 2,
        num_batches=num_batches,
        is_so=frozenset(change for change, is_there in is_so.items() if is_there),
    )


def _bytes(batch: object) -> int:
    """Bytes of the tensors and arrays in a batch."""
    with suppress(Exception):  # of a user's class
        leaves = tree_leaves(batch)
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, (torch.Tensor, np.ndarray)))
    return 0
