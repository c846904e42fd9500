"""tqdm's bar, without the lock that all forked processes share.

Note 16. Processes share no locks except locks on files, which the kernel frees.
A process that is killed while it holds that lock leaves all others waiting for ever; hidden bars take it,
too.
"""

from __future__ import annotations

import threading

from tqdm import tqdm

from .forks import renew_in_children

__all__ = ["TqdmBar"]


class TqdmBar(tqdm):  # type: ignore[misc]
    """A bar whose lock belongs to its process."""

    monitor_interval = 0  # its thread takes the lock, too


class _Lock:
    """A lock that forked children renew."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes locks and threads anew, in a forked child."""
        TqdmBar.set_lock(threading.RLock())


_lock = _Lock()
