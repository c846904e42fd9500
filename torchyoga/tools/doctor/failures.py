"""Rows that raise, hang or come slowly, and so keep the doctor from measuring."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ...process.control_group import usable_cpus
from ...reading.dataref import DataRef
from ..meter_advice import KEPT, most_workers
from .batch import EPOCH, small_shared_memory
from .contents import IN_PLACE, VALUES
from .diagnosis import Finding
from .patient import Patient
from .rows import row_said
from .trial import ENDED, Hang, Outcome


def failed(patient: Patient, outcomes: Mapping[str, Outcome]) -> Iterator[Finding]:
    """Findings about checks that did not end, and about rows that cannot be made."""
    loader, epoch, values = patient.loader, outcomes[EPOCH.name], outcomes[VALUES.name]
    rows, size = values.value or {}, loader.batch_size or 1
    row = rows.get("each")
    for step, outcome in outcomes.items():
        hang = outcome.hang
        if hang is None:
            continue
        is_slow = row is not None and 4 * row * size >= hang.seconds  # a batch takes about as long
        if is_slow or not hang.is_idle:
            yield _slow(patient, step, hang, row)
        # Locks that other threads of this process hold are opened where the loader makes rows beside them.
        elif hang.is_twice and (patient.num_workers or not (hang.is_locked and _has_threads())):
            yield _hang(patient, step, hang)
    # What only this process has tried says something of the loader's rows if others come here, too.
    is_alike = not patient.num_workers or not outcomes[IN_PLACE.name].error
    if epoch.error:
        yield _broken(patient, f"{EPOCH.name}: {epoch.error}", is_proved=not patient.is_alone)
        if patient.num_workers and not patient.is_ours and rows:
            yield from small_shared_memory(loader, rows["bytes"] * size)
    elif values.error and is_alike:
        is_proved = not patient.num_workers and not patient.is_alone
        yield _broken(patient, f"{VALUES.name}: {values.error}", is_proved)


def _broken(patient: Patient, error: str, is_proved: bool) -> Finding:
    return Finding(
        "broken-rows",
        error,
        "Rows cannot be made so: training ends with this error.",
        "python -X faulthandler names the line at which a process ends by a signal"
        if error.endswith(ENDED)
        else f"{_raising(patient, error)} raises it here",
        "wrong" if is_proved else "maybe",
    )


def _raising(patient: Patient, error: str) -> str:
    """What anyone may run to see an error of the rows in a process of their own."""
    dataset, row = "dataset" if patient.is_alone else "loader.dataset", row_said(error)
    if row is not None:
        return f"{dataset}[{row}]"
    if patient.is_alone:
        return f"next(iter({dataset}))" if patient.is_iterable else f"default_collate([{dataset}[0]] * 2)"
    return "loader.peek()" if patient.is_ours else "next(iter(loader))"


def _has_threads() -> bool:
    """True if this process has more threads than the one that forks."""
    return os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) > 1


def _hang(patient: Patient, step: str, hang: Hang) -> Finding:
    """Nothing came, twice. It may wait for a disk or a server, or for what only a worker has."""
    has_own = patient.loader.worker_init_fn is not None
    is_made_so = (
        not patient.num_workers or step == EPOCH.name or not (has_own or patient.start_method != "fork")
    )
    beside = "This process has other threads: a child that is forked while one holds a lock waits forever."
    return Finding(
        "hang",
        f"{step}: it did not end in {hang.seconds:.0f} s, twice, and did nothing"
        + (" but wait for a lock" if hang.is_locked else "")
        + _where(hang),
        "A worker that waits forever stops training without an error."
        + (f" {beside}" if hang.is_locked and _has_threads() else ""),
        "make locks, queues and pools on first use in each worker, or multiprocessing_context='forkserver'"
        if hang.is_locked and patient.num_workers
        else "timeout=60 makes the loader raise; py-spy dump --pid of a worker shows where it waits",
        "wrong" if hang.is_locked and is_made_so else "maybe",
    )


def _where(hang: Hang) -> str:
    return f"; it was at {hang.where}" if hang.where else ""


def _slow(patient: Patient, step: str, hang: Hang, row: float | None) -> Finding:
    wanted = most_workers(usable_cpus()) if hang.is_idle else usable_cpus()
    has_all = patient.num_workers >= wanted
    ways = [] if has_all else [f"num_workers={wanted}"]
    if not isinstance(patient.dataset, DataRef):
        ways.append(KEPT)
    elif has_all:
        ways.append("do less for each row")
    return Finding(
        "slow-rows",
        (f"a row takes {row:.2g} s; " if row is not None else "")
        + f"{step}: not within {hang.seconds:.0f} s, and no more was tried{_where(hang)}"
        + ("; other processes took much of the CPUs" if hang.is_busy else ""),
        "A batch takes as long as all its rows, shared among the workers.",
        "; or ".join(ways) + "; doctor(loader, seconds=300) looks longer",
        "maybe" if hang.is_busy else "slow",
    )
