"""Seconds by stage -> what the loop waits for, and the setting to change, in words."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from .numbers import Numbers

__all__ = ["Setting", "verdict"]

_FEW = 10  # batches that say nothing yet
_FINE = 0.05  # of the time
_SHORT = 1e-4  # seconds a batch: no setting makes them much shorter
_STARTING = 0.5  # of the waiting of an epoch, for its first batch


class Setting(NamedTuple):
    """What a loader is set to.

    Attributes:
        num_workers: processes that make batches.
        num_cpus: that this process may use.
        is_persistent: workers live from epoch to epoch.
        pins: batches come in pinned memory.
    """

    num_workers: int
    num_cpus: int
    is_persistent: bool
    pins: bool


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
