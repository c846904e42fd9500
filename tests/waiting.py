"""Waiting for other threads and processes."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

PATIENCE = 300.0  # seconds: anything that takes longer hangs, on any machine


def eventually(check: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Returns once `check` returns True; AssertionError if that takes longer than `timeout` seconds."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, f"not in {timeout} s"
        time.sleep(0.02)


@contextlib.contextmanager
def running(*works: Callable[[], object]) -> Iterator[None]:
    """Each work runs on a thread of its own; the end of the block waits, and raises what one raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), f"not in {PATIENCE} s"
    if raised:
        raise raised[0]


def at_once(*works: Callable[[], object]) -> None:
    """Each work on a thread of its own."""
    with running(*works):
        pass


@contextlib.contextmanager
def switching_often(seconds: float = 1e-6) -> Iterator[None]:
    """Threads take turns this often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
