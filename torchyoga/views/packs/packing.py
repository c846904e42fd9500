"""Costs of rows -> which of them share a pack: best fit decreasing, over a histogram.

Rows of equal costs are alike, so they are placed together: as many packs as have the same room left are
filled at once. What comes out is as many packs as best fit decreasing makes of the rows one by one (D. S.
Johnson, "Near-optimal bin packing algorithms", 1973). To pack the histogram of lengths is an idea of M. M.
Krell et al., "Efficient sequence packing without cross-contamination", 2021.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np

from ...rows.types import Ints

_MOST_LOOKED = 32  # packs of different rooms that are looked at for one that fits, with several budgets
_BITS = 10  # of a word: Python finds the lowest bit of so few in a tenth of a microsecond
_LAST = (1 << _BITS) - 1


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
        self._rooms = Rooms(budgets[0] + 1)
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
        looked = 0
        first = self._rooms.next(cost[0])
        while first is not None and looked < _MOST_LOOKED:
            rests = self._open[first]
            some = _ends(rests, _MOST_LOOKED - looked)
            looked += len(some)
            fitting = [rest for rest in some if all(r >= c for r, c in zip(rest, cost[1:], strict=True))]
            if fitting:
                return (first, *min(fitting))
            first = self._rooms.next(first + 1)
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
                self._rooms.remove(room[0])
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
            self._rooms.add(room[0])
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


class Rooms:
    """Some of the numbers 0..size-1, as bits of words, and words of which words are not 0.

    Each act takes a step for every 10 bits of a number, as in a tree of van Emde Boas (FOCS, 1975).

    Args:
        size: one more than the largest number.

    Example:
        >>> rooms = Rooms(5000)
        >>> rooms.add(7)
        >>> rooms.add(4000)
        >>> rooms.next(0), rooms.next(8), rooms.next(4001)
        (7, 4000, None)
    """

    def __init__(self, size: int) -> None:
        levels = max(1, -(-(size - 1).bit_length() // _BITS))
        self._levels: list[dict[int, int]] = [{} for _ in range(levels)]

    def add(self, number: int) -> None:
        """Puts a number in."""
        for words in self._levels:
            word, bit = number >> _BITS, 1 << (number & _LAST)
            before = words.get(word, 0)
            words[word] = before | bit
            if before:
                return
            number = word

    def remove(self, number: int) -> None:
        """Takes out a number that is in it."""
        for words in self._levels:
            word = number >> _BITS
            left = words[word] ^ (1 << (number & _LAST))
            if left:
                words[word] = left
                return
            del words[word]
            number = word

    def next(self, number: int) -> int | None:
        """The smallest number in it that is at least this; None if there is none."""
        for level, words in enumerate(self._levels):
            found = words.get(number >> _BITS, 0) >> (number & _LAST)
            if found:
                number += _lowest(found)
                for below in reversed(self._levels[:level]):
                    number = number << _BITS | _lowest(below[number])
                return number
            number = (number >> _BITS) + 1
        return None


def _lowest(word: int) -> int:
    return (word & -word).bit_length() - 1
