"""What is mixed: the sources, the passes over them, and their weights from each place on.

Weights become whole numbers, and deal the places by a Huffman tree: each inner node deals its places to two
sides, of k places floor((k a + R / 2) / R) to the left one, where a is the weight of the left side and R that
of both. That is the nearest whole number to its share, so every node is off by half a place at most, and the
heavier a weight, the fewer nodes lie above it. The same floor, solved for k, is the way back.

Mixtures round in a tree, and not one weight after another.
In a chain the roundings of all nodes before add up: with 64 equal weights one of them is up to nine places
off, here less than two (D. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952, for
the tree). All nodes of a depth are computed at once, because 64 weights have 63 nodes and only six depths.
"""

from __future__ import annotations

import heapq
import json
import math
import numbers
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..rows.block import bounds_of
from ..rows.types import Ints
from .contract import ARRANGED, Pin, are_counts, before_known, digest

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
            wrong = [f"there is no {unknown[:20]}"] * bool(unknown)
            wrong += [f"without a weight are {missing[:20]}"] * bool(missing)
            raise ValueError(
                f"weights must name each source once: the sources are {list(names)[:100]}, {', '.join(wrong)}"
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
        is_large = int(places.max(initial=0)) >= MOST_WEIGHT  # and a product would not fit
        for depth in self._depths:
            all_places = before[depth.node]
            rounds = all_places // depth.total if is_large else np.zeros_like(depth.total)
            rest = all_places - rounds * depth.total
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


_MOST_CLASSES = 16  # of one dataset that a state lists
_TAG = 4  # bytes


_MOST_ERAS = 16


class Era(NamedTuple):
    """Passes over a source of as many rows.

    Attributes:
        first: numbers of the source before it.
        turn: the number of its first pass.
        rows: rows of each pass.
    """

    first: int
    turn: int
    rows: int

    def passes(self, count: int) -> float:
        """How often the source was read when it has given so many numbers, the last of them here."""
        return self.turn + (count - self.first) / self.rows if self.rows else 0.0

    def most(self, passes: float) -> float:
        """How many numbers the source gives in so many passes, the last of them here."""
        return self.first + (passes - self.turn) * self.rows


def turns_after(eras: Sequence[Era], count: int, rows: int) -> tuple[Era, ...]:
    """The eras of a source that has grown: the new rows come in the pass after the one under way.

    Args:
        eras: those up to there.
        count: the numbers that it had given.
        rows: how many it has now.
    """
    begun = tuple(era for era in eras if era.first < count)
    if not begun:
        return (Era(0, 0, rows),)
    last = begun[-1]
    turns = -(-(count - last.first) // last.rows)
    return (*begun, Era(last.first + turns * last.rows, last.turn + turns, rows))


def since(eras: Sequence[Era], count: int) -> tuple[Era, ...]:
    """The eras that are needed once so many numbers have been given; those before only if they are few."""
    over = sum(later.first <= count for later in eras[1:]) if len(eras) > _MOST_ERAS else 0
    return tuple(eras[over:])


class Version(NamedTuple):
    """A source as it is, or as it was before rows were appended.

    Attributes:
        rows: how many it has.
        tag: a short digest of what they are.
    """

    rows: int
    tag: str


def tag_of(identity: str) -> str:
    """A short digest of a name for some rows."""
    return hexdigest(identity, size=_TAG)


class Source(NamedTuple):
    """A source of a mixture.

    Attributes:
        name: its name.
        rows: how many it has.
        most: the most passes over it in an epoch, and before it; None if any number will do.
        versions: it as it is, and as it was before rows were appended; none if that is not known.
        grown: the passes over it, if rows were appended to it on the way.
    """

    name: str
    rows: int
    most: float | None = None
    versions: tuple[Version, ...] = ()
    grown: tuple[Era, ...] = ()

    @property
    def eras(self) -> tuple[Era, ...]:
        """The passes over it."""
        return self.grown or (Era(0, 0, self.rows),)

    def with_eras(self, eras: tuple[Era, ...]) -> Source:
        """This source with other passes over it."""
        return self._replace(grown=() if eras == (Era(0, 0, self.rows),) else eras)

    @property
    def limit(self) -> float | None:
        """How many rows of it `most` allows."""
        return None if self.most is None else self.eras[-1].most(self.most)


class MixStage(NamedTuple):
    """The weights from a place on.

    Attributes:
        start: the place, over all epochs, at which it begins.
        weights: (S,) whole numbers, of the sources that there were.
        counts: (S,) how many rows each of them has given before.
    """

    start: int
    weights: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def first(cls, weights: tuple[int, ...]) -> MixStage:
        """The weights from the beginning on."""
        return cls(0, weights, (0,) * len(weights))

    @property
    def pin(self) -> Pin:
        """The stage as a state lists it; equal first weights as one of them, and how many there are."""
        if self.start:
            return (self.start, self.weights, self.counts)
        return (0, self.weights) if len(set(self.weights)) > 1 else (0, self.weights[0], len(self.weights))

    @classmethod
    def of_pin(cls, pin: Any, num_sources: int) -> MixStage:
        """The stage that a state lists.

        Raises:
            ValueError: it is damaged, or of another number of sources.
        """
        start, weights, *more = pin
        if not start and more and are_counts(more[0]):
            weights = (weights,) * min(more[0], num_sources + 1)
        counts = more[0] if start else (0,) * len(weights)
        if not are_counts(*weights, *counts):
            raise ValueError("damaged numbers")
        if not 0 < len(weights) == len(counts) <= num_sources:
            raise ValueError(f"weights of {len(weights)} sources, expected {num_sources}")
        if sum(counts) != start:
            raise ValueError("damaged counts")
        stage = cls(start, weights, counts)
        _ = stage.shares  # raises if they are no weights
        return stage

    def count_of(self, source: int) -> int:
        """How many rows a source has given before; none if it came later."""
        return self.counts[source] if source < len(self.counts) else 0

    @property
    def shares(self) -> Proportions:
        """How its places are dealt."""
        return Proportions(self.weights)

    def counts_at(self, places: Ints) -> Ints:
        """(S, B) the rows that each of them has given before these places, all at its start or later."""
        return np.array(self.counts)[:, None] + self.shares.counts(places - self.start)


class MixTerms(NamedTuple):
    """How a mixture was asked for, where that does not follow from it.

    Attributes:
        temperature: if weights are sizes, those that they were made with.
        until: in place of a number of rows, "first" or "all".
    """

    temperature: float | None = None
    until: Literal["first", "all"] | None = None


_NOTHING = MixTerms()


@dataclass(frozen=True)
class Mixture:
    """The sources that are mixed, and how.

    Attributes:
        sources: what is mixed.
        stages: the weights, from each place on.
        rows: places of an epoch N.
        cell: places that are permuted together.
        begin: the place from which on it is known, if it goes on from a state; None if it does not.
        is_counted: True if the number of places follows from that of the rows.
        is_one: True if the sources are parts of one dataset.
        asked: how it was asked for.
    """

    sources: tuple[Source, ...]
    stages: tuple[MixStage, ...]
    rows: int
    cell: int = 64
    begin: int | None = None
    is_counted: bool = False
    is_one: bool = False
    asked: MixTerms = _NOTHING

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the sources."""
        return tuple(source.name for source in self.sources)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """(S,) rows of each source."""
        return tuple(source.rows for source in self.sources)

    @cached_property
    def pins(self) -> dict[str, Pin]:
        """Entries of a state: the weights, the sources if their versions are known, and passes over them."""
        found: dict[str, Pin] = {"stages": tuple(stage.pin for stage in self.stages)}
        if self.sources[0].versions:
            found["sources"] = sources_pin(
                [(one.name, *one.versions[0]) for one in self.sources], self.is_one
            )
        if grown := tuple(
            (source.name, *map(tuple, source.grown)) for source in self.sources if source.grown
        ):
            found["passes"] = grown
        return found

    @property
    def total(self) -> int:
        """Rows of all sources."""
        return sum(self.lengths)

    @property
    def first(self) -> int:
        """The place from which on it is known."""
        return self.begin or 0

    @property
    def num_epochs(self) -> int | None:
        """Epochs until a source is read more often than it may be; None if any number will do."""
        limits = [source.limit for source in self.sources]
        places = [self.place_of(number, int(most)) for number, most in enumerate(limits) if most is not None]
        ends = [place // self.rows for place in places if place is not None]
        least = max(-(-self.first // self.rows), 1) - 1
        return max(least, min(ends)) if ends else None

    def place_of(self, source: int, number: int) -> int | None:
        """Where a source gives a number, if cells are not permuted; None if it never does."""
        counts = [stage.count_of(source) for stage in self.stages]
        at = max(0, bisect_right(counts, number) - 1)
        stage, numbers = self.stages[at], np.array([max(number, counts[0])])
        if source >= len(stage.weights) or not stage.weights[source]:
            return None
        return stage.start + int(stage.shares.places(source, numbers - counts[at])[0])

    def passes_of(self, source: int, count: int) -> float:
        """How often a source was read when it has given so many rows."""
        eras = self.sources[source].eras
        return eras[max(0, bisect_left([era.first for era in eras], count) - 1)].passes(count)

    def most_passes(self, source: int) -> int:
        """How many passes over a source have row numbers of their own; later ones share theirs."""
        return len(ARRANGED) // len(self.lengths) // self.lengths[source]

    @property
    def starts(self) -> Ints:
        """(S + 1,) the first row of each source, if they are laid end to end, and the number of rows."""
        return bounds_of(self.lengths)

    def stage_at(self, places: Ints) -> Ints:
        """(B,) the number of the stage that each place lies in.

        Raises:
            ValueError: a place lies before the first.
        """
        if self.first and len(places) and int(places.min()) < self.first:
            raise before_known(*divmod(int(places.min()), self.rows), self.first)
        return np.searchsorted([stage.start for stage in self.stages], places, "right") - 1

    def since(self, place: int) -> Mixture:
        """The same without the stages that were over before a place, so that it goes on from there."""
        now = self.stages[sum(later.start <= place for later in self.stages[1:])]
        kept = self.stages[sum(later.start < place for later in self.stages[1:]) :]
        sources = tuple(
            source._replace(grown=since(source.grown, now.count_of(number)))
            for number, source in enumerate(self.sources)
        )
        return replace(self, sources=sources, stages=kept, begin=now.start or self.begin)

    def with_stage(self, place: int, weights: tuple[int, ...]) -> Mixture:
        """The same with other weights from the end of the cell on that a place lies in."""
        last = self.stages[-1]
        base = max(last.start, place // self.rows * self.rows)
        # Nothing is permuted across the end of an epoch.
        begin = min(base - (base - place) // self.cell * self.cell, -(-place // self.rows) * self.rows)
        if begin == last.start:
            return replace(self, stages=(*self.stages[:-1], last._replace(weights=weights)))
        counts = tuple(self.counts(np.array([begin]))[:, 0].tolist())
        return replace(self, stages=(*self.stages, MixStage(begin, weights, counts)))

    def of_first(self, rows: int) -> list[int]:
        """How many of the first rows, of all epochs together, come from each source.

        Raises:
            ValueError: the weights were changed later, and what they were before is not known.
        """
        if 0 < rows < self.first:
            raise ValueError(
                f"what the first {rows} rows are made of is not known: the weights were changed at row "
                f"{self.first}, and are known from there on. Ask for {self.first} rows or more, or ask what "
                "was there before reweighted(...)"
            )
        return self.counts(np.array([rows]))[:, 0].tolist() if rows else [0] * len(self.lengths)

    @property
    def plain(self) -> Mixture:
        """The same with the last weights from the beginning on."""
        sources = tuple(source._replace(grown=()) for source in self.sources)
        return replace(self, sources=sources, stages=(MixStage.first(self.stages[-1].weights),), begin=None)

    @property
    def is_staged(self) -> bool:
        """True if its weights change on the way, or have changed."""
        return len(self.stages) > 1 or self.stages[0].start > 0

    @property
    def first_epoch(self) -> Mixture:
        """The same for the rows that it has by number; by its last weights, if it goes on from a state."""
        return self if self.begin is None else self.plain

    def counts(self, places: Ints) -> Ints:
        """(S, B) how many of the first k places belong to each source, for each k (B,)."""
        stage = self.stage_at(places)
        found = np.zeros((len(self.lengths), len(places)), np.int64)
        for number in distinct(stage).tolist():
            some, own = np.flatnonzero(stage == number), self.stages[number]
            found[: len(own.weights), some] = own.counts_at(places[some])
        return found


def sources_pin(sources: list[tuple[str, int, str]], is_one: bool) -> Pin:
    """Sources as a state lists them: name, rows and their tag; of many parts of one dataset, a digest."""
    return digest(json.dumps(sources)) if is_one and len(sources) > _MOST_CLASSES else tuple(sources)
