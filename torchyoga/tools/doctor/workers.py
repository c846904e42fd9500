"""The CPUs that workers may use, rows a second with 0, 1, 2, 4 ... of them, and how many are enough."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from ...loading.loader import DataLoader
from ...loading.meter.numbers import seconds_text
from ...loading.meter.pace import Costs, most_workers
from ...process.control_group import folders, num_cpus
from ...reading.dataref import DataRef
from .diagnosis import Finding
from .patient import Patient
from .trial import cpu_seconds, running_seconds

__all__ = [
    "Rate",
    "counts",
    "few_cpus",
    "few_workers",
    "measured_rate",
    "more_counts",
    "rates_text",
    "recommended",
    "seconds_of_all",
    "usable_cpus",
]

_AS_GOOD = 0.95  # of the best rate
_WAITS = 0.5  # of the time of one worker, in which it computes or wants to: its rows wait
_BUSY = 0.2  # of the CPUs, that other processes take: rates say little then


def usable_cpus(root: Path = Path("/")) -> int:
    """The CPUs that this process can keep busy, by its affinity and the quota of its control group.

    Args:
        root: where /proc and /sys lie.
    """
    quotas = [_quota(folder, is_second) for folder, is_second in folders("cpu", root)]
    return max(1, min([num_cpus(), *map(math.ceil, quotas)]))


def _quota(folder: Path, is_second: bool) -> float:
    """CPUs of time that a control group is given."""
    with suppress(OSError, ValueError, ZeroDivisionError):  # it has none
        if is_second:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        if int(quota) > 0:
            return int(quota) / int(period)
    return sys.maxsize


def seconds_of_all() -> float:
    """Seconds of CPU time that all processes, and other machines on this one, took of this process's CPUs."""
    with suppress(OSError):
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = sum(sum(map(int, (*some[1:4], *some[6:9]))) for some in lines if some and some[0] in mine)
        return float(ticks / os.sysconf("SC_CLK_TCK"))
    return 0.0


def few_cpus(usable: int, num_workers: int | None) -> Iterator[Finding]:
    """A finding if there are more workers than CPUs."""
    if num_workers is None or num_workers <= usable:
        return
    yield Finding(
        "few-cpus",
        f"num_workers is {num_workers}; this process may keep {usable} of {os.cpu_count()} CPUs busy",
        "Workers that compute take turns, and each needs memory.",
        f"num_workers={usable}",
        "maybe",
    )


def counts(usable: int, current: int | None) -> list[int]:
    """The numbers of workers to measure: 0, 1, 2, 4 ... up to the CPUs there are, and the present one."""
    found = {0, 1, usable} | {2**power for power in range(1, 12) if 2**power <= usable}
    return sorted(found | ({current} if current is not None else set()))


def more_counts(usable: int, current: int | None) -> list[int]:
    """The numbers of workers to measure, besides, where rows wait more than they compute."""
    most = most_workers(usable)
    return sorted({most // 2, most} - {*range(usable + 1), *counts(usable, current)})


class Rate(NamedTuple):
    """How fast rows came.

    Attributes:
        rows: a second.
        others: the share of the CPUs that other processes took meanwhile.
        running: seconds that threads of the loader computed, or wanted to, in each second.
    """

    rows: float
    others: float = 0.0
    running: float = 1.0

    @property
    def waits(self) -> bool:
        """True, of the rate of one worker, if its rows wait more than they compute."""
        return self.running < _WAITS


def measured_rate(patient: Patient, num_workers: int, size: int | None, seconds: float) -> Rate:
    """The rate over some seconds, once each worker has made a batch. In a trial."""
    more: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    rows = _Repeated(patient.dataset) if patient.is_iterable else None
    loader = patient.like(num_workers, rows, size, **more)
    batches = _without_end(loader)
    warm_until = time.perf_counter() + seconds
    for _ in range(max(1, num_workers)):
        next(batches)
        if time.perf_counter() > warm_until:
            break
    session = os.getsid(0)
    others, running = seconds_of_all() - cpu_seconds(session), running_seconds(session)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        count += size or 1
    elapsed = time.perf_counter() - begun
    others = max(0.0, seconds_of_all() - cpu_seconds(session) - others)
    running = running_seconds(session) - running
    return Rate(count / elapsed, min(1.0, others / elapsed / num_cpus()), running / elapsed)


def recommended(rates: Mapping[int, float]) -> int:
    """The smallest number of workers within 5 % of the best."""
    best = max(rates.values())
    return min(count for count, rate in rates.items() if rate >= _AS_GOOD * best)


def rates_text(rates: Mapping[int, float], others: float = 0.0) -> str:
    """The rates in a line, and that other processes took much of the CPUs meanwhile."""
    text = ", ".join(f"{rate:,.0f} with {count}" for count, rate in sorted(rates.items())) + " workers"
    return f"{text}, while other processes took {others:.0%} of the CPUs" if others >= _BUSY else text


def few_workers(
    rates: Mapping[int, float],
    current: int | None,
    patient: Patient | None = None,
    others: float = 0.0,
    usable: int = sys.maxsize,
) -> Iterator[Finding]:
    """A finding if the loop would wait a fifth less with another number of workers than the loader's.

    It is the meter's arithmetic: what the meter of the loader has seen of the loop counts here, too. Where it
    has seen none, or other processes took `others` of the CPUs, a wait was not measured.
    """
    if current is None or current not in rates or len(rates) < 2 or min(rates.values()) <= 0:
        return
    costs = _costs(rates, current, patient)
    # Workers that live from epoch to epoch: those that do not are another finding.
    advice = costs.advice(current, is_persistent=True)
    if advice is None:
        return
    best = advice.num_workers
    loop = (
        f"the loop computes {seconds_text(costs.loop)} with each"
        if costs.loop
        else f"it matters where the loop computes less than {seconds_text(costs.measured[current])} with each"
    )
    yield Finding(
        "num-workers",
        f"rows/s: {rates_text(rates, others)}; the loader has {current}",
        f"With {best} a batch comes every {seconds_text(costs.measured[best])}, now every "
        f"{seconds_text(costs.measured[current])}; {loop}."
        + (" Rows wait, so that workers need no CPU each, though torch warns." if best > usable else ""),
        f"num_workers={best}",
        "slow" if costs.loop and others < _BUSY else "maybe",
    )


def _costs(rates: Mapping[int, float], current: int, patient: Patient | None) -> Costs:
    """The seconds of a batch, from the rates, and what the loader's meter says of the loop."""
    loader = None if patient is None else patient.loader
    size, loop = (None if loader is None else loader.batch_size) or 1, 0.0
    measured = {count: size / rate for count, rate in rates.items()}
    if isinstance(loader, DataLoader) and loader.meter.last.batches:
        last = loader.meter.last
        loop = last.away / last.batches
        # Training was no slower than it was: less can be saved than it has waited.
        step = loop + max(0.0, last.waited - last.stages["start-up"]) / last.batches
        measured[current] = min(measured[current], step)
    fewest = min(measured)
    dataset = None if patient is None else patient.dataset
    copies = isinstance(dataset, DataRef) and dataset._only_copies and isinstance(loader, DataLoader)
    return Costs(
        make=measured[fewest] * max(1, fewest),
        cpu=0.0,  # what was measured knows of the CPUs
        loop=loop,
        cpus=max(rates),
        is_ahead=copies,
        are_threads=copies,
        measured=measured,
    )


def _without_end(loader: Any) -> Iterator[object]:
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            raise ValueError("the loader gives no batch")


class _Repeated(IterableDataset[Any]):
    """A dataset without row numbers, again and again."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        while True:
            count = 0
            for row in self.dataset:
                count += 1
                yield row
            if not count:
                return
