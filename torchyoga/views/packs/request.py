"""The request of packs, what rows cost, and the outcome of packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ...process.numbers import as_int
from ...reading.dataref import DataRef
from ...rows.block import numbered_within
from ...rows.schema import Projection, Schema, unknown_column
from ...rows.types import Ints, Json
from ..scan import RaggedColumn, Scanned, scan
from .layout import are_tokens
from .plan import PackPlan, planned


@dataclass(frozen=True)
class PackReport:
    """The outcome of packing rows: what `packed.report()` returns.

    Attributes:
        packs: how many there are.
        rows: rows that are in packs.
        documents: rows and pieces of rows that are in packs.
        tokens: what all documents cost, of the first budget.
        budget: what a pack may cost, of the first budget.
        most: documents of the pack that holds most of them.
        dropped: rows over the budget that are in no pack.
        cut: tokens over the budget that are in no pack.
        split: rows that were cut into pieces.
        empty: rows of length 0, which are in no pack.

    Example:
        >>> print(PackReport(packs=10, rows=40, documents=40, tokens=1000, budget=101, most=7))
        10 packs of up to 101 tokens: 40 rows, 4.0 a pack, 7 at most; 1000 tokens, 0.99 % padding
    """

    packs: int
    rows: int
    documents: int
    tokens: int
    budget: int
    most: int
    dropped: int = 0
    cut: int = 0
    split: int = 0
    empty: int = 0

    @property
    def padding(self) -> float:
        """The share of the budgets of all packs that is not used, 0 to 1."""
        room = self.packs * self.budget
        return 1 - self.tokens / room if room else 0.0

    @property
    def mean(self) -> float:
        """Documents of a pack on average."""
        return self.documents / max(1, self.packs)

    def __str__(self) -> str:
        found = (
            f"{self.packs} packs of up to {self.budget} tokens: {self.rows} rows, {self.mean:.1f} a pack, "
            f"{self.most} at most; {self.tokens} tokens, {100 * self.padding:.2g} % padding"
        )
        more = {
            f"{self.split} rows split into {self.documents - self.rows + self.split} pieces": self.split,
            f"{self.cut} tokens cut off": self.cut,
            f"{self.dropped} rows dropped": self.dropped,
            f"{self.empty} rows of length 0 left out": self.empty,
        }
        return "; ".join([found, *(text for text, count in more.items() if count)])


# Columns, by name, as arrays of many rows, to what each row costs, or a dict of that by budget.
PackCost: TypeAlias = Callable[[Any], Any]
Long: TypeAlias = Literal["error", "cut", "split", "drop"]  # what becomes of rows over the budget of a pack

_MOST = 2**31 - 1  # tokens: what cu_seqlens, which are int32, may count
_AT_ONCE = 2**20  # rows
_PROBED = 64  # rows, to see which columns a function looks at
_Given: TypeAlias = Mapping[str, Scanned]


@dataclass(frozen=True)
class Request:
    """The request of packs: of what, and how.

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
        return Request(budgets, column, cost, long, most, bool(balance))

    def check(self, schema: Schema) -> None:
        """Raises TypeError if rows do not have the tokens asked for; KeyError if there is no such column."""
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

    plan: PackPlan
    report: PackReport
    looked: tuple[str, ...]
    told: Json
    most: int | None


def packing_of(ref: DataRef, request: Request) -> Packing:
    """The packs of the rows of a DataRef; reads nothing but the columns that are measured."""
    found = measured(ref, request.budgets, request.cost, request.long)
    budgets = list(request.budgets.values())
    plan = planned(
        found.rows,
        found.costs,
        found.begins,
        len(ref),
        np.array(budgets, np.int64),
        request.balance,
        request.max_rows,
    )
    pieces = 0 if found.begins is None else int((found.begins > 0).sum())
    report = PackReport(
        packs=len(plan),
        rows=len(found.costs) - pieces,
        documents=len(found.costs),
        tokens=int((plan.sizes * plan.costs).sum()),
        budget=budgets[0],
        most=int(np.diff(plan.slots.bounds).max(initial=0)),
        **found.left._asdict(),
    )
    return Packing(plan, report, found.looked, request.told, request.most)


class _Left(NamedTuple):
    """What became of rows that are not packed as they are.

    Attributes:
        empty: rows that cost nothing, and are in no pack.
        dropped: rows over the budget that are in no pack.
        cut: tokens over the budget that are in no pack.
        split: rows that were cut into pieces.
    """

    empty: int = 0
    dropped: int = 0
    cut: int = 0
    split: int = 0


class _Measured(NamedTuple):
    """The documents to be packed.

    Attributes:
        rows: (M,) the row of each; None for all rows, in order.
        costs: (M, D) what it costs, of each budget.
        begins: (C,) the token that each of the last ones begins with; None if all are whole rows.
        left: what became of other rows.
        looked: the columns that were looked at.
    """

    rows: Ints | None
    costs: Ints
    begins: Ints | None
    left: _Left
    looked: tuple[str, ...]


def measured(ref: DataRef, budgets: Mapping[str, int], cost: PackCost | None, long: Long) -> _Measured:
    """The costs of all rows, and those over a budget by what is to become of them; see `DataRef.packed`.

    Args:
        ref: the rows.
        budgets: by name; without `cost`, of columns.
        cost: what rows cost, of each budget, given many of them.
        long: what becomes of rows over the budget.
    """
    looked: tuple[str, ...]
    if cost is None:
        looked = tuple(budgets)
        whole = (_of_columns(given, looked, start) for start, _, given in scan(ref, looked))
        costs = _together(whole, len(ref), len(budgets))
    else:
        looked, of_all = _by_function(ref, tuple(budgets), cost)
        costs = _together(of_all, len(ref) if of_all else 0, len(budgets))
    return _fitting(costs, budgets, long, looked)


def _together(whole: Iterable[Ints], count: int, budgets: int) -> Ints:
    """(N, D) the costs of all rows, in 4 bytes each if these are enough."""
    found = cast(Ints, np.empty((count, budgets), np.uint32))
    filled = 0
    for costs in whole:
        if found.dtype == np.uint32 and len(costs) and int(costs.max()) >= 2**32:
            found = found.astype(np.int64)
        found[filled : filled + len(costs)] = costs
        filled += len(costs)
    return found[:filled]


def _of_columns(given: Mapping[str, Scanned], names: Sequence[str], start: int) -> Ints:
    """(B, D) the lengths of ragged columns, the values of others."""
    found = []
    for name in names:
        column = given[name]
        if isinstance(column, RaggedColumn):
            found.append(column.lengths)
        else:
            found.append(_costs(column, len(column), start, f"column {name!r}"))
    return np.stack(found, 1)


def _costs(given: object, count: int, start: int, what: str) -> Ints:
    """(B,) costs that were checked."""
    array = np.asarray(given)
    is_masked = isinstance(given, np.ma.MaskedArray) and bool(np.ma.getmaskarray(given).any())
    if array.shape != (count,) or array.dtype.kind not in "iu" or is_masked:
        raise ValueError(
            f"{what} must give an int of at least 0 for each row: for rows {start} to {start + count - 1} an "
            f"array of ints of shape ({count},); found {'None in ' * is_masked}{array.dtype} of shape "
            f"{array.shape}"
        )
    if count and (int(array.min()) < 0 or int(array.max()) >= 2**62):
        wrong = int(np.flatnonzero((array < 0) | (array >= 2**62))[0])
        raise ValueError(
            f"{what} must give an int of at least 0 for each row, and below 2**62; for row {start + wrong} "
            f"it is {int(array[wrong])}"
        )
    return array.astype(np.int64)


# -- costs by a function


class _MoreError(Exception):
    """A function has looked at a column that was not read."""


class _Observed(Mapping[str, Scanned]):
    """Columns of some rows, which notes those that are looked at."""

    def __init__(self, schema: Schema, given: Mapping[str, Scanned], looked: dict[str, None]) -> None:
        self._schema, self._given, self._looked = schema, given, looked

    def __getitem__(self, name: str) -> Scanned:
        if name not in self._given:
            if not isinstance(name, str):
                raise unknown_column(self._schema, name)
            Projection.at(self._schema, name)
            self._looked[name] = None
            raise _MoreError
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self._schema.columns)

    def __len__(self) -> int:
        return len(self._schema.columns)


def _by_function(ref: DataRef, names: tuple[str, ...], cost: PackCost) -> tuple[tuple[str, ...], list[Ints]]:
    """The columns that a function looks at, and (B, D) what it says of some rows at a time."""
    schema = ref.schema
    if schema is None or not len(ref):
        return (), []
    looked: dict[str, None] = {}
    whole: list[Ints] = []
    few = ref[: min(len(ref), _PROBED)]
    for some in (few, ref):  # columns are found one after the other, in few rows first
        is_done = False
        while not is_done:
            read = scan(some, tuple(looked)) if looked else iter([(0, len(some), cast(_Given, {}))])
            whole = []
            with suppress(_MoreError):
                for start, stop, given in read:
                    found = cost(_Observed(schema, given, looked))
                    whole.append(_small(_checked(found, names, stop - start, start)))
                is_done = True
        if not looked:
            raise ValueError(
                "cost looks at no column, so it cannot say what each row costs; it is called with columns of "
                'many rows, as in lambda c: c["ids"].lengths'
            )
    return tuple(looked), whole


def _small(costs: Ints) -> Ints:
    return cast(Ints, costs.astype(np.uint32)) if int(costs.max(initial=0)) < 2**32 else costs


def _checked(found: object, names: tuple[str, ...], count: int, start: int) -> Ints:
    """(B, D) what a function says of some rows."""
    if isinstance(found, Mapping):
        if set(found) != set(names):
            raise ValueError(
                f"cost must give what rows cost of each budget: {list(names)}; it gives {list(found)}"
            )
        of_each = [found[name] for name in names]
    elif len(names) == 1:
        of_each = [found]
    else:
        raise ValueError(
            f"cost must return a dict of what rows cost of each budget, {list(names)}; it returned "
            f"{type(found).__name__}"
        )
    more = zip(names, of_each, strict=True)
    return np.stack([_costs(one, count, start, f"cost, of {name!r},") for name, one in more], 1)


# -- rows over the budget


def _fitting(costs: Ints, budgets: Mapping[str, int], long: Long, looked: tuple[str, ...]) -> _Measured:
    most = np.array(list(budgets.values()), np.int64)
    counts = costs.any(1)
    over: npt.NDArray[np.bool_] = np.asarray((costs > most).any(1))
    left = _Left(empty=len(costs) - int(np.count_nonzero(counts)))
    longer = np.flatnonzero(over)
    first = next(iter(budgets))
    if len(longer) and long == "error":
        raise _too_long(costs, over, budgets)
    budget, lengths = budgets[first], costs[longer, 0].astype(np.int64)
    if len(longer) and long == "cut":
        left = left._replace(cut=int((lengths - budget).sum()))
        np.minimum(costs, budget, out=costs)
        over[:] = False
    counts &= ~over
    if counts.all():
        return _Measured(None, costs, None, left, looked)
    pieces = np.zeros(0, np.int64)
    if long == "split":
        pieces = -(-lengths // budget)
    elif long == "drop":
        left = left._replace(dropped=len(longer))
    # Room for the pieces from the beginning: there may be no memory for another copy.
    whole = int(np.count_nonzero(counts))
    rows = np.empty(whole + int(pieces.sum()), np.uint32 if len(costs) <= 2**32 else np.int64)
    kept = np.empty((len(rows), len(most)), costs.dtype)
    filled = 0
    for start in range(0, len(counts), _AT_ONCE):
        some = np.flatnonzero(counts[start : start + _AT_ONCE])
        rows[filled : filled + len(some)] = some + start
        kept[filled : filled + len(some)] = costs[start : start + _AT_ONCE][some]
        filled += len(some)
    if not len(pieces):
        return _Measured(cast(Ints, rows), kept, None, left, looked)
    begins = numbered_within(pieces) * budget
    rows[whole:] = np.repeat(longer, pieces)
    kept[whole:, 0] = np.minimum(np.repeat(lengths, pieces) - begins, budget)
    return _Measured(cast(Ints, rows), kept, begins, left._replace(split=len(longer)), looked)


def _too_long(costs: Ints, over: npt.NDArray[np.bool_], budgets: Mapping[str, int]) -> ValueError:
    found = []
    for number, (name, budget) in enumerate(budgets.items()):
        some = np.flatnonzero(costs[:, number] > budget)
        if len(some):
            worst = int(some[np.argmax(costs[some, number])])
            found.append(
                f"{len(some)} of {len(costs)} rows have more than {budget} of {name!r}, at most "
                f"{int(costs[worst, number])}, in row {worst}"
            )
    ways = "'cut', 'split' or 'drop'" if len(budgets) == 1 else "'drop'"
    return ValueError(f"{'; '.join(found)}. Choose a larger budget, or say what becomes of them: long={ways}")
