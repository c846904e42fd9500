"""Threads of BLAS and OpenMP that rows are made with in a worker, against the CPUs there are."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .diagnosis import Finding
from .patient import Patient, made

__all__ = ["oversubscribed", "used_threads"]

_SECONDS, _ROWS = 0.5, 64
_OTHERS = 0.1  # share of a worker's CPU time in threads other than its first
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def used_threads(patient: Patient) -> dict[str, Any]:
    """The load of a real worker while it makes rows: the threads of its libraries, and CPU time by thread."""
    probe = (
        _BusyStream(patient.dataset)
        if patient.is_iterable
        else _BusyRows(patient.dataset, patient.keys(_ROWS))
    )
    loader = patient.loader
    more: dict[str, Any] = {}
    if loader is not None and loader.num_workers:
        more = {
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    found: dict[str, Any] = next(
        iter(DataLoader(probe, batch_size=None, num_workers=1, generator=torch.Generator(), **more))
    )
    return found


def oversubscribed(found: dict[str, Any], num_workers: int, usable: int) -> list[Finding]:
    """A finding if the workers' threads together are more than the CPUs, and do a tenth of the work."""
    threads, share = found["threads"], found["others"]
    if share < _OTHERS or threads < 2 or threads * max(1, num_workers) <= usable:
        return []
    return [
        Finding(
            "thread-oversubscription",
            f"{num_workers} workers x {threads} threads of {found['library']} on {usable} CPUs; "
            f"{share:.0%} of a worker's CPU time is in other threads than its own",
            "They wait for each other, mostly in a busy loop: rows come slower than with one thread each.",
            f"{found['variable']}=1 in the environment, or threadpool_limits(1) in worker_init_fn",
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


def _busy(rows: Iterator[object]) -> dict[str, Any]:
    ends = time.perf_counter() + _SECONDS
    next(rows, None)  # what is done once does not count
    of_all, of_this = time.process_time(), time.thread_time()
    for _ in rows:
        if time.perf_counter() > ends:
            break
    of_all, of_this = time.process_time() - of_all, time.thread_time() - of_this
    threads, library, variable = _pools()
    share = max(0.0, 1 - of_this / of_all) if of_all > 0.05 else 0.0  # less is the clocks' error
    return {"threads": threads, "library": library, "variable": variable, "others": share}


class _BusyRows(Dataset[dict[str, Any]]):
    """In place of a dataset: one row, which says how rows are made."""

    def __init__(self, dataset: Any, keys: Sequence[Any]) -> None:
        self.dataset = dataset
        self._keys = keys

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        return _busy(self._rows())

    def _rows(self) -> Iterator[object]:
        while self._keys:
            for row in self._keys:
                yield made(self.dataset, row)


class _BusyStream(IterableDataset[dict[str, Any]]):
    """The same for a dataset without row numbers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield _busy(iter(self.dataset))
