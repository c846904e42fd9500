"""Where DataRefs find what rooms above them make of them: views, tables, pages.

The package says it when it is imported, by functions that load those rooms when they are first asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

__all__ = ["provide", "provided"]

_loaders: dict[str, Callable[[], object]] = {}


def provide(**loaders: Callable[[], object]) -> None:
    """Keeps, by name, the functions that load what DataRefs need."""
    _loaders.update(loaders)


@cache
def provided(name: str) -> object:
    """What was provided under a name, loaded once."""
    return _loaders[name]()
