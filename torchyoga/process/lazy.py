"""Made when it is first used: properties, which are kept with their objects, and modules.

NumPy and torch are loaded by the files that a manifest needs when an array or a tensor is made.
Commands that only read manifests start in a tenth of the time. `importlib.util.LazyLoader` would show both in
`sys.modules`, where other packages look for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["cached_property", "cached_with", "later", "methods_of", "np", "once_loaded", "torch"]

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


class later:
    """A stand-in for a module; its attributes are found once, and then cost what a module's do.

    Example:
        >>> later("math").floor(2.5)
        2
    """

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> object:
        found: object = getattr(import_module(self.__dict__["__name__"]), attribute)
        self.__dict__[attribute] = found
        return found

    def __repr__(self) -> str:
        return f"<{self.__dict__['__name__']}, when it is used>"


class methods_of(later):
    """A stand-in for a module whose functions become methods of a class; it is loaded when one is looked at.

    Example:
        >>> class Numbers(list):
        ...     mean = methods_of("statistics").mean
        >>> Numbers([1, 3]).mean()
        2
    """

    def __getattr__(self, function: str) -> object:
        return _Method(self.__dict__["__name__"], function)


class _Method:
    """Puts a function of a module in its own place in a class, when it is first looked at."""

    def __init__(self, module: str, function: str) -> None:
        self._module, self._function = module, function

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> object:
        found = getattr(import_module(self._module), self._function)
        setattr(self._owner, self._name, found)
        return found if instance is None else found.__get__(instance, owner)


def once_loaded(name: str, then: Callable[[Any], object]) -> None:
    """Calls a function with a module as soon as that is loaded, which is now if it is; loads nothing."""
    if name in sys.modules:
        then(import_module(name))  # which waits for a thread that is loading it
    else:
        sys.meta_path.insert(0, _Awaited(name, then))


class _Awaited:
    """Finds what the other finders find; the module that is waited for is handed on when it has run."""

    def __init__(self, name: str, then: Callable[[Any], object]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """None but for the module that is waited for, and only once for that."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if not TYPE_CHECKING:
    np, torch = later("numpy"), later("torch")
