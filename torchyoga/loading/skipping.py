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
from typing import Any

import torch

from ..sampling.trainers import is_skipping_batches, num_skipped

__all__ = ["show_to_accelerate"]


def show_to_accelerate(kind: type) -> None:
    """Shows `skip_first_batches` other attributes of such loaders; all other code sees the loader's own."""
    for name in _shown(None):
        setattr(kind, name, _Attribute(name, getattr(kind, name, None)))


def _shown(loader: Any) -> dict[str, Any]:
    """What `skip_first_batches` is shown: a loader that takes everything from ours, and has no workers."""
    return {
        "dataset": _Delivered(loader),
        "batch_sampler": _Deliveries(loader),
        "collate_fn": _itself,
        "generator": torch.Generator(),  # torch draws from it for each iterator
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "multiprocessing_context": None,
        "timeout": 0,
        "pin_memory": False,
    }


class _Attribute:
    """An attribute of a loader; or what `skip_first_batches` is shown instead."""

    def __init__(self, name: str, inherited: Any) -> None:
        self._name = name
        self._property = inherited if isinstance(inherited, property) else None

    def __get__(self, loader: Any, kind: type | None = None) -> Any:
        if loader is None:
            return self
        if is_skipping_batches():
            return _shown(loader)[self._name]
        if self._property is not None:
            return self._property.__get__(loader, kind)
        try:
            return loader.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(loader).__name__!r} has no attribute {self._name!r}") from None

    def __set__(self, loader: Any, value: Any) -> None:
        if self._property is not None:
            self._property.__set__(loader, value)
        else:
            loader.__dict__[self._name] = value

    def __delete__(self, loader: Any) -> None:
        self.__get__(loader)
        del loader.__dict__[self._name]


class _Delivered:
    """A loader's dataset; to torch's fetcher, which comes with a delivery, the next batch of that."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __getitem__(self, row: Any) -> Any:
        return self._loader.dataset[row]

    def __getitems__(self, delivery: Iterator[Any]) -> Any:
        return next(delivery)


class _Deliveries:
    """A loader's batch sampler: instead of the rows of each batch it hands out what delivers that batch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        done, delivery = num_skipped(), iter(self._loader)
        delivery.skip(done)
        yield from repeat((), done)
        yield from repeat(delivery)  # the delivery says when it is over

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader.batch_sampler or self._loader.sampler, name)


def _itself(batch: Any) -> Any:
    """The batch itself: it has been collated already."""
    return batch
