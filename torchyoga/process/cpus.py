"""How many processors there are for this process."""

from __future__ import annotations

import os

__all__ = ["num_cpus"]


def num_cpus() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
