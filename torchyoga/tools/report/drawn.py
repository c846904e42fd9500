"""The order of a loader or sampler -> a picture of it, and what it is worth, in words."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DistributedSampler

from ...order.contract import AnyOrder
from ...order.quality import shuffle_quality
from ...process.distinct import spread
from ...process.seeding import GeneratorsPutBack
from ...process.texts import number
from ...rows.types import Ints
from ...sampling.sampler import ResumableSampler
from ..cells.text import visible
from .charts import points

__all__ = ["Drawn", "Panel", "drawn_of"]

_MOST_POINTS, _MOST_LOOKED = 4096, 2**16
_BEGINNING = 256  # positions of the second picture
_MOST_RANKS, _OF_A_RANK = 16, 512
_FEW = 16  # rows, of which nothing can be said
WIDTH, HEIGHT = 640, 300


@dataclass(frozen=True)
class Panel:
    """A picture of position against row.

    Attributes:
        title: what is on it; `path`: dots of SVG, in a box of 640 x 300.
        first, last: positions at its left and right end.
        said: the same in words.
    """

    title: str
    path: str
    first: str
    last: str
    said: str


@dataclass(frozen=True)
class Drawn:
    """The order of one epoch.

    Attributes:
        of: what has it, such as "ResumableSampler"; `epoch`: which.
        verdict: what it is worth; `is_bad`: it is not shuffled well.
        facts: more about it.
        panels: of all ranks; `ranks`: one for each rank, if there are several.
        last_row: the row at the upper end of the pictures.
    """

    of: str
    epoch: int
    verdict: str
    is_bad: bool
    facts: tuple[str, ...]
    panels: tuple[Panel, ...]
    ranks: tuple[Panel, ...]
    last_row: str


@dataclass(frozen=True)
class _OrderLook:
    """The part of an order that was looked at: the rows at some positions of all ranks.

    Attributes:
        positions: (M,) ascending; `rows`: (M,) at them; `ranks`: (M,) that take them; `is_even`: (M,) those
            that are spread evenly over the epoch, and not only of its beginning.
        distance: rows between two that a rank takes one after the other, on average; None without any.
        total: positions of the epoch.
    """

    positions: Ints
    rows: Ints
    ranks: Ints
    is_even: npt.NDArray[np.bool_]
    distance: float | None
    total: int


def drawn_of(order: object, length: int, seed: int) -> Drawn:
    """The order of a loader or sampler, whose place does not change.

    Args:
        order: a loader of torchyoga's or torch's, a sampler or a batch sampler of any library.
        length: rows of the dataset.
        seed: of the positions that are looked at.

    Raises:
        TypeError: it is none of these.
    """
    own = _own_sampler(order)
    name = type(order).__name__
    if own is not None:
        looked, replicas, epoch = _looked_at(own, seed), own.num_replicas, own.epoch
        rows = len(own.data_source)
        facts = _facts(own)
    else:
        looked, replicas = _looked_foreign(order), 1
        epoch, rows = int(getattr(order, "epoch", 0) or 0), length
        replicas = int(looked.ranks.max(initial=0)) + 1
        facts = () if looked.total <= _MOST_LOOKED else (f"The first {_MOST_LOOKED:,} positions are shown.",)
    verdict, is_bad = _verdict(looked, rows)
    return Drawn(
        visible(name),
        epoch,
        verdict,
        is_bad,
        facts,
        *_panels(looked, rows, replicas),
        number(max(0, rows - 1)),
    )


def _own_sampler(order: object) -> ResumableSampler | None:
    for one in (order, getattr(order, "batch_sampler", None), getattr(order, "sampler", None)):
        for found in (one, getattr(one, "sampler", None)):
            if isinstance(found, ResumableSampler):
                return found
    return None


def _order_of(sampler: ResumableSampler) -> AnyOrder:
    """The order of a sampler; of seed 0, if its own is still to be drawn, and is not drawn by this."""
    cursor = copy.copy(sampler.indices.cursor)
    if sampler.seed is not None:
        return cursor.order
    with _generators_kept(sampler):
        return cursor.order.changed(seed=0)


def _looked_at(sampler: ResumableSampler, seed: int) -> _OrderLook:
    cursor, replicas, order = sampler.indices.cursor, sampler.num_replicas, _order_of(sampler)
    total = cursor.length_in(sampler.epoch)
    begin = np.arange(min(total, 2 * _BEGINNING))
    some = begin
    if total > _MOST_POINTS:  # one in each of as many equal parts, so that no pattern is met or missed
        edges = np.linspace(0, total, _MOST_POINTS + 1)
        drawn = np.random.default_rng(seed).random(_MOST_POINTS)
        some = (edges[:-1] + drawn * np.diff(edges)).astype(np.int64)
    else:
        some = np.arange(total)
    positions = np.unique(np.concatenate([begin, some])).astype(np.int64)
    rows = order.rows(sampler.epoch, positions) if total else positions
    run = cursor.shard.run_length
    before = positions[positions < total - replicas]
    distance = None
    if len(before):
        steps = order.rows(sampler.epoch, before + replicas) - order.rows(sampler.epoch, before)
        distance = float(np.abs(steps).mean())
    is_even = np.isin(positions, some)
    return _OrderLook(positions, rows, positions // run % replicas, is_even, distance, total)


def _facts(sampler: ResumableSampler) -> tuple[str, ...]:
    found = []
    if sampler.seed is None:
        found.append("The seed is drawn when training begins; this is the order of seed 0.")
    window = getattr(_order_of(sampler), "window", 8)
    try:
        quality = shuffle_quality(
            sampler.data_source,
            sampler.indices.cursor.shuffle,
            window,
            sampler.seed or 0,
            sampler.locality,
            sampler.num_replicas,
        )
    except ValueError:  # of mixtures, weights and such, whose order is more than a shuffle
        return tuple(found)
    return (*found, f"It has {quality}.")


@contextmanager
def _generators_kept(order: object) -> Iterator[None]:
    """Puts back what random numbers come next, whatever is drawn meanwhile."""
    holders = (order, getattr(order, "sampler", None))
    own = [getattr(one, name, None) for one in holders for name in ("generator", "draws_from")]
    of_torch = [one for one in own if isinstance(one, torch.Generator)]
    kept = [one.get_state() for one in of_torch]
    with GeneratorsPutBack():
        try:
            yield
        finally:
            for one, state in zip(of_torch, kept, strict=True):
                one.set_state(state)


def _looked_foreign(order: object) -> _OrderLook:
    """The numbers that another library's sampler hands out; it is a copy that is asked."""
    batches, sampler = getattr(order, "batch_sampler", None), getattr(order, "sampler", None)
    source = next((one for one in (batches, sampler, order) if isinstance(one, Iterable)), None)
    if source is None or isinstance(source, (str, bytes)):
        raise TypeError(f"order must be a loader or a sampler, found {type(order).__name__}")
    inner = getattr(source, "sampler", source)
    if isinstance(inner, DistributedSampler):
        return _looked_distributed(inner)
    with _generators_kept(source):
        rows = np.fromiter(islice(_numbers(copy.copy(source)), _MOST_LOOKED + 1), np.int64)
    total, rows = len(rows), rows[:_MOST_LOOKED]
    distance = float(np.abs(np.diff(rows)).mean()) if len(rows) > 1 else None
    places = np.arange(len(rows))
    return _OrderLook(places, rows, np.zeros_like(places), places >= 0, distance, total)


def _looked_distributed(sampler: DistributedSampler[object]) -> _OrderLook:
    """All ranks of torch's sampler, of which each knows all rows."""
    replicas = sampler.num_replicas
    each = []
    for rank in range(min(replicas, _MOST_LOOKED)):
        one = copy.copy(sampler)
        one.rank = rank
        each.append(np.fromiter(islice(iter(one), max(2, _MOST_LOOKED // replicas)), np.int64))
    steps = min(map(len, each))
    rows = np.stack([one[:steps] for one in each], axis=1)
    distance = float(np.abs(np.diff(rows, axis=0)).mean()) if steps > 1 else None
    places = np.arange(rows.size)
    ranks = places % rows.shape[1]
    return _OrderLook(places, rows.reshape(-1), ranks, places >= 0, distance, sampler.total_size)


def _numbers(source: Iterable[object]) -> Iterator[int]:
    for one in source:
        if isinstance(one, (int, np.integer)):
            yield int(one)
        elif isinstance(one, (list, tuple, np.ndarray, torch.Tensor)):
            yield from (int(number) for number in np.asarray(one).reshape(-1))
        else:
            raise TypeError(
                f"order must hand out numbers of rows, found {type(one).__name__}; pass a loader or a sampler"
            )


def _verdict(looked: _OrderLook, rows: int) -> tuple[str, bool]:
    if looked.distance is None or rows < _FEW:
        return "There are too few rows to say how well they are shuffled.", False
    full = (rows + 1) / 3
    near = (
        f"rows that a rank reads one after the other lie {number(round(looked.distance))} apart on average, "
        f"in a full shuffle {number(round(full))}"
    )
    is_rising = bool((np.diff(looked.rows) >= 0).all())
    if is_rising:
        return "Not shuffled: the rows come in the order in which they lie.", True
    if bool((np.diff(looked.rows) <= 0).all()):
        return "Not shuffled: the rows come in the order in which they lie, from the last to the first.", True
    if looked.distance < 0.1 * full:
        return f"Hardly shuffled: {near}.", True
    if looked.distance < 0.5 * full:
        return f"Weakly shuffled: {near}.", True
    even = looked.is_even
    drift = float(np.corrcoef(looked.positions[even], looked.rows[even])[0, 1])
    if abs(drift) > 0.3:
        return "Weakly shuffled: rows that lie at the beginning come at the beginning.", True
    if len(np.unique(looked.rows)) < 0.9 * len(looked.rows):
        return f"Some rows come more than once, in no order: {near}.", False
    return f"Shuffled over the whole dataset: {near}.", False


def _panels(looked: _OrderLook, rows: int, replicas: int) -> tuple[tuple[Panel, ...], tuple[Panel, ...]]:
    positions, last = looked.positions, max(1, rows - 1)
    if not len(positions):
        return (), ()
    seen = looked.total if positions[-1] >= 0.99 * looked.total else int(positions[-1]) + 1

    def panel(title: str, chosen: npt.NDArray[np.bool_], end: int, most: int) -> Panel:
        at = np.flatnonzero(chosen)
        at = at[spread(len(at), most)]
        places = zip(
            ((positions[at] + 0.5) * WIDTH / max(1, end)).tolist(),
            (HEIGHT - 3 - looked.rows[at] * (HEIGHT - 6) / last).tolist(),
            strict=True,
        )
        said = f"{title}: each dot is a row; from left to right positions 0 to {number(max(0, end - 1))}, "
        return Panel(
            title,
            points(places),
            "0",
            number(max(0, end - 1)),
            f"{said}upwards rows 0 to {number(rows - 1)}.",
        )

    panels = [panel("The epoch", looked.is_even, seen, _MOST_POINTS)]
    if seen > 2 * _BEGINNING:
        panels.append(panel("Its beginning", positions < _BEGINNING, _BEGINNING, _BEGINNING))
    ranks = [
        panel(f"Rank {rank}", looked.is_even & (looked.ranks == rank), seen, _OF_A_RANK)
        for rank in range(min(replicas, _MOST_RANKS) if replicas > 1 else 0)
    ]
    return tuple(panels), tuple(ranks)
