"""Batches made by torch's worker processes: what a worker does for a job, and how its batches arrive."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, TypeAlias, cast

import torch
import torch.utils.data
from torch._C import _remove_worker_pids
from torch._utils import ExceptionWrapper
from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.buffers import placing
from ..process.raised import Raised, text_of, torch_can_raise
from ..process.seeding import KINDS
from ..process.stages import Stage, Stopwatch, WorkerClock, seconds_sent, timed
from ..process.stops import kill_when_terminated, listened, outlive
from ..process.threads import renew_in_children
from ..reading.dataref import DataRef
from ..rows.collate import is_ours
from ..rows.types import Batch
from .making import BatchError, Failure, Maker
from .parcel import Parcel, packed, sendable, too_many_files
from .plan import EpochIndices, Job
from .shared_memory import Ring

TorchLoader: TypeAlias = torch.utils.data.DataLoader[Batch]
_SPARE_SLOTS = 4  # for batches that the training loop still holds when the next one is under way
_OF_WORKERS = (
    "num_workers",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
)


class TakenOverError(RuntimeError):
    """Another iterator uses the workers."""


def is_late(error: BaseException) -> bool:
    """True if torch has waited for a batch as long as `timeout` says, or another iterator has the workers."""
    return isinstance(error, TakenOverError) or (
        isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")
    )


class Made:
    """The batches of a job, as a worker made them.

    Attributes:
        step: the number of the first; None if they come in order.
        slot: of the ring, in which they lie.
        seconds: what the worker spent on each stage.
        have_drawn: rows that the worker made have drawn from all generators, or after it had looked.
    """

    __slots__ = ("batches", "have_drawn", "seconds", "slot", "step")

    def __init__(self, step: int | None, slot: int, batches: Batch, seconds: bytes, have_drawn: bool) -> None:
        self.step, self.slot, self.batches, self.seconds = step, slot, batches, seconds
        self.have_drawn = have_drawn

    def __reduce__(self) -> tuple[type[Made], tuple[object, ...]]:
        return Made, (self.step, self.slot, self.batches, self.seconds, self.have_drawn)

    def pin_memory(self, device: object = None) -> Made:
        """The same, with batches in pinned memory; called by torch's thread."""
        watch = Stopwatch()
        watch.add_sent(self.seconds)
        with watch.running(Stage.PIN):
            batches = pin_memory(self.batches, device)  # type: ignore[no-untyped-call]
        return Made(self.step, self.slot, batches, watch.sent(), self.have_drawn)


class _Worker:
    """What torch's fetcher in a worker process takes for a dataset: it makes the batches of a job."""

    def __init__(self, maker: Maker, ring: Ring | None) -> None:
        self.maker, self._ring = maker, ring
        self._clock, self._process = WorkerClock(), 0

    def __len__(self) -> int:
        return len(self.maker.dataset)

    def __getitems__(self, job: Job) -> Made:
        maker = self.maker
        if self._process != os.getpid():
            maker.watch, self._clock, self._process = Stopwatch(), WorkerClock(), os.getpid()
        try:
            with maker.running():
                found = self._packed(job)
        except Exception as error:
            found = [_raised(error)] * len(job.firsts)
        have_drawn = maker.seeding.quiet.drawn == KINDS
        return Made(job.step, job.slot, found, self._clock.sent(maker.watch), have_drawn)

    def _packed(self, job: Job) -> Batch:
        """The batches of a job: a list, or a parcel of one."""
        maker, ring = self.maker, self._ring
        place = None if ring is None or job.slot < 0 else ring.place(job.slot)
        # Only our own code may see the memory of the slot: what the user's code keeps would be overwritten.
        ours = not maker.seeding.rows and is_ours(maker.collate) and not _keeps_rows(maker.dataset)
        with placing(place) if ours and place is not None else contextlib.nullcontext():
            found = [_raised(one.error) if type(one) is Failure else one for one in maker.batches(job)]
        try:
            with timed(Stage.TRANSFER):
                return sendable(packed(found, job.ring, job.slot, place), len(found))
        except Exception:
            if len(found) == 1:
                raise
        # One of them cannot be sent: the others are delivered nevertheless.
        found = list(map(_or_its_error, found))
        return sendable(packed(found, job.ring, job.slot, place), len(found))


def _or_its_error(batch: Batch) -> Batch:
    """The batch, or why it cannot be sent."""
    try:
        sendable(packed(batch, -1, -1, None), 1)
    except Exception as error:
        return _raised(error)
    return batch


def _raised(error: Exception) -> Raised:
    """An exception, to be raised by the training loop's process."""
    worker = get_worker_info()
    assert worker is not None
    return Raised(error, f"in DataLoader worker process {worker.id}")


def _keeps_rows(dataset: object) -> bool:
    """True for a dataset that may hold rows that it has given."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not isinstance(dataset, DataRef) or dataset._keeps_rows


class WorkerInit:
    """Shows workers the user's dataset before they run the user's function."""

    def __init__(self, dataset: object, function: Callable[[int], object] | None) -> None:
        self._dataset = dataset
        self._function = function
        self._signals = listened()

    def __call__(self, worker_id: int) -> None:
        """Sets up one worker process."""
        outlive(self._signals)
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self._dataset)  # torch forbids plain assignment
        if self._function is not None:
            try:
                self._function(worker_id)
            except Exception as error:
                if torch_can_raise(error):
                    raise
                said = f"{type(error).__name__}: {text_of(error)}"
                raise RuntimeError(f"worker_init_fn failed: {said}") from error


class _TorchLoader(torch.utils.data.DataLoader[Batch]):
    """torch's loader, below the user's, which has warned of the number of workers already."""

    def check_worker_number_rationality(self) -> None:
        """Says nothing."""


def itself(batch: Batch) -> Batch:
    """The collate function of batches that are collated already."""
    return batch


class Workers:
    """The worker processes of a loader; they may serve several iterations, one after the other.

    Attributes:
        turn: whose turn it is to use persistent workers, one after the other.
        idle_ring: a ring into which no worker writes any more, for the next iteration.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.idle_ring: Ring | None = None
        self._persistent: TorchLoader | None = None
        renew_in_children(self)

    def renew(self) -> None:
        """Leaves persistent workers, in a forked child, to its parent."""
        inherited.append(self._persistent)
        self._persistent = None

    def __reduce__(self) -> tuple[type[Workers], tuple[()]]:
        return Workers, ()

    def arriving(self, loader: TorchLoader, plan: EpochIndices, maker: Maker, seed: int) -> Arriving:
        """The batches of an iteration, as workers make them.

        torch draws a number for each iterator, from the global generator or the user's, which would change
        the user's own random numbers after a resume; from one of this seed it may draw.
        """
        if self._persistent is not None and plan.is_in_order != getattr(self._persistent, "in_order", True):
            self.give_up()  # there are more ranks now
        inner, began = self._persistent, None
        if inner is None:
            began = perf_counter()
            inner = self._torch_loader(loader, plan, maker)
        assert inner.generator is not None
        inner.generator.manual_seed(seed)
        fetched: Iterator[Batch] = iter(inner)
        if listened():
            _kill_when_terminated(fetched)
        self.turn += 1
        return Arriving(fetched, plan, self, inner, began)

    def _torch_loader(self, loader: TorchLoader, plan: EpochIndices, maker: Maker) -> TorchLoader:
        """A loader of torch's over batches that are made and collated already."""
        plan.ring = None if plan.way.is_single else self._ring(loader)
        options: dict[str, Any] = {
            name: getattr(loader, name) for name in _OF_WORKERS if hasattr(loader, name)
        }
        if plan.way.is_unordered:
            options["in_order"] = plan.is_in_order
        inner = _TorchLoader(
            cast("torch.utils.data.Dataset[Batch]", _Worker(maker, plan.ring)),
            batch_sampler=cast("Any", plan),
            collate_fn=itself,
            generator=torch.Generator(),
            worker_init_fn=WorkerInit(loader.dataset, loader.worker_init_fn),
            **options,
        )
        if loader.persistent_workers:
            self._persistent = inner
        return inner

    def _ring(self, loader: TorchLoader) -> Ring | None:
        """Shared memory for the batches of one iterator's workers; used again once they are done."""
        idle, self.idle_ring = self.idle_ring, None
        if idle is not None and idle.process == os.getpid():
            return idle
        return Ring.made(loader.num_workers * (loader.prefetch_factor or 2) + _SPARE_SLOTS)

    def give_up(self) -> None:
        """Ends persistent workers whose progress is not known; the next iteration starts others."""
        inner, self._persistent = self._persistent, None
        self.turn += inner is not None  # another iterator may still use them
        if inner is not None and inner._iterator is not None:
            inner._iterator._shutdown_workers()  # type: ignore[attr-defined]


# In a forked child: iterators of its parent. Once released, they would stop the workers of the parent.
inherited: list[object] = []


class Arriving(Iterator[Batch]):
    """The batches that worker processes send, one by one; out of the slots of a ring, if there is one."""

    def __init__(
        self, fetched: Any, plan: EpochIndices, workers: Workers, inner: TorchLoader, began: float | None
    ) -> None:
        self._fetched, self._inner = fetched, inner
        self._ring, self._watch = plan.ring, plan.watch
        self._workers, self._is_shared = workers, inner.persistent_workers  # with other iterators
        self._began = began  # when workers began to start; None once they have
        self._turn = workers.turn
        self._batches: list[Batch] = []  # those that have arrived, last first
        self.numbers: deque[int] = deque()  # of all that came, if they come in any order

    def end(self) -> None:
        """Ends the workers: here, since of a finalizer Python drops what is raised in it, as by Ctrl-C."""
        if not self._is_shared:
            self._fetched._shutdown_workers()

    def __next__(self) -> Batch:
        if self._is_shared and self._turn != self._workers.turn:
            raise TakenOverError(
                "another iterator of this loader has taken over its persistent workers; use one iterator at "
                "a time, or persistent_workers=False"
            )
        while not self._batches:
            self._batches = self._next()[::-1]
        batch = self._batches.pop()
        if isinstance(batch, ExceptionWrapper):
            raise BatchError(_error_of(batch))
        return batch

    def _next(self) -> list[Batch]:
        ring, watch, asked = self._ring, self._watch, perf_counter()
        try:
            made: Made = next(self._fetched)
        except StopIteration:
            if not self._is_shared:
                watch.add(Stage.START_UP, perf_counter() - asked)
            if ring is not None and ring.is_idle:
                self._workers.idle_ring = ring
            raise
        except EOFError as error:  # of a worker that lives, as torch has looked: it opened no file to send
            raise too_many_files("its worker opened none, unless it has just ended") from error
        if self._began is not None:
            making = seconds_sent(made.seconds)
            watch.add(Stage.START_UP, max(0.0, perf_counter() - self._began - making))
            self._began = None
        if ring is not None:
            ring.arrived(None if made.step is None else made.slot)
        if made.have_drawn:
            cast("_Worker", self._inner.dataset).maker.note_draws()
        watch.add_sent(made.seconds)
        began, found = perf_counter(), made.batches
        batches: list[Batch] = found.unpacked() if type(found) is Parcel else found
        watch.add(Stage.TRANSFER, perf_counter() - began)
        if made.step is not None:
            self.numbers.extend(range(made.step, made.step + len(batches)))
        return batches


def _error_of(failure: ExceptionWrapper) -> Exception:
    """The error of a worker, with the worker's traceback in its message."""
    try:
        failure.reraise()  # type: ignore[no-untyped-call]
    except Exception as error:
        # torch's frame refers to the error; through this process's traceback a cycle would keep the workers.
        return error.with_traceback(None)
    raise AssertionError("torch raises what failed")


def _kill_when_terminated(fetched: Any) -> None:
    """Lets workers that outlive SIGTERM be killed by whatever terminates them."""
    held = weakref.ref(fetched)

    def forget() -> None:
        # That it was killed would raise an error, in the midst of whatever the program does.
        if (iterator := held()) is not None and iterator._worker_pids_set:
            iterator._worker_pids_set = False
            _remove_worker_pids(id(iterator))

    for worker in getattr(fetched, "_workers", ()):
        kill_when_terminated(worker, forget)
