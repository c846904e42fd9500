"""The quality and the cost of a shuffle: how far neighbours lie apart, and how many files are needed."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

import numpy as np

from ..process.numbers import as_int, spread
from .by_file import MOST_SHARDS, BlockOrder, equal_runs
from .contract import AnyOrder, Arrangement, Locality, Shuffle
from .options import OrderOptions
from .place import Shard

_EPOCHS = 4
_PLACES = 25_000  # positions examined in each of them


@dataclass(frozen=True)
class ShuffleQuality:
    """The result of `shuffle_quality`.

    Attributes:
        neighbour_distance: rows between two rows that a rank reads one after the other, on average.
        full_distance: the same in a full shuffle, (N + 1) / 3.
        files_at_once: files that a rank needs at once, at most.
        rows_at_once: rows in them, at most.
    """

    neighbour_distance: float
    full_distance: float
    files_at_once: int
    rows_at_once: int

    def __str__(self) -> str:
        return (
            f"neighbours {self.neighbour_distance:,.0f} rows apart, {self.full_distance:,.0f} in a full "
            f"shuffle; {self.files_at_once} files with {self.rows_at_once:,} rows at once"
        )


def shuffle_quality(
    dataset: Sized | int,
    shuffle: Shuffle = "block",
    shuffle_window: int = 8,
    seed: int = 0,
    locality: Locality = "global",
    num_replicas: int = 1,
) -> ShuffleQuality:
    """How far an order takes neighbours apart, and how many files it needs at once.

    Args:
        dataset: a DataRef, anything with a length, or a number of rows.
        shuffle: "block", True or False.
        shuffle_window: files mixed with each other at once.
        seed: any int.
        locality: "global", or "shard" if each rank has files of its own.
        num_replicas: number of ranks.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> quality = shuffle_quality(100_000, shuffle_window=4)
        >>> quality.files_at_once, quality.rows_at_once
        (4, 16384)
    """
    num_replicas = as_int("num_replicas", num_replicas, low=1, high=MOST_SHARDS)
    options = OrderOptions(shuffle, seed, True, shuffle_window, locality, Shard(num_replicas))
    if isinstance(getattr(dataset, "_arrangement", None), Arrangement):
        raise ValueError(
            "a mixture, weights, stages or buckets are more than a shuffle of all rows; ask for the quality "
            "of the shuffle of each source"
        )
    order = options.order_of(dataset)
    length = order.length
    starts = getattr(dataset, "file_starts", None)
    # The same files for all kinds of order.
    blocks = (
        order
        if isinstance(order, BlockOrder)
        else BlockOrder(equal_runs(length) if starts is None else starts, seed, order.shuffle)
    )
    shards = [(sizes, mixed if shuffle == "block" else len(sizes)) for sizes, mixed in blocks.units(0)]
    if not order.shuffle:
        shards = [(sizes, 1) for sizes, _ in shards]
    return ShuffleQuality(
        neighbour_distance=_distance(order, num_replicas),
        full_distance=(length + 1) / 3 if length > 1 else 0.0,
        files_at_once=max((min(mixed, len(sizes)) for sizes, mixed in shards), default=0),
        rows_at_once=max((int(np.sort(sizes)[::-1][:mixed].sum()) for sizes, mixed in shards), default=0),
    )


def _distance(order: AnyOrder, num_replicas: int) -> float:
    last = order.length - num_replicas
    if last < 1:
        return 0.0
    places = spread(last, _PLACES)
    epochs = range(_EPOCHS if order.shuffle else 1)
    steps = [order.rows(epoch, places + num_replicas) - order.rows(epoch, places) for epoch in epochs]
    return float(np.abs(steps).mean())
