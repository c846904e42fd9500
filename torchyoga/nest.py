"""A batch -> the same nesting over other leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["mapped"]


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The dicts, lists, tuples and namedtuples of a batch, over what `change` makes of each leaf.

    Of other classes than those, an object is a leaf.

    Example:
        >>> mapped({"x": [1, 2], "y": (3,)}, lambda leaf: leaf * 10)
        {'x': [10, 20], 'y': (30,)}
    """
    cls = type(batch)
    if cls is dict:
        return {key: mapped(value, change) for key, value in batch.items()}
    if cls is list:
        return [mapped(value, change) for value in batch]
    if cls is tuple:
        return tuple(mapped(value, change) for value in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return tuple.__new__(cls, [mapped(value, change) for value in batch])
    return change(batch)
