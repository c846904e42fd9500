"""How long a process waits before a request, so that many that start at once do not come at once.

Pauses depend on a number that is drawn by the caller.
So the functions are arithmetic, and benchmarks/scale.py simulates ten thousand ranks with these very ones.
Where a store answers that it is busy, any moment up to the longest pause is as likely ("full jitter"; M.
Brooker, "Exponential backoff and jitter", AWS, 2015), so that requests come evenly. Where it does not answer,
a pause is at least half as long as it may be, because an outage takes a while.
"""

from __future__ import annotations

import os
import sys

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 8.0  # seconds between two tries
_FIRST_REQUESTS = 5000  # a second: S3 takes 5,500 below a prefix
_LONGEST_SPREAD = 10.0  # seconds
_MOST_RANKS = 2**20


def pause_after(tries: int, chance: float, is_busy: bool) -> float:
    """Seconds to wait after so many failed tries.

    Args:
        tries: from 1 on.
        chance: drawn evenly from 0 to 1.
        is_busy: the store has answered that it gets too many requests.

    Example:
        >>> [pause_after(tries, 1.0, True) for tries in range(1, 6)]
        [0.2, 0.6, 1.8, 5.4, 8.0]
        >>> pause_after(5, 0.0, True), pause_after(5, 0.0, False)
        (0.0, 4.0)
    """
    longest: float = min(_LONGEST_WAIT, round(_FIRST_WAIT * 3 ** min(tries - 1, 40), 9))
    return longest * (chance if is_busy else 0.5 + chance / 2)


def first_pause(num_processes: int, chance: float) -> float:
    """Seconds to wait before the first request to a store, if so many processes start at once.

    They come at 5,000 a second, in ten seconds at most: 64 processes in 13 ms, 10,000 in two seconds.

    Example:
        >>> first_pause(1, 0.5), first_pause(10_000, 0.5), first_pause(10**6, 1.0)
        (0.0, 1.0, 10.0)
    """
    if num_processes <= 1:
        return 0.0
    return chance * min(_LONGEST_SPREAD, num_processes / _FIRST_REQUESTS)


def num_starting() -> int:
    """The ranks of this job, as torch.distributed or the launcher says; 1 if neither does."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        text = os.environ.get(name, "")
        if text.isdecimal() and len(text) < 10:
            return min(max(int(text), 1), _MOST_RANKS)
    return 1
