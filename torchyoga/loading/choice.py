"""The arguments of a loader -> the indices it takes, and how they are cut into batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch.utils.data import BatchSampler, IterableDataset

from ..order.contract import Locality, Shuffle
from ..order.shard import Remainder
from ..rows.types import Index, MapStyle
from ..sampling.batch_sampler import ResumableBatchSampler
from ..sampling.foreign import Foreign
from ..sampling.indices import Indices
from ..sampling.ranks import Group, Ranks
from ..sampling.replay import Replay, is_plain, resumable
from ..sampling.sampler import ResumableSampler, kind_for
from ..sampling.trainers import Seeing, seen_by_lightning
from ..views.flattened import flattened

__all__ = ["Choice", "OwnBatchSampler", "with_random_access"]


class OwnBatchSampler(ResumableBatchSampler):
    """What a loader has made for itself. If it comes as an argument, Lightning makes the loader anew.

    Then it decides alone: Lightning passes `batch_size=1`, too, which subclasses may turn into anything.
    """


@dataclass
class Choice:
    """What a loader takes indices from.

    Attributes:
        shuffle, sampler, batch_sampler, batch_size, drop_last: as they were passed, and then as torch is to
            see them.
        given: a batch sampler that was passed.
        seen_by: Lightning's wrapper around it, which wants to see the rows of each batch.
    """

    shuffle: Shuffle | None
    sampler: Iterable[Index] | None
    batch_sampler: Iterable[Index] | None
    batch_size: int | None
    drop_last: bool
    given: Iterable[Index] | None = None
    seen_by: Seeing | None = None

    def __post_init__(self) -> None:
        self.given, self.seen_by = seen_by_lightning(self.batch_sampler)
        self.batch_sampler = None
        if self.given is not None:
            is_told_more = (
                self.sampler is not None or self.shuffle or self.batch_size not in (1, None) or self.drop_last
            )
            if is_told_more and type(self.given) is not OwnBatchSampler:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            if _cuts_only(self.given):
                self.sampler = self.given.sampler
                self.batch_size, self.drop_last = self.given.batch_size, self.given.drop_last
            else:
                self.batch_sampler, self.batch_size = self.given, None
        elif self.sampler is not None and self.shuffle:
            raise ValueError("sampler excludes shuffle; pass ResumableSampler(..., shuffle=True)")

    @property
    def is_single(self) -> bool:
        """True if single rows are handed out, not batches."""
        return self.batch_size is None and self.batch_sampler is None

    def indices_of(
        self,
        dataset: MapStyle,
        seed: int | None,
        num_replicas: int | None,
        rank: int | None,
        group: Group | None,
        remainder: Remainder,
        start_offset: int,
        shuffle_window: int,
        locality: Locality,
        generator: torch.Generator | None,
    ) -> Indices:
        """The indices, by a sampler of ours where that gives the same as the one passed.

        Raises:
            ValueError: the sampler is not of this dataset, or an argument is out of range.
        """
        if self.sampler is not None and (plain := is_plain(self.sampler, dataset)) is not None:
            self.sampler, self.shuffle = None, plain
        ours: ResumableSampler | None = None
        foreign = self.sampler if self.batch_sampler is None else self.batch_sampler
        if self.sampler is not None:
            ours = resumable(self.sampler, dataset, start_offset, shuffle_window, locality)
        elif self.batch_sampler is None:
            shuffle = False if self.shuffle is None else self.shuffle
            ours = kind_for(shuffle)(
                dataset,
                num_replicas,
                rank,
                shuffle,
                seed,
                remainder=remainder,
                start_offset=start_offset,
                group=group,
                shuffle_window=shuffle_window,
                locality=locality,
            )
            ours.draws_from = generator
        if ours is None:
            assert foreign is not None
            indices: Indices = Replay(
                dataset,
                Foreign(foreign, self.batch_size, self.drop_last, is_batches=self.batch_sampler is not None),
                seed=seed,
                ranks=Ranks(num_replicas, rank, group),
                draws_from=generator,
                fingerprint=getattr(flattened(dataset) or dataset, "fingerprint", None),
            )
        else:
            self.sampler, indices = ours, ours.indices
        if len(indices.dataset) != len(dataset):
            raise ValueError(
                f"the sampler is of {len(indices.dataset)} rows, the dataset has {len(dataset)}; "
                "make it from this dataset"
            )
        return indices

    def batch_sampler_to_show(self, indices: Indices, is_seeded: bool) -> object:
        """A batch sampler for whatever asks for one, such as Accelerate's skip_first_batches.

        None for torch's own.
        """
        if self.seen_by is not None or (self.given is not None and indices.may_repeat):
            return self.seen_by or self.given
        if self.batch_size is None or indices.may_repeat:
            return None
        assert isinstance(self.sampler, ResumableSampler)
        ours = OwnBatchSampler(self.sampler, self.batch_size, self.drop_last)
        ours.is_seeded = is_seeded
        return ours


def with_random_access(dataset: object) -> MapStyle:
    """A dataset, as it is; TypeError if its rows cannot be asked for by number."""
    if isinstance(dataset, IterableDataset) or not _is_map_style(dataset):
        raise TypeError(
            f"a {type(dataset).__name__} has no random access, so it can be neither shuffled nor resumed; "
            "cache it once with Storage.submit(dataset, id, version) and load from the DataRef that returns"
        )
    return dataset


def _is_map_style(dataset: object) -> TypeGuard[MapStyle]:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _cuts_only(batch_sampler: object) -> TypeGuard[BatchSampler]:
    """True for a batch sampler that cuts its sampler's rows into batches and does nothing else."""
    return type(batch_sampler) is BatchSampler or (
        isinstance(batch_sampler, ResumableBatchSampler)
        and type(batch_sampler).__iter__ is ResumableBatchSampler.__iter__
    )
