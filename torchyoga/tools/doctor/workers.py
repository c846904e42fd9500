"""Rows a second with 0, 1, 2, 4 ... workers, and the smallest number that is as good as the best."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from ...loading.loader import DataLoader
from ...loading.meter.numbers import seconds_text
from ...loading.meter.pace import Costs
from ...reading.dataref import DataRef
from .diagnosis import Finding
from .patient import Patient

__all__ = ["counts", "few_workers", "measured_rate", "recommended", "rates_text"]

_AS_GOOD = 0.95  # of the best rate


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


def few_workers(
    rates: Mapping[int, float], current: int | None, patient: Patient | None = None
) -> list[Finding]:
    """A finding if the loop would wait a fifth less with another number of workers than the loader's.

    It is the meter's arithmetic: what the meter of the loader has seen of the loop counts here, too.
    """
    if current is None or current not in rates or len(rates) < 2 or min(rates.values()) <= 0:
        return []
    costs = _costs(rates, patient)
    # Workers that live from epoch to epoch: those that do not are another finding.
    advice = costs.advice(current, is_persistent=True)
    if advice is None:
        return []
    best = advice.num_workers
    loop = (
        f"the loop computes {seconds_text(costs.loop)} with each"
        if costs.loop
        else f"it matters where the loop computes less than {seconds_text(costs.measured[current])} with each"
    )
    return [
        Finding(
            "num-workers",
            f"rows/s: {rates_text(rates)}; the loader has {current}",
            f"With {best} a batch comes every {seconds_text(costs.measured[best])}, now every "
            f"{seconds_text(costs.measured[current])}; {loop}.",
            f"num_workers={best}",
            "slow",
        )
    ]


def _costs(rates: Mapping[int, float], patient: Patient | None) -> Costs:
    """The seconds of a batch, from the rates, and what the loader's meter says of the loop."""
    loader = None if patient is None else patient.loader
    size, loop = (None if loader is None else loader.batch_size) or 1, 0.0
    measured = {count: size / rate for count, rate in rates.items()}
    if isinstance(loader, DataLoader) and loader.meter.last.batches:
        loop = loader.meter.last.away / loader.meter.last.batches
    fewest = min(measured)
    dataset = None if patient is None else patient.dataset
    copies = isinstance(dataset, DataRef) and dataset.only_copies and isinstance(loader, DataLoader)
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
