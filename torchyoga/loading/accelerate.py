"""The attributes that Accelerate expects of a loader it has prepared: it would replace it by its own.

Accelerate deals the batches of a loader to its processes and, to drop what `pad` has added, lays the batches
of all ranks end to end. A loader of ours deals rows by itself, in runs of a batch, and tells Accelerate where
its epochs end.

`skip_first_batches` sees a dataset whose rows are batches.
It makes a loader of torch's over the dataset and the batch sampler that it finds as attributes of ours, and
knows nothing of seeds, workers, devices and states. Only batches that our loader itself delivers carry those
along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

import torch

from ..order.place import Remainder
from ..process.messages import warn_user
from ..rows.types import Batch, Collate, Index, Row
from ..sampling.indices import Indices
from ..sampling.trainers import gradient_state, is_accelerate_asking, is_skipping_batches, num_skipped
from .workers import itself


class Accelerated:
    """The facts that an Accelerator knows about a loader.

    Attributes:
        is_prepared: True if an Accelerator uses the loader.
        is_at_end: True if the batch that was delivered last is the last one of its epoch.
        rest: rows of the dataset in the last batches of all ranks, if they are not full; -1 if that is not
            known.
    """

    def __init__(self) -> None:
        self.is_prepared = self.is_at_end = False
        self.rest = -1
        self._may_be_uneven = False

    def prepare(self, indices: Indices, batch_size: int) -> None:
        """Deals rows as Accelerate expects, if it uses the loader.

        Raises:
            ValueError: they cannot be dealt so.
        """
        cursor = indices.cursor
        run_length = batch_size if self.is_prepared else 1
        if cursor.shard.run_length != run_length:
            cursor.shard = replace(cursor.shard, run_length=run_length)
        if not self.is_prepared or indices.num_replicas == 1:
            return
        if indices.locality == "shard":
            raise ValueError(
                "Accelerate deals runs of the order to its processes, so with locality='shard' each would "
                "read the files of all; leave it at 'global'"
            )
        if indices.is_undivided:
            raise ValueError(
                f"there are {indices.num_replicas} processes, and {indices.name} does not say that it heeds "
                "them; Accelerate would deal its batches out if torch's own DataLoader was prepared, but "
                "leaves this one as it is. Have the sampler keep a `rank`, or use torch's DataLoader"
            )
        if self._may_be_uneven and cursor.length % indices.num_replicas:
            self._may_be_uneven = False  # this is said once
            warn_user(
                f"{cursor.length} rows do not divide into {indices.num_replicas} processes, and with "
                'remainder="keep" some get one less: gather_for_metrics, and training outside '
                'join_uneven_inputs, would hang or abort. Leave it at "pad": gather_for_metrics drops what '
                "that adds"
            )

    def asked(self, indices: Indices) -> None:
        """An Accelerator has asked whether it has prepared the loader: from now on it has."""
        if not self.is_prepared:
            self.is_prepared, self._may_be_uneven = True, indices.cursor.shard.remainder == "keep"

    def begun(self, loader: object, rest: int) -> None:
        """Tells Accelerate that an epoch begins, whose last batches have `rest` rows more than full ones."""
        if not self.is_prepared:
            return
        self.is_at_end, self.rest = False, rest
        state = gradient_state()
        if state is not None:
            state._remove_dataloader(loader)  # an iteration that was left early may still be active
            state._add_dataloader(loader)

    def ended(self, loader: object) -> None:
        """Tells Accelerate that an epoch is over."""
        state = gradient_state() if self.is_prepared else None
        if state is not None:
            state._remove_dataloader(loader)


class AcceleratePrepared:
    """The attributes by which Accelerate knows a loader; all other code sees the loader's own."""

    use_stateful_dataloader = True  # so save_state and load_state ask for the state
    _accelerated: Accelerated
    _indices: Indices

    @property
    def _is_accelerate_prepared(self) -> bool:
        # `prepare` sets it, `prepare_data_loader` only asks.
        if is_accelerate_asking():
            self._accelerated.asked(self._indices)
        return self._accelerated.is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        if value:
            self._accelerated.asked(self._indices)
        self._accelerated.is_prepared = value

    @property
    def end_of_dataloader(self) -> bool:
        """True if the batch that was delivered last is the last one of its epoch: Accelerate asks for it."""
        return self._accelerated.is_at_end

    @property
    def remainder(self) -> int | Remainder:
        """The fate of rows that the ranks cannot divide evenly: "pad", "drop" or "keep".

        For Accelerate, which uses this name for something else: how many rows of the last batch, gathered
        from all ranks, its `gather_for_metrics` keeps; all, if less than 1.
        """
        return self._accelerated.rest if is_accelerate_asking() else self._indices.cursor.shard.remainder


def show_to_accelerate(kind: type) -> None:
    """Shows `skip_first_batches` other attributes of such loaders; all other code sees the loader's own."""
    for name in _Shown._fields:
        setattr(kind, name, _Attribute(name, getattr(kind, name, None)))


class _Attribute:
    """An attribute of a loader; or what `skip_first_batches` is shown instead."""

    def __init__(self, name: str, inherited: object) -> None:
        self._name = name
        self._property = inherited if isinstance(inherited, property) else None

    def __get__(self, loader: Any, kind: type | None = None) -> object:
        if loader is None:
            return self
        if is_skipping_batches():
            shown = _Shown(_Delivered(loader), _Deliveries(loader), itself, torch.Generator())
            return getattr(shown, self._name)
        if self._property is not None:
            return self._property.__get__(loader, kind)
        try:
            found: object = loader.__dict__[self._name]
            return found
        except KeyError:
            raise AttributeError(f"{type(loader).__name__!r} has no attribute {self._name!r}") from None

    def __set__(self, loader: Any, value: object) -> None:
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

    def __getitem__(self, row: Index) -> Row:
        return self._loader.dataset[row]

    def __getitems__(self, delivery: Iterator[Batch]) -> Batch:
        return next(delivery)


class _Deliveries:
    """A loader's batch sampler: instead of the rows of each batch it hands out what delivers that batch."""

    def __init__(self, loader: Any) -> None:
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
        shown = self._loader.batch_sampler
        return getattr(self._loader.sampler if shown is None else shown, name)


class _Shown(NamedTuple):
    """A loader to show to `skip_first_batches`: it takes everything from ours, and has no workers."""

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
