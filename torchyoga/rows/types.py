"""Names of types that come from users or from NumPy, and what is made of nested ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..process.buffers import Array as Array
    from ..process.buffers import Ints as Ints
    from ..process.buffers import Seeds as Seeds

    RowT = TypeVar("RowT", covariant=True, default=Any)
    BatchT = TypeVar("BatchT", covariant=True, default=Any)
else:  # so that a command that reads a manifest need not load NumPy
    from typing import TypeVar

    Array = Ints = Seeds = Any
    RowT, BatchT = TypeVar("RowT", covariant=True), TypeVar("BatchT", covariant=True)

Row: TypeAlias = Any  # a row of a user's dataset: arrays, tensors, numbers, text, and what nests them
Batch: TypeAlias = Any  # what a collate function makes of rows
Index: TypeAlias = Any  # what a sampler gives and a dataset takes: a row's number, or what users agree on
Json: TypeAlias = dict[str, Any]  # a JSON object: plain data, checked by whoever reads it
Collate: TypeAlias = Callable[[Row], Batch]  # of the rows of a batch; of one row, if there are no batches
_UNDER_WAY = object()


class MapStyle(Protocol):
    """A dataset whose rows can be asked for by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Index, /) -> Row: ...


class Numbers(Protocol):
    """Row numbers: an array, or a tensor."""

    def __len__(self) -> int: ...

    def tolist(self) -> Any:
        """The numbers as a list."""


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
