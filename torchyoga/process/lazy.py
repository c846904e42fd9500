"""Computed once, when it is first asked for, and kept with the object that it belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

__all__ = ["cached_property", "cached_with"]

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


def cached_with(maxsize: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A `functools.lru_cache` for each first argument of a function, which is freed with that argument.

    Results must not hold it.
    """

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        caches: WeakKeyDictionary[object, Callable[..., T]] = WeakKeyDictionary()

        @wraps(function)
        def cached(owner: object, *rest: Hashable) -> T:
            cache = caches.get(owner)
            if cache is None:
                weak = ref(owner)
                cache = caches[owner] = lru_cache(maxsize)(lambda *rest: function(weak(), *rest))
            return cache(*rest)

        return cached

    return decorated
