"""Numbers of a meter, and the setting of its loader -> in words, what is waited for and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .numbers import Numbers, seconds_text
from .pace import Costs, start_seconds
from .threads import Holder

# What to write where rows are dear, however they are loaded.
KEPT = (
    "make the rows once, and read them from files: ref = yoga.Storage('storage').submit(dataset, 'rows', '1')"
)
_FEW, _FEW_SECONDS = 10, 1.0  # batches, or two of them that took so long: fewer say nothing yet
_IDLE = 0.5  # of the time of making: rows mostly wait
_FINE = 0.05  # of the time
_SHORT = 1e-4  # seconds a batch: no setting makes them much shorter
_MANY = 100  # epochs
_AMPLE = 1.5  # times the batches that the longest wait asks for
_MOST_AHEAD = 32  # batches of a worker
_SHARED = ("disk", "download", "read", "transform", "decode", "collate")  # work that workers divide
_WORDS = {
    "sampler": "the sampler",
    "disk": "reading from disk",
    "download": "downloads",
    "read": "reading rows",
    "transform": "the dataset's own code",
    "decode": "decoding",
    "collate": "collating batches",
    "start-up": "starting workers",
    "transfer": "the way of batches from workers",
    "pin": "pinning memory",
    "copy": "copying to the device",
}


@dataclass(frozen=True)
class Setting:
    """The settings of a loader.

    Attributes:
        num_workers: processes that make batches.
        num_cpus: that this process may use.
        is_persistent: workers live from epoch to epoch.
        pins: batches come in pinned memory.
        num_threads: threads that make batches, in place of processes; 0 if there are none.
        are_threads: a larger `num_workers` means more threads, not processes.
        is_ahead: without workers, a thread makes batches while the loop computes.
        can_pin: there is an accelerator, for which memory can be pinned.
        prefetch: batches that each worker makes ahead, or the thread.
        num_batches: of an epoch; 0 if they are not known.
        start_method: of worker processes.
        is_block: shuffled by files, or not at all.
        is_stored: the rows come from a DataRef.
        is_batched: the dataset makes the rows of a batch in one call, its `__getitems__`.
        num_columns: of a row; 0 if they are not known.
        collates: by a function of the user's.
    """

    num_workers: int
    num_cpus: int
    is_persistent: bool = False
    pins: bool = False
    num_threads: int = 0
    are_threads: bool = False
    is_ahead: bool = False
    can_pin: bool = False
    prefetch: int = 2
    num_batches: int = 0
    start_method: str = "fork"
    is_block: bool = False
    is_stored: bool = False
    is_batched: bool = False
    num_columns: int = 0
    collates: bool = False

    @property
    def number(self) -> int:
        """Workers, of either kind."""
        return self.num_workers or self.num_threads


def _made(last: Numbers) -> float:
    """Seconds of the work that workers divide."""
    return sum(last.stages[name] for name in _SHARED)


def _costs_of(last: Numbers, setting: Setting) -> Costs:
    """The seconds of a batch that the arithmetic of workers needs."""
    batches, epochs = max(1, last.batches), max(1, last.epochs)
    started = last.stages["start-up"]
    away = last.away / max(1, last.batches - last.epochs) if last.batches > last.epochs else last.away
    cpu, made = last.cpu / batches, _made(last) / batches
    # A CPU that is not there makes no row dearer: too many workers may be why.
    make = min(made, max(cpu, made - last.delayed / batches))
    return Costs(
        make=make,
        cpu=cpu,
        loop=away,
        loop_cpu=last.loop_cpu / batches,
        transfer=last.stages["transfer"] / batches or None,
        batch_bytes=last.batch_bytes,
        start=started / epochs if started else start_seconds(setting.start_method),
        started=setting.num_workers if started else 0,
        batches=max(setting.num_batches, last.batches / last.epochs) if last.epochs else math.inf,
        cpus=setting.num_cpus,
        is_ahead=setting.is_ahead,
        are_threads=setting.are_threads or bool(setting.num_threads),
        waits=last.most == "transform" and make - cpu > _IDLE * make > 0,
    )


def verdict(last: Numbers, setting: Setting, holders: Sequence[Holder] = ()) -> str:
    """The stage that the loop waits for most, and the setting to change.

    Args:
        last: of the last batches, over epochs.
        setting: of the loader.
        holders: threads that hold the interpreter's lock.
    """
    costs, started = _costs_of(last, setting), last.stages["start-up"]
    # With workers the wait for the first batch is their start, which all batches of an epoch share, those to
    # come as well: of a long epoch that has just begun it says little.
    first = last.first if setting.num_workers else 0.0
    starts = first / max(1, last.epochs) / costs.batches
    later = last.batches - last.epochs if setting.num_workers else last.batches
    wait = max(0.0, last.waited - first) / max(1, later) + starts
    share, of = last.share, "of the time"
    if setting.num_workers:
        share, of = wait / (wait + costs.loop) if wait else 0.0, "of the time of a whole epoch"
    waits = f"waited {share:.1%} {of}"
    if holders:
        return f"{waits}; {_of_holders(holders)}"
    time = last.waited + last.away
    if last.batches < 2 or (last.batches < _FEW and time < _FEW_SECONDS):
        plural = "batch says" if last.batches == 1 else "batches say"
        return f"{last.batches} {plural} nothing yet; ask again after {_FEW}"
    if share < _FINE and last.stages["copy"] < 0.5 * time:
        own = f": its own step takes {seconds_text(costs.loop)} for a batch" if costs.loop else ""
        return f"the loop hardly waits ({share:.1%} {of}){own}; nothing to change in the loader"
    if wait < _SHORT:
        return f"{waits}, but {seconds_text(wait)} a batch: nothing to change"
    total = sum(last.stages.values())
    if setting.num_workers and total <= started + last.stages["sampler"]:
        return f"{waits}; what this loader's workers do is not measured"
    stage = last.most
    cause = f"{waits}, most of the work is {_WORDS[stage]} ({stage}, {last.stages[stage] / total:.0%})"
    return f"{cause}: {_change(last, setting, costs, wait, starts)}"


def _of_holders(holders: Sequence[Holder]) -> str:
    one = holders[0]
    more = f", and {len(holders) - 1} more," if len(holders) > 1 else ""
    return (
        f"the Python thread {one.name!r} (in {one.where}){more} holds the interpreter's lock, for which the "
        f"loop waits {seconds_text(one.late)} each time: move its work to a process (multiprocessing.Process)"
    )


def _change(last: Numbers, setting: Setting, costs: Costs, wait: float, starts: float) -> str:
    """The setting to change."""
    now = setting.number
    if last.stages["copy"] > 0.5 * sum(last.stages.values()):
        return _of_copies(setting)
    lasts = setting.is_persistent or not setting.num_workers
    advice = costs.advice(now, lasts, max(1, last.epochs), wait)
    starting = setting.num_workers and not setting.is_persistent and starts > 0.5 * wait
    if starting and last.epochs <= 1:
        fewer = "" if advice is None else f", else num_workers={advice.num_workers}"
        return f"if there are more epochs, set persistent_workers=True, so that workers start once{fewer}"
    is_divided = last.most != "download"  # which threads do ahead of any number of workers
    if advice is not None and is_divided:
        if advice.num_workers == now:
            return "set persistent_workers=True, so that workers start once, not in each epoch"
        word = "raise" if advice.num_workers > now else "lower"
        is_so = setting.is_persistent and setting.num_workers
        also = " and set persistent_workers=True" if advice.is_persistent and not is_so else ""
        beyond = ": rows wait, so workers need no CPU each, though torch warns"
        beyond = beyond if advice.num_workers > setting.num_cpus else ""
        return f"{word} num_workers from {now} to {advice.num_workers}{also}{beyond}"
    if not now and last.epochs <= 1 and is_divided:
        later = costs.advice(0, is_persistent=True, epochs=_MANY, waited=wait)
        if later is not None:
            workers = f"raise num_workers from 0 to {later.num_workers} and set persistent_workers=True"
            return f"if there are more epochs, {workers}"
    ahead = _ahead(last, setting, costs)
    if ahead:
        return ahead
    stage = last.most
    return f"{_enough(last, setting, costs)}{_cheaper(stage, setting, costs.waits)}"


def _ahead(last: Numbers, setting: Setting, costs: Costs) -> str:
    """A larger `prefetch_factor`, where the makers are fast enough, but some batches take long."""
    makers = setting.number or int(setting.is_ahead)
    if not makers or costs.make / makers > 0.8 * costs.loop:
        return ""
    if last.waits.bursts < 0.5 * last.waited or _lacks_cpus(last):
        return ""
    wanted = min(_MOST_AHEAD, setting.prefetch + math.ceil(_AMPLE * last.waits.burst / (makers * costs.loop)))
    if wanted <= setting.prefetch:
        return ""
    return (
        f"raise prefetch_factor from {setting.prefetch} to {wanted}: single batches take long to make, and "
        "others can be ready meanwhile"
    )


def _lacks_cpus(last: Numbers) -> bool:
    """True if a good part of the time of making was spent waiting for a CPU."""
    return last.delayed > 0.3 * _made(last)


def _enough(last: Numbers, setting: Setting, costs: Costs) -> str:
    """Why more workers are not advised."""
    number, cpus = setting.number, setting.num_cpus
    if _lacks_cpus(last):
        who = "workers" if number else "the loop"
        share = min(1.0, last.delayed / (_made(last) or 1.0))
        return f"{who} waited for a CPU, of which there are {cpus}, {share:.0%} of that time; "
    kind = "thread" if setting.num_threads or setting.are_threads else "worker"
    if number and number >= cpus - (kind == "thread"):
        if costs.waits and kind == "worker":  # threads only copy rows
            return f"the workers ({number}) wait for something more than they compute; "
        return f"{number} {kind}{'s are' if number > 1 else ' is'} enough for {cpus} CPUs; "
    if costs.cpu + costs.loop_cpu > 0.8 * cpus * costs.step(number):
        return f"all {cpus} CPUs are busy; "
    return ""


def _of_copies(setting: Setting) -> str:
    smaller = "send smaller types (uint8, bfloat16) and convert them on the device"
    return f"set pin_memory=True, or {smaller}" if setting.can_pin and not setting.pins else smaller


def _cheaper(stage: str, setting: Setting, is_idle: bool) -> str:
    """How the work of a stage becomes less; `is_idle` if it waits more than it computes."""
    fewer = [] if setting.num_columns == 1 else ["read fewer columns"]
    block = [] if setting.is_block else ["use shuffle='block', which reads file by file"]
    ways = {
        "sampler": ["let the sampler choose the rows of a whole epoch at once"],
        "disk": [*block, *fewer, "keep the data on a faster disk"],
        "download": ["raise cache_bytes so that files stay", *block, "fetch(download=True) before the loop"],
        "read": [*fewer, "store smaller types (uint8, float16)"],
        "transform": _of_code(setting, is_idle),
        "decode": ["store smaller images (yoga.codecs.jpeg(short_side=))", "store them decoded"],
        "collate": _of_collating(setting),
        "start-up": ["start fewer workers"],
        "transfer": ["return fewer, larger tensors in a batch", "smaller types (uint8, float16)"],
        "pin": ["make smaller batches", "set pin_memory=False"],
    }
    return ", or ".join(ways[stage])


def _of_code(setting: Setting, is_idle: bool) -> list[str]:
    ways = []
    if is_idle and not setting.is_batched:
        ways.append(
            "fetch the rows of a batch in one request: torch calls dataset.__getitems__(row numbers) if it "
            "is there"
        )
    if not setting.is_stored:
        ways.append(KEPT)
    return ways or ["do less for each row"]


def _of_collating(setting: Setting) -> list[str]:
    if setting.collates:
        return ["make collate_fn cheaper, such as by torch.stack over whole columns"]
    return ["return each row as few tensors or arrays, not as lists of numbers", "use a smaller batch"]
