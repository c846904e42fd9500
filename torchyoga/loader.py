"""torch's DataLoader, counting what was delivered."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils.data import IterableDataset, get_worker_info

from .cursor import Place
from .dataref import DataRef
from .order import Remainder, batches, chunks, keyed_bytes
from .sampler import ResumableBatchSampler, ResumableSampler
from .stream import read_batches

__all__ = ["DataLoader"]


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader with a seed and a state: stop after any batch, continue anywhere.

    Takes torch's arguments. The state counts batches delivered to the training loop, never those fetched
    ahead, so it is exact for any number of workers; it may be loaded under another number of workers or ranks
    and another batch size. `in_order=False` and samplers other than torchyoga's are refused: no state could
    be exact.

    Args:
        dataset: any map-style dataset, cached or not.
        batch_size: rows of a batch on each rank; None hands out single rows.
        shuffle: a full shuffle, anew each epoch.
        sampler: a `ResumableSampler`, in place of `shuffle`, `seed`, `num_replicas`, `rank`, `remainder`,
            `start_offset`.
        batch_sampler: a `ResumableBatchSampler`, in place of those and `batch_size`, `drop_last`.
        seed: any int, the same on all ranks: the order, and the random numbers of `seed_rows`, follow from
            it.
        num_replicas, rank: of this loader; by default those of an initialised `torch.distributed`, else 1 and
            0.
        remainder: `pad`, `drop` or `keep`, see `ResumableSampler`; for evaluation use `keep`.
        start_offset: rows over all ranks that the first iteration leaves out.
        seed_rows: seed `random`, NumPy and torch for each row from (seed, epoch, row), so that augmentation
            comes out the same for any number of workers and ranks and after a resume. By default for every
            dataset but a DataRef, which has no use for it. Costs about 30 us a row.
        **torch_arguments: the other arguments of `torch.utils.data.DataLoader`.

    Raises:
        ValueError: an argument is out of range, or torch refuses it.
        TypeError: the dataset has no random access.

    Example:
        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=7)
        >>> whole = [batch.tolist() for batch in loader]
        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=7)
        >>> first, state = next(iter(loader)), loader.state_dict()
        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=7, num_workers=0)
        >>> loader.load_state_dict(state)
        >>> [batch.tolist() for batch in loader] == whole[1:]
        True
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: ResumableSampler | None = None,
        batch_sampler: ResumableBatchSampler | None = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        seed_rows: bool | None = None,
        **torch_arguments: Any,
    ) -> None:
        _check_random_access(dataset)
        if torch_arguments.get("in_order") is False:
            raise ValueError(
                "in_order=False delivers batches in an order that no state can name; leave it at True"
            )
        if batch_sampler is not None:
            if sampler is not None or shuffle or batch_size not in (1, None) or drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            if not isinstance(batch_sampler, ResumableBatchSampler):
                raise ValueError(f"batch_sampler must be a ResumableBatchSampler, {_found(batch_sampler)}")
            sampler, batch_size, drop_last = (
                batch_sampler.sampler,
                batch_sampler.batch_size,
                batch_sampler.drop_last,
            )
        elif sampler is None:
            sampler = ResumableSampler(
                dataset, bool(shuffle), seed, num_replicas, rank, remainder, start_offset
            )
        elif not isinstance(sampler, ResumableSampler):
            raise ValueError(f"sampler must be a ResumableSampler, {_found(sampler)}")
        elif shuffle:
            raise ValueError("sampler excludes shuffle; say ResumableSampler(..., shuffle=True)")
        if len(sampler.dataset) != len(dataset):
            raise ValueError(
                f"the sampler is of {len(sampler.dataset)} rows, the dataset has {len(dataset)}; "
                "make it from this dataset"
            )
        self.seed_rows = not isinstance(dataset, DataRef) if seed_rows is None else bool(seed_rows)
        # A DataRef takes an array as it is, which also crosses to a worker faster than a list of ints.
        self._plan = _Plan(sampler, batch_size, drop_last, self.seed_rows, isinstance(dataset, DataRef))
        # torch draws a number from the global generator for each iterator, which would change the user's own
        # random numbers after a resume; from this one it may draw.
        torch_arguments.setdefault("generator", torch.Generator())
        super().__init__(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            **torch_arguments,
        )

    @property
    def _reads_here(self) -> bool:
        """True if no row needs Python: then torch's machinery would cost more than reading."""
        plain = self.num_workers == 0 and self.batch_size is not None and not self.pin_memory
        return plain and not self.seed_rows and isinstance(self.dataset, DataRef)

    @property
    def _index_sampler(self) -> Any:
        # What torch's iterators take indices from. They run ahead of the training loop, so they get a plan
        # that moves nothing; the cursor moves when a batch is delivered.
        return self._plan

    def _get_iterator(self) -> Any:
        if self._reads_here:
            collate: Any = self.collate_fn
            return map(collate, read_batches(cast(DataRef, self.dataset), self._plan))
        if not self.seed_rows:
            return super()._get_iterator()
        # The iterators read `dataset` once; everybody else shall see the user's own.
        dataset = self.dataset
        self.__dict__["dataset"] = _SeededRows(dataset, self._plan.sampler.seed)
        try:
            return super()._get_iterator()
        finally:
            self.__dict__["dataset"] = dataset

    def __iter__(self) -> Any:
        """An iterator over the rest of this epoch, or the next; it begins when a batch is asked for."""
        return _Delivery(self)

    def _start(self, place: Place) -> Any:
        self._plan.start = place
        if isinstance(self.generator, torch.Generator):
            self.generator.manual_seed(_seed64("workers", self._plan.sampler.seed, place.epoch))
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self._plan.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch delivered; see `ResumableSampler.state_dict`."""
        return self._plan.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state, with any number of workers and ranks and any batch size.

        An iterator that has begun before raises StateError when it is asked for more.

        Raises:
            StateError: the state is of another dataset, length, seed or kind of shuffle, or damaged.
                `strict=False` takes its epoch and position all the same.
        """
        self._plan.sampler.load_state_dict(state, strict)

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` of an epoch, of all ranks; see `ResumableBatchSampler.rows_in_step`."""
        return ResumableBatchSampler(self._plan.sampler, self.batch_size or 1, self.drop_last).rows_in_step(
            step, epoch
        )

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch; see `ResumableSampler.position_of`."""
        return self._plan.sampler.position_of(row, epoch)


class _Plan:
    """The indices of one epoch from a place on, for torch's iterators to take as early as they like."""

    def __init__(
        self,
        sampler: ResumableSampler,
        batch_size: int | None,
        drop_last: bool,
        seed_rows: bool,
        arrays: bool,
    ) -> None:
        self.sampler = sampler
        self.start = Place(0, 0)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._seed_rows = seed_rows
        self._arrays = arrays

    def __len__(self) -> int:
        cursor = self.sampler.cursor
        return cursor.shard.steps(cursor.order.length, 0, self._batch_size or 1, self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self._indices(self.start)

    def _indices(self, start: Place) -> Iterator[Any]:
        order, shard = self.sampler.cursor.order, self.sampler.cursor.shard
        if self._batch_size is None:
            for found in chunks(order, shard, *start):
                if self._seed_rows:
                    yield from (_SeededIndex(row, start.epoch) for row in found.tolist())
                else:
                    yield from found.tolist()
            return
        for batch in batches(order, shard, *start, self._batch_size, self._drop_last):
            if self._seed_rows:
                yield _SeededIndices(batch.tolist(), start.epoch)
            else:
                yield batch if self._arrays else batch.tolist()


class _Delivery(Iterator[Any]):
    """One iteration of a loader, telling the cursor of every batch that reaches the training loop."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._start = Place(0, 0)
        self._delivered = self._failed = self._generation = 0
        self._over = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        sampler = self._loader._plan.sampler
        cursor, step = sampler.cursor, (self._loader.batch_size or 1, self._loader.drop_last)
        if self._over:
            raise StopIteration
        if self._batches is None:
            sampler._settle()
            sampler._latest = None
            self._start, self._generation = cursor.begin(*step), cursor.generation
            self._batches = self._loader._start(self._start)
        cursor.check_generation(self._generation)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._over = True
            self._batches = None  # ends the workers, if they are not persistent
            if not self._failed:
                cursor.finished(self._start.epoch)
            raise
        except Exception:
            self._failed += 1
            raise
        # Who goes on after a batch that failed has left it out.
        self._delivered += 1 + self._failed
        self._failed = 0
        cursor.reached(cursor.after(self._start, self._delivered, step[0]), *step)
        return batch


def _check_random_access(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"a {type(dataset).__name__} has no random access, so it can be neither shuffled nor resumed; "
            "cache it once with Storage.submit(dataset, id, version) and load from the DataRef that returns"
        )


def _found(sampler: Any) -> str:
    return f"found {type(sampler).__name__}, whose position could not be restored; use torch's own DataLoader"


def _seed64(*key: int | str) -> int:
    return int.from_bytes(keyed_bytes(8, *key), "little")


class _SeededIndex(int):
    """A row number that carries its epoch to wherever the row is made."""

    epoch: int

    def __new__(cls, row: int, epoch: int) -> _SeededIndex:
        made = super().__new__(cls, row)
        made.epoch = epoch
        return made

    def __reduce__(self) -> Any:
        return _SeededIndex, (int(self), self.epoch)


class _SeededIndices(list[int]):
    """The row numbers of a batch with their epoch."""

    def __init__(self, rows: list[int], epoch: int) -> None:
        super().__init__(rows)
        self.epoch = epoch

    def __reduce__(self) -> Any:
        return _SeededIndices, (list(self), self.epoch)


class _SeededRows:
    """A dataset whose every row is made with random numbers of its own."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: _SeededIndex) -> Any:
        with _own_random_state():
            return self._row(int(index), index.epoch)

    def __getitems__(self, indices: _SeededIndices) -> list[Any]:
        with _own_random_state():
            return [self._row(row, indices.epoch) for row in indices]

    def _row(self, row: int, epoch: int) -> Any:
        seed = _seed64("row", self.seed, epoch, row)
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed)
        return self.dataset[row]


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """Leaves the training loop's random numbers alone when rows are made in its process."""
    if get_worker_info() is not None:
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
