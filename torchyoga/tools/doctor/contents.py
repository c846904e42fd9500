"""What rows hold, what making them leaves behind, and stored values that it changes."""

from __future__ import annotations

import functools
import random
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..meter_advice import KEPT
from .diagnosis import Check, Finding, Seen
from .patient import Patient, digest, is_dense, leaves, made, rows_of, seed_all
from .walk import walk

_MOST_ROWS, _MOST_SEEN, _SECONDS, _ENOUGH = 48, 4096, 1.0, 64 * 2**20
_LEAST_ROWS, _EACH = 16, 0.9  # rows, and the share of them that leave something behind
_MOST_NAMED = 3
_MUCH = 100_000  # results of a cache, which is as good as one without a bound
_CACHE = type(functools.lru_cache(len))
_MASKS = ("mask", "bias")  # columns that are added before a softmax, which makes 0 of -inf


def _values(patient: Patient, seconds: float) -> dict[str, Any]:
    """Facts about some rows, made one after the other and kept; "each" has the seconds of one."""
    dataset = patient.dataset
    for _, value, _ in walk(dataset, with_globals=True):
        if isinstance(value, _CACHE):
            value.cache_clear()  # which training may have filled
    sizes, not_finite = _sizes(dataset), dict[str, None]()
    kept: list[tuple[object, str | None]] = []
    most, nbytes = min(seconds / 4, _SECONDS), 0
    ends = time.monotonic() + most
    made_in, began = 0.0, time.monotonic()
    for row in rows_of(patient, _MOST_ROWS):
        made_in += time.monotonic() - began
        kept.append((row, digest(row)))
        parts = [leaf for _, leaf in leaves(row)]
        nbytes += sum(leaf.nbytes for leaf in parts if isinstance(leaf, np.ndarray) or is_dense(leaf))
        if time.monotonic() > ends or nbytes > _ENOUGH:
            break
        began = time.monotonic()
    count, loader, seen = len(kept), patient.loader, 0
    is_batch = not patient.is_alone and loader.batch_size != 1 and loader.batch_sampler is not None
    grown = [path for path, size in _sizes(dataset).items() if size - sizes.get(path, size) >= _EACH * count]
    changed = sum(first is not None and digest(row) != first for row, first in kept)
    for row in rows_of(patient, _MOST_SEEN):  # more of them, which are not kept; some are made again
        seen += 1
        not_finite |= dict.fromkeys(path for path, leaf in leaves(row) if not is_finite(path, leaf))
        if time.monotonic() > ends + most:
            break
    if hasattr(dataset, "__getitems__") and is_batch:
        changed = _alike_at_once(patient)
    return {
        "rows": count,
        "seen": seen,
        "each": made_in / max(1, count),
        "bytes": nbytes // max(1, count),
        "changed": changed,
        "in batches": is_batch,
        "grown": grown if count >= _LEAST_ROWS else [],
        "not finite": [*not_finite],
    }


def _alike_at_once(patient: Patient) -> int:
    """How many rows of one call of `__getitems__` are equal, though each one that is made alone differs."""
    keys = patient.keys(2)
    first, second = ([digest([made(patient.dataset, key)]) for key in keys] for _ in range(2))
    if first != second or None in first or len(set(first)) < 2:
        return 0
    together = [digest([row]) for row in patient.dataset.__getitems__(keys)]
    return len(together) if len(set(together)) == 1 else 0


def is_finite(path: str, leaf: object) -> bool:
    """False for values with a NaN or an infinity, except for -inf in a mask."""
    if is_dense(leaf) and leaf.dtype.is_floating_point:
        leaf = leaf.detach().double().numpy()
    if not isinstance(leaf, (float, np.ndarray, np.floating)) or np.asarray(leaf).dtype.kind != "f":
        return True
    values = np.asarray(leaf)
    finite = np.isfinite(values)
    # A mask to be added may have any name, and is of 0 and -inf.
    is_mask = any(word in path.lower() for word in _MASKS) or (values.size > 1 and not values[finite].any())
    return bool((finite | (np.isneginf(values) if is_mask else False)).all())


def _sizes(dataset: object) -> dict[str, int]:
    """The length of each container without a bound, and of each cache of results (functools.lru_cache)."""
    sizes = {}
    for path, value, is_ours in walk(dataset, with_globals=True):
        is_bounded = getattr(value, "maxlen", None) is not None
        if isinstance(value, (list, dict, set, deque)) and not is_ours and not is_bounded:
            sizes[path] = len(value)
        elif isinstance(value, _CACHE) and (value.cache_info().maxsize or _MUCH) >= _MUCH:
            sizes[path] = value.cache_info().currsize
    return sizes


def _judged_values(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding]:
    rows = facts["rows"]
    if facts["changed"]:
        yield Finding(
            "shared-buffer",
            f"{facts['changed']} of {rows} rows had other values once later rows were made",
            "They are one object, or share its memory: all rows of a batch hold what its last one does.",
            "return a copy from __getitem__ or __iter__: x.copy() of an array, x.clone() of a tensor",
            "wrong" if facts["in batches"] else "maybe",
        )
    change = "fill them (torch.nan_to_num in the transform), or leave these rows out (ref.where)"
    yield from not_finite(facts["not finite"], f"{facts['seen']:,} rows that were seen", change)
    if facts["grown"]:
        yield Finding(
            "growing-memory",
            f"{_named(facts['grown'])} grew by one entry for each of {rows} rows",
            "It ends with all rows in memory, in each worker; workers lose what they keep as they end, "
            "after each epoch unless persistent_workers=True.",
            f"bound it (functools.lru_cache(maxsize=...)); or {KEPT}",
            "maybe",
        )


def not_finite(paths: list[str], where: str, change: str) -> Iterator[Finding]:
    """A finding if some parts of rows, or of batches, are not finite."""
    if paths:
        yield Finding(
            "not-finite",
            f"{_named(paths)}: NaN or infinite values in {where}",
            "One such value makes the loss, and then all weights, NaN.",
            change,
            "maybe",
        )


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(path or "the row" for path in paths[:_MOST_NAMED]) + more


VALUES = Check("rows", lambda patient: True, _values, _judged_values)


_ROWS, _AGAIN = 2, 8  # rows that are made again at least; so many show what half of them change
_OWN = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_MOST_BYTES = 16 * 2**20  # of an array that is compared as a whole


def _changed(patient: Patient, seconds: float) -> dict[str, Any] | None:
    """The array that making rows has changed; None if there is none. It must be the first to make rows here.

    Returns:
        "path" of the array or tensor ("" if it was not found), "is_given" if a row that was given shares its
        memory, "is_proved" if nothing else can have changed that row, "is_shared" if all workers share it.
    """
    held = [
        (path, one)
        for path, one, is_ours in walk(patient.dataset, with_globals=True)
        if not is_ours and (is_dense(one) or isinstance(one, np.ndarray)) and one.nbytes
    ]
    small = [(path, one) for path, one in held if one.nbytes <= _MOST_BYTES]
    first, ends = list[tuple[object, str | None]](), time.monotonic() + min(seconds / 8, _SECONDS)
    for row in _made(patient, _AGAIN):
        first.append((row, digest(row)))
        if len(first) >= _ROWS and time.monotonic() > ends:
            break
    count = len(first)
    if any(digest(row) != was for row, was in first):
        return None  # one buffer for all rows: another finding
    before = [digest(one) for _, one in small]
    second = [digest(row) for row in _made(patient, count)]
    given = [row for row, was in first if digest(row) != was]
    # A generator of the dataset's own was not put back: it may make the row another one.
    has_own = any(isinstance(one, _OWN) for _, one, _ in walk(patient.dataset))
    if given:
        paths = [pair for pair in held if any(_overlap(pair[1], leaf) for _, leaf in leaves(given[0]))]
    else:
        # A row that is made of what changes, and is a copy: as many of them as there are rows.
        # Another one may be in its place, as in buffers of rows that are drawn.
        later = () if has_own or patient.is_iterable else walk(patient.dataset, with_globals=True)
        now = {path: value for path, value, _ in later if path.endswith("]")}
        pairs = zip(small, before, strict=True)
        paths = [
            (path, one)
            for (path, one), was in pairs
            if _is_of_rows(path, one) and digest(now.get(path, one)) != was
        ]
        if not paths or second == [digest(row) for row in _made(patient, count)]:
            return None
    path, one = paths[0] if paths else ("", None)
    is_shared = isinstance(one, torch.Tensor) and one.untyped_storage().is_shared()
    return {
        "path": path,
        "is_given": bool(given),
        "is_proved": bool(given and paths) and not has_own,
        "is_shared": is_shared or patient.start_method != "fork",
    }


def _made(patient: Patient, count: int) -> Iterator[object]:
    """The first so many of some rows, made with the same random numbers each time."""
    seed_all(0)
    return islice(rows_of(patient, _AGAIN), count)


def _span(one: Any) -> tuple[int, int]:
    """The addresses at which the memory of an array or tensor begins and ends."""
    if isinstance(one, np.ndarray):
        start, end = getattr(np.lib, "array_utils", np).byte_bounds(one)  # as NumPy 2 and 1 have it
        return int(start), int(end)
    start = one.untyped_storage().data_ptr()
    return start, start + one.untyped_storage().nbytes()


def _overlap(held: Any, leaf: object) -> bool:
    if not isinstance(leaf, np.ndarray) and not is_dense(leaf):
        return False
    (start, end), (first, last) = _span(held), _span(leaf)
    return max(start, first) < min(end, last)


def _is_of_rows(path: str, held: Any) -> bool:
    """True for one of several arrays, or one of several rows: statistics are smaller."""
    return path.endswith("]") or (held.ndim > 0 and len(held) > _ROWS)


def _judged_in_place(patient: Patient, facts: dict[str, Any] | None, seen: Seen) -> Iterator[Finding]:
    if facts is None:
        return
    lives = not patient.num_workers or facts["is_shared"] or patient.loader.persistent_workers
    yield Finding(
        "changed-in-place",
        (f"{facts['path']} was changed as rows were made of it: " if facts["path"] else "")
        + "made again with the same random numbers, a row had other values"
        + (", and so had the one that was made before" if facts["is_given"] else ""),
        "Each epoch gets rows that the epochs before it have changed, such as scaled once more."
        if lives
        else "A row that a worker makes twice in an epoch differs; persistent workers make it worse.",
        "copy before changing: x = x.clone() or x.copy(), or x = x / 255 in place of x /= 255",
        "wrong" if lives and facts["is_proved"] and not patient.is_alone else "maybe",
    )


IN_PLACE = Check("rows made again", lambda patient: True, _changed, _judged_in_place)
