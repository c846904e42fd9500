"""Threads that end before the interpreter does.

As it ends, Python stops each daemon thread where that next wants the interpreter's lock. Within C++, as where
a tensor is freed, this aborts the process. So our threads are asked to end, and waited for, before.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

_PATIENCE = 10.0  # seconds for all threads: one that waits for a silent store may take longer
_begun: dict[threading.Thread, weakref.WeakMethod[Callable[[], object]]] = {}


def begin_thread(
    name: str, work: Callable[..., object], *args: object, stop: Callable[[], object]
) -> threading.Thread:
    """A daemon thread that has begun; it is asked to end, and waited for, when the interpreter ends.

    Args:
        name: of the thread.
        work: is called by the thread.
        *args: its arguments.
        stop: a method that asks the thread to end after what it has in hand. Its object is held by the thread
            alone, so that what a thread frees is freed before it ends.

    Raises:
        RuntimeError: the system allows no more threads.
    """
    for other in tuple(_begun):
        if other.ident is not None and not other.is_alive():
            _begun.pop(other, None)
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    _begun[thread] = weakref.WeakMethod(stop)
    try:
        thread.start()
    except RuntimeError:
        del _begun[thread]
        raise
    return thread


@atexit.register
def _end_all() -> None:
    """Ends the threads, and those that they begin meanwhile."""
    until = time.monotonic() + _PATIENCE
    while alive := [thread for thread in tuple(_begun) if thread.is_alive()]:
        for thread in alive:
            if (stop := _begun[thread]()) is not None:
                stop()
        for thread in alive:
            thread.join(max(0.0, until - time.monotonic()))
        if time.monotonic() >= until:
            return
