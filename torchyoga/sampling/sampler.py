"""The order as a torch sampler: resumable, elastic, the same rows as a stream of the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..errors import StateError
from ..order.carry import Appended
from ..order.contract import Locality, Shuffle
from ..order.full import as_int
from ..order.options import OrderOptions
from ..order.saved import Saved
from ..order.shard import Remainder, Shard
from ..views.flattened import flattened
from .indices import drawn_seed
from .ordered import OrderedIndices
from .ranks import Group, Ranks
from .resumable import Resumable
from .row_iterator import RowIterator

__all__ = ["ResumableSampler", "in_sequence", "kind_for"]


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
            a cache: see docs/shuffle.md.
        seed: any int, the same on all ranks. None, the default, draws it from torch's global generator when
            the first iteration begins, as RandomSampler does, so that `torch.manual_seed` decides; in a job
            of several processes it is 0, as DistributedSampler's. It is in the state.
        drop_last: True means `remainder="drop"`.
        remainder: `pad` (as DistributedSampler does, all ranks get as many rows, some rows twice), `drop`
            (all get as many, a tail is left out) or `keep` (every row exactly once: right for evaluation).
        start_offset: rows over all ranks that the first iteration leaves out.
        group: the ranks among which rows are divided, where others (tensor or context parallel) see the same
            rows: a DeviceMesh such as `mesh["dp"]`, or a ProcessGroup; in place of num_replicas and rank.
        shuffle_window: with shuffle="block", files mixed with each other at once.
        locality: "shard" gives each rank files of its own, the same in every epoch, so that it need not see
            the others; "global" deals out all rows anew in each epoch.
        appended: when rows come that were appended since a state was saved: "next" after the epoch under
            way, "now" in the rest of it. By default such a state is a StateError.

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
        self.indices = OrderedIndices(dataset, cursor, ranks)
        self.shuffle: Any = cursor.shuffle  # a bool there
        self.drop_last = shard.remainder == "drop"
        self.draws_from: torch.Generator | None = None  # the seed; torch's global generator by default

    def _drawn_seed(self) -> int:
        return drawn_seed(self.draws_from)

    @property
    def _account(self) -> OrderedIndices:
        return self.indices

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
        """What happens to rows that the ranks cannot divide evenly."""
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
        return RowIterator.of(self.indices)

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
        begun = self.indices.begun
        if begun is None:
            raise StateError("no iteration of this sampler has begun since; take state_dict()")
        return begun.state_after(steps, as_int("batch_size", batch_size, low=1), drop_last)

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


def in_sequence(sampler: SequentialSampler) -> ResumableSampler:
    """A sampler of the same rows in the same order, for Lightning's overfit_batches."""
    return SequenceSampler(len(sampler), shuffle=False)
