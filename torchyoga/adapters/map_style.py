"""Rows by number -> rows in order, read by this process or by torch's workers.

Every adapter whose data is read by number uses this, whichever framework it is of.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeGuard

import torch
from torch.utils.data import DataLoader, get_worker_info

from ..building.sources import RowSource
from ..process.exceptions import note_batch, note_row
from ..process.raised import Raised
from ..reading.dataref import DataRef
from ..rows.types import MapStyle, Row

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
        in_worker: Any = _InWorker(self)  # torch takes any class, though it names its own
        loader: DataLoader[bytes] = DataLoader(
            in_worker,
            batch_sampler=_Ranges(start, self.length, self._rows_at_once),
            num_workers=self._num_workers,
            collate_fn=bytes,  # a batch is one item here, and stays as it is
            worker_init_fn=in_worker.show,
            generator=torch.Generator(),
        )
        packed: Any = iter(loader)
        try:
            for found in map(pickle.loads, packed):
                if isinstance(found, Raised):
                    found.reraise()
                yield from found
        finally:  # an error may leave them to the garbage collector, which would wait for ten seconds
            packed._shutdown_workers()

    def row(self, number: int) -> Row:
        """One row, read as `rows` reads it: what is computed for many at once may differ in its last bits."""
        assert self.length is not None
        if not _reads_many(self._dataset):
            return next(self._many([number]))
        size = self._rows_at_once if self._num_workers else _READ_AHEAD
        first = number // size * size
        return list(self._many(list(range(first, min(first + size, self.length)))))[number - first]

    def _many(self, numbers: list[int]) -> Iterator[Row]:
        dataset, number = self._dataset, None
        try:
            if isinstance(dataset, DataRef):
                yield from dataset[numbers]
            elif _reads_many(dataset):
                yield from dataset.__getitems__(numbers)
            else:
                for number in numbers:
                    yield dataset[number]
        except Exception as error:
            if number is None:
                note_batch(error, numbers, self.name)
            else:
                note_row(error, number, self.name, f"dataset[{number}] raises it")
            raise


class _InWorker:
    """A source as torch's workers read it: rows as bytes, as each tensor would take a file descriptor."""

    def __init__(self, source: MapSource) -> None:
        self._source = source

    def show(self, _: int) -> None:
        """Lets the user's code find its dataset in the worker's info."""
        object.__setattr__(get_worker_info(), "dataset", self._source._dataset)  # torch forbids assignment

    def __getitems__(self, numbers: list[int]) -> bytes:
        try:
            return pickle.dumps(list(self._source._many(numbers)))
        except Exception as error:
            return pickle.dumps(Raised(error, "in a worker process of submit"))


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
