"""A loader of torch's with a meter: its rows, batches and workers are timed, and nothing else changes.

The loader is copied, and the copy given a dataset and a `collate_fn` around the user's, by which the seconds
of workers come here. Loaders that iterate in a way of their own (torchdata's, Accelerate's) are only waited
for: what is around their batches might not be taken off again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any, Generic, cast

import torch.utils.data
from torch.utils.data import IterableDataset, SequentialSampler, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ...process.stages import Stage, Stopwatch, WorkerClock, seconds_sent
from ...rows.types import Batch, BatchT, Collate, Row
from ..pipeline import TorchLoader, setting_of
from .meter import Meter, Subscription, Target

__all__ = ["MeteredLoader"]


class MeteredLoader(Generic[BatchT]):
    """A loader of torch's whose batches are timed; iterate it in place of the loader.

    It has the loader's attributes and length.

    Attributes:
        loader: torch's.
        meter: see `Meter`.
    """

    def __init__(self, loader: torch.utils.data.DataLoader[BatchT], every: int, to: Sequence[Target]) -> None:
        self.loader = loader
        self._watch = Stopwatch()
        self.meter = Meter(self._watch)
        self._to, self._stack = to, ExitStack()
        self._subscription = Subscription(to, every)
        self.meter.subscribe(self._subscription)
        self._epoch = -1
        self._timed: TorchLoader | None = None  # whose workers may be persistent

    def __enter__(self) -> MeteredLoader[BatchT]:
        for target in self._to:
            if isinstance(target, AbstractContextManager):
                self._stack.enter_context(target)
        return self

    def __exit__(self, *error: object) -> None:
        self.meter.unsubscribe(self._subscription)
        self._stack.close()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[BatchT]:
        self._epoch += 1
        loader = cast("TorchLoader", self.loader)
        is_block = isinstance(loader.sampler, SequentialSampler)
        self.meter.begun(replace(setting_of(loader, loader), is_block=is_block), self._epoch)
        asked = self.meter.asked()
        source = self._copy() if _is_plain(loader) else loader
        starts = bool(loader.num_workers) and (source is loader or source._iterator is None)
        return _Batches(iter(source), self.meter, self._watch, asked if starts else None, asked)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _copy(self) -> TorchLoader:
        """The loader as it is now, with its persistent workers if there are any, and everything timed."""
        loader, before = cast("TorchLoader", self.loader), self._timed
        self._timed = timed = copy(loader)
        watch = _WatchOfProcess(self._watch)
        dataset: Any = loader.dataset
        rows = _Stream(dataset, watch) if isinstance(dataset, IterableDataset) else _Rows(dataset, watch)
        timed.__dict__["dataset"] = rows  # torch forbids to assign it
        timed.collate_fn = _Collating(loader.collate_fn, watch)
        timed.worker_init_fn = _WorkerInit(loader.dataset, loader.worker_init_fn)
        timed._iterator = None if before is None else before._iterator
        return timed


class _Batches(Iterator[BatchT]):
    """The batches of one iteration."""

    def __init__(
        self, batches: Iterator[Batch], meter: Meter, watch: Stopwatch, starts: float | None, asked: float
    ) -> None:
        self._batches, self._meter, self._watch = batches, meter, watch
        self._starts = starts  # when workers began to start; None once they have
        self._asked: float | None = asked  # for the first batch: workers start before it

    def __next__(self) -> BatchT:
        asked = self._meter.asked() if self._asked is None else self._asked
        self._asked = None
        try:
            batch = next(self._batches)
        except StopIteration:
            workers = getattr(self._batches, "_num_workers", 0)
            if workers and not getattr(self._batches, "_persistent_workers", False):
                self._watch.add(Stage.START_UP, perf_counter() - asked)
            self._meter.ended(asked)
            raise
        except BaseException:
            self._meter.missed(asked)
            raise
        making = 0.0
        if type(batch) is _Sent:
            self._watch.add_sent(batch.seconds)
            making, batch = seconds_sent(batch.seconds), batch.batch
        if self._starts is not None:
            self._watch.add(Stage.START_UP, max(0.0, perf_counter() - self._starts - making))
            self._starts = None
        self._meter.delivered(asked, batch)
        return cast("BatchT", batch)


class _Sent:
    """A batch from a worker, and the seconds that it took."""

    __slots__ = ("batch", "seconds")

    def __init__(self, batch: Batch, seconds: bytes) -> None:
        self.batch, self.seconds = batch, seconds

    def __reduce__(self) -> tuple[type[_Sent], tuple[object, ...]]:
        return _Sent, (self.batch, self.seconds)

    def pin_memory(self, device: object = None) -> _Sent:
        """The same in pinned memory; called by torch's thread."""
        watch = Stopwatch()
        watch.add_sent(self.seconds)
        with watch.running(Stage.PIN):
            batch = pin_memory(self.batch, device)  # type: ignore[no-untyped-call]
        return _Sent(batch, watch.sent())


class _WatchOfProcess:
    """The stopwatch of whatever process asks: a worker counts for itself."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch, self._clock, self._process = watch, WorkerClock(), os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_process": 0}

    def mine(self) -> Stopwatch:
        """This process's."""
        if self._process != os.getpid():
            self._watch, self._clock, self._process = Stopwatch(), WorkerClock(), os.getpid()
        return self._watch

    def sent(self) -> bytes:
        """The seconds that this worker has taken since it last sent a batch."""
        return self._clock.sent(self.mine())


class _Rows:
    """A dataset whose rows are timed."""

    def __init__(self, dataset: Any, watch: _WatchOfProcess) -> None:
        self.dataset, self._watch = dataset, watch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: object) -> Row:
        with self._watch.mine().running(Stage.TRANSFORM):
            return self.dataset[row]

    @property
    def __getitems__(self) -> Callable[[Sequence[object]], Sequence[Row]]:
        many = self.dataset.__getitems__  # torch asks whether there is one

        def timed(rows: Sequence[object]) -> Sequence[Row]:
            with self._watch.mine().running(Stage.TRANSFORM):
                return cast("Sequence[Row]", many(rows))

        return timed


class _Stream(IterableDataset[Row]):
    """A dataset without row numbers, whose rows are timed."""

    def __init__(self, dataset: IterableDataset[Row], watch: _WatchOfProcess) -> None:
        self.dataset, self._watch = dataset, watch

    def __iter__(self) -> Iterator[Row]:
        watch, end = self._watch.mine(), object()
        with watch.running(Stage.TRANSFORM):
            rows = iter(self.dataset)
        while True:
            with watch.running(Stage.TRANSFORM):
                row = next(rows, end)
            if row is end:
                return
            yield row


class _Collating:
    """A collate function that is timed; in a worker it gives the seconds along with the batch."""

    def __init__(self, collate: Collate, watch: _WatchOfProcess) -> None:
        self._collate, self._watch = collate, watch

    def __call__(self, rows: Any) -> Batch:
        with self._watch.mine().running(Stage.COLLATE):
            batch = self._collate(rows)
        return batch if get_worker_info() is None else _Sent(batch, self._watch.sent())


class _WorkerInit:
    """Shows workers the user's dataset before they run the user's function."""

    def __init__(self, dataset: object, function: Callable[[int], object] | None) -> None:
        self._dataset, self._function = dataset, function

    def __call__(self, worker_id: int) -> None:
        object.__setattr__(get_worker_info(), "dataset", self._dataset)  # torch forbids plain assignment
        if self._function is not None:
            self._function(worker_id)


def _is_plain(loader: TorchLoader) -> bool:
    """True for a loader that gives the user what its collate function returned."""
    is_pipe = any(cls.__name__ in ("IterDataPipe", "MapDataPipe") for cls in type(loader.dataset).__mro__)
    same = type(loader).__iter__ is torch.utils.data.DataLoader.__iter__
    return same and not is_pipe and not hasattr(loader, "state_dict")
