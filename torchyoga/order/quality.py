"""The quality and the cost of a shuffle: how random it is, and how many files are needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..process.numbers import as_int
from ..rows.types import Ints
from .by_file import MOST_SHARDS, BlockOrder, equal_runs
from .contract import AnyOrder, Arrangement, Locality, Shuffle
from .options import OrderOptions
from .place import Shard


@dataclass(frozen=True)
class ShuffleQuality:
    """The result of `shuffle_quality`.

    Attributes:
        randomness: the share of a full shuffle's entropy, in 0..1.
        files_at_once: files that a rank needs at once, at most.
        rows_at_once: rows in them, at most.
    """

    randomness: float
    files_at_once: int
    rows_at_once: int

    def __str__(self) -> str:
        return (
            f"{self.randomness:.1%} of a full shuffle's randomness; {self.files_at_once} files with "
            f"{self.rows_at_once:,} rows at once"
        )


def shuffle_quality(
    dataset: Sized | int,
    shuffle: Shuffle = "block",
    shuffle_window: int = 8,
    seed: int = 0,
    locality: Locality = "global",
    num_replicas: int = 1,
) -> ShuffleQuality:
    """How random an order is, and how many files it needs at once.

    `randomness` compares the logarithms of the numbers of orders that an epoch may have. A full shuffle of N
    rows has N!. A block shuffle has F! orders of the files and n! of the rows of each file of n rows, and in
    each cell of c rows c! / (s1! s2! ...) ways to mix its slices of s1, s2, ... rows: the order within a
    slice is counted in the n! already. Without a shuffle there is one order.

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
        >>> round(quality.randomness, 2), quality.files_at_once, quality.rows_at_once
        (0.82, 4, 16384)
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
    blocks = order
    if not isinstance(blocks, BlockOrder):  # the same files for all kinds of order
        blocks = BlockOrder(equal_runs(length) if starts is None else starts, seed, order.shuffle)
    shards = [(sizes, mixed if shuffle == "block" else len(sizes)) for sizes, mixed in blocks.units(0)]
    if not order.shuffle:
        shards = [(sizes, 1) for sizes, _ in shards]
    return ShuffleQuality(
        randomness=_randomness(order, shards),
        files_at_once=max((min(mixed, len(sizes)) for sizes, mixed in shards), default=0),
        rows_at_once=max((int(np.sort(sizes)[::-1][:mixed].sum()) for sizes, mixed in shards), default=0),
    )


def _randomness(order: AnyOrder, shards: Iterable[tuple[Ints, int]]) -> float:
    if not order.shuffle or order.length < 2:
        return 0.0
    if order.shuffle == "block":
        found = sum(_log_of_orders(sizes, mixed) for sizes, mixed in shards)
    else:
        found = sum(_log_of_factorials(int(sizes.sum())) for sizes, _ in shards)
    return min(1.0, found / math.lgamma(order.length + 1))


def _log_of_orders(sizes: Ints, mixed: int) -> float:
    """The logarithm of the number of orders of one shard's files."""
    if not len(sizes):
        return 0.0
    slices = np.diff(sizes[:, None] * np.arange(mixed + 1) // mixed, axis=1)
    cells = np.zeros(len(sizes) + mixed - 1, np.int64)
    for k in range(mixed):
        cells[k : k + len(sizes)] += slices[:, k]
    mixings = _log_of_factorials(cells) - _log_of_factorials(slices)
    return math.lgamma(len(sizes) + 1) + _log_of_factorials(sizes) + mixings


def _log_of_factorials(numbers: npt.ArrayLike) -> float:
    """The sum of log(n!)."""
    kinds, counts = np.unique(numbers, return_counts=True)
    return float(
        sum(math.lgamma(n + 1) * many for n, many in zip(kinds.tolist(), counts.tolist(), strict=True))
    )
