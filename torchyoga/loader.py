"""torch's DataLoader, counting what was delivered."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset, Subset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from .ahead import Ahead, Task
from .buffers import placing
from .collate import Collation, Padding, jagged
from .columns import Rows
from .cursor import Cursor, Place
from .dataref import ColumnsRef, DataRef, SlicedRef, VersionRef
from .order import Remainder, as_int, batches, chunks, keyed_bytes
from .ring import Parcel, Ring, packed
from .sampler import ResumableBatchSampler, ResumableSampler
from .stream import Window, windows_of

__all__ = ["DataLoader", "Delivery"]

_SPARE_SLOTS = 4  # for batches that the training loop still holds when the next one is under way


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader with a seed and a state: stop after any batch, continue anywhere.

    Takes torch's arguments. The state counts batches delivered to the training loop, never those fetched
    ahead, so it is exact for any number of workers; it may be loaded under another number of workers or ranks
    and another batch size. `in_order=False` and samplers other than torchyoga's are refused: no state could
    be exact.

    Args:
        dataset: any map-style dataset, cached or not.
        batch_size: rows of a batch on each rank; None hands out single rows.
        shuffle: a full shuffle, anew each epoch.
        sampler: a `ResumableSampler`, in place of `shuffle`, `seed`, `num_replicas`, `rank`, `remainder`,
            `start_offset`.
        batch_sampler: a `ResumableBatchSampler`, in place of those and `batch_size`, `drop_last`.
        seed: any int, the same on all ranks: the order, and the random numbers of `seed_rows`, follow from
            it.
        num_replicas, rank: of this loader; by default those of an initialised `torch.distributed`, else 1 and
            0.
        remainder: `pad`, `drop` or `keep`, see `ResumableSampler`; for evaluation use `keep`.
        start_offset: rows over all ranks that the first iteration leaves out.
        seed_rows: seed `random`, NumPy and torch for each row from (seed, epoch, row), so that augmentation
            comes out the same for any number of workers and ranks and after a resume. By default for every
            dataset but a DataRef, which has no use for it. Costs about 30 us a row.
        **torch_arguments: the other arguments of `torch.utils.data.DataLoader`. Unlike there,
            `prefetch_factor` holds for a DataRef with `num_workers=0`, too: batches that a thread reads ahead
            (2 by default, 0 for none).

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
        shuffle: bool | None = None,
        sampler: ResumableSampler | None = None,
        batch_sampler: ResumableBatchSampler | None = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        seed_rows: bool | None = None,
        **torch_arguments: Any,
    ) -> None:
        _check_random_access(dataset)
        if torch_arguments.get("in_order") is False:
            raise ValueError(
                "in_order=False delivers batches in an order that no state can name; leave it at True"
            )
        if batch_sampler is not None:
            if sampler is not None or shuffle or batch_size not in (1, None) or drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            if not isinstance(batch_sampler, ResumableBatchSampler):
                raise ValueError(f"batch_sampler must be a ResumableBatchSampler, {_found(batch_sampler)}")
            sampler, batch_size, drop_last = (
                batch_sampler.sampler,
                batch_sampler.batch_size,
                batch_sampler.drop_last,
            )
        elif sampler is None:
            sampler = ResumableSampler(
                dataset, bool(shuffle), seed, num_replicas, rank, remainder, start_offset
            )
        elif not isinstance(sampler, ResumableSampler):
            raise ValueError(f"sampler must be a ResumableSampler, {_found(sampler)}")
        elif shuffle:
            raise ValueError("sampler excludes shuffle; say ResumableSampler(..., shuffle=True)")
        if len(sampler.dataset) != len(dataset):
            raise ValueError(
                f"the sampler is of {len(sampler.dataset)} rows, the dataset has {len(dataset)}; "
                "make it from this dataset"
            )
        self.seed_rows = not isinstance(dataset, DataRef) if seed_rows is None else bool(seed_rows)
        is_quick = not self.seed_rows and (collate_fn is None or _is_ours(collate_fn))
        together = None if num_workers and is_quick else 1
        self._plan = _Plan(sampler, batch_size, drop_last, dataset, together)
        self._idle_ring: Ring | None = None
        self._turn = 0  # of those who use persistent workers, one after the other
        # torch draws a number from the global generator for each iterator, which would change the user's own
        # random numbers after a resume; from this one it may draw.
        torch_arguments.setdefault("generator", torch.Generator())
        self._prefetch = 2
        # If no row needs Python, torch's machinery would cost more than reading.
        is_plain = num_workers == 0 and batch_size is not None and not self.seed_rows
        self._reads_here = is_plain and isinstance(dataset, DataRef)
        if self._reads_here and torch_arguments.get("prefetch_factor") is not None:
            self._prefetch = as_int("prefetch_factor", torch_arguments.pop("prefetch_factor"), low=0)
        super().__init__(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            **torch_arguments,
        )
        if self._reads_here:
            self.prefetch_factor = self._prefetch

    @property
    def _index_sampler(self) -> Any:
        # What torch's iterators take indices from. They run ahead of the training loop, so they get a plan
        # that moves nothing; the cursor moves when a batch is delivered.
        return self._plan

    def _get_iterator(self) -> Any:
        if self._reads_here:
            return _Read(self)
        seed = self._plan.sampler.seed if self.seed_rows else None
        rows = _Rows(self.dataset, seed, self.collate_fn, self._new_ring())
        shown: dict[str, Any] = {"dataset": rows}
        if self.batch_size is not None:
            shown["collate_fn"] = _itself
        if self.num_workers:
            shown["worker_init_fn"] = _WorkerInit(self.dataset, self.worker_init_fn)
        # torch's iterators read these once; everybody else shall see the user's own.
        kept = {name: self.__dict__[name] for name in shown}
        self.__dict__.update(shown)
        try:
            return super()._get_iterator()
        finally:
            self.__dict__.update(kept)

    def _new_ring(self) -> Ring | None:
        """Shared memory for the batches of one iterator's workers; used again once they are done."""
        self._plan.ring = None
        if self.num_workers and self.batch_size is not None:
            slots = self.num_workers * (self.prefetch_factor or 2) + _SPARE_SLOTS
            idle, self._idle_ring = self._idle_ring, None
            is_ours = idle is not None and idle.process == os.getpid()
            self._plan.ring = idle if is_ours else Ring.made(slots)
        return self._plan.ring

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle_ring": None}

    def __iter__(self) -> Any:
        """An iterator over the rest of this epoch, or the next; it begins when a batch is asked for."""
        return Delivery(self, iter)

    def _start(self, place: Place) -> Any:
        self._plan.start = place
        if isinstance(self.generator, torch.Generator):
            self.generator.manual_seed(_seed64("workers", self._plan.sampler.seed, place.epoch))
        found = super().__iter__()
        self._turn += 1
        if self._reads_here or self.batch_size is None:
            return found
        return _Arriving(found, self._plan.ring, self)

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self._plan.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch delivered; see `ResumableSampler.state_dict`."""
        return self._plan.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state, with any number of workers and ranks and any batch size.

        An iterator that has begun before raises StateError when it is asked for more.

        Raises:
            StateError: the state is of another dataset, length, seed or kind of shuffle, or damaged.
                `strict=False` takes its epoch and position all the same.
        """
        self._plan.sampler.load_state_dict(state, strict)

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` of an epoch, of all ranks; see `ResumableBatchSampler.rows_in_step`."""
        return ResumableBatchSampler(self._plan.sampler, self.batch_size or 1, self.drop_last).rows_in_step(
            step, epoch
        )

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch; see `ResumableSampler.position_of`."""
        return self._plan.sampler.position_of(row, epoch)


class _Plan:
    """The indices of one epoch from a place on, for torch's iterators to take as early as they like."""

    def __init__(
        self,
        sampler: ResumableSampler,
        batch_size: int | None,
        drop_last: bool,
        source: Any,
        together: int | None,
    ) -> None:
        self.sampler = sampler
        self.start = Place(0, 0)
        self.ring: Ring | None = None
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._source = source
        self._together = together

    def __len__(self) -> int:
        cursor = self.sampler.cursor
        return cursor.shard.steps(cursor.order.length, 0, self._batch_size or 1, self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self._indices(self.start)

    def _indices(self, start: Place) -> Iterator[Any]:
        order, shard = self.sampler.cursor.order, self.sampler.cursor.shard
        if self._batch_size is None:
            for found in chunks(order, shard, *start):
                yield from (_SeededIndex(row, start.epoch) for row in found.tolist())
            return
        ring = self.ring
        if ring is not None:
            ring.begin()
        # Workers read, but the page cache is everybody's: whoever knows the order can tell the kernel. Small
        # batches travel together, for every journey costs as much as reading some of them.
        for window in windows_of(self._source, self.batches(start), read_here=False, most=self._together):
            yield (
                _Job(window, start.epoch, ring.key, ring.send()) if ring else _Job(window, start.epoch, 0, -1)
            )

    def batches(self, start: Place) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of each batch from a place on."""
        cursor = self.sampler.cursor
        return batches(cursor.order, cursor.shard, *start, self._batch_size or 1, self._drop_last)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ring": None}


class _Progress:
    """What an iteration has delivered; it leads to no iterator, so nobody keeps worker processes alive."""

    def __init__(self, cursor: Cursor, batch_size: int, drop_last: bool) -> None:
        self.taken = 0  # batches
        self.start, self.generation = cursor.begin(batch_size, drop_last), cursor.generation
        self._cursor = cursor
        self._step = batch_size, drop_last

    def place(self, failed: int = 0) -> Place:
        """The place it has reached, or will have once so many batches that failed are left out."""
        return self._cursor.after(self.start, self.taken + failed, self._step[0])

    def report(self) -> None:
        """Tells the cursor."""
        if self.generation == self._cursor.generation:
            self._cursor.reached(self.place(), *self._step)


class Delivery(Iterator[Any]):
    """One iteration of a loader, counting every batch that reaches the training loop."""

    def __init__(self, loader: DataLoader, moved: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._loader = loader
        self._moved = moved
        self._batches: Iterator[Any] | None = None
        self._progress: _Progress | None = None
        self._failed = self._process = 0
        self._over = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        progress, batches = self._progress, self._batches
        if progress is None or batches is None or self._process != os.getpid():
            progress, batches = self._begin()
        sampler = self._loader._plan.sampler
        if progress.generation != sampler.cursor.generation:
            sampler.cursor.check_generation(progress.generation)
        try:
            batch = next(batches)
        except StopIteration:
            self._over = True
            self._batches = batches = None  # ends the workers, if they are not persistent
            sampler._settle()
            sampler._latest = None
            if not self._failed:
                sampler.cursor.finished(progress.start.epoch)
            raise
        except Exception:
            self._failed += 1
            raise
        except BaseException:
            # An interrupt, anywhere within. Who asks again gets the batch that would have come.
            self._batches = None
            raise
        # Who goes on after a batch that failed has left it out.
        progress.taken += 1 + self._failed
        self._failed = 0
        sampler._latest = progress
        return batch

    def _begin(self) -> tuple[_Progress, Iterator[Any]]:
        if self._over:
            raise StopIteration
        loader = self._loader
        sampler = loader._plan.sampler
        if self._progress is None:
            sampler._settle()
            sampler._latest = None
            self._progress = _Progress(sampler.cursor, loader.batch_size or 1, loader.drop_last)
        if self._batches is not None:
            # In a forked child the threads and workers of its parent are not there: it goes on by itself. But
            # torch's iterator would stop the parent's workers if it were let go of.
            _inherited.append((self._batches, loader._iterator))
            loader._iterator = None
        self._process = os.getpid()
        self._batches = self._moved(loader._start(self._progress.place(self._failed)))
        return self._progress, self._batches


_inherited: list[Any] = []  # by a forked child; kept until it ends


class _Failure(NamedTuple):
    """What a batch is if it could not be read."""

    error: Exception


class _Read(Iterator[Any]):
    """The batches of a DataRef, read by this process; many small ones at once, and ahead if there is time."""

    def __init__(self, loader: DataLoader) -> None:
        self._source = cast(DataRef, loader.dataset)
        self._batches = _Batches(loader.collate_fn)
        self._pins = loader.pin_memory and _has_accelerator()
        self._is_plain = _is_ours(loader.collate_fn)  # a function of the user's runs in the user's thread
        plan = loader._plan
        tasks = (
            Task(partial(self._window, window), len(window.ends))
            for window in windows_of(self._source, plan.batches(plan.start))
        )
        self._ahead = Ahead(tasks, loader._prefetch if self._source.is_thread_safe else 0)
        self._read: list[Any] = []  # last first

    def __next__(self) -> Any:
        if not self._read:
            self._read = next(self._ahead)[::-1]
        found = self._read.pop()
        if type(found) is _Failure:
            raise found.error
        return found if self._is_plain else self._pinned(self._batches.collate(found))

    def _window(self, window: Window) -> list[Any]:
        """The batches of a window, or what became of them."""
        try:
            rows = self._source.take(window.numbers)
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
    return type(dataset) in (VersionRef, ColumnsRef)


def _is_ours(collate: Any) -> bool:
    """True for a collate function that may run in any thread, and is as fast as reading."""
    return collate is default_collate or collate is jagged or isinstance(collate, Padding)


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if torch.cuda.is_available() or (accelerator is not None and accelerator.is_available()):
        return True
    warnings.warn(
        "pin_memory=True, but there is no accelerator: memory is not pinned", UserWarning, stacklevel=4
    )
    return False


def _check_random_access(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"a {type(dataset).__name__} has no random access, so it can be neither shuffled nor resumed; "
            "cache it once with Storage.submit(dataset, id, version) and load from the DataRef that returns"
        )


def _found(sampler: Any) -> str:
    return f"found {type(sampler).__name__}, whose position could not be restored; use torch's own DataLoader"


def _seed64(*key: int | str) -> int:
    return int.from_bytes(keyed_bytes(8, *key), "little")


class _SeededIndex(int):
    """A row number that carries its epoch to wherever the row is made."""

    epoch: int

    def __new__(cls, row: int, epoch: int) -> _SeededIndex:
        made = super().__new__(cls, row)
        made.epoch = epoch
        return made

    def __reduce__(self) -> Any:
        return _SeededIndex, (int(self), self.epoch)


class _Job(NamedTuple):
    """The rows of some batches; with their epoch, and the slot of a ring they are to be put into."""

    window: Window
    epoch: int
    ring: int
    slot: int


class _Rows:
    """A dataset as torch's fetchers see it: it makes rows with random numbers of their own, and batches."""

    def __init__(self, dataset: Any, seed: int | None, collate: Any, ring: Ring | None) -> None:
        self.dataset = dataset
        self._seed = seed
        self._batches = _Batches(collate)
        self._ring = ring

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self._seed is None:
            return self.dataset[int(index)]
        assert isinstance(index, _SeededIndex)
        with _own_random_state():
            return self._row(int(index), index.epoch, self._seed)

    def __getitems__(self, job: _Job) -> Any:
        """The batches of a job: a list, or a parcel of one."""
        if self._ring is None or job.slot < 0:
            return self._all(job)
        place = self._ring.place(job.slot)
        # Only our own code may see the memory of the slot: what the user's keeps would be written over.
        ours = self._seed is None and _is_ours(self._batches.collate) and _only_gathers(self.dataset)
        with placing(place) if ours else contextlib.nullcontext():
            found = self._all(job)
        return packed(found, job.ring, job.slot, place)

    def _all(self, job: _Job) -> list[Any]:
        window, worker = job.window, get_worker_info()
        try:
            return self._batches.of(self._rows(job), window)
        except Exception:
            if worker is None:
                raise
            if len(window.ends) == 1:
                return [_wrapped(worker.id)]
        # One of them fails: the others are delivered all the same.
        found = []
        for alone in window.apart():
            try:
                found += self._batches.of(self._rows(job._replace(window=alone)), alone)
            except Exception:
                found.append(_wrapped(worker.id))
        return found

    def _rows(self, job: _Job) -> Any:
        numbers = job.window.numbers
        if self._seed is not None:
            with _own_random_state():
                return [self._row(row, job.epoch, self._seed) for row in numbers.tolist()]
        if isinstance(self.dataset, DataRef):
            return self.dataset.__getitems__(numbers)
        many = getattr(self.dataset, "__getitems__", None)
        rows = numbers.tolist()
        return many(rows) if many else [self.dataset[row] for row in rows]

    def _row(self, row: int, epoch: int, base: int) -> Any:
        seed = _seed64("row", base, epoch, row)
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed)
        return self.dataset[row]


class _Batches:
    """Collates the batches of a window, all in one go where that is default_collate's work."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate
        self._collation: Collation | None = None

    def of(self, rows: Sequence[Any], window: Window) -> list[Any]:
        """Each batch, collated."""
        if self.collate is not default_collate or not isinstance(rows, Rows):
            return [self.collate(batch) for batch in self.parts(rows, window)]
        if self._collation is None or self._collation.schema is not rows.block.schema:
            self._collation = Collation(rows.block.schema)
        return self._collation.batches(rows.block, window.bounds)

    def parts(self, rows: Sequence[Any], window: Window) -> list[Sequence[Any]]:
        """The rows of each batch."""
        return [rows] if len(window.ends) == 1 else [rows[start:stop] for start, stop in window.bounds]


def _wrapped(worker: int) -> ExceptionWrapper:
    """The exception under way, to be raised by the training loop's process."""
    return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]


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

    def __init__(self, fetched: Iterator[Any], ring: Ring | None, loader: DataLoader) -> None:
        self._fetched = fetched
        self._ring = ring
        self._loader = loader
        self._turn = loader._turn
        self._batches: list[Any] = []  # that are here, last first

    def __next__(self) -> Any:
        if self._loader.persistent_workers and self._turn != self._loader._turn:
            raise RuntimeError(
                "another iterator of this loader has taken over its persistent workers; use one iterator at "
                "a time, or persistent_workers=False"
            )
        while not self._batches:
            self._batches = self._next()[::-1]
        batch = self._batches.pop()
        if type(batch) is ExceptionWrapper:
            batch.reraise()  # type: ignore[no-untyped-call]
        return batch

    def _next(self) -> list[Any]:
        ring = self._ring
        try:
            found = next(self._fetched)
        except StopIteration:
            if ring is not None and ring.is_idle:
                self._loader._idle_ring = ring  # no worker writes into it any more
            raise
        if ring is not None:
            ring.arrived()
        batches: list[Any] = found.unpacked() if type(found) is Parcel else found
        return batches


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """Leaves the training loop's random numbers alone when rows are made in its process."""
    if get_worker_info() is not None:
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
