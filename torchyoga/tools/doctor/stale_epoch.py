"""`set_epoch` of a dataset whose persistent workers keep copies of it: they never hear of the epoch.

Rows are made in this process and in a worker that persists, in two epochs. If the epoch changes them here and
not there, the worker's are equal and should differ, which proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import Sampler

from .contents import digest, row_of
from .diagnosis import Finding
from .patient import Patient
from .walk import walk

__all__ = ["stale_epoch", "unreached"]

_ROWS, _EPOCHS = 16, (1, 2)


def unreached(patient: Patient) -> str | None:
    """The path of what was given an epoch that a persistent worker's rows do not show. In a trial."""
    loader = patient.loader
    if loader is None or not loader.num_workers or not loader.persistent_workers:
        return None
    keys = [] if patient.is_iterable else patient.keys(_ROWS)
    for path, held, is_ours in walk(patient.dataset):
        set_epoch: Any = getattr(held, "set_epoch", None)
        if is_ours or isinstance(held, Sampler) or not callable(set_epoch):
            continue
        here, there = [], []
        probe = patient.probe(_Digest(), keys, 1, persistent_workers=True)
        for epoch in (*_EPOCHS, _EPOCHS[0]):
            set_epoch(epoch)
            there.append([*islice(probe, _ROWS)])
        for epoch in (*_EPOCHS, _EPOCHS[0]):
            set_epoch(epoch)
            here.append([digest([row]) for row in _made(patient, keys)])
        is_known = None not in here[0] and here[0] == here[2] != here[1]
        if is_known and there[0] and there[0] == there[1] == there[2]:
            return path
    return None


def _made(patient: Patient, keys: list[Any]) -> Iterator[object]:
    if patient.is_iterable:
        return islice(iter(patient.dataset), _ROWS)
    return (row_of(patient.dataset, key) for key in keys)


class _Digest:
    """A `collate_fn` that gives the digest of a row."""

    def __call__(self, batch: Any) -> str | None:
        return digest(batch if isinstance(batch, list) else [batch])


def stale_epoch(path: str | None) -> Iterator[Finding]:
    """A finding about what `unreached` has found."""
    if path is None:
        return
    yield Finding(
        "stale-epoch",
        f"{path}.set_epoch changes rows that are made in this process; those of a persistent worker were "
        "equal in two epochs",
        "Persistent workers keep the copy of the dataset that they started with: each epoch is the first.",
        "persistent_workers=False; or keep the epoch where workers see it: torch.zeros((), dtype=torch.int64)"
        ".share_memory_()",
        "wrong",
    )
