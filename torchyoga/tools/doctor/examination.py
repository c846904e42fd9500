"""`yoga.doctor`: a loader or a dataset -> a diagnosis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from types import FrameType, FunctionType
from typing import Any

from ...loading.meter.pace import most_workers
from ...loading.meter.verdict import KEPT
from ...process.texts import bytes_text
from ...reading.dataref import DataRef
from .contents import content_findings, contents
from .culprit import row_said, rows_named
from .diagnosis import NO_LOADER, Diagnosis, Finding
from .handles import copied_memory, handle_findings, open_handles, python_objects
from .in_place import changed_in_place, in_place
from .patient import Patient
from .randomness import drawn, foreign_rows, may_draw, rows_twice, same_numbers
from .sharding import RunningJob, dealt, disagreeing, order, order_findings, rank_rows
from .shared_memory import first_batch, first_row, sent_batch, short_epochs, small_shared_memory
from .stale_epoch import stale_epoch, unreached
from .trial import ENDED, Hang, Step, Trial, tried
from .walk import names_in
from .workers import (
    Rate,
    counts,
    few_cpus,
    few_workers,
    measured_rate,
    more_counts,
    rates_text,
    recommended,
    usable_cpus,
)

__all__ = ["doctor", "examined"]

_SHM = "/dev/shm"
_RATE_SECONDS = 2.0
_LEAST_RATE_SECONDS = 0.2
_START_SECONDS = 20.0  # for workers that import torch again
_FORK_SECONDS = 0.1  # for each worker, on a busy machine
_EPOCH_SECONDS = 1.0  # of an epoch that is run
_HANDLES, _OBJECTS, _ORDER, _RANKS = "handles", "Python objects", "order", "ranks"
_ROW, _BATCH, _CONTENT, _SENT = "first row", "first batch", "rows", "a worker's batch"
_RANDOM, _IN_PLACE, _EPOCH = "random numbers", "rows made again", "set_epoch"
_MOST_TRIES = 3  # of a step that hangs, perhaps for a thread of this process


def doctor(
    loader_or_dataset: object, *, seconds: float = 30.0, receipts: Sequence[Mapping[str, object]] = ()
) -> Diagnosis:
    """Finds what slows down or spoils training: in rows, in workers and over epochs.

    What is `wrong` was proved. See docs/doctor.md.

    Rows are made in child processes, so the loader's position and all random numbers stay as they are, and a
    dataset that hangs is a finding. Nothing is deleted or changed.

    Args:
        loader_or_dataset: a loader of torch's or torchyoga's, as the training loop iterates it; or a dataset.
        seconds: that it may take; a few more to end what hangs. Less than 10 are too few to measure workers.
        receipts: what `receipt()` of the loader gave on each rank, to be compared.

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
    return examined(patient, seconds=seconds, receipts=receipts)


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


def examined(
    patient: Patient,
    *,
    seconds: float = 30.0,
    receipts: Sequence[Mapping[str, object]] = (),
    with_rates: bool = True,
) -> Diagnosis:
    """As `doctor`, of a patient; the rates of workers, which take half of the time, may be left out."""
    started = time.monotonic()
    job, trial = RunningJob.now(), Trial({}, {}, None, {})
    # Each group has a process of its own: a row that was made, such as one that starts threads on first use,
    # would be in the way of workers that are forked later.
    for steps in _groups(patient, float(seconds), with_rates, job):
        left = seconds - (time.monotonic() - started)
        if trial.hung is not None or left <= 0:
            why = f"the {seconds:.0f} s were over" if trial.hung is None else f"{trial.hung.step} did not end"
            trial = trial._replace(left=trial.left | {step.name: why for step in steps})
            continue
        part = _tried_again(steps, left, trial.found)
        trial = Trial(trial.found | part.found, trial.errors | part.errors, part.hung, trial.left | part.left)
    return _diagnosis(patient, trial, receipts, job)


def _tried_again(steps: Sequence[Step], seconds: float, seen: Mapping[str, Any]) -> Trial:
    """As `tried`. A step that waits idly is tried again where this process has other threads: one of them may
    have held a lock as the trial was forked, which the rows never would."""
    ends, is_beside = time.monotonic() + seconds, _has_threads()
    trial = tried(steps, seconds, seen)
    for _ in range(_MOST_TRIES - 1):
        hang, left = trial.hung, ends - time.monotonic()
        if hang is None or not hang.is_idle or not is_beside or left < hang.seconds:
            break
        names = [step.name for step in steps]
        again = tried(steps[names.index(hang.step) :], left, {**seen, **trial.found})
        trial = Trial(trial.found | again.found, trial.errors | again.errors, again.hung, again.left)
    return trial


def _groups(patient: Patient, seconds: float, with_rates: bool, job: RunningJob) -> list[list[Step]]:
    """The steps of an examination, the quick ones first, by the process that they share."""
    quick = max(1.0, seconds / 4)

    def named(work: Callable[..., Any], *arguments: Any) -> Any:
        with rows_named(patient.dataset):
            return work(patient, *arguments)

    groups = [
        [
            Step(_HANDLES, lambda found: open_handles(patient.dataset), quick),
            Step(_OBJECTS, lambda found: python_objects(patient.dataset), quick),
        ],
        # A stream may go on where it was left.
        [Step(_ROW, lambda found: named(first_row), quick)],
        [Step(_BATCH, lambda found: named(first_batch), quick)],
        [Step(_IN_PLACE, lambda found: changed_in_place(patient), quick)],
        [
            Step(_CONTENT, lambda found: contents(patient, quick / 4), quick),
            Step(_ORDER, lambda found: order(patient), quick),
        ],
    ]
    if job.world > 1 and patient.is_iterable:
        groups[-1].append(Step(_RANKS, lambda found: rank_rows(patient), quick))
    workers, spawned = patient.num_workers, patient.start_method != "fork"
    patience = quick + (_START_SECONDS if spawned else _FORK_SECONDS * (workers or 0))

    def size(seen: dict[str, Any]) -> int | None:
        rows: int | None = seen[_BATCH]["rows"] if _BATCH in seen else patient.batch_size()
        return rows

    in_workers = []
    if workers:
        limit = min(_EPOCH_SECONDS, quick / 2)
        in_workers.append(Step(_SENT, lambda found: named(sent_batch, size(found), limit), patience))
    if may_draw(patient) is None or (workers and patient.is_iterable):
        in_workers.append(Step(_RANDOM, lambda found: drawn(patient), patience))
    if workers:
        in_workers.append(Step(_EPOCH, lambda found: unreached(patient), patience))
    usable = usable_cpus()
    wanted, more = counts(usable, workers), more_counts(usable, workers)
    # Half of the time is for the rates; starting workers takes some of it.
    each = min(_RATE_SECONDS, seconds / 2 / (len(wanted) + len(more)))

    def rate(found: dict[str, Any], count: int) -> Rate | None:
        is_tried = count in wanted or _rows_wait(found)
        return measured_rate(patient, count, size(found), each) if is_tried else None

    if with_rates and each >= _LEAST_RATE_SECONDS:
        in_workers += [
            Step(
                _rate_name(count),
                lambda found, count=count: rate(found, count),  # type: ignore[misc]
                each + patience + _FORK_SECONDS * count,
            )
            for count in [*sorted(wanted, key=lambda count: (count == 0, count)), *more]
        ]
    return [*groups, in_workers] if in_workers else groups


def _rows_wait(seen: Mapping[str, Any]) -> bool:
    """True if rows were measured to wait more than they compute."""
    return _rate_name(1) in seen and Rate(*seen[_rate_name(1)]).waits


def _rate_name(count: int) -> str:
    return f"rows/s with {count} workers"


def _diagnosis(
    patient: Patient, trial: Trial, receipts: Sequence[Mapping[str, object]], job: RunningJob
) -> Diagnosis:
    found, left_out, usable = trial.found, dict(trial.left), usable_cpus()
    measured: dict[str, str] = {}
    workers = patient.num_workers
    findings = [*disagreeing(receipts), *dealt(patient, job, found.get(_RANKS, ()))]
    if not (workers and _rows_wait(found)):  # workers that wait do not take turns
        findings += few_cpus(usable, workers)
    findings += _of_rows(patient, trial, measured, left_out, usable)
    tried_counts = [*counts(usable, workers), *more_counts(usable, workers)]
    rates = {n: Rate(*one) for n in tried_counts if (one := found.get(_rate_name(n)))}
    if rates:
        rows = {count: one.rows for count, one in rates.items()}
        others = max(one.others for one in rates.values())
        enough = f"{recommended(rows)} are enough for within 5 % of the best of these"
        measured["workers"] = f"rows/s: {rates_text(rows, others)}; {enough}"
        findings += few_workers(rows, workers, patient, others, usable)
    for name, error in trial.errors.items():
        left_out.setdefault(name, error)
    if trial.hung is not None:
        left_out.pop(trial.hung.step, None)
    if not findings and not {_ROW, _BATCH, _CONTENT} & found.keys():
        left_out[NO_LOADER] = "none of its rows was made"
    return Diagnosis(findings, measured, left_out)


def _of_rows(
    patient: Patient, trial: Trial, measured: dict[str, str], left_out: dict[str, str], usable: int
) -> list[Finding]:
    """Findings of the steps that make rows."""
    found, findings = trial.found, list[Finding]()
    workers, sent = patient.num_workers, trial.found.get(_SENT)
    if _HANDLES in found and workers != 0 and patient.start_method == "fork":
        alone = found.get(_CONTENT, {}).get("alone", [])
        wrong = foreign_rows(found[_RANDOM], alone) if _RANDOM in found else 0
        findings += handle_findings(found[_HANDLES], wrong)
    if _CONTENT in found:
        findings += content_findings(found[_CONTENT], patient)
    findings += in_place(found.get(_IN_PLACE), patient)
    findings += stale_epoch(found.get(_EPOCH))
    if _ORDER in found:
        came = found[_BATCH]["came"] if not sent and _BATCH in found else sent is None or sent["came"]
        rows = found.get(_CONTENT, {}).get("rows", 0)
        if isinstance(patient.dataset, Sized) and not patient.is_iterable:
            rows = len(patient.dataset)
        findings += order_findings(found[_ORDER] | ({} if came else {"batches": 0}), patient, rows)
    if workers:
        findings += copied_memory(found.get(_OBJECTS, []), patient.start_method, workers)
    if _BATCH in found:
        batch = found[_BATCH]
        measured["batch"] = f"{batch['rows'] or 1} rows, " + (
            bytes_text(batch["bytes"], 0) if batch["bytes"] else "no tensors"
        )
        if workers:
            # Batches that torchyoga's workers send in slots of their own take no room there.
            is_sent_so = sent is None or sent["bytes"] > 0
            nbytes = max(batch["bytes"], (sent or {}).get("bytes", 0)) if is_sent_so else 0
            if nbytes:
                small, measured["shared memory"] = small_shared_memory(
                    workers, patient.prefetch, nbytes, _SHM
                )
                findings += small
            else:
                measured["shared memory"] = f"workers send batches in memory of their own, not in {_SHM}"
    if sent and patient.loader is not None and not patient.loader.persistent_workers:
        findings += short_epochs(sent, found.get(_ROW, 0.0) * (patient.loader.batch_size or 1))
    if _RANDOM in found:
        findings += same_numbers(found[_RANDOM], patient.is_evaluation)
        findings += rows_twice(found[_RANDOM])
    why = may_draw(patient)
    if why is not None:
        left_out[_RANDOM] = why
    if trial.hung is not None:
        if trial.hung.is_locked and not workers and _has_threads():
            left_out["rows"] = (
                f"{trial.hung.step}: it waits for a lock in the doctor's forked process, which has no other "
                "threads of this one"
            )
        else:
            findings.append(_of_hang(patient, found, trial.hung, usable))
    return [*findings, *_broken(patient, trial)]


def _broken(patient: Patient, trial: Trial) -> Iterator[Finding]:
    """A finding if rows raise where the loader makes them; what only the doctor has tried proves nothing."""
    own, here = ((_SENT,) if patient.num_workers else ()), (_ROW, _BATCH, _CONTENT)
    if patient.num_workers and _ROW not in trial.errors and _BATCH not in trial.errors:
        own = (*own, _CONTENT)  # rows that come in this process, too, except for this one
    elif not patient.num_workers or _SENT not in trial.found:
        own = (*own, *here)
    for name in own:
        has_ended = trial.left.get(name) == ENDED
        if name in trial.errors or has_ended:
            is_proved = patient.loader is not None and (name == _SENT or not patient.num_workers)
            yield Finding(
                "broken-rows",
                f"{name}: {trial.errors.get(name, ENDED)}",
                "Rows cannot be made so: training ends with this error.",
                "python -X faulthandler names the line at which a process ends by a signal"
                if has_ended
                else f"{_raising(patient, trial.errors[name])} raises it here",
                "wrong" if is_proved else "maybe",
            )
            return


def _raising(patient: Patient, error: str) -> str:
    """What anyone may run to see an error of the rows in a process of their own."""
    dataset, row = "dataset" if patient.loader is None else "loader.dataset", row_said(error)
    if row is not None:
        return f"{dataset}[{row}]"
    if patient.loader is None:
        return f"next(iter({dataset}))" if patient.is_iterable else f"default_collate([{dataset}[0]] * 2)"
    return "loader.peek()" if patient.is_ours else "next(iter(loader))"


def _has_threads() -> bool:
    """True if this process has more threads than the one that forks."""
    return os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) > 1


def _of_hang(patient: Patient, seen: Mapping[str, Any], hang: Hang, usable: int) -> Finding:
    """A deadlock, if all waits where rows came before; slow rows, if they work or the batch is long."""
    where = f"; it was at {hang.where}" if hang.where else ""
    if _is_slow(patient, seen, hang.seconds) or not hang.is_idle:
        row = f"a row takes {seen[_ROW]:.2g} s; " if _ROW in seen else ""
        return Finding(
            "slow-rows",
            f"{row}{hang.step}: not within {hang.seconds:.0f} s, and no more was tried{where}",
            "A batch takes as long as all its rows, shared among the workers.",
            "; or ".join(_faster(patient, hang, usable)) + "; doctor(loader, seconds=300) looks longer",
            "slow",
        )
    return Finding(
        "hang",
        f"{hang.step}: it did not end in {hang.seconds:.0f} s, and did nothing"
        + (" but wait for a lock" if hang.is_locked else "")
        + where,
        "A worker that waits forever stops training without an error."
        + (
            " This process has other threads, too: a child that is forked while one of them holds a lock "
            "waits for it forever."
            if hang.is_locked and _has_threads()
            else ""
        ),
        "timeout=60 makes the loader raise; py-spy dump --pid of a worker shows where it waits",
        # It may wait for a disk, a server or another process, or for what only a worker has.
        "wrong" if hang.is_locked and _is_made_so(patient, hang.step) else "maybe",
    )


def _faster(patient: Patient, hang: Hang, usable: int) -> Iterator[str]:
    """What makes rows come faster that the loader does not do yet."""
    wanted = most_workers(usable) if hang.is_idle else usable
    if (patient.num_workers or 0) < wanted:
        yield f"num_workers={wanted}"
    if not isinstance(patient.dataset, DataRef):
        yield KEPT
    elif (patient.num_workers or 0) >= wanted:
        yield "do less for each row"


def _is_made_so(patient: Patient, step: str) -> bool:
    """True if what a step made, the loader makes in such a process, too."""
    has_own = patient.loader is not None and patient.loader.worker_init_fn is not None
    return not patient.num_workers or step == _SENT or not (has_own or patient.start_method != "fork")


def _is_slow(patient: Patient, seen: Mapping[str, Any], given: float) -> bool:
    """True if the rows of a batch would take about as long as was given, one after the other."""
    size = seen.get(_BATCH, {}).get("rows") or getattr(patient.loader, "batch_size", None) or 1
    return _ROW in seen and 4 * seen[_ROW] * size >= given
