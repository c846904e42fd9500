"""What a DataRef makes views of itself with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..reading.dataref import Condition, DataRef, RowView, WhenStale
from .chosen import order_by, select
from .repeated import RepeatedRef
from .split import split
from .where import where

__all__ = ["Makers"]

_Keep = Callable[[DataRef, str | Sequence[str], Condition, str, WhenStale], RowView]


class Makers:
    """One function for each kind of view.

    Args:
        kept_where: as `where`, with a name under which the selection is kept; it needs the stores, which are
            in a room above.
    """

    def __init__(self, kept_where: _Keep) -> None:
        self.kept_where = kept_where

    where = staticmethod(where)
    select = staticmethod(select)
    order_by = staticmethod(order_by)
    repeat = RepeatedRef
    split = staticmethod(split)
