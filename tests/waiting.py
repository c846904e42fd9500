"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE", "eventually"]

PATIENCE = 300.0  # seconds: what takes that long hangs, on any machine


def eventually(check: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Returns once it is so; AssertionError if that takes so many seconds."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, f"not in {timeout} s"
        time.sleep(0.02)
