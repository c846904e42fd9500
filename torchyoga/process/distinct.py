"""Distinct numbers in ascending order: those of an array, or some that are spread over many.

`np.unique` imports NumPy's masked arrays.
That takes 7 ms at its first call, a tenth of a first epoch of 500 MB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .buffers import Ints


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
