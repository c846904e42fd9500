"""Ints that users pass, checked; and distinct numbers in ascending order.

`np.unique` imports NumPy's masked arrays: 7 ms at its first call, a tenth of a first epoch of 500 MB.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

from .lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .buffers import Ints


def as_int(name: str, value: SupportsIndex, low: int | None = None, high: int | None = None) -> int:
    """A user's argument as an int within the bounds.

    Example:
        >>> as_int("rank", 3, low=0, high=7)
        3

    Raises:
        ValueError: it is not an int, a bool, or not within the bounds; names the argument.
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


def distinct(numbers: Ints) -> Ints:
    """Each number of an array once, in ascending order.

    Args:
        numbers: of any shape.

    Example:
        >>> distinct(np.array([3, 1, 3])).tolist()
        [1, 3]
    """
    found = np.sort(numbers, axis=None)
    return found[_are_first(found)]


def first_places(numbers: Ints) -> tuple[Ints, Ints]:
    """Each number of an array once, in ascending order, and where it is found first.

    Args:
        numbers: (N,) numbers.

    Example:
        >>> found, places = first_places(np.array([3, 1, 3]))
        >>> found.tolist(), places.tolist()
        ([1, 3], [1, 0])
    """
    order = np.argsort(numbers, kind="stable")
    found = numbers[order]
    are_first = _are_first(found)
    return found[are_first], order[are_first]


def spread(count: int, most: int) -> Ints:
    """Numbers from the first to the last of `count`, evenly spread, at most so many.

    Example:
        >>> spread(10, 4).tolist(), spread(2, 4).tolist()
        ([0, 3, 6, 9], [0, 1])
    """
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def _are_first(ascending: Ints) -> npt.NDArray[np.bool_]:
    found = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=found[1:])
    return found
