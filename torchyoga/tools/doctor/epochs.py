"""What two epochs, or two workers, have alike and should not: an order, an epoch's number, random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler, get_worker_info

from .contents import IN_PLACE
from .diagnosis import Check, Finding, Seen
from .patient import Patient, digest, made, numbers, rows_of, seed_all
from .walk import HeldObject, is_of_library, names_in, numbers_of, walk

_ORDERED, _FEWEST = 4096, 16  # rows whose order is looked at
_SHOWN, _AGAIN = 16, (1, 2, 1)  # rows that are made, in these epochs


def _ordered(patient: Patient, seconds: float) -> dict[str, bool]:
    """Two facts: if the order is not the dataset's ("shuffles"); if the next epoch has it, too ("same")."""
    loader = patient.loader
    first, second = (list(islice(numbers(loader), _ORDERED)) for _ in range(2))
    try:
        shuffles = first != sorted(first) and getattr(sampler_of(loader), "shuffle", True)
    except TypeError:
        shuffles = True
    is_list = isinstance(loader.sampler, Sequence) or isinstance(loader.batch_sampler, Sequence)
    is_list = is_list and len(first) < len(patient.dataset)  # rows that were chosen
    was_set = any(_epochs_at(sampler_of(loader)).values()) or patient.sets_epoch
    is_same = len(first) >= _FEWEST and first == second and not (is_list or was_set)
    return {"shuffles": shuffles, "same": is_same}


def sampler_of(loader: Any) -> Any:
    """The sampler that decides the order: one of batches of the user's own, or the one within torch's."""
    outer = loader.batch_sampler
    if outer is None:
        return loader.sampler
    inner = getattr(outer, "sampler", None)
    is_set = hasattr(inner, "set_epoch") and not hasattr(outer, "set_epoch")
    return inner if type(outer) is BatchSampler or is_set else outer


def _epochs_at(sampler: Any) -> dict[str, int]:
    """The attributes that say which epoch a sampler is at."""
    kept = {**vars(type(sampler)), **getattr(sampler, "__dict__", {})}
    return {name: one for name, one in kept.items() if "epoch" in name and isinstance(one, int)}


def order_state(loader: Any) -> str:
    """A text for the order of the epoch that begins now, equal for equal orders; "" if it is not known."""
    sampler = sampler_of(loader)
    if hasattr(sampler, "set_epoch"):
        return ", ".join(f"{name} is {epoch}" for name, epoch in _epochs_at(sampler).items())
    generator = getattr(sampler, "generator", None) or loader.generator or torch.default_generator
    return str(digest(generator.get_state())) if isinstance(generator, torch.Generator) else ""


def _judged_order(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding]:
    sampler, starts = sampler_of(patient.loader), patient.starts
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
        yield _same_order(
            said,
            "sampler.set_epoch(epoch) before each epoch; yoga.DataLoader counts them by itself"
            if has_epoch
            else "call torch.manual_seed once, before the first epoch"
            if began_alike
            else "keep the sampler's generator over its epochs, or seed it by the epoch",
        )


def _same_order(measured: str, change: str) -> Finding:
    why = "Batches hold the same rows in each epoch: shuffling does less than it seems to."
    return Finding("same-order", measured, why, change, "maybe")


def _has_order(patient: Patient) -> bool:
    counts = patient.is_ours and hasattr(sampler_of(patient.loader), "set_epoch")  # which our loader calls
    return not (counts or patient.is_iterable or patient.is_evaluation)


ORDER = Check("order", _has_order, _ordered, _judged_order)


def _shown(patient: Patient, seconds: float) -> dict[str, Any] | None:
    """The "path" of an object whose `set_epoch` changes the rows; "stale" if those of persistent workers stay
    as they are, "unset" if no epoch was set. None if there is no such object.
    """
    keys = [] if patient.is_iterable else patient.keys(_SHOWN)
    for path, held, is_ours in walk(patient.dataset):
        set_epoch: Any = getattr(held, "set_epoch", None)
        if is_ours or isinstance(held, Sampler) or not callable(set_epoch):
            continue
        begun, here, there = _epochs_at(held), list[Any](), list[Any]([[]])
        if patient.loader.persistent_workers:
            # Each row leaves the shared generators seeded for the next one.
            probe, there = patient.probe(_digest_and_seed, keys[:1] + keys, 1), []
            for epoch in _AGAIN:
                set_epoch(epoch)
                there.append([*islice(probe, _SHOWN + 1)][1:])
        for epoch in _AGAIN:
            set_epoch(epoch)
            seed_all(0)
            here.append([digest([row]) for row in rows_of(patient, _SHOWN)])
        if None not in here[0] and here[0] == here[2] != here[1]:
            is_stale = bool(there[0]) and there[0] == there[1] == there[2]
            is_unset = patient.is_iterable and bool(begun) and not (any(begun.values()) or patient.sets_epoch)
            return {"path": path, "stale": is_stale, "unset": is_unset}
    return None


def _digest_and_seed(batch: Any) -> str | None:
    """A `collate_fn` that gives the digest of the only row of a batch."""
    seed_all(0)
    return digest(batch if isinstance(batch, list) else [batch])


def _judged_epoch(patient: Patient, facts: dict[str, Any] | None, seen: Seen) -> Iterator[Finding]:
    if facts is not None and facts["stale"]:
        yield Finding(
            "stale-epoch",
            f"{facts['path']}.set_epoch changes rows that are made in this process; those of a persistent "
            "worker were equal in two epochs",
            "Persistent workers keep the copy of the dataset they started with: each epoch is the first.",
            "persistent_workers=False; or keep the epoch where workers see it: "
            "torch.zeros((), dtype=torch.int64).share_memory_()",
            "wrong",
        )
    elif facts is not None and facts["unset"] and not patient.is_evaluation:
        yield _same_order(
            f"{facts['path']}.set_epoch changes the rows of the stream, and its epoch is still 0",
            f"{facts['path']}.set_epoch(epoch) before each epoch",
        )


STALE_EPOCH = Check(
    "set_epoch",
    lambda patient: patient.loader.persistent_workers or patient.is_iterable,
    _shown,
    _judged_epoch,
    in_workers=True,
)


# In both workers, and in both epochs, the same two rows are made, each twice. A row that differs from itself
# in one worker is random. If both workers, or both epochs, then have the same numbers, they are equal and
# should differ, which proves it; where the generators stood says which one it was.
_ROWS, _TIMES, _MANY_TIMES, _STREAMED, _EPOCHS, _WORKERS = 2, 2, 16, 16, 2, 2
_SHARED, _UNKNOWN = ("random", "numpy.random", "torch"), "a generator that was not found"
_DRAWS = {"shuffle", "randperm", "permutation", "randrange"}  # what makes an order
Record = dict[str, Any]


def _drawn(patient: Patient, seconds: float) -> dict[str, Any]:
    """The generators and rows that two workers, and two epochs, have in common.

    Returns:
        A dict of `stood`, which has [name, among, again] of each generator that stood at the same place as
        the workers, or the epochs, drew from it; `equal`, two booleans, if the rows were the same too;
        `alike`, the shared generators that rows seed with the same number; and, of a generator that was
        not found, `counts`, if the dataset's own numbers or sizes changed meanwhile.
    """
    is_stream = patient.is_iterable
    one, other, later = _spied(patient, _TIMES)
    twice = [*zip(one[::_TIMES], one[1::_TIMES], strict=False)]
    if not is_stream and all(a["row"] is not None and a["row"] == b["row"] for a, b in twice):
        return {"stood": [], "alike": [] if patient.is_ours else _seeded_alike(patient)}
    equal = [not is_stream and _is_equal(one, some) for some in (other, later)]
    names = {name for record in one for name in record["stood"]}
    if not is_stream:  # where each row seeds by itself, the same row is to be the same
        names = {name for name in names if any(a["stood"][name] != b["stood"].get(name) for a, b in twice)}
    if patient.is_ours:  # its loader seeds these for each row
        names -= {*_SHARED}
    stood = [[name, *(_stood_alike(one, some, name) for some in (other, later))] for name in sorted(names)]
    stood = [fact for fact in stood if any(fact[1:])]
    if is_stream and not stood and _is_equal(one, later) and _shuffles(patient.dataset):
        return {"stood": [], "alike": [], "again": len(one)}
    if not stood and not patient.is_ours and any(equal):  # a coin may have fallen so
        first, *rest = _spied(patient, _MANY_TIMES)
        equal = [was and _is_equal(first, some) for was, some in zip(equal, rest, strict=True)]
        stood = [[_UNKNOWN, *equal]] * any(equal)
        counts = len({record["counts"] for record in first}) > 1
        return {"stood": stood, "equal": equal, "alike": [], "counts": counts}
    return {"stood": stood, "equal": equal, "alike": []}


def _shuffles(stream: object) -> bool:
    """True if the methods of a stream draw an order, which is not turned off, and know of no epoch."""
    kinds = [kind for kind in type(stream).__mro__ if not is_of_library(kind)]
    methods = [one for kind in kinds for name, one in vars(kind).items() if name != "__init__"]
    codes = [one.__code__ for one in methods if isinstance(one, FunctionType)]
    named = {name for code in codes for name in names_in(code)}
    is_off = any(
        "shuffle" in name and (value is None or value is False) for name, value in vars(stream).items()
    )
    return bool(_DRAWS & named) and not (is_off or any("epoch" in name for name in named))


def _spied(patient: Patient, times: int) -> Iterator[list[Record]]:
    """The records of two workers in an epoch, and of the first in another; rows come so many times."""
    workers, is_stream = min(_WORKERS, patient.num_workers), patient.is_iterable
    # Batches go to the workers in turn, so that each row reaches each of them.
    keys = [] if is_stream else [key for key in patient.keys(_ROWS) for _ in range(workers * times)]
    spied = patient.probe(partial(_record_of, patient.loader.collate_fn), keys, workers)
    epochs = [[*islice(spied, workers * _STREAMED if is_stream else len(keys))] for _ in range(_EPOCHS)]
    for epoch, worker in ((0, 0), (0, 1), (1, 0)):
        is_alike = epoch and patient.is_evaluation  # as its epochs should be
        yield [record for record in epochs[epoch] if record["worker"] == worker and not is_alike]


def _stood_alike(some: list[Record], others: list[Record], name: str) -> bool:
    """True if a generator was at the same place before each row, but the first, that drew from it.

    What is drawn before the first row of a stream may well be the same: an order that workers share.
    """
    mine, theirs = ([record["stood"].get(name) for record in records] for records in (some, others))
    pairs = zip(mine, mine[1:], theirs, strict=False)
    alike = [before == their for before, after, their in pairs if before != after]
    return bool(alike) and all(alike)


def _is_equal(some: list[Record], others: list[Record]) -> bool:
    """True if the rows are known and the same, one after the other."""
    rows = [(a["row"], b["row"]) for a, b in zip(some, others, strict=False)]
    return bool(rows) and all(a is not None and a == b for a, b in rows)


def _record_of(collate_fn: Any, batch: Any) -> Record:
    """A digest of a row, as it is and in a batch of its own, and where the generators stand after it."""
    info = get_worker_info()
    assert info is not None
    row = [digest(batch if isinstance(batch, list) and len(batch) == 1 else [batch])]
    with suppress(Exception):  # it may need more rows
        row.append(digest(collate_fn(batch)))
    held = [one for one in walk(info.dataset, with_globals=True, collate_fn=collate_fn) if not one.is_ours]
    counts = digest(str([*map(numbers_of, held)]))
    return {"worker": info.id, "row": row[0] and digest(row), "stood": _states(held), "counts": counts}


def _states(held: Iterable[HeldObject] = ()) -> dict[str, str | None]:
    """The states of the generators that all code shares, and of those that are held."""
    found: dict[str, object] = {"random": random.getstate(), "torch": torch.get_rng_state()}
    found["numpy.random"] = np.random.get_state()
    for path, value, _ in held:
        if isinstance(value, np.random.Generator):
            found[path] = value.bit_generator.state
        elif isinstance(value, (np.random.RandomState, torch.Generator)):
            found[path] = value.get_state()
        elif isinstance(value, random.Random):
            found[path] = value.getstate()
    return {name: digest(state) for name, state in found.items()}


def _seeded_alike(patient: Patient) -> list[str]:
    """Shared generators that stand at the same place after two rows, wherever they stood before."""
    after = []
    for number, row in enumerate(patient.keys(_ROWS), 1):
        seed_all(number)
        made(patient.dataset, row)
        after.append(_states())
    return [name for name in _SHARED if len(after) == _ROWS and after[0][name] == after[1][name]]


def _judged(patient: Patient, facts: dict[str, Any], seen: Seen) -> Iterator[Finding]:
    if facts.get("again", 0) >= _FEWEST:
        yield _same_order(
            f"a stream that shuffles gave the same first {facts['again']} rows in two epochs of a worker",
            "seed the shuffle by the epoch, not by a constant: set_epoch(epoch) before each",
        )
    for name in facts["alike"]:
        yield Finding(
            "same-random-numbers",
            f"two rows seeded {name} with the same number: it stood at the same place after each",
            "Different rows are augmented alike, and so are all that draw from it later.",
            "leave seeding out of __getitem__, or seed by row and epoch; yoga.DataLoader seeds each row",
            "maybe",
        )
    is_changed = seen.get(IN_PLACE.name)  # then rows differ from themselves without a generator
    for name, among, again in (one for one in facts["stood"] if not (is_changed and one[0] == _UNKNOWN)):
        is_proved = (among and facts["equal"][0]) or (again and facts["equal"][1])
        proof = "; the rows are equal, and differ from themselves if they are made again" if is_proved else ""
        if facts.get("counts"):  # which rows may hold, by intent
            is_proved, proof = False, f"{proof}, as do numbers or sizes that the dataset keeps"
        held = name.replace("dataset", "get_worker_info().dataset", 1)
        yield Finding(
            "same-random-numbers",
            f"rows drew from {name}, which stood at the same place "
            + " and ".join(["in two workers"] * among + ["in two epochs"] * again)
            + proof,
            "Different rows are augmented alike"
            + (", and each epoch repeats the one before" if again else "")
            + ": there is less variety than there seems to be.",
            "leave seeding out of worker_init_fn and __getitem__; yoga.DataLoader seeds each row"
            if name in _SHARED
            else f"in worker_init_fn, make {held} again from torch.initial_seed()",
            "wrong" if is_proved else "maybe",
        )


RANDOM_NUMBERS = Check(
    "random numbers", lambda patient: patient.num_workers > 0, _drawn, _judged, in_workers=True
)
