"""Rows a second with 0, 1, 2, 4 ... workers, and the smallest number that is as good as the best."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from .diagnosis import Finding
from .patient import Patient

__all__ = ["counts", "few_workers", "measured_rate", "recommended", "rates_text"]

_AS_GOOD = 0.95  # of the best rate
_WORTH = 1.2  # a change that gains less may be chance


def counts(usable: int, current: int | None) -> list[int]:
    """The numbers of workers to measure: 0, 1, 2, 4 ... up to the CPUs there are, and the present one."""
    found = {0, 1, usable} | {2**power for power in range(1, 12) if 2**power <= usable}
    return sorted(found | ({current} if current is not None else set()))


def measured_rate(patient: Patient, num_workers: int, size: int | None, seconds: float) -> float:
    """Rows a second over some seconds, once each worker has made a batch."""
    more: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    rows = _Repeated(patient.dataset) if patient.is_iterable else None
    loader = patient.like(num_workers, rows, size, **more)
    batches = _without_end(loader)
    warm_until = time.perf_counter() + seconds
    for _ in range(max(1, num_workers)):
        next(batches)
        if time.perf_counter() > warm_until:
            break
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        count += size or 1
    return count / (time.perf_counter() - begun)


def recommended(rates: Mapping[int, float]) -> int:
    """The smallest number of workers within 5 % of the best."""
    best = max(rates.values())
    return min(count for count, rate in rates.items() if rate >= _AS_GOOD * best)


def rates_text(rates: Mapping[int, float]) -> str:
    """The rates in a line."""
    return ", ".join(f"{rate:,.0f} with {count}" for count, rate in sorted(rates.items())) + " workers"


def few_workers(rates: Mapping[int, float], current: int | None) -> list[Finding]:
    """A finding if another number of workers than the loader's gains a fifth or more."""
    if current is None or current not in rates or len(rates) < 2:
        return []
    best = recommended(rates)
    if rates[best] < _WORTH * rates[current]:
        return []
    return [
        Finding(
            "num-workers",
            f"rows/s: {rates_text(rates)}; the loader has {current}",
            f"With {best} it makes rows {rates[best] / max(rates[current], 1e-9):.1f} times as fast.",
            f"num_workers={best}",
            "slow",
        )
    ]


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
