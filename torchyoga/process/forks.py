"""What forked children make anew: their parent's other threads are not there to release what they hold."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "renew_in_children"]


class Forkable(Protocol):
    """Something with locks or threads of its own."""

    def renew(self) -> None:
        """Makes them anew, in a child whose only thread is the one that forked."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def renew_in_children(thing: Forkable) -> None:
    """Renews it in each forked child, as long as it lives."""
    _alive.add(thing)


def _renew_all() -> None:
    for thing in list(_alive):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
