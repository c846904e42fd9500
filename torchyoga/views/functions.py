"""Functions of users, by name."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import get_spawning_popen

__all__ = ["check_can_be_sent", "name_of"]


def name_of(function: Callable[..., object]) -> str:
    """The name of a function."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def check_can_be_sent(function: Callable[..., object]) -> None:
    """Raises TypeError for a function that has no name of its own, if a process is being spawned now.

    Such a process finds functions by their names; other ways to pickle may take these functions, too.
    """
    name = name_of(function)
    if "<" in name and get_spawning_popen() is not None:  # <lambda>, <locals>
        raise TypeError(
            f"{name} cannot be sent to a process that is started by 'spawn' or 'forkserver', because nothing "
            "can be imported under that name; define the function at the top level of a module, or start "
            "the workers with multiprocessing_context='fork'"
        )
