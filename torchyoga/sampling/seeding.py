"""Which parts of a loader are seeded, and when.

Rows that draw nothing are not seeded for long.
To seed `random` and NumPy takes most of the time of a small row. After some hundred rows that drew from
neither, rows are made without that, and the two are looked at after each batch. If they have moved, the batch
is made once more, seeded row by row, as are all that follow. torch is always seeded: that is quick, and rows
may ask for `torch.initial_seed()`, which moves nothing.

A batch that the dataset makes in one call is seeded once, and all three are looked at after it. If one has
moved, or `torch.initial_seed()` was called, its numbers would depend on which rows are together: that batch
and all later ones are made row by row.
"""

from __future__ import annotations

import array
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from ..process.seeding import GeneratorsPutBack, batch_seeds
from ..reading.dataref import DataRef
from ..rows.types import Index, Row

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


class Quiet:
    """Whether the rows of a loader draw from `random` or NumPy, as far as this process has seen.

    Args:
        is_asked: True if that is to be found out; False if all rows are to be seeded.
    """

    def __init__(self, is_asked: bool) -> None:
        self._left = _LOOKED_AT if is_asked else -1  # rows to look at; -1 if one has drawn

    @property
    def is_known(self) -> bool:
        """True if rows draw nothing."""
        return self._left == 0

    @property
    def may_be(self) -> bool:
        """True unless rows are known to draw, or all are to be seeded."""
        return self._left >= 0

    @property
    def is_asked(self) -> bool:
        """True if the next row is to be looked at."""
        return self._left > 0

    def note(self, has_drawn: bool) -> None:
        """Some rows have drawn, or one that was looked at has not."""
        self._left = -1 if has_drawn else self._left - 1


class Seeding(NamedTuple):
    """Which parts of a loader are seeded.

    Attributes:
        rows: True if each row is.
        batches: True if the collate function is, for each batch.
        is_here: True if rows are made in the training loop's process, whose own random numbers are kept.
        quiet: whether rows draw.
        by_place: True if a row is seeded by its place in the epoch, as it may come more than once.
    """

    rows: bool
    batches: bool
    is_here: bool
    quiet: Quiet
    by_place: bool = False

    def of_batches(self, seed: int, epoch: int, positions: list[int]) -> list[int] | None:
        """The seeds of the batches that begin at these positions of an epoch; None if they are not seeded."""
        return batch_seeds(seed, epoch, np.array(positions)).tolist() if self.batches else None

    def meanwhile(self) -> AbstractContextManager[None]:
        """A context to make rows and batches in; the generators are put back after it."""
        if (self.is_here and (self.rows or self.batches)) or (self.rows and self.quiet.is_known):
            return GeneratorsPutBack()
        return contextlib.nullcontext()
