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

A source gives its numbers in passes of as many rows as it has.
When rows are appended, the next passes have them, too. So a source is a few eras, and most have one. Each
pass has an order of its own, and many passes over a small source are computed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..process.digests import keyed_bytes, words_at
from ..process.lazy import cached_with
from ..process.numbers import distinct
from ..rows.block import bounds_of
from ..rows.types import Ints
from .by_file import BlockOrder
from .contract import ARRANGED, AnyOrder, ArrangedOrder, Pin, Shuffle, are_outside, check_epoch
from .full import Order
from .mixture import Era, MixStage, Mixture

_MOST_NUMBERS = 2**20  # sorted together; or places, or shares, of cells that are looked at together
_MOST_SORTED, _SORTED_BITS = 4096, 12  # rows of a source whose passes are sorted
# Rows of a pass that is computed as a whole and kept, in 2 or 4 bytes each. Few take as long as some of them;
# for more, some must have been asked for, and those of all sources are bounded.
_FEW_KEPT, _MOST_KEPT, _ASKED = 2**14, 2**19, 1 / 16


class Turns:
    """A source in the order of each pass over it.

    Args:
        eras: its passes.
        shuffle: True, False or "block".
        window: files mixed with each other at once, if shuffle is "block".
        files: where its files begin, if shuffle is "block".
        most: rows of a pass that may be kept.
        key: what the order depends on.
    """

    def __init__(
        self, eras: Sequence[Era], shuffle: Shuffle, window: int, files: Ints | None, most: int, *key: int
    ) -> None:
        self._eras, self._shuffle, self._window, self._key = eras, shuffle, window, key
        self._files, self._most = files, most
        self._firsts = [era.first for era in eras]
        self._passes: dict[int, _Passes] = {}  # by number of rows

    def rows(self, keys: Ints) -> tuple[Ints, Ints]:
        """The pass, and the row in it, of each number of the source (B,)."""
        if len(self._eras) == 1:
            return self._in(self._eras[0], keys)
        passes, rows = np.empty_like(keys), np.empty_like(keys)
        which = np.searchsorted(self._firsts, keys, "right") - 1
        for number in distinct(which).tolist():
            some = np.flatnonzero(which == number)
            passes[some], rows[some] = self._in(self._eras[number], keys[some])
        return passes, rows

    def _in(self, era: Era, keys: Ints) -> tuple[Ints, Ints]:
        numbers = keys - era.first
        passes = numbers // era.rows  # which is faster than NumPy's divmod
        places = numbers - passes * era.rows
        passes += era.turn
        return passes, self._of(era).turned(passes, places, forward=True)

    def keys(self, passes: Ints, rows: Ints) -> Ints:
        """The number of each row in a pass (B,); -1 where the pass does not have it."""
        keys = np.full(len(rows), -1, np.int64)
        for era, end in zip(self._eras, [*self._firsts[1:], None], strict=True):
            is_here = (rows >= 0) & (rows < era.rows) & (passes >= era.turn)
            if end is not None:
                is_here &= passes < era.turn - (era.first - end) // era.rows
            some = np.flatnonzero(is_here)
            if not len(some):
                continue
            turns = passes[some]
            place = self._of(era).turned(turns, rows[some], forward=False)
            keys[some] = era.first + (turns - era.turn) * era.rows + place
        return keys

    def turn_at(self, key: int) -> int:
        """The pass that a number of the source is of."""
        era = self._eras[max(bisect_right(self._firsts, key) - 1, 0)]
        return era.turn + (key - era.first) // era.rows

    def _of(self, era: Era) -> _Passes:
        """The passes of an era."""
        rows, files = era.rows, self._files
        if rows not in self._passes:
            if files is not None and int(files[-1]) != rows:
                files = np.append(files[files < rows], rows)
            self._passes[rows] = self._over(rows, files)
        return self._passes[rows]

    def _over(self, length: int, files: Ints | None) -> _Passes:
        """The passes over so many rows."""
        if not self._shuffle:
            return _EachPass(Order(length, shuffle=False))
        if length <= _MOST_SORTED:
            return _SortedPasses(
                length, int.from_bytes(keyed_bytes(8, "passes", "mix", *self._key), "little")
            )
        seed = int.from_bytes(keyed_bytes(8, "source", "mix", *self._key), "little")
        if files is not None:
            return _EachPass(BlockOrder(files, seed, "block", window=self._window), self._most)
        return _EachPass(Order(length, seed), self._most)


class _EachPass:
    """Passes over rows, each of which is an epoch of an order; the last one is kept if it is short."""

    def __init__(self, order: AnyOrder, most: int = 0) -> None:
        self._order, self._most = order, most
        # A pass, how many of its rows were asked, and the row at each of its positions.
        self._last: tuple[int, int, Ints | None] = -1, 0, None

    def turned(self, passes: Ints, numbers: Ints, forward: bool) -> Ints:
        """The row at each position of a pass, or the position of each row."""
        low, high = int(passes.min()), int(passes.max())
        if low == high or not self._order.shuffle:
            return self._in(low, numbers, forward)
        found = np.empty_like(numbers)
        for number in distinct(passes).tolist():
            some = np.flatnonzero(passes == number)
            found[some] = self._in(number, numbers[some], forward)
        return found

    def _in(self, number: int, numbers: Ints, forward: bool) -> Ints:
        order, (last, asked, rows) = self._order, self._last
        if not (forward and order.length <= self._most):
            return (order.rows if forward else order.positions)(number, numbers)
        asked, rows = (asked + len(numbers), rows) if last == number else (len(numbers), None)
        if rows is None and (order.length <= _FEW_KEPT or asked >= _ASKED * order.length):
            rows = order.rows(number, np.arange(order.length)).astype(np.min_scalar_type(order.length))
        self._last = number, asked, rows
        return order.rows(number, numbers) if rows is None else rows[numbers].astype(np.int64)


class _SortedPasses:
    """Passes over few rows: each is the order of their keyed hashes, many passes at once."""

    def __init__(self, length: int, key: int) -> None:
        self._length = length
        self._key = key
        self._last: tuple[int, Ints] | None = None  # a pass, and the row at each of its positions

    def turned(self, passes: Ints, numbers: Ints, forward: bool) -> Ints:
        """The row at each position of a pass, or the position of each row."""
        if len(passes) and int(passes.min()) == int(passes.max()):
            last = self._last
            if last is None or last[0] != passes[0]:
                last = self._last = int(passes[0]), self._sorted(passes[:1])[0].astype(np.uint16)
            rows = last[1] if forward else np.argsort(last[1])
            return rows[numbers].astype(np.int64)
        wanted = distinct(passes)
        which = np.searchsorted(wanted, passes)
        found = np.empty_like(numbers)
        step = max(1, _MOST_NUMBERS // self._length)
        for start in range(0, len(wanted), step):
            rows = self._sorted(wanted[start : start + step])
            if not forward:
                rows = np.argsort(rows, axis=1)
            some = np.flatnonzero((which >= start) & (which < start + step))
            found[some] = rows[which[some] - start, numbers[some]]
        return found

    def _sorted(self, passes: Ints) -> Ints:
        """(P, n) the rows of each of these passes."""
        low, rows = np.uint64(_SORTED_BITS), np.arange(self._length)
        words = words_at(self._key, passes[:, None] * self._length + rows) >> low << low
        words |= rows.astype(np.uint64)
        words.sort(axis=1)
        found: Ints = (words & np.uint64(2**_SORTED_BITS - 1)).astype(np.int64)
        return found


_Passes = _EachPass | _SortedPasses


_DEALT = 32768  # places dealt at once, so that they stay in the processor's cache
_FEW = 2048  # places, of which numbers are found as fast as how many were consumed before


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

    def __post_init__(self) -> None:
        if self.shuffle and not self.reshuffle:  # every epoch is the first one
            object.__setattr__(self, "mixture", self.mixture.plain)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Places of an epoch N."""
        return self.mixture.rows

    @property
    def at_once(self) -> int:  # type: ignore[override]
        """More for many sources: each is asked for its share of them, which takes long for any number."""
        return min(max(2**16, 2**12 * len(self.mixture.sources)), 2**18)

    def _rows(self, epoch: int, positions: Ints) -> Ints:
        first = self._first(epoch)
        flat = positions + first
        out = np.empty_like(flat)
        for start in range(0, flat.size, step := self.at_once):
            places = flat[start : start + step]
            # Places that follow each other are numbered on from what was consumed before.
            is_run = len(places) > _FEW and (np.diff(places) == 1).all()
            before = self.consumed(int(places[0])) if is_run else ()
            pieces = (places[at : at + _DEALT] for at in range(0, len(places), _DEALT))
            dealt = (self._dealt(piece, first, has_keys=not before) for piece in pieces)
            source, key = map(np.concatenate, zip(*dealt, strict=True))
            out[start : start + step] = self._numbers(source, key, before, int(places.max()))
        return out

    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        first = self._first(epoch)
        which, passes, row = unpacked(self.mixture, numbers)
        found = np.full(numbers.shape, -1, np.int64)
        known = max(first, self.mixture.first)
        before, after = (np.array(self.consumed(end)) for end in (known, max(known, first + self.length)))
        for source in distinct(which).tolist():
            some = np.flatnonzero(which == source)
            turns = _turns_of(self, source)
            seen = turns.turn_at(int(before[source]))  # the pass in which this epoch begins
            own = seen + (passes[some] - seen) % self.mixture.most_passes(source)
            key = turns.keys(own, row[some])
            inside = np.flatnonzero((key >= before[source]) & (key < after[source]))
            found[some[inside]] = self._places(source, key[inside], first) - first
        return found

    def consumed(self, place: int) -> tuple[int, ...]:
        """(S,) how many rows each source has given before a place, wherever it lies in its cell."""
        epoch, position = divmod(place, self.length)
        stage = self.mixture.stage_at(np.array([place - 1])) if place > self.mixture.first else None
        if stage is None or not position:
            return tuple(self.mixture.counts(np.array([place]))[:, 0].tolist())
        first = max(self.mixture.stages[int(stage[0])].start, epoch * self.length)
        begin = first + (place - 1 - first) // self.mixture.cell * self.mixture.cell
        source, _ = self._dealt(np.arange(begin, place), epoch * self.length, has_keys=False)
        given = np.bincount(source, minlength=len(self.mixture.lengths))
        given += self.mixture.counts(np.array([begin]))[:, 0]
        return tuple(given.tolist())

    def check_place(self, epoch: int, position: int) -> None:
        """Raises ValueError if it cannot go on from this position of the epoch."""
        check_epoch(epoch, self.length)
        self.mixture.stage_at(np.array([epoch * self.length + position]))

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        found = super().pins(epoch) | self.mixture.pins
        if self.shuffle == "block":
            found["files"] = keyed_bytes(8, *(some.tobytes().hex() for some in self.files)).hex()
        return found

    def _front(self, epoch: int) -> int:
        first = self._first(epoch)
        begun = [stage.start for stage in self.mixture.stages if stage.start < first + self.length]
        return max(0, begun[-1] - first) if begun else 0

    def _first(self, epoch: int) -> int:
        """The place at which an epoch begins."""
        check_epoch(epoch, self.length)
        _check_passes(self, epoch)
        return 0 if self.shuffle and not self.reshuffle else epoch * self.length

    def _cells(self, places: Ints, first: int) -> Iterator[tuple[Ints | slice, Ints, _Cells]]:
        """For runs of places of an epoch that begins at `first`: which ones, where in the cells, these."""
        cell, end = self.mixture.cell, first + self.length
        stages, is_one = self.mixture.stage_at(places), len(self.mixture.stages) == 1
        for number in [0] if is_one else distinct(stages).tolist():
            stage = self.mixture.stages[number]
            base = max(stage.start, first)
            some = slice(None) if is_one else np.flatnonzero(stages == number)
            within = places[some] - base
            which = within // cell
            low, high = int(which.min()), int(which.max())
            if high - low < 2 * len(which):
                cells = np.arange(low, high + 1)
                within -= low * cell
            else:
                cells = distinct(which)
                within += (np.searchsorted(cells, which) - which) * cell
            most = max(1, _MOST_NUMBERS // max(cell, len(stage.weights)))
            for begin in range(0, len(cells), most):
                part = cells[begin : begin + most]
                made = _Cells.of(stage, base + part * cell, cell, end, self._key)
                if len(part) == len(cells):
                    yield some, within, made
                    continue
                low, high = begin * cell, (begin + most) * cell
                inside = np.flatnonzero((within >= low) & (within < high))
                yield np.arange(len(places))[some][inside], within[inside] - low, made

    def _dealt(self, places: Ints, first: int, has_keys: bool) -> tuple[_Numbers, Ints]:
        """The source of each place, and the number that it is there, if that is wanted."""
        num_sources = len(self.mixture.lengths)
        source = np.empty(len(places), np.uint16 if num_sources <= 2**16 else np.int64)
        key = np.empty_like(places)
        for some, at, cells in self._cells(places, first):
            source[some] = cells.source.reshape(-1).take(at)
            if has_keys:
                key[some] = cells.key.reshape(-1).take(at)
        return source, key

    def _places(self, source: int, keys: Ints, first: int) -> Ints:
        """The places of numbers of a source, all in the epoch that begins at `first`."""
        counts = [stage.count_of(source) for stage in self.mixture.stages]
        stages = np.searchsorted(counts, keys, "right") - 1
        found = np.empty_like(keys)
        for number in distinct(stages).tolist():
            mine, stage = np.flatnonzero(stages == number), self.mixture.stages[number]
            # Where they would be if cells were not permuted.
            even = stage.start + stage.shares.places(source, keys[mine] - stage.count_of(source))
            base, cell = max(stage.start, first), self.mixture.cell
            begins = base + (even - base) // cell * cell
            for start in range(0, len(mine), step := max(1, _MOST_NUMBERS // max(cell, len(counts)))):
                part, some = begins[start : start + step], mine[start : start + step]
                cells = _Cells.of(stage, part, cell, first + self.length, self._key)
                match = (cells.source == source) & (cells.key == keys[some][:, None])
                found[some] = part + match.argmax(axis=1)
        return found

    def _numbers(self, source: _Numbers, key: Ints, before: Sequence[int], last: int) -> Ints:
        """The row numbers of numbers of sources up to a place; they follow some consumed `before`, if any."""
        lengths = self.mixture.lengths
        is_far = last >= len(ARRANGED) // len(lengths) // max(lengths)  # there are no more passes than places
        order = np.argsort(source, kind="stable")  # of 16 bits, by radix
        bounds = bounds_of(np.bincount(source, minlength=len(lengths)))
        found = np.empty_like(key)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            some = order[bounds[number] : bounds[number + 1]]
            keys = np.arange(before[number], before[number] + len(some)) if before else key[some]
            numbers, row = _turns_of(self, number).rows(keys)
            if is_far:
                numbers %= self.mixture.most_passes(number)
            numbers *= lengths[number]
            numbers += row
            found[some] = numbers * len(lengths) + (ARRANGED.start + number)
        return found

    @property
    def _key(self) -> int:
        """The key by which cells are permuted."""
        return int.from_bytes(keyed_bytes(8, "mix", self.seed if self.shuffle else 0), "little")


def unpacked(mixture: Mixture, numbers: Ints) -> tuple[Ints, Ints, Ints]:
    """The source of each row number (B,), which pass over it, and the row there.

    Raises:
        ValueError: there is no such number.
    """
    if are_outside(inside := numbers - ARRANGED.start, len(ARRANGED)):
        raise ValueError(
            f"row numbers of this mixture are in {ARRANGED}, found {int(numbers.min())}..{int(numbers.max())}"
        )
    key = inside // len(mixture.lengths)  # which is faster than NumPy's divmod
    source = inside - key * len(mixture.lengths)
    lengths = np.array(mixture.lengths)[source]
    if not lengths.all():
        raise ValueError(f"row number {int(numbers[np.argmin(lengths)])} is of a source without rows")
    passes = key // lengths
    return source, passes, key - passes * lengths


_Numbers: TypeAlias = npt.NDArray[np.integer[Any]]  # of sources, in 16 bits or 64
_Kind = TypeVar("_Kind", bound=np.integer[Any])


class _Cells(NamedTuple):
    """Some cells: the source of each of their places, and the number that it is there.

    Attributes:
        before: (S, C) how many numbers each source has given before.
        counts: (C * (S + 1),) how many places of each cell are of each source, and of none.
        source: (C, size of a cell); the source of the rest of a shorter cell is S.
    """

    before: Ints
    counts: Ints
    source: _Numbers

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
        places, lengths = np.arange(size), ends - begins
        counts = np.concatenate([shares, (size - lengths)[None]]).T.reshape(-1)
        bits = (size - 1).bit_length()
        # Not 16 bits: NumPy sorts 32 several times as fast.
        kind = np.uint32 if (num_sources + 1) << bits <= 2**32 else np.int64
        source: _Numbers = np.repeat(np.tile(np.arange(num_sources + 1, dtype=kind), num_cells), counts)
        low, words = np.uint64(2**bits - 1), words_at(key, begins[:, None] + places)
        words &= ~low
        words |= places.astype(np.uint64)
        if int(lengths.min()) < size:
            words[places >= lengths[:, None]] |= ~low
        words.sort(axis=1)
        words &= low
        return cls(before, counts, _put(source, words))

    @property
    def key(self) -> Ints:
        """(C, size of a cell) the number that each place is of its source; these ascend with the places."""
        num_cells, size = self.source.shape
        firsts = np.concatenate([self.before, np.zeros((1, num_cells), np.int64)]).T.reshape(-1)
        firsts += self.counts
        keys: Ints = np.repeat(firsts - np.cumsum(self.counts), self.counts)
        keys += np.arange(len(keys))
        kind, bits = self.source.dtype.type, (size - 1).bit_length()
        by_source: _Numbers = self.source << kind(bits)
        by_source |= np.arange(size, dtype=kind)
        by_source.sort(axis=1)
        by_source &= kind(2**bits - 1)
        return _put(keys, by_source)


def _put(values: npt.NDArray[_Kind], places: npt.NDArray[Any]) -> npt.NDArray[_Kind]:
    """(C, size) the values of each row, end to end, at other places of it."""
    at = places.astype(np.int64)
    at += np.arange(len(at))[:, None] * at.shape[1]
    found = np.empty_like(values)
    found[at.reshape(-1)] = values
    return found.reshape(at.shape)


@cached_with(maxsize=4096)  # sources
def _turns_of(order: MixOrder, number: int) -> Turns:
    """A source of a mixture in the order of each pass."""
    files, eras = order.files[number] if order.files else None, order.mixture.sources[number].eras
    most = max(_FEW_KEPT, _MOST_KEPT // len(order.mixture.sources))
    return Turns(eras, order.shuffle, order.window, files, most, order.seed, number)


@lru_cache(maxsize=64)
def _check_passes(order: MixOrder, epoch: int) -> None:
    """Raises ValueError if an epoch needs more passes over a source than it may have."""
    mixture = order.mixture
    if all(source.most is None for source in mixture.sources):
        return
    end = max((epoch + 1) * mixture.rows, mixture.first)  # before that, nothing is known
    counts = mixture.counts(np.array([end]))[:, 0].tolist()
    for source, count in zip(mixture.sources, counts, strict=True):
        if source.limit is not None and count > source.limit:
            raise ValueError(
                f"by the end of epoch {epoch} the mixture reads the {source.rows} rows of {source.name!r} "
                f"{count / source.rows:.2f} times, and epochs= allows {source.most:g}, which is "
                f"{mixture.num_epochs} epochs of the mixture; train for fewer, give it less weight, or allow "
                "more"
            )
