"""Rows -> what each costs, and what becomes of those over the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...reading.dataref import DataRef, Long, PackCost
from ...rows.projection import Projection, unknown_column
from ..ragged import RaggedColumn
from ..scan import Scanned, scan

__all__ = ["Left", "Measured", "measured"]

Ints = npt.NDArray[np.int64]
_PROBED = 64  # rows, to see which columns a function looks at
_MOST = 2**31 - 1


class Left(NamedTuple):
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


class Measured(NamedTuple):
    """The documents to be packed.

    Attributes:
        rows: (M,) the row of each.
        costs: (M, D) what it costs, of each budget.
        begins: (M,) the token that it begins with; None if all are whole rows.
        left: what became of other rows.
        looked: the columns that were looked at.
    """

    rows: Ints
    costs: Ints
    begins: Ints | None
    left: Left
    looked: tuple[str, ...]


def measured(ref: DataRef, budgets: Mapping[str, int], cost: PackCost | None, long: Long) -> Measured:
    """What all rows cost, and those over a budget by what is to become of them; see `DataRef.packed`.

    Args:
        ref: the rows.
        budgets: by name; without `cost`, of columns.
        cost: what rows cost, of each budget, given many of them.
        long: what becomes of rows over the budget.
    """
    looked: tuple[str, ...]
    if cost is None:
        looked = tuple(budgets)
        whole = [_of_columns(given, looked, start) for start, _, given in scan(ref, looked)]
    else:
        looked, whole = _by_function(ref, tuple(budgets), cost)
    costs = np.concatenate(whole) if whole else np.zeros((0, len(budgets)), np.int64)
    return _fitting(costs, budgets, long, looked)


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

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Looked(Mapping[str, Scanned]):
    """Columns of some rows, which notes those that are looked at."""

    def __init__(self, names: Sequence[str], get: Callable[[str], Scanned], looked: dict[str, None]) -> None:
        self._names = names
        self._get = get
        self._looked = looked

    def __getitem__(self, name: str) -> Scanned:
        self._looked[name] = None
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _by_function(ref: DataRef, names: tuple[str, ...], cost: PackCost) -> tuple[tuple[str, ...], list[Ints]]:
    """The columns that a function looks at, and (B, D) what it says of some rows at a time."""
    schema = ref.schema
    if schema is None or not len(ref):
        return (), []
    known = [column.name for column in schema.columns]
    looked: dict[str, None] = {}
    few = ref[: min(len(ref), _PROBED)]

    def probed(name: str) -> Scanned:
        _check_known(ref, name)
        ((_, _, given),) = scan(few, [name])
        return given[name]

    _checked(cost(_Looked(known, probed, looked)), names, len(few), 0)
    while True:
        before = tuple(looked)
        if not before:
            raise ValueError(
                "cost looks at no column, so it cannot say what each row costs; it is called with columns of "
                'many rows, as in lambda c: c["ids"].lengths'
            )
        whole = []
        try:
            for start, stop, given in scan(ref, before):
                shown = _Looked(known, partial(_given, given), looked)
                whole.append(_checked(cost(shown), names, stop - start, start))
        except _MoreError as more:
            _check_known(ref, more.name)
            continue
        return before, whole


def _given(given: Mapping[str, Scanned], name: str) -> Scanned:
    if name not in given:
        raise _MoreError(name)
    return given[name]


def _check_known(ref: DataRef, name: str) -> None:
    schema = ref.schema
    assert schema is not None, "else there are no rows"
    if not isinstance(name, str):
        raise unknown_column(schema, name)
    Projection.at(schema, name)


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


def _fitting(costs: Ints, budgets: Mapping[str, int], long: Long, looked: tuple[str, ...]) -> Measured:
    most = np.array(list(budgets.values()), np.int64)
    counts = costs.any(1)
    over: npt.NDArray[np.bool_] = np.asarray((costs > most).any(1))
    rows = np.flatnonzero(counts & ~over)
    left = Left(empty=int((~counts).sum()))
    if not over.any():
        return Measured(rows, costs[rows], None, left, looked)
    first = next(iter(budgets))
    if long == "error":
        raise _too_long(costs, over, budgets)
    longer = np.flatnonzero(over)
    if long == "drop":
        return Measured(rows, costs[rows], None, left._replace(dropped=len(longer)), looked)
    budget, lengths = budgets[first], costs[longer, 0]
    if long == "cut":
        lost = int((lengths - budget).sum())
        rows = np.flatnonzero(counts)
        return Measured(rows, np.minimum(costs[rows], budget), None, left._replace(cut=lost), looked)
    pieces = -(-lengths // budget)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = number * budget
    split = np.minimum(np.repeat(lengths, pieces) - begins, budget)
    return Measured(
        np.concatenate([rows, np.repeat(longer, pieces)]),
        np.concatenate([costs[rows], split[:, None]]),
        np.concatenate([np.zeros(len(rows), np.int64), begins]),
        left._replace(split=len(longer)),
        looked,
    )


def _too_long(costs: Ints, over: npt.NDArray[np.bool_], budgets: Mapping[str, int]) -> ValueError:
    found = []
    for number, (name, budget) in enumerate(budgets.items()):
        some = np.flatnonzero(costs[:, number] > budget)
        if len(some):
            worst = some[np.argmax(costs[some, number])]
            found.append(
                f"{len(some)} of {len(costs)} rows have more than {budget} of {name!r}, at most "
                f"{int(costs[worst, number])}, in row {int(worst)}"
            )
    ways = "'cut', 'split' or 'drop'" if len(budgets) == 1 else "'drop'"
    return ValueError(f"{'; '.join(found)}. Choose a larger budget, or say what becomes of them: long={ways}")
