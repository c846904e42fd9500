"""The order as torch samplers: resumable, elastic, the same rows as a stream of the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import BatchSampler, DistributedSampler

from .cursor import Cursor, Place
from .dataref import DataRef
from .errors import StateError
from .order import Order, Remainder, Shard, as_int, batches, chunks

__all__ = ["ResumableBatchSampler", "ResumableSampler"]


def _replica(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """The arguments, else what an initialised torch.distributed says, else 1 and 0."""
    if (num_replicas is None) != (rank is None):
        raise ValueError(f"give both num_replicas and rank, or neither; found {num_replicas} and {rank}")
    if num_replicas is not None and rank is not None:
        return num_replicas, rank
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


class ResumableSampler(DistributedSampler[int]):
    """Row numbers for torch's DataLoader, in place of `DistributedSampler` or `RandomSampler`.

    Every epoch is a new full shuffle, without `set_epoch`; memory does not grow with the dataset. The state
    may be loaded under any other number of ranks: `position` counts rows of the whole dataset, over all
    ranks.

    With worker processes torch asks a sampler for rows well before they are delivered; `torchyoga.DataLoader`
    and torchdata's `StatefulDataLoader` account for that, a plain DataLoader with `num_workers > 0` cannot.

    Args:
        dataset_or_length: a dataset with a length, or a number of rows.
        shuffle: False for rows in order.
        seed: any int, the same on all ranks.
        num_replicas: number of ranks; with `rank`, or from an initialised `torch.distributed`, or 1.
        rank: this rank.
        remainder: `pad` (as DistributedSampler does, all ranks get as many rows, some rows twice), `drop`
            (all get as many, a tail is left out) or `keep` (every row exactly once: right for evaluation).
        start_offset: rows over all ranks that the first iteration leaves out.
        drop_last: True means `remainder="drop"`, for those used to DistributedSampler.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> sampler = ResumableSampler(10, seed=7)
        >>> first = list(sampler)
        >>> sampler = ResumableSampler(10, seed=7, start_offset=4)
        >>> list(sampler) == first[4:]
        True
    """

    def __init__(  # the base class would insist on torch.distributed
        self,
        dataset_or_length: Sized | int,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        drop_last: bool = False,
    ) -> None:
        num_replicas, rank = _replica(num_replicas, rank)
        sized = hasattr(dataset_or_length, "__len__")
        length = (
            len(cast(Sized, dataset_or_length))
            if sized
            else as_int("dataset_or_length", dataset_or_length, low=0)
        )
        self.dataset: Any = dataset_or_length if sized else range(length)
        shard = Shard(num_replicas, rank, "drop" if drop_last else remainder)
        fingerprint = getattr(dataset_or_length, "fingerprint", None)
        self.cursor = Cursor(
            Order(length, seed, bool(shuffle)),
            shard,
            start_offset,
            fingerprint if isinstance(fingerprint, str) else None,
        )
        self.num_replicas, self.rank = shard.num_replicas, shard.rank
        self.shuffle, self.seed, self.drop_last = (
            bool(shuffle),
            self.cursor.order.seed,
            shard.remainder == "drop",
        )
        self.num_samples = shard.count(length)
        self.total_size = self.num_samples * shard.num_replicas
        self._latest: _Indices | None = None

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch under way, or about to begin."""
        self._settle()
        return self.cursor.epoch

    def __len__(self) -> int:
        """Rows of a whole epoch on this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """An iterator over the rest of this epoch, or the next. It begins when its first row is asked for."""
        return _Indices(self)

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin. Nobody needs to call it: epochs advance by themselves.

        The epoch under way keeps its place, a larger one begins at its start. A smaller one right after
        `load_state_dict` comes from a trainer that counts from 0 again: it is taken to mean the loaded epoch,
        with a warning, and later calls count on from there.
        """
        self._settle()
        self._latest = None
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """`{version, seed, epoch, position, length, shuffle, fingerprint}`; the same on every rank."""
        self._settle()
        return self.cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state, under any number of ranks.

        Raises:
            StateError: it is of another dataset, length, seed or kind of shuffle, or damaged. `strict=False`
                takes its epoch and position all the same.
        """
        self._latest = None
        self.cursor.load_state_dict(state, strict)

    def rows_at(self, positions: npt.ArrayLike, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows at these positions of the global order of an epoch (this one, by default)."""
        return self.cursor.order.rows(self.epoch if epoch is None else epoch, positions)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch: the inverse of `rows_at`."""
        return int(self.cursor.order.positions(self.epoch if epoch is None else epoch, [row])[0])

    def _settle(self) -> None:
        """Tells the cursor what the iterator that moved last has handed out."""
        if self._latest is not None:
            self._latest.report()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {**self.__dict__, "_latest": None}


class _Indices(Iterator[int]):
    """One iteration of a sampler. Counts nothing per row: a list iterator knows how much it has left."""

    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler = sampler
        self._chunk: Iterator[int] = iter(())
        self._chunks: Iterator[npt.NDArray[np.int64]] | None = None
        self._taken = 0  # rows up to the end of the current chunk
        self._start = Place(0, 0)
        self._end = self._generation = 0
        self._over = False

    def __next__(self) -> int:
        for index in self._chunk:
            self._sampler._latest = self
            return index
        return self._next_chunk()

    def _next_chunk(self) -> int:
        sampler, cursor = self._sampler, self._sampler.cursor
        if self._over:
            raise StopIteration
        if self._chunks is None:
            sampler._settle()
            self._start, self._generation = cursor.begin(), cursor.generation
            self._end = cursor.shard.end(cursor.order.length, self._start.position)
            self._chunks = chunks(cursor.order, cursor.shard, *self._start)
        cursor.check_generation(self._generation)
        found = next(self._chunks, None)
        if found is None:
            if sampler._latest in (self, None):
                self.report()
                cursor.finished(self._start.epoch)
                sampler._latest = None
            self._over = True
            raise StopIteration
        self._taken += len(found)
        wanted = found.tolist()
        if isinstance(sampler.dataset, DataRef):
            sampler.dataset.expect(wanted, found)
        self._chunk = iter(wanted)
        return next(self)

    def _place(self) -> Place:
        taken = self._taken - self._chunk.__length_hint__()  # type: ignore[attr-defined]
        position = self._start.position + taken * self._sampler.num_replicas
        return Place(self._start.epoch, min(position, self._end))

    def report(self) -> None:
        cursor = self._sampler.cursor
        if self._generation == cursor.generation and not self._over:
            cursor.reached(self._place())

    def state_dict(self) -> dict[str, Any]:
        """The state after the rows that this iterator has handed out."""
        cursor = self._sampler.cursor
        return cursor.state_at(cursor.begin() if self._chunks is None else cursor.rolled(self._place()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; StateError once the first row has been handed out."""
        if self._chunks is not None:
            raise StateError(
                "this iterator has begun already; load the state before the first row, or into the sampler"
            )
        self._sampler.load_state_dict(state)


class ResumableBatchSampler(BatchSampler):
    """Batches of row numbers, with the state counted in whole batches.

    Args:
        sampler: a `ResumableSampler`.
        batch_size: rows of a batch, on each rank.
        drop_last: leave out a shorter last batch.

    Example:
        >>> batches = ResumableBatchSampler(ResumableSampler(10, shuffle=False), batch_size=4)
        >>> list(batches)
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(sampler, ResumableSampler):
            raise ValueError(
                f"sampler must be a ResumableSampler, found {type(sampler).__name__}; wrap its dataset in one"
            )
        self.sampler: ResumableSampler = sampler
        self.batch_size = as_int("batch_size", batch_size, low=1)
        self.drop_last = bool(drop_last)

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        cursor = self.sampler.cursor
        return cursor.shard.steps(cursor.order.length, 0, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return BatchRun(self, self.sampler.cursor)

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `ResumableSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """See `ResumableSampler.load_state_dict`."""
        self.sampler.load_state_dict(state, strict)

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` (from 0) of an epoch begun at its start, of all ranks: those behind a loss
        spike.

        Rank r's own are every `num_replicas`-th from r on. Rows that `pad` repeats are there twice.
        """
        cursor = self.sampler.cursor
        size = self.batch_size * cursor.shard.num_replicas
        positions = np.arange(
            size * as_int("step", step, low=0), min(size * (step + 1), cursor.shard.end(cursor.order.length))
        )
        if not len(positions):
            raise ValueError(f"step must be in 0..{len(self) - 1}, found {step}")
        return self.sampler.rows_at(positions, epoch)


class BatchRun(Iterator[list[int]]):
    """One iteration in batches; it begins when its first batch is asked for."""

    def __init__(self, batch_sampler: ResumableBatchSampler, cursor: Cursor) -> None:
        self._source = batch_sampler
        self._cursor = cursor
        self._batches: Iterator[npt.NDArray[np.int64]] | None = None
        self._start = self._place = Place(0, 0)
        self._taken = self._generation = 0

    def __next__(self) -> list[int]:
        cursor, step = self._cursor, (self._source.batch_size, self._source.drop_last)
        if self._batches is None:
            self._source.sampler._settle()
            self._source.sampler._latest = None
            self._start, self._generation = cursor.begin(*step), cursor.generation
            self._batches = batches(cursor.order, cursor.shard, *self._start, *step)
        cursor.check_generation(self._generation)
        batch = next(self._batches, None)
        if batch is None:
            cursor.finished(self._start.epoch)
            raise StopIteration
        self._taken += 1
        cursor.reached(cursor.after(self._start, self._taken, step[0]), *step)
        self._place = cursor.after(self._start, self._taken, step[0])
        return cast("list[int]", batch.tolist())

    def state_dict(self) -> dict[str, Any]:
        """The state after the batches that this iterator has handed out."""
        step = self._source.batch_size, self._source.drop_last
        if self._batches is None:
            return self._source.state_dict()
        return self._cursor.state_at(self._cursor.rolled(self._place, *step))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; StateError once the first batch has been handed out."""
        if self._batches is not None:
            raise StateError("this iterator has begun already; load the state before the first batch")
        self._source.load_state_dict(state)
