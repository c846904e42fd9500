"""What forked children make anew: their parent's other threads are not there to finish anything."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Forkable", "no_fork", "renew_in_children"]

_PATIENCE = 10.0  # seconds that a fork waits at most


class Forkable(Protocol):
    """Something with locks or threads of its own."""

    def _renew(self) -> None:
        """Makes them anew, in a child whose only thread is the one that forked."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()
_unforked = threading.RLock()
_is_waited_for = False


def renew_in_children(thing: Forkable) -> None:
    """Renews it in each forked child, as long as it lives."""
    _alive.add(thing)


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """One thread at a time; forks wait, though not for ever.

    For imports by threads: a module that is half imported when the process forks is so for good in the child,
    and who wants it there waits for ever.
    """
    with _unforked:
        yield


def _before() -> None:
    global _is_waited_for
    _is_waited_for = _unforked.acquire(timeout=_PATIENCE)


def _after_in_parent() -> None:
    if _is_waited_for:
        _unforked.release()


def _after_in_child() -> None:
    global _unforked
    _unforked = threading.RLock()
    for thing in list(_alive):
        thing._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
