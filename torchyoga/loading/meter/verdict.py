"""Seconds by stage -> what the loop waits for, and the setting to change, in words."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from .numbers import Numbers

__all__ = ["Setting", "verdict"]

_FEW = 10  # batches that say nothing yet
_FINE = 0.05  # of the time
_STARTING = 0.5  # of the waiting, in one batch


class Setting(NamedTuple):
    """What a loader is set to.

    Attributes:
        num_workers: processes that make batches.
        num_cpus: that this process may use.
        is_persistent: workers live from epoch to epoch.
        pins: batches come in pinned memory.
        reads_ahead: a thread reads ahead, without workers.
    """

    num_workers: int
    num_cpus: int
    is_persistent: bool
    pins: bool
    reads_ahead: bool


def verdict(found: Numbers, setting: Setting) -> str:
    """What the loop waits for most, and the setting to change.

    Args:
        found: of the last batches.
        setting: of the loader.
    """
    if found.batches < _FEW:
        return f"{found.batches} batches say nothing yet"
    total = found.waited + found.away
    copied = found.stages["copy"]
    if copied > 0.5 * total and copied > 0.5 * found.waited:
        return _said("copy", found, setting)
    if found.share < _FINE:
        return "the loop hardly waits: nothing to change"
    if setting.num_workers and not setting.is_persistent and found.first > _STARTING * found.waited:
        return (
            f"of {found.waited:.1f} s waited, {found.first:.1f} s were for the first batch, while workers start: "
            "set persistent_workers=True"
        )
    return _said(max(found.stages, key=lambda name: found.stages[name]), found, setting)


def _said(stage: str, found: Numbers, setting: Setting) -> str:
    worked = sum(found.stages.values()) or 1.0
    begin = f"waited {found.share:.0%} of the time, {found.stages[stage] / worked:.0%} of the work is {stage}: "
    return begin + _advice(stage, found, setting)


def _advice(stage: str, found: Numbers, setting: Setting) -> str:
    if stage == "download":
        return (
            "raise cache_bytes so that files stay, use shuffle='block', which reads file by file, or "
            "fetch(download=True) before"
        )
    if stage == "disk":
        return (
            "use shuffle='block', which reads files in sequence, fewer columns (ref.columns), a faster disk, or "
            "more memory, if all of it is read again and again"
        )
    if stage == "copy":
        kept = "send smaller types (uint8, bfloat16) and convert them on the device"
        return kept if setting.pins else "set pin_memory=True and use yoga.to_device, or " + kept
    if stage == "pin":
        return "set pin_memory=False, or make smaller batches: pinning costs more here than it saves"
    if stage == "hand-over":
        return "use fewer num_workers, or none if rows come from a cache; return fewer, larger tensors in a batch"
    if stage == "asked":
        return "the sampler takes long to choose rows: make its choice for a whole epoch at once"
    if stage == "gather" and not setting.num_workers:
        return (
            "set num_workers=1 or 2, so that rows are gathered beside the loop, or read fewer columns "
            "(ref.columns)"
        )
    return _more_workers(stage, found, setting)


def _more_workers(stage: str, found: Numbers, setting: Setting) -> str:
    """Work that more processes share, if there are CPUs for them; else it is done once, or made cheaper."""
    away = found.away or found.waited / 20
    wanted = min(setting.num_cpus, max(setting.num_workers + 1, ceil(sum(found.stages.values()) / away)))
    if setting.num_workers < wanted:
        return f"raise num_workers from {setting.num_workers} to {wanted}"
    once = "storage.cacheable keeps what the dataset makes, so that it is made once"
    cheaper = {"decode": "decode smaller images (size=), or keep them decoded", "collate": "a collate_fn of torch's"}
    return (
        f"{setting.num_workers} workers keep all {setting.num_cpus} CPUs busy; "
        f"{cheaper.get(stage, once)}"
    )
