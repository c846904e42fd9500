"""`yoga.doctor`: a loader or a dataset -> a diagnosis, also of rows that raise, hang or come slowly."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import thread
from functools import partial
from types import FrameType, FunctionType
from typing import Any

from ...process.control_group import usable_cpus
from ...reading.dataref import DataRef
from ..meter_advice import KEPT, most_workers
from .batch import EPOCH, small_shared_memory
from .contents import IN_PLACE, VALUES
from .diagnosis import NO_LOADER, Check, Diagnosis, Finding, Measured
from .epochs import ORDER, RANDOM_NUMBERS, STALE_EPOCH
from .handles import HANDLES, OBJECTS, RAISED
from .patient import Patient, name_rows, row_said
from .sharding import RANKS, STREAMS
from .trial import ENDED, Hang, Outcome, tried
from .walk import names_in, walk
from .workers import WORKERS

# The quick ones first; each has a process of its own, since a row that was made may start threads, or move a
# stream, before workers are forked.
CHECKS = (
    *(HANDLES, OBJECTS, VALUES, IN_PLACE, ORDER, RANKS),
    *(EPOCH, RANDOM_NUMBERS, STREAMS, STALE_EPOCH, WORKERS),
)
_START_SECONDS = 20.0  # for workers that import torch again
_FORK_SECONDS = 0.1  # for each worker, on a busy machine
# Errors of a child that was forked once this process has used CUDA.
_NO_CUDA = ("in forked subprocess", "CUDA error: initialization error")


def doctor(loader_or_dataset: object, *, seconds: float = 30.0) -> Diagnosis:
    """Finds what slows down or spoils training: in rows, in workers and over epochs.

    What is `wrong` was proved. See docs/measure.md.

    Rows are made in child processes, so the loader's position and all random numbers stay as they are, and a
    dataset that hangs is a finding. Nothing is deleted or changed.

    Args:
        loader_or_dataset: a loader of torch's or torchyoga's, as the training loop iterates it; or a dataset.
        seconds: the most seconds that it takes, and a few more to end what hangs. Fewer than 10 are too few
            to measure workers.

    Raises:
        TypeError: it is neither a loader nor a dataset.
        ValueError: seconds is not a positive number.

    Example:
        >>> loader = DataLoader(list(range(100)), batch_size=10)
        >>> found = doctor(loader, seconds=5)
        >>> [finding.name for finding in found.findings if finding.severity == "wrong"]
        []
    """
    if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ValueError(f"seconds must be a positive number, found {seconds!r}")
    names, sets_epoch = _around(loader_or_dataset)
    patient = Patient.of(loader_or_dataset, names, sets_epoch=sets_epoch)
    return examined(patient, seconds=seconds)


def _around(thing: object) -> tuple[list[str], bool]:
    """The names of variables that hold an object, which may say what it is for, and whether the code that
    calls the doctor, or a function of its module, calls `set_epoch`."""
    frame: FrameType | None = sys._getframe(2)
    assert frame is not None
    held = [*frame.f_locals.items(), *frame.f_globals.items()]
    codes = [one.__code__ for _, one in held if isinstance(one, FunctionType)]
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    sets_epoch = any("set_epoch" in names_in(code) for code in codes)
    return [name for name, one in held if one is thing], sets_epoch


def examined(patient: Patient, *, seconds: float, with_rates: bool = True) -> Diagnosis:
    """As `doctor`, of a patient; the rates of workers, which take half of the time, may be left out."""
    ends, quick = time.monotonic() + seconds, max(1.0, seconds / 4)
    starts = _FORK_SECONDS * patient.num_workers if patient.start_method == "fork" else _START_SECONDS
    outcomes: dict[str, Outcome] = {}
    over = ""
    for check in (one for one in CHECKS if one.needs(patient)):
        if time.monotonic() > ends:
            over = over or f"the {seconds:.0f} s were over"
        outcome = Outcome(left=over)
        if not outcome.left:
            share, limit = quick, quick + check.in_workers * starts
            if check is WORKERS:
                share, limit = (seconds / 4, limit + 2 * quick) if with_rates else (0.0, limit)
            outcome = _measured(partial(_work, check, patient, share), limit, ends)
            if any(text in outcome.error for text in _NO_CUDA) and not patient.num_workers:
                outcome = Outcome(left=outcome.error)
        outcomes[check.name] = outcome
        if outcome.hang is not None:
            over = f"{check.name} did not end"
    seen = {name: outcome.value for name, outcome in outcomes.items() if not outcome.problem}
    raised = outcomes.get(RANDOM_NUMBERS.name, Outcome()).error  # its rows are of those of the other two
    if row_said(raised) is not None and {VALUES.name, IN_PLACE.name} <= seen.keys():
        seen[RAISED] = raised
    said: list[Finding | Measured] = [*_failed(patient, outcomes)]
    for check in CHECKS:
        if check.name in seen:
            said += check.judge(patient, seen[check.name], seen)
    findings = [one for one in said if isinstance(one, Finding)]
    left_out = {name: outcome.problem for name, outcome in outcomes.items() if outcome.problem}
    if not findings and not {EPOCH.name, VALUES.name} & seen.keys():
        left_out[NO_LOADER] = "none of its rows was made"
    return Diagnosis(findings, {one.name: one.text for one in said if isinstance(one, Measured)}, left_out)


def _work(check: Check, patient: Patient, seconds: float) -> Any:
    if check is not WORKERS:  # it takes some time
        name_rows(patient.dataset)
    _renew_pools(patient)
    return check.measure(patient, seconds)


def _renew_pools(patient: Patient) -> None:
    """Opens pools of threads, which a program that ends has closed; gives them threads if no worker forks."""
    vars(thread)["_shutdown"] = False
    for _, one, _ in walk(patient.dataset, with_globals=True):
        if isinstance(one, thread.ThreadPoolExecutor):
            vars(one)["_shutdown"] = False
            if not patient.num_workers:  # their threads are there as the loader makes rows
                thread.ThreadPoolExecutor.__init__(one, vars(one)["_max_workers"])


def _measured(work: Callable[[], object], limit: float, ends: float) -> Outcome:
    """The outcome of a trial. What waits idly is tried again, in a fresh process."""
    left = ends - time.monotonic()
    outcome = tried(work, min(limit, left))
    if outcome.hang is not None and left < limit:
        return Outcome(left="the time was over")
    if outcome.hang is not None and outcome.hang.is_idle and ends - time.monotonic() >= limit:
        outcome = tried(work, limit)
        if outcome.hang is not None:
            outcome = outcome._replace(hang=outcome.hang._replace(is_twice=True))
    return outcome


def _failed(patient: Patient, outcomes: Mapping[str, Outcome]) -> Iterator[Finding]:
    """Findings about checks that did not end, and about rows that cannot be made."""
    loader, epoch, values = patient.loader, outcomes[EPOCH.name], outcomes[VALUES.name]
    rows, size = values.value or {}, loader.batch_size or 1
    row = rows.get("each")
    for step, outcome in outcomes.items():
        hang = outcome.hang
        if hang is None:
            continue
        is_slow = row is not None and 4 * row * size >= hang.seconds  # a batch takes about as long
        # A batch that came, or a machine that was busy or stood still: the rows are not to blame.
        is_spared = row is not None and (epoch.value is not None or 4 * hang.ran < hang.seconds)
        if is_slow or not (hang.is_idle or is_spared):
            yield _slow(patient, step, hang, row)
        # Locks that other threads of this process hold are opened where the loader makes rows beside them.
        elif (
            hang.is_idle
            and hang.is_twice
            and (patient.num_workers or not (hang.is_locked and _has_threads()))
        ):
            yield _hang(patient, step, hang)
    # An error of this process says something of the rows of workers if other rows can be made here.
    is_alike = not patient.num_workers or not outcomes[IN_PLACE.name].error
    if epoch.error:
        yield _broken(patient, f"{EPOCH.name}: {epoch.error}", is_proved=not patient.is_alone)
        if patient.num_workers and not patient.is_ours and rows:
            yield from small_shared_memory(loader, rows["bytes"] * size)
    elif values.error and is_alike:
        is_proved = not patient.is_alone and loader.worker_init_fn is None
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
    """A line that shows an error of the rows, for anyone to run in a process of their own."""
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
    is_plain = patient.loader.worker_init_fn is None and patient.start_method == "fork"
    is_made_so = not patient.num_workers or step == EPOCH.name or is_plain
    beside = "This process has other threads: a child that is forked while one holds a lock waits forever."
    return Finding(
        "hang",
        f"{step}: it did not end in {hang.seconds:.0f} s, twice, and did nothing"
        + (" but wait for a lock" if hang.is_locked else "")
        + hang.at,
        "A worker that waits forever stops training without an error."
        + (f" {beside}" if hang.is_locked and _has_threads() else ""),
        "make locks, queues and pools on first use in each worker, or multiprocessing_context='forkserver'"
        if hang.is_locked and patient.num_workers
        else "timeout=60 makes the loader raise; py-spy dump --pid of a worker shows where it waits",
        "wrong" if hang.is_locked and is_made_so else "maybe",
    )


def _slow(patient: Patient, step: str, hang: Hang, row: float | None) -> Finding:
    wanted = most_workers(usable_cpus()) if hang.is_idle else usable_cpus()
    is_busy = hang.is_busy and not hang.is_idle  # rows that wait need no CPU
    more = wanted - patient.num_workers  # workers that compute take turns; what others take is not known
    has_all = more <= 0 if hang.is_idle else more == 0 or (more > 0 and is_busy)
    ways = [] if has_all else [f"num_workers={wanted}"]
    if not isinstance(patient.dataset, DataRef):
        ways.append(KEPT)
    elif has_all:
        ways.append("do less for each row")
    return Finding(
        "slow-rows",
        (f"a row takes {row:.2g} s; " if row is not None else "")
        + f"{step}: not within {hang.seconds:.0f} s, and no more was tried{hang.at}"
        + ("; other processes took much of the CPUs" if is_busy else ""),
        "A batch takes as long as all its rows, shared among the workers.",
        "; or ".join(ways) + "; doctor(loader, seconds=300) looks longer",
        "maybe" if is_busy else "slow",
    )
