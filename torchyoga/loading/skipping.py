"""A loader's batches from a number on, for the loader that Accelerate's `skip_first_batches` makes of it.

That is torch's, over the dataset and the batch sampler that it finds, and knows nothing of seeds, devices
and states. So it is shown others: "rows" of that dataset are the batches that the loader itself delivers.

Note 74. `skip_first_batches` sees a dataset whose rows are batches.
It makes a loader of torch's from attributes of ours; nothing but our own batches could carry seeds, workers
and states along.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple, Protocol

import torch

from ..rows.types import Batch, Collate, Index, MapStyle, Row
from ..sampling.trainers import is_skipping_batches, num_skipped
from .delivery import Delivery

__all__ = ["show_to_accelerate"]


def show_to_accelerate(kind: type) -> None:
    """Shows `skip_first_batches` other attributes of such loaders; all other code sees the loader's own."""
    for name in _Shown._fields:
        setattr(kind, name, _Attribute(name, getattr(kind, name, None)))


class _Loader(Protocol):
    """A loader of ours."""

    dataset: MapStyle
    sampler: object
    batch_sampler: object

    def __len__(self) -> int: ...

    def __iter__(self) -> Delivery: ...


class _Attribute:
    """An attribute of a loader; or what `skip_first_batches` is shown instead."""

    def __init__(self, name: str, inherited: object) -> None:
        self._name = name
        self._property = inherited if isinstance(inherited, property) else None

    def __get__(self, loader: _Loader | None, kind: type | None = None) -> object:
        if loader is None:
            return self
        if is_skipping_batches():
            shown = _Shown(_Delivered(loader), _Deliveries(loader), _itself, torch.Generator())
            return getattr(shown, self._name)
        if self._property is not None:
            return self._property.__get__(loader, kind)
        try:
            found: object = loader.__dict__[self._name]
            return found
        except KeyError:
            raise AttributeError(f"{type(loader).__name__!r} has no attribute {self._name!r}") from None

    def __set__(self, loader: _Loader, value: object) -> None:
        if self._property is not None:
            self._property.__set__(loader, value)
        else:
            loader.__dict__[self._name] = value

    def __delete__(self, loader: _Loader) -> None:
        self.__get__(loader)
        del loader.__dict__[self._name]


class _Delivered:
    """A loader's dataset; to torch's fetcher, which comes with a delivery, the next batch of that."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __getitem__(self, row: Index) -> Row:
        return self._loader.dataset[row]

    def __getitems__(self, delivery: Delivery) -> Batch:
        return next(delivery)


class _Deliveries:
    """A loader's batch sampler: instead of the rows of each batch it hands out what delivers that batch."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[object]:
        done, delivery = num_skipped(), iter(self._loader)
        delivery.skip(done)
        yield from repeat((), done)
        yield from repeat(delivery)  # the delivery says when it is over

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader.batch_sampler or self._loader.sampler, name)


class _Shown(NamedTuple):
    """What `skip_first_batches` is shown: a loader that takes everything from ours, and has no workers."""

    dataset: _Delivered
    batch_sampler: _Deliveries
    collate_fn: Collate
    generator: torch.Generator  # torch draws from it for each iterator
    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: str | None = None
    timeout: float = 0
    pin_memory: bool = False


def _itself(batch: Batch) -> Batch:
    """The batch itself: it has been collated already."""
    return batch
