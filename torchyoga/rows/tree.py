"""A batch -> the same nesting over other leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .types import Batch, Row

__all__ = ["mapped"]

_UNDER_WAY = object()


def mapped(
    batch: Batch, change: Callable[[Row], Row], is_leaf: Callable[[Sequence[Row]], bool] = lambda found: False
) -> Batch:
    """The dicts, lists, tuples and namedtuples of a batch, over what `change` makes of each leaf.

    An object of any other class is a leaf. What is in a batch twice is twice in the result.

    Args:
        batch: any nesting.
        change: called with each leaf.
        is_leaf: asked of each list, tuple and namedtuple; those for which it says so are leaves, too.

    Raises:
        RecursionError: the batch contains itself, or is nested too deeply.

    Example:
        >>> mapped({"x": [1, 2], "y": (3,)}, lambda leaf: leaf * 10)
        {'x': [10, 20], 'y': (30,)}
    """
    return _made(batch, change, is_leaf, {})


def _made(
    node: Batch,
    change: Callable[[Row], Row],
    is_leaf: Callable[[Sequence[Row]], bool],
    containers: dict[int, Row],
) -> Batch:
    """`mapped` of a part; `containers` are those made already, by the identity of what they are made from."""
    # No function within another: it would hold itself, and so the batch until the garbage collector comes.
    cls = type(node)
    is_list = cls is list or cls is tuple or (isinstance(node, tuple) and hasattr(cls, "_fields"))
    if cls is not dict and (not is_list or is_leaf(node)):
        return change(node)
    found = containers.get(id(node))
    if found is None:
        containers[id(node)] = _UNDER_WAY
        if cls is dict:
            found = {key: _made(value, change, is_leaf, containers) for key, value in node.items()}
        elif cls is list:
            found = [_made(value, change, is_leaf, containers) for value in node]
        else:
            found = tuple.__new__(cls, [_made(value, change, is_leaf, containers) for value in node])
        containers[id(node)] = found
    elif found is _UNDER_WAY:
        raise RecursionError(f"a {cls.__name__} in the batch contains itself")
    return found
