"""Rows, made one after the other in this process -> values that are not finite, shared, or kept."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
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
_LEAST_ROWS, _EACH = 16, 0.9  # rows, and the share of them that leave something behind
_MOST_NAMED = 3
_CACHE = type(functools.lru_cache(len))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), datetime.date, datetime.timedelta)
_MASKS = ("mask", "bias")  # columns that are added before a softmax, which makes 0 of -inf


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
    sizes = _sizes(dataset)
    not_finite: dict[str, None] = {}
    kept: list[tuple[object, str | None]] = []
    ends, nbytes = time.monotonic() + min(seconds, _SECONDS), 0
    for row in rows_of(patient):
        first = digest(row)
        kept.append((row, first))
        for path, leaf in leaves(row):
            if not _is_finite(path, leaf):
                not_finite[path] = None
            nbytes += (
                sum(sizes_of(leaf)) if isinstance(leaf, torch.Tensor) else int(getattr(leaf, "nbytes", 0))
            )
        if time.monotonic() > ends or nbytes > _MOST_BYTES:
            break
    count = len(kept)
    grown = {path: size - sizes[path] for path, size in _sizes(dataset).items() if path in sizes}
    return {
        "rows": count,
        "changed": _alike_at_once(patient)
        if hasattr(dataset, "__getitems__") and patient.makes_batches
        else sum(first is not None and digest(row) != first for row, first in kept),
        "grown": [path for path, more in grown.items() if count >= _LEAST_ROWS and more >= _EACH * count],
        "alone": [] if patient.is_iterable else _alone(patient),
        "not finite": [*not_finite],
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


def _is_finite(path: str, leaf: object) -> bool:
    """False for values with a NaN or an infinity, except for -inf in a mask."""
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type != "cpu" or leaf.layout != torch.strided or not leaf.dtype.is_floating_point:
            return True
        leaf = leaf.detach().double().numpy()
    if not isinstance(leaf, (float, np.ndarray, np.floating)):
        return True
    values = np.asarray(leaf)
    if values.dtype.kind != "f":
        return True
    finite = np.isfinite(values)
    # A mask to be added may have any name, and is of 0 and -inf.
    is_mask = any(word in path.lower() for word in _MASKS) or (values.size > 1 and not values[finite].any())
    return bool((finite | (np.isneginf(values) if is_mask else False)).all())


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


def content_findings(seen: dict[str, Any], patient: Patient) -> Iterator[Finding]:
    """Findings about what the rows hold."""
    rows = seen["rows"]
    if seen["changed"]:
        yield Finding(
            "shared-buffer",
            f"{seen['changed']} of {rows} rows had other values once later rows were made",
            "They are one object, or share its memory: all rows of a batch hold what its last one does.",
            "return a copy from __getitem__ or __iter__: x.copy() of an array, x.clone() of a tensor",
            "wrong" if patient.makes_batches else "maybe",
        )
    if seen["not finite"]:
        yield Finding(
            "not-finite",
            f"{_named(seen['not finite'])}: NaN or infinite values in {rows} rows that were looked at",
            "One such value makes the loss, and then all weights, NaN.",
            "fill them (torch.nan_to_num in the transform), or leave these rows out (ref.where)",
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


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(path or "the row" for path in paths[:_MOST_NAMED]) + more
