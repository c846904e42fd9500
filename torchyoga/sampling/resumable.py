"""The verbs of whatever can be stopped and continued, said once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch.distributed import ProcessGroup

from ..order.carry import Appended
from ..order.proof import Proof
from ..order.saved import Saved
from .indices import Indices

__all__ = ["Resumable"]


class Resumable(ABC):
    """What hands out rows or batches of an order, and has a state; the base of samplers and loaders."""

    @property
    @abstractmethod
    def _account(self) -> Indices:
        """The account of what was handed out."""

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self._account.epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin. There is no need to call it: epochs advance by themselves.

        Another epoch than the one under way begins at its start. The one under way begins again where this
        process began it: after `load_state_dict` at its place, and with no batch if none is left there. But
        a running iterator goes on: trainers may call this late. If the first call after `load_state_dict`
        has a smaller epoch, the trainer counts from 0 again: it is taken to mean the epoch under way, with a
        warning, and later calls count on from there.
        """
        self._account.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """The place that is reached: a small JSON-able dict, the same on every rank; see docs/resume.md."""
        return self._account.state_dict()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state, under any number of ranks.

        Raises:
            StateError: it is of another dataset, length, seed or kind of shuffle, or damaged. `strict=False`
                takes its epoch and position nevertheless.
        """
        self._account.load_state_dict(state, strict, appended)

    def receipt(self) -> Saved:
        """The receipt of what this rank has delivered of the epoch under way, or of the last one if none is.

        A small JSON-able dict. Put together by `torchyoga.prove`, those of all ranks prove that nothing was
        lost and nothing came twice.
        """
        return self._account.receipt()

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
        return self._account.prove(group)

    def check_ranks(self, group: ProcessGroup | None = None) -> None:
        """Compares the places of all ranks; costs one small collective. Call it on all, after the same step.

        Args:
            group: the processes that call this, if not all.

        Raises:
            StateError: they are at different places, of different datasets or seeds, or some are missing.
        """
        self._account.check_ranks(group)

    def position_of(self, row: int, epoch: int | None = None) -> int:
        """The position of a row in the global order of an epoch (this one, by default)."""
        return self._account.position_of(row, epoch)
