"""The order of rows in two epochs, and rows that are left out, or dealt to ranks twice or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler, Subset

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
_NUMBERS = ("rank", "shard_id", "shard_index", "index", "shard")
_LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")


def order(patient: Patient) -> dict[str, Any]:
    """Facts about two epochs of the sampler. It draws from the loader's generators, so call it in a trial.

    Returns:
        "in_order" if rows come as they lie in the dataset, "same" if both epochs have one order that is
        another one, "batches": 0 for none, "dropped" rows, "changing": attributes that the sampler changes.
    """
    loader = patient.loader
    if loader is None or patient.is_iterable:
        return {"in_order": True, "same": False, "batches": None, "dropped": 0, "changing": []}
    size, drops = loader.batch_size, loader.drop_last
    left = len(loader.sampler) % size if drops and size and hasattr(loader.sampler, "__len__") else 0  # type: ignore[arg-type]
    if isinstance(loader, DataLoader):
        shuffles = bool(getattr(loader.sampler, "shuffle", True))
        found = {"in_order": not shuffles, "same": False, "batches": len(loader), "dropped": left}
        return {**found, "changing": _changing(loader)}
    changing = _changing(loader)
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
        "dropped": left,
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
    elif seen["dropped"] and patient.is_evaluation:
        other = "" if seen["in_order"] else ", other ones in each epoch"
        yield Finding(
            "dropped-validation",
            f"{patient.called} looks like an evaluation, and drops {seen['dropped']:,} of {rows:,} rows"
            + other,
            "The measure is not of the whole set, and changes by which rows are left out.",
            "shuffle=False, drop_last=False",
            "maybe",
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


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


class RunningJob(NamedTuple):
    """The processes that train together.

    Attributes:
        world: how many.
        rank: which of them this one is.
        is_known: True if torch.distributed says so, and not only the environment.
        started: processes that a launcher of another kind has started, such as MPI's; not all need train.
    """

    world: int = 1
    rank: int = 0
    is_known: bool = False
    started: int = 1

    @staticmethod
    def now() -> RunningJob:
        """Those of this process."""
        if dist.is_available() and dist.is_initialized():
            return RunningJob(dist.get_world_size(), dist.get_rank(), True)
        started = max(_number(name, 1) for name in _LAUNCHERS)
        return RunningJob(max(1, _number("WORLD_SIZE", 1)), _number("RANK", 0), started=started)


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
    """Findings about the ranks that a loader's rows are dealt to, and the parts that its dataset has.

    Args:
        patient: the loader.
        job: the processes that train.
        ranks: the first rows of a stream on two ranks, as `rank_rows` found them.
    """
    if patient.loader is None:
        return
    replicas, how = _replicas(patient, job)
    part = _part_of(patient.dataset, {replicas, job.world})
    if replicas > 1 and part is not None:
        yield Finding(
            "sharded-twice",
            f"{how} deals the rows to {replicas} ranks, but {part} already",
            f"Each rank gets a {replicas}th of its part: most rows are never seen.",
            "give the loader the whole dataset, or leave the sampler out",
            "maybe",
        )
        return
    gives_all = not patient.is_iterable
    if len(ranks) == 2 and len(ranks[0]) >= _LEAST and None not in ranks[0]:
        gives_all = ranks[0] == ranks[1] and len(set(ranks[0])) > len(ranks[0]) / 2
    if job.world > 1 and replicas == 1 and part is None and gives_all and not patient.is_evaluation:
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
            f"{known} {job.world} processes, but {how} gives this one all rows",
            f"All {job.world} train on the same rows: an epoch costs {job.world} times as much, and "
            "gradients are averaged over copies.",
            change,
            "maybe",  # ranks of tensor parallelism are to have the same rows
        )
        return
    if replicas > max(job.world, job.started):
        yield Finding(
            "wrong-ranks",
            f"{how} deals the rows to {replicas} ranks, but there {_are(job.world)}",
            "The rows of ranks that do not exist are never seen.",
            f"num_replicas={job.world}",
            "maybe",
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


def _are(world: int) -> str:
    return "is 1 process" if world == 1 else f"are {world}"


def _replicas(patient: Patient, job: RunningJob) -> tuple[int, str]:
    """How many ranks the loader deals to, and what does it, for messages."""
    loader = patient.loader
    assert loader is not None
    if isinstance(loader, DataLoader) and loader.total_batch_size == (loader.batch_size or 1):
        return 1, "yoga.DataLoader"
    for held in (loader.batch_sampler, loader.sampler):
        for inner in (held, getattr(held, "sampler", None), getattr(held, "batch_sampler", None)):
            if isinstance(inner, DistributedSampler):
                return inner.num_replicas, "DistributedSampler"
            count = getattr(inner, "num_replicas", None) or getattr(inner, "num_processes", None)
            if isinstance(count, int) and count > 1:
                return count, type(inner).__name__
    if isinstance(loader, DataLoader):
        return loader.total_batch_size // (loader.batch_size or 1), "yoga.DataLoader"
    if patient.is_iterable:
        return 1, "the dataset"
    return 1, type(_sampler(loader)).__name__


def _part_of(dataset: object, worlds: set[int]) -> str | None:
    """How a dataset says that it is one rank's part; None if it does not."""
    for path, value, _ in walk(dataset):
        if path.count(".") > 3:
            continue
        found = _part(path, value, worlds)
        if found is not None:
            return found
    return None


def _part(path: str, value: Any, worlds: set[int]) -> str | None:
    kept = getattr(value, "__dict__", None)
    if isinstance(value, Subset):
        return _part_of_subset(path, value, worlds)
    distributed = kept.get("_distributed") if isinstance(kept, dict) else None
    for one in (kept, getattr(distributed, "__dict__", None)):
        if not isinstance(one, dict):
            continue
        count = next((one[name] for name in _COUNTS if isinstance(one.get(name), int)), 1)
        number = next((one[name] for name in _NUMBERS if isinstance(one.get(name), int)), None)
        if count > 1 and number is not None and 0 <= number < count and not hasattr(value, "set_epoch"):
            return f"{path} is part {number} of {count}"
        if distributed is not None and one is not kept and count > 1:
            return f"{path} is part {number} of {count}"
    return None


def _part_of_subset(path: str, subset: Subset[Any], worlds: set[int]) -> str | None:
    """A subset whose indices are every Wth row is a rank's part."""
    try:
        whole, count = len(subset.dataset), len(subset.indices)  # type: ignore[arg-type]
        some = np.asarray(list(subset.indices[:1024]), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    if some.ndim != 1 or len(some) < 3:
        return None
    steps = np.unique(np.diff(some))
    step = int(steps[0])
    # Every second row may be a split of the user's own, unless there are two ranks.
    if (
        len(steps) == 1
        and step > 1
        and step in worlds
        and 0 <= some[0] < step
        and abs(count - whole / step) <= 1
    ):
        return f"{path} is every {step}th row from {int(some[0])} on"
    return None
