"""`yoga.doctor`: a loader, a dataset, a storage or only the machine -> a diagnosis."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...process.texts import bytes_text
from ...storage import Storage, store_of
from ...stores.contract import Versions
from ...stores.opened import opened
from .cpus import Cpus, few_cpus, throttled
from .diagnosis import Diagnosis, Finding
from .disk import Disk, describe, disk_findings, files_in, newest_files, read
from .handles import handle_findings, handles
from .leftovers import leftover_findings, leftovers
from .patient import Patient
from .randomness import drawn, may_draw, same_numbers
from .sharding import RunningJob, dealt, disagreeing
from .shared_memory import first_batch, first_row, orphaned, orphans, sent_batch, small_shared_memory
from .threads import oversubscribed, used_threads
from .trial import Step, Trial, tried
from .workers import counts, few_workers, measured_rate, rates_text, recommended

__all__ = ["doctor"]

_SHM = "/dev/shm"
_RATE_SECONDS, _READ_SECONDS = 2.0, 3.0
_LEAST_RATE_SECONDS = 0.2
_MOST_WORKERS = 4096
_START_SECONDS = 20.0  # for workers that import torch anew
_HANDLES, _DISK, _LEFT, _SEGMENTS = "handles", "disk", "leftovers", "shared memory left"
_ROW, _BATCH, _SENT = "first row", "first batch", "a worker's batch"
_RANDOM, _THREADS = "random numbers", "threads"
_OF_ROWS = (_ROW, _BATCH, _SENT, _RANDOM, _THREADS)  # and the rates


def doctor(
    loader_or_dataset: object = None,
    *,
    storage: Storage | str | os.PathLike[str] | None = None,
    seconds: float = 30.0,
    receipts: Sequence[Mapping[str, object]] = (),
) -> Diagnosis:
    """Finds what slows down or spoils training: CPUs, shared memory, random numbers, open handles, sharding,
    the disk, the number of workers, threads, and what killed processes have left. See docs/doctor.md.

    Rows are made in child processes, so the loader's position and all random numbers stay as they are, and a
    dataset that hangs is a finding. Nothing is deleted or changed.

    Args:
        loader_or_dataset: a loader of torch's or torchyoga's, as the training loop iterates it; or a dataset;
            None for the machine alone.
        storage: a `Storage`, its directory or URL, to be looked through for what killed builders have left.
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
    patient = None if loader_or_dataset is None else Patient.of(loader_or_dataset)
    store = _store_of(storage)
    before, started = Cpus.now(), time.monotonic()
    steps = _steps(patient, store, before, float(seconds))
    trial = tried(steps, float(seconds))
    # What no row is made for is looked at even if making rows hangs.
    others = [step for step in steps if step.name in trial.left and step.name in (_DISK, _LEFT, _SEGMENTS)]
    left = seconds - (time.monotonic() - started)
    if others and trial.hung is not None and left > 1:
        second = tried(others, left)
        kept = {name: why for name, why in trial.left.items() if name not in second.found}
        trial = trial._replace(
            found=trial.found | second.found, errors=trial.errors | second.errors, left=kept
        )
    return _diagnosis(patient, store, before, trial, receipts)


def _store_of(storage: Storage | str | os.PathLike[str] | None) -> Versions | None:
    if storage is None or isinstance(storage, (str, os.PathLike)):
        return None if storage is None else opened(storage)
    return store_of(storage)


def _steps(patient: Patient | None, store: Versions | None, cpus: Cpus, seconds: float) -> list[Step]:
    """The steps of an examination, the quick ones first."""
    quick = max(1.0, seconds / 4)
    steps = [Step(_SEGMENTS, lambda found: orphans(_SHM), quick)]
    if store is not None:
        steps.append(Step(_LEFT, lambda found: leftovers(store), quick))
    paths = partial(_paths, patient, store)
    if patient is None:
        if store is not None:
            steps.append(Step(_DISK, lambda found: _disk(paths(), seconds), quick + _READ_SECONDS))
        return steps
    steps += [
        Step(_HANDLES, lambda found: handles(patient.dataset), quick),
        Step(_DISK, lambda found: _disk(paths(), seconds), quick + _READ_SECONDS),
        Step(_ROW, lambda found: first_row(patient), quick),
        Step(_BATCH, lambda found: first_batch(patient), quick),
    ]
    workers, spawned = patient.num_workers, patient.start_method != "fork"
    patience = quick + (_START_SECONDS if spawned else 0.0)

    def size(found: dict[str, Any]) -> int | None:
        rows: int | None = found[_BATCH]["rows"]
        return rows

    if workers:
        steps.append(Step(_SENT, lambda found: sent_batch(patient, size(found)), patience))
    if may_draw(patient) is None:
        steps.append(Step(_RANDOM, lambda found: drawn(patient), patience))
    if workers != 0:
        steps.append(Step(_THREADS, lambda found: used_threads(patient), patience))
    wanted = counts(cpus.usable, workers)
    # Half of the time is for the rates; starting workers takes some of it.
    each = min(_RATE_SECONDS, seconds / 2 / len(wanted))
    if each >= _LEAST_RATE_SECONDS:
        steps += [
            Step(
                _rate_name(count),
                lambda found, count=count: measured_rate(patient, count, size(found), each),  # type: ignore[misc]
                each + patience,
            )
            for count in wanted
        ]
    return steps


def _rate_name(count: int) -> str:
    return f"rows/s with {count} workers"


def _paths(patient: Patient | None, store: Versions | None) -> list[str]:
    if patient is not None:
        return files_in(patient.dataset)
    return [] if store is None else newest_files(store)


def _disk(paths: list[str], seconds: float) -> dict[str, Any] | None:
    return {"where": paths[0], "disk": read(paths, min(_READ_SECONDS, seconds / 5))} if paths else None


def _diagnosis(
    patient: Patient | None,
    store: Versions | None,
    before: Cpus,
    trial: Trial,
    receipts: Sequence[Mapping[str, object]],
) -> Diagnosis:
    now, found, left_out = Cpus.now(), trial.found, dict(trial.left)
    findings: list[Finding] = []
    measured = {"cpus": f"{now.usable} of {now.machine} may be used"}
    workers = None if patient is None else patient.num_workers
    findings += few_cpus(now, workers)
    findings += throttled(before if patient is not None else None, now)
    findings += orphaned(found.get(_SEGMENTS, []), _SHM)
    if store is not None and _LEFT in found:
        findings += leftover_findings(found[_LEFT], store.name)
    findings += disagreeing(receipts)
    rates = {n: found[name] for n in range(_MOST_WORKERS) if (name := _rate_name(n)) in found}
    if patient is not None:
        findings += dealt(patient, RunningJob.now())
        findings += _of_rows(patient, trial, measured, left_out, now)
        if rates:
            measured["workers"] = (
                f"rows/s: {rates_text(rates)}; {recommended(rates)} are enough for within 5 % of the best"
            )
            findings += few_workers(rates, workers, patient)
    _of_disk(found, findings, measured, left_out, None if patient is None else _wanted(patient, rates))
    for name, error in trial.errors.items():
        left_out.setdefault(name, error)
    if trial.hung is not None:
        left_out.pop(trial.hung[0], None)
    return Diagnosis(findings, measured, left_out)


def _of_rows(
    patient: Patient, trial: Trial, measured: dict[str, str], left_out: dict[str, str], cpus: Cpus
) -> list[Finding]:
    """Findings of the steps that make rows."""
    found, findings = trial.found, []
    workers = patient.num_workers
    if _HANDLES in found and workers != 0:
        findings += handle_findings(found[_HANDLES], patient.start_method, workers)
    if _BATCH in found:
        batch = found[_BATCH]
        measured["batch"] = f"{batch['rows'] or 1} rows, {bytes_text(batch['bytes'], 0)}"
        if workers:
            # Batches that torchyoga's workers send in slots of their own take no room there.
            is_sent_so = _SENT not in found or found[_SENT]["bytes"] > 0
            nbytes = max(batch["bytes"], found.get(_SENT, {}).get("bytes", 0)) if is_sent_so else 0
            if nbytes:
                small, measured["shared memory"] = small_shared_memory(
                    workers, patient.prefetch, nbytes, _SHM
                )
                findings += small
            else:
                measured["shared memory"] = f"workers send batches in memory of their own, not in {_SHM}"
    why = may_draw(patient)
    if why is not None:
        left_out[_RANDOM] = why
    elif _RANDOM in found:
        findings += same_numbers(found[_RANDOM])
    if _THREADS in found and workers:
        findings += oversubscribed(found[_THREADS], workers, cpus.usable)
    names = (*_OF_ROWS, *(_rate_name(count) for count in range(_MOST_WORKERS)))
    if trial.hung is not None and trial.hung[0] in names and _is_slow(patient, found, trial.hung[1]):
        name, given = trial.hung
        findings.append(
            Finding(
                "slow-rows",
                f"a row takes {found[_ROW]:.2g} s; {name}: not within {given:.0f} s, and no more was tried",
                "A batch takes as long as all its rows, shared among the workers.",
                f"num_workers={cpus.usable}, or storage.cacheable; doctor(loader, seconds=300) looks longer",
                "slow",
            )
        )
    elif trial.hung is not None and (trial.hung[0] == _HANDLES or trial.hung[0] in names):
        findings.append(
            Finding(
                "hang",
                f"{trial.hung[0]}: it did not end in {trial.hung[1]:.0f} s, and was killed",
                "A worker that waits for ever stops training without an error.",
                "timeout=60 makes the loader raise; py-spy dump --pid of a worker shows where it waits",
                "wrong",
            )
        )
    broken = [(name, error) for name, error in trial.errors.items() if name in names]
    if broken:
        name, error = broken[0]
        findings.append(
            Finding(
                "broken-rows",
                f"{name}: {error}",
                "Rows cannot be made so: training ends with this error.",
                "loader.peek() or dataset[0] raises it here",
                "wrong",
            )
        )
    return findings


def _is_slow(patient: Patient, found: Mapping[str, Any], given: float) -> bool:
    """True if the rows of a batch would take about as long as was given, one after the other."""
    size = found.get(_BATCH, {}).get("rows") or getattr(patient.loader, "batch_size", None) or 1
    return _ROW in found and 4 * found[_ROW] * size >= given


def _wanted(patient: Patient, rates: Mapping[int, float]) -> float | None:
    """Bytes a second that the loader would read from its files."""
    row_bytes = getattr(patient.dataset, "row_bytes", None)
    return float(row_bytes * max(rates.values())) if isinstance(row_bytes, int) and rates else None


def _of_disk(
    found: Mapping[str, Any],
    findings: list[Finding],
    measured: dict[str, str],
    left_out: dict[str, str],
    wanted: float | None,
) -> None:
    if found.get(_DISK) is None:
        left_out.setdefault(_DISK, "no files of a version of torchyoga's on this machine")
        return
    disk = Disk(**found[_DISK]["disk"])
    measured[_DISK] = describe(disk)
    findings += disk_findings(disk, found[_DISK]["where"], wanted)
