"""Orders that change from a place on: stages, and what a state lists of them.

Places are counted over all epochs: place g is position g % N of epoch g // N. What has come cannot be
changed, what is to come can. A state lists the stages from the one on that decided the last row before it, so
it does not grow with their number; an order goes on from it if its own are the same there.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ..process.lazy import np
from ..rows.types import Ints
from .contract import AnyOrder
from .full import within
from .proof import are_counts
from .saved import Pin

if TYPE_CHECKING:
    import numpy.typing as npt


def in_effect(pin: Pin, first: int, last: int) -> tuple[tuple[Pin, ...], ...]:
    """The stages of a state or an order that begin at place `last` or before, and end at `first` or later.

    Raises:
        ValueError: they are damaged.

    Example:
        >>> stages = ((0, (7, 3)), (1000, (5, 5), (700, 300)), (2000, (6, 4), (1200, 800)))
        >>> in_effect(stages, 500, 700), in_effect(stages, 1500, 1500)
        (((0, (7, 3)),), ((1000, (5, 5), (700, 300)),))
    """
    stages = pin if isinstance(pin, tuple) else ()
    starts = [stage[0] if isinstance(stage, tuple) and len(stage) > 1 else -1 for stage in stages]
    if not stages or not are_counts(*starts) or starts != sorted(set(starts)):
        raise ValueError("damaged stages" if stages else "no stages")
    begun = [stage for stage in stages if stage[0] <= last]
    return tuple(begun[sum(later[0] < first for later in begun[1:]) :])


class ArrangedOrder(AnyOrder):
    """An order that decides which rows come, in stages; its row numbers are in `ARRANGED`.

    Attributes:
        window: files mixed with each other at once, if shuffle is "block".
        what: what decides, for messages.
    """

    window: int
    what: str

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The row numbers at these positions of the epoch; past N, the last stage comes again."""
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        if front := self._front(epoch):
            is_past = np.asarray(positions) >= self.length
            found = np.where(is_past, front + found % (self.length - front), found)
        return self._rows(epoch, np.ascontiguousarray(found).reshape(-1)).reshape(found.shape)

    def _front(self, epoch: int) -> int:
        """The position whose row comes again past N: no state need tell what came before its last stage."""
        return 0

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these row numbers come in the epoch: the inverse of `rows`."""
        numbers = np.asarray(rows, np.int64)
        if not numbers.size:
            return numbers
        flat = np.ascontiguousarray(numbers).reshape(-1)
        found = self._positions(epoch, flat)
        if int(found.min()) < 0:
            number = int(flat[np.argmin(found)])
            raise ValueError(f"row number {number} does not come in epoch {epoch} of {self.what}")
        return found.reshape(numbers.shape)

    @abstractmethod
    def _rows(self, epoch: int, positions: Ints) -> Ints:
        """(M,) what comes at positions (M,), each in 0..N-1."""

    @abstractmethod
    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        """(M,) where row numbers (M,) come; -1 for those that do not."""

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order; subclasses add `stages`."""
        found: dict[str, Pin] = {"shuffle": self.kind}
        return {**found, "window": self.window} if self.shuffle == "block" else found
