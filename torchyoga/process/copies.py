"""Copies of much memory by one thread.

torch divides a large copy among a team of threads, of which each waits for all others. On busy cores a
member that has no core holds up the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache

from .lazy import torch

ALONE_ELEMENTS = 2**15  # torch divides copies of more among threads


@lru_cache(maxsize=1)
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads torch divides work of this thread among: what tells it, and what sets it.

    None if torch's OpenMP cannot be asked. `torch.set_num_threads` would also set it for threads to come.
    """
    try:
        library = ctypes.PyDLL(torch._C.__file__)
        asked, say = library.omp_get_max_threads, library.omp_set_num_threads
    except (AttributeError, OSError):  # torch has another pool of threads, or its symbols are not to be seen
        return None
    before = torch.get_num_threads()
    say(1)
    is_heard = torch.get_num_threads() == 1
    say(before)
    return (asked, say) if is_heard else None


def can_be_undivided() -> bool:
    """True if `undivided` has an effect."""
    return _openmp() is not None


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Within it torch does the work of this thread on this thread only, if that can be had."""
    openmp = _openmp()
    if openmp is None:
        yield
        return
    asked, say = openmp
    before = asked()
    try:
        say(1)
        yield
    finally:
        say(before)
