"""Position -> row and back, where more and more of the rows may come: a curriculum, with integers only.

From each stage's place on, its first rows are passed over again and again, each pass in an order of its own.
A pass begins anew where a stage or an epoch does, so an epoch of all rows has each of them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..process.distinct import distinct
from ..rows.types import Ints
from .contract import ARRANGED, Shuffle, before_known, check_epoch
from .full import GOING_ON
from .passes import Passes, passes_over
from .saved import Pin
from .stages import ArrangedOrder, written_stages

__all__ = ["OpenStage", "StagedOrder"]


class OpenStage(NamedTuple):
    """How many rows may come from a place on.

    Attributes:
        start: the place, over all epochs, at which it begins.
        rows: the first so many rows.
        number: of the stage, if those before are not all told here.
        has_grown: True if rows were appended before, since the first stage.
    """

    start: int
    rows: int
    number: int | None = None
    has_grown: bool = False

    @property
    def told(self) -> str:
        """It as text, for states."""
        return f"{self.rows}{'+' * self.has_grown}"


@dataclass(frozen=True, eq=False)
class StagedOrder(ArrangedOrder):
    """The order of the rows in every epoch, over all ranks, where later stages have more rows than others.

    The number of a row is `ARRANGED.start` + row + N times the number of passes of the epoch before its own.

    Args:
        stages: the first begins at 0, or `past` tells those before.
        num_rows: rows N there are.
        length: places of an epoch.
        seed: any int.
        shuffle: True, False or "block".
        reshuffle: False gives every epoch the order of epoch 0, if it shuffles.
        window: files mixed with each other at once, if shuffle is "block".
        files: where files begin, if shuffle is "block".
        begun: an epoch that was begun in an earlier version of the order, and that version.
        adopts: what states are of that this goes on from, besides its own.
        past: a digest of stages that are over.
        least: rows of the smallest stage of all, if that is not among `stages`.
    """

    stages: tuple[OpenStage, ...]
    num_rows: int = 0
    length: int = 0
    seed: int = 0
    shuffle: Shuffle = True
    reshuffle: bool = True
    window: int = 8
    files: Ints | None = None
    begun: tuple[int, int] | None = None
    adopts: tuple[Pin, ...] = ()
    past: str = ""
    least: int = 0

    what = "these stages"

    def _rows(self, epoch: int, positions: Ints) -> Ints:
        parts = self._parts(epoch)
        which = np.searchsorted([part.first for part in parts], positions, "right") - 1
        if len(which) and int(which.min()) < 0:
            raise before_known(epoch, int(positions.min()), self.stages[0].start)
        out = np.empty_like(positions)
        for number in distinct(which).tolist():
            some, part = np.flatnonzero(which == number), parts[number]
            turn, place = np.divmod(positions[some] - part.first, part.rows)
            row = self._passes(part.stage).rows(self._first_pass(epoch, part.stage) + turn, place)
            out[some] = ARRANGED.start + (part.turns + turn) * self.num_rows + row
        return out

    def _front(self, epoch: int) -> int:
        parts = self._parts(epoch)
        return parts[-1].first if parts else 0

    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        parts = self._parts(epoch)
        turns, row = np.divmod(numbers - ARRANGED.start, self.num_rows)
        which = np.searchsorted([part.turns for part in parts], turns, "right") - 1
        found = np.full(numbers.shape, -1, np.int64)
        for number in distinct(np.maximum(which, 0)).tolist():
            part, first = parts[number], self._first_pass(epoch, parts[number].stage)
            some = np.flatnonzero((which == number) & (row < part.rows))
            turn = turns[some] - part.turns
            places = self._passes(part.stage).positions(first + turn, row[some]) if some.size else turn
            places = part.first + turn * part.rows + places
            end = parts[number + 1].first if number + 1 < len(parts) else self.length
            found[some[places < end]] = places[places < end]
        return found

    @property
    def known(self) -> tuple[Pin, ...]:
        """Identities of data whose states this goes on from, besides its own."""
        return self.adopts

    def check_place(self, epoch: int, position: int) -> None:
        """Raises ValueError if it cannot go on from this position of the epoch."""
        check_epoch(epoch, self.length * max(stage.rows for stage in self.stages))

    @property
    def told(self) -> str:
        """Its stages, as a state records them."""
        return written_stages([(stage.start, stage.told) for stage in self.stages], self.past)

    def _parts(self, epoch: int) -> list[_StageSpan]:
        is_alike = not self.reshuffle if self.shuffle else self.version_in(epoch) < GOING_ON
        return _parts(self, 0 if is_alike else epoch)

    def _first_pass(self, epoch: int, stage: int) -> int:
        """The number of an epoch's first pass over a stage, so that no two epochs have a pass in common."""
        self.check_place(epoch, 0)
        least = self.least or min(stage.rows for stage in self.stages)
        most = self.length // (1 if self.stages[stage].has_grown else least) + 1
        return epoch * most if self.shuffle and self.reshuffle else 0

    def _passes(self, stage: int) -> Passes:
        return _passes_of(self, stage)


class _StageSpan(NamedTuple):
    """A part of an epoch with one stage.

    Attributes:
        first: its first position.
        stage: the number of the stage.
        rows: how many may come.
        turns: passes of the epoch before it.
    """

    first: int
    stage: int
    rows: int
    turns: int


@lru_cache(maxsize=64)
def _parts(order: StagedOrder, epoch: int) -> list[_StageSpan]:
    begin, turns = epoch * order.length, 0
    found: list[_StageSpan] = []
    for number, stage in enumerate(order.stages):
        ends = [later.start for later in order.stages[number + 1 :][:1]]
        first, end = max(stage.start - begin, 0), min([order.length, *(end - begin for end in ends)])
        if first >= end:
            continue
        found.append(_StageSpan(first, number, stage.rows, turns))
        turns += -(-(end - first) // stage.rows)
    if turns * order.num_rows > len(ARRANGED):
        raise ValueError(
            f"{turns} passes in an epoch over {order.num_rows} rows are too many to be numbered; use fewer "
            "rows an epoch"
        )
    return found


@lru_cache(maxsize=256)
def _passes_of(order: StagedOrder, number: int) -> Passes:
    stage = order.stages[number]
    count, files = stage.rows, None
    if order.files is not None:
        files = np.append(order.files[order.files < count], count)
    key = (number if stage.number is None else stage.number, *((stage.start,) if stage.has_grown else ()))
    return passes_over(count, order.shuffle, order.window, files, "staged", order.seed, *key)
