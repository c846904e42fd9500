"""Parts of a dataset that do not survive a fork or do not pickle, or cost memory or time in each worker."""

from __future__ import annotations

import functools
import io
import math
import multiprocessing.context
import multiprocessing.pool
import os
import pickle
import re
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .contents import rows_of
from .diagnosis import Finding
from .patient import Patient
from .walk import is_of_library, walk

__all__ = [
    "chunk_findings",
    "compressed_chunks",
    "copied_memory",
    "handle_findings",
    "handles",
    "open_handles",
    "python_objects",
    "unpicklable",
]

_MOST_FREE, _MOST_BYTES = 100_000, 32 * 2**20  # objects, and bytes of all workers, that are worth no word
_CONTAINERS = (list, tuple, dict, set, frozenset)
_SAMPLE, _DEEPEST, _READ = 32, 3, 4
_CACHE = 2**20  # bytes of HDF5's cache of chunks, unless it is set
_MOST_PICKLED = 64 * 2**20  # bytes of a pickle; what is larger is taken for good
_MOST_NAMED = 8
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HOLDERS = (list, tuple, dict, set, frozenset, FunctionType, MethodType, functools.partial)
_STANDARD = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)


def python_objects(dataset: object) -> list[list[Any]]:
    """[path, objects, bytes] of large containers of Python objects, as estimated from a sample of each."""
    found: list[list[Any]] = []
    for path, value, is_ours in walk(dataset, with_globals=True):
        if is_ours or any(path.startswith((f"{outer}.", f"{outer}[")) for outer, *_ in found):
            continue
        if isinstance(value, _CONTAINERS) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            objects, nbytes = _weight([*value.flat] if isinstance(value, np.ndarray) else value)
            if objects >= _MOST_FREE:
                found.append([path, int(objects), int(nbytes)])
    return found


def _weight(value: object, depth: int = 0) -> tuple[float, float]:
    """How many objects it is made of, and their bytes."""
    own = float(sys.getsizeof(value))
    if not isinstance(value, _CONTAINERS) or not value or depth == _DEEPEST:
        return 1.0, own
    # Of a list, some from all over it.
    step = max(1, len(value) // _SAMPLE) if isinstance(value, (list, tuple)) else 1
    some = value[::step][:_SAMPLE] if isinstance(value, (list, tuple)) else _first(value)
    weights = [_weight(one, depth + 1) for one in some]
    scale = len(value) / max(1, len(some)) * (1 if not isinstance(value, dict) else 2)
    return 1 + scale * sum(count for count, _ in weights), own + scale * sum(size for _, size in weights)


def _first(value: Any) -> list[object]:
    """Some keys and values of a dict, or elements of a set."""
    pairs = value.items() if isinstance(value, dict) else ((one,) for one in value)
    return [one for _, pair in zip(range(_SAMPLE), pairs, strict=False) for one in pair]


def copied_memory(seen: list[list[Any]], start_method: str, num_workers: int) -> Iterator[Finding]:
    """A finding if workers copy many objects as they touch them."""
    if not seen or not num_workers:
        return
    path, objects, nbytes = max(seen, key=lambda one: one[2])
    if num_workers * nbytes < _MOST_BYTES:
        return
    how = (
        "Each access counts a reference in the object itself, so a forked worker copies its page of memory"
        if start_method == "fork"
        else "Each worker gets a pickle of them all"
    )
    yield Finding(
        "copied-memory",
        f"{path} holds about {objects:,} Python objects, {nbytes / 1e6:,.0f} MB; "
        f"{num_workers} workers make it {num_workers * nbytes / 1e6:,.0f} MB more",
        f"{how}: memory grows with the rows that were read.",
        f"keep {path} as an array of NumPy, Arrow or bytes with offsets; or storage.submit it",
        "maybe",
    )


def compressed_chunks(patient: Patient) -> list[list[Any]]:
    """[name, rows, bytes of a chunk] of compressed HDF5 datasets that are read by the row. In a trial."""
    h5py, found = sys.modules.get("h5py"), {}
    if h5py is None:
        return []
    there = h5py.Dataset.__getitem__

    def read(self: Any, key: Any, *more: Any, **named: Any) -> Any:
        first = key[0] if isinstance(key, tuple) and key else key
        if self.chunks and self.compression and self.chunks[0] > 1 and isinstance(first, (int, np.integer)):
            name = f"{self.name} of {os.path.basename(self.file.filename)}"
            nbytes = self.dtype.itemsize * math.prod(self.chunks)
            found[name] = [name, int(min(self.chunks[0], len(self))), int(nbytes)]
        return there(self, key, *more, **named)

    h5py.Dataset.__getitem__ = read
    for _, _row in zip(range(_READ), rows_of(patient), strict=False):
        continue
    h5py.Dataset.__getitem__ = there
    return list(found.values())


def chunk_findings(seen: list[list[Any]], in_order: bool) -> Iterator[Finding]:
    """A finding if a chunk is decoded for each of its rows."""
    bad = [one for one in seen if not in_order or one[2] > _CACHE]
    if not bad:
        return
    path, rows, nbytes = max(bad, key=lambda one: one[1])
    yield Finding(
        "compressed-chunks",
        f"{path} is compressed in chunks of {rows:,} rows, {nbytes / 1e6:.3g} MB, and rows are read "
        + ("one by one" if in_order else "in a shuffled order"),
        f"Each row decodes its whole chunk, {rows:,} times as much as it needs.",
        "storage.submit(yoga.from_hdf5(...)), which keeps rows apart; or chunks of one row",
        "maybe",
    )


def handles(dataset: object) -> dict[str, Any]:
    """Handles of a dataset: open handles, and what does not pickle."""
    return {"open": open_handles(dataset), "unpicklable": unpicklable(dataset)}


def handle_findings(
    seen: dict[str, Any],
    start_method: str,
    num_workers: int | None,
    wrong_rows: int = 0,
    error: str | None = None,
) -> Iterator[Finding]:
    """Findings about what `handles` has seen, for workers that start in one way or the other.

    Args:
        seen: by `handles`.
        start_method: of the workers.
        num_workers: of the loader.
        wrong_rows: rows that workers made otherwise than this process.
        error: raised as workers were started; None if they started.
    """
    if seen["open"] and start_method == "fork":
        paths = [f"{path} is {what}" for path, what in seen["open"]]
        yield Finding(
            "fork-unsafe",
            "; ".join(paths)
            + (f"; workers made {wrong_rows} rows that are others here" if wrong_rows else ""),
            "Forked workers share its file offset, its connection or its locked state with the training "
            "process, and have none of its threads: rows may come out wrong, or a worker waits forever.",
            f"open {seen['open'][0][0]} on first use in each worker, not in __init__",
            "wrong" if wrong_rows else "maybe",
        )
    if seen["unpicklable"]:
        path, why = seen["unpicklable"]
        change = f"leave {path} out in __getstate__, or make it of functions and classes of a module"
        if re.search("lambda|local", why):  # as Python says of functions that have no name in a module
            change = f"make {path} a function of a module, in place of a lambda or a local one"
        yield Finding(
            "not-picklable",
            f"{path} does not pickle: {why}",
            "Workers that are spawned, or come from a fork server, get the dataset as a pickle; Python "
            "3.14, macOS and Windows start them so.",
            change,
            "wrong" if error is not None and start_method != "fork" and num_workers != 0 else "maybe",
        )


def open_handles(dataset: object) -> list[tuple[str, str]]:
    """(path, what it is) of each open handle, without those inside of others."""
    found: list[tuple[str, str]] = []
    libraries: list[str] = []  # objects of packages: what they hold is named by them
    for path, value, is_ours in walk(dataset, with_globals=True):
        if is_ours or any(_is_in(path, outer) for outer, _ in found):
            continue
        what = _handle(value)
        holder = next((outer for outer in libraries if _is_in(path, outer)), None)
        if what is not None:
            found.append((path, what) if holder is None else (holder, f"of a library, and holds {what}"))
            if len(found) == _MOST_NAMED:
                break
        elif holder is None and _is_of_library(value):
            libraries.append(path)
    return found


def _is_of_library(value: object) -> bool:
    return not isinstance(value, (*_HOLDERS, Dataset)) and is_of_library(type(value))


def _is_in(path: str, outer: str) -> bool:
    return path.startswith((f"{outer}.", f"{outer}["))


def _handle(value: object) -> str | None:
    """The kind of open handle that an object is; None for others. Packages that are not loaded made none."""
    h5py, lmdb = sys.modules.get("h5py"), sys.modules.get("lmdb")
    if h5py is not None and isinstance(value, (h5py.File, h5py.Group, h5py.Dataset)):
        return f"an open h5py.{type(value).__name__}" if value else None
    if lmdb is not None and isinstance(value, lmdb.Environment):
        try:
            value.info()
        except lmdb.Error:  # it is closed
            return None
        return "an open lmdb.Environment"
    if isinstance(value, sqlite3.Connection):
        try:
            value.total_changes  # noqa: B018 - raises if it is closed
        except sqlite3.ProgrammingError as error:
            return None if "closed" in str(error) else "a sqlite3.Connection"
        return "a sqlite3.Connection"
    if isinstance(value, socket.socket):
        return "an open socket" if value.fileno() >= 0 else None
    if isinstance(value, io.IOBase) and not isinstance(value, (io.BytesIO, io.StringIO)):
        return None if value.closed or any(value is one for one in _STANDARD) else "an open file"
    if isinstance(value, torch.Tensor):
        return f"a tensor on {value.device}" if value.is_cuda else None
    if isinstance(value, _LOCKS):
        return "a lock of threads that is held" if _is_held(value) else None
    if isinstance(value, Executor):
        return (
            "a pool that has started"
            if getattr(value, "_threads", getattr(value, "_processes", None))
            else None
        )
    if isinstance(value, multiprocessing.pool.Pool):
        return "a pool that has started"
    if isinstance(value, threading.Thread):
        return "a running thread" if value.is_alive() else None
    return None


def _is_held(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing, and ends a long pickle."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> int:
        self.count += memoryview(data).nbytes
        if self.count > _MOST_PICKLED:
            raise _LongError
        return memoryview(data).nbytes


class _LongError(Exception):
    pass


def unpicklable(dataset: object) -> tuple[str, str] | None:
    """The path of the innermost part that does not pickle, and the error; None if all does.

    Its `__getstate__` runs, so call it in a trial.
    """
    error = _pickle_error(dataset)
    if error is None:
        return None
    best = ("dataset", error)
    for path, value, _ in walk(dataset):
        if _is_in(path, best[0]) and path.count(".") + path.count("[") <= 32:
            inner = _pickle_error(value)
            if inner is not None:
                best = (path, inner)
                if _is_of_library(value):  # its own parts are not the user's to change
                    break
    return best


def _pickle_error(value: object) -> str | None:
    multiprocessing.context.set_spawning_popen(_Spawning())  # type: ignore[arg-type]
    try:
        pickler: Any = ForkingPickler(_Nowhere(), pickle.HIGHEST_PROTOCOL)
        # torch's own reductions move tensors into shared memory.
        reductions = pickler.dispatch_table.items()
        pickler.dispatch_table = {kind: one for kind, one in reductions if not _is_torchs(one)}
        pickler.dump(value)
    except _LongError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        multiprocessing.context.set_spawning_popen(None)
    return None


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.")


class _Spawning:
    """In place of a process that is being started: locks of multiprocessing pickle only then."""

    @staticmethod
    def duplicate_for_child(descriptor: int) -> int:
        return descriptor

    DupFd = int
