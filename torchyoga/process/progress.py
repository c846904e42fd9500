"""The progress of work into a bar on a terminal, which no other process can block.

Note 16. Processes share no locks except locks on files, which the kernel frees.
All forked processes share the lock of tqdm's bars. A process that is killed while it holds that lock leaves
all others waiting for ever; hidden bars take it, too.
"""

from __future__ import annotations

import sys
import threading
from functools import lru_cache
from typing import Any

from .forks import renew_in_children


class Bar:
    """A progress bar that is not shown, and what any bar can do."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

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
    if not shown:
        return Bar()
    found: Bar = _bars()(total=total, desc=what, unit=unit, **more)
    return found


@lru_cache(None)
def _bars() -> Any:
    """The class of tqdm's bars whose lock belongs to its process."""
    from tqdm import tqdm  # which takes time to load

    class TqdmBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # its thread takes the lock, too

        @classmethod
        def renew(cls) -> None:
            cls.set_lock(threading.RLock())

    TqdmBar.renew()
    renew_in_children(TqdmBar)
    return TqdmBar
