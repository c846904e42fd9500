"""Processors and memory that this process may use, and the folders of its control group."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_OF_FIRST = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_OF_SECOND = "memory.max", "memory.current", "inactive_file"


def usable_cpus(root: Path = Path("/")) -> int:
    """The CPUs that this process can keep busy, by its affinity and the quotas of its control group.

    Args:
        root: where /proc and /sys lie.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, _quota_of_group(root)))


@cache
def _quota_of_group(root: Path) -> int:
    return min((_quota(folder, is_second) for folder, is_second in folders("cpu", root)), default=sys.maxsize)


def _quota(folder: Path, is_second: bool) -> int:
    """The CPUs whose time a control group is given, rounded up."""
    with suppress(OSError, ValueError, ZeroDivisionError):  # it has none
        files = ["cpu.max"] if is_second else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        quota, period = " ".join((folder / file).read_text() for file in files).split()
        if int(quota) > 0:
            return math.ceil(int(quota) / int(period))
    return sys.maxsize


def cpu_delay() -> float:
    """Seconds that this thread wanted a CPU and had none; 0 if that is unknown."""
    path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
    with suppress(OSError, ValueError, IndexError), open(path) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """The folders of the control group of this process and of those above it; True for version 2.

    Args:
        controller: that they are about, `cpu` or `memory`.
        root: where /proc and /sys lie.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        for base in [base for base in bases if base.is_dir()][:1]:
            # In a container, the path may be that outside of it.
            inner = base / name.strip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(base) and folder.is_dir():
                    yield folder, not controllers


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, as its control group and the machine say; None if neither does.

    Files that the kernel keeps in memory, though no process uses them, count as free.
    """
    found = []
    with suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        found += [int(kib) * 1024 for kib in re.findall(r"^MemAvailable: +(\d+) kB", text, re.MULTILINE)]
    for folder, is_second in folders("memory", root):
        limit, used, kept = _OF_SECOND if is_second else _OF_FIRST
        with suppress(OSError, ValueError):  # "max", where there is no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            stat = re.search(rf"^{kept} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
            found.append(max(0, left + (int(stat[1]) if stat else 0)))
    return min(found, default=None)
