"""Position -> source, pass over it and row, and back, for a mixture of sources, with integers only.

`Proportions` deals the places of all epochs, one after the other, to the sources. Places are taken in cells,
64 by default: how many of a cell belong to each source follows from the proportions at its ends, and which
ones from a keyed hash of each place. The numbers of each source ascend with the places: its number j is row
j % n of its pass j // n, by an order of its own. So every prefix of the places holds the first numbers of
each source, and other weights may go on from any place.

The places of a cell are permuted, because ranks take every W-th one.
Even shares are regular: of two equal sources every second place belongs to each, so with two ranks each would
see one source only. A cell with shorter ends, at an epoch's end, keeps the shares of every epoch exact.

A row number of a mixture holds the pass, too.
A source may be read several times within an epoch. Each time its rows are other numbers, so they have other
random numbers and a position of their own, and a source whose rows depend on the epoch is asked for those of
its own pass.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from ...process.distinct import distinct
from ...process.lazy import cached_property
from ...process.words import keyed_bytes, words_at
from ...rows.data import bounds_of
from ...rows.types import Ints
from ..compact import MARK
from ..contract import ARRANGED, Shuffle, before_known, check_epoch
from ..saved import Pin
from ..stages import ArrangedOrder, folded, short, written_stages
from .proportions import Proportions
from .sources import Source, Version, written_sources
from .turns import Era, Turns, since

__all__ = [
    "APPENDED",
    "MixTerms",
    "MixOrder",
    "MixStage",
    "Mixture",
    "numbered",
    "unpacked",
]

_CHUNK = 65536  # positions computed at once
APPENDED = MARK  # behind weights that states alone know: a loader found that rows were appended
_MOST_NUMBERS = 2**20  # of cells that are looked at together: of their places, and of their shares


class MixStage(NamedTuple):
    """The weights from a place on.

    Attributes:
        start: the place, over all epochs, at which it begins.
        weights: (S,) whole numbers, of the sources that there were.
        counts: (S,) how many rows each of them has given before.
        mark: APPENDED, if states alone know of it.
    """

    start: int
    weights: tuple[int, ...]
    counts: tuple[int, ...]
    mark: str = ""

    @property
    def told(self) -> str:
        """It as text, for states."""
        return _stage_told(self)

    def count_of(self, source: int) -> int:
        """How many rows a source has given before; none if it came later."""
        return self.counts[source] if source < len(self.counts) else 0

    @classmethod
    def of_told(cls, start: int, told: str, num_sources: int) -> MixStage:
        """The stage that `told` tells.

        Raises:
            ValueError: it is damaged, or of another number of sources.
        """
        numbers = told.rstrip(MARK)
        weights, slash, counts = numbers.partition("/")
        found = cls(
            start,
            tuple(map(_count, weights.split(","))),
            tuple(map(_count, counts.split(","))) if slash else (0,) * (weights.count(",") + 1),
            told[len(numbers) :],
        )
        if len(found.weights) > num_sources or len(found.counts) != len(found.weights):
            raise ValueError(f"weights of {len(found.weights)} sources, expected {num_sources}")
        if sum(found.counts) != start:
            raise ValueError("damaged counts")
        return found

    @property
    def shares(self) -> Proportions:
        """How its places are dealt."""
        return Proportions(self.weights)

    def counts_at(self, places: Ints) -> Ints:
        """(S, B) the rows that each of them has given before these places, all at its start or later."""
        return np.array(self.counts)[:, None] + self.shares.counts(places - self.start)


@lru_cache(maxsize=64)
def _stage_told(stage: MixStage) -> str:
    found = ",".join(map(str, stage.weights))
    found += "/" + ",".join(map(str, stage.counts)) if any(stage.counts) else ""
    return found + stage.mark


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError("damaged numbers")
    return int(text)


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
        lengths: (S,) rows of each source.
        stages: the weights, from each place on.
        rows: places of an epoch N.
        cell: places that are permuted together.
        passes: the most passes over each source in an epoch, and before it; None if any number will do.
        names: of the sources.
        past: if the first stage begins later, a digest of those before.
        versions: (S,) of each, what it is, and what it was before rows were appended.
        grown: (S,) the passes over each, if rows were appended to some.
        known: what the state is of that this goes on from, if it is not as others of this: see `identity_of`.
        is_counted: True if the number of places follows from that of the rows.
        is_one: True if the sources are parts of one dataset.
        asked: how it was asked for.
    """

    lengths: tuple[int, ...]
    stages: tuple[MixStage, ...]
    rows: int
    cell: int
    passes: tuple[float | None, ...]
    names: tuple[str, ...]
    past: str = ""
    versions: tuple[tuple[Version, ...], ...] = ()
    grown: tuple[tuple[Era, ...], ...] = ()
    known: tuple[Pin, ...] = ()
    is_counted: bool = False
    is_one: bool = False
    asked: MixTerms = _NOTHING

    def eras(self, source: int) -> tuple[Era, ...]:
        """The passes over a source."""
        return self.grown[source] if self.grown else (Era(0, 0, self.lengths[source]),)

    @property
    def sources(self) -> list[Source]:
        """The sources as states tell them."""
        return list(self._as_told)

    @property
    def _as_told(self) -> tuple[Source, ...]:
        return _sources_of(self.names, self.lengths, tuple(own[0].tag for own in self.versions), self.grown)

    @cached_property
    def told(self) -> str:
        """Its stages; the first weights are those a program begins with, as a digest if many."""
        stages = [(stage.start, stage.told if stage.start else short(stage.told)) for stage in self.stages]
        return written_stages(stages, self.past)

    @cached_property
    def told_sources(self) -> str:
        """The sources as one text, for states."""
        return written_sources(self._as_told, self.is_one)

    @property
    def total(self) -> int:
        """Rows of all sources."""
        return sum(self.lengths)

    @property
    def num_epochs(self) -> int | None:
        """Epochs until a source is read more often than `passes` allows; None if any number will do."""
        places = [
            self.place_of(number, int(most)) for number, most in enumerate(self.limits) if most is not None
        ]
        ends = [place // self.rows for place in places if place is not None]
        least = max(-(-self.stages[0].start // self.rows), 1) - 1
        return max(least, min(ends)) if ends else None

    def place_of(self, source: int, number: int) -> int | None:
        """Where a source gives a number, if cells are not permuted; None if it never does."""
        counts = [stage.count_of(source) for stage in self.stages]
        at = max(0, bisect_right(counts, number) - 1)
        stage, numbers = self.stages[at], np.array([max(number, counts[0])])
        if source >= len(stage.weights) or not stage.weights[source]:
            return None
        return stage.start + int(stage.shares.places(source, numbers - counts[at])[0])

    @property
    def limits(self) -> list[float | None]:
        """How many rows of each source `passes` allows."""
        return [
            None if most is None else self.eras(number)[-1].most(most)
            for number, most in enumerate(self.passes)
        ]

    def passes_of(self, source: int, count: int) -> float:
        """How often a source was read when it has given so many rows."""
        eras = self.eras(source)
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
        first = self.stages[0].start
        if first and len(places) and int(places.min()) < first:
            raise before_known(*divmod(int(places.min()), self.rows), first)
        return np.searchsorted([stage.start for stage in self.stages], places, "right") - 1

    def since(self, place: int) -> Mixture:
        """The same without the stages that are over at a place."""
        over = sum(later.start <= place for later in self.stages[1:])
        past = folded(self.past, [(stage.start, stage.told) for stage in self.stages[:over]])
        first = self.stages[over]
        grown = tuple(since(eras, first.count_of(number)) for number, eras in enumerate(self.grown))
        return replace(self, stages=self.stages[over:], past=past, grown=grown)

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
        first = self.stages[0].start
        if 0 < rows < first:
            raise ValueError(
                f"what the first {rows} rows are made of is not known: the weights were changed at row "
                f"{first}, and are known from there on. Ask for {first} rows or more, or ask what was there "
                "before reweighted(...)"
            )
        return self.counts(np.array([rows]))[:, 0].tolist() if rows else [0] * len(self.lengths)

    @property
    def plain(self) -> Mixture:
        """The same with the last weights from the beginning on."""
        first = MixStage(0, self.stages[-1].weights, (0,) * len(self.lengths))
        return replace(self, stages=(first,), past="", grown=(), known=())

    def counts(self, places: Ints) -> Ints:
        """(S, B) how many of the first k places belong to each source, for each k (B,)."""
        stage = self.stage_at(places)
        found = np.zeros((len(self.lengths), len(places)), np.int64)
        for number in distinct(stage).tolist():
            some, own = np.flatnonzero(stage == number), self.stages[number]
            found[: len(own.weights), some] = own.counts_at(places[some])
        return found


@dataclass(frozen=True, eq=False)
class MixOrder(ArrangedOrder):
    """The order of a mixture in every epoch, over all ranks.

    Row numbers are those of `unpacked`. Without shuffle each source comes in its own order. In any case an
    epoch goes on where the one before it ended.

    Args:
        mixture: what is mixed.
        seed: any int.
        shuffle: True, False, or "block" for a block shuffle of each source.
        reshuffle: False gives every epoch the order of epoch 0, if it shuffles.
        window: files of a source mixed with each other at once.
        files: for each source where its files begin, as `BlockOrder` takes it; needed for "block".
    """

    mixture: Mixture
    seed: int = 0
    shuffle: Shuffle = True
    reshuffle: bool = True
    window: int = 8
    files: tuple[Ints, ...] = ()

    what = "this mixture"

    @property
    def length(self) -> int:  # type: ignore[override]
        """Places of an epoch N."""
        return self.mixture.rows

    def _rows(self, epoch: int, positions: Ints) -> Ints:
        first = self._first(epoch)
        flat = positions + first
        out = np.empty_like(flat)
        for start in range(0, flat.size, _CHUNK):
            places = flat[start : start + _CHUNK]
            source, key = self._dealt(places, first)
            out[start : start + _CHUNK] = self._numbers(source, key)
        return out

    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        first = self._first(epoch)
        which, passes, row = unpacked(self.mixture, numbers)
        found = np.full(numbers.shape, -1, np.int64)
        known = max(first, self.mixture.stages[0].start)
        before, after = (np.array(self.consumed(end)) for end in (known, max(known, first + self.length)))
        for source in distinct(which).tolist():
            some = np.flatnonzero(which == source)
            turns = self._source(source)
            seen = turns.turn_at(int(before[source]))  # the pass in which this epoch begins
            own = seen + (passes[some] - seen) % self.mixture.most_passes(source)
            key = turns.keys(own, row[some])
            inside = np.flatnonzero((key >= before[source]) & (key < after[source]))
            found[some[inside]] = self._places(source, key[inside], first) - first
        return found

    def consumed(self, place: int) -> tuple[int, ...]:
        """(S,) how many rows each source has given before a place, wherever it lies in its cell."""
        epoch, position = divmod(place, self.length)
        stage = self.mixture.stage_at(np.array([place - 1])) if place > self.mixture.stages[0].start else None
        if stage is None or not position:
            return tuple(self.mixture.counts(np.array([place]))[:, 0].tolist())
        first = max(self.mixture.stages[int(stage[0])].start, epoch * self.length)
        begin = first + (place - 1 - first) // self.mixture.cell * self.mixture.cell
        source, _ = self._dealt(np.arange(begin, place), epoch * self.length)
        given = np.bincount(source, minlength=len(self.mixture.lengths))
        given += self.mixture.counts(np.array([begin]))[:, 0]
        return tuple(given.tolist())

    def check_place(self, epoch: int, position: int) -> None:
        """Raises ValueError if it cannot go on from this position of the epoch."""
        check_epoch(epoch, self.length)
        self.mixture.stage_at(np.array([epoch * self.length + position]))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        found = super().pins(epoch)
        if self.mixture.versions:
            found["sources"] = self.mixture.told_sources
        if self.shuffle == "block":
            found["files"] = keyed_bytes(8, *(some.tobytes().hex() for some in self.files)).hex()
        return found

    @property
    def known(self) -> tuple[Pin, ...]:
        """What states are of that this goes on from, besides its own."""
        return self.mixture.known

    @property
    def told(self) -> str:
        """Its stages, as a state records them."""
        return self.mixture.told

    def _front(self, epoch: int) -> int:
        first = self._first(epoch)
        begun = [stage.start for stage in self.mixture.stages if stage.start < first + self.length]
        return max(0, begun[-1] - first) if begun else 0

    def _first(self, epoch: int) -> int:
        """The place at which an epoch begins."""
        check_epoch(epoch, self.length)
        _check_passes(self, epoch)
        return 0 if self.shuffle and not self.reshuffle else epoch * self.length

    def _cells(self, places: Ints, first: int) -> Iterator[tuple[Ints, Ints, _Cells]]:
        """For runs of places of an epoch that begins at `first`: which ones, the cell of each, the cells."""
        cell, end = self.mixture.cell, first + self.length
        stages = self.mixture.stage_at(places)
        for number in distinct(stages).tolist():
            stage = self.mixture.stages[number]
            base = max(stage.start, first)
            some = np.flatnonzero(stages == number)
            which = (places[some] - base) // cell
            low, high = int(which.min()), int(which.max())
            if high - low < 2 * len(some):
                cells = np.arange(low, high + 1)
                which -= low
            else:
                cells = distinct(which)
                which = np.searchsorted(cells, which)
            most = max(1, _MOST_NUMBERS // max(cell, len(stage.weights)))
            for begin in range(0, len(cells), most):
                part = cells[begin : begin + most]
                made = _Cells.of(stage, base + part * cell, cell, end, self._key)
                if len(part) == len(cells):
                    yield some, which, made
                    continue
                inside = np.flatnonzero((which >= begin) & (which < begin + most))
                yield some[inside], which[inside] - begin, made

    def _dealt(self, places: Ints, first: int) -> tuple[Ints, Ints]:
        """The source of each place, and the number that it is there."""
        source, key = np.empty_like(places), np.empty_like(places)
        for some, cell, cells in self._cells(places, first):
            at = cell * self.mixture.cell + places[some] - cells.begins[cell]
            source[some] = cells.source.reshape(-1)[at]
            key[some] = cells.key.reshape(-1)[at]
        return source, key

    def _places(self, source: int, keys: Ints, first: int) -> Ints:
        """The places of numbers of a source, all in the epoch that begins at `first`."""
        counts = [stage.count_of(source) for stage in self.mixture.stages]
        stages = np.searchsorted(counts, keys, "right") - 1
        even = np.empty_like(keys)  # where they would be if cells were not permuted
        for number in distinct(stages).tolist():
            some, stage = np.flatnonzero(stages == number), self.mixture.stages[number]
            even[some] = stage.start + stage.shares.places(source, keys[some] - stage.count_of(source))
        found = np.empty_like(keys)
        for number in distinct(stages).tolist():
            mine = np.flatnonzero(stages == number)
            stage = self.mixture.stages[number]
            base = max(stage.start, first)
            cell = self.mixture.cell
            begins = base + (even[mine] - base) // cell * cell
            for start in range(0, len(mine), step := max(1, _MOST_NUMBERS // max(cell, len(counts)))):
                part, some = begins[start : start + step], mine[start : start + step]
                cells = _Cells.of(stage, part, cell, first + self.length, self._key)
                match = (cells.source == source) & (cells.key == keys[some][:, None])
                found[some] = part + match.argmax(axis=1)
        return found

    def _numbers(self, source: Ints, key: Ints) -> Ints:
        """The row numbers of numbers of sources."""
        num_sources = len(self.mixture.lengths)
        order = np.argsort(source.astype(np.uint16 if num_sources < 2**16 else np.int64), kind="stable")
        counts = np.bincount(source, minlength=num_sources)
        bounds, keys = bounds_of(counts).tolist(), key[order]
        turns, row = np.empty_like(key), np.empty_like(key)
        for number in np.flatnonzero(counts).tolist():
            some = order[bounds[number] : bounds[number + 1]]
            passes, row[some] = self._source(number).rows(keys[bounds[number] : bounds[number + 1]])
            turns[some] = passes % self.mixture.most_passes(number)
        return numbered(self.mixture, source, turns, row)

    def _source(self, number: int) -> Turns:
        files = self if self.files else None
        return _turns_of(self.mixture.eras(number), self.shuffle, self.window, self.seed, number, files)

    @property
    def _key(self) -> int:
        """The key by which cells are permuted."""
        return int.from_bytes(keyed_bytes(8, "mix", self.seed if self.shuffle else 0), "little")


def numbered(mixture: Mixture, source: Ints, passes: Ints, rows: Ints) -> Ints:
    """The row numbers of rows (B,) of sources, in some passes over them: the inverse of `unpacked`."""
    found: Ints = passes * np.array(mixture.lengths)[source]
    found += rows
    found *= len(mixture.lengths)
    found += source
    found += ARRANGED.start
    return found


def unpacked(mixture: Mixture, numbers: Ints) -> tuple[Ints, Ints, Ints]:
    """The source of each row number (B,), which pass over it, and the row there.

    Raises:
        ValueError: there is no such number.
    """
    if not len(numbers):
        return numbers, numbers, numbers
    if int(numbers.min()) < ARRANGED.start or int(numbers.max()) >= ARRANGED.stop:
        raise ValueError(
            f"row numbers of this mixture are in {ARRANGED}, found {int(numbers.min())}..{int(numbers.max())}"
        )
    key, source = np.divmod(numbers - ARRANGED.start, len(mixture.lengths))
    lengths = np.array(mixture.lengths)[source]
    if not lengths.all():
        raise ValueError(f"row number {int(numbers[np.argmin(lengths)])} is of a source without rows")
    passes, row = np.divmod(key, lengths)
    return source, passes, row


class _Cells(NamedTuple):
    """Some cells: the source of each of their places, and the number that it is there.

    Attributes:
        begins: (C,) the place at which each begins.
        source, key: (C, size of a cell); of a shorter cell the rest is -1.
    """

    begins: Ints
    source: Ints
    key: Ints

    @classmethod
    def of(cls, stage: MixStage, begins: Ints, size: int, end: int, key: int) -> _Cells:
        """The cells of a stage that begin at some places, in an epoch that ends at `end`."""
        ends = np.minimum(begins + size, end)
        num_cells, num_sources = len(begins), len(stage.weights)
        if num_cells > 1 and bool((begins[1:] == ends[:-1]).all()):
            at = stage.counts_at(np.append(begins, ends[-1]))
            before, shares = at[:, :-1], np.diff(at)
        else:
            at = stage.counts_at(np.concatenate([begins, ends]))
            before, shares = at[:, :num_cells], at[:, num_cells:] - at[:, :num_cells]
        places = np.arange(size)
        row_starts = np.arange(num_cells)[:, None] * size
        # (C, S + 1): what there is of each source, and of nothing, from the source's first number on.
        counts = np.concatenate([shares, (size - (ends - begins))[None]]).T
        labels: Ints = np.repeat(np.tile(np.arange(num_sources + 1), num_cells), counts.reshape(-1))
        labels = labels.reshape(num_cells, size)
        offsets = np.concatenate([before, np.zeros((1, num_cells), np.int64)]).T
        offsets = np.repeat((offsets - np.cumsum(counts, axis=1) + counts).reshape(-1), counts.reshape(-1))
        keys: Ints = offsets.reshape(num_cells, size) + places
        if size > 1:
            bits = (size - 1).bit_length()
            low = np.uint64(bits)
            words = words_at(key, begins[:, None] + places) >> low << low | places.astype(np.uint64)
            words[places >= (ends - begins)[:, None]] |= np.uint64(2**64 - 2**bits)
            words.sort(axis=1)
            source = np.empty(num_cells * size, np.int64)
            at_places = (words & np.uint64(2**bits - 1)).astype(np.int64) + row_starts
            source[at_places.reshape(-1)] = labels.reshape(-1)
            # The numbers of each source ascend with the places.
            wide = np.uint16 if (num_sources + 1) << bits <= 2**16 else np.int64
            by_source = (source.reshape(num_cells, size) << bits | places).astype(wide)
            by_source.sort(axis=1)
            at_places = (by_source & wide(2**bits - 1)).astype(np.int64) + row_starts
            found = np.empty(num_cells * size, np.int64)
            found[at_places.reshape(-1)] = keys.reshape(-1)
            labels, keys = source.reshape(num_cells, size), found.reshape(num_cells, size)
        is_none = labels == num_sources
        if is_none.any():
            labels, keys = np.where(is_none, -1, labels), np.where(is_none, -1, keys)
        return cls(begins, labels, keys)


@lru_cache(maxsize=64)
def _sources_of(
    names: tuple[str, ...],
    lengths: tuple[int, ...],
    tags: tuple[str, ...],
    grown: tuple[tuple[Era, ...], ...],
) -> tuple[Source, ...]:
    """The sources of a mixture as states tell them: the same for all stages of its weights."""
    tags = tags or ("",) * len(names)
    plain = zip(names, lengths, tags, grown or ((),) * len(names), strict=True)
    return tuple(
        Source(name, rows, tag, () if eras == (Era(0, 0, rows),) else eras) for name, rows, tag, eras in plain
    )


@lru_cache(maxsize=4096)  # of all mixtures in use; the same for all stages of their weights
def _turns_of(
    eras: tuple[Era, ...],
    shuffle: Shuffle,
    window: int,
    seed: int,
    number: int,
    order: MixOrder | None,
) -> Turns:
    """A source in the order of each pass; `order` is that of the mixture if the source has files."""
    files = None if order is None else order.files[number]
    return Turns(eras, shuffle, window, files, "mix", seed, number)


@lru_cache(maxsize=64)
def _check_passes(order: MixOrder, epoch: int) -> None:
    """Raises ValueError if an epoch needs more passes over a source than it may have."""
    mixture = order.mixture
    if mixture.passes.count(None) == len(mixture.passes):
        return
    end = max((epoch + 1) * mixture.rows, mixture.stages[0].start)  # before that, nothing is known
    counts = mixture.counts(np.array([end]))[:, 0].tolist()
    rows = zip(mixture.names, counts, mixture.lengths, mixture.passes, mixture.limits, strict=True)
    for name, count, length, most, limit in rows:
        if most is not None and limit is not None and count > limit:
            raise ValueError(
                f"by the end of epoch {epoch} the mixture reads the {length} rows of {name!r} "
                f"{count / length:.2f} times, and epochs= allows {most:g}, which is {mixture.num_epochs} "
                "epochs of the mixture; train for fewer, give it less weight, or allow more"
            )
