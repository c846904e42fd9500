"""The order as torch samplers: resumable, elastic, the same rows as a stream of the same seed.

Note 27. A sampler's iterator is an `itertools.chain` over lists.
Their iterators know how much they have left: nothing counts rows, and a state is computed when it is asked
for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from ..errors import StateError
from ..order.by_file import BlockOrder, Locality, Shuffle, make_order
from ..order.cursor import Cursor, Run
from ..order.full import Remainder, Shard, as_int
from ..order.position import batches, chunks, first_positions
from ..order.proof import Proof, prove
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..versions.location import Progress
from ..views.mapped import flattened
from .ranks import Ranks, check_same, gathered, is_one_of_several, same_by_rank
from .trainers import batches_of_torch, is_evaluated, is_only_looked_at, is_read_by_accelerate, num_skipped

__all__ = [
    "ResumableBatchSampler",
    "ResumableSampler",
    "are_skipped",
    "drawn_seed",
    "in_sequence",
    "kind_for",
]

_STEP_BYTES = 16 * 2**20  # of rows that a DataRef is told of at once


class ResumableSampler(DistributedSampler[int]):
    """Row numbers for torch's DataLoader, in place of `DistributedSampler` or `RandomSampler`.

    Every epoch is a new full shuffle, without `set_epoch`; memory does not grow with the dataset. The state
    may be loaded under any other number of ranks: `position` counts rows of the whole dataset, over all
    ranks.

    With worker processes torch asks a sampler for rows well before they are delivered; `torchyoga.DataLoader`
    and torchdata's `StatefulDataLoader` account for that. With a plain DataLoader and `num_workers > 0` count
    the steps of your loop, and save `state_after(steps, batch_size)`.

    Args:
        dataset_or_length: a dataset with a length, or a number of rows.
        num_replicas: number of ranks; by default that of `torch.distributed`, whenever it is initialised,
            or 1.
        rank: this rank; give both or neither.
        shuffle: False for rows in order; "block" mixes a few files at a time, for data larger than memory or
            a cache: see docs/shuffle.md.
        seed: any int, the same on all ranks. None, the default, draws it from torch's global generator when
            the first iteration begins, as RandomSampler does, so that `torch.manual_seed` decides; in a job
            of several processes it is 0, as DistributedSampler's. It is in the state.
        drop_last: True means `remainder="drop"`.
        remainder: `pad` (as DistributedSampler does, all ranks get as many rows, some rows twice), `drop`
            (all get as many, a tail is left out) or `keep` (every row exactly once: right for evaluation).
        start_offset: rows over all ranks that the first iteration leaves out.
        group: the ranks among which rows are divided, where others (tensor or context parallel) see the same
            rows: a DeviceMesh such as `mesh["dp"]`, or a ProcessGroup; in place of num_replicas and rank.
        shuffle_window: with shuffle="block", files mixed with each other at once.
        locality: "shard" gives each rank files of its own, the same in every epoch, so that it need not see
            the others; "global" deals out all rows anew in each epoch.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> sampler = ResumableSampler(10, seed=7)
        >>> first = list(sampler)
        >>> sampler = ResumableSampler(10, seed=7, start_offset=4)
        >>> list(sampler) == first[4:]
        True
    """

    def __init__(  # the base class would insist on torch.distributed
        self,
        dataset_or_length: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: Shuffle = True,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        remainder: Remainder = "pad",
        start_offset: int = 0,
        group: Any = None,
        shuffle_window: int = 8,
        locality: Locality = "global",
    ) -> None:
        self._ranks = Ranks(num_replicas, rank, group)
        sized = hasattr(dataset_or_length, "__len__")
        length = (
            len(cast(Sized, dataset_or_length))
            if sized
            else as_int("dataset_or_length", dataset_or_length, low=0)
        )
        self.dataset: Any = dataset_or_length if sized else range(length)
        shard = Shard(*self._ranks.now(), "drop" if drop_last else remainder)
        source = flattened(dataset_or_length)
        order = make_order(
            dataset_or_length if source is None else source,
            0 if seed is None else seed,
            shuffle,
            reshuffle=True,
            window=shuffle_window,
            locality=locality,
            num_replicas=shard.num_replicas,
        )
        fingerprint = getattr(dataset_or_length if source is None else source, "fingerprint", None)
        self.cursor = Cursor(
            order,
            shard,
            start_offset,
            fingerprint if isinstance(fingerprint, str) else None,
            draw=self._drawn_seed if seed is None else None,
        )
        self.shuffle: Any = order.shuffle
        self.drop_last = shard.remainder == "drop"
        self.draws_from: torch.Generator | None = None  # the seed; torch's global generator by default
        self.seed_rows: bool | None = None  # what its loader was told, for one that is made anew around it
        self._latest: Any = None  # the iteration, with its `report`, that has moved last
        self._running: list[_Handed] = []
        self._begun: _Begun | None = None  # the iteration that has begun last
        self._has_warned = False
        self._has_warned_of_workers = False

    def _drawn_seed(self) -> int:
        return drawn_seed(self.draws_from)

    @property
    def seed(self) -> int | None:  # type: ignore[override]
        """The seed; None as long as it is still to be drawn."""
        return self.cursor.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch under way, or about to begin."""
        self._settle()
        return self.cursor.epoch

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of ranks."""
        return self._located().shard.num_replicas

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This rank."""
        return self._located().shard.rank

    @property
    def remainder(self) -> Remainder:
        """What happens to rows that the ranks cannot divide evenly."""
        return self.cursor.shard.remainder

    @property
    def data_source(self) -> Any:
        """The dataset, as torch's samplers call it."""
        return self.dataset

    @property
    def locality(self) -> Locality:
        """ "shard" if each rank has files of its own, else "global"."""
        order = self.cursor.order
        return "shard" if isinstance(order, BlockOrder) and order.shards is not None else "global"

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Rows of a whole epoch on this rank."""
        cursor = self._located()
        return cursor.shard.count(cursor.length)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Rows of a whole epoch on all ranks, if all have as many as this one."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        """Rows of a whole epoch on this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """An iterator over the rest of this epoch, or the next. It begins when its first row is asked for."""
        return _Indices.of(self)

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin. Nobody needs to call it: epochs advance by themselves.

        Another epoch than the one under way begins at its start. The one under way begins again where this
        process began it: after `load_state_dict` at its place, and with no batch if none is left there. But
        an iterator that goes on goes on: trainers may say late which epoch it is. If the first call after
        `load_state_dict` has a smaller one, the trainer counts from 0 again: it is taken to mean the epoch
        under way, with a warning, and later calls count on from there.
        """
        self._settle()
        self._latest = None
        self.cursor.set_epoch(epoch)
        if self._begun is not None and self._begun.run.start.epoch != self.cursor.epoch:
            self._begun = None

    def state_dict(self) -> dict[str, Any]:
        """The place that is reached: a small JSON-able dict, the same on every rank; see docs/resume.md."""
        self._settle()
        begun = self._begun
        if begun is not None and begun.tasks and not self._has_warned_of_workers:
            self._has_warned_of_workers = True
            warn_user(
                "torch's DataLoader with worker processes asks its sampler for rows before it delivers them, "
                "and this state counts them all; count the steps of your loop and save "
                "sampler.state_after(steps, batch_size), or take torchyoga.DataLoader"
            )
        return self.cursor.state_dict()

    def state_after(self, steps: int, batch_size: int, drop_last: bool = False) -> dict[str, Any]:
        """The state after so many batches of this iteration, whatever has been handed out ahead.

        Args:
            steps: batches that your loop has done since this iteration began, on this rank.
            batch_size: rows of a batch.
            drop_last: the loader leaves out a shorter last batch.

        Raises:
            StateError: no iteration has begun, or a state was loaded since.
            ValueError: so many have not been handed out.

        Example:
            >>> sampler = ResumableSampler(100, seed=7)
            >>> handed = [next(iterator) for iterator in [iter(sampler)] for _ in range(40)]
            >>> sampler.state_after(2, batch_size=16)["position"]  # of 40 rows handed out
            32
        """
        begun = self._begun
        if begun is None:
            raise StateError("no iteration of this sampler has begun since; take state_dict()")
        return begun.state_after(steps, as_int("batch_size", batch_size, low=1), drop_last)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state, under any number of ranks.

        Raises:
            StateError: it is of another dataset, length, seed or kind of shuffle, or damaged. `strict=False`
                takes its epoch and position all the same.
        """
        self._located().load_state_dict(state, strict)
        self._latest = None
        for handed in self._running:
            handed.stop()
        self._running, self._begun = [], None

    def receipt(self) -> dict[str, Any]:
        """What this rank has delivered of the epoch under way, or of the last one if none is.

        A small JSON-able dict. Put together by `torchyoga.prove`, those of all ranks prove that nothing was
        lost and nothing came twice.
        """
        self._settle()
        return self._located().receipt()

    def prove(self, group: Any = None) -> Proof:
        """`torchyoga.prove` over all ranks, after the same step on each; costs one small collective.

        Args:
            group: the processes that call this, if not all.

        Raises:
            StateError: the ranks are in different epochs, of different datasets or seeds, or not all there.
        """
        receipts: Sequence[Mapping[str, Any]] = gathered(self.receipt(), group)
        if not self._ranks.is_alone:  # others may see the same rows
            receipts = same_by_rank(receipts)
        return prove(receipts)

    def check_ranks(self, group: Any = None) -> None:
        """Compares the places of all ranks; costs one small collective. Call it on all, after the same step.

        Args:
            group: the processes that call this, if not all.

        Raises:
            StateError: they are not at the same place, or of different datasets or seeds, or not all there.
        """
        shard = self._located().shard
        mine = {"rank": shard.rank, "num_replicas": shard.num_replicas}
        check_same(gathered({**self.state_dict(), **mine}, group), self._ranks.is_alone)

    def rows_at(self, positions: npt.ArrayLike, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows at these positions of the global order of an epoch (this one, by default)."""
        return self.cursor.order.rows(self.epoch if epoch is None else epoch, positions)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch: the inverse of `rows_at`."""
        return int(self.cursor.order.positions(self.epoch if epoch is None else epoch, [row])[0])

    def _located(self) -> Cursor:
        """The cursor, once it knows which rank this is by now."""
        cursor, now = self.cursor, self._ranks.now()
        if now != (cursor.shard.num_replicas, cursor.shard.rank):
            cursor.deal(*now)
        return cursor

    def _begin(
        self,
        batch_size: int = 1,
        drop_last: bool = False,
        in_order: bool = True,
        progress: Progress | None = None,
        made: int | None = None,
        looked_at: bool = False,
    ) -> Run:
        """An iteration that begins now.

        Args:
            batch_size: of its batches.
            drop_last: likewise.
            in_order: likewise.
            progress: where the run itself does not see how far it is.
            made: `clock` when its iterator was made, if that is known.
            looked_at: True if nothing of it counts.
        """
        self._settle()
        self._latest = None
        self._ranks.check_alone()
        cursor = self._located()
        self._check_length()
        if looked_at or is_only_looked_at():
            run = Run(cursor, batch_size, drop_last, in_order, made)
            run.counts = False
            return run
        self._warn_of_trainers()
        cursor.fix_seed()
        if is_one_of_several():
            cursor.take_seed(0)  # it was drawn before this process was told of the others
        run = Run(cursor, batch_size, drop_last, in_order, made)
        run.may_be_left = is_evaluated()
        cursor.warn_of_rows_left_out(run)
        cursor.begun(run)
        source = flattened(self.dataset)
        if source is not None:
            source.foresee(chunks(run.cursor.order, run.shard, run.start), progress or run.progress)
        return run

    # -- what a loader takes indices from, and reports to: `Replay` has the same

    is_known_ahead = True  # so that rows may be read before they are asked for

    def num_steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come."""
        return self._located().steps_under_way(batch_size, drop_last)

    def most_steps(self, batch_size: int, drop_last: bool, state: Mapping[str, Any] | None) -> int:
        """The most batches of any epoch, if this state is going to be loaded."""
        cursor = self._located()
        resumed = copy(cursor)
        if state is not None:
            resumed.load_state_dict(state)
        now, whole = self.num_steps(batch_size, drop_last), cursor.steps(batch_size, drop_last)
        return max(now, whole, resumed.steps_under_way(batch_size, drop_last))

    def rows_in_last_step(self, run: Run) -> int:
        """Rows of the dataset in the last batches of all ranks; what `pad` adds is not counted."""
        return run.rows_in_last_step

    def _batches(self, run: Run, source: Any) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of each batch from the start of an iteration."""
        return batches(self.cursor.order, run.shard, run.start, run.batch_size, run.drop_last)

    def _rows(self, run: Run) -> Iterator[int]:
        """The same rows, one by one."""
        for found in chunks(self.cursor.order, run.shard, run.start):
            yield from found.tolist()

    def _firsts(self, run: Run) -> Iterator[int]:
        """The position at which each of these batches begins."""
        return first_positions(run.shard, self.cursor.length, run.start, run.batch_size)

    def _state_of(self, run: Run) -> dict[str, Any]:
        """The state after what an iteration has delivered."""
        return self.cursor.state_of(run)

    def clock(self) -> int:
        """How many iterations have delivered anything by now; iterators note it when they are made."""
        self._settle()
        return self.cursor.num_begun

    def _check_length(self) -> None:
        """Raises ValueError if the dataset has grown or shrunk."""
        if len(self.dataset) != self.cursor.length:
            raise ValueError(
                f"the dataset had {self.cursor.length} rows when the order was made, and has "
                f"{len(self.dataset)} now; make a new loader or sampler, and load its state with strict=False"
            )

    def _warn_of_trainers(self) -> None:
        """Tells what cannot be made right from here."""
        told = ""
        if is_read_by_accelerate():
            told = (
                "Accelerate reads this sampler through a loader of its own, which forgets the epoch when it "
                "is resumed (huggingface/accelerate#4195), so rows of a later epoch would come twice; use "
                "torchyoga.DataLoader, which Accelerate leaves as it is"
            )
        elif num_skipped():
            told = (
                "the trainer finds its place by skipping batches, which is right only with as many ranks and "
                "as large batches as before, and in_order=True (huggingface/transformers#22580)"
            )
        if told and not self._has_warned:
            self._has_warned = True
            warn_user(told)

    def _settle(self) -> None:
        """Tells the cursor what the iterator that moved last has handed out."""
        for run in self._running:
            # Of iterations at once, all but the first tell when they move, and note where the others are; so
            # only the first can be elsewhere.
            if run.taken != run.reported:
                run.reported = run.taken
                self._latest = run
        # What nobody holds will not move again.
        self._running = [run for run in self._running if not run.over and run.iterator() is not None]
        if self._latest is not None:
            self._latest.report()

    def __repr__(self) -> str:
        cursor = self._located()
        name = "ResumableSampler" if type(self).__module__ == __name__ else type(self).__name__
        return (
            f"{name}({cursor.length} rows, shuffle={self.shuffle!r}, seed={self.seed}, "
            f"rank {cursor.shard.rank} of {cursor.shard.num_replicas}, remainder={self.remainder!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {**self.__dict__, "_latest": None, "_running": [], "_begun": None}


class ShuffledSampler(ResumableSampler, RandomSampler):  # type: ignore[override]
    """What a loader makes of `shuffle`: trainers ask whether a loader's sampler is a RandomSampler."""

    replacement, generator = False, None


class SequenceSampler(ResumableSampler, SequentialSampler):  # type: ignore[override]
    """What a loader makes of `shuffle=False`: trainers ask whether its sampler is a SequentialSampler."""


def kind_for(shuffle: Shuffle | None) -> type[ResumableSampler]:
    """The class of the sampler that a loader makes, as torch's loaders do."""
    return ShuffledSampler if shuffle else SequenceSampler


def _nothing() -> None:
    """Nothing is to be done."""


def drawn_seed(generator: torch.Generator | None) -> int:
    """One number of a generator, torch's global one by default; 0 in a job of several, each of which has
    another."""
    if is_one_of_several():
        return 0
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def in_sequence(sampler: SequentialSampler) -> ResumableSampler:
    """The same rows in the same order, as Lightning's overfit_batches wants it."""
    return SequenceSampler(len(sampler), shuffle=False)


class _Indices(chain[int]):
    """One iteration of a sampler, at the speed of `itertools.chain` over lists.

    Nothing counts the rows: a list iterator knows how much it has left. So whoever wants to know where
    the iteration stands asks, and compares with what it was before.
    """

    @staticmethod
    def of(sampler: ResumableSampler) -> _Indices:
        """An iteration that begins when its first row is asked for."""
        run = _Handed(sampler)
        found = cast(_Indices, _Indices.from_iterable(run.lists()))
        found.run, run.iterator = run, weakref.ref(found)
        return found

    run: _Handed

    def state_dict(self) -> dict[str, Any]:
        """The state after the rows that this iterator has handed out."""
        cursor, run = self.run.sampler.cursor, self.run.settled()
        if run is None:
            return cursor.state_at(cursor.begin())
        run.is_saved = True
        return cursor.state_of(run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; StateError once the first row has been handed out."""
        if self.run.settled() is not None:
            raise StateError(
                "this iterator has begun already; load the state before the first row, or into the sampler"
            )
        self.run.sampler.load_state_dict(state)


def _rows_of_step(dataset: DataRef | None) -> int:
    """How many rows to approach at once."""
    if dataset is None or not dataset.row_bytes:
        return 2**62
    return min(2048, max(64, _STEP_BYTES // dataset.row_bytes))


class _Handed:
    """What one iteration of a sampler has handed out."""

    iterator: weakref.ref[_Indices]

    def __init__(self, sampler: ResumableSampler) -> None:
        self.sampler = sampler
        self.over = False
        self.reported = 0  # rows that the cursor knows of
        self._run: Run | None = None  # once it has begun
        self._handed: Any = iter(())  # the list iterator under way
        self._rows: list[int] = []  # what it iterates over
        self._before = 0  # rows up to its end

    def lists(self) -> Iterator[Iterator[int]]:
        """The rows, as iterators over lists."""
        sampler, cursor = self.sampler, self.sampler.cursor
        size, ahead, tasks = batches_of_torch()
        self._run = run = sampler._begin(progress=self._progress())
        run.steps_before = None  # it hands out rows, and others make batches of them
        run.hold(self.iterator())
        run.first_rows, run.asked = size * (1 + ahead), tasks
        sampler._begun = _Begun(run, tasks, self.settled)
        is_second = bool(sampler._running)
        sampler._running.append(self)
        dataset = sampler.dataset if isinstance(sampler.dataset, DataRef) else None
        step = _rows_of_step(dataset)
        for found in chunks(cursor.order, run.shard, run.start):
            wanted = found.tolist()
            if dataset is not None:
                dataset.expect(wanted, found)
            for first in range(0, len(wanted), step):
                cursor.check_generation(run.generation)
                some = wanted[first : first + step]
                if dataset is not None:
                    dataset.approach(first, first + len(some))
                self._before += len(some)
                self._rows, self._handed = some, iter(some)
                yield self._watched(self._handed) if is_second else self._handed
        cursor.check_generation(run.generation)
        sampler._settle()
        if sampler._latest in (self, None):
            cursor.finished(run)
            sampler._latest = None
        self.over = True
        self.stop()

    def _watched(self, handed: Iterator[int]) -> Iterator[int]:
        """The same rows, telling the sampler of each."""
        for row in handed:
            for run in self.sampler._running:
                run.reported = run.taken
            self.sampler._latest = self
            yield row

    def _progress(self) -> Progress:
        held = weakref.ref(self)
        return lambda: None if (handed := held()) is None else handed.taken

    @property
    def taken(self) -> int:
        """Rows handed out."""
        return self._before - int(self._handed.__length_hint__())

    def stop(self) -> None:
        """Hands out nothing more: a list iterator ends where its list does."""
        self._before = self.taken
        self._rows.clear()
        self._handed = iter(())

    def settled(self) -> Run | None:
        """The iteration as it stands; None before it has begun."""
        if self._run is not None:
            self._run.taken = self.taken
        return self._run

    def report(self) -> None:
        """Tells the cursor."""
        run = self.settled()
        if run is not None and not self.over:
            run.report()


class _Begun(NamedTuple):
    """An iteration that has begun, for states of what was handed out in it.

    Attributes:
        run: the iteration.
        tasks: the batches that torch has asked for, for its workers, and has not delivered.
        settle: notes in `run` what was handed out.
    """

    run: Run
    tasks: Mapping[int, Any]
    settle: Callable[[], Any]

    def state_after(self, steps: int, batch_size: int, drop_last: bool) -> dict[str, Any]:
        """The state after so many batches."""
        self.settle()
        run = copy(self.run)
        rows = min(run.taken * run.batch_size, run.shard.count(run.cursor.length, run.start.position))
        most = rows // batch_size if drop_last else -(-rows // batch_size)
        if not 0 <= as_int("steps", steps) <= most:
            raise ValueError(
                f"steps must be in 0..{most}, the batches of {batch_size} rows that this iteration has "
                f"handed out, found {steps}"
            )
        self.run.is_saved = self.run.is_saved or steps > 0
        run.batch_size, run.drop_last, run.taken = batch_size, drop_last, steps
        run.steps_before = run.entry.steps if run.start == run.entry.place else 0
        return run.cursor.state_of(run)


class ResumableBatchSampler(BatchSampler):
    """Batches of row numbers, with the state counted in whole batches.

    Args:
        sampler: a `ResumableSampler`.
        batch_size: rows of a batch, on each rank.
        drop_last: leave out a shorter last batch.

    Example:
        >>> batches = ResumableBatchSampler(ResumableSampler(10, shuffle=False), batch_size=4)
        >>> list(batches)
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self, sampler: ResumableSampler | SequentialSampler, batch_size: int, drop_last: bool = False
    ) -> None:
        if type(sampler) is SequentialSampler:
            sampler = in_sequence(sampler)
        if not isinstance(sampler, ResumableSampler):
            raise ValueError(
                f"sampler must be a ResumableSampler, found {type(sampler).__name__}; wrap its dataset in one"
            )
        self.sampler: ResumableSampler = sampler
        self.batch_size = as_int("batch_size", batch_size, low=1)
        self.drop_last = bool(drop_last)
        self.is_seeded = False  # True if a loader of ours seeds the rows

    def __len__(self) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come."""
        return self.sampler._located().steps_under_way(self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return BatchRun(self)

    @property
    def even_batches(self) -> bool:
        """False if ranks may have different numbers of rows: Accelerate's word for `remainder="keep"`."""
        return self.sampler.remainder != "keep"

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        shard = self.sampler.cursor.shard
        even: Remainder = "drop" if self.sampler.drop_last else "pad"
        self.sampler.cursor.shard = replace(shard, remainder=even if value else "keep")

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `ResumableSampler.state_dict`."""
        return self.sampler.state_dict()

    def state_after(self, steps: int) -> dict[str, Any]:
        """The state after so many batches of this iteration; see `ResumableSampler.state_after`."""
        return self.sampler.state_after(steps, self.batch_size, self.drop_last)

    def receipt(self) -> dict[str, Any]:
        """See `ResumableSampler.receipt`."""
        return self.sampler.receipt()

    def prove(self, group: Any = None) -> Proof:
        """See `ResumableSampler.prove`."""
        return self.sampler.prove(group)

    def check_ranks(self, group: Any = None) -> None:
        """See `ResumableSampler.check_ranks`."""
        self.sampler.check_ranks(group)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """See `ResumableSampler.load_state_dict`."""
        self.sampler.load_state_dict(state, strict)

    def rows_in_step(self, step: int, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """The rows of batch `step` (from 0) of an epoch begun at its start, of all ranks: those behind a loss
        spike.

        Rank r's own are every `num_replicas`-th from r on. Rows that `pad` repeats are there twice.
        """
        cursor = self.sampler.cursor
        size = self.batch_size * cursor.shard.num_replicas
        positions = np.arange(
            size * as_int("step", step, low=0), min(size * (step + 1), cursor.shard.end(cursor.length))
        )
        if not len(positions):
            raise ValueError(f"step must be in 0..{len(self) - 1}, found {step}")
        return self.sampler.rows_at(positions, epoch)


def are_skipped(run: Run, skipped: int) -> bool:
    """True if the batches that a trainer skips are those that a state has skipped already.

    Raises:
        StateError: the state has skipped others.
    """
    if not skipped or not run.start.position:
        return False
    if skipped != run.steps_before:
        raise StateError(
            f"a state was loaded after {run.steps_before} batches of the epoch, and {skipped} are to be "
            "skipped as well; leave out skip_first_batches, the loader continues by itself"
        )
    return True


class BatchRun(Iterator[list[int]]):
    """One iteration in batches; it begins when its first batch is asked for."""

    def __init__(self, batch_sampler: ResumableBatchSampler) -> None:
        self._source = batch_sampler
        self._made = batch_sampler.sampler.clock()
        self._run: Run | None = None
        self._batches: Iterator[npt.NDArray[np.int64]] = iter(())
        self._done = 0  # batches that the caller will throw away, for it has done them before

    def __next__(self) -> list[int]:
        run, source = self._run, self._source
        cursor = source.sampler.cursor
        if run is None:
            self._run = run = source.sampler._begin(source.batch_size, source.drop_last, made=self._made)
            run.hold(self)
            _, ahead, tasks = batches_of_torch()
            run.first_rows, run.asked = run.first_rows + ahead, tasks
            source.sampler._begun = _Begun(run, tasks, _nothing)
            skipped = num_skipped()
            if skipped and source.is_seeded:
                raise StateError(
                    "skip_first_batches would make rows without the random numbers that the loader gives "
                    "them, so augmentation would differ from that of a whole run; delete that line, and load "
                    "the loader's state_dict() or make it with start_offset=..., or with seed_rows=False"
                )
            self._done = skipped if are_skipped(run, skipped) else 0
            self._batches = batches(cursor.order, run.shard, run.start, source.batch_size, source.drop_last)
        cursor.check_generation(run.generation)
        if self._done:
            self._done -= 1
            return []
        batch = next(self._batches, None)
        if batch is None:
            cursor.finished(run)
            raise StopIteration
        run.taken += 1
        run.report()
        return cast("list[int]", batch.tolist())

    def state_dict(self) -> dict[str, Any]:
        """The state after the batches that this iterator has handed out."""
        run, cursor = self._run, self._source.sampler.cursor
        if run is None:
            return self._source.state_dict()
        run.is_saved = True
        return cursor.state_of(run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; StateError once the first batch has been handed out."""
        if self._run is not None:
            raise StateError("this iterator has begun already; load the state before the first batch")
        self._source.load_state_dict(state)
