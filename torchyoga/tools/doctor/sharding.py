"""Rows that workers of a stream, or ranks of a job, have in common; those that evaluations count twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, Subset, get_worker_info

from ...loading.loader import DataLoader
from .diagnosis import Check, Finding, Seen, Severity
from .patient import Patient, digest, leaves, numbers, rows_of
from .walk import walk

_WORKERS, _STREAMED, _LEAST = 2, 16, 4  # rows of a stream
_EPOCH_SECONDS = 1.0  # of an epoch that is run
_NUMBERED = 64  # rows of a loader that are compared
_COUNTS = ("num_replicas", "world_size", "num_shards", "num_ranks")
_DEEPEST = 3  # attributes on the way to what says that a dataset is a rank's part
Rows = list[dict[str, str | None]]  # the digests of their parts


def _given(patient: Patient, seconds: float) -> dict[str, Any]:
    """The rows that two workers have in common, in the order in which they gave them.

    Returns:
        "count" rows of each that were compared; "columns" that they had alike, "" for all of them; "whole" if
        each gave all rows of an epoch, which was run to its end in a short time.
    """
    workers = min(_WORKERS, patient.num_workers)
    given: list[Rows] = [[], []]
    ends, is_whole = time.monotonic() + _EPOCH_SECONDS, True
    for number, (worker, rows) in enumerate(patient.probe(_parts, [], workers, batch_size=_STREAMED), 1):
        given[worker] += rows
        if time.monotonic() > ends and number >= workers:
            is_whole = False
            break
    count = min(_STREAMED, *map(len, given))
    one, other = (rows[:count] for rows in given)
    columns = [path for path in (one[0] if one else ()) if _is_same_column(one, other, path)]
    sets = [{digest(row) for row in rows} for rows in given]
    is_whole = is_whole and all(map(_is_known, given)) and sets[0] == sets[1]
    is_whole = is_whole and len(sets[0]) > max(_LEAST, len(given[0]) / 2)  # each in any order
    if is_whole or (_is_known(one) and one == other and len({digest(row) for row in one}) > count / 2):
        columns = [""]
    return {"count": count, "columns": columns, "whole": is_whole}


def _parts(batch: list[Any]) -> tuple[int, Rows]:
    """A `collate_fn` that gives the worker, and digests of the parts of rows."""
    info = get_worker_info()
    assert info is not None
    return info.id, [{path: digest(leaf) for path, leaf in leaves(row)} for row in batch]


def _is_known(rows: Rows) -> bool:
    return all(None not in row.values() for row in rows)


def _is_same_column(one: Rows, other: Rows, path: str) -> bool:
    """True if a column has the same values in both, none of them twice."""
    pairs = [(a.get(path), b.get(path)) for a, b in zip(one, other, strict=True)]
    return all(a is not None and a == b for a, b in pairs) and len(set(pairs)) == len(pairs)


def _judged_streams(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding]:
    if facts["count"] < _LEAST or not facts["columns"]:
        return
    column = facts["columns"][0]
    yield Finding(
        "rows-twice",
        f"two workers gave the same {f'values of {column}' if column else 'rows'}, "
        + ("all of an epoch" if facts["whole"] else f"for each of their first {facts['count']} rows"),
        "If each worker gives the whole stream, an epoch has all rows as often as there are workers.",
        "in __iter__, take every n-th row: get_worker_info() has the worker's id and num_workers",
        "wrong" if facts["whole"] else "maybe",
    )


STREAMS = Check(
    "rows of a stream",
    lambda patient: patient.is_iterable and patient.num_workers > 0,
    _given,
    _judged_streams,
    in_workers=True,
)


def world() -> int:
    """The number of processes that train together, by torch.distributed or the environment."""
    if _is_job():
        return dist.get_world_size()
    text = os.environ.get("WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() and len(text) < 10 else 1


def _is_job() -> bool:
    return dist.is_available() and dist.is_initialized()


def _of_ranks(patient: Patient, seconds: float) -> list[list[str | None]]:
    """Digests of a stream's first rows for each of two ranks, if it asks for its rank."""
    found = []
    for rank in (0, 1) if patient.is_iterable else ():
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if _is_job():
            setattr(dist, "get_rank", lambda group=None, rank=rank: rank)  # noqa: B010
        found.append([digest(row) for row in rows_of(patient, _STREAMED)])
    return found


def dealt(patient: Patient, ranks: Sequence[Sequence[str | None]] = (), *seen: Seen) -> Iterator[Finding]:
    """A finding if a loader gives all rows to each process of a job, or some twice to an evaluation.

    Args:
        patient: the loader.
        ranks: the first rows of a stream on two ranks.
        seen: what other checks have measured.
    """
    count, loader = world(), patient.loader
    sampler: Any = loader.sampler
    if patient.is_alone:
        return
    pads = isinstance(sampler, DistributedSampler) and sampler.total_size > len(patient.dataset)
    if pads and (patient.is_evaluation or not sampler.shuffle):
        yield Finding(
            "padded-evaluation",
            f"the ranks get {sampler.total_size:,} rows, of {len(patient.dataset):,} in the dataset",
            "DistributedSampler gives some rows twice, so that ranks have as many: metrics count both.",
            "yoga.DataLoader, or leave out the rows beyond the dataset's length as metrics are gathered",
            "maybe",
        )
    if patient.is_evaluation or count == 1:
        return
    parts = (value for path, value, _ in walk(patient.dataset) if path.count(".") <= _DEEPEST)
    if replicas(loader) > 1 or any(_is_part(value, count) for value in parts):
        return
    first = ranks[0] if ranks else []
    is_known = len(first) >= _LEAST and None not in first and len(set(first)) > len(first) / 2
    if patient.is_iterable and not (is_known and ranks[1] == first):
        return
    change = (
        "call init_process_group before the first batch"
        if patient.is_ours and not _is_job()
        else "leave num_replicas= and rank= out, unless these processes are to get the same rows"
        if patient.is_ours
        else "in __iter__, take every n-th row: torch.distributed.get_rank() and get_world_size()"
        if patient.is_iterable
        else "sampler=DistributedSampler(dataset), or yoga.DataLoader, which deals by itself"
    )
    name = patient.names[0] if patient.names else "the loader"
    measured = f"{count} processes train together, but {name} gives this one all rows"
    yield _not_sharded(count, measured, change, "maybe")


def _not_sharded(count: int, measured: str, change: str, severity: Severity) -> Finding:
    """`maybe`, unless they must differ: ranks of tensor parallelism are to have the same rows."""
    why = f"An epoch costs {count} times as much, and gradients are averaged over copies."
    return Finding("not-sharded", measured, why, change, severity)


def replicas(loader: TorchLoader[Any]) -> int:
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
    return any(getattr(value, "__dict__", {}).get(name) == world for name in _COUNTS)


def first_rows(patient: Patient) -> list[str]:
    """The rows that a loader begins with on this rank: their numbers, or digests. In a trial."""
    if patient.is_iterable:
        return [str(digest(row)) for row in rows_of(patient, _STREAMED)]
    return [str(number) for number in islice(numbers(patient.loader), _NUMBERED)]


def alike(ranks: Sequence[Sequence[str]], must_differ: bool) -> Iterator[Finding]:
    """A finding if all ranks begin with the same rows.

    Args:
        ranks: the rows of each, as texts.
        must_differ: True if rows are dealt to several ranks, or gradients are averaged over them.
    """
    first = ranks[0]
    if len(first) < _LEAST or len(set(first)) <= len(first) / 2 or any(one != first for one in ranks):
        return
    measured = f"{len(ranks)} ranks begin with the same {len(first)} rows, one after the other"
    change = (
        "DistributedSampler(dataset) or yoga.DataLoader with the rank of each; in __iter__, every n-th row"
    )
    yield _not_sharded(len(ranks), measured, change, "wrong" if must_differ else "maybe")


RANKS = Check("ranks", lambda patient: world() > 1 or replicas(patient.loader) > 1, _of_ranks, dealt)
