"""Inputs, each of which holds many rows -> rows, read input by input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..rows.types import Row
from .flat_map import FlatMapped, flat_map

__all__ = ["shards"]

T = TypeVar("T")


def shards(read: Callable[[T], Iterable[Row]], inputs: Sequence[T]) -> FlatMapped:
    """The rows of many inputs, such as files, whose numbers of rows are unknown: to be submitted.

    Several may build it at once, each from inputs of its own; the rows come in the order of the inputs.

    Args:
        read: takes an input, and yields its rows; any number, also none. It should give the same rows each
            time.
        inputs: paths, or whatever `read` takes.

    Raises:
        TypeError: `read` is not a function, or inputs are not a sequence.

    Example:
        >>> def lines(name):
        ...     for number in range(3):
        ...         yield {"text": f"{name}, line {number}"}
        >>> ref = storage.submit(yoga.shards(lines, ["a", "b"]), "lines of files", "1.0")
        >>> len(ref), ref[3]["text"]
        (6, 'b, line 0')
    """
    if isinstance(inputs, (str, bytes)) or not (
        hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")
    ):
        raise TypeError(f"inputs must be a list, such as sorted(paths), found a {type(inputs).__name__}")
    return flat_map(inputs, read)
