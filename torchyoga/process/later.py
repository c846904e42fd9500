"""Modules that are loaded when something of them is first used, so that importing this package stays quick.

NumPy and torch are loaded by the files that a manifest needs when an array or a tensor is made.
Commands that only read manifests start in a tenth of the time. `importlib.util.LazyLoader` would show both in
`sys.modules`, where other packages look for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["later", "np", "torch"]


def later(name: str) -> object:
    """A stand-in for a module; its attributes are found once, and then cost what a module's do.

    Example:
        >>> later("math").floor(2.5)
        2
    """
    return _Later(name)


class _Later:
    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> object:
        found: object = getattr(import_module(self.__dict__["__name__"]), attribute)
        self.__dict__[attribute] = found
        return found

    def __repr__(self) -> str:
        return f"<{self.__dict__['__name__']}, when it is used>"


if not TYPE_CHECKING:
    np, torch = later("numpy"), later("torch")
