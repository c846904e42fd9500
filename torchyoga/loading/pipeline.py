"""How the batches of an iteration are made: by this process, or by torch's loader and its workers.

Note 8. torch's iterators take indices from a plan that moves nothing.
Batches are counted as they come out. Without workers and Python transforms a loader reads by itself, small
batches several at once.

Note 12. torch draws from the loader's own generator.
If it drew from the global one, making an iterator would change the user's random numbers after a resume.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from copy import copy
from time import perf_counter
from typing import Any, TypeAlias, cast

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from ..order.iteration import Iteration
from ..process.seeding import generators_put_back, worker_seed
from ..process.stages import Stage, Stopwatch
from ..reading.dataref import DataRef
from ..rows.types import Batch, MapStyle
from ..sampling.foreign import SamplerError
from ..sampling.seeding import Seeding
from ..views.flattened import flattened
from .failures import BatchError, Failure, TakenOverError
from .in_process import InProcess, has_accelerator
from .parcel import Parcel
from .plan import EpochIndices, SingleRow
from .row_maker import Made, RowMaker, WorkerInit
from .shared_memory import Ring

__all__ = ["Arriving", "Pipeline", "TorchLoader"]

TorchLoader: TypeAlias = torch.utils.data.DataLoader[Batch]
_SPARE_SLOTS = 4  # for batches that the training loop still holds when the next one is under way
_inherited: list[object] = []  # by a forked child; kept until it ends


class Pipeline:
    """What makes the batches of a loader, one iteration after the other.

    Args:
        plan: the indices.
        reads_here: True if this process reads a DataRef by itself: where no row needs Python, torch's
            machinery would cost more than reading.
        num_ahead: batches to read ahead then.
        seeds_rows: each row is made with random numbers of its own.
        seeds_collation: each batch is collated with random numbers of its own.
        watch: counts the seconds of each stage.

    Attributes:
        latest: the iteration that has begun last.
        turn: whose turn it is to use persistent workers, one after the other.
    """

    def __init__(
        self,
        plan: EpochIndices,
        reads_here: bool,
        num_ahead: int,
        seeds_rows: bool,
        seeds_collation: bool,
        watch: Stopwatch,
    ) -> None:
        self.plan = plan
        self.watch = plan.watch = watch
        self.latest: Iteration | None = None
        self.turn = 0
        self._reads_here, self._num_ahead = reads_here, num_ahead
        self._seeds = seeds_rows, seeds_collation
        self._idle_ring: Ring | None = None
        self._inner: TorchLoader | None = None  # whose workers are persistent

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "latest": None, "_idle_ring": None, "_inner": None}

    def begin(self, loader: TorchLoader, made: int | None = None) -> Iteration:
        """An iteration that begins now; `made` says when its iterator was made."""
        indices = self.plan.indices
        expected, found = len(indices.dataset), len(_dataset_of(loader))
        if found != expected:
            raise ValueError(
                f"the sampler is of {expected} rows, the dataset has {found}; make a new loader, and load "
                "the state with strict=False"
            )
        in_order = not self.plan.is_unordered
        return indices.begin(loader.batch_size or 1, loader.drop_last, in_order, made=made)

    def start(self, loader: TorchLoader, iteration: Iteration) -> Arriving | InProcess:
        """The batches of an iteration from where it stands."""
        plan = self.plan
        plan.iteration = iteration
        read = flattened(loader.dataset)  # anew, as a Subset's indices may have changed
        dataset = _dataset_of(loader) if read is None else read
        plan.source = dataset.in_epoch(plan.epoch) if isinstance(dataset, DataRef) else dataset
        seeding = self._seeding(is_here=not loader.num_workers)
        source = plan.source
        if self._reads_here and isinstance(source, DataRef):
            self.turn += 1
            return InProcess(
                source, plan, seeding, loader.collate_fn, loader.pin_memory, self._num_ahead, self.watch
            )
        try:
            fetched = iter(self._inner_loader(loader, seeding, dataset))
        except BaseException:
            self.give_up_workers()
            raise
        self.turn += 1
        return Arriving(fetched, plan, self, is_shared=loader.persistent_workers)

    def peek(self, loader: TorchLoader) -> Batch:
        """The batch that an iteration which begins now would give first, made here."""
        plan, indices = copy(self.plan), self.plan.indices
        size, drop_last = loader.batch_size or 1, loader.drop_last
        look = indices.begin(size, drop_last, made=indices.clock(), looked_at=True)
        plan.iteration, plan.together = look, 1
        plan.ring, plan.seen_by, plan.is_unordered, plan.watch = None, None, False, Stopwatch()
        wanted = next(iter(plan), None)
        if wanted is None:
            raise ValueError(f"epoch {look.start.epoch} has no batch from position {look.start.position} on")
        source = flattened(loader.dataset)
        dataset = _dataset_of(loader) if source is None else source
        rows = RowMaker(dataset, self._seeding(is_here=True), loader.collate_fn, None, plan.watch)
        with generators_put_back():
            found = rows[wanted] if isinstance(wanted, SingleRow) else rows.__getitems__(wanted)[0]
        pins = loader.pin_memory and has_accelerator()
        return pin_memory(found) if pins else found  # type: ignore[no-untyped-call]

    def done_with(self, ring: Ring) -> None:
        """Keeps a ring into which no worker writes any more, for the next iteration."""
        self._idle_ring = ring

    def give_up_workers(self) -> None:
        """Ends persistent workers whose progress is not known; the next iteration starts others."""
        inner, self._inner = self._inner, None
        if inner is not None and inner._iterator is not None:
            inner._iterator._shutdown_workers()  # type: ignore[attr-defined]

    def leave_to_parent(self, batches: Iterator[Batch]) -> None:
        """Forgets, in a forked child, batches and workers of its parent, which it does not have.

        They are kept nevertheless: torch's iterator would stop the parent's workers if it were released.
        """
        _inherited.append((batches, self._inner))
        self._inner = None

    def _seeding(self, is_here: bool) -> Seeding:
        # A foreign sampler may give a row twice, with different random numbers each time.
        return Seeding(*self._seeds, is_here, by_place=self.plan.indices.may_repeat)

    def _inner_loader(self, loader: TorchLoader, seeding: Seeding, dataset: MapStyle) -> TorchLoader:
        """A loader of torch's over batches that are made and collated already."""
        plan, inner = self.plan, self._inner
        # torch draws a number for each iterator, from the global generator or the user's, which would change
        # the user's own random numbers after a resume; from this one it may draw.
        seed = worker_seed(plan.indices.cursor.order.seed, plan.epoch)
        if inner is not None and inner.generator is not None:
            inner.generator.manual_seed(seed)
            return inner
        plan.ring = self._new_ring(loader)
        more: dict[str, Any] = {"batch_sampler": plan}
        if plan.is_single:
            more = {"batch_size": None, "sampler": plan}
        if loader.num_workers:
            more |= {name: getattr(loader, name) for name in _OF_WORKERS if hasattr(loader, name)}
            more["worker_init_fn"] = WorkerInit(loader.dataset, loader.worker_init_fn)
        rows = RowMaker(dataset, seeding, loader.collate_fn, plan.ring, self.watch)
        inner = _Inner(
            cast("torch.utils.data.Dataset[Batch]", rows),
            collate_fn=_itself,
            pin_memory=loader.pin_memory,
            generator=torch.Generator().manual_seed(seed),
            **more,
        )
        if loader.persistent_workers:
            self._inner = inner
        return inner

    def _new_ring(self, loader: TorchLoader) -> Ring | None:
        """Shared memory for the batches of one iterator's workers; used again once they are done."""
        if not loader.num_workers or self.plan.is_single:
            return None
        slots = loader.num_workers * (loader.prefetch_factor or 2) + _SPARE_SLOTS
        idle, self._idle_ring = self._idle_ring, None
        is_ours = idle is not None and idle.process == os.getpid()
        return idle if is_ours else Ring.made(slots)


_OF_WORKERS = (
    "num_workers",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class _Inner(torch.utils.data.DataLoader[Batch]):
    """torch's loader, below the user's, which has warned of the number of workers already."""

    def check_worker_number_rationality(self) -> None:
        """Says nothing."""


class Arriving(Iterator[Batch]):
    """The batches that torch's iterators fetch, one by one; out of the slots of a ring, if there is one."""

    def __init__(
        self, fetched: Iterator[Batch], plan: EpochIndices, pipeline: Pipeline, is_shared: bool
    ) -> None:
        self._fetched = fetched
        self._ring = plan.ring
        self._is_single = plan.is_single
        self._pipeline = pipeline
        self._is_shared = is_shared  # with other iterators: the workers
        self._turn = pipeline.turn
        self._batches: list[Batch] = []  # those that have arrived, last first
        self.numbers: deque[int] = deque()  # of all that came, if they come in any order

    def __next__(self) -> Batch:
        if self._is_shared and self._turn != self._pipeline.turn:
            raise TakenOverError(
                "another iterator of this loader has taken over its persistent workers; use one iterator at "
                "a time, or persistent_workers=False"
            )
        while not self._batches:
            self._batches = self._next()[::-1]
        batch = self._batches.pop()
        if type(batch) is ExceptionWrapper:
            raise BatchError(_error_of(batch))
        if type(batch) is Failure:
            raise BatchError(batch.error)
        return batch

    def _next(self) -> list[Batch]:
        ring = self._ring
        before: int | None = getattr(self._fetched, "_rcvd_idx", None)
        try:
            found = next(self._fetched)
        except StopIteration:
            if ring is not None and ring.is_idle:
                self._pipeline.done_with(ring)
            raise
        except SamplerError:
            raise
        except Exception as error:
            # Single rows come with their errors in torch's way; then it has gone on to the next one.
            is_of_row = self._is_single and before != getattr(self._fetched, "_rcvd_idx", None)
            if before is not None and not is_of_row:
                raise
            raise BatchError(error) from error
        if self._is_single:
            return [found]
        made = found if type(found) is Made else None
        step = None if made is None else made.step
        if ring is not None:
            ring.arrived(None if made is None or step is None else made.slot)
        if made is None:
            return cast("list[Batch]", found)
        watch, found = self._pipeline.watch, made.batches
        watch.add_sent(made.seconds)
        began = perf_counter()
        batches: list[Batch] = found.unpacked() if type(found) is Parcel else found
        watch.add(Stage.HAND_OVER, perf_counter() - began)
        if step is not None:
            self.numbers.extend(range(step, step + len(batches)))
        return batches


def _error_of(failure: ExceptionWrapper) -> Exception:
    """What was raised in a worker, with the worker's traceback in its message."""
    try:
        failure.reraise()  # type: ignore[no-untyped-call]
    except Exception as error:
        # torch's frame refers to the error; through this process's traceback a cycle would keep the workers.
        return error.with_traceback(None)
    raise AssertionError("torch raises what failed")


def _dataset_of(loader: TorchLoader) -> MapStyle:
    return cast("MapStyle", loader.dataset)  # a torchyoga.DataLoader takes no other


def _itself(batch: Batch) -> Batch:
    """The collate function of batches that are collated already."""
    return batch
