"""Which parts of a loader are seeded, and when.

Only what rows draw from is seeded for long.
To seed all generators takes most of the time of a small row. Of some hundred rows it is noted from which ones
they draw; from then on only these are seeded, and the others are looked at after each batch. If one has
moved, or torch's was asked for its seed, the batch is made once more with all of them seeded for each row, as
are all that follow.

A batch that the dataset makes in one call is seeded once, and all are looked at after it. If one has moved,
its numbers would depend on which rows are together: that batch and all later ones are made row by row.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from ..process.seeding import KINDS, batch_seeds
from ..reading.dataref import DataRef
from ..rows.types import Index, Row

_VALUES = frozenset({torch.Tensor, np.ndarray, int, float, bool, str, bytes, *np.sctypeDict.values()})
_LOOKED_AT = 256  # rows
_PLAIN = (
    *(list, tuple, range, dict, str, bytes, bytearray, array.array),
    *(np.ndarray, np.memmap, torch.Tensor, TensorDataset),
)


def draws_random_numbers(dataset: object) -> bool:
    """True for a dataset whose rows may depend on random numbers: any but those that only hold rows.

    Those are a list, a range, an array, a TensorDataset, a DataRef that is not random, as `ref.map(...)` is,
    and torch's Subset, ConcatDataset and StackDataset over such. A subclass may do anything, so it is not one
    of them.
    """
    if type(dataset) is Subset:
        return type(dataset.indices) not in _PLAIN or draws_random_numbers(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(map(draws_random_numbers, dataset.datasets))
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(map(draws_random_numbers, parts.values() if isinstance(parts, dict) else parts))
    if isinstance(dataset, DataRef):
        return dataset._is_random
    return type(dataset) not in _PLAIN


def made_together(dataset: object) -> Callable[[Sequence[Index]], Sequence[Row]] | None:
    """The `__getitems__` of a dataset that makes many rows in one call; None if it would make one by one.

    Those of torch's Subset and StackDataset do what the datasets in them can.
    """
    many: Callable[[Sequence[Index]], Sequence[Row]] | None = getattr(dataset, "__getitems__", None)
    kind, parts = getattr(type(dataset), "__getitems__", None), None
    if isinstance(dataset, Subset) and kind is Subset.__getitems__:
        parts = [dataset.dataset]
    elif isinstance(dataset, StackDataset) and kind is StackDataset.__getitems__:
        parts = list(dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets)
    return many if parts is None or any(map(made_together, parts)) else None


def is_plain(rows: object) -> bool:
    """True if nothing is drawn while such rows are collated: the first has numbers, texts and arrays only."""
    first = rows[0] if type(rows) is list and rows else None
    parts = first.values() if type(first) is dict else first if type(first) is tuple else (first,)
    return _VALUES.issuperset(map(type, parts))


class Quiet:
    """The generators that the rows of a loader draw from, as far as this process has seen.

    Args:
        is_asked: True if that is to be found out; False if all are to be seeded for each row.

    Attributes:
        drawn: those from which rows have drawn.
        is_asked: the next row is to be looked at, and all generators are to be seeded for it.
    """

    def __init__(self, is_asked: bool) -> None:
        self.drawn: tuple[str, ...] = () if is_asked else KINDS
        self.is_asked, self._left = is_asked, _LOOKED_AT  # rows to look at

    def note(self, drawn: Collection[str]) -> None:
        """Notes the generators that a row has drawn from."""
        self.drawn = tuple(kind for kind in KINDS if kind in drawn or kind in self.drawn)
        self._left -= 1
        self.is_asked = self._left > 0

    def give_up(self) -> None:
        """A row has drawn from a generator that was not seeded for it: all are from now on."""
        self.drawn, self.is_asked = KINDS, False


class Seeding(NamedTuple):
    """Which parts of a loader are seeded.

    Attributes:
        rows: True if each row is.
        batches: True if the collate function is, for each batch.
        quiet: whether rows draw.
        by_place: True if a row is seeded by its place in the epoch, as it may come more than once.
    """

    rows: bool
    batches: bool
    quiet: Quiet
    by_place: bool = False

    def of_batches(self, seed: int, epoch: int, positions: list[int]) -> list[int] | None:
        """The seeds of the batches that begin at these positions of an epoch; None if they are not seeded."""
        return batch_seeds(seed, epoch, np.array(positions)).tolist() if self.batches else None
