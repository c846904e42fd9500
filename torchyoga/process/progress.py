"""The progress of work into a bar on a terminal, which no other process can block."""

from __future__ import annotations

import sys
import threading
from typing import Protocol

from tqdm import tqdm

from .forks import renew_in_children

__all__ = ["Bar", "progress_bar"]


class Bar(Protocol):
    """A progress bar."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, count: int = 1) -> object:
        """Adds `count` to the progress."""


def progress_bar(shown: bool | None, total: int | None, what: str, unit: str, **more: object) -> Bar:
    """A context manager with `update(count)`.

    Args:
        shown: None shows it on a terminal only.
        total: the count at the end; None if it is unknown.
        what: names the work.
        unit: of the count.
        more: arguments for tqdm.
    """
    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    return _Bar(total=total, desc=what, unit=unit, **more) if shown else _Nothing()


class _Bar(tqdm):  # type: ignore[misc]
    """tqdm's bar, without the lock that all forked processes share.

    A process that is killed while it holds that lock leaves all others waiting for ever; hidden bars take it,
    too.
    """

    monitor_interval = 0  # its thread takes the lock, too


class _Lock:
    """A lock that forked children renew."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes locks and threads anew, in a forked child."""
        _Bar.set_lock(threading.RLock())


_lock = _Lock()


class _Nothing:
    """A bar that is not shown."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        """Does nothing."""
