"""`yoga.doctor`: a loader or a dataset -> a diagnosis."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType, FunctionType
from typing import Any

from .batch import EPOCH
from .contents import IN_PLACE, VALUES
from .diagnosis import NO_LOADER, Check, Diagnosis, Finding, Measured
from .epochs import ORDER, STALE_EPOCH
from .failures import failed
from .handles import HANDLES, OBJECTS
from .patient import Patient
from .random_numbers import RANDOM_NUMBERS
from .rows import name_rows
from .sharding import RANKS, STREAMS
from .trial import Outcome, tried
from .walk import names_in
from .workers import WORKERS

# The quick ones first; each has a process of its own, since a row that was made may start threads, or move a
# stream, before workers are forked.
CHECKS = (
    *(HANDLES, OBJECTS, VALUES, IN_PLACE, ORDER, RANKS),
    *(EPOCH, RANDOM_NUMBERS, STREAMS, STALE_EPOCH, WORKERS),
)
_START_SECONDS = 20.0  # for workers that import torch again
_FORK_SECONDS = 0.1  # for each worker, on a busy machine


def doctor(loader_or_dataset: object, *, seconds: float = 30.0) -> Diagnosis:
    """Finds what slows down or spoils training: in rows, in workers and over epochs.

    What is `wrong` was proved. See docs/measure.md.

    Rows are made in child processes, so the loader's position and all random numbers stay as they are, and a
    dataset that hangs is a finding. Nothing is deleted or changed.

    Args:
        loader_or_dataset: a loader of torch's or torchyoga's, as the training loop iterates it; or a dataset.
        seconds: that it may take; a few more to end what hangs. Less than 10 are too few to measure workers.

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
    for check in CHECKS:
        if not check.needs(patient):
            continue
        if time.monotonic() > ends:
            over = over or f"the {seconds:.0f} s were over"
        outcome = Outcome(left=over)
        if not outcome.left:
            share, limit = quick, quick + check.in_workers * starts
            if check is WORKERS:
                share, limit = (seconds / 4, limit + 2 * quick) if with_rates else (0.0, limit)
            outcome = _measured(partial(_work, check, patient, share), limit, ends)
        outcomes[check.name] = outcome
        if outcome.hang is not None:
            over = f"{check.name} did not end"
    seen = {name: outcome.value for name, outcome in outcomes.items() if not outcome.problem}
    said: list[Finding | Measured] = [*failed(patient, outcomes)]
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
    return check.measure(patient, seconds)


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
