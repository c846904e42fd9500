"""The CPUs that workers may use, rows a second with 0, 1, 2, 4 ... of them, and how many are enough."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...loading.loader import DataLoader
from ...process.control_group import usable_cpus
from ...reading.dataref import DataRef
from ..meter_advice import Costs, most_workers, seconds_text
from .diagnosis import Check, Finding, Measured, Seen
from .patient import Patient
from .trial import BUSY, Others, running_seconds

_AS_GOOD = 0.95  # of the best rate
_WAITS = 0.5  # of the time of one worker, in which it computes or wants to: its rows wait
_RATE_SECONDS, _LEAST_SECONDS = 2.0, 0.2  # for each number of workers


def counts(usable: int, current: int) -> list[int]:
    """The numbers of workers to measure: 0, 1, 2, 4 ... up to the CPUs there are, and the present one."""
    return sorted({0, 1, usable, current} | {2**power for power in range(1, 12) if 2**power <= usable})


def _rates(patient: Patient, seconds: float) -> dict[str, Any]:
    """Rows a second with each number of workers.

    Returns:
        A dict of the `usable` CPUs, the `rates` as [number of workers, rows a second], the share of the CPUs
        that `others` took meanwhile, and `waits`, True if the rows of one worker wait more than they compute.
    """
    usable, size = usable_cpus(), patient.batch_size()
    wanted, most = counts(usable, patient.num_workers), most_workers(usable)
    more = sorted({most // 2, most} - {*range(usable + 1), *wanted})  # where rows wait
    each = min(_RATE_SECONDS, 2 * seconds / (len(wanted) + len(more)))
    rates, waits, ends = list[tuple[int, float]](), False, time.monotonic() + 2.5 * seconds
    others = Others(os.getsid(0))
    # Rows that this process makes may start threads, which would be in the way of workers.
    for count in [*(count for count in wanted if count), 0, *more] if each >= _LEAST_SECONDS else ():
        if time.monotonic() > ends or (count in more and not waits):
            break
        rate, running = _rate(patient, count, size, each)
        rates.append((count, rate))
        waits |= count == 1 and running < _WAITS
    return {"usable": usable, "rates": rates, "others": others.share, "waits": waits}


def _rate(patient: Patient, count: int, size: int | None, seconds: float) -> tuple[float, float]:
    """Rows a second with so many workers, once each has made a batch, and the seconds of each second in which
    threads of the loader ran, or wanted to.
    """
    more: dict[str, Any] = {"persistent_workers": True} if count else {}
    batches = _without_end(patient.like(count, size, **more))
    warm_until = time.perf_counter() + seconds
    for _ in range(max(1, count)):
        next(batches)
        if time.perf_counter() > warm_until:
            break
    before, begun, made = running_seconds(os.getsid(0)), time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        made += size or 1
    elapsed = time.perf_counter() - begun
    return made / elapsed, (running_seconds(os.getsid(0)) - before) / elapsed


def _judged(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding | Measured]:
    usable, current, others = facts["usable"], patient.num_workers, facts["others"]
    if current > usable and not (patient.is_alone or facts["waits"]):  # else they do not take turns
        yield Finding(
            "few-cpus",
            f"num_workers is {current}; this process may keep {usable} of {os.cpu_count()} CPUs busy",
            "Workers that compute take turns, and each needs memory.",
            f"num_workers={usable}",
            "maybe",
        )
    rates = {int(count): rate for count, rate in facts["rates"]}
    if rates and others >= BUSY:
        busy = f"other processes took {others:.0%} of the CPUs: too much to tell how many workers are enough"
        yield Measured("workers", busy)
    elif rates:
        yield Measured(
            "workers",
            f"rows/s: {_text(rates)}; {recommended(rates)} are enough for within 5 % of the best of these",
        )
        yield from few_workers(rates, patient, usable)


def recommended(rates: Mapping[int, float]) -> int:
    """The smallest number of workers within 5 % of the best."""
    best = max(rates.values())
    return min(count for count, rate in rates.items() if rate >= _AS_GOOD * best)


def _text(rates: Mapping[int, float]) -> str:
    return ", ".join(f"{rate:,.0f} with {count}" for count, rate in sorted(rates.items())) + " workers"


def few_workers(rates: Mapping[int, float], patient: Patient, usable: int = sys.maxsize) -> Iterator[Finding]:
    """A finding if the loop would wait a fifth less with another number of workers than the loader's.

    It is the meter's arithmetic: what the meter of the loader has seen of the loop counts here, too. Where it
    has seen none, a wait was not measured.
    """
    current = patient.num_workers
    if patient.is_alone or current not in rates or len(rates) < 2 or min(rates.values()) <= 0:
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
        f"rows/s: {_text(rates)}; the loader has {current}",
        f"With {best} a batch comes every {seconds_text(costs.measured[best])}, now every "
        f"{seconds_text(costs.measured[current])}; {loop}."
        + (" Rows wait, so that workers need no CPU each, though torch warns." if best > usable else ""),
        f"num_workers={best}",
        "slow" if costs.loop else "maybe",
    )


def _costs(rates: Mapping[int, float], current: int, patient: Patient) -> Costs:
    """The seconds of a batch, from the rates, and what the loader's meter says of the loop."""
    loader, dataset = patient.loader, patient.dataset
    size, loop = loader.batch_size or 1, 0.0
    measured = {count: size / rate for count, rate in rates.items()}
    if isinstance(loader, DataLoader) and loader.meter.last.batches:
        last = loader.meter.last
        loop = last.away / last.batches
        # Training was no slower than it was: less can be saved than it has waited.
        step = loop + last.steady(bool(current))
        measured[current] = min(measured[current], step)
    fewest = min(measured)
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


WORKERS = Check("workers", lambda patient: True, _rates, _judged, in_workers=True)
