"""Ends this process when its standard input ends: its starter is gone, or needs it no more."""

from __future__ import annotations

import os
import signal
import threading


def leash() -> None:
    """Watches from a thread, for programs that do not read their standard input."""
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
