"""The contents of every pack: which documents, by their length, and how many; and a table of the documents.

A pack has slots, one for a document of a certain cost.
Documents of equal cost are interchangeable, so each epoch fills the same slots by a keyed permutation of the
documents of each class. So packs never change in number or size, and a slot is turned into its document, and
back, by arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...rows.data import bounds_of, numbered_within
from ...rows.types import Ints
from .packing import Groups, fitted

Table = npt.NDArray[np.unsignedinteger]
_MOST_COUNTED, _COUNTED_AT_ONCE = 2**24, 2**20
_PARTS = ("rows", "sizes", "costs", "counts", "bounds", "classes", "each", "pieces", "begins")


@dataclass(frozen=True, eq=False)
class PackPlan:
    """The contents of every pack. A document is a row, or a piece of one that was split.

    Attributes:
        rows: (M,) the row of each document, those of one class together.
        sizes: (K,) how many documents each class has.
        costs: (K,) what each of its documents costs, of the first budget: its tokens, or less than those.
        groups: of packs that hold as many documents of the same classes.
        pieces: (C,) ascending: which documents do not begin with the first token of their row.
        begins: (C,) the token that each of these begins with.
    """

    rows: Table
    sizes: Ints
    costs: Ints
    groups: Groups
    pieces: Ints
    begins: Ints

    def __reduce__(self) -> tuple[object, ...]:
        parts = list(self.parts.values())
        is_small = all(int(part.max(initial=0)) < 2**32 for part in parts)
        words = np.concatenate(parts, dtype=np.uint32 if is_small else np.int64, casting="unsafe")
        return _of_words, (words, list(map(len, parts)), self.rows.dtype.str)

    def __len__(self) -> int:
        return int(self.groups.counts.sum())

    @cached_property
    def slots(self) -> Slots:
        """Where documents go."""
        return Slots.of(self)

    @property
    def parts(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays that it is made from."""
        arrays = (self.rows, self.sizes, self.costs, *self.groups, self.pieces, self.begins)
        return dict(zip(_PARTS, arrays, strict=True))

    @cached_property
    def pin(self) -> str:
        """A name for it: the same for the same packs of the same rows, in every process."""
        parts: list[str | memoryview] = []
        for name, array in self.parts.items():
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            parts += [f"{name} {len(array)} {array.dtype.itemsize};", little.data]
        return hexdigest(*parts)


def _of_words(words: npt.NDArray[np.integer], sizes: Sequence[int], row_type: str) -> PackPlan:
    """A plan that was pickled."""
    rows, *others = np.split(words, bounds_of(sizes)[1:-1])
    kinds, costs, counts, bounds, classes, each, pieces, begins = (part.astype(np.int64) for part in others)
    groups = Groups(counts, bounds, classes, each)
    return PackPlan(rows.astype(row_type), kinds, costs, groups, pieces, begins)


class Slots(NamedTuple):
    """Where the documents of each class go: U slots of the packs of all groups.

    Attributes:
        packs: (G + 1,) the number of the first pack of each group, and how many there are.
        bounds: (G + 1,) where the slots of a pack of each group begin.
        firsts: (U,) the number of the slot in the first pack of the group, all slots being numbered by class.
        steps: (U,) by how much it is higher in the next pack.
        classes: (U,) its class.
        starts: (K + 1,) where the slots of each class begin.
    """

    packs: Ints
    bounds: Ints
    firsts: Ints
    steps: Ints
    classes: Ints
    starts: Ints

    @staticmethod
    def of(plan: PackPlan) -> Slots:
        """The slots of a plan."""
        counts, bounds, classes, each = plan.groups
        groups = np.repeat(np.arange(len(counts)), np.diff(bounds))
        by_class = np.argsort(classes, kind="stable")
        used = (counts[groups] * each)[by_class]
        firsts = np.empty_like(each)
        firsts[by_class] = bounds_of(used)[:-1]
        part = np.repeat(np.arange(len(each)), each)
        return Slots(
            packs=bounds_of(counts),
            bounds=bounds_of(each)[bounds],
            firsts=firsts[part] + numbered_within(each),
            steps=each[part],
            classes=classes[part],
            starts=bounds_of(plan.sizes),
        )


def planned(
    rows: Ints | None,
    costs: Ints,
    begins: Ints | None,
    total: int,
    budgets: Ints,
    balance: bool,
    most_rows: int | None = None,
) -> PackPlan:
    """The packs of some documents.

    Takes time for each document once, and 4 bytes besides its arguments, 8 from 2**32 rows on.

    Args:
        rows: (M,) the row of each document; None if they are all rows, in order.
        costs: (M, D) what it costs of each budget; not all 0, and none over the budget.
        begins: (C,) the token that each of the last documents begins with; None if all are whole rows.
        total: number of rows there are.
        budgets: (D,) what a pack may cost.
        balance: number the packs by the sum of squares of the first cost of their documents, falling.
        most_rows: documents of a pack.
    """
    table = np.empty(len(costs), _row_type(total))
    one, most = costs.shape[1] == 1, int(costs.max(initial=0))
    sort = _by_counting if one and most < _MOST_COUNTED else _by_costs
    distinct, sizes, pieces, sorted_begins = sort(rows, costs, begins, table)
    each = distinct
    if most_rows is not None:
        each = np.column_stack([distinct, np.ones(len(distinct), np.int64)])
        budgets = np.append(budgets, most_rows)
    found = fitted(each, sizes, budgets)
    if balance:
        found = _by_squares(found, distinct[:, 0])
    return PackPlan(table, sizes, np.ascontiguousarray(distinct[:, 0]), found, pieces, sorted_begins)


class _ByCost(NamedTuple):
    """Documents by what they cost.

    Attributes:
        distinct: (K, D) the distinct costs.
        sizes: (K,) how many documents each has.
        pieces: ascending: which of them do not begin with the first token of their row.
        begins: the token that each of these begins with.
    """

    distinct: Ints
    sizes: Ints
    pieces: Ints
    begins: Ints


def _by_costs(rows: Ints | None, costs: Ints, begins: Ints | None, table: Table) -> _ByCost:
    """Documents of any costs, whose rows are put into a table."""
    order = np.arange(len(costs))
    for column in costs.T[::-1]:
        order = order[_order_of(column[order])]
    ordered = costs[order]
    is_first = np.ones(len(costs), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(1)
    firsts = np.flatnonzero(is_first)
    table[:] = order if rows is None else rows[order]
    pieces = begun = np.zeros(0, np.int64)
    if begins is not None:
        whole = len(costs) - len(begins)
        late = np.flatnonzero(order >= whole)
        begun = begins[order[late] - whole].astype(np.int64)
        pieces, begun = late[begun > 0], begun[begun > 0]
    return _ByCost(ordered[firsts].astype(np.int64), np.diff(np.append(firsts, len(costs))), pieces, begun)


def _by_counting(rows: Ints | None, costs: Ints, begins: Ints | None, table: Table) -> _ByCost:
    """Documents of one cost below a bound: counted first, so that each finds its place in the table."""
    count, step = len(costs), max(_COUNTED_AT_ONCE, int(costs.max(initial=0)))
    counts = np.zeros(int(costs.max(initial=0)) + 1, np.int64)
    for start in range(0, count, step):
        counts += np.bincount(costs[start : start + step, 0], minlength=len(counts))
    distinct = np.flatnonzero(counts)
    places = bounds_of(counts)[:-1]  # where the next document of each cost goes
    pieces, begun = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        order = _order_of(costs[some, 0])
        ordered = costs[some, 0][order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        found, own = ordered[firsts], np.diff(np.append(firsts, len(ordered)))
        target = np.repeat(places[found] - firsts, own) + np.arange(len(ordered))
        table[target] = order + start if rows is None else rows[some][order]
        places[found] += own
        if begins is not None and some.stop > count - len(begins):
            late = np.flatnonzero(order >= count - len(begins) - start)
            own = begins[order[late] + start - (count - len(begins))].astype(np.int64)
            pieces.append(target[late[own > 0]])
            begun.append(own[own > 0])
    all_pieces, all_begun = np.concatenate(pieces), np.concatenate(begun)
    ascending = np.argsort(all_pieces)
    return _ByCost(distinct[:, None], counts[distinct], all_pieces[ascending], all_begun[ascending])


def _order_of(numbers: Ints) -> Ints:
    """A stable argsort of numbers of at least 0, by 16 bits at a time: NumPy counts those."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(16, int(numbers.max(initial=0)).bit_length(), 16):
        order = order[np.argsort((numbers[order] >> shift).astype(np.uint16), kind="stable")]
    return order


def _by_squares(groups: Groups, costs: Ints) -> Groups:
    """The groups, those first whose packs have the largest sum of squared costs."""
    counts, bounds, classes, each = groups
    # As floats: the squares of large costs exceed 64 bits.
    squares = np.append(0.0, np.cumsum(each * costs[classes].astype(np.float64) ** 2))
    order = np.argsort(-np.diff(squares[bounds]), kind="stable")
    lengths = np.diff(bounds)[order]
    ends = bounds_of(lengths)
    parts = np.repeat(bounds[order] - ends[:-1], lengths) + np.arange(len(classes))
    return Groups(counts[order], ends, classes[parts], each[parts])


def _row_type(total: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(np.uint32) if total <= 2**32 else np.dtype(np.uint64)
