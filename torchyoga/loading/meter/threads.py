"""Python threads of this process that hold the interpreter's lock while the training loop wants it.

A thread that computes in Python gives the lock away only every few milliseconds
(`sys.getswitchinterval()`). A thread that takes CPU time may have released it, as NumPy and torch do, so it
is tried: the loop sleeps for a moment and measures how late it gets the lock back, less the time in which the
kernel had no CPU for it. Linux only, since it needs the CPU seconds of single threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from statistics import median
from typing import NamedTuple

from ...process.control_group import scheduled

_SOON, _LATER = 0.25, 1.0  # seconds between two looks: a few soon, the others later
_BUSY, _PART = 0.05, 0.02  # of a CPU, which others may want, too: all threads together, and each
_NAP = 1e-3  # seconds, in which another thread can take the lock
_LATE = 0.3  # of the switch interval
_FEW, _SHARE = (
    3,
    0.3,
)  # looks that found it held, of all: on a busy machine the other thread has no CPU in some
_KEPT = 9
_OURS = "torchyoga"


class Holder(NamedTuple):
    """A thread that holds the interpreter's lock.

    Attributes:
        name: of the thread.
        where: the function that it was in, with file and line.
        late: seconds that the loop waited for the lock each time.
    """

    name: str
    where: str
    late: float


class LockWatch:
    """Looks now and then at the other Python threads."""

    def __init__(self) -> None:
        self.due = 0.0  # when it looks again, as `perf_counter` tells
        self._then = 0.0
        self._before: dict[int, float] = {}  # CPU seconds by native thread number
        self._late: deque[tuple[float, list[Holder]]] = deque(maxlen=_KEPT)

    def look(self, now: float) -> None:
        """Called by the training loop's thread."""
        passed, self._then = now - self._then, now
        self.due = now + (_SOON if len(self._late) < _KEPT else _LATER)
        if threading.active_count() < 2:
            self._before = {}
            self._late.append((0.0, []))
            return
        others = {one.native_id or 0: one for one in threading.enumerate() if _is_another(one)}
        taken = {number: scheduled(number)[0] for number in others}
        before, self._before = self._before, taken
        shares = {number: (taken[number] - before[number]) / passed for number in taken if number in before}
        busy = sorted((number for number in shares if shares[number] > _PART), key=lambda one: -shares[one])
        if sum(shares[number] for number in busy) < _BUSY:
            self._late.append((0.0, []))
            return
        frames = sys._current_frames()
        late, holders = _lateness(), []
        for number in busy:
            where = _where(frames.get(others[number].ident or 0))
            holders.append(Holder(others[number].name, where, late))
        self._late.append((late, holders))

    @property
    def holders(self) -> list[Holder]:
        """Threads that were seen to hold the lock, the busiest first."""
        held = [look for look in self._late if look[0] > _LATE * sys.getswitchinterval()]
        if len(held) < max(_FEW, _SHARE * len(self._late)):
            return []
        late = median(late for late, _ in held)
        return [one._replace(late=late) for one in held[-1][1]]


def _is_another(one: threading.Thread) -> bool:
    return one.native_id != threading.get_native_id() and not one.name.startswith(_OURS)


def _lateness() -> float:
    """Seconds that this thread waits for the interpreter's lock after a nap."""
    before, began = scheduled()[1], time.perf_counter()
    time.sleep(_NAP)
    passed = time.perf_counter() - began
    return max(0.0, passed - _NAP - (scheduled()[1] - before))


def _where(frame: object) -> str:
    code = getattr(frame, "f_code", None)
    if code is None:
        return "a function that has ended"
    return f"{code.co_name}, {os.path.basename(code.co_filename)}:{getattr(frame, 'f_lineno', 0)}"
