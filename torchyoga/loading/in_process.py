"""Batches of a DataRef, read by the training loop's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from ..process.background import Ahead, Task
from ..process.exceptions import note_batch
from ..process.seeding import seeder
from ..process.stages import Stage, Stopwatch, timed
from ..process.warned import warn_user
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..reading.stream import Window
from ..rows.block import Rows
from ..rows.collate import Collation, is_ours, stacked
from ..rows.column import is_ragged_kind
from ..rows.types import Array, Batch, Collate, Index, Row
from ..sampling.seeding import Seeding
from ..sampling.user_sampler import Keys
from .plan import EpochIndices
from .sealed import BatchError, Failure

# Of a read by threads that always make batches. What Python does for a read takes 60 us, since a copy of
# megabytes drives its code out of the processor's cache. More would drive out what was copied.
_OF_THREADS = 10 * 2**20
COLLATING = "collating"


class _Reading:
    """Reads windows of batches. It leads to no iterator, so a thread that reads ahead keeps none alive."""

    def __init__(self, source: DataRef, epoch: int, collate: Collate, pins: bool, watch: Stopwatch) -> None:
        self.source, self.epoch = source, epoch
        self.watch = watch
        self.batches = Collating(collate)
        self.is_plain = is_ours(collate)  # a user's function runs in the user's thread
        self._pins = pins and has_accelerator()

    def window(self, window: Window) -> list[Batch]:
        """The batches of a window, or what became of them."""
        doing = ""
        try:
            with self.watch.running(Stage.READ):
                rows = rows_of(self.source, window.numbers)
                doing = COLLATING
                if not self.is_plain:
                    parts = self.batches.parts(rows, window)
                    return [_Part(part, window, place) for place, part in enumerate(parts)]
                with timed(Stage.COLLATE):
                    found = self.batches.of(rows, window)
                if not self._pins:
                    return found
                with timed(Stage.PIN):
                    return [self.pinned(batch) for batch in found]
        except Exception as error:
            if len(window.ends) == 1:
                note_window(error, self.source, window, self.epoch, doing)
                return [Failure(error)]
        # One of them fails: the others are delivered nevertheless.
        return [self.window(alone)[0] for alone in window.apart()]

    def pinned(self, batch: Batch) -> Batch:
        """A batch in pinned memory, if that was asked for."""
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]


class _Part(NamedTuple):
    """The rows of a batch that is not collated yet, and which batch of a window it is."""

    rows: Sequence[Row]
    window: Window
    place: int


class InProcess(Iterator[Batch]):
    """The batches of a DataRef, read by this process; many small ones at once, and ahead if there is time."""

    def __init__(
        self,
        source: DataRef,
        plan: EpochIndices,
        seeding: Seeding,
        collate: Collate,
        pins: bool,
    ) -> None:
        assert plan.iteration is not None
        self._reading = reading = _Reading(source, plan.epoch, collate, pins, plan.watch)
        self._seeding = seeding
        self._seed, self._epoch = plan.indices.cursor.order.seed, plan.epoch
        self._firsts = plan.indices.firsts(plan.iteration)
        # Texts are objects, which threads make in turn: two of them would only wait for each other.
        num_threads = plan.way.num_threads
        if num_threads and _is_mostly_text(source):
            num_threads = 0
        windows = plan.windows(plan.iteration, read_bytes=_OF_THREADS if num_threads else None)
        tasks = (Task(partial(reading.window, window), len(window.ends)) for window in windows)
        # A sampler that may draw at any time does so in the user's thread, when it is asked.
        may_be_ahead = source.is_thread_safe and plan.indices.is_known_ahead
        self._ahead = Ahead(tasks, plan.way.num_ahead if may_be_ahead else 0, num_threads)
        self._read: list[Batch] = []  # last first

    def __next__(self) -> Batch:
        if not self._read:
            self._read = next(self._ahead)[::-1]
        found = self._read.pop()
        if self._reading.is_plain:
            if type(found) is Failure:
                raise BatchError(found.error)
            return found
        first = next(self._firsts)
        if type(found) is Failure:
            raise BatchError(found.error)
        try:
            with self._seeding.meanwhile():
                seeds = self._seeding.of_batches(self._seed, self._epoch, [first])
                with self._reading.watch.running(Stage.COLLATE):
                    (batch,) = self._reading.batches.of_parts([found.rows], seeds)
            with self._reading.watch.running(Stage.PIN):
                return self._reading.pinned(batch)
        except Exception as error:
            window = found.window.apart()[found.place]
            note_window(error, self._reading.source, window, self._epoch, COLLATING)
            raise BatchError(error) from error


def _is_mostly_text(source: DataRef) -> bool:
    """True if rows have text or bytes, and more of what varies in length than of anything else."""
    columns = () if source.schema is None else source.schema.columns
    fixed = sum(column.row_bytes for column in columns if not column.is_ragged)
    return 2 * fixed < source._row_bytes and any(is_ragged_kind(column.kind) for column in columns)


def can_pin() -> bool:
    """True if there is an accelerator, for which memory can be pinned."""
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    return torch.cuda.is_available() or bool(accelerator is not None and accelerator.is_available())


def has_accelerator() -> bool:
    """True if memory can be pinned; warns if it cannot."""
    if can_pin():
        return True
    warn_user("pin_memory=True, but there is no accelerator: memory is not pinned")
    return False


def note_window(error: Exception, dataset: object, window: Window, epoch: int, doing: str = "") -> None:
    """Notes on an error in which batch of which epoch it was raised, and by which row or rows."""
    where = f", epoch {epoch}" if window.first is None else f", batch {window.first} of epoch {epoch}"
    numbers: Any = window.numbers
    rows = numbers.whole if isinstance(numbers, Keys) else numbers.tolist()
    note_batch(error, rows if isinstance(rows, Sequence) else [rows], title_for(dataset), where, doing)


def title_for(dataset: object, row: Index = None) -> str:
    """A dataset in a few words; of torch's Subset, also which row of the whole a row is."""
    if isinstance(dataset, DataRef):
        return title_of(dataset)
    name = type(dataset).__name__
    if row is None or not isinstance(dataset, Subset):
        return name
    with contextlib.suppress(Exception):  # an error that is under way is to be raised, and no other
        number: Any = dataset.indices[row]
        number = number.item() if hasattr(number, "item") else number
        return f"{name} (row {number} of {title_for(dataset.dataset, number)})"
    return name


def rows_of(source: DataRef, numbers: Array) -> Sequence[Row]:
    """The rows of a DataRef, which refuses what is not a number: such a batch fails."""
    return source.__getitems__(numbers.tolist() if numbers.dtype == object else numbers)


def _as_torch_gives(rows: Sequence[Row]) -> Sequence[Row]:
    """A list of rows; a batch that the dataset's `__getitems__` has collated stays as it is."""
    return rows if isinstance(rows, (Mapping, torch.Tensor)) else list(rows)


class Collating:
    """Collates the batches of a window, all in one go where that is default_collate's work."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate
        self._collated = stacked if collate is default_collate else collate
        self._takes_rows = is_ours(collate)
        self._collation: Collation | None = None

    def of(self, rows: Sequence[Row], window: Window, seeds: Sequence[int] | None = None) -> list[Batch]:
        """Each batch, collated; before a user's function the generators are seeded by these seeds, if any."""
        if self.collate is not default_collate or not isinstance(rows, Rows):
            return self.of_parts(self.parts(rows, window), seeds)
        if self._collation is None or self._collation.schema is not rows.block.schema:
            self._collation = Collation(rows.block.schema)
        return self._collation.batches(rows.block, window.bounds)

    def of_parts(self, parts: Sequence[Row], seeds: Sequence[int] | None) -> list[Batch]:
        """Each batch, collated from its rows; or from a single row."""
        if seeds is None:
            return [self._collated(part) for part in parts]
        seed_all, found = seeder(), []
        for part, seed in zip(parts, seeds, strict=True):
            seed_all(seed)
            found.append(self._collated(part))
        return found

    def parts(self, rows: Sequence[Row], window: Window) -> list[Sequence[Row]]:
        """The rows of each batch; a list, as torch's loader gives it, if the function is the user's."""
        found = [rows] if len(window.ends) == 1 else [rows[start:stop] for start, stop in window.bounds]
        return found if self._takes_rows else [_as_torch_gives(part) for part in found]
