"""The indices of an order: what a loader takes rows from and reports to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ProcessGroup

from ..errors import StateError
from ..order.contract import Appended, Locality, Saved
from ..order.cursor import Cursor
from ..order.epoch import Epoch, Iteration, IterationOptions
from ..order.place import Shard, batches, chunks, first_positions
from ..order.proof import Proof, prove
from ..process.digests import word_of
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..views.flattened import flattened
from . import trainers
from .ranks import Ranks, gathered, is_one_of_several, same_by_rank


class Resumable:
    """Hands out rows or batches of an order, and has a state: the base of samplers and loaders."""

    _indices: Indices  # and the account of those that were delivered

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self._indices.epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin. There is no need to call it: epochs advance by themselves.

        An epoch other than the current one begins at its start. The current one begins again where this
        process began it: after `load_state_dict` at the place that was loaded, and with no batch if none is
        left. A running iterator goes on, because trainers may call this late. If the first call after
        `load_state_dict` names a smaller epoch, the trainer counts from 0 again: the call then means the
        current epoch, with a warning, and later calls count on from there.
        """
        self._indices.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """The state: a small JSON-able dict, the same on every rank; see docs/resume.md."""
        return self._indices.state_dict()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state, under any number of ranks.

        Raises:
            StateError: it is of another dataset, length, seed or kind of shuffle, or damaged. `strict=False`
                takes its epoch and position nevertheless.
        """
        self._indices.load_state_dict(state, strict, appended)

    def receipt(self) -> Saved:
        """The receipt of what this rank has delivered of the epoch under way, or of the last one if none is.

        It is a small JSON-able dict. From the receipts of all ranks `torchyoga.prove` shows that no row was
        lost or came twice, except as `remainder` asks.
        """
        return self._indices.receipt()

    def prove(self, group: ProcessGroup | None = None) -> Proof:
        """`torchyoga.prove` over all ranks, after the same step on each; costs one small collective.

        After a state was loaded it says whether all ranks have loaded the same.

        Args:
            group: the processes that call this, if not all.

        Raises:
            StateError: the ranks are in different epochs, of different datasets or seeds, or some are
                missing.

        Example:
            >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True)
            >>> for batch in loader:
            ...     pass
            >>> print(loader.prove())
            epoch 0: 10 of 10 rows delivered since it began, each exactly once
        """
        return self._indices.prove(group)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch (this one, by default)."""
        return self._indices.position_of(row, epoch)


def are_skipped(iteration: Iteration, skipped: int) -> bool:
    """True if the batches that a trainer skips are those that a state has skipped already.

    Raises:
        StateError: the state has skipped others.
    """
    if not skipped or not iteration.start.position:
        return False
    if skipped != iteration.steps_before:
        raise StateError(
            f"a state was loaded after {iteration.steps_before} batches of the epoch, and {skipped} are to "
            "be skipped as well; leave out skip_first_batches, the loader continues by itself"
        )
    return True


def drawn_seed(generator: torch.Generator | None, ranks: Ranks, for_order: bool) -> int:
    """A seed from a generator, torch's global one by default; 0 if there may be other ranks.

    Each of them has a generator of its own. For an order, a number is drawn; rows take their seed from where
    the generator stands, so that an evaluation leaves it as it is.
    """
    if not ranks.follows or is_one_of_several():
        return 0
    if not for_order:
        state = (torch.default_generator if generator is None else generator).get_state()
        return word_of(state.numpy().tobytes()) >> 1
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


class Indices:
    """The rows of an order on this rank, and the account of those that were delivered.

    A subclass takes its rows from a user's sampler: see `redrawn.py`.

    Attributes:
        dataset: the dataset that the indices are for.
        cursor: where all of it stands.
        ranks: which of how many ranks this process is.
        seed_rows: its loader's argument, for a new loader that is made around it.
        begun: the iteration that has begun last, if it was a sampler's own.
    """

    def __init__(self, dataset: Sized, cursor: Cursor, ranks: Ranks) -> None:
        self.dataset, self.cursor, self.ranks = dataset, cursor, ranks
        self.seed_rows: bool | None = None
        self.begun: Iteration | None = None
        self._has_warned = self._has_warned_of_workers = False

    def __getstate__(self) -> dict[str, object]:
        self.cursor.settle()
        return {**self.__dict__, "begun": None}

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.ranks.now()[0]

    @property
    def rank(self) -> int:
        """This rank."""
        return self.ranks.now()[1]

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self.cursor.epoch

    @property
    def is_known_ahead(self) -> bool:
        """True: rows may be read before they are asked for."""
        return True

    @property
    def located(self) -> Cursor:
        """The cursor, once it knows which rank this is by now."""
        cursor, now = self.cursor, self.ranks.now()
        if now != (cursor.shard.num_replicas, cursor.shard.rank):
            cursor.deal(*now)
        return cursor

    @property
    def locality(self) -> Locality:
        """ "shard" if each rank has files of its own, else "global"."""
        return self.cursor.locality

    @property
    def may_repeat(self) -> bool:
        """True if an epoch may give a row twice on purpose, as users' samplers may."""
        return False

    @property
    def is_undivided(self) -> bool:
        """True if all of several ranks get the same batches, as far as that is known."""
        return False

    @property
    def name(self) -> str:
        """The name of whatever decides which rows come, for messages."""
        return "ResumableSampler"

    @property
    def order(self) -> str:
        """How rows are shuffled, and whether ranks have files of their own."""
        shard = ", locality='shard'" if self.locality == "shard" else ""
        return f"shuffle={self.cursor.shuffle!r}{shard}"

    def __str__(self) -> str:
        cursor, dataset = self.cursor, self.dataset
        kind = "rows" if isinstance(dataset, range) else f"rows of a {type(dataset).__name__}"
        return (
            f"{len(dataset)} {kind}, {self.order}, seed={cursor.seed}, rank {self.rank} of "
            f"{self.num_replicas}, remainder={cursor.shard.remainder!r}, at epoch {cursor.epoch}, "
            f"position {cursor.position}"
        )

    # -- iterations

    def begin(self, options: IterationOptions) -> Iteration:
        """An iteration that begins now."""
        with self.cursor.lock:
            self.ranks.check_alone()
            cursor = self.located
            if cursor.arrangement is None:  # else an epoch has as many rows as it is said to have
                self.check_length(cursor.length, "order")
            if not options.counts or trainers.is_only_looked_at():
                return cursor.iteration(replace(options, counts=False))
            has_drawn = cursor.fix_seed()
            if is_one_of_several():
                cursor.take_seed(0)  # it was drawn before this process knew of the others
            begun = cursor.iteration(replace(options, may_be_left=trainers.is_evaluated()))
            if not has_drawn:
                cursor.draw_for(begun)
            self._warn_of_trainers(begun)
            cursor.warn_of_rows_left_out(begun)
            cursor.begun(begun)
            self._follow(begun)
            return begun

    def begin_for(self, holder: object, options: IterationOptions) -> Iteration:
        """An iteration of a sampler's own iterator, which lasts as long as `holder`, begins now."""
        with self.cursor.lock:
            self.begun = iteration = self.begin(options)
            iteration.hold(holder)
            return iteration

    def _follow(self, iteration: Iteration) -> None:
        """Lets files be read ahead in the order of an iteration from where it begins."""
        source = flattened(self.dataset)
        readahead = None if source is None else source._readahead
        if readahead is not None:
            rows = chunks(self.cursor.order, iteration.shard, iteration.start)
            readahead.follow(rows, iteration.progress)

    def batches(self, iteration: Iteration, source: object) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of each batch from the start of an iteration."""
        size, drop_last = iteration.batch_size, iteration.drop_last
        return batches(self.cursor.order, iteration.shard, iteration.start, size, drop_last)

    def rows(self, iteration: Iteration) -> Iterator[int]:
        """The rows of an iteration, one by one."""
        for found in chunks(self.cursor.order, iteration.shard, iteration.start):
            yield from found.tolist()

    def firsts(self, iteration: Iteration) -> Iterator[int]:
        """The position at which each of these batches begins."""
        return first_positions(iteration.shard, iteration.length, iteration.start, iteration.batch_size)

    def num_steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come."""
        return self.located.steps_under_way(batch_size, drop_last)

    def num_steps_undivided(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch, if one rank took all of them."""
        return Shard().steps(self.cursor.length, 0, batch_size, drop_last)

    def steps_before(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch on this rank before the next one."""
        return self.located.steps_before(batch_size, drop_last)

    def most_steps(self, batch_size: int, drop_last: bool, state: Mapping[str, object] | None) -> int:
        """The most batches of any epoch, if this state is going to be loaded."""
        cursor = self.located
        resumed = copy(cursor)
        if state is not None:
            resumed.load_state_dict(state)
        now, whole = self.num_steps(batch_size, drop_last), cursor.steps(batch_size, drop_last)
        return max(now, whole, resumed.steps_under_way(batch_size, drop_last))

    def rows_in_last_step(self, iteration: Iteration) -> int:
        """Rows of the dataset in the last batches of all ranks; what `pad` adds is not counted."""
        return iteration.rows_in_last_step

    def _warn_of_trainers(self, begun: Iteration) -> None:
        """Warns of what cannot be made right from here."""
        message, shard, start = "", begun.shard, begun.start.position
        in_steps = begun.num_steps * begun.batch_size * shard.num_replicas
        twice = min(shard.end(begun.length, start), start + in_steps) - begun.length
        if trainers.is_read_by_accelerate():
            message = (
                "Accelerate reads this sampler through a loader of its own, which forgets the epoch when it "
                "is resumed (huggingface/accelerate#4195), so rows of a later epoch would come twice; use "
                "torchyoga.DataLoader, which Accelerate leaves as it is"
            )
        elif trainers.num_skipped():
            message = (
                "the trainer finds its place by skipping batches, which is right only with as many ranks and "
                "as large batches as before, and in_order=True (huggingface/transformers#22580)"
            )
        elif twice > 0 and not shard.rank and (evaluation := trainers.evaluated_by_lightning()):
            message = (
                f"trainer.{evaluation}() gets {twice} rows twice, as remainder='pad' gives all ranks equally "
                f'many; with remainder="keep" each counts once'
            )
        if message and not self._has_warned:
            self._has_warned = True
            warn_user(message)

    def check_length(self, known: int, made: str) -> None:
        """Raises ValueError if the dataset has grown or shrunk since something was made of so many rows."""
        if len(self.dataset) != known:
            raise ValueError(
                f"the dataset had {known} rows when the {made} was made, and has {len(self.dataset)} now; "
                "make a new loader or sampler, and load its state with strict=False"
            )

    # -- states

    def state_of(self, iteration: Iteration, then: Epoch | None = None) -> Saved:
        """The state after what an iteration has delivered; or had then."""
        return self.cursor.state_of(iteration, then)

    def state_after(self, iteration: Iteration, steps: int) -> Saved:
        """The state after so many batches of an iteration.

        Raises:
            StateError: a state was loaded since.
            ValueError: so many have not been delivered.
        """
        with self.cursor.lock:
            self.cursor.check_generation(iteration.generation)
            return self.state_of(iteration, iteration.after(as_int("steps", steps, low=0)))

    def state_after_batches(self, steps: int, batch_size: int, drop_last: bool) -> Saved:
        """See `ResumableSampler.state_after`."""
        run, cursor, size = self.begun, self.cursor, as_int("batch_size", batch_size, low=1)
        if run is None:
            raise StateError("no iteration of this sampler has begun since; take state_dict()")
        with cursor.lock:
            cursor.settle()
            rows = min(run.taken * run.batch_size, run.shard.count(run.length, run.start.position))
            most = rows // size if drop_last else -(-rows // size)
            if not 0 <= as_int("steps", steps) <= most:
                raise ValueError(
                    f"steps must be in 0..{most}, the batches of {size} rows that this iteration has handed "
                    f"out, found {steps}"
                )
            return cursor.state_of(run, run.after_batches(steps, size), size, drop_last)

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self.cursor.set_epoch(epoch)
        if self.begun is not None and self.begun.start.epoch != self.cursor.epoch:
            self.begun = None

    def state_dict(self) -> Saved:
        """See `ResumableSampler.state_dict`."""
        if self.begun is not None and self.begun.options.asked and not self._has_warned_of_workers:
            self._has_warned_of_workers = True
            warn_user(
                "torch's DataLoader with worker processes asks its sampler for rows before it delivers them, "
                "and this state counts them all; count the steps of your loop and save "
                "sampler.state_after(steps, batch_size), or use torchyoga.DataLoader"
            )
        return self.cursor.state_dict()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """See `ResumableSampler.load_state_dict`."""
        with self.cursor.lock:
            self.located.load_state_dict(state, strict, appended)
            self.begun = None

    def receipt(self) -> Saved:
        """See `ResumableSampler.receipt`."""
        return self.located.receipt()

    def prove(self, group: ProcessGroup | None = None) -> Proof:
        """See `ResumableSampler.prove`."""
        receipts = gathered(self.receipt(), group)
        if not self.ranks.is_alone:  # others may see the same rows
            receipts = same_by_rank(receipts)
        return prove(receipts)

    def rows_in_step(
        self, step: int, batch_size: int, drop_last: bool, epoch: int | None
    ) -> npt.NDArray[np.int64]:
        """See `ResumableBatchSampler.rows_in_step`."""
        cursor = self.cursor
        size = batch_size * cursor.shard.num_replicas
        end = cursor.shard.end(cursor.length_in(cursor.epoch if epoch is None else epoch))
        positions = np.arange(size * as_int("step", step, low=0), min(size * (step + 1), end))
        if not len(positions):
            most = self.num_steps(batch_size, drop_last) - 1
            raise ValueError(f"step must be in 0..{most}, found {step}")
        return self.rows_at(positions, epoch)

    def rows_at(self, positions: npt.ArrayLike, epoch: int | None = None) -> npt.NDArray[np.int64]:
        """See `ResumableSampler.rows_at`."""
        return self.cursor.order.rows(self.epoch if epoch is None else epoch, positions)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """See `ResumableSampler.position_of`."""
        return int(self.cursor.order.positions(self.epoch if epoch is None else epoch, [row])[0])
