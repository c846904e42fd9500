"""The order of rows in two epochs, an epoch without a batch, and rows that ranks have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, Subset
from torch.utils.data import DataLoader as TorchLoader

from ...errors import StateError
from ...loading.loader import DataLoader
from ...order.proof import prove
from ...sampling.foreign import Foreign
from ...sampling.indices import Resumable
from .contents import digest
from .diagnosis import Finding
from .patient import Patient, numbers
from .walk import walk

__all__ = [
    "RunningJob",
    "alike",
    "dealt",
    "disagreeing",
    "first_rows",
    "order",
    "order_findings",
    "order_stands",
    "rank_rows",
]

_ORDERED, _FEWEST = 4096, 16  # rows
_STREAMED, _NUMBERED, _LEAST = 16, 64, 4  # rows that are compared
_COUNTS = ("num_replicas", "world_size", "num_shards", "num_ranks")
_DEEPEST = 3  # attributes on the way to what says that a dataset is a rank's part


def order(patient: Patient) -> dict[str, Any]:
    """Facts about two epochs of the sampler. It draws from the loader's generators, so call it in a trial.

    Returns:
        "in_order" if rows come as they lie in the dataset, "same" if both epochs have one order that is
        another one, "batches": 0 for none, "changing": attributes that the sampler changes.
    """
    loader = patient.loader
    if loader is None or patient.is_iterable:
        return {"in_order": True, "same": False, "batches": None, "changing": []}
    changing = _changing(loader)
    if isinstance(loader, DataLoader):
        shuffles = bool(getattr(loader.sampler, "shuffle", True))
        return {"in_order": not shuffles, "same": False, "batches": len(loader), "changing": changing}
    first, second = (list(islice(numbers(loader), _ORDERED)) for _ in range(2))
    try:
        in_order = first == sorted(first)
    except TypeError:
        in_order = False
    is_list = isinstance(loader.sampler, Sequence) or isinstance(loader.batch_sampler, Sequence)
    was_set = any(_epochs(_sampler(loader)).values()) or patient.sets_epoch
    return {
        "in_order": in_order,
        "same": len(first) >= _FEWEST and first == second and not (in_order or is_list or was_set),
        "batches": None if first else 0,
        "changing": changing,
    }


def _changing(loader: Any) -> list[str]:
    """The attributes that the loader's sampler changes by drawing."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if isinstance(sampler, Resumable) or isinstance(getattr(sampler, "sampler", None), Resumable):
        return []
    try:
        foreign = Foreign(sampler, None, drop_last=False, is_batches=True)
    except TypeError:  # it can be iterated only once
        return []
    for _ in islice(sampler, _ORDERED):
        pass
    foreign.has_drawn()
    return [*foreign.changing()]


def _sampler(loader: Any) -> Any:
    """The sampler that decides the order: one of batches of the user's own, or the one within torch's."""
    outer = loader.batch_sampler
    if outer is None:
        return loader.sampler
    inner = getattr(outer, "sampler", None)
    is_set = hasattr(inner, "set_epoch") and not hasattr(outer, "set_epoch")
    return inner if type(outer) is BatchSampler or is_set else outer


def _epochs(sampler: Any) -> dict[str, int]:
    """The attributes that say which epoch a sampler is at."""
    kept = getattr(sampler, "__dict__", {})
    return {name: one for name, one in kept.items() if "epoch" in name and isinstance(one, int)}


def order_stands(loader: Any) -> str:
    """What decides the order of an epoch that begins now, alike for epochs that are alike; "" if unknown."""
    sampler = _sampler(loader)
    if hasattr(sampler, "set_epoch"):
        return ", ".join(f"{name} is {epoch}" for name, epoch in _epochs(sampler).items())
    generator = getattr(sampler, "generator", None) or loader.generator or torch.default_generator
    return f"{digest(generator.get_state())}"


def order_findings(seen: dict[str, Any], patient: Patient, rows: int) -> Iterator[Finding]:
    """Findings about two epochs; `rows` is how many the dataset has, as far as is known."""
    loader = patient.loader
    if loader is None:
        return
    if seen["batches"] == 0 and rows:
        size = loader.batch_size
        yield Finding(
            "no-batches",
            f"an epoch gives no batch, of {rows:,} rows or more in the dataset"
            + (f"; batch_size is {size} and drop_last is {loader.drop_last}" if size else ""),
            "The training loop runs through its epochs without one step.",
            "drop_last=False, or a batch_size no larger than the rows of a rank (a stream: of a worker)",
            "wrong",
        )
    if patient.is_evaluation or seen["in_order"]:
        return
    sampler, starts = _sampler(loader), patient.starts
    has_epoch = hasattr(sampler, "set_epoch")
    began_alike = len(starts) > 1 and len(set(starts)) == 1 and bool(starts[0])
    if not began_alike and (not seen["same"] or (has_epoch and starts)):  # how it began says more
        return
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

    if seen["changing"]:
        yield Finding(
            "changing-sampler",
            f"{type(_sampler(loader)).__name__} changes its {', '.join(seen['changing'])} as it draws",
            "A state does not have them: resumed in a later epoch, its rows may be others.",
            "let its __iter__ change a copy, or give it a state_dict and load_state_dict",
            "maybe",
        )


class RunningJob(NamedTuple):
    """The processes that train together.

    Attributes:
        world: how many.
        is_known: True if torch.distributed says so, and not only the environment.
    """

    world: int = 1
    is_known: bool = False

    @staticmethod
    def now() -> RunningJob:
        """Those of this process."""
        if dist.is_available() and dist.is_initialized():
            return RunningJob(dist.get_world_size(), True)
        text = os.environ.get("WORLD_SIZE", "")
        return RunningJob(max(1, int(text)) if text.isdecimal() and len(text) < 10 else 1)


def first_rows(patient: Patient) -> list[Any]:
    """The rows that a loader of torch's begins with on this rank: their numbers, or digests. In a trial."""
    if patient.is_ours or patient.loader is None:
        return []  # receipts say more
    if not patient.is_iterable:
        return list(islice(numbers(patient.loader), _NUMBERED))
    return [digest(row) for row in islice(iter(patient.dataset), _STREAMED)]


def alike(ranks: Sequence[Sequence[str]], averages: bool) -> Iterator[Finding]:
    """A finding if all ranks begin with the same rows.

    Args:
        ranks: the rows of each, as texts.
        averages: True if gradients are averaged over the ranks, so that rows should differ.
    """
    first = ranks[0]
    if len(first) < _LEAST or len(set(first)) <= len(first) / 2 or any(one != first for one in ranks):
        return
    yield Finding(
        "not-sharded",
        f"{len(ranks)} ranks begin with the same {len(first)} rows, one after the other"
        + ("; their gradients are averaged" if averages else ""),
        f"An epoch costs {len(ranks)} times as much, and gradients are averaged over copies.",
        "sampler=DistributedSampler(dataset), or yoga.DataLoader; in __iter__, every n-th row",
        "wrong" if averages else "maybe",  # ranks of tensor parallelism are to have the same rows
    )


def rank_rows(patient: Patient) -> list[list[str | None]]:
    """Digests of a stream's first rows for each of two ranks, if it asks for its rank. Call it in a trial."""
    found = []
    for rank in (0, 1):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if dist.is_available() and dist.is_initialized():
            setattr(dist, "get_rank", lambda group=None, rank=rank: rank)  # noqa: B010
        found.append([digest(row) for row in islice(iter(patient.dataset), _STREAMED)])
    return found


def dealt(patient: Patient, job: RunningJob, ranks: Sequence[Sequence[str | None]] = ()) -> Iterator[Finding]:
    """A finding if a loader gives all rows to each process of a job.

    Args:
        patient: the loader.
        job: the processes that train.
        ranks: the first rows of a stream on two ranks, as `rank_rows` found them.
    """
    if patient.loader is None or job.world == 1 or patient.is_evaluation or _replicas(patient.loader) > 1:
        return
    if any(
        _is_part(value, job.world) for path, value, _ in walk(patient.dataset) if path.count(".") <= _DEEPEST
    ):
        return
    if len(ranks) == 2 and len(ranks[0]) >= _LEAST and None not in ranks[0]:
        if ranks[0] != ranks[1] or len(set(ranks[0])) <= len(ranks[0]) / 2:
            return
    elif patient.is_iterable:
        return
    known = "torch.distributed has" if job.is_known else "WORLD_SIZE says"
    change = (
        "call init_process_group before the first batch"
        if patient.is_ours and not job.is_known
        else "leave num_replicas= and rank= out, unless these processes are to get the same rows"
        if patient.is_ours
        else "in __iter__, take every n-th row: torch.distributed.get_rank() and get_world_size()"
        if patient.is_iterable
        else "sampler=DistributedSampler(dataset), or yoga.DataLoader, which deals by itself"
    )
    yield Finding(
        "not-sharded",
        f"{known} {job.world} processes, but {patient.called} gives this one all rows",
        f"All {job.world} train on the same rows: an epoch costs {job.world} times as much, and "
        "gradients are averaged over copies.",
        change,
        "maybe",  # ranks of tensor parallelism are to have the same rows
    )


def disagreeing(receipts: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """A finding if receipts of ranks show that rows came twice, or that ranks are missing or doubled."""
    if not receipts:
        return
    try:
        proof = prove(receipts)
    except StateError as error:
        problem = str(error)
    else:
        # Ranks of a job that was stopped have come to different steps, which loses nothing.
        problem = "" if "different numbers of batches" in proof.problem else proof.problem
    if not problem:
        return
    yield Finding(
        "sharded-twice",
        f"{len(receipts)} receipts: {problem}",
        "Rows were trained on twice, or never.",
        "the same seed= on all ranks, and a rank= of its own on each",
        "wrong",
    )


def _replicas(loader: TorchLoader[Any]) -> int:
    """The number of ranks that a loader deals rows to."""
    if isinstance(loader, DataLoader):
        return loader.total_batch_size // (loader.batch_size or 1)
    counts = [
        getattr(inner, name, None)
        for held in (loader.batch_sampler, loader.sampler)
        for inner in (held, getattr(held, "sampler", None), getattr(held, "batch_sampler", None))
        for name in ("num_replicas", "num_processes")
    ]
    return max([1, *(one for one in counts if isinstance(one, int))])


def _is_part(value: Any, world: int) -> bool:
    """True if something that a dataset holds says that it is the part of one rank of so many."""
    if isinstance(value, Subset):
        steps = np.diff(np.asarray([*islice(value.indices, _NUMBERED)]))
        return len(steps) > 0 and bool((steps == world).all())
    kept = getattr(value, "__dict__", {})
    return any(kept.get(name) == world for name in _COUNTS)
