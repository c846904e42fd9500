"""How far an epoch is, and what is known of the way there: one value, whoever asks."""

from __future__ import annotations

from typing import NamedTuple

from .place import Place, Shard, num_steps_left
from .proof import PRIME, weight_until


class Epoch(NamedTuple):
    """How far an epoch is: where an iteration enters it, where one has come, what a state says.

    Attributes:
        place: the rows that have been consumed.
        steps: batches of the epoch up to there, on each rank; None if that is not known.
        fault: the weight of rows that came too often up to there, minus that of rows that were lost.
        share: the rows that this rank has delivered, and their weight, if the place belongs to it alone.
        batch_size: rows of the batches of that rank.
        again: rows of the epoch that were delivered before it was begun again.
    """

    place: Place
    steps: int | None = 0
    fault: int = 0
    share: tuple[int, int] = (0, 0)
    batch_size: int = 1
    again: int = 0

    @property
    def is_alone(self) -> bool:
        """True if the place belongs to one of several ranks, each of which has another."""
        return self.place.share[1] > 1

    @property
    def next(self) -> Epoch:
        """The start of the epoch that follows."""
        return Epoch(Place(self.place.epoch + 1, 0))

    def proof(self, seed: int) -> int:
        """The weight of the rows delivered: by this rank if the place is its own, else by all."""
        return self.share[1] if self.is_alone else (weight_until(seed, self.place) + self.fault) % PRIME

    def share_of(self, seed: int, rank: int) -> tuple[int, int]:
        """The rows, and their weight, that a rank accounts for: rank 0 for those of all ranks before."""
        if self.is_alone:
            return self.share
        return (0, self.fault) if rank else (self.place.position, self.proof(seed))

    def rolled(self, length: int, shard: Shard, batch_size: int = 1, drop_last: bool = False) -> Epoch:
        """This, or the start of the next epoch if no rank has a batch left in this one.

        A rank with one row less must not begin the next epoch while another still has its last.
        """
        position = self.place.position
        if not position or length - position >= shard.num_replicas * batch_size:
            return self
        if self.is_alone:
            left = num_steps_left(self.place, shard, length, self.share[0], batch_size, drop_last)
        else:
            left = shard.steps(length, position, batch_size, drop_last, rank=0)
        return self if left else self.next


class Skipped(NamedTuple):
    """Rows that were left out because the next epoch was begun before the end of one.

    Attributes:
        rows: how many, of all epochs before.
        epoch: the last of these epochs.
    """

    rows: int = 0
    epoch: int = 0

    def with_more(self, rows: int, epoch: int) -> Skipped:
        """These rows, and those of another epoch; one that was left before may have gone on."""
        return Skipped(self.rows + rows, max(self.epoch, epoch))

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers for a state or a receipt; none if no rows were left out."""
        return tuple(self) if self.rows else ()
