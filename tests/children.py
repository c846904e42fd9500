"""A forked child that does one thing, and cannot hang or go on with the tests."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from waiting import PATIENCE

__all__ = ["forked", "status_of_child"]


def forked(work: Callable[[], object]) -> Callable[[], int]:
    """Begins the work in a forked child; what comes back waits for it.

    It gives 0 if the work was done, 1 if it raised, minus SIGALRM if it hung.
    """
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(PATIENCE))
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def status_of_child(work: Callable[[], object]) -> int:
    """What `forked` gives at the end."""
    return forked(work)()
