"""Costs of rows -> which of them share a pack, and which documents every pack holds in an epoch.

Rows of equal costs are alike, so they are placed together: as many packs as have the same room left are
filled at once. What comes out is as many packs as best fit decreasing makes of the rows one by one (D. S.
Johnson, "Near-optimal bin packing algorithms", 1973). To pack the histogram of lengths is an idea of M. M.
Krell et al., "Efficient sequence packing without cross-contamination", 2021.

A pack has slots, one for a document of a certain cost.
Documents of equal cost are interchangeable, so each epoch fills the same slots by a keyed permutation of the
documents of each class. So packs never change in number or size, and a slot is turned into its document, and
back, by arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...order.by_file import Permutations
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...rows.block import bounds_of, numbered_within
from ...rows.types import Ints

_MOST_LOOKED = 32  # packs of different rooms that are looked at for one that fits, with several budgets


class Groups(NamedTuple):
    """G groups of packs; all packs of a group hold as many rows of the same classes.

    Attributes:
        counts: (G,) packs of each group.
        bounds: (G + 1,) where the parts of each group begin, and how many parts P there are.
        classes: (P,) the class of the rows of each part.
        each: (P,) how many rows of it a pack has.
    """

    counts: Ints
    bounds: Ints
    classes: Ints
    each: Ints


class _Alike(NamedTuple):
    """Packs that hold as many rows of the same classes."""

    packs: int
    node: int  # the last part, which leads to those before it


def fitted(costs: Ints, counts: Ints, budgets: Ints) -> Groups:
    """Groups of packs that hold all rows, and cost no more than the budgets.

    Rows come by descending cost, and each goes to the pack with the least room in which it fits: room is
    compared by the first budget, then by the next. With several budgets no more than some packs are looked at
    for each row, so one that fits may be missed and a new one begun.

    Args:
        costs: (K, D) what a row of each class costs, of each budget; not all 0, and none over the budget.
        counts: (K,) how many rows each class has.
        budgets: (D,) what a pack may cost.

    Example:
        >>> found = fitted(np.array([[3], [5]]), np.array([4, 2]), np.array([8]))
        >>> found.counts.tolist(), found.bounds.tolist(), found.classes.tolist(), found.each.tolist()
        ([2, 1], [0, 2, 3], [1, 0, 0], [1, 1, 2])
    """
    packing = _Packing(budgets.tolist(), costs.min(0).tolist() if len(costs) else [])
    order = np.lexsort(costs.T[::-1])[::-1].tolist()
    listed, numbers = costs.tolist(), counts.tolist()
    for number in order:
        packing.place(number, tuple(listed[number]), numbers[number])
    return packing.groups()


class _Packing:
    """Packs in the making.

    Args:
        budgets: what a pack may cost.
        least: of each budget, what a row costs at least.
    """

    def __init__(self, budgets: list[int], least: list[int]) -> None:
        self._budgets, self._least = tuple(budgets), least
        self._rooms: list[int] = []  # what is left of the first budget in open packs, ascending
        # By what is left of the first budget, then of all others.
        self._open: dict[int, dict[tuple[int, ...], list[_Alike]]] = {}
        self._full: list[tuple[int, _Alike]] = []  # what is left of the first budget
        self._parents: list[tuple[int, int, int]] = []  # the part before it, its class, rows a pack

    def place(self, number: int, cost: tuple[int, ...], count: int) -> None:
        """Puts so many rows of a class into packs."""
        while count:
            room = self._fitting(cost)
            if room is None:
                most = _times(self._budgets, cost)
                for packs, each in ((count // most, most), (1, count % most)):
                    if packs and each:
                        self._keep(self._less(self._budgets, cost, each), packs, self._part(-1, number, each))
                return
            packs, node = self._taken(room)
            each = _times(room, cost)
            filled = min(packs, count // each)
            if filled:
                self._keep(self._less(room, cost, each), filled, self._part(node, number, each))
                count -= filled * each
            if filled < packs and count:
                self._keep(self._less(room, cost, count), 1, self._part(node, number, count))
                filled, count = filled + 1, 0
            if filled < packs:
                self._keep(room, packs - filled, node)

    def _fitting(self, cost: tuple[int, ...]) -> tuple[int, ...] | None:
        """The least room, of all budgets, into which a row fits."""
        looked, place = 0, bisect_left(self._rooms, cost[0])
        while place < len(self._rooms) and looked < _MOST_LOOKED:
            first = self._rooms[place]
            rests = self._open[first]
            some = _ends(rests, _MOST_LOOKED - looked)
            looked += len(some)
            fitting = [rest for rest in some if all(r >= c for r, c in zip(rest, cost[1:], strict=True))]
            if fitting:
                return (first, *min(fitting))
            place += 1
        return None

    def _taken(self, room: tuple[int, ...]) -> _Alike:
        """Packs with this room, which are no longer open."""
        rests = self._open[room[0]]
        alike = rests[room[1:]]
        found = alike.pop()
        if not alike:
            del rests[room[1:]]
            if not rests:
                del self._open[room[0]]
                del self._rooms[bisect_left(self._rooms, room[0])]
        return found

    def _keep(self, room: tuple[int, ...], count: int, node: int) -> None:
        """Keeps packs, open if any row may still fit."""
        found = _Alike(count, node)
        if any(left < least for left, least in zip(room, self._least, strict=True)):
            self._full.append((room[0], found))
            return
        rests = self._open.get(room[0])
        if rests is None:
            rests = self._open[room[0]] = {}
            insort(self._rooms, room[0])
        rests.setdefault(room[1:], []).append(found)

    def _part(self, parent: int, number: int, each: int) -> int:
        self._parents.append((parent, number, each))
        return len(self._parents) - 1

    @staticmethod
    def _less(room: tuple[int, ...], cost: tuple[int, ...], times: int) -> tuple[int, ...]:
        return tuple(left - times * each for left, each in zip(room, cost, strict=True))

    def groups(self) -> Groups:
        """All packs; those with the least room come first."""
        found = [
            *self._full,
            *((first, one) for first, rests in self._open.items() for some in rests.values() for one in some),
        ]
        # Nodes are numbered as they were made, so the order does not depend on that of a dict.
        found.sort(key=lambda item: (item[0], item[1].node))
        classes: list[int] = []
        each: list[int] = []
        bounds = [0]
        for _, (_, node) in found:
            parts = []
            while node >= 0:
                node, number, rows = self._parents[node]
                parts.append((number, rows))
            classes += [number for number, _ in reversed(parts)]
            each += [rows for _, rows in reversed(parts)]
            bounds.append(len(classes))
        counts = [one.packs for _, one in found]
        return Groups(*(np.array(part, np.int64) for part in (counts, bounds, classes, each)))


def _ends(rests: dict[tuple[int, ...], list[_Alike]], most: int) -> list[tuple[int, ...]]:
    """So many of the rests at most: those kept first, which are the fullest, and those kept last."""
    if len(rests) <= most:
        return list(rests)
    return [*islice(rests, most // 2), *islice(reversed(rests), most - most // 2)]


def _times(room: tuple[int, ...], cost: tuple[int, ...]) -> int:
    """How many such rows fit."""
    return min(left // each for left, each in zip(room, cost, strict=True) if each)


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
    table: Table = np.empty(len(costs), np.uint32 if total <= 2**32 else np.uint64)
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
    firsts = np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(1))[: len(costs)])
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


_DEARER = 16  # times as long a document takes among some hundred as among all
_MOST_LISTED = 2**20  # documents; the list takes as many bytes as those of the plan
_FEW = 16  # packs of a plan, on average, below which all plans are looked up together


class Documents(NamedTuple):
    """The documents of B packs, one pack after the other.

    Attributes:
        bounds: (B + 1,) where those of each pack begin.
        rows: (S,) the row of each.
        costs: (S,) what each costs, of the first budget.
        begins: (S,) the token of its row that each begins with; None if that is 0 for all.
    """

    bounds: Ints
    rows: Ints
    costs: Ints
    begins: Ints | None


class Members:
    """Which documents the packs of a plan hold in an epoch.

    Args:
        plan: what the packs hold.
        seed: any int; together with the epoch it makes the keys.
        epoch: its number.

    Example:
        >>> from torchyoga.views.packs.plan import planned
        >>> lengths = np.array([3, 5, 3, 5, 3])
        >>> plan = planned(np.arange(5), lengths[:, None], None, 5, np.array([8]), False)
        >>> members = Members(plan, seed=7, epoch=0)
        >>> found = members.documents(np.arange(len(plan)))
        >>> found.bounds.tolist(), sorted(found.rows.tolist()), found.costs.tolist()
        ([0, 2, 4, 5], [0, 1, 2, 3, 4], [5, 3, 5, 3, 3])
    """

    def __init__(self, plan: PackPlan, seed: int, epoch: int) -> None:
        self._plan = plan
        self._key = "packs", seed, epoch
        self._asked = 0  # documents

    def documents(self, packs: Ints) -> Documents:
        """The documents of the packs of these numbers (B,), each in 0..len - 1."""
        counts, slots, classes = self.slots(packs)
        found = self._in_slots(slots, classes) if len(slots) else slots
        rows, costs = self._plan.rows[found].astype(np.int64), self._plan.costs[classes]
        return Documents(bounds_of(counts), rows, costs, self._begins_of(found))

    def slots(self, packs: Ints) -> tuple[Ints, Ints, Ints]:
        """How many slots each of these packs has, all of these, and the class of each."""
        slots = self._plan.slots
        group = np.searchsorted(slots.packs, packs, "right") - 1
        counts = slots.bounds[group + 1] - slots.bounds[group]
        which = np.repeat(slots.bounds[group], counts) + numbered_within(counts)
        slot = slots.firsts[which] + slots.steps[which] * np.repeat(packs - slots.packs[group], counts)
        return counts, slot, slots.classes[which]

    def _in_slots(self, slots: Ints, classes: Ints) -> Ints:
        """The document in each slot, of these classes; once many were asked for, from a list of all."""
        self._asked += len(slots)
        if len(self._plan.rows) <= min(_MOST_LISTED, _DEARER * self._asked):
            return self._listed[slots].astype(np.int64)
        return self._permutations.within(slots, self._plan.slots.starts, classes, forward=True)

    @cached_property
    def _listed(self) -> npt.NDArray[np.uint32]:
        """The document in each slot."""
        sizes, starts = self._plan.sizes, self._plan.slots.starts
        every, classes = np.arange(starts[-1]), np.repeat(np.arange(len(sizes)), sizes)
        return self._permutations.within(every, starts, classes, forward=True).astype(np.uint32)

    def _begins_of(self, documents: Ints) -> Ints | None:
        """The token of its row that each document begins with; None if that is 0 for all."""
        pieces = self._plan.pieces
        if not len(pieces):
            return None
        place = np.minimum(np.searchsorted(pieces, documents), len(pieces) - 1)
        return np.where(pieces[place] == documents, self._plan.begins[place], 0)

    @cached_property
    def _permutations(self) -> Permutations:
        return Permutations(self._plan.sizes, *self._key)


def documents_of_each(some: Sequence[Members], bounds: Ints, packs: Ints) -> Documents:
    """The documents of packs (B,) of several plans.

    Args:
        some: of the plans.
        bounds: (plans + 1,) where the packs of each begin: those of one come after the other.
        packs: their numbers.
    """
    own_packs = list(zip(some, np.split(packs, bounds[1:-1]), strict=True))
    if len(packs) >= _FEW * len(some):
        found = [one.documents(own) for one, own in own_packs]
        counts = np.concatenate([np.diff(one.bounds) for one in found])
        rows, costs = (np.concatenate([one[n] for one in found]) for n in (1, 2))
        return Documents(bounds_of(counts), rows, costs, _joined([(one.rows, one.begins) for one in found]))
    slots = (one.slots(own) for one, own in own_packs)
    counts, slot, classes = map(np.concatenate, zip(*slots, strict=True))
    ends = bounds_of(counts)
    parts = list(zip(some, pairwise(ends[bounds].tolist()), strict=True))
    sizes, starts, costs = np.empty_like(slot), np.empty_like(slot), np.empty_like(slot)
    for one, (low, high) in parts:
        sizes[low:high] = one._plan.sizes[classes[low:high]]
        starts[low:high] = one._plan.slots.starts[classes[low:high]]
        costs[low:high] = one._plan.costs[classes[low:high]]
    keys = list(dict.fromkeys(one._key for one in some))
    of_key = np.repeat([keys.index(one._key) for one in some], [high - low for _, (low, high) in parts])
    turned = Permutations.of_each(sizes, classes, keys, of_key)
    documents = starts + turned.turned(slot - starts, np.arange(len(slot)), True)
    rows = np.empty_like(documents)
    begins = []
    for one, (low, high) in parts:
        rows[low:high] = one._plan.rows[documents[low:high]]
        begins.append((documents[low:high], one._begins_of(documents[low:high])))
    return Documents(ends, rows, costs, _joined(begins))


def _joined(parts: Sequence[tuple[Ints, Ints | None]]) -> Ints | None:
    """The token that each document begins with, of the rows of several plans; None if that is 0 for all."""
    if all(begins is None for _, begins in parts):
        return None
    return np.concatenate([np.zeros_like(rows) if begins is None else begins for rows, begins in parts])
