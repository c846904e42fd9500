"""Properties that are computed once, when they are first read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["cached_property"]

T = TypeVar("T")

if sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(Generic[T]):
        """The property of functools, as it is since Python 3.12. Before, all objects of a class share a lock:
        if the process forks while a thread computes the property of one object, all objects are locked in the
        child."""

        def __init__(self, function: Callable[[Any], T]) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> T:
            found = instance.__dict__[self._name] = self._function(instance)
            return found
