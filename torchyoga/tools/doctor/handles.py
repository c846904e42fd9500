"""Open handles of a dataset, which do not survive a fork, and the many objects that each worker copies."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from .diagnosis import Check, Finding, Seen
from .patient import Patient
from .walk import walk

RAISED = "raised by workers alone"  # what they raised, of rows that this process has made
_MOST_NAMED = 8
_MOST_FREE, _MOST_BYTES = 100_000, 32 * 2**20  # objects, and bytes of all workers, that are worth no word
_CONTAINERS = (list, tuple, dict, set, frozenset)
_SAMPLE, _DEEP = 32, 3
_STANDARD = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)


def _outermost(dataset: object, kind: Callable[[object], Any]) -> list[tuple[str, Any]]:
    """(path, kind) of each object that is of a kind, without those inside of others."""
    found: list[tuple[str, Any]] = []
    for path, value, is_ours in walk(dataset, with_globals=True):
        is_inner = any(path.startswith((f"{outer}.", f"{outer}[")) for outer, _ in found)
        what = None if is_ours or is_inner else kind(value)
        if what is not None:
            found.append((path, what))
    return found


def open_handles(dataset: object) -> list[tuple[str, str]]:
    """(path, what it is) of each open handle."""
    return _outermost(dataset, _handle)[:_MOST_NAMED]


def _handle(value: object) -> str | None:
    """The kind of open handle that an object is; None for others. Packages that are not loaded made none."""
    for place, (what, is_open) in _KINDS.items():
        module, _, name = place.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and issubclass(type(value), kind):  # some say that they have no class
            return what if is_open(value) else None
    return None


def _is_open(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Exception as error:  # also of another thread's connection
        return "closed" not in str(error)
    return True


def _is_file(value: Any) -> bool:
    is_memory = isinstance(value, (io.BytesIO, io.StringIO))
    return not is_memory and not value.closed and not any(value is one for one in _STANDARD)


def _is_held(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def _has_begun(pool: Any) -> bool:
    return bool(getattr(pool, "_threads", getattr(pool, "_processes", None)))


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **{f"h5py.{name}": (f"an open h5py.{name}", bool) for name in ("File", "Group", "Dataset")},
    "lmdb.Environment": ("an open lmdb.Environment", lambda value: _is_open(value.info)),
    "sqlite3.Connection": ("a sqlite3.Connection", lambda value: _is_open(lambda: value.total_changes)),
    "sqlite3.Cursor": ("a sqlite3.Cursor", lambda value: _is_open(lambda: value.connection.total_changes)),
    "socket.socket": ("an open socket", lambda value: value.fileno() >= 0),
    "io.IOBase": ("an open file", _is_file),
    "torch.Tensor": ("a tensor on an accelerator", lambda value: value.is_cuda),
    "_thread.LockType": ("a lock of threads that is held", _is_held),
    "_thread.RLock": ("a lock of threads that is held", _is_held),
    "concurrent.futures.Executor": ("a pool that has started", _has_begun),
    "multiprocessing.pool.Pool": ("a pool that has started", lambda value: True),
    "threading.Thread": ("a running thread", lambda value: value.is_alive()),
}


def _judged_handles(patient: Patient, paths: list[tuple[str, str]], seen: Seen) -> Iterator[Finding]:
    if paths:
        raised = seen.get(RAISED)
        yield Finding(
            "fork-unsafe",
            "; ".join(f"{path} is {what}" for path, what in paths)
            + (f"; a worker raised, of a row that was made here: {raised}" if raised else ""),
            "Forked workers share its file offset, its connection or its locked state with the training "
            "process, and have none of its threads: rows may come out wrong, or a worker waits forever.",
            f"open {paths[0][0]} on first use in each worker, not in __init__",
            "wrong" if raised and not patient.is_alone else "maybe",
        )


def _forks(patient: Patient) -> bool:
    return patient.num_workers > 0 and patient.start_method == "fork"


HANDLES = Check("handles", _forks, lambda patient, seconds: open_handles(patient.dataset), _judged_handles)


def _largest(patient: Patient, seconds: float) -> list[Any] | None:
    """[path, objects, bytes] of the largest container of Python objects, as estimated from a sample of it."""
    found = _outermost(patient.dataset, _heavy)
    path, weight = max(found, key=lambda one: int(one[1][1]), default=("", None))
    return [path, *map(int, weight)] if weight else None


def _heavy(value: Any) -> tuple[float, float] | None:
    """The weight of a container of many Python objects; None for any other object."""
    is_array = isinstance(value, np.ndarray) and value.dtype.hasobject
    weight = _weight(value.ravel().tolist() if is_array else value)
    return weight if weight[0] >= _MOST_FREE else None


def _weight(value: Any, depth: int = 0) -> tuple[float, float]:
    """The number of objects that it is made of, and their bytes, by a sample of what is in it."""
    own = float(sys.getsizeof(value))
    if not isinstance(value, _CONTAINERS) or not value or depth == _DEEP:
        return 1.0, own
    some = [*islice(value, _SAMPLE), *(islice(value.values(), _SAMPLE) if isinstance(value, dict) else ())]
    weights = [_weight(one, depth + 1) for one in some]
    scale = len(value) / min(len(value), _SAMPLE)
    return 1 + scale * sum(count for count, _ in weights), own + scale * sum(size for _, size in weights)


def _judged_objects(patient: Patient, facts: list[Any] | None, seen: Seen) -> Iterator[Finding]:
    workers = patient.num_workers
    if facts is None or workers * facts[2] < _MOST_BYTES:
        return
    path, objects, nbytes = facts
    how = (
        "Each access counts a reference in the object itself, so a forked worker copies its page of memory"
        if patient.start_method == "fork"
        else "Each worker gets a pickle of them all"
    )
    yield Finding(
        "copied-memory",
        f"{path} holds about {objects:,} Python objects, {nbytes / 1e6:,.0f} MB; "
        f"copies in the workers ({workers}) take {workers * nbytes / 1e6:,.0f} MB",
        f"{how}: memory grows with the rows that were read.",
        f"keep {path} as an array of NumPy, Arrow or bytes with offsets; or storage.submit it",
        "maybe",
    )


OBJECTS = Check("Python objects", lambda patient: patient.num_workers > 0, _largest, _judged_objects)
