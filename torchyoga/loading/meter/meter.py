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

__all__ = ["Meter", "Target"]

Target: TypeAlias = Callable[["Meter"], object]
_LAST = 100  # batches
_STEP = 25  # batches between two looks at the stages
_logger = logging.getLogger(__name__)


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
        self._targets: list[tuple[Target, bool]] = []  # and whether it has failed
        self._every = 0
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
        if self._every and not count % self._every:
            self._tell()
            self._left = perf_counter()  # what the targets take is not the loop's

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

    def told(self, targets: Sequence[Target], every: int) -> None:
        """Tells these from now on, every so many batches; nobody if there are none."""
        self._targets, self._every = [(target, False) for target in targets], every if targets else 0

    def _tell(self) -> None:
        for number, (target, has_failed) in enumerate(self._targets):
            try:
                target(self)
            except Exception:
                if not has_failed:  # training goes on
                    self._targets[number] = target, True
                    _logger.exception("%r cannot show the loader's meter; this is said once", target)

    def __reduce__(self) -> tuple[type[Meter], tuple[object, ...]]:
        return Meter, (self._watch,)

    def __str__(self) -> str:
        return f"{self.last}; {self.verdict()}"

    def __repr__(self) -> str:
        return f"Meter({self.epoch})"
