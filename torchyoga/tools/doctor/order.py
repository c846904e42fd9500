"""The order of rows that a loader's sampler gives, in two epochs, and the rows that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from ...loading.loader import DataLoader
from .diagnosis import Finding
from .patient import Patient, numbers

__all__ = ["order", "order_findings"]

_MOST, _LEAST = 4096, 16  # rows


def order(patient: Patient) -> dict[str, Any]:
    """Facts about two epochs of the sampler. It draws from the loader's generators, so call it in a trial.

    Returns:
        "in_order" if rows come as they lie in the dataset, "same" if both epochs have one order that is
        another one, "batches": 0 for none, "dropped" rows.
    """
    loader = patient.loader
    if loader is None or patient.is_iterable:
        return {"in_order": True, "same": False, "batches": None, "dropped": 0}
    if isinstance(loader, DataLoader):
        shuffles = bool(getattr(loader.sampler, "shuffle", True))
        return {"in_order": not shuffles, "same": False, "batches": len(loader), "dropped": 0}
    first, second = (list(islice(numbers(loader), _MOST)) for _ in range(2))
    try:
        in_order = first == sorted(first)
    except TypeError:
        in_order = False
    size, drops = loader.batch_size, loader.drop_last
    left = len(loader.sampler) % size if drops and size and hasattr(loader.sampler, "__len__") else 0  # type: ignore[arg-type]
    is_list = isinstance(loader.sampler, Sequence) or isinstance(loader.batch_sampler, Sequence)
    was_set = bool(getattr(_sampler(loader), "epoch", 0))
    return {
        "in_order": in_order,
        "same": len(first) >= _LEAST and first == second and not (in_order or is_list or was_set),
        "batches": None if first else 0,
        "dropped": left,
    }


def _sampler(loader: Any) -> Any:
    """The sampler that decides the order."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.sampler if inner is None else inner


def order_findings(seen: dict[str, Any], patient: Patient, rows: int) -> list[Finding]:
    """Findings about two epochs; `rows` is how many the dataset has, as far as is known."""
    loader, findings = patient.loader, []
    if loader is None:
        return []
    if seen["batches"] == 0 and rows:
        size = loader.batch_size
        findings.append(
            Finding(
                "no-batches",
                f"an epoch gives no batch, of {rows:,} rows or more in the dataset"
                + (f"; batch_size is {size} and drop_last is {loader.drop_last}" if size else ""),
                "The training loop runs through its epochs without one step.",
                "drop_last=False, or a batch_size no larger than the rows of a rank (a stream: of a worker)",
                "wrong",
            )
        )
    elif seen["dropped"] and patient.is_evaluation:
        other = "" if seen["in_order"] else ", other ones in each epoch"
        findings.append(
            Finding(
                "dropped-validation",
                f"{patient.called} looks like an evaluation, and drops {seen['dropped']:,} of {rows:,} rows"
                + other,
                "The measure is not of the whole set, and changes by which rows are left out.",
                "shuffle=False, drop_last=False",
                "maybe",
            )
        )
    if seen["same"] and not patient.is_evaluation:
        sampler = _sampler(loader)
        has_epoch = hasattr(sampler, "set_epoch")
        findings.append(
            Finding(
                "same-order",
                f"{type(sampler).__name__} gives the same shuffled order in two epochs"
                + ("; its epoch was never set" if has_epoch else ""),
                "Batches hold the same rows in each epoch: shuffling does less than it seems to.",
                "sampler.set_epoch(epoch) before each epoch; yoga.DataLoader counts them by itself"
                if has_epoch
                else "keep the sampler's generator over its epochs, or seed it by the epoch",
                "maybe",
            )
        )
    return findings
