"""torch's DataLoader, counting what was delivered."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    Subset,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data._utils.pin_memory import pin_memory

from .ahead import Ahead, Task
from .blocks import Locality, Shuffle
from .buffers import placing
from .collate import Collation, Padding, jagged
from .columns import Rows
from .cursor import Run
from .dataref import ColumnsRef, DataRef, SlicedRef, VersionRef
from .errors import StateError
from .foreign import Foreign, Keys, SamplerError
from .mapped import MappedRef, flattened
from .moving import Moving
from .order import Remainder, as_int
from .proof import Proof
from .ranks import Ranks
from .replay import Replay, is_plain, resumable
from .ring import Parcel, Ring, packed
from .sampler import ResumableBatchSampler, ResumableSampler, are_skipped, kind_for
from .seeding import (
    ROW_SEEDS_VERSION,
    Seeding,
    draws_random_numbers,
    generators_put_back,
    row_seeds,
    seeder,
    worker_seed,
)
from .skipping import show_to_accelerate
from .stream import Window, windows_of
from .trainers import (
    accelerate_device,
    gradient_state,
    is_planning_epochs,
    left_by_lightning,
    name_arguments,
    seen_by_lightning,
)
from .warned import warn_user

__all__ = ["BatchError", "DataLoader", "Delivery"]

Batch = TypeVar("Batch", covariant=True)

_STOPPED = "a row or batch could not be made: StopIteration was raised"
_SEVERAL = (list, tuple, np.ndarray, torch.Tensor)  # in which indices of rows come
_SPARE_SLOTS = 4  # for batches that the training loop still holds when the next one is under way


class DataLoader(torch.utils.data.DataLoader[Batch]):
    """torch's DataLoader with a seed and a state: stop after any batch, continue anywhere.

    Takes torch's arguments, in torch's order. The state counts batches delivered to the training loop, never
    those fetched ahead, so it is exact for any number of workers; it may be loaded under another number of
    workers or ranks and another batch size. With a sampler of somebody else's it is as exact, but for the
    same number of ranks and the same batch size: see docs/resume.md.

    Args:
        dataset: any map-style dataset, cached or not.
        batch_size: rows of a batch on each rank; None hands out single rows.
        shuffle: a full shuffle, anew each epoch; "block" mixes a few files at a time: see docs/shuffle.md.
        sampler: a `ResumableSampler`, in place of `shuffle`, `seed`, `num_replicas`, `rank`, `remainder`,
            `start_offset`, `shuffle_window`, `locality`. Or torch's DistributedSampler, or a RandomSampler
            without arguments or a SequentialSampler, which are taken as such and as `shuffle`. Or any other,
            a list of indices too: it is drawn again after a resume, `random`, NumPy and torch being seeded
            from (seed, epoch) while it draws.
        batch_sampler: a `ResumableBatchSampler`, in place of those and `batch_size`, `drop_last`; or torch's,
            over any of these; or any other.
        generator: gives the seed, if `seed` is None, in place of torch's global generator: one number. It is
            asked for nothing else.
        seed: any int, the same on all ranks: the order, and the random numbers of `seed_rows`, follow from
            it. None, the default, draws it when the first iteration begins, so that `torch.manual_seed`
            decides; in a job of several processes it is 0. See `ResumableSampler`.
        num_replicas, rank: of this loader; by default those of `torch.distributed`, whenever it is
            initialised, else 1 and 0.
        remainder: `pad`, `drop` or `keep`, see `ResumableSampler`; for evaluation use `keep`.
        start_offset: rows over all ranks that the first iteration leaves out.
        seed_rows: seed `random`, NumPy and torch for each row from (seed, epoch, row), so that augmentation
            comes out the same for any number of workers and ranks and after a resume. By default for every
            dataset that may draw random numbers: not for a DataRef, a list, an array, a TensorDataset, or
            torch's subsets of such. Costs about 10 us a row. A `collate_fn` that is neither torch's nor
            torchyoga's is seeded, too, for each batch from (seed, epoch, position of its first row), whatever
            the dataset: it comes out the same for any number of workers, and after a resume with the same
            ranks and batch size. False turns both off.
        group: the ranks among which rows are divided, see `ResumableSampler`.
        shuffle_window: with shuffle="block", files mixed with each other at once.
        locality: "shard" gives each rank files of its own, see `ResumableSampler`.
        **torch_arguments: the other arguments of `torch.utils.data.DataLoader`. Unlike there,
            `prefetch_factor` holds for a DataRef with `num_workers=0`, too: batches that a thread reads ahead
            (2 by default, 0 for none). With `in_order=False` the state names the batches that came early; of
            several ranks, each then has a state of its own.

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
        shuffle: Shuffle | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        seed_rows: bool | None = None,
        group: Any = None,
        shuffle_window: int = 8,
        locality: Locality = "global",
        **torch_arguments: Any,
    ) -> None:
        _check_random_access(dataset)
        if torch_arguments.get("in_order") is False and batch_size is None:
            raise ValueError("in_order=False needs batches; give a batch_size")
        given, seen_by = seen_by_lightning(batch_sampler)
        batch_sampler = None
        if given is not None:
            is_told_more = sampler is not None or shuffle or batch_size not in (1, None) or drop_last
            if is_told_more and type(given) is not _OwnBatchSampler:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            if _cuts_only(given):
                sampler, batch_size, drop_last = given.sampler, given.batch_size, given.drop_last
            else:
                batch_sampler, batch_size = given, None
        elif sampler is not None and shuffle:
            raise ValueError("sampler excludes shuffle; say ResumableSampler(..., shuffle=True)")
        if sampler is not None and (plain := is_plain(sampler, dataset)) is not None:
            sampler, shuffle = None, plain
        kind: Any = {"start_offset": start_offset, "shuffle_window": shuffle_window, "locality": locality}
        source: ResumableSampler | Replay | None = None
        if sampler is not None:
            source = resumable(sampler, dataset, **kind)
        elif batch_sampler is None:
            shuffle = False if shuffle is None else shuffle
            source = kind_for(shuffle)(
                dataset, num_replicas, rank, shuffle, seed, remainder=remainder, group=group, **kind
            )
            source.draws_from = generator
        if source is None:
            foreign = sampler if batch_sampler is None else batch_sampler
            source = Replay(
                dataset,
                Foreign(foreign, batch_size, drop_last, is_batches=batch_sampler is not None),
                seed=seed,
                ranks=Ranks(num_replicas, rank, group),
                draws_from=generator,
                fingerprint=getattr(flattened(dataset) or dataset, "fingerprint", None),
            )
        if len(source.dataset) != len(dataset):
            raise ValueError(
                f"the sampler is of {len(source.dataset)} rows, the dataset has {len(dataset)}; "
                "make it from this dataset"
            )
        if seed_rows is None:
            seed_rows = source.seed_rows
        else:
            source.seed_rows = seed_rows
        # As it was told: Lightning makes loaders anew by what it finds here.
        self.__dict__["seed_rows"] = seed_rows
        self._seeds_rows = draws_random_numbers(dataset) if seed_rows is None else bool(seed_rows)
        read = flattened(dataset)
        is_quick = not self.seed_rows and (collate_fn is None or _is_ours(collate_fn))
        together = None if num_workers and is_quick else 1
        is_unordered = bool(num_workers) and torch_arguments.get("in_order") is False
        is_single = batch_size is None and batch_sampler is None
        self._plan = _Plan(
            source, is_single, batch_size or 1, drop_last, dataset if read is None else read, together
        )
        self._plan.is_unordered = is_unordered
        # Lightning's predict wants to see which rows are in each batch.
        self._plan.seen_by = seen_by
        self._idle_ring: Ring | None = None
        self._taken_from_lightning: Any = None  # states that are not to be taken again
        self._turn = 0  # of those who use persistent workers, one after the other
        self._latest: Run | None = None  # the iteration that has begun last
        self._has_warned = False  # of other random numbers than a state's
        # If no row needs Python, torch's machinery would cost more than reading.
        is_quick = num_workers == 0 and not is_single and not self.seed_rows
        self._reads_here = is_quick and read is not None
        ahead = torch_arguments.pop("prefetch_factor", None) if self._reads_here else None
        self._prefetch = 2 if ahead is None else as_int("prefetch_factor", ahead, low=0)
        super().__init__(
            dataset,
            batch_size=batch_size if batch_sampler is None else 1,
            sampler=sampler if isinstance(source, Replay) else source,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            **torch_arguments,
        )
        if ahead is not None:
            self.prefetch_factor = self._prefetch  # likewise
        self._plan.reads_here = num_workers == 0
        self._plan.at_once = num_workers * (self.prefetch_factor or 1) if num_workers else self._prefetch + 1
        name_arguments(self)
        self._seeds_collation = (seed_rows is None or bool(seed_rows)) and not _is_ours(self.collate_fn)
        if self.seed_rows or self._seeds_collation:
            source.cursor.needs_seed = True
            if isinstance(source, ResumableSampler):
                source.cursor.extra["row_seeds"] = ROW_SEEDS_VERSION
        if seen_by is not None or (given is not None and isinstance(source, Replay)):
            self.__dict__["batch_sampler"] = seen_by or given
        elif batch_size is not None and isinstance(source, ResumableSampler):
            # What asks for batches of rows here, such as Accelerate's skip_first_batches, shall get the same.
            ours = _OwnBatchSampler(source, batch_size, drop_last)
            ours.is_seeded = self.seed_rows or self._seeds_collation
            self.__dict__["batch_sampler"] = ours

    def __len__(self) -> int:
        """Batches of the epoch under way: those delivered, under whatever ranks, and those to come."""
        now = len(self._plan)
        if not is_planning_epochs():
            return now
        # Lightning asks once, for all epochs, and before it loads a state.
        _, state = left_by_lightning(self)
        return self._plan.sampler.most_steps(self.batch_size or 1, self.drop_last, state)

    @property
    def seed_rows(self) -> bool:
        """True if each row is made with random numbers of its own."""
        return self._seeds_rows

    # -- what Accelerate expects of a loader that it has prepared: it would put one of its own in its place

    use_stateful_dataloader = True  # so save_state and load_state ask for the state
    end_of_dataloader = False
    # How many rows of the last batch, gathered from all ranks, gather_for_metrics keeps; all, if less than 1.
    remainder = -1
    _is_accelerated = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        # Only `prepare` asks, and nothing else tells that an Accelerator uses this loader.
        self._is_accelerate_prepared = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        self._is_accelerated = value
        # gather_for_metrics lays the batches of all ranks end to end and cuts off what `pad` has added.
        cursor, run = self._plan.sampler.cursor, self.batch_size or 1
        cursor.shard = replace(cursor.shard, run=run if value else 1)

    @property
    def total_batch_size(self) -> int:
        """Rows of a batch on all ranks."""
        return (self.batch_size or 1) * self._plan.sampler.num_replicas

    @property
    def total_dataset_length(self) -> int:
        """Rows of the dataset."""
        return len(self._plan.sampler.dataset)

    # --

    @property
    def _index_sampler(self) -> Any:
        # What torch's iterators take indices from. They run ahead of the training loop, so they get a plan
        # that moves nothing; the cursor moves when a batch is delivered.
        return self._plan

    def _get_iterator(self) -> Any:
        source = flattened(self.dataset)  # anew, for a Subset's indices may have changed
        self._plan.source = self.dataset if source is None else source
        seeding = self._seeding(is_here=self.num_workers == 0)
        if self._reads_here and source is not None:
            return _Read(self, source, seeding)
        rows = _Rows(self._plan.source, seeding, self.collate_fn, self._new_ring())
        # torch draws a number for each iterator, from the global generator or the user's, which would change
        # the user's own random numbers after a resume; from this one it may draw.
        own = torch.Generator()
        own.manual_seed(worker_seed(self._plan.sampler.cursor.order.seed, self._plan.epoch))
        shown: dict[str, Any] = {"dataset": rows, "collate_fn": _itself, "generator": own}
        if self.num_workers:
            shown["worker_init_fn"] = _WorkerInit(self.dataset, self.worker_init_fn)
        # torch's iterators read these once; everybody else shall see the user's own.
        kept = {name: self.__dict__[name] for name in shown}
        self.__dict__.update(shown)
        try:
            return super()._get_iterator()
        finally:
            self.__dict__.update(kept)

    def _seeding(self, is_here: bool) -> Seeding:
        # A foreign sampler may give a row twice, which is to come out differently.
        is_foreign = isinstance(self._plan.sampler, Replay)
        return Seeding(self.seed_rows, self._seeds_collation, is_here, by_place=is_foreign)

    def _new_ring(self) -> Ring | None:
        """Shared memory for the batches of one iterator's workers; used again once they are done."""
        self._plan.ring = None
        if self.num_workers and not self._plan.is_single:
            slots = self.num_workers * (self.prefetch_factor or 2) + _SPARE_SLOTS
            idle, self._idle_ring = self._idle_ring, None
            is_ours = idle is not None and idle.process == os.getpid()
            self._plan.ring = idle if is_ours else Ring.made(slots)
        return self._plan.ring

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle_ring": None, "_latest": None, "_iterator": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, {self._plan.sampler!r})"

    def __iter__(self) -> Any:
        """An iterator over the rest of this epoch, or the next; it begins when a batch is asked for."""
        states, state = left_by_lightning(self)
        if states is not None and states is not self._taken_from_lightning:
            self._taken_from_lightning = states
            self.load_state_dict({**state, "steps": 0})  # it has forgotten how many there were, too
        device = accelerate_device() if self._is_accelerated else None
        return Delivery(self, iter if device is None or device.type == "cpu" else partial(Moving, device))

    def _begin(self, made: int | None = None) -> Run:
        """An iteration that begins now; `made` says when its iterator was made."""
        plan, sampler = self._plan, self._plan.sampler
        if self._is_accelerated and plan.is_unordered and sampler.num_replicas > 1:
            raise ValueError(
                "with Accelerate and several processes batches must come in order; leave in_order at True"
            )
        if self._is_accelerated and sampler.num_replicas > 1 and sampler.locality == "shard":
            raise ValueError(
                "Accelerate deals runs of the order to its processes, so with locality='shard' each would "
                "read the files of all; leave it at 'global'"
            )
        if self._is_accelerated and isinstance(sampler, Replay) and sampler.is_dealt_by_nobody:
            raise ValueError(
                f"there are {sampler.num_replicas} processes, and {sampler.name} does not say that it heeds "
                "them; Accelerate would deal its batches out if torch's own DataLoader was prepared, but "
                "leaves this one as it is. Have the sampler keep a `rank`, or take torch's DataLoader"
            )
        self._check_length()
        return sampler._begin(self.batch_size or 1, self.drop_last, not plan.is_unordered, made=made)

    def _check_length(self) -> None:
        """Raises ValueError if the dataset is not as long as that of the sampler."""
        expected, found = len(self._plan.sampler.dataset), len(cast(Sized, self.dataset))
        if found != expected:
            raise ValueError(
                f"the sampler is of {expected} rows, the dataset has {found}; make a new loader, and load "
                "the state with strict=False"
            )

    def _start(self, run: Run) -> Any:
        self._plan.run = run
        try:
            found = super().__iter__()
        except BaseException:
            self._give_up_workers()
            raise
        self._turn += 1
        if isinstance(found, _Read):
            return found
        return _Arriving(found, self._plan.ring, self)

    def _give_up_workers(self) -> None:
        """Ends persistent workers of which nobody knows where they are; the next iteration starts others."""
        workers, self._iterator = self._iterator, None
        if workers is not None:
            workers._shutdown_workers()  # type: ignore[attr-defined]

    def peek(self) -> Batch:
        """The batch that an iteration which begins now would give first, made here. Nothing moves.

        Raises:
            ValueError: there is no batch, or nothing is left of the epoch that `set_epoch` has named.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=4)
            >>> loader.peek().tolist(), next(iter(loader)).tolist()
            ([0, 1, 2, 3], [0, 1, 2, 3])
        """
        plan, sampler = copy(self._plan), self._plan.sampler
        run = sampler._begin(self.batch_size or 1, self.drop_last, made=sampler.clock(), looked_at=True)
        plan.run, plan.together = run, 1
        plan.ring, plan.seen_by, plan.is_unordered = None, None, False
        wanted = next(iter(plan), None)
        if wanted is None:
            raise ValueError(f"epoch {run.start.epoch} has no batch from position {run.start.position} on")
        source = flattened(self.dataset)
        seeding = self._seeding(is_here=True)
        rows = _Rows(self.dataset if source is None else source, seeding, self.collate_fn, None)
        with generators_put_back():
            found = rows[wanted] if plan.is_single else rows.__getitems__(wanted)[0]
        pins = self.pin_memory and _has_accelerator()
        return cast("Batch", pin_memory(found) if pins else found)  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self._plan.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch delivered; see `ResumableSampler.state_dict`."""
        return self._plan.sampler.state_dict()

    def state_after(self, steps: int) -> dict[str, Any]:
        """The state after so many batches of this iteration, now or later: for loops that hold batches back.

        A prefetcher, or a loop that asks for the next batch before it has used the last one, holds batches
        that it has not trained on; `state_dict` counts them. Count the steps of the loop instead.

        Args:
            steps: batches that the loop has used since the iteration that began last did begin, on this rank.

        Raises:
            StateError: no iteration has begun, or a state was loaded since.
            ValueError: so many have not been delivered.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=2)
            >>> batches = iter(loader)
            >>> held = [next(batches) for _ in range(3)]
            >>> loader.state_after(2)["position"], loader.state_dict()["position"]
            (4, 6)
        """
        if self._latest is None:
            raise StateError("no iteration of this loader has begun yet; take state_dict()")
        return _state_after(self._plan.sampler, self._latest, steps)

    def receipt(self) -> dict[str, Any]:
        """See `ResumableSampler.receipt`."""
        return self._plan.sampler.receipt()

    def prove(self, group: Any = None) -> Proof:
        """See `ResumableSampler.prove`.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True)
            >>> for batch in loader:
            ...     pass
            >>> print(loader.prove())
            epoch 0: 10 of 10 rows delivered since it began, each exactly once
        """
        return self._plan.sampler.prove(group)

    def check_ranks(self, group: Any = None) -> None:
        """See `ResumableSampler.check_ranks`."""
        self._plan.sampler.check_ranks(group)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state, with any number of workers and ranks and any batch size.

        An iterator that has begun before raises StateError when it is asked for more.

        Raises:
            StateError: the state is of another dataset, length, seed or kind of shuffle, or damaged.
                `strict=False` takes its epoch and position all the same.
        """
        self._plan.sampler.load_state_dict(state, strict)
        if "row_seeds" in self._plan.sampler.cursor.extra and not self._has_warned:
            found = state.get("row_seeds", 1 if state["version"] == 1 else ROW_SEEDS_VERSION)
            if found != ROW_SEEDS_VERSION:
                self._has_warned = True
                warn_user(
                    f"the state's row seeds are of version {found}, this torchyoga has version "
                    f"{ROW_SEEDS_VERSION}: the rows are the same, but random augmentation of the rest may be "
                    "another than it would have been"
                )

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` of an epoch, of all ranks; see `ResumableBatchSampler.rows_in_step`."""
        sampler = self._plan.sampler
        if isinstance(sampler, Replay):
            return sampler.rows_in_step(step, epoch)
        return ResumableBatchSampler(sampler, self.batch_size or 1, self.drop_last).rows_in_step(step, epoch)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch; see `ResumableSampler.position_of`."""
        return self._plan.sampler.position_of(row, epoch)


show_to_accelerate(DataLoader)


class _OwnBatchSampler(ResumableBatchSampler):
    """What a loader has made for itself. If it comes as an argument, Lightning makes the loader anew.

    Then it decides alone: subclasses may turn what Lightning passes besides, `batch_size=1`, into anything.
    """


class _Plan:
    """The indices of one epoch from a place on, for torch's iterators to take as early as they like."""

    def __init__(
        self,
        sampler: ResumableSampler | Replay,
        is_single: bool,
        batch_size: int,
        drop_last: bool,
        source: Any,
        together: int | None,
    ) -> None:
        self.sampler = sampler
        self.run: Run | None = None  # the iteration that they are for
        self.is_unordered = False
        self.is_single = is_single  # single rows, no batches of them
        self.seen_by: Any = None  # is told the rows of each batch
        self.ring: Ring | None = None
        self.source = source  # is told of the rows
        self._size = batch_size, drop_last
        self.together = together
        self.reads_here = True  # False if workers do
        self.at_once = 1  # windows that are read before they are wanted
        self._has_warned = False  # that they are much, beside what is kept

    def __len__(self) -> int:
        return self.sampler.num_steps(*self._size)

    def __iter__(self) -> Iterator[Any]:
        assert self.run is not None
        return self._indices(self.run)

    @property
    def epoch(self) -> int:
        """The epoch that the iteration is in."""
        assert self.run is not None
        return self.run.start.epoch

    def _indices(self, run: Run) -> Iterator[Any]:
        sampler, epoch = self.sampler, run.start.epoch
        firsts = sampler._firsts(run)
        if self.is_single:
            for row in sampler._rows(run):
                run.handed += 1
                yield _Row(row, next(firsts), sampler.cursor.order.seed, epoch)
            return
        ring = self.ring
        if ring is not None:
            ring.begin()
        step = 0
        for window in self.windows(run, read_here=False, most=self.together):
            number = step if self.is_unordered else None
            key, slot = (ring.key, ring.send()) if ring else (0, -1)
            begun = list(islice(firsts, len(window.ends)))
            run.handed += len(window.ends)
            yield _Job(window, begun, sampler.cursor.order.seed, epoch, key, slot, number)
            step += len(window.ends)

    def windows(self, run: Run, read_here: bool = True, most: int | None = None) -> Iterator[Window]:
        """The batches in windows, as they are read."""
        # Workers read, but the page cache is everybody's: whoever knows the order can tell the kernel. Small
        # batches travel together, for every journey costs as much as reading some of them.
        if self.sampler.is_known_ahead and isinstance(self.source, DataRef):
            return windows_of(self.source, self.batches(run), read_here, self._fitting(self.source, most))
        return (Window(batch, [_size(batch)]) for batch in self.batches(run))

    def _fitting(self, source: DataRef, most: int | None) -> int | None:
        """So many batches of a window, that all windows at once leave room for what is still to be read."""
        bound, nbytes = source.ahead_bytes, self._size[0] * source.row_bytes * self.at_once
        if bound is None or not nbytes:
            return most
        if not self.reads_here and nbytes > 2 * bound and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"workers read {self.at_once} batches ahead, {nbytes / 1e6:.1f} MB, for which the cache of "
                f"{source!r} is too small: files will be downloaded again and again. Set cache_bytes to "
                "twice that and two windows of files, or take smaller batches, a smaller prefetch_factor or "
                "fewer workers"
            )
        fitting = max(1, bound // nbytes)
        return fitting if most is None else min(most, fitting)

    def batches(self, run: Run) -> Iterator[Any]:
        """The rows of each batch from the start of an iteration."""
        seen: list[list[Any]] = []
        if self.seen_by is not None:
            self.seen_by.seen_batch_indices = seen
        for batch in self.sampler._batches(run, self.source):
            if self.seen_by is not None:
                seen.append(list(batch.whole) if isinstance(batch, Keys) else batch.tolist())
            yield batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ring": None, "source": None, "run": None}


class Delivery(Iterator[Any]):
    """One iteration of a loader, counting every batch that reaches the training loop."""

    def __init__(self, loader: DataLoader[Any], moved: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._loader = loader
        self._moved = moved
        self._batches: Iterator[Any] | None = None
        self._numbers: deque[int] | None = None  # of the batches that come, if they come in any order
        self._made = loader._plan.sampler.clock()
        self._run: Run | None = None
        self._failed: list[int] = []  # batches since the last one that did not
        self._process = self._steps = 0
        self._over = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        run, batches = self._run, self._batches
        if run is None or batches is None or self._process != os.getpid():
            run, batches = self._begin()
        sampler = self._loader._plan.sampler
        if run.generation != sampler.cursor.generation:
            sampler.cursor.check_generation(run.generation)
        try:
            batch = next(batches)
        except StopIteration:
            self._end(run)
            raise
        except SamplerError as failed:
            self._batches = None
            self._loader._give_up_workers()
            raise failed.error from failed.error.__cause__
        except BatchError as failed:
            if self._numbers is None:
                self._failed.append(run.taken + len(self._failed))
            else:
                self._failed.append(self._numbers.popleft())
            raise failed.error from failed.error.__cause__
        except BaseException as error:
            # An interrupt, anywhere within, or a worker that was killed: asked again, this begins anew with
            # the batch that would have come. One that is merely late will come.
            if not _is_late(error):
                self._batches = None
                self._loader._give_up_workers()
            raise
        if self._failed:
            self._leave_out(run)
        if self._numbers is None:
            run.taken += 1
        else:
            run.deliver(self._numbers.popleft())
        sampler._latest = run
        if self._loader._is_accelerated and run.taken == self._steps:
            self._loader.end_of_dataloader = True
        return batch

    def skip(self, steps: int) -> None:
        """Begins behind so many batches, which somebody has trained on before: they count as delivered."""
        self._begin(steps)

    def _begin(self, skipped: int = 0) -> tuple[Run, Iterator[Any]]:
        if self._over:
            raise StopIteration
        loader, run = self._loader, self._run
        if run is None:
            self._run = run = loader._begin(self._made)
            run.hold(self)
            loader._latest = run
            if skipped and not are_skipped(run, skipped):
                run.skip(skipped)
                run.report()
            if loader._is_accelerated:
                self._tell_accelerate(run)
        else:
            self._leave_out(run)
            run.restart()
        if self._batches is not None:
            # In a forked child the threads and workers of its parent are not there: it goes on by itself. But
            # torch's iterator would stop the parent's workers if it were let go of.
            _inherited.append((self._batches, loader._iterator))
            loader._iterator = None
        self._process, self._steps = os.getpid(), run.num_steps
        try:
            started = loader._start(run)
        except SamplerError as failed:
            raise failed.error from failed.error.__cause__
        self._numbers = started.numbers if loader._plan.is_unordered else None
        self._batches = self._moved(started)
        return run, self._batches

    def state_after(self, steps: int) -> dict[str, Any]:
        """See `DataLoader.state_after`; of this iteration."""
        if self._run is None:
            raise StateError("this iteration has not begun yet; take the loader's state_dict()")
        return _state_after(self._loader._plan.sampler, self._run, steps)

    def _leave_out(self, run: Run) -> None:
        """Who goes on after batches that failed has left them out."""
        for step in self._failed:
            run.lose(step)
        self._failed.clear()

    def _end(self, run: Run) -> None:
        self._over = True
        self._batches = None  # ends the workers, if they are not persistent
        sampler = self._loader._plan.sampler
        if self._failed:
            self._leave_out(run)
            sampler._latest = run
        sampler._settle()
        sampler._latest = None
        sampler.cursor.finished(run)
        state = gradient_state() if self._loader._is_accelerated else None
        if state is not None:
            state._remove_dataloader(self._loader)

    def _tell_accelerate(self, run: Run) -> None:
        loader, state = self._loader, gradient_state()
        loader.end_of_dataloader = False
        loader.remainder = loader._plan.sampler.rows_in_last_step(run) % loader.total_batch_size
        if state is not None:
            state._remove_dataloader(loader)  # an iteration that was left early may still be there
            state._add_dataloader(loader)


def _state_after(sampler: ResumableSampler | Replay, run: Run, steps: int) -> dict[str, Any]:
    """The state after so many batches of an iteration."""
    run.cursor.check_generation(run.generation)
    found = run.after(as_int("steps", steps, low=0))
    run.is_saved = run.is_saved or steps > 0
    return sampler._state_of(found)


class BatchError(Exception):
    """What was raised while a batch was made; the batches behind it come all the same."""

    def __init__(self, error: Exception) -> None:
        if isinstance(error, StopIteration):  # would end the loop
            cause, error = error, RuntimeError(_STOPPED)
            error.__cause__ = cause
        self.error = error


def _is_late(error: BaseException) -> bool:
    """True if torch has waited for a batch as long as `timeout` says, or another iterator has the workers."""
    return isinstance(error, _TakenOverError) or (
        isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")
    )


class _TakenOverError(RuntimeError):
    """Another iterator uses the workers."""


_inherited: list[Any] = []  # by a forked child; kept until it ends


class _Failure(NamedTuple):
    """What a batch is if it could not be read."""

    error: Exception


class _Read(Iterator[Any]):
    """The batches of a DataRef, read by this process; many small ones at once, and ahead if there is time."""

    def __init__(self, loader: DataLoader[Any], source: DataRef, seeding: Seeding) -> None:
        self._source = source
        self._seeding = seeding
        self._batches = _Batches(loader.collate_fn)
        self._pins = loader.pin_memory and _has_accelerator()
        self._is_plain = _is_ours(loader.collate_fn)  # a function of the user's runs in the user's thread
        plan = loader._plan
        assert plan.run is not None
        self._seed, self._epoch = plan.sampler.cursor.order.seed, plan.epoch
        self._firsts = plan.sampler._firsts(plan.run)
        tasks = (Task(partial(self._window, window), len(window.ends)) for window in plan.windows(plan.run))
        # A sampler that may draw at any time does so in the user's thread, when it is asked.
        may_be_ahead = self._source.is_thread_safe and plan.sampler.is_known_ahead
        self._ahead = Ahead(tasks, loader._prefetch if may_be_ahead else 0)
        self._read: list[Any] = []  # last first

    def __next__(self) -> Any:
        if not self._read:
            self._read = next(self._ahead)[::-1]
        found, first = self._read.pop(), next(self._firsts)
        if type(found) is _Failure:
            raise BatchError(found.error)
        if self._is_plain:
            return found
        try:
            with self._seeding.meanwhile():
                seeds = self._seeding.of_batches(self._seed, self._epoch, [first])
                (batch,) = self._batches.of_parts([found], seeds)
            return self._pinned(batch)
        except Exception as error:
            raise BatchError(error) from error

    def _window(self, window: Window) -> list[Any]:
        """The batches of a window, or what became of them."""
        try:
            rows = _rows_of(self._source, window.numbers)
            if not self._is_plain:
                return self._batches.parts(rows, window)
            found = self._batches.of(rows, window)
            return [self._pinned(batch) for batch in found] if self._pins else found
        except Exception as error:
            if len(window.ends) == 1:
                return [_Failure(error)]
        # One of them fails: the others are delivered all the same.
        return [self._window(alone)[0] for alone in window.apart()]

    def _pinned(self, batch: Any) -> Any:
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]


def _only_gathers(dataset: Any) -> bool:
    """True for a dataset that keeps no row that it has given."""
    while type(dataset) in (SlicedRef, Subset):
        dataset = dataset.whole if type(dataset) is SlicedRef else dataset.dataset
    if type(dataset) is MappedRef:
        return all(map(_only_gathers, dataset.sources))
    return type(dataset) in (VersionRef, ColumnsRef)


def _is_ours(collate: Any) -> bool:
    """True for a collate function that may run in any thread, is as fast as reading and draws no numbers."""
    is_torchs = collate is default_collate or collate is default_convert
    return is_torchs or collate is jagged or isinstance(collate, Padding)


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if torch.cuda.is_available() or (accelerator is not None and accelerator.is_available()):
        return True
    warn_user("pin_memory=True, but there is no accelerator: memory is not pinned")
    return False


def _check_random_access(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"a {type(dataset).__name__} has no random access, so it can be neither shuffled nor resumed; "
            "cache it once with Storage.submit(dataset, id, version) and load from the DataRef that returns"
        )


def _cuts_only(batch_sampler: Any) -> bool:
    """True for a batch sampler that cuts its sampler's rows into batches and does nothing else."""
    ours = isinstance(batch_sampler, ResumableBatchSampler)
    return type(batch_sampler) is BatchSampler or (
        ours and type(batch_sampler).__iter__ is ResumableBatchSampler.__iter__
    )


def _rows_of(source: DataRef, numbers: npt.NDArray[Any]) -> Sequence[Any]:
    # What are not numbers it refuses: that is a batch that failed.
    return source.__getitems__(numbers.tolist() if numbers.dtype == object else numbers)


def _size(batch: Any) -> int:
    return batch.size if isinstance(batch, Keys) else len(batch)


class _Row(NamedTuple):
    """A row that is not part of a batch; with its position, and what its random numbers come from."""

    number: Any
    position: int
    seed: int
    epoch: int


class _Job(NamedTuple):
    """The rows of some batches; with their seed and epoch, and the slot of a ring they are to be put into."""

    window: Window
    firsts: list[int]  # the position at which each batch begins
    seed: int
    epoch: int
    ring: int
    slot: int
    step: int | None  # the number of the first batch, if they may come in any order


class _Numbered(NamedTuple):
    """The batches of a job, and which they are."""

    step: int
    slot: int
    batches: Any


class _Rows:
    """A dataset as torch's fetchers see it: it makes rows with random numbers of their own, and batches."""

    def __init__(self, dataset: Any, seeding: Seeding, collate: Any, ring: Ring | None) -> None:
        self.dataset = dataset
        self._seeding = seeding
        self._batches = _Batches(collate)
        self._ring = ring

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: _Row) -> Any:
        with self._seeding.meanwhile(), _ending_no_epoch():
            if self._seeding.rows:
                number = row.position if self._seeding.by_place else row.number
                (found,) = self._seeded([row.number], np.array([number]), row.seed, row.epoch)
            else:
                found = self.dataset[row.number]
            seeds = self._seeding.of_batches(row.seed, row.epoch, [row.position])
            (made,) = self._batches.of_parts([found], seeds)
            return made

    def __getitems__(self, job: _Job) -> Any:
        """The batches of a job: a list, or a parcel of one."""
        worker = get_worker_info()
        try:
            found = self._packed(job)
        except Exception:
            if worker is None:
                raise
            found = [_wrapped(worker.id)] * len(job.window.ends)
        return found if job.step is None else _Numbered(job.step, job.slot, found)

    def _packed(self, job: _Job) -> Any:
        place = None if self._ring is None or job.slot < 0 else self._ring.place(job.slot)
        if place is None:
            return self._all(job) if get_worker_info() is None else packed(self._all(job), -1, -1, None)
        # Only our own code may see the memory of the slot: what the user's keeps would be written over.
        ours = not self._seeding.rows and _is_ours(self._batches.collate) and _only_gathers(self.dataset)
        with placing(place) if ours else contextlib.nullcontext():
            found = self._all(job)
        return packed(found, job.ring, job.slot, place)

    def _all(self, job: _Job) -> list[Any]:
        worker = get_worker_info()
        with self._seeding.meanwhile(), _ending_no_epoch():
            try:
                return self._made(job)
            except Exception:
                if worker is None:
                    raise
                if len(job.firsts) == 1:
                    return [_wrapped(worker.id)]
            # One of them fails: the others are delivered all the same.
            found = []
            for window, first in zip(job.window.apart(), job.firsts, strict=True):
                try:
                    found += self._made(job._replace(window=window, firsts=[first]))
                except Exception:
                    found.append(_wrapped(worker.id))
            return found

    def _made(self, job: _Job) -> list[Any]:
        seeds = self._seeding.of_batches(job.seed, job.epoch, job.firsts)
        return self._batches.of(self._rows(job), job.window, seeds)

    def _rows(self, job: _Job) -> Any:
        numbers: Any = job.window.numbers
        if isinstance(self.dataset, DataRef) and not self._seeding.rows:
            return _rows_of(self.dataset, numbers)
        rows = numbers.whole if isinstance(numbers, Keys) else numbers.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        if self._seeding.rows and (many is None or isinstance(rows, _SEVERAL)):
            return self._seeded(rows, self._numbers(job), job.seed, job.epoch)
        if self._seeding.rows:  # one thing that is not made of rows
            seeder()(row_seeds(job.seed, job.epoch, self._numbers(job)[:1])[0])
        return many(rows) if many else [self.dataset[row] for row in rows]

    def _numbers(self, job: _Job) -> npt.NDArray[np.int64]:
        """What the random numbers of each row come from."""
        if not self._seeding.by_place:
            return job.window.numbers
        bounds = zip(job.firsts, job.window.bounds, strict=True)
        return np.concatenate([np.arange(first, first + stop - start) for first, (start, stop) in bounds])

    def _seeded(self, rows: Any, numbers: npt.NDArray[np.int64], seed: int, epoch: int) -> list[Any]:
        """The rows, each made with random numbers of its own."""
        dataset, seed_all, found = self.dataset, seeder(), []
        for row, own_seed in zip(rows, row_seeds(seed, epoch, numbers), strict=True):
            seed_all(own_seed)
            found.append(dataset[row])
        return found


class _Batches:
    """Collates the batches of a window, all in one go where that is default_collate's work."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate
        self._collation: Collation | None = None

    def of(self, rows: Sequence[Any], window: Window, seeds: Sequence[int] | None = None) -> list[Any]:
        """Each batch, collated; a function of the user's after the generators got these seeds, if any."""
        if self.collate is not default_collate or not isinstance(rows, Rows):
            return self.of_parts(self.parts(rows, window), seeds)
        if self._collation is None or self._collation.schema is not rows.block.schema:
            self._collation = Collation(rows.block.schema)
        return self._collation.batches(rows.block, window.bounds)

    def of_parts(self, parts: Sequence[Any], seeds: Sequence[int] | None) -> list[Any]:
        """The same of the rows of each batch; or of single rows."""
        if seeds is None:
            return [self.collate(part) for part in parts]
        seed_all, found = seeder(), []
        for part, seed in zip(parts, seeds, strict=True):
            seed_all(seed)
            found.append(self.collate(part))
        return found

    def parts(self, rows: Sequence[Any], window: Window) -> list[Sequence[Any]]:
        """The rows of each batch."""
        return [rows] if len(window.ends) == 1 else [rows[start:stop] for start, stop in window.bounds]


def _wrapped(worker: int) -> ExceptionWrapper:
    """The exception under way, to be raised by the training loop's process."""
    return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _ending_no_epoch() -> Iterator[None]:
    """Makes a StopIteration of the user's an error: torch would take it for the end of the epoch."""
    try:
        yield
    except StopIteration:
        raise RuntimeError(_STOPPED)  # noqa: B904 -- contextlib would raise the cause again


def _itself(batch: Any) -> Any:
    """The collate function of batches that are collated already."""
    return batch


class _WorkerInit:
    """Shows workers the user's dataset before they run the user's function."""

    def __init__(self, dataset: Any, function: Any) -> None:
        self._dataset = dataset
        self._function = function

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self._dataset)  # torch forbids it to those who might forget this
        if self._function is not None:
            self._function(worker_id)


class _Arriving(Iterator[Any]):
    """The batches that torch's iterators fetch, one by one; out of the slots of a ring, if there is one."""

    def __init__(self, fetched: Any, ring: Ring | None, loader: DataLoader[Any]) -> None:
        self._fetched = fetched
        self._ring = ring
        self._loader = loader
        self._is_single = loader._plan.is_single
        self._turn = loader._turn
        self._batches: list[Any] = []  # that are here, last first
        self.numbers: deque[int] = deque()  # of all that came, if they come in any order

    def __next__(self) -> Any:
        if self._loader.persistent_workers and self._turn != self._loader._turn:
            raise _TakenOverError(
                "another iterator of this loader has taken over its persistent workers; use one iterator at "
                "a time, or persistent_workers=False"
            )
        while not self._batches:
            self._batches = self._next()[::-1]
        batch = self._batches.pop()
        if type(batch) is ExceptionWrapper:
            try:
                batch.reraise()  # type: ignore[no-untyped-call]
            except Exception as error:
                raise BatchError(error) from error
        if type(batch) is _Failure:
            raise BatchError(batch.error)
        return batch

    def _next(self) -> list[Any]:
        ring = self._ring
        before = getattr(self._fetched, "_rcvd_idx", None)
        try:
            found = next(self._fetched)
        except StopIteration:
            if ring is not None and ring.is_idle:
                self._loader._idle_ring = ring  # no worker writes into it any more
            raise
        except SamplerError:
            raise
        except Exception as error:
            # Rows that are single come with their errors in torch's way; then it has gone on to the next one.
            is_of_row = self._is_single and before is not None and self._fetched._rcvd_idx > before
            if self._loader.num_workers and not is_of_row:
                raise
            raise BatchError(error) from error
        if self._is_single:
            return [found]
        numbered = found if type(found) is _Numbered else None
        if ring is not None:
            ring.arrived(None if numbered is None else numbered.slot)
        if numbered is not None:
            found = numbered.batches
        batches: list[Any] = found.unpacked() if type(found) is Parcel else found
        if numbered is not None:
            self.numbers.extend(range(numbered.step, numbered.step + len(batches)))
        return batches
