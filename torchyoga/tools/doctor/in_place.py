"""Stored values that making a row changes: two rows are made twice, with the same random numbers.

Rows that share memory with the dataset, and hold other values afterwards, prove it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...process.seeding import GeneratorsPutBack
from .contents import digest, leaves, row_of
from .diagnosis import Finding
from .patient import Patient
from .walk import walk

__all__ = ["changed_in_place", "in_place"]

_ROWS = 2
_OWN = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_MOST_BYTES = 16 * 2**20  # of an array that is compared as a whole


def changed_in_place(patient: Patient) -> dict[str, Any] | None:
    """What making rows has changed; None if nothing. In a trial, before anything else makes rows there.

    Returns:
        "path" of the array or tensor ("" if it was not found), "is_given" if a row that was given shares its
        memory, "is_proved" if nothing else can have changed that row, "is_shared" if all workers share it.
    """
    held = [(path, one) for path, one in _arrays(patient.dataset) if one.nbytes]
    small = [(path, one) for path, one in held if one.nbytes <= _MOST_BYTES]
    first = [(row, digest(row)) for row in _made(patient)]
    if any(digest(row) != was for row, was in first):
        return None  # one buffer for all rows: another finding
    before = [digest(one) for _, one in small]
    second = [digest(row) for row in _made(patient)]
    given = [row for row, was in first if digest(row) != was]
    if given:
        paths = [
            (path, one) for path, one in held if any(_overlap(one, leaf) for _, leaf in leaves(given[0]))
        ]
    else:
        # A row that is made of what changes, and is a copy: as many of them as there are rows.
        paths = [
            pair
            for pair, was in zip(small, before, strict=True)
            if digest(pair[1]) != was and _is_of_rows(*pair)
        ]
        third = [digest(row) for row in _made(patient)] if paths else second
        if all(a == b for a, b in zip(second, third, strict=True)):
            return None
    path, one = paths[0] if paths else ("", None)
    is_shared = isinstance(one, torch.Tensor) and (_is_shared(one) or patient.start_method != "fork")
    # A generator of the dataset's own was not put back: it may make the row another one.
    is_proved = bool(given and paths) and not any(
        isinstance(one, _OWN) for _, one, _ in walk(patient.dataset)
    )
    return {"path": path, "is_given": bool(given), "is_proved": is_proved, "is_shared": is_shared}


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _made(patient: Patient) -> Iterator[object]:
    """Some rows, made with the same random numbers each time."""
    with GeneratorsPutBack():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        if patient.is_iterable:
            yield from islice(iter(patient.dataset), _ROWS)
        else:
            for key in patient.keys(_ROWS):
                yield row_of(patient.dataset, key)


def _arrays(dataset: object) -> Iterator[tuple[str, Any]]:
    for path, value, is_ours in walk(dataset, with_globals=True):
        is_here = (
            isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided
        )
        if not is_ours and (is_here or isinstance(value, np.ndarray)):
            yield path, value


def _span(one: Any) -> tuple[int, int]:
    """Where the memory of an array or tensor begins and ends."""
    if isinstance(one, np.ndarray):
        start, end = getattr(np.lib, "array_utils", np).byte_bounds(one)  # as NumPy 2 and 1 have it
        return int(start), int(end)
    start = one.untyped_storage().data_ptr()
    return start, start + one.untyped_storage().nbytes()


def _overlap(held: Any, leaf: object) -> bool:
    if not isinstance(leaf, (np.ndarray, torch.Tensor)):
        return False
    (start, end), (first, last) = _span(held), _span(leaf)
    return max(start, first) < min(end, last)


def _is_of_rows(path: str, held: Any) -> bool:
    """True for one of several arrays, or one of several rows: statistics are smaller."""
    return path.endswith("]") or (held.ndim > 0 and len(held) > _ROWS)


def in_place(seen: dict[str, Any] | None, patient: Patient) -> Iterator[Finding]:
    """A finding about what `changed_in_place` has found."""
    if not seen:
        return
    workers = patient.num_workers or 0
    lives = (
        not workers or seen["is_shared"] or (patient.loader is not None and patient.loader.persistent_workers)
    )
    yield Finding(
        "changed-in-place",
        (f"{seen['path']} was changed as rows were made of it: " if seen["path"] else "")
        + "made again with the same random numbers, a row had other values"
        + (", and so had the one that was made before" if seen["is_given"] else ""),
        "Each epoch gets rows that the epochs before it have changed, such as scaled once more."
        if lives
        else "A row that a worker makes twice in an epoch differs; persistent workers make it worse.",
        "copy before changing: x = x.clone() or x.copy(), or x = x / 255 in place of x /= 255",
        "wrong" if lives and seen["is_proved"] and patient.loader is not None else "maybe",
    )
