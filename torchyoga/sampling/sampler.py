"""The order as a torch sampler, of rows or of batches: resumable and elastic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from ..errors import StateError
from ..order.contract import Appended, Locality, Saved, Shuffle
from ..order.epoch import Iteration, IterationOptions
from ..order.options import OrderOptions
from ..order.place import Remainder, Shard, chunks
from ..process.numbers import as_int
from ..reading.dataref import DataRef
from ..views.flattened import flattened
from .indices import Indices, Resumable, are_skipped, drawn_seed
from .ranks import Group, Ranks
from .trainers import batches_of_torch, num_skipped

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class ResumableSampler(Resumable, DistributedSampler[int]):
    """Row numbers for torch's DataLoader, in place of `DistributedSampler` or `RandomSampler`.

    Every epoch is a new full shuffle, without `set_epoch`; memory does not grow with the dataset. The state
    may be loaded under any other number of ranks: `position` counts rows of the whole dataset, over all
    ranks.

    With worker processes torch asks a sampler for rows well before they are delivered; `torchyoga.DataLoader`
    and torchdata's `StatefulDataLoader` account for that. With a plain DataLoader and `num_workers > 0` count
    the steps of your loop, and save `state_after(steps, batch_size)`.

    Args:
        dataset_or_length: a dataset with a length, or a number of rows.
        num_replicas: number of ranks; by default that of `torch.distributed`, whenever it is initialised,
            or 1.
        rank: this rank; give both or neither.
        shuffle: False for rows in order; "block" mixes a few files at a time, for data larger than memory or
            a cache: see docs/resume.md.
        seed: any int, the same on all ranks. None, the default, draws it from torch's global generator when
            the first iteration begins, so that `torch.manual_seed` decides, and one number more at each
            later epoch, as RandomSampler does. With num_replicas and rank, with group, and in a job of
            several processes it is 0, as DistributedSampler's. It is in the state.
        drop_last: True means `remainder="drop"`.
        remainder: `pad` (as DistributedSampler does, all ranks get as many rows, some rows twice), `drop`
            (all get as many, a tail is left out) or `keep` (every row exactly once: right for evaluation).
        start_offset: positions of the order, over all ranks, that the first iteration leaves out. In a
            shuffled order these are any rows; `ref[n:]` leaves out the first n rows, in every epoch.
        group: the ranks among which rows are divided, where others (tensor or context parallel) see the same
            rows: a DeviceMesh such as `mesh["dp"]`, or a ProcessGroup; in place of num_replicas and rank.
        shuffle_window: with shuffle="block", the number of files that are mixed with each other at a time.
        locality: "shard" gives each rank files of its own, the same in every epoch, so it never reads those
            of other ranks; "global" divides all rows among the ranks again in each epoch.
        appended: "next" accepts a state that was saved before rows were appended: the new rows come from the
            next epoch on. By default such a state raises StateError.

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
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: Shuffle = True,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        group: Group | None = None,
        shuffle_window: int = 8,
        locality: Locality = "global",
        appended: Appended | None = None,
    ) -> None:
        ranks = Ranks(num_replicas, rank, group)
        dataset: Sized = (
            range(as_int("dataset_or_length", dataset_or_length, low=0))
            if isinstance(dataset_or_length, int) or not isinstance(dataset_or_length, Sized)
            else dataset_or_length
        )
        self.dataset: Any = dataset  # torch's base class says less of it
        shard = Shard(*ranks.now(), "drop" if drop_last else remainder)
        source = flattened(dataset_or_length)
        options = OrderOptions(shuffle, seed, True, shuffle_window, locality, shard, start_offset, appended)
        cursor = options.cursor_of(dataset_or_length if source is None else source, self._drawn_seed)
        self.indices = self._indices = Indices(dataset, cursor, ranks)
        self.shuffle: Any = cursor.shuffle  # a bool there
        self.drop_last = shard.remainder == "drop"
        self.draws_from: torch.Generator | None = None  # the seed; torch's global generator by default

    def _drawn_seed(self, for_order: bool) -> int:
        return drawn_seed(self.draws_from, self.indices.ranks, for_order)

    @property
    def seed(self) -> int | None:  # type: ignore[override]
        """The seed; None as long as it is still to be drawn."""
        return self.indices.cursor.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch under way, or about to begin."""
        return self.indices.epoch

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of ranks."""
        return self.indices.num_replicas

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This rank."""
        return self.indices.rank

    @property
    def remainder(self) -> Remainder:
        """The fate of rows that the ranks cannot divide evenly."""
        return self.indices.cursor.shard.remainder

    @property
    def data_source(self) -> Sized:
        """The dataset, as torch's samplers call it."""
        found: Sized = self.dataset
        return found

    @property
    def locality(self) -> Locality:
        """ "shard" if each rank has files of its own, else "global"."""
        return self.indices.locality

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Rows of a whole epoch on this rank."""
        cursor = self.indices.located
        return cursor.shard.count(cursor.length)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Rows of a whole epoch on all ranks, if all have as many as this one."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        """Rows of a whole epoch on this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """An iterator over the rest of this epoch, or the next. It begins when its first row is asked for."""
        return _SamplerIterator[int](self)

    def _handed_out(self, begun: _Begun) -> Iterator[int]:
        """The rows of an iteration, in one loop: a call for each row would take as long as all else."""
        indices, cursor = self.indices, self.indices.cursor
        size, tasks = batches_of_torch()
        iteration = indices.begin_for(begun, IterationOptions(in_rows=size, asked=tasks))
        begun.iteration = iteration
        readahead = indices.dataset._readahead if isinstance(indices.dataset, DataRef) else None
        for numbers in chunks(cursor.order, iteration.shard, iteration.start):
            wanted = numbers.tolist()
            for some in [wanted] if readahead is None else readahead.handed_out(wanted, numbers):
                for row in some:
                    if iteration.generation != cursor.generation:
                        cursor.check_generation(iteration.generation)
                    iteration.taken += 1
                    if cursor.latest is not iteration:
                        cursor.moved(iteration)
                    yield row
        cursor.check_generation(iteration.generation)
        cursor.finished(iteration)

    def state_after(self, steps: int, batch_size: int, drop_last: bool = False) -> Saved:
        """The state after so many batches of this iteration, whatever has been handed out ahead.

        Args:
            steps: batches that your loop has done since this iteration began, on this rank.
            batch_size: rows of a batch.
            drop_last: the loader leaves out a shorter last batch.

        Raises:
            StateError: no iteration has begun, or a state was loaded since.
            ValueError: so many have not been handed out.

        Example:
            >>> sampler = ResumableSampler(100, seed=7)
            >>> handed = [next(iterator) for iterator in [iter(sampler)] for _ in range(40)]
            >>> sampler.state_after(2, batch_size=16)["position"]  # of 40 rows handed out
            32
        """
        return self.indices.state_after_batches(steps, batch_size, drop_last)

    def rows_at(self, positions: npt.ArrayLike, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows at these positions of the global order of an epoch (this one, by default)."""
        return self.indices.rows_at(positions, epoch)

    def __repr__(self) -> str:
        name = "ResumableSampler" if type(self).__module__ == __name__ else type(self).__name__
        return f"{name}({self.indices})"


class ShuffledSampler(ResumableSampler, RandomSampler):  # type: ignore[override]
    """A loader's sampler if it shuffles: trainers ask whether it is a RandomSampler."""

    replacement, generator = False, None


class SequenceSampler(ResumableSampler, SequentialSampler):  # type: ignore[override]
    """A loader's sampler with `shuffle=False`: trainers ask whether it is a SequentialSampler."""


def kind_for(shuffle: Shuffle | None) -> type[ResumableSampler]:
    """The class of the sampler that a loader makes, as torch's loaders do."""
    return ShuffledSampler if shuffle else SequenceSampler


class _Begun:
    """What an iterator and its generator hold, and nothing else: it lives as long as they do.

    Args:
        made: how many iterations had begun when the iterator was made.

    Attributes:
        iteration: theirs, once the first row or batch was asked for.
    """

    def __init__(self, made: int) -> None:
        self.made = made
        self.iteration: Iteration | None = None


class _SamplerIterator(chain[T]):
    """One iteration of a sampler, which begins when its first row or batch is asked for.

    It is a `chain` over one generator, because that has methods and is as fast as the generator.
    """

    _source: ResumableSampler | ResumableBatchSampler
    _begun: _Begun

    def __new__(cls, source: ResumableSampler | ResumableBatchSampler) -> Self:
        begun = _Begun(source._indices.cursor.num_begun)
        made = super().__new__(cls, cast("Iterator[T]", source._handed_out(begun)))
        made._source, made._begun = source, begun
        return made

    def state_dict(self) -> Saved:
        """The state after what this iterator has handed out."""
        if self._begun.iteration is None:
            return self._source.state_dict()
        return self._source._indices.cursor.state_of(self._begun.iteration)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues from a state; StateError once the first row or batch has been handed out."""
        if self._begun.iteration is not None:
            raise StateError(
                "this iterator has begun already; load the state before its first item, or into the sampler"
            )
        self._source.load_state_dict(state)


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
            sampler = SequenceSampler(len(sampler), shuffle=False)  # of Lightning's overfit_batches
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
        return _SamplerIterator[list[int]](self)

    def _handed_out(self, begun: _Begun) -> Iterator[list[int]]:
        """The batches of an iteration; empty ones in place of those that the caller throws away."""
        indices, cursor = self.sampler.indices, self.sampler.indices.cursor
        _, tasks = batches_of_torch()
        options = IterationOptions(self.batch_size, self.drop_last, made=begun.made, asked=tasks)
        begun.iteration = iteration = indices.begin_for(begun, options)
        skipped = num_skipped()
        if skipped and self.is_seeded:
            raise StateError(
                "skip_first_batches would make rows without the random numbers that the loader gives "
                "them, so augmentation would differ from that of a whole run; delete that line, and "
                "load the loader's state_dict() or make it with start_offset=..., or with seed_rows=False"
            )
        yield from [[]] * (skipped if are_skipped(iteration, skipped) else 0)
        for batch in indices.batches(iteration, self):
            cursor.check_generation(iteration.generation)
            iteration.advance()
            if cursor.latest is not iteration:
                cursor.moved(iteration)
            yield batch.tolist()
        cursor.check_generation(iteration.generation)
        cursor.finished(iteration)

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
