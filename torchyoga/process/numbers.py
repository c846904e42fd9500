"""The ints that users pass, checked."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from .lazy import np


def as_int(name: str, value: SupportsIndex, low: int | None = None, high: int | None = None) -> int:
    """A user's argument as an int within the bounds.

    Example:
        >>> as_int("rank", 3, low=0, high=7)
        3

    Raises:
        ValueError: it is no int, a bool, or not within the bounds; names the argument.
    """
    try:
        if type(value) is not int and isinstance(value, (bool, np.bool_)):  # an int needs no NumPy
            raise TypeError
        number = int(operator.index(value))
    except TypeError:
        raise ValueError(f"{name} must be an int, found {value!r}") from None
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} must be {bounds}, found {number}")
    return number
