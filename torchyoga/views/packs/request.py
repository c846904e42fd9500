"""What is to be packed, and how; and the packs that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex, get_args

import numpy as np

from ...order.full import as_int
from ...reading.dataref import DataRef, Long, PackCost
from ...reading.pack_report import PackReport
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Json
from .layout import are_tokens
from .measured import measured
from .plan import Plan, planned

__all__ = ["Packing", "Request", "packing_of"]

_MOST = 2**31 - 1  # tokens: what cu_seqlens, which are int32, may count


@dataclass(frozen=True)
class Request:
    """What is to be packed, and how.

    Attributes:
        budgets: what a pack may cost, by name.
        column: the column that is measured; None if budgets were named.
        cost: what rows cost; None for lengths and values of columns.
        long: what becomes of rows over a budget.
        max_rows: documents of a pack.
        balance: packs are numbered by what attention within their documents costs.
    """

    budgets: Mapping[str, int]
    column: str | None
    cost: PackCost | None
    long: Long
    max_rows: int | None
    balance: bool

    @staticmethod
    def of(
        schema: Schema | None,
        column_or_budgets: str | Mapping[str, int],
        budget: SupportsIndex | None,
        cost: PackCost | None,
        long: Long,
        max_rows: SupportsIndex | None,
        balance: bool,
    ) -> Request:
        """A request that was checked; see `DataRef.packed`."""
        if isinstance(column_or_budgets, str):
            if budget is None:
                raise ValueError(
                    f"packed({column_or_budgets!r}) needs a budget, as in packed({column_or_budgets!r}, 4096)"
                )
            column, given = column_or_budgets, {column_or_budgets: budget}
        elif isinstance(column_or_budgets, Mapping):
            if budget is not None or not column_or_budgets:
                raise ValueError(
                    f'budgets are named by a dict, as in packed({{"tokens": 8192, "images": 16}}, cost=...); '
                    f"found {dict(column_or_budgets)!r:.100} and {budget!r}"
                )
            column, given = None, dict(column_or_budgets)
        else:
            raise TypeError(
                f"packed takes a column and a budget, or a dict of budgets; found {column_or_budgets!r:.100}"
            )
        budgets = {name: as_int(f"the budget of {name!r}", most, 1, _MOST) for name, most in given.items()}
        if long not in get_args(Long):
            raise ValueError(f'long must be "error", "cut", "split" or "drop", found {long!r}')
        if cost is not None and not callable(cost):
            raise TypeError(f"cost takes a function of columns, found {cost!r:.80}")
        if column is None and cost is None and len(budgets) == 1 and schema is not None:
            (name,) = budgets
            place = Projection.at(schema, name)
            column = name if are_tokens(place.schema, place.schema.tree, 0) else None
        if long in ("cut", "split") and (cost is not None or (column is None and schema is not None)):
            raise ValueError(
                f"long={long!r} needs one budget, of the tokens of a column: what a part of a row costs "
                'otherwise is not known; use long="drop", or cut the rows before'
            )
        most = None if max_rows is None else as_int("max_rows", max_rows, 1, 2**62)
        found = Request(budgets, column, cost, long, most, bool(balance))
        if schema is not None:
            found._check(schema)
        return found

    def _check(self, schema: Schema) -> None:
        for name in [self.column] if self.column is not None else self.budgets if self.cost is None else ():
            place = Projection.at(schema, name)
            if self.column is None or are_tokens(place.schema, place.schema.tree, 0):
                continue
            raise TypeError(
                f"packed({name!r}, ...) needs a column with a value for each token: a ragged column of "
                f"numbers, or a list of them; found {schema.columns[place.columns[0]]}. To pack by values of "
                'a column, use budgets and cost: packed({"tokens": 4096}, cost=lambda c: c["length"])'
            )

    @property
    def told(self) -> Json:
        """All of it but the function, as JSON data."""
        return {
            "budgets": dict(self.budgets),
            "column": self.column,
            "cost": self.cost is not None,
            "long": self.long,
            "max_rows": self.max_rows,
            "balance": self.balance,
        }

    @property
    def most(self) -> int | None:
        """What `Layout.block` takes: how many tokens a document has whose row may have had more."""
        if self.column is None or self.cost is not None:
            return -1
        return self.budgets[self.column] if self.long in ("cut", "split") else None


class Packing(NamedTuple):
    """The packs of the rows of a DataRef.

    Attributes:
        plan: what they hold.
        report: what packing has come to.
        looked: the columns that were looked at.
        told: how they were packed: `Request.told`.
        most: `Request.most`.
    """

    plan: Plan
    report: PackReport
    looked: tuple[str, ...]
    told: Json
    most: int | None


def packing_of(ref: DataRef, request: Request) -> Packing:
    """The packs of the rows of a DataRef; reads nothing but the columns that are measured."""
    found = measured(ref, request.budgets, request.cost, request.long)
    costs, budgets = found.costs, list(request.budgets.values())
    if request.max_rows is not None:
        costs = np.column_stack([costs, np.ones(len(costs), np.int64)])
        budgets.append(request.max_rows)
    plan = planned(found.rows, costs, found.begins, len(ref), np.array(budgets, np.int64), request.balance)
    pieces = 0 if found.begins is None else int((found.begins > 0).sum())
    report = PackReport(
        packs=len(plan),
        rows=len(found.rows) - pieces,
        documents=len(found.rows),
        tokens=int((plan.sizes * plan.costs).sum()),
        budget=budgets[0],
        most=int(np.diff(plan.slots.bounds).max(initial=0)),
        **found.left._asdict(),
    )
    return Packing(plan, report, found.looked, request.told, request.most)
