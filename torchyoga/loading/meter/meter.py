"""How long the training loop waited for data, and what the loader did meanwhile."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeAlias

from torch.distributed import ProcessGroup

from ...process.stages import STAGES, Stopwatch
from .numbers import Numbers
from .ranks import Ranks, of_ranks
from .verdict import Setting, verdict

__all__ = ["Meter", "Target", "Told"]

Target: TypeAlias = Callable[["Meter"], object]
_LAST = 100  # batches
_STEP = 25  # batches between two looks at the stages
_logger = logging.getLogger(__name__)


class Told:
    """Who is told of a meter, every so many batches.

    Attributes:
        every: batches between two.
        begun, last: the batch from which on it is told, and that of which it was told last.
    """

    def __init__(self, targets: Sequence[Target], every: int) -> None:
        self.every = every
        self.begun = self.last = 0
        self._targets = [(target, False) for target in targets]  # and whether it has failed

    def tell(self, meter: Meter) -> None:
        """Tells all of them. One that raises is logged once."""
        for number, (target, has_failed) in enumerate(self._targets):
            try:
                target(meter)
            except Exception:
                if not has_failed:  # training goes on
                    self._targets[number] = target, True
                    _logger.exception("%r cannot show the loader's meter; this is said once", target)


class Meter:
    """How long the loop waited for data in this epoch, and over the last 100 batches.

    *Waited* is the time that the loop stood in `next`, *away* the time between two calls, in which it
    computes. The stages say what the loader worked on, in this process, its threads and its workers; with
    several of them they add up to more than the time that passed. It costs less than a microsecond a batch.

    Args:
        watch: counts the seconds of each stage.

    Example:
        >>> loader = yoga.DataLoader(list(range(1000)), batch_size=10)
        >>> for batch in loader:
        ...     pass
        >>> loader.meter.epoch.batches
        100
        >>> sorted(loader.meter.epoch.stages) == sorted(loader.meter.last.stages)
        True
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._told: list[Told] = []
        self._total = 0  # batches, over all epochs
        self.begun(Setting(0, 1, False, False))

    def begun(self, setting: Setting) -> None:
        """An epoch begins, in which the loader is set to this."""
        self._setting = setting
        self._count = 0
        self._first = self._waited = self._away = 0.0
        self._left = 0.0  # when the loop got its last batch
        self._waits, self._aways = [0.0] * _LAST, [0.0] * _LAST
        self._before = list(self._watch.seconds)
        self._looks: deque[tuple[int, list[float]]] = deque([(0, self._before)], _LAST // _STEP + 1)

    def delivered(self, asked: float, now: float) -> None:
        """The loop asked for a batch, and got it; both as `perf_counter` tells."""
        count, place = self._count, self._count % _LAST
        waited = now - asked
        away = asked - self._left if self._left else 0.0
        self._waits[place], self._aways[place] = waited, away
        self._waited += waited
        self._away += away
        self._left = now
        if not count:
            self._first = waited
        self._count = count = count + 1
        if not count % _STEP:
            self._looks.append((count, list(self._watch.seconds)))
        self._total += 1
        if self._told:
            self._tell(is_end=False)

    def missed(self, asked: float, now: float) -> None:
        """The loop asked for a batch, and got an error, which it may go on after."""
        self._away += asked - self._left if self._left else 0.0
        self._waited += now - asked
        self._left = now

    def ended(self) -> None:
        """An epoch has ended: its numbers are complete."""
        self._tell(is_end=True)

    @property
    def epoch(self) -> Numbers:
        """This epoch so far."""
        return self._numbers(self._count, self._waited, self._away, self._count, self._before)

    @property
    def last(self) -> Numbers:
        """The last 100 batches; the stages are those of the last 100 to 124."""
        count = min(self._count, _LAST)
        begun, before = self._looks[0]
        return self._numbers(
            count, sum(self._waits[:count]), sum(self._aways[:count]), self._count - begun, before
        )

    def _numbers(
        self, batches: int, waited: float, away: float, worked_on: int, before: Sequence[float]
    ) -> Numbers:
        share = batches / worked_on if worked_on else 0.0
        seconds = [share * (now - then) for now, then in zip(self._watch.seconds, before, strict=True)]
        return Numbers(batches, waited, away, self._first, dict(zip(STAGES, seconds, strict=True)))

    def numbers(self) -> dict[str, float]:
        """The epoch and the last 100 batches as one flat dict, for exporters.

        `batches`, `waited` and `away` in seconds, `share` of the time that the loop waited in 0..1, `first`
        in seconds for the first batch, and the seconds of each stage; those of the last 100 batches begin
        with `last/`.
        """
        epoch, last = self.epoch.flat(), self.last.flat()
        return {**epoch, **{f"last/{name}": value for name, value in last.items()}}

    def verdict(self) -> str:
        """In words: what the loop waits for, and the setting to change."""
        return verdict(self.epoch, self.last, self._setting)

    def over_ranks(self, group: ProcessGroup | None = None) -> Ranks:
        """The share of time waited, over all ranks; every rank must call it.

        Args:
            group: of `torch.distributed`; by default all ranks.
        """
        return of_ranks(self.last, group)

    def tell(self, told: Told) -> None:
        """Tells these from now on, besides others."""
        told.begun = told.last = self._total
        self._told = [*self._told, told]

    def stop_telling(self, told: Told) -> None:
        """Tells these no more."""
        self._told = [one for one in self._told if one is not told]

    def _tell(self, is_end: bool) -> None:
        for told in self._told:
            new = self._total - told.last
            if new and (is_end or not (self._total - told.begun) % told.every):
                told.last = self._total
                told.tell(self)
                self._left = perf_counter()  # what the targets take is not the loop's

    def __reduce__(self) -> tuple[type[Meter], tuple[object, ...]]:
        return Meter, (self._watch,)

    def __str__(self) -> str:
        return f"{self.last}; {self.verdict()}"

    def __repr__(self) -> str:
        return f"Meter({self.epoch})"
