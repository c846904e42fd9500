"""Waiting for other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds: anything that takes longer hangs, on any machine


def eventually(check: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Returns once `check` returns True; AssertionError if that takes longer than `timeout` seconds."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, f"not in {timeout} s"
        time.sleep(0.02)
