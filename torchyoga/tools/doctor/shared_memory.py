"""The bytes of the batches under way, against the shared memory they are sent in; and what is left in it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from ...process.texts import bytes_text
from .diagnosis import Finding
from .leftovers import age_text
from .patient import Patient, made

__all__ = [
    "first_batch",
    "first_row",
    "many_tensors",
    "orphaned",
    "orphans",
    "sent_batch",
    "short_epochs",
    "small_shared_memory",
]

_MOST_DEPTH = 8
_HELD = 1  # batches that the training loop has, besides those under way
_LEAST_START = 0.2  # seconds
_OLD = 60.0  # seconds; a younger one may be about to be opened
_KNOWN = re.compile(r"torch_(\d+)_\S+|(?:sem\.)?(?:psm_|mp-|loky-(\d+)-|pym-(\d+)-)\S+|sem\.mp-\S+|wnsm_\S+")
_MOST_NAMED, _MOST = 5, 10_000


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
        "bytes" and "tensors" of a batch that came through shared memory with a size, the seconds until it
        was there ("first"), and those of the epoch ("whole"; None if it did not end).
    """
    if patient.is_ours:
        sizes = sizes_of(next(iter(patient.like(1, batch_size=size)), None), shared=True)
        return {"bytes": sum(sizes), "tensors": len(sizes), "came": True, "first": 0.0, "whole": None}
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
    sizes, ended = sizes_of(batch, shared=True), batch is None
    while not ended and time.perf_counter() - began < max(seconds, 2 * first):
        ended = next(batches, None) is None
    return {
        "bytes": sum(sizes),
        "tensors": len(sizes),
        "came": batch is not None,
        "first": first,
        "whole": time.perf_counter() - began if ended else None,
    }


def is_short(sent: Mapping[str, Any], batch_seconds: float = 0.0) -> bool:
    """True if workers took longer to start than the rest of the epoch took."""
    start, whole = sent["first"] - batch_seconds, sent["whole"]
    return whole is not None and start >= _LEAST_START and start > whole - start


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


def many_tensors(tensors: int, under_way: int) -> Iterator[Finding]:
    """A finding if the tensors of the batches under way take half of the files that may be open."""
    if resource is None or torch.multiprocessing.get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 2 * tensors * under_way <= limit:
        return
    yield Finding(
        "many-files",
        f"{under_way} batches under way of {tensors:,} tensors each; {limit:,} files may be open",
        "Each tensor that a worker sends takes an open file. Once a few batches are kept, it ends with "
        "`received 0 items of ancdata` or `Too many open files`.",
        "a collate_fn that stacks or pads; or torch.multiprocessing.set_sharing_strategy('file_system')",
        "maybe",
    )


def short_epochs(sent: Mapping[str, Any], batch_seconds: float) -> Iterator[Finding]:
    """A finding if workers take longer to start than the epoch takes after that."""
    if not is_short(sent, batch_seconds):
        return
    start, whole = sent["first"] - batch_seconds, sent["whole"]
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


class _Segment(NamedTuple):
    """Shared memory with a name.

    Attributes:
        name: of its file.
        nbytes: that it takes.
        age: seconds since it was written.
    """

    name: str
    nbytes: int
    age: float


def orphans(folder: str = "/dev/shm", old: float = _OLD) -> list[_Segment]:
    """Segments of this user, made by Python, that no process that can be seen has open or mapped.

    Args:
        folder: where the system keeps shared memory.
        old: seconds; younger ones count only if their name says that their maker has ended.
    """
    found: list[_Segment] = []
    if not hasattr(os, "getuid") or not os.path.isdir("/proc/self/map_files"):
        return found
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        candidates = [
            entry for _, entry in zip(range(_MOST), entries, strict=False) if _KNOWN.fullmatch(entry.name)
        ]
        used = _used(folder) if candidates else set()
        for entry in candidates:
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                age = time.time() - about.st_mtime
                is_of_dead = _maker_has_ended(entry.name)
                if about.st_uid != os.getuid() or entry.name in used or is_of_dead is False:
                    continue
                if is_of_dead or age >= old:
                    found.append(_Segment(entry.name, about.st_blocks * 512, max(0.0, age)))
    return sorted(found)


def orphaned(segments: list[Any], folder: str = "/dev/shm") -> Iterator[Finding]:
    """A finding that names them all by a command."""
    if not segments:
        return
    found = [_Segment(*one) for one in segments]
    patterns = [*dict.fromkeys(_pattern(one.name) for one in found)]
    named = " ".join(f"{folder}/{one}" for one in patterns[:_MOST_NAMED])
    more = f"; then look again, for {len(patterns) - _MOST_NAMED} more" if len(patterns) > _MOST_NAMED else ""
    oldest = max(one.age for one in found)
    yield Finding(
        "orphaned-shm",
        f"{len(found)} in {folder}, {sum(one.nbytes for one in found) / 1e6:,.1f} MB, "
        f"up to {age_text(oldest)} old, that no process that can be seen has open",
        "Memory that a killed process has left is taken until it is deleted or the machine starts again.",
        f"rm {named}{more}",
        "maybe",
    )


def _pattern(name: str) -> str:
    """All that a process has made, if it has ended, as its name says."""
    made_by = re.match(r"(torch_\d+_|sem\.loky-\d+-|pym-\d+-)", name)
    return name if made_by is None else f"{made_by[1]}*"


def _maker_has_ended(name: str) -> bool | None:
    """True or False if the name says which process made it, else None."""
    match = _KNOWN.fullmatch(name)
    pid = next((int(one) for one in match.groups() if one), None) if match is not None else None
    if pid is None:
        return None
    return not os.path.exists(f"/proc/{pid}")


def _used(folder: str) -> set[str]:
    """Names in a folder that processes have open or mapped, as far as this user may see."""
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, _, path = line.partition(f"{folder}/")
                if path:
                    found.add(path.removesuffix(" (deleted)"))
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    path = os.readlink(descriptor)
                    if path.startswith(f"{folder}/"):
                        found.add(path.removeprefix(f"{folder}/").removesuffix(" (deleted)"))
    return found
