"""The first row and batches: their seconds, and their bytes against the shared memory they are sent in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...process.messages import bytes_text
from .diagnosis import Check, Finding, Measured, Seen
from .patient import Patient
from .rows import is_dense, rows_of
from .trial import BUSY, Others

_SHM = "/dev/shm"
_MOST_DEPTH = 8
_HELD, _PREFETCH = 1, 2  # batches that the training loop has, besides those that each worker makes ahead
_EPOCH_SECONDS, _LEAST_START = 1.0, 0.2  # of an epoch that is run; of a start that matters
_WASTE, _MUCH = 4, 2**20  # times the bytes of a batch, and bytes, that its memory may have


def _first_row(patient: Patient, seconds: float) -> float:
    """Seconds that a row takes, made by this process."""
    began = time.perf_counter()
    next(iter(rows_of(patient, 1)), None)
    return time.perf_counter() - began


def _first_batch(patient: Patient, seconds: float) -> dict[str, Any]:
    """A batch made without workers: its rows, the bytes of its tensors, and whether one came."""
    size = patient.batch_size()
    if patient.is_ours:
        batch = next(iter(patient.like(0, size)), None)
    else:
        batch = next(iter(patient.again(in_workers=False)), None)
    came = batch is not None and not (
        patient.is_ours and not patient.is_iterable and not len(patient.again())
    )
    return {"size": size, "bytes": _sizes(batch)[0], "came": came, "rows": 1 if came else _count(patient)}


def _count(patient: Patient) -> int:
    """Rows of the dataset; of a stream, 1 if there is one."""
    return sum(1 for _ in rows_of(patient, 1)) if patient.is_iterable else len(patient.dataset)


def _sent_batch(patient: Patient, seconds: float) -> dict[str, Any]:
    """An epoch of the loader with its workers, of which no more is run than a second.

    Returns:
        "bytes" of a batch that came through shared memory, of which "used" are its own; the seconds until it
        was there ("first"), and those of the epoch ("whole"; None if it did not end, or
        other processes took much of the CPUs).
    """
    if patient.is_ours:
        batch = next(iter(patient.like(1, patient.batch_size())), None)
        return {"bytes": _sizes(batch, True)[1], "used": 0, "came": True, "first": 0.0, "whole": None}
    others, once = Others(os.getsid(0)), _epoch(patient, seconds)
    if once["whole"] is None or once["first"] < _LEAST_START:
        return once
    again = _epoch(patient, seconds)
    if again["whole"] is None or others.share >= BUSY:  # other work makes all of it longer
        return once | {"whole": None, "busy": True}
    rest = min(one["whole"] - one["first"] for one in (once, again))
    first = min(once["first"], again["first"])
    return once | {"first": first, "whole": first + rest}


def _epoch(patient: Patient, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    batches = iter(patient.again())
    batch = next(batches, None)
    first = time.perf_counter() - began
    (used, nbytes), ended = _sizes(batch, shared=True), batch is None
    came = {"came": not ended, "rows": _count(patient) if ended else 1}
    del batch
    while not ended and time.perf_counter() - began < max(min(_EPOCH_SECONDS, seconds / 2), 2 * first):
        ended = next(batches, None) is None
    whole = time.perf_counter() - began if ended else None
    return {"bytes": nbytes, "used": used, **came, "first": first, "whole": whole}


def _sizes(batch: object, shared: bool = False) -> tuple[int, int]:
    """Bytes of the tensors in a batch, or of those in shared memory; and of the memory that they lie in."""
    found, memory = 0, dict[int, int]()
    waiting = [(batch, 0)]
    while waiting:
        value, depth = waiting.pop()
        parts: list[object] = []
        if is_dense(value):
            storage = value.untyped_storage()
            if storage.is_shared() or not shared:
                found += value.nbytes
                memory[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            parts = [*value.values()]
        elif isinstance(value, (list, tuple, set)):
            parts = [*value]
        elif hasattr(value, "__dict__"):
            parts = [*vars(value).values()]
        waiting += [(part, depth + 1) for part in parts if depth < _MOST_DEPTH]
    return found, sum(memory.values())


def _judged_batch(patient: Patient, batch: dict[str, Any], seen: Seen) -> Iterator[Finding | Measured]:
    sent, workers, loader = seen.get(SENT.name), patient.num_workers, patient.loader
    size = bytes_text(batch["bytes"], 0) if batch["bytes"] else "no tensors"
    yield Measured("batch", f"{batch['size'] or 1} rows, {size}")
    without = batch if sent is None or patient.is_ours else sent
    if not without["came"] and without["rows"]:
        given = f"; batch_size is {loader.batch_size} and drop_last is {loader.drop_last}"
        yield Finding(
            "no-batches",
            f"an epoch gives no batch, of {without['rows']:,} rows or more in the dataset"
            + (given if loader.batch_size else ""),
            "The training loop runs through its epochs without one step.",
            "drop_last=False, or a batch_size no larger than the rows of a rank (a stream: of a worker)",
            "wrong",
        )
    # Batches that torchyoga's workers send in slots of their own take no room there.
    nbytes = batch["bytes"] if sent is None else sent["bytes"] and max(batch["bytes"], sent["bytes"])
    if workers:
        yield from small_shared_memory(workers, loader.prefetch_factor or _PREFETCH, nbytes)


def small_shared_memory(
    num_workers: int, prefetch: int, batch_bytes: int, folder: str = _SHM
) -> Iterator[Finding]:
    """A finding if the batches under way do not fit.

    Args:
        num_workers: of the loader.
        prefetch: batches that each worker makes ahead.
        batch_bytes: of a batch.
        folder: where the system keeps shared memory.
    """
    try:
        room = os.statvfs(folder)
    except (OSError, AttributeError):  # this system does not say
        return
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    under_way = num_workers * prefetch + _HELD
    needed = under_way * batch_bytes
    if needed <= free:
        return
    fits = max(0, (free // batch_bytes - _HELD) // num_workers)
    change = f"prefetch_factor={fits}" if fits else "num_workers=0"
    yield Finding(
        "small-shm",
        f"{folder} has {bytes_text(free, 0)} free of {bytes_text(whole, 0)}; {num_workers} workers x "
        f"{prefetch} batches ahead + {_HELD} are {under_way} batches of {bytes_text(batch_bytes, 0)}: "
        f"{bytes_text(needed, 0)}",
        "Workers send batches through it; where it is full, a worker dies with a bus error.",
        f"{change}, or docker run --shm-size={max(1, -(-2 * needed // 2**30))}g",
        "maybe",
    )


def _judged_sent(patient: Patient, sent: dict[str, Any], seen: Seen) -> Iterator[Finding | Measured]:
    nbytes, used, whole = sent["bytes"], sent["used"], sent["whole"]
    if used and nbytes > max(_WASTE * used, _MUCH):
        yield Finding(
            "wasted-shm",
            f"a batch of {bytes_text(used)} takes {bytes_text(nbytes)} of shared memory",
            "Its tensors are views of larger ones, and workers send the whole memory that they lie in.",
            "in collate_fn, x.clone() of what is returned",
            "maybe",
        )
    if sent.get("busy"):
        yield Measured(
            "workers' start", "other processes took much of the CPUs: too much to tell how long it is"
        )
    start = sent["first"] - seen.get(ROW.name, 0.0) * (patient.loader.batch_size or 1)
    is_once = patient.is_alone or patient.loader.persistent_workers
    if is_once or whole is None or start < _LEAST_START or start <= whole - start:
        return
    yield Finding(
        "short-epochs",
        f"workers take {start:.2g} s to start, and an epoch {whole:.2g} s in all",
        "They start again for each epoch, which waits for them.",
        "persistent_workers=True",
        "slow",
    )


ROW = Check("first row", lambda patient: True, _first_row, lambda patient, value, seen: ())
BATCH = Check("first batch", lambda patient: True, _first_batch, _judged_batch)
SENT = Check("a worker's batch", lambda patient: patient.num_workers > 0, _sent_batch, _judged_sent, True)
