"""How the batches of a loader are made, decided once; and the indices of one epoch for what makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from ..order.epoch import Iteration
from ..process.control_group import usable_cpus
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..process.stages import Stage, Stopwatch
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..reading.stream import Window, windows_of
from ..rows.collate import is_ours
from ..rows.types import Index, MapStyle
from ..sampling.indices import Indices
from ..sampling.seeding import draws_random_numbers, made_together
from ..sampling.trainers import Seeing
from ..sampling.user_sampler import Keys
from .shared_memory import Ring

_AHEAD = 2  # batches, as torch's workers make
# Of a read by threads that always make batches. What Python does for a read takes 60 us, since a copy of
# megabytes drives its code out of the processor's cache. More would drive out what was copied.
_OF_THREADS = 10 * 2**20
_FOR_PROCESSES = ("worker_init_fn", "multiprocessing_context")


class ChosenNumber(int):
    """A number of workers that a loader has chosen and may change.

    Trainers that make a new loader of one pass it on as `num_workers`: the new one chooses, too.
    """


def first_number(num_workers: int | str, torchs: Mapping[str, object]) -> int:
    """The workers that a loader begins with: a `ChosenNumber` of none for "auto".

    Raises:
        ValueError: it is another word, or another argument of torch's needs workers from the first batch on.
    """
    if num_workers == "auto" or isinstance(num_workers, ChosenNumber):
        for name, without in (("in_order", True), ("worker_init_fn", None)):
            if torchs.get(name, without) is not without:
                raise ValueError(f'{name} needs a number of workers, found num_workers="auto"')
        return ChosenNumber()
    if isinstance(num_workers, str):
        raise ValueError(f'num_workers is a number or "auto", found {num_workers!r}')
    return num_workers


@dataclass(frozen=True)
class Way:
    """How the batches of a loader are made.

    Attributes:
        kind: "here" when they are asked for, "ahead" by a thread of this process, by "threads", or by
            "processes".
        why: why they are made here, or by processes; "" otherwise.
        is_read: True if this process reads a DataRef by itself: where no row needs Python, torch's machinery
            would cost more than reading.
        num_threads: threads that read in place of processes; 0 if there are none.
        may_be_threads: a larger `num_workers` means more threads, not processes.
        num_ahead: batches that are read ahead.
        at_once: windows that are read before they are wanted.
        together: batches that travel together at most; None for as many as are best.
        is_single: single rows are handed out, no batches of them.
        is_unordered: batches may come in any order, on one rank.
        seeds_rows: each row is made with random numbers of its own.
        seeds_batches: each batch is collated with random numbers of its own.
        collates: batches are collated by a function of the user's.
        is_batched: the dataset makes the rows of a batch in one call, its `__getitems__`.
    """

    kind: Literal["here", "ahead", "threads", "processes"]
    why: str
    is_read: bool
    num_threads: int
    may_be_threads: bool
    num_ahead: int
    at_once: int
    together: int | None
    is_single: bool
    is_unordered: bool
    seeds_rows: bool
    seeds_batches: bool
    collates: bool
    is_batched: bool

    @property
    def is_ahead(self) -> bool:
        """True if a thread makes batches ahead, wherever the training loop takes its time."""
        return self.kind in ("ahead", "threads")

    def __str__(self) -> str:
        if self.kind == "processes":
            return f"made by processes, as {self.why}"
        if self.kind == "here":
            return f"made here when they are asked for, as {self.why}"
        threads = f"{self.num_threads} threads" if self.num_threads > 1 else "a thread"
        return f"read ahead by {threads}"


def way_of(
    dataset: MapStyle,
    read: DataRef | None,
    is_single: bool,
    is_known_ahead: bool,
    seed_rows: bool | None,
    torchs: Mapping[str, Any],
    num_workers: int,
) -> Way:
    """The way that these facts decide.

    Args:
        dataset: of the loader.
        read: the DataRef whose rows these are; None for any other dataset.
        is_single: single rows are handed out, no batches of them.
        is_known_ahead: the sampler may be asked before a batch is.
        seed_rows: see `DataLoader`.
        torchs: the other arguments of torch's loader.
        num_workers: of the loader.

    Raises:
        ValueError: `prefetch_factor` is below 0, or single rows are to come in any order.
    """
    prefetch_factor = torchs.get("prefetch_factor")
    is_in_order = torchs.get("in_order") is not False
    if not is_in_order and is_single:
        raise ValueError("in_order=False needs batches; give a batch_size")
    has_own_collate = torchs["collate_fn"] is not None and not is_ours(torchs["collate_fn"])
    seeds_rows = draws_random_numbers(dataset) if seed_rows is None else bool(seed_rows)
    not_read = ""  # why this process does not read by itself
    if read is None:
        not_read = "the dataset is not a DataRef"
    elif is_single:
        not_read = "rows are handed out one by one"
    elif seeds_rows:
        not_read = "each row has random numbers of its own"
    no_threads = not_read
    if torchs["timeout"] or any(torchs[name] is not None for name in _FOR_PROCESSES):
        no_threads = "an argument is for processes"
    elif num_workers and not is_in_order:
        no_threads = "batches may come in any order"
    elif has_own_collate:
        no_threads = "the collate function is your own"
    elif not is_known_ahead:
        no_threads = "the sampler draws when it is asked"
    elif read is not None and not not_read and not read._only_copies:
        no_threads = "rows are not only copied"
    kind: Literal["here", "ahead", "threads", "processes"]
    num_threads, num_ahead = 0, prefetch_factor or _AHEAD
    if num_workers:
        kind, why = "processes", no_threads
        num_ahead *= num_workers
        if not no_threads:
            # The loop needs one, too.
            kind, num_threads = "threads", max(1, min(num_workers, usable_cpus() - 1))
    else:
        kind, why = "here", not_read or ("" if is_known_ahead else "the sampler draws when it is asked")
        num_ahead = _AHEAD
        if read is not None and prefetch_factor is not None:
            num_ahead = as_int("prefetch_factor", prefetch_factor, low=0)
        if not why:
            kind, why = ("ahead", "") if num_ahead else ("here", "prefetch_factor is 0")
    return Way(
        kind,
        why,
        is_read=not not_read and kind != "processes",
        num_threads=num_threads,
        may_be_threads=not no_threads,
        num_ahead=num_ahead,
        at_once=num_ahead + (kind != "processes"),
        together=None if num_workers and not (has_own_collate or seeds_rows or is_single) else 1,
        is_single=is_single,
        is_unordered=bool(num_workers) and not is_in_order,
        seeds_rows=seeds_rows,
        seeds_batches=has_own_collate and (seed_rows is None or bool(seed_rows)),
        collates=has_own_collate,
        is_batched=made_together(dataset) is not None,
    )


class Job(NamedTuple):
    """The rows of some batches; with their seed and epoch, and the slot of a ring they are to be put into."""

    window: Window
    firsts: list[int]  # the position at which each batch begins
    seed: int
    epoch: int
    ring: int = 0
    slot: int = -1
    number: int | None = None  # of the first batch in its epoch, if that is known
    step: int | None = None  # the number of the first batch, if they may come in any order

    def apart(self) -> list[Job]:
        """Each batch as a job of its own."""
        if len(self.firsts) == 1:
            return [self]
        return [
            self._replace(
                window=window, firsts=[first], number=None if self.number is None else self.number + place
            )
            for place, (window, first) in enumerate(zip(self.window.apart(), self.firsts, strict=True))
        ]


class EpochIndices:
    """The indices of one epoch from a place on, for torch's iterators to take as early as they like."""

    def __init__(
        self,
        indices: Indices,
        way: Way,
        batch_size: int,
        drop_last: bool,
        source: MapStyle,
        seen_by: Seeing | None = None,
    ) -> None:
        self.indices = indices
        self.iteration: Iteration | None = None  # the iteration that they are for
        self.way = way
        self.seen_by = seen_by  # is shown the rows of each batch
        self.ring: Ring | None = None
        self.source = source  # reads ahead what is announced to it
        self._size = batch_size, drop_last
        self.watch = Stopwatch()
        self._has_warned = False  # that the cache is too small for them

    def __len__(self) -> int:
        return self.indices.num_steps(*self._size)

    def __iter__(self) -> Iterator[Job]:
        """The jobs for worker processes, with the slots for their batches."""
        ring, iteration, step = self.ring, self._under_way, 0
        if ring is not None:
            ring.begin()
        for job in self._jobs(read_here=False, most=self.way.together, read_bytes=None):
            number = None if iteration.in_order else step
            key, slot = (ring.key, ring.send()) if ring else (0, -1)
            iteration.handed += len(job.firsts)
            yield job._replace(ring=key, slot=slot, step=number)
            step += len(job.firsts)

    def jobs_here(self, num_threads: int) -> Iterator[Job]:
        """The jobs for this process, which does as much at once as is best where it only reads."""
        return self._jobs(True, None if self.way.is_read else 1, _OF_THREADS if num_threads else None)

    @property
    def _under_way(self) -> Iteration:
        assert self.iteration is not None
        return self.iteration

    @property
    def is_in_order(self) -> bool:
        """True unless batches may come in any order."""
        return self._under_way.in_order

    @property
    def epoch(self) -> int:
        """The epoch that the iteration is in."""
        return self._under_way.start.epoch

    def _jobs(self, read_here: bool, most: int | None, read_bytes: int | None) -> Iterator[Job]:
        iteration, seed, epoch = self._under_way, self.indices.cursor.order.seed, self.epoch
        number = None if self.way.is_single else iteration.steps_before
        firsts = self.indices.firsts(iteration)
        windows = self._windows(iteration, read_here, most, read_bytes)
        while True:
            with self.watch.running(Stage.SAMPLER):
                window = next(windows, None)
                if window is None:
                    return
                places = list(islice(firsts, len(window.ends)))
            yield Job(window, places, seed, epoch, number=number)
            number = None if number is None else number + len(places)

    def _windows(
        self, iteration: Iteration, read_here: bool, most: int | None, read_bytes: int | None
    ) -> Iterator[Window]:
        """The batches in windows of about so many bytes, as they are read."""
        if self.way.is_single:
            keys: Iterator[Any] = (Keys([row], 1) for row in self.indices.rows(iteration))
            return (Window(key, [1]) for key in keys)
        # Workers read, but all share the page cache: whoever knows the order can tell the kernel. Small
        # batches travel together, because every journey costs as much as reading some of them.
        if self.indices.is_known_ahead and isinstance(self.source, DataRef):
            most = self._fitting(self.source, most)
            return windows_of(self.source, self._batches(iteration), read_here, most, read_bytes)
        return (Window(batch, [_size(batch)]) for batch in self._batches(iteration))

    def _fitting(self, source: DataRef, most: int | None) -> int | None:
        """How many batches a window may have, so that all windows leave room for what is still to be read."""
        readahead = source._readahead
        if readahead is None or readahead.ahead_bytes is None or not readahead.row_bytes:
            return most
        bound, nbytes = readahead.ahead_bytes, self._size[0] * readahead.row_bytes * self.way.at_once
        if self.way.kind == "processes" and nbytes > 2 * bound and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"workers read {self.way.at_once} batches ahead, {nbytes / 1e6:.1f} MB, for which the cache "
                f"of {title_of(source)} is too small: files will be downloaded again and again. Set "
                f"cache_bytes={2 * nbytes + self._windows_bytes(source)}, which is twice that and two "
                "windows of files, or use smaller batches, a smaller prefetch_factor or fewer workers"
            )
        fitting = max(1, bound // nbytes)
        return fitting if most is None else min(most, fitting)

    def _windows_bytes(self, source: DataRef) -> int:
        """Bytes of two windows of files; of all rows, if they come in another order."""
        most = int(np.diff(source.file_starts).max(initial=0))
        window: Any = self.indices.cursor.order.pins(self.epoch).get("window", len(source))
        return int(min(2 * window * most, len(source))) * source._row_bytes

    def _batches(self, iteration: Iteration) -> Iterator[Index]:
        """The rows of each batch from the start of an iteration."""
        seen: list[list[Index]] = []
        if self.seen_by is not None:
            self.seen_by.seen_batch_indices = seen
        for batch in self.indices.batches(iteration, self.source):
            if self.seen_by is not None:
                seen.append(list(batch.whole) if isinstance(batch, Keys) else batch.tolist())
            yield batch

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "ring": None, "source": None, "iteration": None}


def _size(batch: Index) -> int:
    return batch.size if isinstance(batch, Keys) else len(batch)
