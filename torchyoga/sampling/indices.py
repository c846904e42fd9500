"""The object that a loader takes indices from and reports to: an order, or any sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ProcessGroup

from ..errors import StateError
from ..order.contract import Appended
from ..order.cursor import Cursor
from ..order.epoch import Epoch
from ..order.iteration import Iteration, IterationOptions
from ..order.proof import Proof, prove
from ..order.saved import Saved
from ..process.numbers import as_int
from ..process.seeding import unmoved_seed
from ..rows.types import Index
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

        Another epoch than the one under way begins at its start. The one under way begins again where this
        process began it: after `load_state_dict` at its place, and with no batch if none is left there. But
        a running iterator goes on: trainers may call this late. If the first call after `load_state_dict`
        has a smaller epoch, the trainer counts from 0 again: it is taken to mean the epoch under way, with a
        warning, and later calls count on from there.
        """
        self._indices.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """The place that is reached: a small JSON-able dict, the same on every rank; see docs/resume.md."""
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

        A small JSON-able dict. Put together by `torchyoga.prove`, those of all ranks prove that nothing was
        lost and nothing came twice, but for what `remainder` asks.
        """
        return self._indices.receipt()

    def prove(self, group: ProcessGroup | None = None) -> Proof:
        """`torchyoga.prove` over all ranks, after the same step on each; costs one small collective.

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

    def check_ranks(self, group: ProcessGroup | None = None) -> None:
        """Compares the places of all ranks; costs one small collective. Call it on all, after the same step.

        Args:
            group: the processes that call this, if not all.

        Raises:
            StateError: they are at different places, of different datasets or seeds, or some are missing.
        """
        self._indices.check_ranks(group)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch (this one, by default)."""
        return self._indices.position_of(row, epoch)


class Indices(ABC):
    """The indices of every epoch on this rank, and the account of those that were delivered.

    Attributes:
        dataset: the dataset that the indices are for.
        cursor: where all of it stands.
        ranks: which of how many ranks this process is.
        seed_rows: its loader's argument, for a loader that is made anew around it.
    """

    def __init__(self, dataset: Sized, cursor: Cursor, ranks: Ranks) -> None:
        self.dataset, self.cursor, self.ranks = dataset, cursor, ranks
        self.seed_rows: bool | None = None

    def __getstate__(self) -> dict[str, object]:
        self.cursor.settle()
        return dict(self.__dict__)

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
    @abstractmethod
    def is_known_ahead(self) -> bool:
        """True if rows may be read before they are asked for."""

    @property
    @abstractmethod
    def locality(self) -> str:
        """ "shard" if each rank has files of its own, else "global"."""

    @property
    def may_repeat(self) -> bool:
        """True if an epoch may give a row twice on purpose, as users' samplers may."""
        return False

    @property
    def is_dealt_by_nobody(self) -> bool:
        """True if all of several ranks get the same batches, as far as that is known."""
        return False

    @property
    def name(self) -> str:
        """The name of whatever decides which rows come, for messages."""
        return "ResumableSampler"

    @property
    def order(self) -> str:
        """How rows are ordered, for messages."""
        return self.name

    def __str__(self) -> str:
        cursor, dataset = self.cursor, self.dataset
        kind = "rows" if isinstance(dataset, range) else f"rows of a {type(dataset).__name__}"
        return (
            f"{len(dataset)} {kind}, {self.order}, seed={cursor.seed}, rank {self.rank} of "
            f"{self.num_replicas}, remainder={cursor.shard.remainder!r}, at epoch {cursor.epoch}, "
            f"position {cursor.position}"
        )

    # -- iterations

    @abstractmethod
    def begin(self, options: IterationOptions) -> Iteration:
        """An iteration that begins now."""

    @abstractmethod
    def batches(self, iteration: Iteration, source: object) -> Iterator[Index]:
        """The indices of each batch from the start of an iteration, as `source` takes them."""

    @abstractmethod
    def rows(self, iteration: Iteration) -> Iterator[Index]:
        """The indices of an iteration, one by one."""

    @abstractmethod
    def firsts(self, iteration: Iteration) -> Iterator[int]:
        """A number for each of these batches that no other batch of the epoch has, on any rank."""

    @abstractmethod
    def num_steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch under way on this rank: those delivered, and those to come."""

    @abstractmethod
    def num_steps_undivided(self, batch_size: int, drop_last: bool) -> int:
        """Batches of a whole epoch on all ranks together."""

    @abstractmethod
    def steps_before(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch on this rank before the next one."""

    @abstractmethod
    def most_steps(self, batch_size: int, drop_last: bool, state: Mapping[str, object] | None) -> int:
        """The most batches of any epoch, if this state is going to be loaded."""

    @abstractmethod
    def rows_in_last_step(self, iteration: Iteration) -> int:
        """Rows of the dataset in the last batches of all ranks; what `pad` adds is not counted."""

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

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`."""
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """See `ResumableSampler.state_dict`."""
        return self.cursor.state_dict()

    @abstractmethod
    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """See `ResumableSampler.load_state_dict`."""

    @abstractmethod
    def receipt(self) -> Saved:
        """See `ResumableSampler.receipt`."""

    def prove(self, group: ProcessGroup | None = None) -> Proof:
        """See `ResumableSampler.prove`."""
        receipts = gathered(self.receipt(), group)
        if not self.ranks.is_alone:  # others may see the same rows
            receipts = same_by_rank(receipts)
        return prove(receipts)

    @abstractmethod
    def check_ranks(self, group: ProcessGroup | None = None) -> None:
        """See `ResumableSampler.check_ranks`."""

    @abstractmethod
    def rows_in_step(
        self, step: int, batch_size: int, drop_last: bool, epoch: int | None
    ) -> npt.NDArray[np.int64]:
        """See `ResumableBatchSampler.rows_in_step`."""

    @abstractmethod
    def position_of(self, row: int, epoch: int | None = None) -> int:
        """See `ResumableSampler.position_of`."""


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
        return unmoved_seed(generator)
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
