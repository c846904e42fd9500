"""How long the training loop waited for data, what the loader did meanwhile, and the setting to change."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from time import perf_counter
from typing import NamedTuple, TypeAlias

import torch.distributed
from torch.distributed import ProcessGroup

from ...process.stages import STAGES, Stopwatch

__all__ = ["Meter", "Numbers", "Ranks", "Setting", "Target", "Told", "verdict"]

Target: TypeAlias = Callable[["Meter"], object]
_LAST = 100  # batches
_STEP = 25  # batches between two looks at the stages
_logger = logging.getLogger(__name__)
_MUCH = 0.05  # of all work: what is less is not named
_FEW = 10  # batches that say nothing yet
_FINE = 0.05  # of the time
_SHORT = 1e-4  # seconds a batch: no setting makes them much shorter
_STARTING = 0.5  # of the waiting of an epoch, for its first batch


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
    def workers(self) -> str:
        """What makes the batches: "this process", "2 threads" of it, or "2 processes".

        Where rows are only copied, `num_workers` means threads: see docs/meter.md.

        Example:
            >>> loader = yoga.DataLoader(list(range(100)), batch_size=4)
            >>> rows = [batch for batch in loader]
            >>> loader.meter.workers
            'this process'
        """
        processes, threads = self._setting.num_workers, self._setting.num_threads
        number, kind = (processes, "process") if processes else (threads, "thread")
        plural = "" if number == 1 else "es" if processes else "s"
        return f"{number} {kind}{plural}" if number else "this process"

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
        return _of_ranks(self.last, group)

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


class Numbers(NamedTuple):
    """Seconds that a loop waited and was away, and that each stage of the loader took.

    Attributes:
        batches: how many were delivered.
        waited: seconds in which the loop stood in `next`.
        away: seconds between two calls of `next`.
        first: seconds that the first batch of the epoch was waited for; workers are started meanwhile.
        stages: seconds of work by stage, over all threads and worker processes.
    """

    batches: int
    waited: float
    away: float
    first: float
    stages: dict[str, float]

    @property
    def share(self) -> float:
        """The share of its time that the loop waited, in 0..1."""
        total = self.waited + self.away
        return self.waited / total if total else 0.0

    def flat(self) -> dict[str, float]:
        """All of it by name."""
        found = {"batches": float(self.batches), "waited": self.waited, "away": self.away}
        return {**found, "share": self.share, "first": self.first, **self.stages}

    def __str__(self) -> str:
        total = sum(self.stages.values()) or 1.0
        shares = [(seconds / total, name) for name, seconds in self.stages.items()]
        most = sorted((one for one in shares if one[0] >= _MUCH), reverse=True)
        shown = ", ".join(f"{name} {share:.0%}" for share, name in most[:3])
        did = f", worked on {shown}" if shown else ""
        return f"{self.batches} batches, waited {self.waited:.2f} s ({self.share:.1%}){did}"


class Ranks(NamedTuple):
    """The share of its time that each rank waited.

    Attributes:
        shares: (ranks,) in 0..1.
        hosts: (ranks,) the name of each rank's machine.
        stages: (ranks,) the stage that each rank worked on most.
    """

    shares: tuple[float, ...]
    hosts: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def most(self) -> float:
        """The share of the rank that waited most."""
        return max(self.shares)

    @property
    def median(self) -> float:
        """The median of the shares."""
        return median(self.shares)

    @property
    def slowest(self) -> int:
        """The rank that waited most: the others wait for it when gradients are added."""
        return self.shares.index(self.most)

    def __str__(self) -> str:
        rank = self.slowest
        return (
            f"waited {self.median:.1%} of the time (median of {len(self.shares)} ranks); rank {rank} on "
            f"{self.hosts[rank]} waited most, {self.most:.1%}, and worked most on {self.stages[rank]}"
        )


def _of_ranks(found: Numbers, group: torch.distributed.ProcessGroup | None) -> Ranks:
    """One gathering of a few numbers; alone, this process is all there is."""
    stage = max(found.stages, key=lambda name: found.stages[name])
    own = found.share, socket.gethostname(), stage
    every = [own]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        every = [own] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(every, own, group)
    shares, hosts, stages = zip(*every, strict=True)
    return Ranks(shares, hosts, stages)


class Setting(NamedTuple):
    """What a loader is set to.

    Attributes:
        num_workers: processes that make batches.
        num_threads: threads that do, in place of those; 0 if there are none.
        num_cpus: that this process may use.
        is_persistent: workers live from epoch to epoch.
        pins: batches come in pinned memory.
    """

    num_workers: int
    num_cpus: int
    is_persistent: bool
    pins: bool
    num_threads: int = 0


def verdict(epoch: Numbers, last: Numbers, setting: Setting) -> str:
    """What the loop waits for most, and the setting to change.

    Args:
        epoch: what was counted in it.
        last: of its last batches.
        setting: of the loader.
    """
    if last.batches < _FEW:
        return f"{last.batches} batches say nothing yet"
    if setting.num_workers and not setting.is_persistent and _is_starting(epoch):
        return (
            f"the epoch waited {epoch.waited:.1f} s, {epoch.first:.1f} s of them for its first batch, while "
            "workers started: set persistent_workers=True"
        )
    if last.share < _FINE and last.stages["copy"] < 0.5 * (last.waited + last.away):
        return "the loop hardly waits: nothing to change"
    each = last.waited / last.batches
    if each < _SHORT:
        return f"waited {last.share:.0%} of the time, but {1e6 * each:.0f} us a batch: nothing to change"
    total = sum(last.stages.values())
    if not total:
        share = f"waited {last.share:.0%} of the time"
        return f"{share}; what workers do for single rows is not measured, only for batches"
    stage = _culprit(last, total)
    return (
        f"waited {last.share:.0%} of the time, {last.stages[stage] / total:.0%} of the work is {stage}: "
        f"{_advice(stage, last, setting)}"
    )


def _is_starting(epoch: Numbers) -> bool:
    return epoch.share >= _FINE and epoch.first > _STARTING * epoch.waited


def _culprit(found: Numbers, total: float) -> str:
    """The stage that took most of the work. Rows that travel as long as they are made should not travel."""
    most = max(found.stages, key=lambda name: found.stages[name])
    travels = found.stages["hand-over"]
    return "hand-over" if travels > total / 3 and found.stages[most] < 1.5 * travels else most


def _advice(stage: str, found: Numbers, setting: Setting) -> str:
    if stage == "gather" and setting.num_threads:
        if setting.num_threads < setting.num_cpus - 1:
            return f"raise num_workers from {setting.num_threads}, or read fewer columns"
        return f"threads gather on all {setting.num_cpus} processors already: read fewer columns"
    if stage == "gather" and not setting.num_workers:
        return "set num_workers=1 or 2, so that rows are gathered beside the loop, or read fewer columns"
    if stage == "copy":
        return _SMALLER if setting.pins else f"set pin_memory=True and use yoga.to_device; {_SMALLER}"
    return _ADVICE.get(stage) or _more_workers(stage, found, setting)


_SMALLER = "send smaller types (uint8, bfloat16) and convert them on the device"
_ADVICE = {
    "download": (
        "raise cache_bytes so that files stay, use shuffle='block', which reads file by file, or "
        "download all before, with fetch(download=True)"
    ),
    "disk": (
        "use shuffle='block', which reads files in sequence, read fewer columns, or keep the data on "
        "a faster disk"
    ),
    "pin": "set pin_memory=False or make smaller batches: pinning costs more here than it saves",
    "hand-over": (
        "lower num_workers, to 0 if rows come from a cache, or return fewer, larger tensors in a batch"
    ),
    "asked": "the sampler takes long to choose rows: let it choose those of a whole epoch at once",
}
_CHEAPER = {
    "decode": "decode to smaller images (size=), or cache them decoded",
    "collate": "use torch's collate_fn, or cache rows whose shapes are equal",
    "transform": "cache what the dataset makes, with storage.cacheable",
}


def _more_workers(stage: str, found: Numbers, setting: Setting) -> str:
    """Work that more processes share, if there are processors for them; else it is made cheaper."""
    away = found.away or found.waited / 20
    wanted = ceil(sum(found.stages.values()) / away) if away else setting.num_workers + 1
    wanted = min(setting.num_cpus, max(setting.num_workers + 1, wanted))
    if setting.num_workers < wanted:
        return f"raise num_workers from {setting.num_workers} to {wanted}"
    cheaper = _CHEAPER.get(stage, "read fewer columns, or larger batches")
    return f"{setting.num_workers} workers for {setting.num_cpus} processors are enough: {cheaper}"
