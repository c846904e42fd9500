"""Makes the batches of a job: reads or calls for rows, seeds them, collates; here, ahead, or in a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import getitem, length_hint
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.exceptions import note_batch, note_row, notes_of, set_notes
from ..process.messages import warn_user
from ..process.seeding import KINDS, GeneratorsPutBack, row_seeds, seeder, used, where
from ..process.stages import Stage, Stopwatch, timed
from ..process.threads import Ahead, Task
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..rows.block import Rows
from ..rows.collate import Collation, is_ours, stacked
from ..rows.column import is_ragged_kind
from ..rows.types import Batch, Collate, Index, MapStyle, Row, Seeds
from ..sampling.seeding import Seeding, is_plain, made_together
from ..sampling.user_sampler import Keys, as_rows
from .plan import EpochIndices, Job

_SEVERAL = (list, tuple, np.ndarray, torch.Tensor)  # types in which indices of rows come
_COLLATING = "collating"
_Together: TypeAlias = Callable[[Sequence[Index]], Sequence[Row]]  # makes rows by one call


class BatchError(Exception):
    """An error raised while a batch was made; the batches after it come nevertheless."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Failure(NamedTuple):
    """The stand-in of a batch that could not be made."""

    error: Exception

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The failure; a StopIteration of the user's, which would end the loop, becomes a RuntimeError."""
        if not isinstance(error, StopIteration):
            return cls(error)
        stopped = RuntimeError("a row or batch could not be made: StopIteration was raised")
        stopped.__cause__ = error
        set_notes(stopped, notes_of(error))
        set_notes(error, [])  # else they were in the text of the cause as well
        return cls(stopped)


class _Part(NamedTuple):
    """The rows of a batch that is not collated yet."""

    rows: Sequence[Row]
    job: Job


class Maker:
    """Makes batches of the rows of a dataset. It leads to no iterator: a thread that reads keeps none alive.

    Args:
        dataset: makes the rows.
        seeding: which parts are seeded.
        collate: the user's function, or torch's.
        watch: counts the seconds of each stage.
        is_single: single rows are handed out, no batches of them.
        pins: batches are to be put into pinned memory.
        parts: the user's function is left to `collated`, as it runs in the user's thread.
        bound: an epoch, and the dataset as it is in it.
    """

    def __init__(
        self,
        dataset: MapStyle,
        seeding: Seeding,
        collate: Collate,
        watch: Stopwatch,
        is_single: bool,
        pins: bool = False,
        parts: bool = False,
        bound: tuple[int, MapStyle] | None = None,
    ) -> None:
        self.dataset, self.seeding, self.collate, self.watch = dataset, seeding, collate, watch
        # Asked once: of an abstract class that takes long.
        self._ref = dataset if isinstance(dataset, DataRef) else None
        self._stage = Stage.TRANSFORM if self._ref is None else Stage.READ
        self._collated = stacked if collate is default_collate else collate
        self._collation: Collation | None = None
        self._is_single, self._pins, self._parts = is_single, pins and _has_accelerator(), parts
        self._bound = bound

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bound": None}

    def running(self) -> contextlib.AbstractContextManager[object]:
        """A context in which `batches` is measured."""
        return self.watch.running(self._stage)

    def made(self, job: Job) -> list[Batch]:
        """`batches`, measured, in pinned memory if that was asked for."""
        with self.running():
            found = self.batches(job)
            if not self._pins or self._parts:
                return found
            with timed(Stage.PIN):
                return [self._pinned(batch) for batch in found]

    def collated(self, part: _Part) -> Batch:
        """A batch of rows that are made; or a `Failure`."""
        job = part.job
        try:
            with self.watch.running(Stage.COLLATE):
                seeds = self.seeding.of_batches(job.seed, job.epoch, job.firsts)
                (batch,) = self._of_parts([part.rows], seeds)
            with self.watch.running(Stage.PIN):
                return self._pinned(batch)
        except Exception as error:
            self._note(error, job, _COLLATING)
            return Failure.of(error)

    def _pinned(self, batch: Batch) -> Batch:
        return pin_memory(batch) if self._pins and type(batch) is not Failure else batch  # type: ignore[no-untyped-call]

    def batches(self, job: Job) -> list[Batch]:
        """Each batch of a job; a `Failure` in place of one that could not be made."""
        doing = ""
        try:
            rows = self._rows(job)
            doing = _COLLATING
            if self._parts:
                alone = job.apart()
                return [_Part(part, one) for part, one in zip(self._cut(rows, job), alone, strict=True)]
            seeds = self.seeding.of_batches(job.seed, job.epoch, job.firsts)
            with timed(Stage.COLLATE):
                return self._of(rows, job, seeds)
        except Exception as error:
            if len(job.firsts) == 1:
                self._note(error, job, doing)
                return [Failure.of(error)]
        # One of them fails: the others are delivered nevertheless.
        return [self.batches(alone)[0] for alone in job.apart()]

    def _note(self, error: Exception, job: Job, doing: str) -> None:
        """Notes on an error in which batch of which epoch it was raised, and by which row or rows."""
        number, numbers = job.number, job.window.numbers
        where = f", epoch {job.epoch}" if number is None else f", batch {number} of epoch {job.epoch}"
        rows: Any = numbers.whole if isinstance(numbers, Keys) else numbers.tolist()
        note_batch(error, rows if isinstance(rows, Sequence) else [rows], _title(self.dataset), where, doing)

    # -- rows

    def _rows(self, job: Job) -> Sequence[Row]:
        numbers: Index = job.window.numbers
        dataset = self._in_epoch(job.epoch)
        if not self.seeding.rows and not self._is_single and isinstance(dataset, DataRef):
            return _rows_of(dataset, as_rows(numbers.whole) if isinstance(numbers, Keys) else numbers)
        rows = numbers.whole if isinstance(numbers, Keys) else numbers.tolist()
        many: _Together | None = None if self._is_single else getattr(dataset, "__getitems__", None)
        if not self.seeding.rows:
            return many(rows) if many else self._one_by_one(dataset, rows)
        if many is None or isinstance(rows, _SEVERAL):
            return self._seeded(job, rows, many)
        with GeneratorsPutBack():
            seeder()(int(row_seeds(job.seed, job.epoch, np.array(job.firsts))[0]))
            return many(rows)  # one thing that is not made of rows

    def _one_by_one(self, dataset: MapStyle, rows: Sequence[Index]) -> list[Row]:
        left = iter(rows)
        try:
            return [dataset[row] for row in left]
        except Exception as error:
            self._note_row(error, rows[len(rows) - 1 - length_hint(left)])
            raise

    def _note_row(self, error: Exception, row: Index, together: object = None) -> None:
        """Notes on an error that a row raised it."""
        call = f"dataset[{row!r}]" if together is None else f"dataset.__getitems__([{row!r}])"
        note_row(error, row, _title(self.dataset, row), f"{call} raises it")

    def _in_epoch(self, epoch: int) -> MapStyle:
        """The dataset as it is in an epoch."""
        if self._ref is None:
            return self.dataset
        if self._bound is None or self._bound[0] != epoch:
            self._bound = epoch, self._ref.in_epoch(epoch)
        return self._bound[1]

    def _seeds(self, job: Job, rows: Sequence[Index]) -> Seeds:
        """The seeds of the first rows of a job; from their places, where a row may come again."""
        if not self.seeding.by_place:
            return row_seeds(job.seed, job.epoch, np.asarray(rows, np.int64))
        bounds = zip(job.firsts, job.window.bounds, strict=True)
        places = [np.arange(first, first + stop - start) for first, (start, stop) in bounds]
        return row_seeds(job.seed, job.epoch, np.concatenate(places)[: len(rows)])

    def _seeded(self, job: Job, rows: Sequence[Index], many: _Together | None) -> Sequence[Row]:
        """The rows, each made with random numbers of its own, or by one call if that draws none."""
        dataset, quiet, left = self._in_epoch(job.epoch), self.seeding.quiet, iter(rows)
        together = made_together(dataset) if many is not None and self._ref is None else None
        if self._ref is not None and isinstance(dataset, DataRef) and dataset._is_random:
            with GeneratorsPutBack():
                return dataset._take_seeded(dataset._numbered(rows), self._seeds(job, rows))
        if together is not None and not quiet.drawn:
            with GeneratorsPutBack(notes=True):
                seeder()(int(self._seeds(job, rows[:1])[0]))
                begun = where()
                try:
                    whole = together(rows)
                except Exception:
                    if where() == begun:
                        raise
                else:
                    if where() == begun or not _are_rows(whole, len(rows)):
                        return whole
            self.note_draws()
        seeded = KINDS if quiet.is_asked else quiet.drawn
        is_special = seeded or together is not None or self._ref is not None
        seeds = self._seeds(job, rows).tolist() if is_special else None
        watched = GeneratorsPutBack(seeded, notes=True)
        try:
            with watched:
                if seeds is None:
                    found = [dataset[row] for row in left]
                else:
                    make = self._of_one_row(dataset) if together is None else partial(_alone, together)
                    seed, found = seeder(seeded), []
                    for row, own in zip(left, seeds, strict=True):
                        seed(own)
                        before = where() if quiet.is_asked else None
                        found.append(make(row))
                        if before is not None:
                            quiet.note(used(before, where()))
        except Exception as error:
            if not watched.strayed:
                self._note_row(error, rows[len(rows) - 1 - length_hint(left)], together)
                raise
        if not watched.strayed:
            return found
        quiet.give_up()
        return self._seeded(job, rows, many)

    def note_draws(self) -> None:
        """Notes that rows have drawn, here or in a worker: all are seeded from now on, one by one."""
        if self.seeding.quiet.drawn == KINDS:
            return
        self.seeding.quiet.give_up()
        if get_worker_info() is None and made_together(self.dataset) is not None:
            warn_user(
                f"{type(self.dataset).__name__}.__getitems__ draws random numbers or asks for "
                "torch.initial_seed(), so each row is made by a call of its own from now on, seeded by "
                "(seed, epoch, row): the same under any workers and batch size. To get a batch "
                "by one call, draw in collate_fn, which is seeded for each batch, or pass seed_rows=False"
            )

    def _of_one_row(self, dataset: MapStyle) -> Callable[[Index], Row]:
        if isinstance(dataset, DataRef) and dataset.schema is not None and dataset.schema.packed:
            return lambda row: _rows_of(dataset, np.array([row]))[0]  # known as a pack when it is collated
        return partial(getitem, dataset)

    # -- batches of rows

    def _of(self, rows: Sequence[Row], job: Job, seeds: Sequence[int] | None) -> list[Batch]:
        """Each batch, collated, all in one go where that is default_collate's work.

        Before a user's function the generators are seeded by these seeds, if any.
        """
        if self._collated is not stacked or self._is_single or type(rows) is not Rows:
            with contextlib.nullcontext() if not self.seeding.rows or is_plain(rows) else GeneratorsPutBack():
                return self._of_parts(self._cut(rows, job), seeds)
        if self._collation is None or self._collation.schema is not rows.block.schema:
            self._collation = Collation(rows.block.schema)
        return self._collation.batches(rows.block, job.window.bounds)

    def _of_parts(self, parts: Sequence[Row], seeds: Sequence[int] | None) -> list[Batch]:
        """Each batch, collated from its rows; or from a single row."""
        if seeds is None:
            return [self._collated(part) for part in parts]
        seed_all, found = seeder(), []
        with GeneratorsPutBack():
            for part, seed in zip(parts, seeds, strict=True):
                seed_all(seed)
                found.append(self._collated(part))
        return found

    def _cut(self, rows: Sequence[Row], job: Job) -> Sequence[Row]:
        """The rows of each batch; a list, as torch's loader gives it, if the function is the user's."""
        if self._is_single:
            return rows
        found = [rows] if len(job.firsts) == 1 else [rows[start:stop] for start, stop in job.window.bounds]
        if self._collated is stacked or is_ours(self.collate):
            return found
        # A batch that the dataset's `__getitems__` has collated stays as it is.
        return [part if isinstance(part, (Mapping, torch.Tensor)) else list(part) for part in found]


class InProcess(Iterator[Batch]):
    """The batches of an iteration, made by this process; ahead if there is time, and the plan says so."""

    def __init__(self, plan: EpochIndices, maker: Maker) -> None:
        self._maker, way, source = maker, plan.way, plan.source
        # Texts are objects, which threads make in turn: two of them would only wait for each other.
        num_threads = 0 if way.num_threads and _is_mostly_text(source) else way.num_threads
        jobs = plan.jobs_here(num_threads)
        self._made: Iterator[list[Batch]] = map(maker.made, jobs)
        if way.is_ahead and isinstance(source, DataRef) and source.is_thread_safe:
            tasks = (Task(partial(maker.made, job), len(job.firsts)) for job in jobs)
            self._made = Ahead(tasks, way.num_ahead, num_threads)
        self._read: list[Batch] = []  # last first

    def __next__(self) -> Batch:
        if not self._read:
            self._read = next(self._made)[::-1]
        found = self._read.pop()
        if type(found) is _Part:
            found = self._maker.collated(found)
        if type(found) is Failure:
            raise BatchError(found.error)
        return found


def _is_mostly_text(source: object) -> bool:
    """True if rows have text or bytes, and more of what varies in length than of anything else."""
    assert isinstance(source, DataRef)
    columns = () if source.schema is None else source.schema.columns
    fixed = sum(column.row_bytes for column in columns if not column.is_ragged)
    return 2 * fixed < source._row_bytes and any(is_ragged_kind(column.kind) for column in columns)


def _has_accelerator() -> bool:
    """True if memory can be pinned; warns if it cannot."""
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if torch.cuda.is_available() or (accelerator is not None and accelerator.is_available()):
        return True
    warn_user("pin_memory=True, but there is no accelerator: memory is not pinned")
    return False


def _title(dataset: object, row: Index = None) -> str:
    """A dataset in a few words; of torch's Subset, also which row of the whole a row is."""
    if isinstance(dataset, DataRef):
        return title_of(dataset)
    name = type(dataset).__name__
    if row is None or not isinstance(dataset, Subset):
        return name
    with contextlib.suppress(Exception):  # an error that is under way is to be raised, and no other
        number: Any = dataset.indices[row]
        number = number.item() if hasattr(number, "item") else number
        return f"{name} (row {number} of {_title(dataset.dataset, number)})"
    return name


def _rows_of(source: DataRef, numbers: npt.NDArray[Any]) -> Sequence[Row]:
    """The rows of a DataRef, which refuses what is not a number: such a batch fails."""
    return source.__getitems__(numbers.tolist() if numbers.dtype == object else numbers)


def _alone(together: _Together, row: Index) -> Row:
    """A row that is made by a call of its own."""
    (found,) = together([row])
    return found


def _are_rows(many: object, count: int) -> bool:
    """True for so many rows; False for a batch that the dataset has collated itself."""
    return isinstance(many, (list, tuple)) and len(many) == count
