"""Random numbers that rows are made with, in two real workers and two epochs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ...process.seeding import GeneratorsPutBack
from ...sampling.seeding import draws_random_numbers
from .diagnosis import Finding
from .patient import Patient, made
from .walk import walk

__all__ = ["drawn", "may_draw", "same_numbers"]

_ROWS, _EPOCHS = 8, 2
_WORKERS = 2
_SHARED = ("random", "numpy.random", "torch")
Record = dict[str, Any]


def may_draw(patient: Patient) -> str | None:
    """None if rows may be made with random numbers in workers, else why they are not looked at."""
    if patient.num_workers == 0:
        return "the loader has no workers"
    return None if draws_random_numbers(patient.dataset) else "its rows draw no random numbers"


def drawn(patient: Patient) -> list[list[Record]]:
    """For each epoch: which worker made some rows, and the generators before and after it did."""
    wanted = min(_WORKERS, patient.num_workers or _WORKERS)
    more: dict[str, Any] = {"collate_fn": _itself}
    if patient.loader is not None:
        more["persistent_workers"] = patient.loader.persistent_workers
    if patient.is_iterable:
        loader = patient.like(wanted, _DrawnStream(patient.dataset), None, **more)
    else:
        rows = _DrawnRows(patient.dataset)
        if not patient.is_ours:
            more["sampler"] = range(len(rows))
        loader = patient.like(wanted, rows, 1, **more)
    return [[_only(batch) for batch in loader] for _ in range(_EPOCHS)]


def same_numbers(epochs: list[list[Record]]) -> list[Finding]:
    """Findings, one for each generator that gave the same numbers to two workers or in both epochs."""
    first, second = ({one["worker"]: one for one in reversed(epoch)} for epoch in epochs)
    found = []
    for name in sorted({name for epoch in epochs for one in epoch for name in one["used"]}):
        workers = [one for one in first.values() if name in one["used"]]
        differ = len(workers) > 1 and workers[0]["row"] != workers[1]["row"]
        among = differ and _is_same(workers[0], workers[1], name)
        again = any(
            name in one["used"]
            and name
            not in one["own"]  # a row that seeds itself is the same in each epoch, as it is meant to be
            and worker in second
            and name in second[worker]["used"]
            and _is_same(one, second[worker], name)
            for worker, one in first.items()
        )
        if among or again:
            found.append(_finding(name, among, again))
    return found


def _is_same(one: Record, other: Record, name: str) -> bool:
    whens = ("after",) if name in one["own"] else ("before", "after")
    return any(bool(one[when].get(name) == other[when].get(name)) for when in whens)


def _finding(name: str, among: bool, again: bool) -> Finding:
    where = " and ".join(["in two workers"] * among + ["in two epochs"] * again)
    is_own = name.startswith("dataset")
    held = name.replace("dataset", "get_worker_info().dataset", 1)
    change = (
        f"in worker_init_fn, make {held} anew from torch.initial_seed()"
        if is_own
        else "leave seeding out of worker_init_fn and __getitem__; yoga.DataLoader seeds each row"
    )
    return Finding(
        "same-random-numbers",
        f"rows drew from {name}, which stood at the same place {where}",
        "Different rows are augmented alike"
        + (", and each epoch repeats the one before" if again else "")
        + ": there is less variety than there seems to be.",
        change,
        "wrong",
    )


class _DrawnRows(Dataset[Record]):
    """In place of a dataset: makes its rows, and gives what they did to the generators."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return min(_ROWS, len(self.dataset))

    def __getitem__(self, row: int) -> Record:
        before = _states(self.dataset)
        made(self.dataset, row)
        after = _states(self.dataset)
        return {**_record(row, before, after), "own": self._own(row, after)}

    def _own(self, row: int, after: dict[str, str]) -> list[str]:
        """The generators that a row seeds by itself: they stand as before, wherever they stood."""
        with GeneratorsPutBack():
            random.seed(row + 1)
            np.random.seed(row + 1)
            torch.manual_seed(row + 1)
            moved = _states(self.dataset)
            made(self.dataset, row)
            again = _states(self.dataset)
        return [name for name in _SHARED if again[name] == after[name] != moved[name]]


class _DrawnStream(IterableDataset[Record]):
    """The same for a dataset without row numbers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Record]:
        before = _states(self.dataset)
        rows = iter(self.dataset)
        for number in range(_ROWS):
            if next(rows, None) is None:
                return
            # Streams of two workers may be of the same rows; what they draw is not to be.
            yield _record((_worker(), number), before, after := _states(self.dataset))
            before = after


def _record(row: object, before: dict[str, str], after: dict[str, str]) -> Record:
    used = [name for name, state in after.items() if before.get(name) != state]
    return {"worker": _worker(), "row": row, "before": before, "after": after, "used": used, "own": []}


def _worker() -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


def _states(dataset: object) -> dict[str, str]:
    """Where the generators that all code shares stand, and those that the dataset holds."""
    found: dict[str, object] = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    for path, value, is_ours in walk(dataset):
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
    return {name: _digest(state) for name, state in found.items()}


def _digest(state: object) -> str:
    digest = hashlib.blake2b(digest_size=8)

    def add(part: object) -> None:
        if isinstance(part, dict):
            part = [*part.items()]
        if isinstance(part, torch.Tensor):
            part = part.numpy()
        if isinstance(part, np.ndarray):
            digest.update(part.tobytes())
        elif isinstance(part, (list, tuple)) and len(part) < 16:
            for one in part:
                add(one)
        else:
            digest.update(repr(part).encode())

    add(state)
    return digest.hexdigest()


def _itself(batch: Any) -> Any:
    return batch


def _only(batch: Any) -> Record:
    found: Record = batch[0] if isinstance(batch, list) else batch
    return found
