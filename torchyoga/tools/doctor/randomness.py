"""Rows that two real workers make in two epochs: their random numbers, and streams that are not split.

In both workers, and in both epochs, the same two rows are made, each twice.
A row that differs from itself in one worker is random. If both workers, or both epochs, then have the same
numbers, they are equal and should differ, which proves it; where the generators stood says which one it was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ...process.seeding import GeneratorsPutBack
from ...sampling.seeding import draws_random_numbers
from .contents import digest, leaves
from .diagnosis import Finding
from .patient import Patient, made
from .walk import walk

__all__ = ["drawn", "foreign_rows", "may_draw", "rows_twice", "same_numbers"]

_TIMES, _STREAMED, _EPOCHS, _WORKERS = 2, 16, 2, 2
_LEAST = 4  # rows of a stream
_EPOCH_SECONDS, _AT_ONCE = 1.0, 64  # of an epoch that is run; rows that are sent at once
_SHARED = ("random", "numpy.random", "torch")
Record = dict[str, Any]


def may_draw(patient: Patient) -> str | None:
    """None if rows may be made with random numbers in workers, else why they are not looked at."""
    if patient.num_workers == 0:
        return "the loader has no workers"
    return None if draws_random_numbers(patient.dataset) else "its rows draw no random numbers"


def drawn(patient: Patient) -> dict[str, Any]:
    """For each epoch: which worker made which rows, and where the generators stood before and after."""
    workers = min(_WORKERS, patient.num_workers or _WORKERS)
    # Batches go to the workers in turn, so that each row reaches each of them.
    keys = [] if patient.is_iterable else [key for key in patient.keys(2) for _ in range(workers * _TIMES)]
    begin = _Begin(None if patient.loader is None else patient.loader.worker_init_fn)
    spied = patient.probe(_Spy(), keys, workers, worker_init_fn=begin)
    count = workers * _STREAMED if patient.is_iterable else len(keys)
    epochs = [[record for _, record in zip(range(count), spied, strict=False)] for _ in range(_EPOCHS)]
    alike = [] if patient.is_iterable else _seeded_alike(patient)
    whole = patient.is_iterable and any(rows_twice({"epochs": epochs, "stream": True, "whole": False}))
    whole = whole and _each_gives_all(patient, workers)
    return {
        "epochs": epochs,
        "whole": whole,
        "alike": alike,
        "stream": patient.is_iterable,
        "ours": patient.is_ours,
    }


def _each_gives_all(patient: Patient, workers: int) -> bool:
    """True if an epoch was run to its end, in a short time, and each worker gave all rows of it."""
    given: list[set[str | None]] = [set() for _ in range(workers)]
    ends = time.monotonic() + _EPOCH_SECONDS
    for worker, rows in patient.probe(_Digests(), [], workers, batch_size=_AT_ONCE):
        given[worker] |= set(rows)
        if time.monotonic() > ends:
            return False
    return bool(given[0]) and None not in given[0] and all(one == given[0] for one in given)


class _Digests:
    """A `collate_fn` that gives digests of rows, and the worker."""

    def __call__(self, batch: list[Any]) -> tuple[int, list[str | None]]:
        info = get_worker_info()
        assert info is not None
        return info.id, [digest([row]) for row in batch]


class _Begin:
    """A `worker_init_fn` that notes where the generators stand after the user's."""

    def __init__(self, user: Any) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        if self._user is not None:
            self._user(worker)
        _STOOD.clear()
        info = get_worker_info()
        _STOOD.update(_states(None if info is None else info.dataset))


_STOOD: dict[str, str | None] = {}  # where the generators of this worker stood last


class _Spy:
    """A `collate_fn` that gives what making a row did."""

    def __call__(self, batch: Any) -> Record:
        rows = batch if isinstance(batch, list) and len(batch) == 1 else [batch]
        info = get_worker_info()
        assert info is not None
        before, after = dict(_STOOD), _states(info.dataset)
        _STOOD.update(after)
        used = [name for name, state in after.items() if before.get(name) != state]
        parts = {path: digest(leaf) for path, leaf in leaves(rows[0])}
        whole = None if None in parts.values() else digest(rows)
        return {
            "worker": info.id,
            "row": whole,
            "parts": parts,
            "used": used,
            "before": before,
            "after": after,
        }


def _of(epoch: list[Record], worker: int) -> list[Record]:
    return [one for one in epoch if one["worker"] == worker]


def same_numbers(seen: dict[str, Any], is_evaluation: bool = False) -> list[Finding]:
    """A finding for each generator that gave the same numbers to two workers or in both epochs.

    Rows of an evaluation should be alike in each epoch, so that these are not compared.
    """
    (first, second), stream = seen["epochs"], seen["stream"]
    one, other, later = _of(first, 0), _of(first, 1), _of(second, 0)
    if is_evaluation:
        later = []
    if stream:  # what is drawn before the first row may well be the same: an order that workers share
        one, other, later = one[1:], other[1:], later[1:]
    twice = [*zip(one[::2], one[1::2], strict=False)]  # the same row
    is_random = stream or any(a["row"] is None or a["row"] != b["row"] for a, b in twice)
    if not one or not is_random:
        return [_alike(name) for name in seen["alike"] if not seen["ours"]]
    names = sorted({name for record in one for name in record["used"]})
    if not stream:  # where each row seeds by itself, the same row is to be the same
        names = [name for name in names if any(a["after"][name] != b["after"].get(name) for a, b in twice)]
    if seen["ours"]:  # its loader seeds these for each row
        names = [name for name in names if name not in _SHARED]
    findings = []
    for name in names:
        among, again = _stood_alike(one, other, name), _stood_alike(one, later, name)
        if among or again:
            equal = among and _is_equal(one, other), again and _is_equal(one, later)
            findings.append(_finding(name, among, again, not stream and any(equal)))
    if not findings and not stream and not seen["ours"] and (_is_equal(one, other) or _is_equal(one, later)):
        name = "a generator that was not found"
        return [_finding(name, _is_equal(one, other), _is_equal(one, later), True)]
    return findings


def _stood_alike(some: list[Record], others: list[Record], name: str) -> bool:
    pairs = [(a, b) for a, b in zip(some, others, strict=False) if name in a["used"]]
    return bool(pairs) and all(a["before"].get(name) == b["before"].get(name) for a, b in pairs)


def _is_equal(some: list[Record], others: list[Record]) -> bool:
    """True if the rows are known and the same, one after the other."""
    rows = [(a["row"], b["row"]) for a, b in zip(some, others, strict=False)]
    return bool(rows) and all(a is not None and a == b for a, b in rows)


def _finding(name: str, among: bool, again: bool, is_proved: bool) -> Finding:
    where = " and ".join(["in two workers"] * among + ["in two epochs"] * again)
    held = name.replace("dataset", "get_worker_info().dataset", 1)
    change = (
        f"in worker_init_fn, make {held} again from torch.initial_seed()"
        if name not in _SHARED
        else "leave seeding out of worker_init_fn and __getitem__; yoga.DataLoader seeds each row"
    )
    return Finding(
        "same-random-numbers",
        f"rows drew from {name}, which stood at the same place {where}"
        + ("; the rows are equal, and differ from themselves if they are made again" if is_proved else ""),
        "Different rows are augmented alike"
        + (", and each epoch repeats the one before" if again else "")
        + ": there is less variety than there seems to be.",
        change,
        "wrong" if is_proved else "maybe",
    )


def _alike(name: str) -> Finding:
    return Finding(
        "same-random-numbers",
        f"two rows seeded {name} with the same number: it stood at the same place after each",
        "Different rows are augmented alike, and so are all that draw from it later.",
        "leave seeding out of __getitem__, or seed by the row and the epoch; yoga.DataLoader seeds each row",
        "maybe",
    )


def _seeded_alike(patient: Patient) -> list[str]:
    """Shared generators that stand at the same place after two rows, wherever they stood before."""
    after = []
    with GeneratorsPutBack():
        for number, row in enumerate(patient.keys(2)):
            random.seed(number + 1)
            np.random.seed(number + 1)
            torch.manual_seed(number + 1)
            made(patient.dataset, row)
            after.append(_states(None))
    if len(after) < 2:
        return []
    return [name for name in _SHARED if after[0][name] == after[1][name]]


def rows_twice(seen: dict[str, Any]) -> Iterator[Finding]:
    """A finding if two workers gave the same rows of a stream."""
    if not seen["stream"]:
        return
    one, other = (_of(seen["epochs"][0], worker) for worker in (0, 1))
    count = min(len(one), len(other))
    if count < _LEAST:
        return
    one, other = one[:count], other[:count]
    is_proved = _is_equal(one, other) and len({record["row"] for record in one}) > count / 2
    columns = [path for path in one[0]["parts"] if _is_same_column(one, other, path)]
    if not is_proved and not columns:
        return
    what = "rows" if is_proved else f"values of {columns[0]}"
    yield Finding(
        "rows-twice",
        f"two workers gave the same {what}, for each of their first {count} rows"
        + (", and then all others of an epoch" if seen["whole"] else ""),
        "If each worker gives the whole stream, an epoch has all rows as often as there are workers.",
        "in __iter__, take every n-th row: get_worker_info() has the worker's id and num_workers",
        "wrong" if seen["whole"] else "maybe",
    )


def _is_same_column(one: list[Record], other: list[Record], path: str) -> bool:
    """True if a column has the same values in both, none of them twice."""
    pairs = [(a["parts"].get(path), b["parts"].get(path)) for a, b in zip(one, other, strict=True)]
    return all(a is not None and a == b for a, b in pairs) and len(set(pairs)) == len(pairs)


def foreign_rows(seen: dict[str, Any], alone: list[str | None]) -> int:
    """How many rows workers made now so, now so, which this process makes alike each time."""
    if seen["stream"] or not alone:
        return 0
    workers = {record["worker"] for record in seen["epochs"][0]}
    wrong = 0
    for worker in workers:
        mine = _of(seen["epochs"][0], worker)
        for number, expected in enumerate(alone):
            some = mine[number * _TIMES : (number + 1) * _TIMES]
            rows = [one["row"] for one in some]
            # Where they are alike, it may be that they are to differ from worker to worker.
            if expected is not None and None not in rows and len(set(rows)) > 1:
                wrong += sum(row != expected for row in rows)
    return wrong


def _states(dataset: object) -> dict[str, str | None]:
    """Where the generators that all code shares stand, and those that the dataset holds or names."""
    legacy: Any = np.random.get_state()
    found: dict[str, object] = {
        "random": random.getstate(),
        "numpy.random": legacy,
        "torch": torch.get_rng_state(),
    }
    for path, value, is_ours in walk(dataset, with_globals=True) if dataset is not None else ():
        if is_ours:
            continue
        if isinstance(value, np.random.Generator):
            found[path] = value.bit_generator.state
        elif isinstance(value, np.random.RandomState):
            found[path] = value.get_state()
        elif isinstance(value, random.Random):
            found[path] = value.getstate()
        elif isinstance(value, torch.Generator):
            found[path] = value.get_state()
    return {name: digest(state) for name, state in found.items()}
