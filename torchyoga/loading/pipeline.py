"""How the batches of an iteration are made: by this process, or by torch's loader and its workers.

torch's iterators take indices from a plan that moves nothing.
Batches are counted as they come out. Without workers and Python transforms a loader reads by itself, small
batches several at once.

torch draws from the loader's own generator.
If it drew from the global one, making an iterator would change the user's random numbers after a resume.

A dataset's attributes are looked at, its rows are not.
A state says which rows come next, by their numbers. It cannot say what a dataset has behind a number, if that
is drawn in the training loop's process, as negative samples are. To make a row may take long, move a
generator, or open a file before workers are forked. Attributes with an entry for each row cost some
microseconds, and that is where rows that are drawn are kept. One that changes within an epoch counts what is
read, or keeps it: rows are drawn between epochs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.utils.data
from torch._C import _remove_worker_pids
from torch._utils import ExceptionWrapper
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data._utils.pin_memory import pin_memory

from ..order.contract import Saved
from ..order.epoch import Iteration, IterationOptions
from ..process.seeding import GeneratorsPutBack, generators, worker_seed
from ..process.stages import Stage, Stopwatch, seconds_sent
from ..process.stops import kill_when_terminated, listened
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..rows.types import Batch, MapStyle
from ..sampling.seeding import Quiet, Seeding
from ..sampling.user_sampler import SamplerError
from ..views.flattened import flattened
from .in_process import InProcess, has_accelerator
from .parcel import Parcel
from .plan import EpochIndices, SingleRow
from .row_maker import Made, RowMaker, WorkerInit
from .sealed import BatchError, Failure, TakenOverError
from .shared_memory import Ring

TorchLoader: TypeAlias = torch.utils.data.DataLoader[Batch]
_SPARE_SLOTS = 4  # for batches that the training loop still holds when the next one is under way
_inherited: list[object] = []  # by a forked child; kept until it ends
_SAMPLED = 16  # entries of an attribute
_MOST = 8  # attributes, and parts of a dataset
_KEY = "drawn"  # of a state: digests of what the dataset held when the epoch began
_CURE = (
    "Draw them from a generator that is seeded by (seed, loader.epoch), before each epoch and after "
    "load_state_dict: see docs/resume.md, Rows that are drawn for each epoch"
)


class Pipeline:
    """The maker of a loader's batches, one iteration after the other.

    Args:
        plan: the indices, and the way in which their batches are made.
        quiet: whether rows draw random numbers.

    Attributes:
        way: see `Way`.
        watch: counts the seconds of each stage.
        latest: the iteration that has begun last.
        redrawn: says if the dataset's rows were drawn anew.
        turn: whose turn it is to use persistent workers, one after the other.
        idle_ring: a ring into which no worker writes any more, for the next iteration.
    """

    def __init__(self, plan: EpochIndices, quiet: Quiet) -> None:
        self.plan, self.way, self.watch = plan, plan.way, plan.watch
        self.latest: Iteration | None = None
        self.redrawn = _Redrawn()
        self.turn = 0
        self._quiet = quiet
        self.idle_ring: Ring | None = None
        self._inner: TorchLoader | None = None  # whose workers are persistent

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "latest": None, "idle_ring": None, "_inner": None}

    def begin(self, loader: TorchLoader, made: int | None = None) -> Iteration:
        """An iteration that begins now; `made` says when its iterator was made."""
        indices = self.plan.indices
        expected, found = len(indices.dataset), len(_dataset_of(loader))
        if found != expected:
            raise ValueError(
                f"the sampler is of {expected} rows, the dataset has {found}; make a new loader, and load "
                "the state with strict=False"
            )
        in_order = not self.way.is_unordered
        begun = indices.begin(IterationOptions(loader.batch_size or 1, loader.drop_last, in_order, made))
        if begun.options.counts:
            is_kept = bool(loader.num_workers) and loader.persistent_workers
            self.redrawn.begun(loader.dataset, begun.start.epoch, indices.cursor.extra, is_kept)
        return begun

    def start(self, loader: TorchLoader, iteration: Iteration) -> Arriving | InProcess:
        """The batches of an iteration from where it stands."""
        plan = self.plan
        plan.iteration = iteration
        read = flattened(loader.dataset)  # anew, as a Subset's indices may have changed
        dataset = _dataset_of(loader) if read is None else read
        plan.source = dataset.in_epoch(plan.epoch) if isinstance(dataset, DataRef) else dataset
        seeding = self._seeding(is_here=self.way.kind != "processes")
        source = plan.source
        if self.way.is_read and isinstance(source, DataRef):
            self.turn += 1
            return InProcess(
                source,
                plan,
                seeding,
                loader.collate_fn,
                loader.pin_memory,
            )
        began = perf_counter() if loader.num_workers and self._inner is None else None
        try:
            inner = self._inner_loader(loader, seeding, dataset)
            fetched: Iterator[Batch] = iter(inner)
            if listened():
                _kill_when_terminated(fetched)
        except BaseException:
            self.give_up_workers()
            raise
        self.turn += 1
        return Arriving(fetched, plan, self, inner, loader.persistent_workers, began)

    def peek(self, loader: TorchLoader) -> Batch:
        """The batch that an iteration which begins now would give first, made here."""
        plan, indices = copy(self.plan), self.plan.indices
        size, drop_last = loader.batch_size or 1, loader.drop_last
        look = indices.begin(IterationOptions(size, drop_last, made=indices.cursor.num_begun, counts=False))
        plan.iteration, plan.way = look, replace(plan.way, together=1, is_unordered=False)
        plan.ring, plan.seen_by, plan.watch = None, None, Stopwatch()
        wanted = next(iter(plan), None)
        if wanted is None:
            raise ValueError(
                f"epoch {look.start.epoch} has no batch from position {look.start.position} on, so none "
                "tells types and shapes; add rows, or pass drop_last=False or a smaller batch_size"
            )
        source = flattened(loader.dataset)
        dataset = _dataset_of(loader) if source is None else source
        rows = RowMaker(dataset, self._seeding(is_here=True), loader.collate_fn, None, plan.watch)
        with GeneratorsPutBack():
            found = rows[wanted] if isinstance(wanted, SingleRow) else rows.__getitems__(wanted)[0]
        pins = loader.pin_memory and has_accelerator()
        return pin_memory(found) if pins else found  # type: ignore[no-untyped-call]

    def give_up_workers(self) -> None:
        """Ends persistent workers whose progress is not known; the next iteration starts others."""
        inner, self._inner = self._inner, None
        if inner is not None and inner._iterator is not None:
            inner._iterator._shutdown_workers()  # type: ignore[attr-defined]

    def leave_to_parent(self, batches: object) -> None:
        """Forgets, in a forked child, batches and workers of its parent, which it does not have.

        They are kept nevertheless: torch's iterator would stop the parent's workers if it were released.
        """
        _inherited.append((batches, self._inner))
        self._inner = None

    def _seeding(self, is_here: bool) -> Seeding:
        # A foreign sampler may give a row twice, with different random numbers each time.
        return Seeding(
            self.way.seeds_rows, self.way.seeds_batches, is_here, self._quiet, self.plan.indices.may_repeat
        )

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
        if plan.way.is_single:
            more = {"batch_size": None, "sampler": plan}
        if loader.num_workers:
            more |= {name: getattr(loader, name) for name in _OF_WORKERS if hasattr(loader, name)}
            more["worker_init_fn"] = WorkerInit(loader.dataset, loader.worker_init_fn)
        rows = RowMaker(dataset, seeding, loader.collate_fn, plan.ring, self.watch)
        inner = _Inner(
            cast("torch.utils.data.Dataset[Batch]", rows),
            collate_fn=itself,
            pin_memory=loader.pin_memory,
            generator=torch.Generator().manual_seed(seed),
            **more,
        )
        if loader.persistent_workers:
            self._inner = inner
        return inner

    def _new_ring(self, loader: TorchLoader) -> Ring | None:
        """Shared memory for the batches of one iterator's workers; used again once they are done."""
        if not loader.num_workers or self.way.is_single:
            return None
        slots = loader.num_workers * (loader.prefetch_factor or 2) + _SPARE_SLOTS
        idle, self.idle_ring = self.idle_ring, None
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
        self,
        fetched: Iterator[Batch],
        plan: EpochIndices,
        pipeline: Pipeline,
        inner: TorchLoader,
        is_shared: bool,
        began: float | None,
    ) -> None:
        self._fetched, self._inner = fetched, inner
        self._ring = plan.ring
        self._is_single = plan.way.is_single
        self._pipeline = pipeline
        self._is_shared = is_shared  # with other iterators: the workers
        self._began = began  # when workers began to start; None once they have
        self._turn = pipeline.turn
        self._batches: list[Batch] = []  # those that have arrived, last first
        self.numbers: deque[int] = deque()  # of all that came, if they come in any order

    def end(self) -> None:
        """Ends the workers: here, since of a finalizer Python drops what is raised in it, as by Ctrl-C."""
        if not self._is_shared and hasattr(self._fetched, "_shutdown_workers"):
            self._fetched._shutdown_workers()

    def __next__(self) -> Batch:
        if self._is_shared and self._turn != self._pipeline.turn:
            raise TakenOverError(
                "another iterator of this loader has taken over its persistent workers; use one iterator at "
                "a time, or persistent_workers=False"
            )
        while not self._batches:
            self._batches = self._next()[::-1]
        batch = self._batches.pop()
        if isinstance(batch, ExceptionWrapper):
            raise BatchError(_error_of(batch))
        if type(batch) is Failure:
            raise BatchError(batch.error)
        return batch

    def _next(self) -> list[Batch]:
        ring = self._ring
        before: int | None = getattr(self._fetched, "_rcvd_idx", None)
        asked = perf_counter()
        try:
            found = next(self._fetched)
        except StopIteration:
            if before is not None and not self._is_shared:
                self._pipeline.watch.add(Stage.START_UP, perf_counter() - asked)
            if ring is not None and ring.is_idle:
                self._pipeline.idle_ring = ring
            raise
        except SamplerError:
            raise
        except Exception as error:
            # Single rows come with their errors in torch's way; then it has gone on to the next one.
            is_of_row = self._is_single and before != getattr(self._fetched, "_rcvd_idx", None)
            if before is not None and not is_of_row:
                raise
            raise BatchError(error) from error
        made = found if type(found) is Made else None
        if self._began is not None:
            making = 0.0 if made is None else seconds_sent(made.seconds)
            self._pipeline.watch.add(Stage.START_UP, max(0.0, perf_counter() - self._began - making))
            self._began = None
        if self._is_single:
            return [found]
        step = None if made is None else made.step
        if ring is not None:
            ring.arrived(None if made is None or step is None else made.slot)
        if made is None:
            return cast("list[Batch]", found)
        if made.have_drawn:
            cast("RowMaker", self._inner.dataset).note_draws()
        watch, found = self._pipeline.watch, made.batches
        watch.add_sent(made.seconds)
        began = perf_counter()
        batches: list[Batch] = found.unpacked() if type(found) is Parcel else found
        watch.add(Stage.TRANSFER, perf_counter() - began)
        if step is not None:
            self.numbers.extend(range(step, step + len(batches)))
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


def _dataset_of(loader: TorchLoader) -> MapStyle:
    return cast("MapStyle", loader.dataset)  # a torchyoga.DataLoader takes no other


def start_method(loader: TorchLoader) -> str:
    """How workers start: fork, forkserver or spawn."""
    context = loader.multiprocessing_context
    chosen = getattr(context, "_name", None) or multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def itself(batch: Batch) -> Batch:
    """The collate function of batches that are collated already."""
    return batch


class _Redrawn:
    """Compares what a dataset holds for its rows when epochs begin, and with what a state says of it."""

    def __init__(self) -> None:
        self._epoch = -1  # the one that has begun last
        self._held: Mapping[str, str] = {}  # digests, when it began
        self._moving: set[str] = set()  # attributes that changed within an epoch
        self._at_end: tuple[object, ...] | None = None  # the generators, when it was over
        self._loaded_epoch: object = None  # if a state within it was loaded last
        self._has_warned = False

    def load(self, state: Mapping[str, object], extra: Saved) -> None:
        """Takes over into `extra` what a state says."""
        drawn = state.get(_KEY)
        extra.pop(_KEY, None)
        if drawn and isinstance(drawn, Mapping) and len(drawn) <= _MOST:
            extra[_KEY] = {str(name): str(digest) for name, digest in drawn.items()}
        is_within = state.get("position") or state.get("steps")
        self._loaded_epoch, self._at_end = state["epoch"] if is_within else None, None

    def begun(self, dataset: object, epoch: int, extra: Saved, is_kept: bool) -> None:
        """Notes in `extra` what the dataset holds in this epoch; warns, once, if that was drawn anew.

        Or if it has changed, while persistent workers keep what they began with (`is_kept`).
        """
        held, saved = self._still(dataset), extra.pop(_KEY, {})
        if held:
            extra[_KEY] = held
        others = ", ".join(sorted(_that_differ(saved, held))) if epoch == self._loaded_epoch else ""
        if others:
            self._warn(
                f"when the state was saved, {others} of the dataset held other numbers than now, so the rest "
                f"of epoch {epoch} may be of other rows, though prove() counts each position once. {_CURE}"
            )
        # A dataset with a set_epoch says that its rows belong to an epoch. Where no generator has moved that
        # all code shares, they were not drawn from one.
        is_next = self._at_end is not None and epoch != self._epoch
        others = ", ".join(sorted(_that_differ(self._held, held))) if is_next else ""
        if others and is_kept:
            self._warn(
                f"{others} of the dataset changed between epochs {self._epoch} and {epoch}, but persistent "
                "workers keep the dataset as it was when they began: the rows are those of before. Leave out "
                "persistent_workers=True"
            )
        if others and not hasattr(dataset, "set_epoch") and _shared() != self._at_end:
            self._warn(
                f"{others} of the dataset changed between epochs {self._epoch} and {epoch}, and so did a "
                "generator: if it was drawn anew, rows may be others after a resume, though prove() counts "
                f"each position once. {_CURE}. Ignore this if you seed so already, as by "
                "np.random.seed(100 + epoch)"
            )
        self._epoch, self._held, self._at_end, self._loaded_epoch = epoch, held, None, None

    def ended(self, dataset: object) -> None:
        """An epoch is over."""
        self._at_end = None
        if not self._has_warned:
            held = _held(dataset)
            self._moving |= {name for name in held if self._held.get(name) != held[name]}
            self._at_end = None if self._moving.issuperset(held) else _shared()

    def _still(self, dataset: object) -> dict[str, str]:
        """Digests of what a dataset holds, without what changed within an epoch."""
        return {name: digest for name, digest in _held(dataset).items() if name not in self._moving}

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(message)


def _that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The names of the attributes that are in both and have other digests."""
    return {name for name in now if before.get(name, now[name]) != now[name]}


def _shared() -> tuple[object, ...]:
    """Where `random` and NumPy are; not torch, which each pass of its loaders moves, as validation does."""
    return generators()[:-1]


def _held(dataset: object) -> dict[str, str]:
    """Digests of the attributes with numbers for each row, by their names."""
    found: dict[str, str] = {}
    for path, part in _parts(dataset):
        with contextlib.suppress(Exception):  # code of the user's own says how long it is
            length = len(part)  # type: ignore[arg-type]
            for name, value in sorted(vars(part).items()):
                numbers = _sampled(value, length)
                if numbers is not None and len(found) < _MOST:
                    found[path + name] = f"{zlib.crc32(repr(numbers).encode()):08x}"
    return found


def _parts(dataset: object) -> Iterator[tuple[str, object]]:
    """A dataset and, of torch's subsets, those within, with the names by which they are reached."""
    if isinstance(dataset, DataRef) or not hasattr(dataset, "__dict__"):
        return
    yield "", dataset
    if type(dataset) is Subset:
        for path, part in _parts(dataset.dataset):
            yield f"dataset.{path}", part
    if type(dataset) is ConcatDataset:
        for number, one in enumerate(dataset.datasets[:_MOST]):
            for path, part in _parts(one):
                yield f"datasets[{number}].{path}", part


def _sampled(value: object, length: int) -> list[object] | None:
    """Some entries of an attribute that has one for each row; None for any other.

    Entries of floats may be scores or losses, which change with the training; entries that are all zeros, or
    not numbers, may be a cache that is not filled yet. Text may be paths, which differ between machines.
    """
    if type(value) not in (list, tuple, np.ndarray, torch.Tensor) or not 0 < len(value) == length:  # type: ignore[arg-type]
        return None
    if type(value) is torch.Tensor and value.device.type != "cpu":
        return None
    entries = [value[place] for place in range(0, length, max(1, length // _SAMPLED))]  # type: ignore[index]
    numbers = [_numbers(entry) for entry in entries]
    is_known = all(some is not None and not isinstance(some, float) for some in numbers)
    return numbers if is_known and any(map(_is_filled, numbers)) else None


def _numbers(entry: object) -> object:
    """The first numbers of an entry, without its text; None if it is something else."""
    if isinstance(entry, torch.Tensor):
        entry = entry.flatten()[:_SAMPLED].tolist() if entry.ndim else entry.item()
    elif isinstance(entry, np.ndarray):
        entry = entry.ravel()[:_SAMPLED].tolist() if entry.dtype.kind in "biuf" else None
    elif isinstance(entry, np.generic):
        entry = entry.item()
    if isinstance(entry, list | tuple):
        numbers = [_numbers(one) for one in entry[:_SAMPLED] if not isinstance(one, str)]
        return None if None in numbers else numbers
    if isinstance(entry, float):
        return float(f"{entry:.4g}")  # the last bits differ between machines
    return entry if isinstance(entry, int) else None


def _is_filled(numbers: object) -> bool:
    return any(map(_is_filled, numbers)) if isinstance(numbers, list) else bool(numbers)
