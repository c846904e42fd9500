"""An epoch of the loader: its batches, how long its workers start, and the shared memory that they take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...process.messages import bytes_text, count_of
from .contents import VALUES, is_finite, not_finite
from .diagnosis import Check, Finding, Measured, Seen
from .epochs import sampler_of
from .patient import Patient, is_dense, leaves, rows_of
from .trial import BUSY, Others

_SHM = "/dev/shm"
_HELD, _PREFETCH = 1, 2  # batches that the training loop has, besides those that each worker makes ahead
_EPOCH_SECONDS, _LEAST_START = 1.0, 0.2  # of an epoch that is run; of a start that matters
_WASTE, _MUCH = 4, 2**20  # times the bytes of a batch, and bytes, that its memory may have


def _run(patient: Patient, seconds: float) -> dict[str, Any]:
    """An epoch of the loader with its workers, of which no more is run than a second.

    Returns:
        "size", rows of a batch; "bytes" of the first one, and what is "not finite" in it; its tensors in
        shared memory have "used", and lie in memory of "shared"; "threads" if these made it, not processes;
        "came" if there was one; "rows" of the dataset, or 1 for any; "spent" if it gives nothing when it is
        iterated again; seconds until the batch was there ("first"), and of the epoch ("whole"; None if it
        did not end, or others were "busy").
    """
    size, others = patient.batch_size(), Others(os.getsid(0))
    once = {"size": size, "busy": False, **_epoch(patient, seconds)}
    if once["whole"] is None or once["first"] < _LEAST_START:
        return once
    again = _epoch(patient, seconds)
    if again["whole"] is None or others.share >= BUSY:  # other work makes all of it longer
        return {**once, "whole": None, "busy": True}
    quicker = min(once, again, key=lambda one: one["whole"])
    return {**once, "first": quicker["first"], "whole": quicker["whole"]}


def _epoch(patient: Patient, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    loader: Any = patient.again()
    batches = iter(loader)
    batch = next(batches, None)
    first = time.perf_counter() - began
    nbytes, used, shared = _sizes(batch)
    broken = [path for path, leaf in leaves(batch) if not is_finite(path, leaf)]
    ended = batch is None
    del batch
    came = not ended and (not patient.is_ours or patient.is_iterable or len(patient.loader) > 0)
    while not ended and time.perf_counter() - began < max(min(_EPOCH_SECONDS, seconds / 2), 2 * first):
        ended = next(batches, None) is None
    whole = time.perf_counter() - began if ended else None
    rows = 1 if came else sum(1 for _ in rows_of(patient, 1)) if patient.is_iterable else len(patient.dataset)
    source: Any = patient.dataset if patient.is_iterable else sampler_of(patient.loader)
    is_here = not patient.num_workers if patient.is_iterable else rows > 0 and not patient.is_ours
    spent = ended and is_here and not [*islice(source, 1)]  # a stream of workers may need them
    threads = patient.is_ours and "thread" in loader.meter.workers
    sizes = {"not finite": broken, "bytes": nbytes, "used": used, "shared": shared, "threads": threads}
    return {**sizes, "came": came, "rows": rows, "spent": spent, "first": first, "whole": whole}


def _sizes(batch: object) -> tuple[int, int, int]:
    """Bytes of the tensors in a batch, of those in shared memory, and of all the memory that those lie in."""
    tensors = [leaf for _, leaf in leaves(batch) if is_dense(leaf)]
    sent = [one for one in tensors if one.untyped_storage().is_shared()]
    memory = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in sent}
    return sum(one.nbytes for one in tensors), sum(one.nbytes for one in sent), sum(memory.values())


def small_shared_memory(loader: Any, batch_bytes: int, folder: str = _SHM) -> Iterator[Finding]:
    """A finding if the batches under way do not fit into shared memory.

    Args:
        loader: it has workers.
        batch_bytes: of a batch.
        folder: where the system keeps shared memory.
    """
    num_workers, ahead = loader.num_workers, loader.prefetch_factor or _PREFETCH
    try:
        room = os.statvfs(folder)
    except (OSError, AttributeError):  # this system does not say
        return
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    under_way = num_workers * ahead + _HELD
    needed = under_way * batch_bytes
    if needed <= free:
        return
    fits = max(0, (free // batch_bytes - _HELD) // num_workers)
    change = f"prefetch_factor={fits}" if fits else "num_workers=0"
    yield Finding(
        "small-shm",
        f"{folder} has {bytes_text(free, 0)} free of {bytes_text(whole, 0)}; "
        f"{count_of(num_workers, 'worker')} x {ahead} batches ahead + {_HELD} are {under_way} batches of "
        f"{bytes_text(batch_bytes, 0)}: {bytes_text(needed, 0)}",
        "Workers send batches through it; where it is full, a worker dies with a bus error.",
        f"{change}, or docker run --shm-size={max(1, -(-2 * needed // 2**30))}g",
        "maybe",
    )


def _judged(patient: Patient, epoch: dict[str, Any], seen: Seen) -> Iterator[Finding | Measured]:
    loader, used, shared = patient.loader, epoch["used"], epoch["shared"]
    size = bytes_text(epoch["bytes"], 0) if epoch["bytes"] else "no tensors"
    yield Measured("batch", f"{count_of(epoch['size'] or 1, 'row')}, {size}")
    if epoch["spent"] or (not epoch["came"] and epoch["rows"]):
        given = f"; batch_size is {loader.batch_size} and drop_last is {loader.drop_last}"
        where = "stream" if patient.is_iterable else "sampler"
        yield Finding(
            "no-batches",
            f"the {where} was iterated to its end, and gives nothing when it is iterated again"
            if epoch["spent"]
            else f"an epoch gives no batch, of {epoch['rows']:,} rows or more in the dataset"
            + (given if loader.batch_size else ""),
            "The training loop runs through its epochs without one step.",
            f"let the {where}'s __iter__ begin again: make files, generators and iterators there"
            if epoch["spent"]
            else "drop_last=False, or a batch_size no larger than the rows of a rank (a stream: of a worker)",
            "maybe" if epoch["spent"] else "wrong",
        )
    if not seen.get(VALUES.name, {"not finite": True})["not finite"]:
        where = "the first batch, of rows that have none"
        yield from not_finite(epoch["not finite"], where, "look at what collate_fn divides by")
    if patient.num_workers:
        yield from small_shared_memory(loader, shared)
    if used and shared > max(_WASTE * used, _MUCH):
        yield Finding(
            "wasted-shm",
            f"a batch of {bytes_text(used)} takes {bytes_text(shared)} of shared memory",
            "Its tensors are views of larger ones, and workers send the whole memory that they lie in.",
            "in collate_fn, x.clone() of what is returned",
            "maybe",
        )
    if epoch["busy"]:
        yield Measured(
            "workers' start", "other processes took much of the CPUs: too much to tell how long it is"
        )
    whole, persists = epoch["whole"], loader.persistent_workers or patient.is_alone
    if not patient.num_workers or patient.is_ours or persists or whole is None:  # ours have a meter
        return
    start = epoch["first"] - seen.get(VALUES.name, {}).get("each", 0.0) * (loader.batch_size or 1)
    if start >= _LEAST_START and start > whole - start:
        yield Finding(
            "short-epochs",
            f"workers take {start:.2g} s to start, and an epoch {whole:.2g} s in all",
            "They start again for each epoch, which waits for them.",
            "persistent_workers=True",
            "slow",
        )


EPOCH = Check("an epoch", lambda patient: True, _run, _judged, in_workers=True)
