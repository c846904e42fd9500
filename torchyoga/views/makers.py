"""What a DataRef makes views of itself with."""

from __future__ import annotations

from .chosen import order_by, select
from .repeated import RepeatedRef
from .split import split
from .where import where
from .windows import windows

__all__ = ["Makers"]


class Makers:
    """One function for each kind of view."""

    where = staticmethod(where)
    select = staticmethod(select)
    order_by = staticmethod(order_by)
    repeat = RepeatedRef
    split = staticmethod(split)
    windows = staticmethod(windows)
