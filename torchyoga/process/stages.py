"""Seconds of work, by stage, in whatever thread does it.

Note 132. A thread is in one stage at a time.
Entering a stage stops the clock of the one around it, so that the seconds of all stages add up to the time
that passed, and the innermost knows best what it does: a transform is not charged for the rows that it reads.
"""

from __future__ import annotations

import struct
import threading
from time import perf_counter

from .forks import renew_in_children

__all__ = ["STAGES", "Stage", "Stopwatch", "is_timed", "shift", "timed"]

STAGES = (
    "asked",  # which rows come next
    "disk",  # pages of files that were not in memory
    "download",  # files of a store
    "gather",  # rows out of memory
    "transform",  # the user's dataset and functions
    "decode",  # images, sound, compressed bytes
    "collate",  # rows into batches
    "hand-over",  # from a worker process to this one
    "pin",  # into pinned memory
    "copy",  # to the device
)


class Stage:
    """The number of each stage in `STAGES`."""

    ASKED, DISK, DOWNLOAD, GATHER, TRANSFORM, DECODE, COLLATE, HAND_OVER, PIN, COPY = range(len(STAGES))


_FORMAT = f"<{len(STAGES)}d"


class _Thread(threading.local):
    """What a thread does now."""

    seconds: list[float] | None = None  # None if nobody measures it
    stage = 0
    since = 0.0


_thread = _Thread()


class Stopwatch:
    """Adds up the seconds of each stage."""

    def __init__(self) -> None:
        self.seconds = [0.0] * len(STAGES)
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Stopwatch], tuple[()]]:
        return Stopwatch, ()  # another process measures its own work

    def add(self, stage: int, seconds: float) -> None:
        """Adds what was measured elsewhere."""
        with self._lock:
            self.seconds[stage] += seconds

    def add_sent(self, sent: bytes) -> None:
        """Adds what `sent` gave in another process."""
        found = struct.unpack(_FORMAT, sent)
        with self._lock:
            self.seconds = [mine + more for mine, more in zip(self.seconds, found, strict=True)]

    def sent(self) -> bytes:
        """The seconds since this was last called, for another process."""
        with self._lock:
            found, self.seconds = self.seconds, [0.0] * len(STAGES)
        return struct.pack(_FORMAT, *found)

    def running(self, stage: int) -> _Running:
        """A context manager: this thread works for this stopwatch, and begins in this stage."""
        return _Running(self, stage)


class _Running:
    def __init__(self, watch: Stopwatch, stage: int) -> None:
        self._watch, self._stage = watch, stage

    def __enter__(self) -> None:
        self._before = _thread.seconds, _thread.stage, _thread.since
        _thread.seconds, _thread.stage = [0.0] * len(STAGES), self._stage
        _thread.since = perf_counter()

    def __exit__(self, *error: object) -> None:
        found = _thread.seconds
        assert found is not None, "every stage within has ended"
        found[_thread.stage] += perf_counter() - _thread.since
        _thread.seconds, _thread.stage, _thread.since = self._before
        watch = self._watch
        with watch._lock:
            seconds = watch.seconds
            for number, more in enumerate(found):
                if more:
                    seconds[number] += more


class timed:
    """A context manager: what is done within belongs to a stage. It costs little if nobody measures."""

    __slots__ = ("_before", "_stage")

    def __init__(self, stage: int) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        seconds = _thread.seconds
        if seconds is None:
            return
        now = perf_counter()
        seconds[_thread.stage] += now - _thread.since
        self._before, _thread.stage, _thread.since = _thread.stage, self._stage, now

    def __exit__(self, *error: object) -> None:
        seconds = _thread.seconds
        if seconds is None:
            return
        now = perf_counter()
        seconds[self._stage] += now - _thread.since
        _thread.stage, _thread.since = self._before, now


def is_timed() -> bool:
    """True if this thread's work is measured."""
    return _thread.seconds is not None


def shift(seconds: float, from_stage: int, to_stage: int) -> None:
    """Says that a part of a stage's time, at most all of it, was really another's."""
    found = _thread.seconds
    if found is not None:
        found[from_stage] -= seconds
        found[to_stage] += seconds
