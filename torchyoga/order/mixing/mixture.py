"""What is mixed: the sources, the passes over them, and their weights from each place on."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import distinct
from ...rows.data import bounds_of
from ...rows.types import Ints
from ..contract import ARRANGED, before_known
from ..proof import are_counts
from ..saved import Pin, digest
from .proportions import Proportions
from .turns import Era, since

_MOST_CLASSES = 16  # of one dataset that a state lists
_TAG = 4  # bytes


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
