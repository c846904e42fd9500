"""The bytes of the batches under way, against the shared memory that workers send them in."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from .finding import Finding
from .patient import Patient

__all__ = ["first_batch", "first_row", "nbytes_of", "sent_batch", "size_text", "small_shared_memory"]

_MOST_DEPTH = 8
_HELD = 1  # batches that the training loop has, besides those under way


def first_row(patient: Patient) -> float:
    """Seconds that a row takes, made by this process."""
    began = time.perf_counter()
    if patient.is_iterable:
        next(iter(patient.dataset), None)
    elif len(patient.dataset):
        many = getattr(patient.dataset, "__getitems__", None)
        many([0]) if many is not None else patient.dataset[0]
    return time.perf_counter() - began


def first_batch(patient: Patient) -> dict[str, Any]:
    """A batch made without workers: its rows, and the bytes of its tensors."""
    size = patient.batch_size()
    batch = next(iter(patient.like(0, batch_size=size)))
    return {"rows": size, "bytes": nbytes_of(batch)}


def sent_batch(patient: Patient, size: int | None) -> dict[str, Any]:
    """A batch made by a worker: the bytes of its tensors that came through shared memory with a size."""
    batch = next(iter(patient.like(1, batch_size=size)))
    return {"bytes": nbytes_of(batch, shared=True)}


def nbytes_of(batch: object, shared: bool = False, depth: int = 0) -> int:
    """Bytes of the tensors in a batch, or of those in shared memory."""
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided or (shared and not batch.untyped_storage().is_shared()):
            return 0
        return batch.untyped_storage().nbytes() if shared else batch.nbytes
    parts: list[object] = []
    if isinstance(batch, Mapping):
        parts = [*batch.values()]
    elif isinstance(batch, (list, tuple, set)):
        parts = [*batch]
    elif hasattr(batch, "__dict__"):
        parts = [*vars(batch).values()]
    return sum(nbytes_of(part, shared, depth + 1) for part in parts) if depth < _MOST_DEPTH else 0


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
        f"{folder} has {size_text(free)} free of {size_text(whole)}; {num_workers} workers x {prefetch} "
        f"batches ahead + {_HELD} are {under_way} batches of {size_text(batch_bytes)}: {size_text(needed)}"
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
            "wrong",
        )
    ], measured


def size_text(nbytes: int) -> str:
    """A number of bytes in a unit that suits it."""
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {'B' if unit == 0 else ('kB', 'MB', 'GB', 'TB')[unit - 1]}"
