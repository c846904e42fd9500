"""A dataset as torch's fetchers see it: it makes rows, and batches of them, here or in a worker process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem, length_hint

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.buffers import placing
from ..process.exceptions import note_batch, note_row
from ..process.raised import Raised, text_of, torch_can_raise
from ..process.seeding import row_seeds, seed_noted, seeder, where, where_all
from ..process.stages import Stage, Stopwatch, WorkerClock, timed
from ..process.stops import listened, outlive
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..rows.collate import is_ours
from ..rows.types import Batch, Collate, Index, MapStyle, Row
from ..sampling.seeding import Seeding, made_together
from ..sampling.user_sampler import Keys, as_rows
from .in_process import COLLATING, Collating, note_window, rows_of, title_for
from .parcel import packed, sendable
from .plan import Job, SingleRow
from .sealed import stopped
from .shared_memory import Ring

_SEVERAL = (list, tuple, np.ndarray, torch.Tensor)  # types in which indices of rows come


class Made:
    """The batches of a job, as a worker made them.

    Attributes:
        step: the number of the first; None if they come in order.
        slot: of the ring, in which they lie.
        seconds: what the worker spent on each stage.
        have_drawn: rows that the worker made have drawn random numbers, as far as it looks.
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


class RowMaker:
    """A dataset as torch's fetchers see it: it makes rows with random numbers of their own, and batches."""

    def __init__(
        self, dataset: MapStyle, seeding: Seeding, collate: Collate, ring: Ring | None, watch: Stopwatch
    ) -> None:
        self.dataset = dataset
        self._watch, self._clock, self._process = watch, WorkerClock(), os.getpid()
        self._stage = Stage.READ if isinstance(dataset, DataRef) else Stage.TRANSFORM
        self._seeding = seeding
        self._batches = Collating(collate)
        self._ring = ring
        self._bound: tuple[int, MapStyle] | None = None  # an epoch, and the dataset as it is in it

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bound": None, "_process": 0}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: SingleRow) -> Batch:
        worker = get_worker_info()
        if worker is None:
            with self._watch.running(self._stage):
                return self._single(row)
        try:
            return sendable(packed(self._single(row), -1, -1, None), None)
        except Exception as error:
            return _wrapped(error, worker.id)

    def _single(self, row: SingleRow) -> Batch:
        with self._seeding.meanwhile(), _EndingNoEpoch():
            doing = ""
            try:
                if self._seeding.rows:
                    number = row.position if self._seeding.by_place else row.number
                    (found,) = self._seeded([row.number], np.array([number]), row.seed, row.epoch)
                else:
                    found = self._one_by_one(self._in_epoch(row.epoch), [row.number])[0]
                doing = COLLATING
                seeds = self._seeding.of_batches(row.seed, row.epoch, [row.position])
                (made,) = self._batches.of_parts([found], seeds)
            except Exception as error:
                note_batch(error, [row.number], title_for(self.dataset), f", epoch {row.epoch}", doing)
                raise
            return made

    def __getitems__(self, job: Job) -> Batch:
        """The batches of a job: a list, or a parcel of one."""
        worker = get_worker_info()
        if self._process != os.getpid():
            self._watch, self._clock, self._process = Stopwatch(), WorkerClock(), os.getpid()
        try:
            with self._watch.running(self._stage):
                found = self._packed(job)
        except Exception as error:
            if worker is None:
                raise
            found = [_wrapped(error, worker.id)] * len(job.window.ends)
        if worker is None:
            return found
        have_drawn = not self._seeding.quiet.may_be
        return Made(job.step, job.slot, found, self._clock.sent(self._watch), have_drawn)

    def _packed(self, job: Job) -> Batch:
        if get_worker_info() is None:
            return self._all(job)
        place = None if self._ring is None or job.slot < 0 else self._ring.place(job.slot)
        # Only our own code may see the memory of the slot: what the user's code keeps would be overwritten.
        ours = not self._seeding.rows and is_ours(self._batches.collate) and not _keeps_rows(self.dataset)
        with placing(place) if ours and place is not None else contextlib.nullcontext():
            found = self._all(job)
        try:
            with timed(Stage.TRANSFER):
                return sendable(packed(found, job.ring, job.slot, place), len(found))
        except Exception:
            if len(found) == 1:
                raise
        # One of them cannot be sent: the others are delivered nevertheless.
        found = list(map(_or_its_error, found))
        return sendable(packed(found, job.ring, job.slot, place), len(found))

    def _all(self, job: Job) -> list[Batch]:
        worker = get_worker_info()
        with self._seeding.meanwhile(), _EndingNoEpoch():
            try:
                return self._made(job)
            except Exception as error:
                if worker is None:
                    raise
                if len(job.firsts) == 1:
                    return [_wrapped(error, worker.id)]
            # One of them fails: the others are delivered nevertheless.
            found = []
            for window, first in zip(job.window.apart(), job.firsts, strict=True):
                try:
                    found += self._made(job._replace(window=window, firsts=[first]))
                except Exception as error:
                    found.append(_wrapped(error, worker.id))
            return found

    def _made(self, job: Job) -> list[Batch]:
        seeds = self._seeding.of_batches(job.seed, job.epoch, job.firsts)
        doing = ""
        try:
            rows = self._rows(job)
            doing = COLLATING
            with timed(Stage.COLLATE):
                return self._batches.of(rows, job.window, seeds)
        except Exception as error:
            note_window(error, self.dataset, job.window, job.epoch, doing)
            raise

    def _rows(self, job: Job) -> Sequence[Row]:
        numbers: Index = job.window.numbers
        dataset = self._in_epoch(job.epoch)
        if isinstance(dataset, DataRef) and not self._seeding.rows:
            return rows_of(dataset, as_rows(numbers.whole) if isinstance(numbers, Keys) else numbers)
        rows = numbers.whole if isinstance(numbers, Keys) else numbers.tolist()
        many = getattr(dataset, "__getitems__", None)
        if self._seeding.rows:
            named = self._numbers(job)
            if many is None or isinstance(rows, _SEVERAL):
                together = None if isinstance(dataset, DataRef) else made_together(dataset)
                return self._seeded(rows, named, job.seed, job.epoch, together)
            seeder()(int(row_seeds(job.seed, job.epoch, named)[0]))  # one thing that is not made of rows
        return many(rows) if many else self._one_by_one(dataset, rows)

    def _one_by_one(self, dataset: MapStyle, rows: Sequence[Index]) -> list[Row]:
        left = iter(rows)
        try:
            return [dataset[row] for row in left]
        except Exception as error:
            self._note(error, rows[len(rows) - 1 - length_hint(left)])
            raise

    def _note(self, error: Exception, row: Index, together: object = None) -> None:
        """Notes on an error that a row raised it."""
        call = f"dataset[{row!r}]" if together is None else f"dataset.__getitems__([{row!r}])"
        note_row(error, row, title_for(self.dataset, row), f"{call} raises it")

    def _in_epoch(self, epoch: int) -> MapStyle:
        """The dataset as it is in an epoch."""
        if not isinstance(self.dataset, DataRef):
            return self.dataset
        if self._bound is None or self._bound[0] != epoch:
            self._bound = epoch, self.dataset.in_epoch(epoch)
        return self._bound[1]

    def _numbers(self, job: Job) -> npt.NDArray[np.int64]:
        """The numbers from which those drawn for each row come."""
        if not self._seeding.by_place:
            return job.window.numbers
        bounds = zip(job.firsts, job.window.bounds, strict=True)
        return np.concatenate([np.arange(first, first + stop - start) for first, (start, stop) in bounds])

    def _seeded(
        self,
        rows: Sequence[Index],
        numbers: npt.NDArray[np.int64],
        seed: int,
        epoch: int,
        together: Callable[[Sequence[Index]], Sequence[Row]] | None = None,
    ) -> Sequence[Row]:
        """The rows, each made with random numbers of its own, or `together` if that draws none."""
        dataset, seeds, quiet = self._in_epoch(epoch), row_seeds(seed, epoch, numbers), self._seeding.quiet
        if isinstance(dataset, DataRef) and dataset._is_random:
            return dataset._take_seeded(dataset._numbered(rows), seeds)
        pairs = list(zip(rows, seeds.tolist(), strict=True))
        make = self._maker(dataset) if together is None else partial(_alone, together)
        if together is not None and quiet.may_be:
            seeder()(pairs[0][1])
            before = where_all()
            try:
                with seed_noted:
                    many = together(rows)
            except Exception:
                if where_all() == before:
                    raise
            else:
                if where_all() == before or not _are_rows(many, len(pairs)):
                    return many
            self.note_draws()
        elif quiet.is_known:
            before, seed_torch = where(), torch.default_generator.manual_seed
            found: list[Row] = []
            try:
                for row, own in pairs:
                    seed_torch(own)
                    found.append(make(row))
            except Exception as error:
                if where() == before:
                    self._note(error, pairs[len(found)][0])
                    raise
            if where() == before:
                return found
            quiet.note(has_drawn=True)
        seed_all, found = seeder(), []
        try:
            for row, own in pairs:
                seed_all(own)
                if quiet.is_asked:
                    before = where()
                    found.append(make(row))
                    quiet.note(has_drawn=where() != before)
                else:
                    found.append(make(row))
        except Exception as error:
            self._note(error, pairs[len(found)][0], together)
            raise
        return found

    def note_draws(self) -> None:
        """Notes that rows have drawn, here or in a worker: all are seeded from now on, one by one."""
        if not self._seeding.quiet.may_be:
            return
        self._seeding.quiet.note(has_drawn=True)
        if get_worker_info() is None and made_together(self.dataset) is not None:
            warn_user(
                f"{type(self.dataset).__name__}.__getitems__ draws random numbers or asks for "
                "torch.initial_seed(), so each row is made by a call of its own from now on, seeded by "
                "(seed, epoch, row): the same under any workers and batch size. To get a batch "
                "by one call, draw in collate_fn, which is seeded for each batch, or pass seed_rows=False"
            )

    def _maker(self, dataset: MapStyle) -> Callable[[Index], Row]:
        if isinstance(dataset, DataRef) and dataset.schema is not None and dataset.schema.packed:
            return lambda row: rows_of(dataset, np.array([row]))[0]  # known as a pack when it is collated
        return partial(getitem, dataset)


def _alone(together: Callable[[Sequence[Index]], Sequence[Row]], row: Index) -> Row:
    """A row that is made by a call of its own."""
    (found,) = together([row])
    return found


def _are_rows(many: object, count: int) -> bool:
    """True for so many rows; False for a batch that the dataset has collated itself."""
    return isinstance(many, (list, tuple)) and len(many) == count


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


def _keeps_rows(dataset: object) -> bool:
    """True for a dataset that may hold rows that it has given."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not isinstance(dataset, DataRef) or dataset._keeps_rows


def _or_its_error(batch: Batch) -> Batch:
    """The batch, or why it cannot be sent."""
    worker = get_worker_info()
    assert worker is not None
    try:
        sendable(packed(batch, -1, -1, None), 1)
    except Exception as error:
        return _wrapped(error, worker.id)
    return batch


def _wrapped(error: Exception, worker: int) -> Raised:
    """An exception, to be raised by the training loop's process."""
    return Raised(error, f"in DataLoader worker process {worker}")


class _EndingNoEpoch:
    """A context that makes a StopIteration of the user's an error: for torch it would end the epoch."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StopIteration):
            raise stopped(error) from error
