"""The iterations of a loader: its batches are made here or by workers, counted, and moved to a device.

The makers take indices from a plan that moves nothing: a batch counts when it reaches the training loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch

from ..errors import StateError
from ..order.contract import Saved
from ..order.epoch import Iteration, IterationOptions
from ..process.messages import warn_user
from ..process.seeding import GeneratorsPutBack, worker_seed
from ..process.stages import Stage, Stopwatch
from ..process.threads import renew_in_children
from ..reading.dataref import DataRef
from ..rows.collate import is_ours
from ..rows.types import Batch, MapStyle, Row, mapped
from ..sampling.indices import are_skipped
from ..sampling.seeding import Quiet, Seeding
from ..sampling.user_sampler import SamplerError
from ..views.flattened import flattened
from .accelerate import Accelerated
from .making import BatchError, Failure, InProcess, Maker
from .plan import ChosenNumber, EpochIndices, Way
from .redrawn import Redrawn
from .workers import Arriving, TorchLoader, Workers, inherited, is_late


class Observer:
    """Answers all that a loop asks of a loader. A Checkpoint puts its own around that of the loader.

    Args:
        meter: measures how long a batch is waited for: it calls `following()` of an iteration.
    """

    def __init__(self, meter: Callable[[Delivery], Batch]) -> None:
        self._meter = meter

    def take(self, delivery: Delivery) -> Batch:
        """The next batch of an iteration."""
        return self._meter(delivery)

    def length(self, batches: int) -> int:
        """The length of the loader, whose epoch has so many batches."""
        return batches

    def steps(self, before: int) -> int:
        """The number of the next batch, so many of its epoch being over."""
        return before


class Pipeline:
    """The maker of a loader's batches, one iteration after the other.

    Args:
        plan: the indices, and the way in which their batches are made.
        quiet: whether rows draw random numbers.
        meter: see `Observer`.
        ways: gives the way for a number of workers.

    Attributes:
        watch: counts the seconds of each stage.
        latest: the iteration that has begun last.
        redrawn: warns if the dataset's rows were drawn again.
        workers: the processes.
        observer: answers what a loop asks.
        can_employ: False once workers that the loader chose could not be started.
    """

    can_employ = True

    def __init__(
        self, plan: EpochIndices, quiet: Quiet, meter: Callable[[Delivery], Batch], ways: Callable[[int], Way]
    ) -> None:
        self.plan, self.watch = plan, plan.watch
        self.latest: Iteration | None = None
        self.redrawn, self.workers = Redrawn(), Workers()
        self._quiet, self._meter, self._ways = quiet, meter, ways
        self.observer = Observer(meter)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "latest": None, "observer": Observer(self._meter)}

    @property
    def way(self) -> Way:
        """The way in which batches are made, see `Way`."""
        return self.plan.way

    def employ(self, loader: TorchLoader, num_workers: int) -> None:
        """Has the batches of iterations that start from now on made by another number of workers."""
        loader.num_workers, self.plan.way = ChosenNumber(num_workers), self._ways(num_workers)
        self.plan.ring = self.workers.idle_ring = None  # it is made for the number of workers
        self.workers.give_up()

    def begin(self, loader: TorchLoader, made: int | None = None) -> Iteration:
        """An iteration that begins now; `made` says when its iterator was made."""
        indices = self.plan.indices
        expected, found = len(indices.dataset), len(cast("MapStyle", loader.dataset))
        if found != expected:
            raise ValueError(
                f"the sampler is of {expected} rows, the dataset has {found}; make a new loader, and load "
                "the state with strict=False"
            )
        in_order = not self.way.is_unordered
        begun = indices.begin(IterationOptions(loader.batch_size or 1, loader.drop_last, in_order, made))
        if begun.options.counts:
            is_kept = self.way.kind == "processes" and loader.persistent_workers
            self.redrawn.begun(loader.dataset, begun.start.epoch, indices.cursor.extra, is_kept)
        return begun

    def start(self, loader: TorchLoader, iteration: Iteration) -> Arriving | InProcess:
        """The batches of an iteration from where it stands."""
        plan, is_here = self.plan, self.way.kind != "processes"
        plan.iteration = iteration
        dataset = _flat(loader)
        plan.source = dataset.in_epoch(plan.epoch) if isinstance(dataset, DataRef) else dataset
        maker = Maker(
            dataset,
            self._seeding(),
            loader.collate_fn,
            self.watch,
            self.way.is_single,
            pins=is_here and loader.pin_memory,
            parts=self.way.is_ahead and not is_ours(loader.collate_fn),
            bound=(plan.epoch, plan.source),
        )
        if is_here:
            return InProcess(plan, maker)
        try:
            # Not the same numbers again where the iteration has begun again within the epoch.
            seed = worker_seed(plan.indices.cursor.order.seed, plan.epoch) + iteration.counted
            return self.workers.arriving(loader, plan, maker, seed)
        except BaseException as error:
            self.workers.give_up()
            if not isinstance(loader.num_workers, ChosenNumber) or not isinstance(error, Exception):
                raise
            warn_user(f"no workers can be started, so rows are made by this process: {error}")
            self.can_employ = False
            self.employ(loader, 0)
        return self.start(loader, iteration)

    def peek(self, loader: TorchLoader) -> Batch:
        """The batch that an iteration which begins now would give first, made here."""
        plan, indices = copy(self.plan), self.plan.indices
        size, drop_last = loader.batch_size or 1, loader.drop_last
        look = indices.begin(IterationOptions(size, drop_last, made=indices.cursor.num_begun, counts=False))
        plan.iteration, plan.way = look, replace(plan.way, is_read=False)
        plan.seen_by, plan.watch = None, Stopwatch()
        wanted = next(plan.jobs_here(0), None)
        if wanted is None:
            raise ValueError(
                f"epoch {look.start.epoch} has no batch from position {look.start.position} on, so none "
                "tells types and shapes; add rows, or pass drop_last=False or a smaller batch_size"
            )
        seeding, collate = self._seeding(), loader.collate_fn
        maker = Maker(_flat(loader), seeding, collate, plan.watch, self.way.is_single, pins=loader.pin_memory)
        with GeneratorsPutBack():
            (found,) = maker.made(wanted)
        if type(found) is Failure:
            raise found.error
        return found

    def _seeding(self) -> Seeding:
        # A foreign sampler may give a row twice, with different random numbers each time.
        return Seeding(self.way.seeds_rows, self.way.seeds_batches, self._quiet, self.plan.indices.may_repeat)


def _flat(loader: TorchLoader) -> MapStyle:
    """The dataset, without the Subsets around it, as their indices are now."""
    read = flattened(loader.dataset)
    return cast("MapStyle", loader.dataset if read is None else read)  # a torchyoga.DataLoader takes no other


class Moving(Iterator[Batch]):
    """Batches on a device; one is always on its way."""

    def __init__(self, device: torch.device, watch: Stopwatch, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._copy = _CudaCopy(device, watch) if device.type == "cuda" else _Copy(device, watch)
        self._coming: _Copied | Exception | None = None

    def __next__(self) -> Batch:
        coming = self._coming if self._coming is not None else self._begun()
        # An error or the end stays, for whoever asks again; but other batches follow a failed one.
        self._coming = coming if isinstance(coming, StopIteration) else self._begun()
        if isinstance(coming, Exception):
            raise coming
        return self._copy.arrived(coming)

    def _begun(self) -> _Copied | Exception:
        try:
            return self._copy.begun(next(self._batches))
        except Exception as error:
            return error


class _Copied(NamedTuple):
    """A batch on its way, what it is copied from, and what signals that it has come."""

    batch: Batch
    source: Batch
    event: torch.Event | None = None


class _Copy:
    """Copies to a device that needs no stream of its own.

    They are waited for: the memory copied from may be used again as soon as nothing holds it.
    """

    def __init__(self, device: torch.device, watch: Stopwatch) -> None:
        self.device = device
        self.watch = watch

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        with self.watch.running(Stage.COPY):
            return _Copied(mapped(batch, self._moved, _moves_itself), batch)

    def arrived(self, copied: _Copied) -> Batch:
        """The batch, once it may be computed with."""
        return copied.batch

    def _moved(self, leaf: Row) -> Row:
        return leaf.to(self.device) if _moves_itself(leaf) else leaf


class _CudaCopy(_Copy):
    """Copies on a stream of its own, so that the computation goes on meanwhile.

    Whatever is more than one run of memory is copied when it is wanted: the allocator
    could not be told that each part of it is used on another stream than it was made on.
    """

    def __init__(self, device: torch.device, watch: Stopwatch) -> None:
        super().__init__(device, watch)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Perhaps still being read by the device: when the copy began and ended, and what it is of.
        self._read: deque[tuple[torch.cuda.Event, torch.cuda.Event, Batch]] = deque()

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        while self._read and self._read[0][1].query():  # type: ignore[no-untyped-call]
            began, ended, _ = self._read.popleft()
            self.watch.add(Stage.COPY, began.elapsed_time(ended) / 1e3)
        with torch.cuda.stream(self._stream):
            began, ended = _event(), _event()
            began.record(self._stream)
            moved = mapped(batch, self._moved_ahead, _moves_itself)
            ended.record(self._stream)
            self._read.append((began, ended, batch))
            return _Copied(moved, batch, ended)

    def arrived(self, copied: _Copied) -> Batch:
        """The batch; the current stream waits for it, the process does not."""
        current = torch.cuda.current_stream(self.device)
        assert copied.event is not None
        current.wait_event(copied.event)

        def keep(leaf: Row) -> Row:
            if not _is_one_run(leaf):
                return self._moved(leaf)
            if leaf.is_cuda:
                leaf.record_stream(current)  # its memory was made on the other stream
            return leaf

        return mapped(copied.batch, keep, _moves_itself)

    def _moved_ahead(self, leaf: Row) -> Row:
        return leaf.to(self.device, non_blocking=True) if _is_one_run(leaf) else leaf


def _moves_itself(leaf: object) -> bool:
    return callable(getattr(leaf, "to", None))


def _is_one_run(leaf: Row) -> bool:
    """True for a tensor that is just its own memory."""
    return type(leaf) is torch.Tensor and leaf.layout == torch.strided and not leaf.is_nested


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Delivery(Iterator[Batch]):
    """One iteration of a loader, counting every batch that reaches the training loop.

    Args:
        loader: the loader.
        pipeline: makes its batches.
        accelerated: what an Accelerator knows of it.

    Attributes:
        plan: the loader's.
        iteration: None until the first batch is asked for.
    """

    def __init__(self, loader: TorchLoader, pipeline: Pipeline, accelerated: Accelerated) -> None:
        self.loader, self.plan = loader, pipeline.plan
        self.iteration: Iteration | None = None
        self._pipeline, self._accelerated = pipeline, accelerated
        self._indices = pipeline.plan.indices
        self._moved: Callable[[Iterator[Batch]], Iterator[Batch]] = iter
        self._batches: Iterator[Batch] | None = None
        self._numbers: deque[int] | None = None  # numbers of the batches that come, if in any order
        self._made = self._indices.cursor.num_begun
        self._failed: list[int] = []  # batches since the last one that did not
        self._steps = 0
        self._started: Arriving | InProcess | None = None  # what has workers, also when it was interrupted
        self._over = False
        self._alone = threading.RLock()  # held by the thread that asks for a batch
        renew_in_children(self)

    def renew(self) -> None:
        """Leaves threads and workers, in a forked child, to its parent; it begins again where it stands."""
        inherited.append((self._batches, self._started))
        self._batches = self._started = None
        self._alone = threading.RLock()

    def move_to(self, device: torch.device) -> None:
        """Copies all batches to a device, each while the one before it is computed with."""
        self._moved = partial(Moving, device, self._pipeline.watch)

    @property
    def can_employ(self) -> bool:
        """False once workers that the loader chose could not be started."""
        return self._pipeline.can_employ

    def employ(self, num_workers: int) -> None:
        """Has the batches from the next one on made by another number of workers; the same batches come."""
        self._batches = None  # first, as Ctrl-C may come while workers end
        self._pipeline.employ(self.loader, num_workers)

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Batch:
        with self._alone:
            return self._pipeline.observer.take(self)

    def following(self) -> Batch:
        """The next batch, counted."""
        iteration, batches, cursor = self.iteration, self._batches, self._indices.cursor
        if iteration is None or batches is None:
            iteration, batches = self._begin()
        if iteration.generation != cursor.generation:
            cursor.check_generation(iteration.generation)
        error: Exception | None = None
        try:
            batch = next(batches)
            if self._failed:
                self._leave_out(iteration)
            if self._numbers is None:
                iteration.advance()
            else:
                with cursor.lock:
                    iteration.deliver(self._numbers.popleft())
        except StopIteration:
            self._end(iteration)
            raise
        except SamplerError as failed:
            self._batches = None
            self._pipeline.workers.give_up()
            error = failed.error
        except BatchError as failed:
            if self._numbers is None:
                self._failed.append(iteration.taken + len(self._failed))
            else:
                self._failed.append(self._numbers.popleft())
            error = failed.error
        except BaseException as interrupt:
            # An interrupt anywhere within, or a worker that was killed: asked again, this begins again with
            # the batch that would have come. A batch that is merely late will come.
            if not is_late(interrupt):
                self._batches = None
                self._pipeline.workers.give_up()
                if isinstance(interrupt, Exception) and isinstance(self._started, Arriving):
                    self._started.end()  # for the garbage collector it takes ten seconds: see below
            raise
        if error is not None:
            # Out here, and forgotten: an error whose frames or context refer to it would keep the workers
            # until the garbage collector comes, which torch's queues do not survive.
            try:
                raise error from error.__cause__
            finally:
                del error, batches
        if cursor.latest is not iteration:
            cursor.moved(iteration)
        if iteration.taken == self._steps:
            self._accelerated.is_at_end = True
        return batch

    def skip(self, steps: int) -> None:
        """Begins after so many batches that were trained on before: they count as delivered."""
        self._begin(steps)

    def _begin(self, skipped: int = 0) -> tuple[Iteration, Iterator[Batch]]:
        if self._over:
            raise StopIteration
        loader, pipeline, iteration = self.loader, self._pipeline, self.iteration
        if iteration is None:
            self._accelerated.prepare(self._indices, loader.batch_size or 1)
            self.iteration = iteration = pipeline.begin(loader, self._made)
            iteration.hold(self)
            pipeline.latest = iteration
            if skipped and not are_skipped(iteration, skipped):
                iteration.skip(skipped)
                self._indices.cursor.reached(iteration)
            rows_in_step = (loader.batch_size or 1) * self._indices.num_replicas
            rest = self._indices.rows_in_last_step(iteration) % rows_in_step
            self._accelerated.begun(loader, rest)
        else:
            with self._indices.cursor.lock:
                self._leave_out(iteration)
                iteration.restart()
        if isinstance(self._started, Arriving):
            self._started.end()
        self._batches = self._started = None
        self._steps = iteration.num_steps
        try:
            self._started = started = pipeline.start(loader, iteration)
        except SamplerError as failed:
            raise failed.error from failed.error.__cause__
        if isinstance(started, Arriving) and not iteration.in_order:
            self._numbers = started.numbers
        self._batches = self._moved(started)
        return iteration, self._batches

    def state_after(self, steps: int) -> Saved:
        """`DataLoader.state_after` for this iteration."""
        if self.iteration is None:
            raise StateError("this iteration has not begun yet; take the loader's state_dict()")
        return self._indices.state_after(self.iteration, steps)

    def _leave_out(self, iteration: Iteration) -> None:
        """Going on after failed batches counts them as left out."""
        if not self._failed:
            return
        with self._indices.cursor.lock:
            for step in self._failed:
                iteration.lose(step)
            self._failed.clear()
            self._indices.cursor.moved(iteration)

    def _end(self, iteration: Iteration) -> None:
        self._over = True
        self._batches = self._started = None  # ends the workers, if they are not persistent
        self._leave_out(iteration)
        self._indices.cursor.finished(iteration)
        self._pipeline.redrawn.ended(self.loader.dataset)
        self._accelerated.ended(self.loader)
