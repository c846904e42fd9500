"""Seconds that a meter counted -> in words, what the training loop waits for, and the setting to change.

The doctor repeats it, so that they cannot differ.
It advises only what makes the wait a fifth shorter at least. More workers than CPUs only take turns where
batches are computed; where rows wait for a disk or a server, a few workers for each CPU wait at once.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

# What to write where rows are dear, however they are loaded.
KEPT = (
    "make the rows once, and read them from files: ref = yoga.Storage('storage').submit(dataset, 'rows', '1')"
)
_AS_GOOD = 1 / 0.95  # times the seconds of the best number of workers
_WORTH = 0.8  # of the wait: what is left of it, at most, where a change is worth it
_HOP = 2e-4  # seconds in which a batch comes from a worker, however small it is
_BYTES = 1.2e9  # a second, that cross to another process
_WAITING, _MOST_WAITING = 4, 64  # workers that wait, for each CPU and in all
_STARTS = 4.0  # seconds in which workers start that import torch again
_FEW, _FEW_SECONDS = 10, 1.0  # batches, or two of them that took so long: fewer say nothing yet
_IDLE = 0.5  # of the time of making: rows mostly wait
_FINE = 0.05  # of the time
_SHORT = 1e-4  # seconds a batch: no setting makes them much shorter
_MUCH = 0.05  # of all work: what is less is not named
_BURST, _BURSTS = 2e-3, 4.0  # seconds, and times the median, that a few batches are waited for
_AMPLE = 1.5  # times the batches that such a wait asks for
_MOST_AHEAD = 32  # batches of a worker
_SHARED = ("disk", "download", "read", "transform", "decode", "collate")  # work that workers divide
BLOCK, FEWER = "use shuffle='block', which reads file by file", "read fewer columns"
AT_ONCE = (
    "fetch the rows of a batch in one request: torch calls dataset.__getitems__(row numbers) if it is there"
)
COLLATE_FN = "make collate_fn cheaper, such as by torch.stack over whole columns"
FEW_LEAVES = "return each row as few tensors or arrays, not as lists of numbers"
SMALLER, PIN = "use a smaller batch", "set pin_memory=True"
# Of each stage: its name in a sentence, and how its work becomes less.
_STAGES = {
    "sampler": ("the sampler", ["let the sampler choose the rows of a whole epoch at once"]),
    "disk": ("reading from disk", [BLOCK, FEWER, "keep the data on a faster disk"]),
    "download": (
        "downloads",
        ["raise cache_bytes so that files stay", BLOCK, "fetch(download=True) before the loop"],
    ),
    "read": ("reading rows", [FEWER, "store smaller types (uint8, float16)"]),
    "transform": ("the dataset's own code", [AT_ONCE, KEPT]),
    "decode": ("decoding", ["store smaller images (yoga.codecs.jpeg(short_side=))", "store them decoded"]),
    "collate": ("collating batches", [COLLATE_FN, FEW_LEAVES, SMALLER]),
    "start-up": ("starting workers", ["start fewer workers"]),
    "transfer": (
        "the way of batches from workers",
        ["return fewer, larger tensors in a batch", "smaller types (uint8, float16)"],
    ),
    "pin": ("pinning memory", ["make smaller batches", "set pin_memory=False"]),
    "copy": (
        "copying to the device",
        [PIN, "send smaller types (uint8, bfloat16) and convert them on the device"],
    ),
}


class Waits(NamedTuple):
    """How long single batches were waited for, in seconds.

    Attributes:
        p50, p99: half of the batches, and 99 of 100, came within this.
        longest: the longest wait.
        epoch, step: the batch that it was for, counted from 0 as `enumerate` does.
    """

    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    epoch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return (
            f"p50 {seconds_text(self.p50)}, p99 {seconds_text(self.p99)}, longest "
            f"{seconds_text(self.longest)} at step {self.step} of epoch {self.epoch}"
        )


class Numbers(NamedTuple):
    """Seconds that a loop waited and was away, and that each stage of the loader took.

    Attributes:
        batches: the number of delivered batches.
        waited: seconds that the loop spent in `next`.
        away: seconds that the loop spent between two calls of `next`.
        first: seconds of waiting for the first batch of each epoch, while workers start.
        stages: seconds of work by stage, over all threads and worker processes.
        waits: the waits for single batches.
        epochs: the number of epochs that began.
        cpu: CPU seconds of making the batches.
        loop_cpu: CPU seconds of this process for all else.
        delayed: seconds in which threads or processes that make batches had to wait for a CPU.
        batch_bytes: the bytes of a batch.
    """

    batches: int
    waited: float
    away: float
    first: float
    stages: dict[str, float]
    waits: Waits = Waits()
    epochs: int = 1
    cpu: float = 0.0
    loop_cpu: float = 0.0
    delayed: float = 0.0
    batch_bytes: int = 0

    @property
    def share(self) -> float:
        """The share of its time that the loop waited, in 0..1."""
        total = self.waited + self.away
        return self.waited / total if total else 0.0

    @property
    def most(self) -> str:
        """The stage that took most of the work."""
        return max(self.stages, key=lambda name: self.stages[name])

    @property
    def made(self) -> float:
        """Seconds of the work that workers divide."""
        return sum(self.stages[name] for name in _SHARED)

    def steady(self, are_workers: bool) -> float:
        """Seconds a batch was waited for; with workers, without the first, which waits for their start."""
        if not are_workers:
            return self.waited / max(1, self.batches)
        return max(0.0, self.waited - self.first) / max(1, self.batches - self.epochs)

    def flat(self) -> dict[str, float]:
        """All of it by name."""
        waits, numbers = self.waits._asdict(), self._asdict()
        del numbers["stages"], numbers["waits"], numbers["epochs"], numbers["batch_bytes"]
        named = {"longest_epoch": float(waits.pop("epoch")), "longest_step": float(waits.pop("step"))}
        numbers |= {"batches": float(self.batches), "share": self.share}
        return {**numbers, **waits, **named, **self.stages}

    def __str__(self) -> str:
        total = sum(self.stages.values()) or 1.0
        shares = [(seconds / total, name) for name, seconds in self.stages.items()]
        most = sorted((one for one in shares if one[0] >= _MUCH), reverse=True)
        shown = ", ".join(f"{name} {share:.0%}" for share, name in most[:3])
        did = f", worked on {shown}" if shown else ""
        each = f" ({self.waits})" if self.waits.longest else ""
        return f"{self.batches} batches, waited {self.waited:.2f} s, {self.share:.1%} of the time{each}{did}"


def seconds_text(seconds: float) -> str:
    """Such as 1.2 s, 35 ms or 80 us."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 us"


def most_workers(cpus: int) -> int:
    """The largest number of workers to try where rows wait more than they compute."""
    return max(cpus, min(_WAITING * cpus, _MOST_WAITING))


@dataclass(frozen=True)
class Costs:
    """Seconds of a batch, on average.

    Attributes:
        make: in which one worker, or this process, makes it.
        cpu: of CPUs for that.
        loop: that the loop computes with it; 0 if it is not known.
        loop_cpu: of CPUs for that.
        transfer: in which it comes from a worker; None if there was no worker yet.
        batch_bytes: of the batch.
        cpus: that may be used.
        is_ahead: without workers, a thread makes batches while the loop computes.
        are_threads: `num_workers` means threads.
        waits: making it is mostly waiting, for what is neither a CPU nor this machine's disk.
    """

    make: float
    cpu: float
    loop: float = 0.0
    loop_cpu: float = 0.0
    transfer: float | None = None
    batch_bytes: int = 0
    cpus: int = 1
    is_ahead: bool = False
    are_threads: bool = False
    waits: bool = False

    def step(self, num_workers: int) -> float:
        """Seconds from one batch to the next with so many workers, once they have started."""
        both = (self.cpu + self.loop_cpu) / self.cpus
        if self.are_threads or (not num_workers and self.is_ahead):
            makers = max(1, min(num_workers, self.cpus - 1))
            return max(self.loop, self.make / makers, both)
        if not num_workers:
            return self.loop + self.make
        sent = _HOP + self.batch_bytes / _BYTES if self.transfer is None else self.transfer
        # torch's operators use one thread in a worker, so what several did here takes all of their time.
        of_one = max(self.make, self.cpu) + sent
        return max(self.loop + min(sent, _HOP), of_one / num_workers, both + sent / self.cpus)

    @property
    def most(self) -> int:
        """The largest number of workers that may be of use."""
        return most_workers(self.cpus) if self.waits and not self.are_threads else self.cpus

    @property
    def fastest(self) -> int:
        """The smallest number of workers that is as good as the best one."""
        steps = [self.step(number) for number in range(self.most + 1)]
        good = _AS_GOOD * min(steps)
        return min(number for number, seconds in enumerate(steps) if seconds <= good)

    def advice(self, current: int, waited: float) -> int | None:
        """A number of workers that shortens the wait; None if the present one is good, as far as is known.

        Args:
            current: workers now.
            waited: seconds that a batch was waited for, with its share of their start.
        """
        number, now = self.fastest, self.step(current)
        # Without workers nothing but making remains, so the whole wait is what they cost. Another number of
        # them saves only what is expected to depend on it: the rest may come of something else, unless there
        # are more of them than CPUs to compute with.
        saved, of_none = now - self.step(number), self.loop + waited - self.step(0)
        if number == 0 or (current > self.most and of_none > saved):
            number, saved = 0, of_none
        more_hands = number <= current or self.step(number) < 0.9 * now
        return number if number != current and more_hands and saved > (1 - _WORTH) * waited else None


@dataclass(frozen=True)
class Setting:
    """The settings of a loader.

    Attributes:
        num_workers: processes that make batches.
        num_cpus: that this process may use.
        is_persistent: workers live from epoch to epoch.
        num_threads: threads that make batches, in place of processes; 0 if there are none.
        are_threads: a larger `num_workers` means more threads, not processes.
        is_ahead: without workers, a thread makes batches while the loop computes.
        prefetch: batches that each worker makes ahead, or the thread.
        num_batches: of an epoch; 0 if they are not known.
        asked: `num_workers` as the user wrote it; there may be fewer threads.
        is_auto: the loader chooses the number of workers.
        is_so: changes that would change nothing.
    """

    num_workers: int
    num_cpus: int
    is_persistent: bool = False
    num_threads: int = 0
    are_threads: bool = False
    is_ahead: bool = False
    prefetch: int = 2
    num_batches: int = 0
    asked: int = 0
    is_auto: bool = False
    is_so: Set[str] = frozenset()

    @property
    def number(self) -> int:
        """Workers, of either kind."""
        return self.num_workers or self.num_threads


def costs_of(last: Numbers, setting: Setting) -> Costs:
    """The seconds of a batch that the arithmetic of workers needs."""
    batches = max(1, last.batches)
    away = last.away / max(1, last.batches - last.epochs) if last.batches > last.epochs else last.away
    cpu, made = last.cpu / batches, last.made / batches
    # A CPU that is not there makes no row dearer: too many workers may be why.
    make = min(made, max(cpu, made - last.delayed / batches))
    return Costs(
        make=make,
        cpu=cpu,
        loop=away,
        loop_cpu=last.loop_cpu / batches,
        transfer=last.stages["transfer"] / batches or None,
        batch_bytes=last.batch_bytes,
        cpus=setting.num_cpus,
        is_ahead=setting.is_ahead,
        are_threads=setting.are_threads or bool(setting.num_threads),
        waits=last.most == "transform" and make - cpu > _IDLE * make > 0,
    )


class Verdict(NamedTuple):
    """What the loop waits for most and the setting to change; and the number of workers that it advises.

    The doctor repeats it of a loader that has a meter, so that they never contradict each other.
    """

    text: str
    num_workers: int | None = None
    is_sure: bool = True  # False as long as too few batches were counted


def verdict_of(last: Numbers, setting: Setting) -> Verdict:
    """The stage that the loop waits for most, and the setting to change.

    Args:
        last: of the last batches, over epochs.
        setting: of the loader.
    """
    costs = costs_of(last, setting)
    wait, starts, share, of = last.steady(bool(setting.num_workers)), 0.0, last.share, "of the time"
    if setting.num_workers:
        # The wait for the first batch is the start of workers, which all batches of an epoch share, those to
        # come as well: of a long epoch that has just begun it says little.
        starts = last.first / max(1, last.epochs) / _batches(last, setting)
        wait += starts
        share, of = wait / (wait + costs.loop) if wait else 0.0, "of the time of a whole epoch"
    waits, time = f"waited {share:.1%} {of}", last.waited + last.away
    if last.batches < 2 or (last.batches < _FEW and time < _FEW_SECONDS):
        plural = "batch says" if last.batches == 1 else "batches say"
        return Verdict(f"{last.batches} {plural} nothing yet; ask again after {_FEW}", is_sure=False)
    if share < _FINE and last.stages["copy"] < 0.5 * time:
        own = f": its own step takes {seconds_text(costs.loop)} for a batch" if costs.loop else ""
        return Verdict(f"the loop hardly waits ({share:.1%} {of}){own}; nothing to change in the loader")
    if wait < _SHORT:
        return Verdict(f"{waits}, but {seconds_text(wait)} a batch: nothing to change")
    total, stage = sum(last.stages.values()), last.most
    cause = f"most of the work is {_STAGES[stage][0]} ({stage}, {last.stages[stage] / total:.0%})"
    if last.stages["copy"] > 0.5 * total:
        return Verdict(f"{waits}, {cause}: {_cheaper('copy', setting, costs.waits)}")
    change, number = _of_workers(last, setting, costs, wait, starts)
    other = _enough(last, setting, costs) + _cheaper(stage, setting, costs.waits)
    change = change or _ahead(last, setting, costs) or other
    return Verdict(f"{waits}, {cause}: {change}", number)


def _batches(last: Numbers, setting: Setting) -> float:
    """The batches of an epoch."""
    return max(setting.num_batches, last.batches / last.epochs) if last.epochs else math.inf


def _of_workers(
    last: Numbers, setting: Setting, costs: Costs, wait: float, starts: float
) -> tuple[str, int | None]:
    """Another number of workers, in words and as a number, or longer lives; empty if neither helps."""
    now, number = setting.asked or setting.number, costs.advice(setting.number, wait)
    condition = "if there are more epochs, " if last.epochs <= 1 else ""
    if setting.num_workers and not setting.is_persistent and starts > 0.5 * wait and number != 0:
        return f"{condition}set persistent_workers=True, so that workers start once, not in each epoch", None
    # Threads download ahead of any number of workers.
    if number is None or setting.is_auto or last.most == "download":
        return "", None
    if now or wait * _batches(last, setting) > _STARTS:
        condition = ""
    word = "raise" if number > now else "lower"
    lasts = setting.is_persistent and setting.num_workers
    also = " and set persistent_workers=True" if number and not (lasts or costs.are_threads) else ""
    beyond = ": rows wait, so workers need no CPU each, though torch warns"
    beyond = beyond if number > setting.num_cpus else ""
    return f"{condition}{word} num_workers from {now} to {number}{also}{beyond}", number


def _ahead(last: Numbers, setting: Setting, costs: Costs) -> str:
    """A larger `prefetch_factor`, where the makers are fast enough, but some batches take long."""
    makers, waits = setting.number or int(setting.is_ahead), last.waits
    if not makers or costs.make / makers >= 0.8 * costs.loop:
        return ""
    is_even = waits.p99 <= max(_BURST, _BURSTS * waits.p50) or last.first > 0.5 * last.waited
    if is_even or _lacks_cpus(last):
        return ""
    wanted = min(_MOST_AHEAD, setting.prefetch + math.ceil(_AMPLE * waits.p99 / (makers * costs.loop)))
    if wanted <= setting.prefetch:
        return ""
    return (
        f"raise prefetch_factor from {setting.prefetch} to {wanted}: single batches take long to make, and "
        "others can be ready meanwhile"
    )


def _lacks_cpus(last: Numbers) -> bool:
    """True if a good part of the time of making was spent waiting for a CPU."""
    return last.delayed > 0.3 * last.made


def _enough(last: Numbers, setting: Setting, costs: Costs) -> str:
    """Why more workers are not advised."""
    number, cpus = setting.number, setting.num_cpus
    if _lacks_cpus(last):
        who = "workers" if number else "the loop"
        share = min(1.0, last.delayed / (last.made or 1.0))
        return f"{who} waited for a CPU, of which there are {cpus}, {share:.0%} of that time; "
    kind = "thread" if setting.num_threads or setting.are_threads else "worker"
    if number and number >= cpus - (kind == "thread"):
        if costs.waits and kind == "worker":  # threads only copy rows
            return f"the workers ({number}) wait for something more than they compute; "
        return f"{number} {kind}{'s are' if number > 1 else ' is'} enough for {cpus} CPUs; "
    if costs.cpu + costs.loop_cpu > 0.8 * cpus * costs.step(number):
        return f"all {cpus} CPUs are busy; "
    return ""


def _cheaper(stage: str, setting: Setting, is_idle: bool) -> str:
    """How the work of a stage becomes less; `is_idle` if it waits more than it computes."""
    left_out = setting.is_so if is_idle else {AT_ONCE, *setting.is_so}
    return ", or ".join(way for way in _STAGES[stage][1] if way not in left_out) or "do less for each row"
