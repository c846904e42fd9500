"""How long the training loop waited for data, what the loader did meanwhile, and the setting to change."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time

import numpy as np
import torch

from ...order.contract import SourceCounts
from ...process.control_group import scheduled
from ...process.numbers import as_int
from ...process.stages import CPU, DELAY, STAGES, Stopwatch
from ...rows.types import Batch, Row, mapped
from .numbers import Numbers, WaitHistogram, Waits, waits_of
from .threads import LockWatch
from .verdict import Setting, verdict

_STEP = 25  # batches between two looks at the stages
_LAST = 100  # batches, and up to _STEP more
_RING = _LAST + _STEP
_WORTH_CPU = 1e-4  # seconds of a batch, from which on asking for CPU seconds costs less than a hundredth
_DELAYS = 0.02  # seconds between two looks at what the kernel says of this thread
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sums:
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
    stages: Sequence[float] = ()  # and the CPU seconds of workers, and their delays


class Meter:
    """How long the loop waited for data in this epoch, and over the last 100 batches.

    *Waited* is the time that the loop stood in `next`, *away* the time between two calls, in which it
    computes. The stages say what the loader worked on, in this process, its threads and its workers; with
    several of them they add up to more than the time that passed. It costs less than a microsecond a batch,
    where a batch takes less than 0.1 ms, and two microseconds where it takes longer.

    Args:
        watch: counts the seconds of each stage.
        account: says what was delivered of each source of a mixture.

    Example:
        >>> loader = yoga.DataLoader(list(range(1000)), batch_size=10)
        >>> for batch in loader:
        ...     pass
        >>> loader.meter.epoch.batches
        100
        >>> sorted(loader.meter.epoch.stages) == sorted(loader.meter.last.stages)
        True
    """

    def __init__(self, watch: Stopwatch, account: Callable[[], SourceCounts | None]) -> None:
        self._watch = watch
        self._account = account
        self._calls: list[tuple[int, Callable[[Meter], object]]] = []
        self._failed: list[object] = []  # of these functions
        self._lock_watch = LockWatch()
        self._setting = Setting(0, 1)
        self._sums, self._delay_due = _Sums(delayed=scheduled()[1]), 0.0
        self._waits = [0.0] * _RING
        self._places = [(0, 0)] * _RING
        self._looks: deque[_Sums] = deque([self._counts()], _LAST // _STEP + 1)
        self._batch_bytes = 0
        self._begin_epoch(0, 0)

    def _begin_epoch(self, epoch: int, step: int) -> None:
        self._epoch, self._step = epoch, step
        self._left = 0.0  # when the loop got its last batch
        self._cpu_left = self._cpu_asked = -1.0
        self._counts_cpu = False
        self._before = self._counts()
        self._histogram = WaitHistogram()
        self._longest = 0.0, epoch, step
        self._counted = self._sums.batches  # batches whose waits are in these two

    def begun(self, setting: Setting, epoch: int = 0, step: int = 0) -> None:
        """An epoch begins at this step, in which the loader is set to this."""
        self._setting, self._sums.delayed = setting, scheduled()[1]
        self._begin_epoch(epoch, step)
        self._sums.epochs += 1

    def asked(self) -> float:
        """The loop asks for a batch; returns when, as `perf_counter` tells."""
        if self._counts_cpu:
            self._cpu_asked = process_time()
        return perf_counter()

    def delivered(self, asked: float, batch: Batch = None) -> None:
        """The loop gets the batch that it asked for."""
        now = perf_counter()
        sums, waited, left = self._sums, now - asked, self._left
        away = asked - left if left else 0.0
        sums.waited += waited
        sums.away += away
        if self._counts_cpu:
            self._count_cpu()
        total = sums.batches
        place = total % _RING
        self._waits[place] = waited
        self._places[place] = self._epoch, self._step
        if not left and total == self._before.batches:
            sums.first += waited
            self._batch_bytes = _bytes(batch)
        sums.batches = total = total + 1
        self._step += 1
        self._counts_cpu = waited + away > _WORTH_CPU
        self._left = now
        if not total % _STEP:
            if now > self._delay_due:
                sums.delayed, self._delay_due = scheduled()[1], now + _DELAYS
            self._looks.append(self._counts())
            (self._histogram, self._longest), self._counted = self._waits_so_far(), total
        if now > self._lock_watch.due:
            self._lock_watch.look(now)
            self._left = perf_counter()
        if self._calls:
            self._call()

    def _waits_so_far(self) -> tuple[WaitHistogram, tuple[float, int, int]]:
        """The waits of the epoch, and the longest: what is counted, and those since. Any thread may ask."""
        places = [number % _RING for number in range(self._counted, self._sums.batches)]
        waits = [(self._waits[place], *self._places[place]) for place in places]
        longest = max(self._longest, *waits, key=lambda wait: wait[0]) if waits else self._longest
        return self._histogram.with_waits([wait for wait, *_ in waits]), longest

    def _count_cpu(self) -> None:
        now = process_time()
        if self._cpu_asked >= 0.0 <= self._cpu_left:
            self._sums.cpu_batches += 1
            self._sums.cpu_waited += now - self._cpu_asked
            self._sums.cpu_away += self._cpu_asked - self._cpu_left
        self._cpu_left, self._cpu_asked = now, -1.0

    def missed(self, asked: float) -> None:
        """The loop gets an error, which it may go on after, for the batch that it asked for."""
        now = perf_counter()
        self._sums.away += asked - self._left if self._left else 0.0
        self._sums.waited += now - asked
        self._left = now

    def ended(self, asked: float) -> None:
        """The loop asked for a batch, and the epoch is over: its numbers are complete."""
        self.missed(asked)  # waited for, and nothing came
        self._sums.delayed = scheduled()[1]
        self._left = 0.0

    @property
    def workers(self) -> str:
        """The makers of the batches: "this process", "2 threads" of it, or "2 processes".

        Where rows are only copied, `num_workers` means threads: see docs/meter.md.

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
    def epoch(self) -> Numbers:
        """This epoch so far."""
        histogram, longest = self._waits_so_far()
        p50, p99 = (min(longest[0], histogram.quantile(share)) for share in (0.5, 0.99))
        is_empty = self._sums.batches == self._before.batches
        return self._numbers(self._before, Waits() if is_empty else Waits(p50, p99, *longest))

    @property
    def last(self) -> Numbers:
        """The last 100 to 124 batches, also those of earlier epochs."""
        before = self._looks[0]
        some = [number % _RING for number in range(before.batches, self._sums.batches)]
        waits = waits_of([self._waits[place] for place in some], [self._places[place] for place in some])
        return self._numbers(before, waits)

    def _counts(self) -> _Sums:
        return replace(self._sums, stages=self._watch.totals)

    def _numbers(self, before: _Sums, waits: Waits) -> Numbers:
        now = self._counts()
        batches = now.batches - before.batches
        work = [after - then for after, then in zip(now.stages, before.stages, strict=True)]
        stages = dict(zip(STAGES, work[:CPU], strict=True))
        waited = now.waited - before.waited
        share = batches / max(1, now.cpu_batches - before.cpu_batches)
        cpu, loop_cpu = share * (now.cpu_waited - before.cpu_waited), share * (now.cpu_away - before.cpu_away)
        delayed = max(0.0, now.delayed - before.delayed) * cpu / ((cpu + loop_cpu) or 1.0)
        if self._setting.num_workers:
            cpu, loop_cpu, delayed = work[CPU], cpu + loop_cpu, work[DELAY]
        elif self._setting.num_threads or self._setting.is_ahead:
            of_threads = sum(stages[name] for name in ("read", "transform", "decode", "collate"))
            cpu, loop_cpu = of_threads, max(0.0, cpu + loop_cpu - of_threads)
        return Numbers(
            batches,
            waited,
            now.away - before.away,
            now.first - before.first,
            stages,
            waits,
            now.epochs - before.epochs,
            cpu,
            loop_cpu,
            delayed,
            self._batch_bytes,
        )

    @property
    def sources(self) -> SourceCounts | None:
        """Rows delivered of each source of a mixture, in all epochs; None for other datasets.

        It is worked out when it is asked for. Printed it is a table; `numbers()` of it are for exporters.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(10)})
            >>> loader = yoga.DataLoader(yoga.mix({"a": data, "b": data}, {"a": 3, "b": 1}, rows=100), 10)
            >>> batches = list(loader)
            >>> loader.meter.sources.numbers()["a/rows"]
            75.0
        """
        return self._account()

    def numbers(self) -> dict[str, float]:
        """The epoch and the last 100 batches as one flat dict, for exporters.

        `batches`, `waited` and `away` in seconds, `share` of the time that the loop waited in 0..1, `first`
        in seconds for the first batch, `p50`, `p99` and `longest` wait in seconds, `longest_epoch` and
        `longest_step` at which that came, CPU seconds of making batches (`cpu`) and of the loop (`loop_cpu`),
        seconds in which makers wanted a CPU and there was none (`delayed`), and the seconds of each stage;
        those of the last 100 batches begin with `last/`. Of a mixture also the rows and passes of each
        source: `sources/web/rows`.
        """
        epoch, last = self.epoch.flat(), self.last.flat()
        sources = self.sources
        read = {} if sources is None else {f"sources/{name}": n for name, n in sources.numbers().items()}
        return {**epoch, **{f"last/{name}": value for name, value in last.items()}, **read}

    def verdict(self) -> str:
        """In words: what the loop waits for, and the setting to change."""
        return verdict(self.last, self._setting, self._lock_watch.holders)

    def every(self, batches: int, function: Callable[[Meter], object]) -> None:
        """Calls a function with this meter after each so many batches, counted over all epochs.

        docs/meter.md shows it in a log, a progress bar, TensorBoard and OpenTelemetry. The time of the
        function counts neither as waiting nor as away. If it raises, that is logged once, and training goes
        on. Copies of the loader do not call it.

        Args:
            batches: from one call to the next.
            function: takes the meter.

        Raises:
            TypeError: `function` cannot be called, or `batches` is no integer.
            ValueError: `batches` is less than 1.

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
        return Meter, (self._watch, self._account)

    def __str__(self) -> str:
        return f"last {self.last}; {self.verdict()}"

    def __repr__(self) -> str:
        return f"Meter({self.epoch})"


def _bytes(batch: Batch) -> int:
    """Bytes of the tensors and arrays in a batch."""
    sizes: list[int] = []

    def add(value: Row) -> Row:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            sizes.append(value.nbytes)
        return value

    with contextlib.suppress(Exception):  # of a user's class
        mapped(batch, add)
    return sum(sizes)
