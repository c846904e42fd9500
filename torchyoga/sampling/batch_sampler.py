"""Batches of row numbers for torch's DataLoader: resumable, elastic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, SequentialSampler

from ..errors import StateError
from ..order.iteration import Iteration, IterationOptions
from ..order.place import Remainder, batches
from ..order.saved import Saved
from ..process.numbers import as_int
from .indices import Resumable, are_skipped
from .sampler import ResumableSampler, in_sequence
from .trainers import batches_of_torch, num_skipped


class ResumableBatchSampler(Resumable, BatchSampler):
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

    def __init__(
        self, sampler: ResumableSampler | SequentialSampler, batch_size: int, drop_last: bool = False
    ) -> None:
        if type(sampler) is SequentialSampler:
            sampler = in_sequence(sampler)
        if not isinstance(sampler, ResumableSampler):
            raise ValueError(
                f"sampler must be a ResumableSampler, found {type(sampler).__name__}; wrap its dataset in one"
            )
        self.sampler: ResumableSampler = sampler
        self._indices = sampler.indices
        self.batch_size = as_int("batch_size", batch_size, low=1)
        self.drop_last = bool(drop_last)
        self.is_seeded = False  # True if a loader of ours seeds the rows

    def __len__(self) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come."""
        return self.sampler.indices.num_steps(self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return BatchIterator(self)

    def __repr__(self) -> str:
        return f"ResumableBatchSampler(batch_size={self.batch_size}, {self.sampler.indices})"

    @property
    def even_batches(self) -> bool:
        """False if ranks may have different numbers of rows: Accelerate's word for `remainder="keep"`."""
        return self.sampler.remainder != "keep"

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        shard = self.sampler.indices.cursor.shard
        even: Remainder = "drop" if self.sampler.drop_last else "pad"
        self.sampler.indices.cursor.shard = replace(shard, remainder=even if value else "keep")

    @property
    def steps(self) -> int:
        """Batches of the epoch before the next one on this rank: 0 at its beginning, more after a resume."""
        return self.sampler.indices.steps_before(self.batch_size, self.drop_last)

    def state_after(self, steps: int) -> Saved:
        """The state after so many batches of this iteration; see `ResumableSampler.state_after`."""
        return self.sampler.state_after(steps, self.batch_size, self.drop_last)

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` (from 0) of an epoch begun at its start, of all ranks: those behind a loss
        spike.

        Rank r's own are every `num_replicas`-th from r on. Rows that `pad` repeats come twice.
        """
        return self.sampler.indices.rows_in_step(step, self.batch_size, self.drop_last, epoch)


class BatchIterator(Iterator[list[int]]):
    """Batches of row numbers; the iteration begins when the first one is asked for."""

    def __init__(self, batch_sampler: ResumableBatchSampler) -> None:
        self._source = batch_sampler
        self._made = batch_sampler.sampler.indices.cursor.num_begun
        self._iteration: Iteration | None = None
        self._batches: Iterator[npt.NDArray[np.int64]] = iter(())
        self._done = 0  # batches that the caller will throw away, as it has done them before

    def __next__(self) -> list[int]:
        with self._source.sampler.indices.cursor.lock:
            return self._next()

    def _next(self) -> list[int]:
        iteration, source, indices = self._iteration, self._source, self._source.sampler.indices
        cursor = indices.cursor
        if iteration is None:
            _, asked = batches_of_torch()
            iteration = indices.begin(
                IterationOptions(source.batch_size, source.drop_last, made=self._made, asked=asked)
            )
            self._iteration = iteration
            iteration.hold(self)
            indices.begun = iteration
            skipped = num_skipped()
            if skipped and source.is_seeded:
                raise StateError(
                    "skip_first_batches would make rows without the random numbers that the loader gives "
                    "them, so augmentation would differ from that of a whole run; delete that line, and "
                    "load the loader's state_dict() or make it with start_offset=..., or with seed_rows=False"
                )
            self._done = skipped if are_skipped(iteration, skipped) else 0
            self._batches = batches(
                cursor.order, iteration.shard, iteration.start, source.batch_size, source.drop_last
            )
        cursor.check_generation(iteration.generation)
        if self._done:
            self._done -= 1
            return []
        batch = next(self._batches, None)
        if batch is None:
            cursor.finished(iteration)
            raise StopIteration
        iteration.advance()
        if cursor.latest is not iteration:
            cursor.moved(iteration)
        return cast("list[int]", batch.tolist())

    def state_dict(self) -> Saved:
        """The state after the batches that this iterator has handed out."""
        iteration, cursor = self._iteration, self._source.sampler.indices.cursor
        if iteration is None:
            return self._source.state_dict()
        return cursor.state_of(iteration)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues from a state; StateError once the first batch has been handed out."""
        if self._iteration is not None:
            raise StateError("this iterator has begun already; load the state before the first batch")
        self._source.load_state_dict(state)
