"""CPUs that this process may use and how often it was held back, and threads of libraries that use them."""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...process.control_group import folders, num_cpus
from .diagnosis import Finding
from .patient import Patient

__all__ = ["Cpus", "few_cpus", "oversubscribed", "seconds_of_all", "throttled", "used_threads"]

_SECONDS, _MOST_SECONDS, _ROWS, _TIMES = 0.5, 2.5, 64, 20
_LEAST_SECONDS = 0.05  # seconds; less is the clocks' error
_OTHERS = 0.1  # share of a worker's CPU time in threads of its libraries
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LEAST_PERIODS, _LEAST_SHARE = 10, 0.1  # of scheduling periods in which the group was held back


def used_threads(patient: Patient) -> dict[str, Any]:
    """The load of a real worker while it makes rows: the threads of its libraries, and CPU time by thread."""
    clocks: list[dict[str, Any]] = []
    keys = [] if patient.is_iterable else patient.keys(_ROWS) * _TIMES
    for clock in patient.probe(_CpuTimes(), keys, 1):
        clocks.append(clock)
        # A worker that waits for a CPU needs longer until there is something to divide.
        at, of_all = (clock[name] - clocks[0][name] for name in ("at", "all"))
        if at > _SECONDS and (of_all > 2 * _LEAST_SECONDS or at > _MOST_SECONDS):
            break
    # From the first row on: what is done once does not count.
    of_all, of_others = (clocks[-1][name] - clocks[0][name] if clocks else 0.0 for name in ("all", "others"))
    threads, library, variable = clocks[-1]["pools"] if clocks else (0, "", "")
    share = min(1.0, of_others / of_all) if of_all > _LEAST_SECONDS else 0.0
    return {"threads": threads, "library": library, "variable": variable, "others": share}


class _CpuTimes:
    """A `collate_fn` that gives the CPU time of its process so far, and of its libraries' threads."""

    def __init__(self) -> None:
        self._pools: tuple[int, str, str] | None = None

    def __call__(self, batch: object) -> dict[str, Any]:
        self._pools = self._pools or _pools()
        times = {"at": time.perf_counter(), "all": time.process_time(), "others": _of_libraries()}
        return {**times, "pools": self._pools}


def _of_libraries() -> float:
    """Seconds of CPU time of threads that Python has not started: the one that sends batches is Python's."""
    known, total = {str(one.native_id) for one in threading.enumerate()}, 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        if path.parent.name not in known:
            with suppress(OSError):  # it has ended
                total += int(path.read_text().split()[0])
    return total / 1e9


def oversubscribed(seen: dict[str, Any], num_workers: int, usable: int) -> Iterator[Finding]:
    """A finding if the workers' threads together are more than the CPUs, and do a tenth of the work."""
    threads, share = seen["threads"], seen["others"]
    if share < _OTHERS or threads < 2 or threads * max(1, num_workers) <= usable:
        return
    yield Finding(
        "thread-oversubscription",
        f"{num_workers} workers x {threads} threads of {seen['library']} on {usable} CPUs; "
        f"{share:.0%} of a worker's CPU time is in them",
        "They wait for each other, mostly in a busy loop: rows come slower than with one thread each.",
        f"{seen['variable']}=1 in the environment, or threadpool_limits(1) in worker_init_fn",
        "slow",
    )


def _pools() -> tuple[int, str, str]:
    """The most threads of a library of this process, its name, and the variable that limits them."""
    try:
        pools = importlib.import_module("threadpoolctl").threadpool_info()
    except ImportError:
        pools = []
    best = max(pools, key=lambda pool: int(pool["num_threads"]), default=None)
    if best is not None:
        name = str(best["internal_api"])
        variable = {"mkl": "MKL_NUM_THREADS", "openblas": "OPENBLAS_NUM_THREADS"}.get(name, "OMP_NUM_THREADS")
        return int(best["num_threads"]), name, variable
    for variable in _VARIABLES:
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable]), variable, variable
    # NumPy's BLAS takes all CPUs; torch has one thread in a worker.
    return max(torch.get_num_threads(), os.cpu_count() or 1), "BLAS or OpenMP", "OMP_NUM_THREADS"


class Cpus(NamedTuple):
    """The CPUs that this process may use.

    Attributes:
        machine: CPUs of the machine, as `os.cpu_count` says.
        affinity: those that it may run on.
        quota: CPUs of time that its control group is given; None for all.
        periods: scheduling periods of the group so far.
        held_back: those of them in which its time was used up.
        seconds: for which it was held back.
    """

    machine: int
    affinity: int
    quota: float | None
    periods: int = 0
    held_back: int = 0
    seconds: float = 0.0

    @property
    def usable(self) -> int:
        """CPUs that can be kept busy."""
        return max(1, min(self.affinity, self.machine if self.quota is None else math.ceil(self.quota)))

    @staticmethod
    def now(root: Path = Path("/")) -> Cpus:
        """Those of this process; `root` is where /proc and /sys lie."""
        machine = os.cpu_count() or 1
        quotas: list[float] = []
        stat: dict[str, int] = {}
        for folder, is_second in folders("cpu", root):
            quota = _quota(folder, is_second)
            if quota is not None:
                quotas.append(quota)
            stat = stat or _stat(folder / "cpu.stat")
        seconds = stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
        return Cpus(
            machine,
            num_cpus(),
            min(quotas, default=None),
            stat.get("nr_periods", 0),
            stat.get("nr_throttled", 0),
            seconds,
        )


def seconds_of_all(root: Path = Path("/")) -> float:
    """Seconds of CPU time that all processes, and other machines on this one, took of this process's CPUs."""
    with suppress(OSError):
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        ticks = sum(sum(map(int, (*some[1:4], *some[6:9]))) for some in lines if some and some[0] in mine)
        return float(ticks / os.sysconf("SC_CLK_TCK"))
    return 0.0


def few_cpus(cpus: Cpus, num_workers: int | None) -> Iterator[Finding]:
    """A finding if there are more workers than CPUs, or the machine shows more CPUs than may be used."""
    if num_workers is None and cpus.usable >= cpus.machine:
        return
    if num_workers is not None and num_workers <= cpus.usable:
        return
    parts = []
    if cpus.affinity < cpus.machine:
        parts.append(f"the affinity allows {cpus.affinity}")
    if cpus.quota is not None and cpus.quota < cpus.machine:
        parts.append(f"the control group's quota is {cpus.quota:.3g}")
    but = f", but {' and '.join(parts)}" if parts else ""
    workers = "" if num_workers is None else f"; num_workers is {num_workers}"
    yield Finding(
        "few-cpus",
        f"os.cpu_count() says {cpus.machine} CPUs{but}{workers}",
        "Code that makes a worker or a thread for each CPU makes too many; they take turns, and each "
        "needs memory.",
        f"num_workers={cpus.usable}",
        "maybe",
    )


def throttled(before: Cpus | None, now: Cpus) -> Iterator[Finding]:
    """A finding if the control group was held back in a tenth of the periods since `before`, or ever."""
    periods, held_back, seconds = now.periods, now.held_back, now.seconds
    if before is not None and periods - before.periods >= _LEAST_PERIODS:
        periods, held_back = periods - before.periods, held_back - before.held_back
        seconds -= before.seconds
    if periods < _LEAST_PERIODS or held_back < _LEAST_SHARE * periods:
        return
    yield Finding(
        "throttled",
        f"the control group was held back in {held_back:,} of {periods:,} periods, for {seconds:.1f} s",
        "Once its share of CPU time is used up, all its processes stand still until the next period, the "
        "training loop too.",
        f"num_workers={max(0, now.usable - 1)}, or ask for more CPUs",
        "slow",
    )


def _quota(folder: Path, is_second: bool) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):
        if is_second:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        if quota.strip() not in ("max", "-1"):
            return int(quota) / int(period)
    return None


def _stat(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text().splitlines())
        found = {name: int(value) for name, value in pairs}
        return found if found.get("nr_periods") else {}
    return {}
