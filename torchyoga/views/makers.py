"""What a DataRef makes views of itself with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsIndex

from ..reading.counting import stats
from ..reading.dataref import Condition, DataRef, Long, PackCost, PackView, RowView, WhenStale
from ..rows.schema import Schema
from ..rows.types import Row
from .chosen import order_by, select
from .computed import ComputedRef
from .filled import filled, masked
from .mixes.balanced import balanced
from .mixes.bucketed import bucketed
from .mixes.staged import staged
from .mixes.weighted import weighted
from .packs.packed import packed
from .packs.request import Packing, Request
from .repeated import RepeatedRef
from .split import split
from .tokens.token_batches import token_batches
from .tokens.token_windows import token_windows
from .transformed import TransformedRef
from .where import where
from .windows.windowed import windows

__all__ = ["Makers"]

_Decode = Callable[[DataRef, Mapping[str, Any] | None, int | None], DataRef]
_Keep = Callable[[DataRef, str | Sequence[str], Condition, str, WhenStale], RowView]
_KeepPacks = Callable[[str, WhenStale, DataRef, Request], Packing]


class Makers:
    """One function for each kind of view.

    Args:
        kept_where: as `where`, with a name under which the selection is kept; it needs the stores, which are
            in a room above.
        kept_packing: packs rows, or finds packs that are kept under a name.
        decoded: the view of decoded columns, which is a room of its own, too.
    """

    def __init__(self, kept_where: _Keep, kept_packing: _KeepPacks, decoded: _Decode) -> None:
        self.kept_where = kept_where
        self.kept_packing = kept_packing
        self.decoded = decoded

    stats = staticmethod(stats)
    where = staticmethod(where)
    select = staticmethod(select)
    order_by = staticmethod(order_by)
    repeat = RepeatedRef
    split = staticmethod(split)
    windows = staticmethod(windows)
    map_batches = ComputedRef
    filled = staticmethod(filled)
    masked = staticmethod(masked)
    weighted = staticmethod(weighted)
    balanced = staticmethod(balanced)
    staged = staticmethod(staged)
    bucketed = staticmethod(bucketed)
    token_windows = staticmethod(token_windows)
    token_batches = staticmethod(token_batches)

    @staticmethod
    def map(ref: DataRef, function: Callable[[Row], Row], schema: Schema | None) -> DataRef:
        """The rows of a DataRef after a function."""
        if not callable(function):
            raise TypeError(f"map takes a function of a row, found {function!r:.80}")
        if type(ref) is TransformedRef:  # so that a row is seeded once
            return TransformedRef(ref.whole, (*ref.functions, function), schema)
        return TransformedRef(ref, (function,), schema)

    def packed(
        self,
        ref: DataRef,
        column_or_budgets: str | Mapping[str, int],
        budget: SupportsIndex | None,
        *,
        cost: PackCost | None,
        long: Long,
        max_rows: SupportsIndex | None,
        balance: bool,
        name: str | None,
        stale: WhenStale,
        **layout: Any,
    ) -> PackView:
        """Rows that are packs of rows of a DataRef."""
        request = Request.of(ref.schema, column_or_budgets, budget, cost, long, max_rows, balance)
        if name is None:
            return packed(ref, request, **layout)
        return packed(ref, request, make=partial(self.kept_packing, name, stale), **layout)
