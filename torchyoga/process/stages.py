"""Seconds of work, by stage, in whatever thread does it.

A thread is in one stage at a time.
Entering a stage stops the clock of the one around it, so that the seconds of all stages add up to the time
that passed, and the innermost knows best what it does: a transform is not charged for the rows that it reads.
"""

from __future__ import annotations

import struct
import threading
from time import perf_counter, process_time

from .control_group import cpu_delay


class Stage:
    """The number of each stage in `STAGES`."""

    SAMPLER = 0  # which rows come next
    DISK = 1  # pages of files that were not in memory
    DOWNLOAD = 2  # files of a store
    READ = 3  # rows out of memory
    TRANSFORM = 4  # the user's dataset and functions
    DECODE = 5  # images, sound, compressed bytes
    COLLATE = 6  # rows into batches
    START_UP = 7  # worker processes begin and end; the loop waits meanwhile
    TRANSFER = 8  # from a worker process to this one
    PIN = 9  # into pinned memory
    COPY = 10  # to the device


STAGES = tuple(name.lower().replace("_", "-") for name in vars(Stage) if name.isupper())
# After the stages: CPU seconds of worker processes, and those in which they wanted a CPU and had none.
CPU, DELAY = len(STAGES), len(STAGES) + 1
_NUM = len(STAGES) + 2
_FORMAT = f"<{_NUM}d"
_DELAYS = 0.05  # seconds between two looks at those


class _Clock:
    """The stage that a thread is at now.

    Attributes:
        seconds: of each stage, where they are added up; None while this thread is not measured.
        stage: what it does.
        since: when it began to.
    """

    __slots__ = ("seconds", "since", "stage")

    def __init__(self) -> None:
        self.seconds: list[float] | None = None
        self.stage, self.since = 0, 0.0


class _Clocks(threading.local):
    """The clock of each thread."""

    def __init__(self) -> None:
        self.mine = _Clock()


_clocks = _Clocks()


class Stopwatch:
    """Adds up the seconds of each stage, for each thread apart, so that none waits for another."""

    def __init__(self) -> None:
        self._of_threads: dict[int, list[float]] = {}
        self._sent = [0.0] * _NUM

    def __reduce__(self) -> tuple[type[Stopwatch], tuple[()]]:
        return Stopwatch, ()  # another process measures its own work

    def by_name(self) -> dict[str, float]:
        """`totals`: of each stage, and as "cpu" and "delay" those that workers took of CPUs and waited."""
        return dict(zip((*STAGES, "cpu", "delay"), self.totals, strict=True))

    @property
    def totals(self) -> list[float]:
        """The seconds of each stage, and those of CPUs that workers have taken, and waited for."""
        of_threads = list(self._of_threads.values())
        return [sum(of_one) for of_one in zip(*of_threads, strict=True)] if of_threads else [0.0] * _NUM

    def of_this_thread(self) -> list[float]:
        """Where this thread adds up its seconds."""
        found = self._of_threads.get(threading.get_ident())
        if found is None:
            found = self._of_threads.setdefault(threading.get_ident(), [0.0] * _NUM)
        return found

    def add(self, stage: int, seconds: float) -> None:
        """Adds what was measured elsewhere."""
        self.of_this_thread()[stage] += seconds

    def add_sent(self, sent: bytes) -> None:
        """Adds what `sent` gave in another process."""
        mine = self.of_this_thread()
        for stage, seconds in enumerate(struct.unpack(_FORMAT, sent)):
            mine[stage] += seconds

    def sent(self) -> bytes:
        """The seconds since this was last called, for another process."""
        before, self._sent = self._sent, self.totals
        return struct.pack(_FORMAT, *(now - then for now, then in zip(self._sent, before, strict=True)))

    def running(self, stage: int) -> _Running:
        """A context manager: this thread works for this stopwatch, and begins in this stage."""
        return _Running(self, stage)


def seconds_sent(sent: bytes) -> float:
    """The seconds of all stages in what `Stopwatch.sent` gave."""
    return float(sum(struct.unpack(_FORMAT, sent)[:CPU]))


class WorkerClock:
    """The CPU seconds of a worker process, and those in which it wanted a CPU."""

    def __init__(self) -> None:
        self._cpu, self._delay, self._looked = process_time(), cpu_delay(), perf_counter()

    def sent(self, watch: Stopwatch) -> bytes:
        """All seconds since this was last called, with those of the stopwatch, for the training process."""
        cpu, now = process_time(), perf_counter()
        watch.add(CPU, cpu - self._cpu)
        self._cpu = cpu
        if now - self._looked > _DELAYS:
            delay = cpu_delay()
            watch.add(DELAY, delay - self._delay)
            self._delay, self._looked = delay, now
        return watch.sent()


class _Running:
    __slots__ = ("_before", "_stage", "_watch")

    def __init__(self, watch: Stopwatch, stage: int) -> None:
        self._watch, self._stage = watch, stage

    def __enter__(self) -> None:
        clock = _clocks.mine
        self._before = clock.seconds, clock.stage, clock.since
        clock.seconds, clock.stage = self._watch.of_this_thread(), self._stage
        clock.since = perf_counter()

    def __exit__(self, *error: object) -> None:
        clock = _clocks.mine
        seconds = clock.seconds
        assert seconds is not None, "every stage within has ended"
        seconds[clock.stage] += perf_counter() - clock.since
        clock.seconds, clock.stage, clock.since = self._before


class timed:
    """A context manager: what is done within belongs to a stage. It costs little if nothing is measured."""

    __slots__ = ("_before", "_stage")

    def __init__(self, stage: int) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        clock = _clocks.mine
        seconds = clock.seconds
        if seconds is not None:
            self._before, now = clock.stage, perf_counter()
            seconds[clock.stage] += now - clock.since
            clock.stage, clock.since = self._stage, now

    def __exit__(self, *error: object) -> None:
        clock = _clocks.mine
        seconds = clock.seconds
        if seconds is not None:
            now = perf_counter()
            seconds[clock.stage] += now - clock.since
            clock.stage, clock.since = self._before, now


def is_timed() -> bool:
    """True if this thread's work is measured."""
    return _clocks.mine.seconds is not None


def shift(seconds: float, from_stage: int, to_stage: int) -> None:
    """Says that a part of a stage's time was really another's."""
    found = _clocks.mine.seconds
    if found is not None:
        found[from_stage] -= seconds
        found[to_stage] += seconds
