"""Rows, made one after the other in this process -> what they hold, share and leave behind."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ...loading.meter.verdict import KEPT
from .culprit import noted, row_said
from .diagnosis import Finding
from .patient import Patient, made
from .shared_memory import sizes_of
from .walk import walk

__all__ = ["content_findings", "contents", "digest", "leaves", "rows_of"]

_MOST_ROWS, _SECONDS, _MOST_BYTES = 48, 1.0, 64 * 2**20
_MOST_LEAVES, _DEEPEST = 256, 8
_LEAST_ROWS = 16  # of which a column is called constant or sorted
_EACH = 0.9  # of the rows leave something behind
_MOST_NAMED = 3
_CACHE = type(functools.lru_cache(len))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), datetime.date, datetime.timedelta)
_MASKS = ("mask", "bias")  # columns that are added before a softmax, which makes 0 of -inf
_ONES = ("mask", "weight", "valid", "pad")  # columns that are constant on purpose, by a part of their name


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """The values that a row is made of, each with the path to it."""
    parts: list[tuple[str, object]] | None = None
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            parts = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            parts = [(f"{path}.{name}" if path else name, one) for name, one in value._asdict().items()]  # type: ignore[attr-defined]
        elif isinstance(value, (list, tuple)) and not _is_numbers(value):
            parts = [(f"{path}[{number}]", one) for number, one in enumerate(value)]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [(f"{path}.{name}" if path else name, one) for name, one in vars(value).items()]
    if parts is None:
        yield path, value
        return
    for inner, one in parts[:_MOST_LEAVES]:
        yield from leaves(one, inner, depth + 1)


def _is_numbers(value: list[object] | tuple[object, ...]) -> bool:
    return len(value) > 8 and all(isinstance(one, (int, float)) for one in value)


def digest(value: object) -> str | None:
    """A digest of a row, or of a generator's state; None if a part of it is of an unknown kind."""
    found = hashlib.blake2b(digest_size=8)
    for path, leaf in leaves(value):
        data = _bytes_of(leaf)
        if data is None:
            return None
        found.update(f"{path}:{type(leaf).__name__}{getattr(leaf, 'shape', '')}:".encode())
        found.update(data)
    return found.hexdigest()


def _bytes_of(leaf: object) -> bytes | None:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided or leaf.device.type != "cpu":
            return None
        return bytes(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
        return repr(leaf.tolist()).encode()
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.tobytes()
    if isinstance(leaf, (*_PLAIN, list, tuple)):
        return repr(leaf).encode()
    if type(leaf).__module__.startswith("PIL."):
        found: bytes = leaf.tobytes()  # type: ignore[attr-defined]
        return found
    return None


def contents(patient: Patient, seconds: float = _SECONDS) -> dict[str, Any]:
    """Facts about up to 48 rows from all over the dataset; see the findings for their names."""
    dataset = patient.dataset
    for _, value, _ in walk(dataset, with_globals=True):
        if isinstance(value, _CACHE):
            value.cache_clear()  # which training may have filled
    files, sizes = _open_files(), _sizes(dataset)
    columns: dict[str, _Column] = {}
    kept: list[tuple[object, str | None]] = []
    ends, nbytes = time.monotonic() + min(seconds, _SECONDS), 0
    cpu = (0.0, 0.0)
    for row in rows_of(patient):
        first = digest(row)
        kept.append((row, first))
        for path, leaf in leaves(row):
            columns.setdefault(path, _Column(path)).add(leaf)
            nbytes += (
                sum(sizes_of(leaf)) if isinstance(leaf, torch.Tensor) else int(getattr(leaf, "nbytes", 0))
            )
        if len(kept) == 1:  # what is done once does not count
            cpu = time.process_time(), time.thread_time()
        if time.monotonic() > ends or nbytes > _MOST_BYTES:
            break
    of_all, of_this = time.process_time() - cpu[0], time.thread_time() - cpu[1]
    count = len(kept)
    grown = {path: size - sizes[path] for path, size in _sizes(dataset).items() if path in sizes}
    return {
        "rows": count,
        "distinct": len({first for _, first in kept}),
        "changed": _alike_at_once(patient)
        if hasattr(dataset, "__getitems__") and patient.makes_batches
        else sum(first is not None and digest(row) != first for row, first in kept),
        "files": _open_files() - files,
        "grown": [path for path, more in grown.items() if count >= _LEAST_ROWS and more >= _EACH * count],
        "threads": max(0.0, 1 - of_this / of_all) if of_all > 0.05 else 0.0,
        "alone": [] if patient.is_iterable else _alone(patient),
        **{
            kind: [path for path, column in columns.items() if column.is_of(kind, count)]
            for kind in ("nan", "infinite", "constant", "sorted")
        },
    }


def rows_of(patient: Patient) -> Iterator[object]:
    """Some rows from all over the dataset, or the first ones of a stream."""
    dataset = patient.dataset
    if patient.is_iterable:
        for _, row in zip(range(_MOST_ROWS), dataset, strict=False):
            yield row
        return
    for number in patient.keys(_MOST_ROWS):
        try:
            row = row_of(dataset, number)
        except Exception as error:
            if row_said("\n".join(getattr(error, "__notes__", ()))) is None:
                noted(error, number)
            raise
        yield row


def row_of(dataset: Any, number: Any) -> object:
    """A row as a collate_fn gets it."""
    row = made(dataset, number)
    return row[0] if isinstance(row, list) and hasattr(dataset, "__getitems__") and row else row


def _alone(patient: Patient) -> list[str | None]:
    """Digests of the two rows that workers make, too; None for one that is another if it is made again."""
    found = []
    for row in patient.keys(2):
        first, second = (digest([row_of(patient.dataset, row)]) for _ in range(2))
        found.append(first if first == second else None)
    return found


def _alike_at_once(patient: Patient) -> int:
    """How many rows that are made at once, as those of a batch, hold what another of them should alone."""
    keys, alone = patient.keys(2), _alone(patient)
    if len(keys) < 2 or None in alone or alone[0] == alone[1]:
        return 0
    together = [digest([row]) for row in patient.dataset.__getitems__(keys)]
    return len(together) if len(set(together)) == 1 else 0


class _Column:
    """The values of a column."""

    def __init__(self, path: str) -> None:
        self._is_mask = any(word in path.lower() for word in _MASKS)
        self._nan = self._infinite = self._count = 0
        self._least, self._most = np.inf, -np.inf
        self._labels: list[Any] | None = []
        self._is_number = True

    def add(self, leaf: Any) -> None:
        """Counts a value."""
        self._count += 1
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided:
            leaf = leaf.detach().to(torch.float32 if leaf.dtype.is_floating_point else leaf.dtype).numpy()
        is_one = isinstance(leaf, (str, int, np.number)) or (isinstance(leaf, np.ndarray) and leaf.size == 1)
        if self._labels is not None:
            self._labels = (
                [*self._labels, leaf if isinstance(leaf, str) else np.ravel(leaf)[0]] if is_one else None
            )
        values = np.asarray(leaf) if isinstance(leaf, (int, float, np.ndarray, np.generic)) else None
        if values is None or values.dtype.kind not in "iuf" or not values.size:
            self._is_number = False
            return
        if values.dtype.kind == "f":
            nan, infinite = np.isnan(values), np.isinf(values)
            if self._is_mask or (values.size > 1 and not values[np.isfinite(values)].any()):
                infinite = np.isposinf(values)  # a mask to be added may have any name, and is of 0 and -inf
            self._nan, self._infinite = self._nan + bool(nan.any()), self._infinite + bool(infinite.any())
            if nan.any():
                return
        self._least, self._most = min(self._least, values.min()), max(self._most, values.max())

    def is_of(self, kind: str, rows: int) -> bool:
        """True for a column with values that are nan or infinite, or that is constant or sorted."""
        if kind == "nan":
            return bool(self._nan)
        if kind == "infinite":
            return bool(self._infinite)
        if self._count < max(rows, _LEAST_ROWS):
            return False
        if kind == "constant":
            return self._is_number and not self._nan and bool(self._least == self._most)
        return self._labels is not None and _is_sorted(self._labels)


def _is_sorted(labels: list[Any]) -> bool:
    """True for few labels, one after the other; numbers of rows and times are all different."""
    try:
        in_order = labels in (sorted(labels), sorted(labels, reverse=True))
        return in_order and 2 <= len(set(labels)) <= len(labels) / 2
    except TypeError:
        return False


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _sizes(dataset: object) -> dict[str, int]:
    """How much is in each container without a bound, and in each cache of results (functools.lru_cache)."""
    sizes = {}
    for path, value, is_ours in walk(dataset, with_globals=True):
        bound = getattr(value, "maxlen", None)
        if isinstance(value, (list, dict, set, deque)) and not is_ours and bound is None:
            sizes[path] = len(value)
        elif isinstance(value, _CACHE) and value.cache_parameters()["maxsize"] is None:
            sizes[path] = value.cache_info().currsize
    return sizes


def content_findings(seen: dict[str, Any], patient: Patient, in_order: bool) -> Iterator[Finding]:
    """Findings about what the rows hold; `in_order` if the loader gives them as they lie in the dataset."""
    rows = seen["rows"]
    if seen["changed"]:
        yield Finding(
            "shared-buffer",
            f"{seen['changed']} of {rows} rows had other values once later rows were made",
            "They are one object, or share its memory: all rows of a batch hold what its last one does.",
            "return a copy from __getitem__ or __iter__: x.copy() of an array, x.clone() of a tensor",
            "wrong" if patient.makes_batches else "maybe",
        )
    for kind, said in (("nan", "NaN"), ("infinite", "infinite values")):
        if seen[kind]:
            yield Finding(
                "not-finite",
                f"{_named(seen[kind])}: {said} in {rows} rows that were looked at",
                "One such value makes the loss, and then all weights, NaN.",
                "fill them (torch.nan_to_num in the transform), or leave these rows out (ref.where)",
                "maybe",
            )
    constant = [path for path in seen["constant"] if not any(word in path.lower() for word in _ONES)]
    if constant and not seen["changed"]:
        yield Finding(
            "constant-column",
            f"{_named(constant)}: one value in {rows} rows from all over the dataset",
            "A model learns nothing from it. Images divided as integers look so, and lost labels.",
            "look at how the column is made; leave it out if it is meant so",
            "maybe",
        )
    if seen["sorted"] and in_order and not patient.is_evaluation and patient.loader is not None:
        yield Finding(
            "sorted-labels",
            f"{_named(seen['sorted'])}: sorted in the dataset, and the loader gives its rows in order",
            "Batches hold one label each, and the model forgets the others. Evaluation is not hurt.",
            "shuffle=True",
            "maybe",
        )
    if seen["grown"]:
        yield Finding(
            "growing-memory",
            f"{_named(seen['grown'])} grew by one entry for each of {rows} rows",
            "It ends with all rows in memory, in each worker; workers lose what they keep as they end, "
            "after each epoch unless persistent_workers=True.",
            f"bound it (functools.lru_cache(maxsize=...)); or {KEPT}",
            "maybe",
        )
    if seen["files"] >= max(_LEAST_ROWS, _EACH * rows):
        yield Finding(
            "many-files",
            f"{rows} rows left {seen['files']} files open",
            "Once the limit of open files (ulimit -n) is reached, no file and no worker can be opened.",
            "open files by `with open(...)` in __getitem__, or once on first use in each worker",
            "maybe",
        )


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(path or "the row" for path in paths[:_MOST_NAMED]) + more
