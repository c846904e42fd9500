"""State that forked children renew: their parent's other threads are gone and cannot release their locks.

Note 16. A forked child waits for no lock or thread of its parent.
Everything with locks or threads makes them anew in each child. Cached properties take no lock: see `lazy`.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object with locks or threads of its own."""

    def renew(self) -> None:
        """Makes them anew, in a child whose only thread is the one that forked."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()
_PID = os.getpid()


def renew_in_children(thing: Forkable) -> None:
    """Renews an object in each forked child, as long as the object lives."""
    _alive.add(thing)


def in_forked_child() -> bool:
    """True in a child of a fork, which has none of the threads of libraries."""
    return os.getpid() != _PID


def _renew_all() -> None:
    for thing in list(_alive):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
