"""The first row and batches: their seconds, and their bytes against the shared memory they are sent in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...process.texts import bytes_text
from .diagnosis import Finding
from .patient import Patient, made

__all__ = ["first_batch", "first_row", "sent_batch", "short_epochs", "sizes_of", "small_shared_memory"]

_MOST_DEPTH = 8
_HELD = 1  # batches that the training loop has, besides those under way
_LEAST_START = 0.2  # seconds


def first_row(patient: Patient) -> float:
    """Seconds that a row takes, made by this process."""
    began = time.perf_counter()
    if patient.is_iterable:
        next(iter(patient.dataset), None)
    else:
        for key in patient.keys(1):
            made(patient.dataset, key)
    return time.perf_counter() - began


def first_batch(patient: Patient) -> dict[str, Any]:
    """A batch made without workers: its rows, the bytes of its tensors, and whether one came."""
    size = patient.batch_size()
    is_theirs = patient.loader is not None and not patient.is_ours
    loader = patient.again(0) if is_theirs else patient.like(0, batch_size=size)
    batch = next(iter(loader), None)
    return {"rows": size, "bytes": sum(sizes_of(batch)), "came": batch is not None}


def sent_batch(patient: Patient, size: int | None, seconds: float) -> dict[str, Any]:
    """Facts about an epoch of the loader with its workers, of which no more is run than the seconds.

    Returns:
        "bytes" of a batch that came through shared memory, the seconds until it was there ("first"), and
        those of the epoch ("whole"; None if it did not end).
    """
    if patient.is_ours:
        sizes = sizes_of(next(iter(patient.like(1, batch_size=size)), None), shared=True)
        return {"bytes": sum(sizes), "came": True, "first": 0.0, "whole": None}
    once = _epoch(patient, seconds)
    if once["whole"] is None or once["first"] < _LEAST_START:
        return once
    again = _epoch(patient, seconds)
    if again["whole"] is None:
        return once
    # Other work of the machine makes the start and the rest of an epoch longer, each by itself.
    rest = min(one["whole"] - one["first"] for one in (once, again))
    first = min(once["first"], again["first"])
    return once | {"first": first, "whole": first + rest}


def _epoch(patient: Patient, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    batches = iter(patient.again())
    batch = next(batches, None)
    first = time.perf_counter() - began
    nbytes, ended = sum(sizes_of(batch, shared=True)), batch is None
    while not ended and time.perf_counter() - began < max(seconds, 2 * first):
        ended = next(batches, None) is None
    return {
        "bytes": nbytes,
        "came": batch is not None,
        "first": first,
        "whole": time.perf_counter() - began if ended else None,
    }


def sizes_of(batch: object, shared: bool = False, depth: int = 0) -> list[int]:
    """Bytes of each tensor in a batch, or of those in shared memory."""
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided or (shared and not batch.untyped_storage().is_shared()):
            return []
        return [batch.untyped_storage().nbytes() if shared else batch.nbytes]
    parts: list[object] = []
    if isinstance(batch, Mapping):
        parts = [*batch.values()]
    elif isinstance(batch, (list, tuple, set)):
        parts = [*batch]
    elif hasattr(batch, "__dict__"):
        parts = [*vars(batch).values()]
    if depth == _MOST_DEPTH:
        return []
    return [size for part in parts for size in sizes_of(part, shared, depth + 1)]


def short_epochs(sent: Mapping[str, Any], batch_seconds: float) -> Iterator[Finding]:
    """A finding if workers take longer to start than the epoch takes after that."""
    start, whole = sent["first"] - batch_seconds, sent["whole"]
    if whole is None or start < _LEAST_START or start <= whole - start:
        return
    yield Finding(
        "short-epochs",
        f"workers take {start:.2g} s to start, and an epoch {whole:.2g} s in all",
        "They start again for each epoch, which waits for them.",
        "persistent_workers=True",
        "slow",
    )


def small_shared_memory(
    num_workers: int, prefetch: int, batch_bytes: int, folder: str = "/dev/shm"
) -> tuple[list[Finding], str]:
    """A finding if the batches under way do not fit, and what was measured.

    Args:
        num_workers: of the loader.
        prefetch: batches that each worker makes ahead.
        batch_bytes: of a batch.
        folder: where the system keeps shared memory.
    """
    try:
        room = os.statvfs(folder)
    except (OSError, AttributeError):
        return [], "this system does not say how large it is"
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    under_way = num_workers * prefetch + _HELD
    needed = under_way * batch_bytes
    measured = (
        f"{folder} has {bytes_text(free, 0)} free of {bytes_text(whole, 0)}; {num_workers} workers x "
        f"{prefetch} batches ahead + {_HELD} are {under_way} batches of {bytes_text(batch_bytes, 0)}: "
        f"{bytes_text(needed, 0)}"
    )
    if needed <= free:
        return [], measured
    fits = max(0, (free // max(1, batch_bytes) - _HELD) // max(1, num_workers))
    change = f"prefetch_factor={fits}" if fits else "num_workers=0"
    return [
        Finding(
            "small-shm",
            measured,
            "Workers send batches through it; where it is full, a worker dies with a bus error.",
            f"{change}, or docker run --shm-size={max(1, -(-2 * needed // 2**30))}g",
            "maybe",
        )
    ], measured
