"""Rows by number -> rows in order, read by this process or by torch's workers.

Every adapter whose data is read by number uses this, whichever framework it is of.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeGuard

import torch
from torch.utils.data import DataLoader

from ..building.sources import RowSource
from ..reading.dataref import DataRef
from ..rows.types import MapStyle, Row

__all__ = ["MapSource"]

_READ_AHEAD = 64  # rows asked for at once


class _ManyAtOnce(MapStyle, Protocol):
    def __getitems__(self, numbers: list[int], /) -> Iterable[Row]: ...


class MapSource(RowSource):
    """The rows of a map-style dataset, read by `num_workers` processes if that is more than 0.

    Each process reads `rows_at_once` of them one after the other.
    """

    seekable = True

    def __init__(self, dataset: MapStyle, num_workers: int = 0, rows_at_once: int = 16) -> None:
        try:
            self.length = len(dataset)
        except TypeError:
            raise TypeError(
                f"{type(dataset).__name__} has no length; pass an iterable instead, for example a generator"
            ) from None
        self.name = type(dataset).__name__
        self._dataset = dataset
        self._num_workers = num_workers
        self._rows_at_once = rows_at_once

    def rows(self, start: int) -> Iterator[Row]:
        """The rows from `start` on, in order."""
        assert self.length is not None
        if self._num_workers == 0:
            for numbers in _Ranges(start, self.length, _READ_AHEAD):
                yield from self._many(numbers)
            return
        dataset: Any = self._dataset  # torch takes any class, though it names its own
        loader: DataLoader[bytes] = DataLoader(
            dataset,
            batch_sampler=_Ranges(start, self.length, self._rows_at_once),
            num_workers=self._num_workers,
            collate_fn=pickle.dumps,  # as bytes: as tensors, each would take a file descriptor
            generator=torch.Generator(),
        )
        for packed in loader:
            yield from pickle.loads(packed)

    def row(self, number: int) -> Row:
        """One row, read as `rows` reads it: what is computed for many at once may differ in its last bits."""
        assert self.length is not None
        if not _reads_many(self._dataset):
            return self._dataset[number]
        size = self._rows_at_once if self._num_workers else _READ_AHEAD
        first = number // size * size
        return list(self._many(list(range(first, min(first + size, self.length)))))[number - first]

    def _many(self, numbers: list[int]) -> Iterator[Row]:
        if isinstance(self._dataset, DataRef):
            yield from self._dataset[numbers]
        elif _reads_many(self._dataset):
            yield from self._dataset.__getitems__(numbers)
        else:
            yield from (self._dataset[number] for number in numbers)


def _reads_many(dataset: MapStyle) -> TypeGuard[_ManyAtOnce]:
    return not isinstance(dataset, DataRef) and bool(getattr(dataset, "__getitems__", None))


class _Ranges:
    """Consecutive batches of row numbers, which end at multiples of `size` wherever they begin."""

    def __init__(self, start: int, stop: int, size: int) -> None:
        self._ends = [start, *range(start // size * size + size, stop, size), stop] if start < stop else []

    def __len__(self) -> int:
        return max(0, len(self._ends) - 1)

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, end)) for first, end in itertools.pairwise(self._ends))
