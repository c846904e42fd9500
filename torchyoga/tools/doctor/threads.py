"""Threads of BLAS and OpenMP that rows are made with in a worker, against the CPUs there are."""

from __future__ import annotations

import importlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .diagnosis import Finding
from .patient import Patient

__all__ = ["oversubscribed", "used_threads"]

_SECONDS, _MOST_SECONDS, _ROWS, _TIMES = 0.5, 2.5, 64, 20
_LEAST = 0.05  # seconds; less is the clocks' error
_OTHERS = 0.1  # share of a worker's CPU time in threads of its libraries
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def used_threads(patient: Patient) -> dict[str, Any]:
    """The load of a real worker while it makes rows: the threads of its libraries, and CPU time by thread."""
    clocks: list[dict[str, Any]] = []
    keys = [] if patient.is_iterable else patient.keys(_ROWS) * _TIMES
    for clock in patient.probe(_CpuTimes(), keys, 1):
        clocks.append(clock)
        # A worker that waits for a CPU needs longer until there is something to divide.
        at, of_all = (clock[name] - clocks[0][name] for name in ("at", "all"))
        if at > _SECONDS and (of_all > 2 * _LEAST or at > _MOST_SECONDS):
            break
    # From the first row on: what is done once does not count.
    of_all, of_others = (clocks[-1][name] - clocks[0][name] if clocks else 0.0 for name in ("all", "others"))
    threads, library, variable = clocks[-1]["pools"] if clocks else (0, "", "")
    share = min(1.0, of_others / of_all) if of_all > _LEAST else 0.0
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


def oversubscribed(seen: dict[str, Any], num_workers: int, usable: int) -> list[Finding]:
    """A finding if the workers' threads together are more than the CPUs, and do a tenth of the work."""
    threads, share = seen["threads"], seen["others"]
    if share < _OTHERS or threads < 2 or threads * max(1, num_workers) <= usable:
        return []
    return [
        Finding(
            "thread-oversubscription",
            f"{num_workers} workers x {threads} threads of {seen['library']} on {usable} CPUs; "
            f"{share:.0%} of a worker's CPU time is in them",
            "They wait for each other, mostly in a busy loop: rows come slower than with one thread each.",
            f"{seen['variable']}=1 in the environment, or threadpool_limits(1) in worker_init_fn",
            "slow",
        )
    ]


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
