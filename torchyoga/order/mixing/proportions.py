"""Weights -> whole numbers, how many of the first k places belong to each, for any k, and each one's j-th.

A Huffman tree over the weights: each inner node deals its places to two sides, of k places
floor((k a + R / 2) / R) to the left one, where a is the weight of the left side and R that of both. That is
the nearest whole number to its share, so every node is off by half a place at most, and the heavier a weight,
the fewer nodes lie above it. The same floor, solved for k, is the way back.

Mixtures round in a tree, and not one weight after another.
In a chain the roundings of all nodes before add up: with 64 equal weights one of them is up to nine places
off, here less than two (D. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952, for
the tree). All nodes of a depth are computed at once, because 64 weights have 63 nodes and only six depths.
"""

from __future__ import annotations

import heapq
import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...rows.types import Ints

MOST_WEIGHT = 2**31  # of all together: a product of two such numbers fits int64
_MOST_SCALED = 2**53  # of weights that a temperature has changed
_ROUNDING = 100  # a weight changes by at most this part of it


def fraction(weight: object, name: object) -> Fraction:
    """A weight as an exact fraction: a float is the decimal number that it is written as, 0.1 is 1/10.

    A tensor or an array without dimensions is its number.

    Raises:
        ValueError: it is negative, NaN or infinite, or no number.
    """
    found: Fraction | None = None
    if getattr(weight, "shape", None) == () and hasattr(weight, "item"):
        weight = weight.item()
    if isinstance(weight, float) and math.isfinite(weight):
        found = Fraction.from_decimal(Decimal(repr(weight)))
    elif isinstance(weight, numbers.Rational) and not isinstance(weight, bool):
        found = Fraction(int(weight.numerator), int(weight.denominator))
    if found is None or found.numerator < 0:
        raise ValueError(f"the weight of {name!r} must be a number of at least 0, found {weight!r:.80}")
    return found


def fractions_of(
    weights: object, names: Sequence[str], sizes: Sequence[int], temperature: float
) -> list[Fraction]:
    """The weight of each source.

    Args:
        weights: a mapping with each of the names, or "size" for the number of rows of each.
        names: of the sources.
        sizes: their numbers of rows.
        temperature: the weights are raised to the power of 1 / temperature.

    Raises:
        ValueError: a weight is negative or no number, all are 0, or the names are others.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, numbers.Real) or not temperature > 0:
        raise ValueError(f"temperature must be a number above 0, found {temperature!r}")
    if isinstance(weights, str):
        if weights != "size":
            raise ValueError(
                f'weights must be a dict of a number for each source, or "size", found {weights!r}'
            )
        found = list(map(Fraction, sizes))
    elif isinstance(weights, Mapping):
        known = set(names)
        unknown, missing = [n for n in weights if n not in known], [n for n in names if n not in weights]
        if unknown or missing:
            told = [f"there is no {unknown[:20]}"] * bool(unknown)
            told += [f"without a weight are {missing[:20]}"] * bool(missing)
            raise ValueError(
                f"weights must name each source once: the sources are {list(names)[:100]}, {', '.join(told)}"
                ". Give each of them a number, 0 to leave it out; a new source is mixed first, by yoga.mix"
            )
        found = [fraction(weights[name], name) for name in names]
    else:
        found = []
    if not found:
        raise ValueError(
            f'weights must be a dict of a number for each source, or "size", found {weights!r:.80}'
        )
    if not any(found):
        raise ValueError("all weights are 0; give at least one source a weight above 0")
    if temperature == 1:
        return found
    temperature = float(temperature) if isinstance(temperature, np.generic) else temperature
    # Relative to the largest, so that nothing overflows.
    most = max(found)
    scaled = [float(weight / most) ** (1 / temperature) for weight in found]
    return [
        Fraction(max(1, round(value * _MOST_SCALED)), _MOST_SCALED) if weight else Fraction(0)
        for value, weight in zip(scaled, found, strict=True)
    ]


def whole_weights(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportions, as long as their sum stays below 2**31.

    Beyond that they are rounded to such a sum, by the largest remainder, as long as each stays within 1 % of
    its share. A share of 5e-8 or more always does.

    Raises:
        ValueError: a share is so small that rounding would change it by more.

    Example:
        >>> whole_weights([Fraction("0.7"), Fraction("0.2"), Fraction("0.1")])
        (7, 2, 1)
    """
    scale = math.lcm(*(weight.denominator for weight in weights))
    exact = [weight.numerator * (scale // weight.denominator) for weight in weights]
    common = math.gcd(*exact)
    exact = [weight // common for weight in exact]
    total = sum(exact)
    if total <= MOST_WEIGHT:
        return tuple(exact)
    room = MOST_WEIGHT - len(exact)  # each of those above 0 may become 1
    scaled = [divmod(weight * room, total) for weight in exact]
    rounded = [max(whole, 1) if weight else 0 for weight, (whole, _) in zip(exact, scaled, strict=True)]
    by_rest = sorted(range(len(exact)), key=lambda number: (-scaled[number][1], number))
    for number in by_rest[: room - sum(whole for whole, _ in scaled)]:
        rounded[number] += 1
    whole_total = sum(rounded)
    for number, (weight, becomes) in enumerate(zip(exact, rounded, strict=True)):
        if abs(becomes * total - weight * whole_total) > weight * whole_total // _ROUNDING:
            raise ValueError(
                f"weight {number} is {float(Fraction(weight, total)):.1e} of all weights, which are kept in "
                f"units of 1 / {MOST_WEIGHT}, and rounded to that it would change by more than 1 %; give it "
                "at least 5e-8 of them, or 0"
            )
    return tuple(rounded)


class _Depth(NamedTuple):
    """The inner nodes of one depth.

    Attributes:
        node, left, right: (M,) their numbers, and those of their sides.
        share, total: (M, 1) the weight of the left side, and of both.
    """

    node: Ints
    left: Ints
    right: Ints
    share: Ints
    total: Ints


class _Turn(NamedTuple):
    """The way up from a node, towards the root, which is node 0.

    Attributes:
        node: the node above.
        weight: of the side that the way comes from.
        total: of both sides.
        rest: what is added before rounding on that side.
    """

    node: int
    weight: int
    total: int
    rest: int


class Proportions:
    """Places 0, 1, 2, ... dealt to some owners, to each its share of every prefix.

    Args:
        weights: (S,) whole numbers of at least 0, whose sum is in 1..2**31.

    Example:
        >>> shares = Proportions((7, 2, 1))
        >>> shares.counts(np.array([10, 15])).tolist()
        [[7, 11], [2, 3], [1, 1]]
        >>> shares.places(1, np.array([0, 1])).tolist()
        [1, 8]
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if min(weights) < 0 or not 0 < sum(weights) <= MOST_WEIGHT:
            raise ValueError(f"weights must be at least 0 and sum to 1..2**31, found {tuple(weights)!r:.100}")
        self.weights = tuple(weights)
        self._turns, self._leaves, self._depths = _tree(self.weights)

    def __reduce__(self) -> tuple[object, ...]:
        return Proportions, (self.weights,)

    def counts(self, places: Ints) -> Ints:
        """(S, B) how many of the first k places are each owner's, for each k (B,) in 0..2**62."""
        before = np.zeros((len(self._turns), len(places)), np.int64)
        before[0] = places
        for depth in self._depths:
            all_places = before[depth.node]
            rounds, rest = np.divmod(all_places, depth.total)
            left = rounds * depth.share + (rest * depth.share + depth.total // 2) // depth.total
            before[depth.left] = left
            before[depth.right] = all_places - left
        counts = np.zeros((len(self.weights), len(places)), np.int64)
        weighed = np.flatnonzero(self._leaves >= 0)
        counts[weighed] = before[self._leaves[weighed]]
        return counts

    def places(self, owner: int, numbers: Ints) -> Ints:
        """(B,) the place of each of an owner's own numbers, counted from 0.

        Raises:
            ValueError: the owner has no weight.
        """
        if not self.weights[owner]:
            raise ValueError(f"owner {owner} has weight 0, so no place")
        place = numbers.astype(np.int64)
        node = int(self._leaves[owner])
        while node:
            turn = self._turns[node]
            node = turn.node
            # The smallest k of which floor((k w + rest) / R) is above the number.
            rounds, left = np.divmod(place + 1, turn.weight)
            place = rounds * turn.total - (turn.rest - left * turn.total) // turn.weight - 1
        return place


@lru_cache(maxsize=64)
def _tree(weights: tuple[int, ...]) -> tuple[list[_Turn], Ints, list[_Depth]]:
    """The way up from each node, the node of each owner, -1 without a weight, the inner nodes by depth."""
    heap = [(weight, owner) for owner, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    sides: dict[int, tuple[int, int, int, int]] = {}  # of inner nodes: both sides, their weights
    for made in range(len(weights), len(weights) + len(heap) - 1):
        one, left = heapq.heappop(heap)
        other, right = heap[0]
        heapq.heapreplace(heap, (one + other, made))
        sides[made] = right, left, other, one
    leaves = np.full(len(weights), -1)
    depths: list[_Depth] = []
    row = [(0, heap[0][1])]
    turns = [_Turn(0, 1, 1, 0)]
    while row:
        inner: list[tuple[int, int, int, int, int]] = []
        below: list[tuple[int, int]] = []
        for number, node in row:
            if node < len(weights):
                leaves[node] = number
                continue
            left, right, share, rest = sides[node]
            total, half, first = share + rest, (share + rest) // 2, len(turns)
            inner.append((number, first, first + 1, share, total))
            below += [(first, left), (first + 1, right)]
            turns += [_Turn(number, share, total, half), _Turn(number, rest, total, total - 1 - half)]
        if inner:
            node_of, left_of, right_of, share_of, total = np.array(inner, np.int64).T
            depths.append(_Depth(node_of, left_of, right_of, share_of[:, None], total[:, None]))
        row = below
    return turns, leaves, depths
