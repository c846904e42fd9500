"""Objects of Python, compressed chunks: things in a dataset that cost memory or time in each worker."""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy as np

from .contents import rows_of
from .diagnosis import Finding
from .patient import Patient
from .walk import walk

__all__ = ["chunk_findings", "compressed_chunks", "copied_memory", "python_objects"]

_MOST_FREE, _MOST_BYTES = 100_000, 32 * 2**20  # objects, and bytes of all workers, that are worth no word
_HOLDERS = (list, tuple, dict, set, frozenset)
_SAMPLE, _DEEPEST, _READ = 32, 3, 4
_CACHE = 2**20  # bytes of HDF5's cache of chunks, unless it is set


def python_objects(dataset: object) -> list[list[Any]]:
    """[path, objects, bytes] of large containers of Python objects, as estimated from a sample of each."""
    found: list[list[Any]] = []
    for path, value, is_ours in walk(dataset, with_globals=True):
        if is_ours or any(path.startswith((f"{outer}.", f"{outer}[")) for outer, *_ in found):
            continue
        if isinstance(value, _HOLDERS) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            objects, nbytes = _weight([*value.flat] if isinstance(value, np.ndarray) else value)
            if objects >= _MOST_FREE:
                found.append([path, int(objects), int(nbytes)])
    return found


def _weight(value: object, depth: int = 0) -> tuple[float, float]:
    """How many objects it is made of, and their bytes."""
    own = float(sys.getsizeof(value))
    if not isinstance(value, _HOLDERS) or not value or depth == _DEEPEST:
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


def copied_memory(seen: list[list[Any]], start_method: str, num_workers: int) -> list[Finding]:
    """A finding if workers copy many objects as they touch them."""
    if not seen or not num_workers:
        return []
    path, objects, nbytes = max(seen, key=lambda one: one[2])
    if num_workers * nbytes < _MOST_BYTES:
        return []
    how = (
        "Each access counts a reference in the object itself, so a forked worker copies its page of memory"
        if start_method == "fork"
        else "Each worker gets a pickle of them all"
    )
    return [
        Finding(
            "copied-memory",
            f"{path} holds about {objects:,} Python objects, {nbytes / 1e6:,.0f} MB; "
            f"{num_workers} workers make it {num_workers * nbytes / 1e6:,.0f} MB more",
            f"{how}: memory grows with the rows that were read.",
            f"keep {path} as an array of NumPy, Arrow or bytes with offsets; or storage.submit it",
            "maybe",
        )
    ]


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


def chunk_findings(seen: list[list[Any]], in_order: bool) -> list[Finding]:
    """A finding if a chunk is decoded for each of its rows."""
    bad = [one for one in seen if not in_order or one[2] > _CACHE]
    if not bad:
        return []
    path, rows, nbytes = max(bad, key=lambda one: one[1])
    return [
        Finding(
            "compressed-chunks",
            f"{path} is compressed in chunks of {rows:,} rows, {nbytes / 1e6:.3g} MB, and rows are read "
            + ("one by one" if in_order else "in a shuffled order"),
            f"Each row decodes its whole chunk, {rows:,} times as much as it needs.",
            "storage.submit(yoga.from_hdf5(...)), which keeps rows apart; or chunks of one row",
            "maybe",
        )
    ]
