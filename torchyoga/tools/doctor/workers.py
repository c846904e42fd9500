"""How many workers are enough: as the loader's meter says, or by rows a second with 0, 1, 2, 4 ..."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...loading.loader import DataLoader
from ...process.control_group import usable_cpus
from ..meter import counted
from ..meter_advice import Verdict, most_workers, seconds_text
from .batch import EPOCH
from .diagnosis import Check, Finding, Measured, Seen, Severity
from .patient import Patient
from .trial import BUSY, Others, running_seconds

_AS_GOOD = 0.95  # of the best rate
_WORTH = 0.8  # of the best rate: what is better says nothing
_WAITS = 0.5  # of the time of one worker, in which it computes or wants to: its rows wait
_RATE_SECONDS, _LEAST_SECONDS = 2.0, 0.2  # for each number of workers


def counts(usable: int, current: int) -> list[int]:
    """The numbers of workers to measure: 0, 1, 2, 4 ... up to the CPUs there are, and the present one."""
    return sorted({0, 1, usable, current} | {2**power for power in range(1, 12) if 2**power <= usable})


def _of_meter(patient: Patient) -> Verdict | None:
    """The verdict of the loader's meter; None if it has none, or has counted too few batches."""
    if not isinstance(patient.loader, DataLoader):
        return None
    found = counted(patient.loader.meter)
    return found if found.is_sure else None


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
    is_measured = each >= _LEAST_SECONDS and _of_meter(patient) is None
    # Rows that this process makes may start threads, which would be in the way of workers.
    for count in [*(count for count in wanted if count), 0, *more] if is_measured else ():
        if time.monotonic() > ends or (count in more and not waits):
            break
        rate, running = _rate(patient, count, size, each)
        rates.append((count, rate))
        waits |= count == 1 and running < _WAITS
    time.sleep(0 if rates else _LEAST_SECONDS)  # in which others are seen
    return {"usable": usable, "rates": rates, "others": others.share, "waits": waits}


def _rate(patient: Patient, count: int, size: int | None, seconds: float) -> tuple[float, float]:
    """Rows a second with so many workers, once each has made a batch, and the seconds of each second in which
    threads of the loader ran, or wanted to.
    """
    batches = _without_end(patient.again(count))
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


def _without_end(loader: Any) -> Iterator[object]:
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            raise ValueError("the loader gives no batch")


def _judged(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding | Measured]:
    usable, current, others = facts["usable"], patient.num_workers, facts["others"]
    rates = {int(count): rate for count, rate in facts["rates"]}
    said = _of_meter(patient)
    if others >= BUSY and (rates or (said is not None and said.num_workers is not None)):
        busy = f"other processes took {others:.0%} of the CPUs: too much to tell how many workers are enough"
        yield Measured("workers", busy)
    elif said is not None:
        yield Measured("workers", f"as the loader's meter says, {said.text}")
        if said.num_workers is not None:
            yield _number(said.num_workers, said.text, "The meter has counted it as the loop ran.", "slow")
    elif rates:
        text = ", ".join(f"{rate:,.0f} with {count}" for count, rate in sorted(rates.items()))
        text, best = f"rows/s: {text} workers", enough(rates)
        yield Measured("workers", f"{text}; {best} are enough for within 5 % of the best of these")
        if not patient.is_alone and rates.get(current, rates[best]) < _WORTH * rates[best]:
            now, then = ((patient.loader.batch_size or 1) / rates[count] for count in (current, best))
            why = (
                f"With {best} a batch comes every {seconds_text(then)}, now every {seconds_text(now)}; it "
                "matters where the loop computes less than that with each."
            )
            if best > usable:
                why += " Rows wait, so that workers need no CPU each, though torch warns."
            yield _number(best, f"{text}; the loader has {current}", why, "maybe")
            return
    are_good = facts["waits"] or seen.get(EPOCH.name, {}).get("threads")  # of threads there are not more
    if said is None and current > usable and not (patient.is_alone or are_good):  # they take turns
        yield Finding(
            "few-cpus",
            f"num_workers is {current}; this process may keep {usable} of {os.cpu_count()} CPUs busy",
            "Workers that compute take turns, and each needs memory.",
            "fewer workers: the doctor, where no other process computes, says how many",
            "maybe",
        )


def _number(best: int, measured: str, why: str, severity: Severity) -> Finding:
    return Finding("num-workers", measured, why, f"num_workers={best}", severity)


def enough(rates: Mapping[int, float]) -> int:
    """The smallest number of workers within 5 % of the best rate."""
    best = max(rates.values())
    return min(count for count, rate in rates.items() if rate >= _AS_GOOD * best)


WORKERS = Check("workers", lambda patient: True, _rates, _judged, in_workers=True)
