"""Parts of a dataset that do not survive a fork, or cost memory in each worker."""

from __future__ import annotations

import functools
import io
import multiprocessing.pool
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .diagnosis import Finding
from .walk import is_of_library, walk

__all__ = [
    "copied_memory",
    "handle_findings",
    "open_handles",
    "python_objects",
]

_MOST_FREE, _MOST_BYTES = 100_000, 32 * 2**20  # objects, and bytes of all workers, that are worth no word
_CONTAINERS = (list, tuple, dict, set, frozenset)
_SAMPLE, _DEEPEST = 32, 3
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


def handle_findings(paths: list[tuple[str, str]], wrong_rows: int = 0) -> Iterator[Finding]:
    """A finding about the open handles of a dataset whose workers are forked.

    Args:
        paths: as `open_handles` has found them.
        wrong_rows: rows that workers made otherwise than this process.
    """
    if not paths:
        return
    yield Finding(
        "fork-unsafe",
        "; ".join(f"{path} is {what}" for path, what in paths)
        + (f"; workers made {wrong_rows} rows that are others here" if wrong_rows else ""),
        "Forked workers share its file offset, its connection or its locked state with the training "
        "process, and have none of its threads: rows may come out wrong, or a worker waits forever.",
        f"open {paths[0][0]} on first use in each worker, not in __init__",
        "wrong" if wrong_rows else "maybe",
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
