"""tqdm's bar, without the lock that all forked processes share.

Note 16. Processes share no locks except locks on files, which the kernel frees.
A process that is killed while it holds that lock leaves all others waiting for ever; hidden bars take it,
too.
"""

from __future__ import annotations

import threading

from tqdm import tqdm

from .forks import renew_in_children


class TqdmBar(tqdm):  # type: ignore[misc]
    """A bar whose lock belongs to its process."""

    monitor_interval = 0  # its thread takes the lock, too

    @classmethod
    def renew(cls) -> None:
        """Makes locks and threads anew, in a forked child."""
        cls.set_lock(threading.RLock())


TqdmBar.renew()
renew_in_children(TqdmBar)
