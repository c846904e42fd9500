"""torch's DataLoader, counting what was delivered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, IterableDataset

from ..errors import StateError
from ..order.contract import Appended, Locality, Saved, Shuffle, check_appended
from ..order.place import Remainder
from ..process.control_group import usable_cpus
from ..process.lazy import later
from ..process.messages import warn_user
from ..reading.dataref import DataRef
from ..reading.instead import check_arguments
from ..rows.types import Batch, BatchT, Collate, Index, MapStyle, Row
from ..sampling import trainers
from ..sampling.indices import Indices, Resumable
from ..sampling.ranks import Group, Ranks
from ..sampling.redrawn import RedrawnIndices, is_plain, resumable
from ..sampling.sampler import ResumableBatchSampler, ResumableSampler, kind_for
from ..sampling.seeding import Quiet
from ..sampling.user_sampler import UserSampler
from ..tables.interchange import recognised
from ..views.flattened import flattened
from .accelerate import Accelerated, AcceleratePrepared, show_to_accelerate
from .delivery import Delivery, Pipeline
from .plan import ChosenNumber, EpochIndices, Way, first_number, way_of

if TYPE_CHECKING:
    from ..tools import auto_meter as _auto_meter
    from ..tools import meter as _meter
else:  # they lie above this room; the first is loaded with the first loader
    _meter, _auto_meter = later("torchyoga.tools.meter"), later("torchyoga.tools.auto_meter")


class DataLoader(Resumable, AcceleratePrepared, torch.utils.data.DataLoader[BatchT]):
    """torch's DataLoader with a seed and a state: stop after any batch, continue anywhere.

    It takes torch's arguments, in torch's order. The state counts the batches that the training loop got, not
    those fetched ahead, so it is exact for any number of workers. It loads under another number of workers or
    ranks and with another batch size. With a sampler of another library it loads only on the same number of
    ranks and with the same batch size: see docs/resume.md.

    Args:
        dataset: any map-style dataset, cached or not; or a table, a DataFrame or a `datasets.Dataset`.
        batch_size: rows of a batch on each rank; None gives single rows.
        shuffle: True shuffles all rows, in another order each epoch; "block" mixes a few files at a time: see
            docs/resume.md.
        sampler: a `ResumableSampler`, in place of `shuffle`, `seed`, `num_replicas`, `rank`, `remainder`,
            `start_offset`, `shuffle_window`, `locality`. torch's DistributedSampler and SequentialSampler,
            and a RandomSampler without arguments, are replaced by one. Any other sampler, or a list of
            indices, is drawn again after a resume; while it draws, `random`, NumPy and torch are seeded from
            (seed, epoch).
        batch_sampler: a `ResumableBatchSampler`, torch's `BatchSampler` over any of these samplers, or any
            other, in place of the same arguments and of `batch_size` and `drop_last`.
        generator: if `seed` is None, this gives the seed, in place of torch's global generator.
        seed: any int, the same on all ranks. The order and the random numbers of `seed_rows` follow from it.
            If it is None, the default, the seed is drawn when the first iteration begins, so
            `torch.manual_seed` decides it. If ranks are given, or in a job of several processes, it is 0. See
            `ResumableSampler`.
        num_replicas, rank: the number of ranks, and this one. By default those of `torch.distributed`,
            whenever that is initialised, else 1 and 0.
        remainder: `pad`, `drop` or `keep`, see `ResumableSampler`; for evaluation use `keep`, but
            under Accelerate `pad`.
        start_offset: positions of the order, over all ranks, that the first iteration leaves out. In a
            shuffled order these are any rows; `ref[n:]` leaves out the first n rows, in every epoch.
        seed_rows: True seeds `random`, NumPy and torch for each row from (seed, epoch, row), so augmentation
            is the same for any number of workers and ranks and after a resume. It costs about 10 us a row,
            and by default about 2 us for a row that draws nothing. By default it is True for a dataset that
            may draw random numbers: not for a DataRef that only reads, a list, an array, a TensorDataset, or
            torch's subsets of these. A dataset with `__getitems__` makes each batch by one call as long as
            that call draws nothing: see docs/resume.md. Your own `collate_fn` is also seeded, whatever the
            dataset, for each batch from (seed, epoch, position of its first row): its results are the same
            for any number of workers, and after a resume with the same ranks and batch size. False turns both
            off.
        group: the ranks that divide the rows, see `ResumableSampler`.
        shuffle_window: with shuffle="block", the number of files that are mixed with each other at a time.
        locality: "shard" gives each rank files of its own, see `ResumableSampler`.
        appended: whether a state that was saved before rows were appended is accepted, see
            `ResumableSampler`.
        num_workers: the number of worker processes; of threads if rows are only copied and none of your code
            runs, unless `worker_init_fn`, `multiprocessing_context`, `timeout` or `in_order=False` is given.
            "auto" begins with none and takes as many as the waiting loop needs, at any batch: rows, their
            order and the state stay the same. `loader.meter.choice` says what was chosen.
        **torch_arguments: the other arguments of `torch.utils.data.DataLoader`. Unlike torch's,
            `prefetch_factor` also holds for a DataRef with `num_workers=0`: it is the number of batches that
            a thread reads ahead (2 by default, 0 for none), unless rows are seeded or come one by one. With
            `in_order=False` (from torch 2.6 on) the state names the batches that came early. On several ranks
            batches come in order all the same, so that the state is equal on each.

    Raises:
        ValueError: an argument is out of range, or torch refuses it.
        TypeError: the dataset cannot give rows by number.

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

    _taken_from_lightning: Sequence[Saved] | None = None  # states that are not to be taken again

    def __init__(
        self,
        dataset: MapStyle | Dataset[Row],
        batch_size: int | None = 1,
        shuffle: Shuffle | None = None,
        sampler: Iterable[Index] | None = None,
        batch_sampler: Iterable[Index] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        seed_rows: bool | None = None,
        group: Group | None = None,
        shuffle_window: int = 8,
        locality: Locality = "global",
        appended: Appended | None = None,
        **torch_arguments: Any,
    ) -> None:
        check_arguments(
            "DataLoader", torch_arguments, DataLoader.__init__, torch.utils.data.DataLoader.__init__
        )
        check_appended(appended)
        dataset = _with_random_access(dataset)
        number = first_number(num_workers, {"worker_init_fn": worker_init_fn, **torch_arguments})
        torchs = {
            # torch checks what is given for workers
            "num_workers": usable_cpus() if isinstance(number, ChosenNumber) else number,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            **torch_arguments,
        }
        choice = _Choice(shuffle, sampler, batch_sampler, batch_size, drop_last)
        order = _Order(num_replicas, rank, group, remainder, seed, start_offset, shuffle_window, locality)
        self._indices = indices = choice.indices_of(dataset, order, generator)
        if appended is not None:
            indices.cursor.appended = appended
        indices.seed_rows = seed_rows = indices.seed_rows if seed_rows is None else seed_rows
        read = flattened(dataset)
        ways = partial(way_of, dataset, read, choice.is_single, indices.is_known_ahead, seed_rows, torchs)
        self._plan(choice, ways, number, dataset if read is None else read)
        self._accelerated = Accelerated()
        super().__init__(
            cast("Dataset[BatchT]", dataset),
            batch_size=choice.batch_size if choice.batch_sampler is None else 1,
            sampler=choice.sampler,
            batch_sampler=choice.batch_sampler,
            drop_last=choice.drop_last,
            generator=generator,
            **(torchs if torchs["num_workers"] or read is None else {**torchs, "prefetch_factor": None}),
        )
        self.num_workers = number
        self._show(choice, torch_arguments.get("prefetch_factor"))

    def _plan(self, choice: _Choice, ways: Callable[[int], Way], number: int, source: MapStyle) -> None:
        """Decides how batches are made by so many workers, and who counts what that takes."""
        indices = self._indices
        plan = EpochIndices(
            indices, ways(number), choice.batch_size or 1, choice.drop_last, source, choice.seen_by
        )
        # A sampler that draws when it is asked would draw others, if it were asked ahead.
        follows_meter = isinstance(number, ChosenNumber) and indices.is_known_ahead
        self._meter = (_auto_meter.AutoMeter if follows_meter else _meter.Meter)(plan.watch.by_name)
        self._pipeline = Pipeline(plan, Quiet(is_asked=indices.seed_rows is None), self._meter, ways)

    def _show(self, choice: _Choice, prefetch_factor: int | None) -> None:
        """Shows trainers, Lightning first, and states what they look for in attributes."""
        indices, way, dataset = self._indices, self._pipeline.way, self.dataset
        # As it was passed: Lightning makes new loaders with it.
        self.__dict__["seed_rows"] = indices.seed_rows
        if prefetch_factor is not None and not self.num_workers:
            self.prefetch_factor = way.num_ahead
        trainers.name_arguments(self)
        is_seeded = way.seeds_rows or way.seeds_batches
        indices.cursor.needs_seed |= is_seeded
        if isinstance(dataset, DataRef) and dataset._libraries:
            indices.cursor.extra["libraries"] = ", ".join(sorted(dataset._libraries))
        shown = choice.batch_sampler_to_show(indices, is_seeded)
        if shown is not None:
            self.__dict__["batch_sampler"] = shown

    def __len__(self) -> int:
        """Batches of the current epoch: those already delivered, on any number of ranks, and those to come.

        Trainers compare this number with the batches that they have counted, so delivered batches must be in
        it after a resume on other ranks.

        In a process with an Accelerator it is the number of batches of all processes, as torch's is, until
        the loader is prepared or iterated: learning rates are planned by it. If a `Checkpoint` has resumed
        within the epoch, it is the number of batches that are left, so `enumerate(loader)` counts up to it,
        until the loop asks for `steps`.
        """
        if self._may_be_prepared:
            return self._indices.num_steps_undivided(self.batch_size or 1, self.drop_last)
        if not trainers.is_planning_epochs():
            return self._pipeline.observer.length(len(self._pipeline.plan))
        # Lightning asks once, for all epochs, and before it loads a state.
        left = trainers.left_by_lightning(self)
        state = None if left is None else left[1]
        return self._indices.most_steps(self.batch_size or 1, self.drop_last, state)

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more worker processes than CPUs; never of threads."""
        if self._pipeline.way.kind != "threads":
            super().check_worker_number_rationality()

    @property
    def _may_be_prepared(self) -> bool:
        """True if Accelerate will probably prepare this loader for one of several processes."""
        latest = self._pipeline.latest  # not a look at a first batch, `next(iter(loader))`
        has_begun = latest is not None and (latest.is_held or latest.is_over or latest.num_delivered > 1)
        is_settled = self._accelerated.is_prepared or has_begun or not self._indices.ranks.follows
        return not is_settled and trainers.is_before_prepare() and self._indices.num_replicas > 1

    @property
    def steps(self) -> int:
        """Batches of the epoch that this rank has got: 0 at its beginning, more after a resume.

        `enumerate(loader, loader.steps)` therefore counts the batches of an epoch up to `len(loader) - 1`.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=4)
            >>> loader.load_state_dict({**loader.state_dict(), "position": 4, "steps": 1, "proof": None})
            >>> [step for step, batch in enumerate(loader, loader.steps)], loader.steps, loader.epoch
            ([1, 2], 0, 1)
        """
        before = self._indices.steps_before(self.batch_size or 1, self.drop_last)
        return self._pipeline.observer.steps(before)

    @property
    def seed_rows(self) -> bool:
        """True if each row has random numbers of its own; see the argument."""
        return self._pipeline.way.seeds_rows

    @property
    def meter(self) -> _meter.Meter:
        """How long the training loop waited for data, and for what: see docs/measure.md.

        Example:
            >>> loader = DataLoader(list(range(100)), batch_size=4)
            >>> rows = [batch for batch in loader]
            >>> loader.meter.epoch.batches, loader.meter.epoch.waited > 0
            (25, True)
        """
        return self._meter

    @property
    def total_batch_size(self) -> int:
        """Rows of a batch on all ranks."""
        return (self.batch_size or 1) * self._indices.num_replicas

    @property
    def total_dataset_length(self) -> int:
        """Rows of the dataset."""
        return len(self._indices.dataset)

    def __repr__(self) -> str:
        batches = "rows" if self._pipeline.way.is_single else "batches"
        return (
            f"{type(self).__name__}(batch_size={self.batch_size}, {self._indices}, {batches} "
            f"{self._pipeline.way})"
        )

    def __iter__(self) -> Any:
        """An iterator over the rest of this epoch, or over the next; it begins when a batch is wanted."""
        sys.audit("torchyoga.DataLoader.__iter__", self)  # `yoga doctor -- command` listens
        left = trainers.left_by_lightning(self)
        if left is not None and left[0] is not self._taken_from_lightning:
            self._taken_from_lightning, state = left
            self.load_state_dict({**state, "steps": 0})  # Lightning has forgotten their number, too
        delivery = Delivery(self, self._pipeline, self._accelerated)
        device = trainers.accelerate_device() if self._accelerated.is_prepared else None
        if isinstance(device, torch.device) and device.type != "cpu":
            delivery.move_to(device)
        return delivery

    def peek(self) -> BatchT:
        """The first batch that an iteration would give now, made in this process. The state does not change.

        Raises:
            ValueError: there is no batch, or nothing is left of the epoch that `set_epoch` has named.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=4)
            >>> loader.peek().tolist(), next(iter(loader)).tolist()
            ([0, 1, 2, 3], [0, 1, 2, 3])
        """
        return cast("BatchT", self._pipeline.peek(self))

    def state_after(self, steps: int) -> Saved:
        """The state after so many batches of the last iteration: for loops that fetch batches ahead.

        A prefetcher, or a loop that asks for the next batch before it has used the last one, holds batches
        that it has not trained on; `state_dict` counts them. Count the steps of the loop instead.

        Args:
            steps: batches that the loop has used on this rank since the last iteration began.

        Raises:
            StateError: no iteration has begun, or a state was loaded since.
            ValueError: fewer batches than `steps` were delivered.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=2)
            >>> batches = iter(loader)
            >>> held = [next(batches) for _ in range(3)]
            >>> loader.state_after(2)["position"], loader.state_dict()["position"]
            (4, 6)
        """
        if self._pipeline.latest is None:
            raise StateError("no iteration of this loader has begun yet; take state_dict()")
        return self._indices.state_after(self._pipeline.latest, steps)

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state, with any number of workers and ranks and any batch size.

        An iterator that began before raises StateError when it is asked for more.

        Args:
            state: what `state_dict` or `state_after` returned.
            strict: False takes only the epoch and the position of a state that does not fit.
            appended: as the argument of the loader.

        Raises:
            StateError: the state belongs to another dataset, length, seed or kind of shuffle, or is damaged.
        """
        self._indices.load_state_dict(state, strict, appended)
        self._pipeline.redrawn.load(
            state if strict else {"epoch": state["epoch"]}, self._indices.cursor.extra
        )
        own, other = self._indices.cursor.extra.get("libraries"), state.get("libraries")
        if own is not None and other is not None and own != other:
            warn_user(
                f"the state is of rows that were decoded by {other!s:.200}, here it is {own!s:.200}: decoded "
                "values may differ in the last bits"
            )

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows in batch `step` of an epoch, on all ranks; see `ResumableBatchSampler.rows_in_step`."""
        return self._indices.rows_in_step(step, self.batch_size or 1, self.drop_last, epoch)


show_to_accelerate(DataLoader)


class _OwnBatchSampler(ResumableBatchSampler):
    """The batch sampler of a loader alone. If it comes as an argument, Lightning makes the loader anew.

    Then it decides alone: Lightning passes `batch_size=1`, too, which subclasses may turn into anything.
    """


class _Order(NamedTuple):
    """The arguments of a loader that decide the order of rows and the rank of each, as of a sampler."""

    num_replicas: int | None
    rank: int | None
    group: Group | None
    remainder: Remainder
    seed: int | None
    start_offset: int
    shuffle_window: int
    locality: Locality


@dataclass
class _Choice:
    """The source of a loader's indices.

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
    seen_by: trainers.Seeing | None = None

    def __post_init__(self) -> None:
        self.given, self.seen_by = trainers.seen_by_lightning(self.batch_sampler)
        self.batch_sampler = None
        if self.given is not None:
            has_others = (
                self.sampler is not None or self.shuffle or self.batch_size not in (1, None) or self.drop_last
            )
            if has_others and type(self.given) is not _OwnBatchSampler:
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

    def indices_of(self, dataset: MapStyle, order: _Order, generator: torch.Generator | None) -> Indices:
        """The indices, by a sampler of ours where that gives the same as the one passed.

        Args:
            dataset: the loader's.
            order: the loader's arguments of a `ResumableSampler`.
            generator: gives the seed.

        Raises:
            ValueError: the sampler is not of this dataset, or an argument is out of range.
        """
        if self.sampler is not None and (plain := is_plain(self.sampler, dataset)) is not None:
            self.sampler, self.shuffle = None, plain
        ours: ResumableSampler | None = None
        foreign = self.sampler if self.batch_sampler is None else self.batch_sampler
        if self.sampler is not None:
            ours = resumable(self.sampler, dataset, order.start_offset, order.shuffle_window, order.locality)
        elif self.batch_sampler is None:
            shuffle = False if self.shuffle is None else self.shuffle
            ours = kind_for(shuffle)(dataset, shuffle=shuffle, **order._asdict())
            ours.draws_from = generator
        if ours is None:
            assert foreign is not None
            read = flattened(dataset)
            indices: Indices = RedrawnIndices(
                dataset,
                UserSampler(foreign, self.batch_size, self.drop_last, self.batch_sampler is not None),
                seed=order.seed,
                ranks=Ranks(order.num_replicas, order.rank, order.group),
                draws_from=generator,
                fingerprint=getattr(dataset if read is None else read, "fingerprint", None),
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
        if self.seen_by is not None:
            return self.seen_by
        if self.given is not None and indices.may_repeat:
            return self.given
        if self.batch_size is None or indices.may_repeat:
            return None
        assert isinstance(self.sampler, ResumableSampler)
        ours = _OwnBatchSampler(self.sampler, self.batch_size, self.drop_last)
        ours.is_seeded = is_seeded
        return ours


def to_device(loader: DataLoader[Batch], device: torch.device | str | int) -> DeviceLoader:
    """The batches of a loader on a device. Each is copied while the training loop uses the one before it.

    The loader needs `pin_memory=True` for that. The state, of this or of the loader, counts the batches that
    the loop got, not the one that is being copied. A `Checkpoint` takes it in place of the loader:
    `loaders={"train": to_device(loader, "cuda")}`.

    Args:
        loader: a `torchyoga.DataLoader`.
        device: such as "cuda", or a torch.device.

    Raises:
        TypeError: the loader is not torchyoga's.

    Example:
        >>> batches = to_device(DataLoader(list(range(6)), batch_size=4), "cpu")
        >>> [batch.tolist() for batch in batches]
        [[0, 1, 2, 3], [4, 5]]
    """
    if isinstance(loader, Iterator):
        raise TypeError(
            f"to_device takes a torchyoga.DataLoader, found {type(loader).__name__}, an iterator, which has "
            "no state; wrap the loader that the batches come from, for a Checkpoint in "
            "loaders={'train': to_device(loader, 'cuda')}"
        )
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"to_device takes a torchyoga.DataLoader, found {type(loader).__name__}, whose state would be a "
            "batch ahead; make a torchyoga.DataLoader, it takes the same arguments"
        )
    return DeviceLoader(loader, torch.device(device))


class DeviceLoader:
    """A loader whose batches lie on a device; see `to_device`. It has the attributes of the loader."""

    def __init__(self, loader: DataLoader[Batch], device: torch.device) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[Batch]:
        delivery: Delivery = iter(self.loader)
        delivery.move_to(self.device)
        return delivery

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See `DataLoader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """See `DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """See `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state, strict, appended)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)


def parts_of(loader: DataLoader[Any]) -> tuple[Indices, Pipeline]:
    """The indices and the pipeline of a loader, for what lends its batches to a framework."""
    return loader._indices, loader._pipeline


def _with_random_access(dataset: object) -> MapStyle:
    """A dataset, or the DataRef of a table; TypeError if its rows cannot be asked for by number."""
    table = recognised(dataset)
    dataset = dataset if table is None else table
    has_names = isinstance(dataset, dict) and isinstance(next(iter(dataset), None), str)
    if dataset is None or has_names or isinstance(dataset, (str, bytes)):
        raise TypeError(
            f"a loader takes a dataset, found {dataset!r:.80}; pass what storage.fetch(id, version) or "
            "storage.submit(dataset, id, version) returns, yoga.from_arrays(arrays), or a map-style dataset"
        )
    if isinstance(dataset, IterableDataset) or not _is_map_style(dataset):
        raise TypeError(
            f"a {type(dataset).__name__} has no random access, as others have by __getitem__ and __len__; "
            "cache it by Storage.submit(dataset, id, version), or open its files, as yoga.webdataset does tar"
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
