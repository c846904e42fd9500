"""The order of rows in two epochs, and an epoch that does not reach the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler

from .diagnosis import Check, Finding, Seen
from .patient import Patient, numbers
from .rows import Digest, digest, rows_of
from .walk import walk

__all__ = ["ORDER", "STALE_EPOCH", "order_stands"]

_ORDERED, _FEWEST = 4096, 16  # rows
_ROWS, _EPOCHS = 16, (1, 2, 1)


def _drawn(patient: Patient, seconds: float) -> dict[str, bool]:
    """If rows come otherwise than they lie in the dataset ("shuffles"), and alike in two epochs ("same")."""
    loader = patient.loader
    first, second = (list(islice(numbers(loader), _ORDERED)) for _ in range(2))
    try:
        shuffles = first != sorted(first)
    except TypeError:
        shuffles = True
    is_list = isinstance(loader.sampler, Sequence) or isinstance(loader.batch_sampler, Sequence)
    was_set = any(_epochs_at(_sampler(loader)).values()) or patient.sets_epoch
    is_same = len(first) >= _FEWEST and first == second and not (is_list or was_set)
    return {"shuffles": shuffles, "same": is_same}


def _sampler(loader: Any) -> Any:
    """The sampler that decides the order: one of batches of the user's own, or the one within torch's."""
    outer = loader.batch_sampler
    if outer is None:
        return loader.sampler
    inner = getattr(outer, "sampler", None)
    is_set = hasattr(inner, "set_epoch") and not hasattr(outer, "set_epoch")
    return inner if type(outer) is BatchSampler or is_set else outer


def _epochs_at(sampler: Any) -> dict[str, int]:
    """The attributes that say which epoch a sampler is at."""
    kept = getattr(sampler, "__dict__", {})
    return {name: one for name, one in kept.items() if "epoch" in name and isinstance(one, int)}


def order_stands(loader: Any) -> str:
    """What decides the order of an epoch that begins now, alike for epochs that are alike; "" if unknown."""
    sampler = _sampler(loader)
    if hasattr(sampler, "set_epoch"):
        return ", ".join(f"{name} is {epoch}" for name, epoch in _epochs_at(sampler).items())
    generator = getattr(sampler, "generator", None) or loader.generator or torch.default_generator
    return f"{digest(generator.get_state())}"


def _judged_order(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding]:
    sampler, starts = _sampler(patient.loader), patient.starts
    has_epoch = hasattr(sampler, "set_epoch")
    began_alike = len(starts) > 1 and len(set(starts)) == 1 and bool(starts[0])
    # How an epoch began says more than how two are drawn.
    if facts["shuffles"] and (began_alike or (facts["same"] and not (has_epoch and starts))):
        said = f"{type(sampler).__name__} gives the same shuffled order in two epochs"
        if began_alike and not has_epoch:
            said = f"its generator stood at the same place as each of {len(starts)} iterations began"
        elif has_epoch:
            said += ", unless set_epoch is called between them"
            said += f": {starts[0]}, as each of {len(starts)} iterations began" if began_alike else ""
        yield Finding(
            "same-order",
            said,
            "Batches hold the same rows in each epoch: shuffling does less than it seems to.",
            "sampler.set_epoch(epoch) before each epoch; yoga.DataLoader counts them by itself"
            if has_epoch
            else "call torch.manual_seed once, before the first epoch"
            if began_alike
            else "keep the sampler's generator over its epochs, or seed it by the epoch",
            "maybe",
        )


def _has_order(patient: Patient) -> bool:
    return not (patient.is_ours or patient.is_iterable or patient.is_evaluation)


ORDER = Check("order", _has_order, _drawn, _judged_order)


def _unreached(patient: Patient, seconds: float) -> str | None:
    """The path of what was given an epoch that a persistent worker's rows do not show."""
    keys = [] if patient.is_iterable else patient.keys(_ROWS)
    for path, held, is_ours in walk(patient.dataset):
        set_epoch: Any = getattr(held, "set_epoch", None)
        if is_ours or isinstance(held, Sampler) or not callable(set_epoch):
            continue
        here, there = [], []
        probe = patient.probe(Digest(), keys, 1)
        for epoch in _EPOCHS:
            set_epoch(epoch)
            there.append([*islice(probe, _ROWS)])
        for epoch in _EPOCHS:
            set_epoch(epoch)
            here.append([digest([row]) for row in rows_of(patient, _ROWS)])
        is_known = None not in here[0] and here[0] == here[2] != here[1]
        if is_known and there[0] and there[0] == there[1] == there[2]:
            return path
    return None


def _judged_epoch(patient: Patient, path: str | None, seen: Seen) -> Iterator[Finding]:
    if path is not None:
        yield Finding(
            "stale-epoch",
            f"{path}.set_epoch changes rows that are made in this process; those of a persistent worker "
            "were equal in two epochs",
            "Persistent workers keep the copy of the dataset they started with: each epoch is the first.",
            "persistent_workers=False; or keep the epoch where workers see it: "
            "torch.zeros((), dtype=torch.int64).share_memory_()",
            "wrong",
        )


STALE_EPOCH = Check(
    "set_epoch", lambda patient: patient.loader.persistent_workers, _unreached, _judged_epoch, in_workers=True
)
