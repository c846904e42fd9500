"""Some of N rows, in ascending order, in little memory: as runs, as bits or as a list.

A selection takes the form that is smallest.
Runs take 24 bytes each, bits 1.13 bits for each row there is, a list 4 or 8 bytes for each row selected. The
form follows from the rows alone, so the same rows have the same pin, however they were found. It takes a
tenth of a microsecond to get from a row to its place, and a quarter from a place to its bit: counts of ones
before each run of bits, then a look at that run (G. Jacobson, "Space-efficient Static Trees", 1989). Of up to
half a million rows selected by bits, a list of 4 MB is kept besides once they are read: each takes 5 ns then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..rows.data import bounds_of
from ..rows.types import Ints

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
_WORDS = 8  # 64 bits each, that are counted together
_BITS = 64 * _WORDS
_CHUNK = 2**16  # words looked at together
_UNPACKED = 2**19  # rows, at most, of which a list is made when they are first looked up


class _Form(Protocol):
    """Some rows, in ascending order."""

    count: int

    def rows(self, places: Ints) -> Ints:
        """The row at each place, in 0..count - 1."""

    def before(self, rows: Ints) -> Ints:
        """How many selected rows come before each row, which may be the number of rows, too."""

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The arrays that it consists of."""


class Selection:
    """Some of N rows, in ascending order.

    Args:
        total: number of rows N.
        words: (ceil(N / 64),) a bit for each row, from the lowest; those beyond N are 0.

    Attributes:
        total: number of rows N to select from.

    Example:
        >>> found = Selection.of_mask(np.array([True, False, True, True]))
        >>> len(found), found.rows(np.array([0, 1])).tolist()
        (3, [0, 2])
    """

    def __init__(self, total: int, words: Words) -> None:
        self.total = total
        self._form = _smallest(total, words)

    @classmethod
    def of_mask(cls, mask: Mask) -> Selection:
        """The rows where a mask (N,) is True."""
        return cls.of_masks([mask])

    @classmethod
    def of_masks(cls, masks: Iterable[Mask]) -> Selection:
        """The rows where masks, end to end, are True; a bit of memory for each row."""
        packed = _Packed()
        for mask in masks:
            packed.add(mask)
        return cls(packed.total, packed.words())

    @classmethod
    def of_parts(cls, parts: Iterable[Ints], count: int) -> list[Selection]:
        """For each part, 0..count - 1, the rows in it, given the part of each row, some at a time."""
        packed = [_Packed() for _ in range(count)]
        for some in parts:
            for part, each in enumerate(packed):
                each.add(some == part)
        return [cls(each.total, each.words()) for each in packed]

    @classmethod
    def of_rows(cls, rows: Iterable[Ints], total: int) -> Selection:
        """These rows of so many, some at a time, in any order; a bit of memory for each row there is."""
        octets = np.zeros(-(-total // 64) * 8, np.uint8)
        for some in rows:
            np.bitwise_or.at(octets, some >> 3, np.uint8(1) << (some & 7).astype(np.uint8))
        return cls(total, octets.view("<u8"))

    def __len__(self) -> int:
        return self._form.count

    def rows(self, places: Ints) -> Ints:
        """The selected rows at these places, (B,) each in 0..len - 1."""
        return self._form.rows(places)

    def before(self, rows: Ints) -> Ints:
        """How many selected rows come before each of these rows (B,), each in 0..total."""
        return self._form.before(rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self._form.arrays())

    @cached_property
    def pin(self) -> str:
        """A name for the rows: the same for the same rows of as many, in every process."""
        arrays = (np.ascontiguousarray(a, a.dtype.newbyteorder("<")).data for a in self._form.arrays())
        return hexdigest(f"{type(self._form).__name__} {self.total};", *arrays)


class _Packed:
    """Masks, end to end, as bits."""

    def __init__(self) -> None:
        self.total = 0
        self._octets: list[npt.NDArray[np.uint8]] = []
        self._left = np.zeros(0, np.bool_)  # fewer than 64

    def add(self, mask: Mask) -> None:
        self.total += len(mask)
        left = np.concatenate([self._left, mask])
        whole = len(left) & -64
        self._octets.append(np.packbits(left[:whole], bitorder="little"))
        self._left = left[whole:]

    def words(self) -> Words:
        padding = np.zeros(-len(self._left) % 64, np.bool_)
        last = np.packbits(np.concatenate([self._left, padding]), bitorder="little")
        return np.concatenate([*self._octets, last]).view("<u8")


class _Runs:
    """Runs of rows one after the other.

    Args:
        starts: (runs,) the first row of each; `stops`: the row after its last.
    """

    def __init__(self, starts: Ints, stops: Ints) -> None:
        self._starts, self._stops = starts, stops
        self._firsts = bounds_of(stops - starts)  # the place of each run's first row
        self.count = int(self._firsts[-1])

    def rows(self, places: Ints) -> Ints:
        run = np.searchsorted(self._firsts, places, "right") - 1
        return self._starts.take(run) + (places - self._firsts.take(run))

    def before(self, rows: Ints) -> Ints:
        if not len(self._starts):
            return np.zeros(len(rows), np.int64)
        run = np.searchsorted(self._starts, rows, "right") - 1
        first = np.maximum(run, 0)
        within = np.minimum(rows, self._stops.take(first)) - self._starts.take(first)
        return np.where(run < 0, 0, self._firsts.take(first) + within)

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return self._starts, self._stops, self._firsts


class _Listed:
    """A list of rows.

    Args:
        rows: (M,) in ascending order, each once.
    """

    def __init__(self, rows: npt.NDArray[np.uint32] | Ints) -> None:
        self._rows = rows
        self.count = len(rows)

    def rows(self, places: Ints) -> Ints:
        return self._rows.take(places).astype(np.int64)

    def before(self, rows: Ints) -> Ints:
        return np.searchsorted(self._rows, rows.astype(self._rows.dtype), "left")

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (self._rows,)


class _BitPerRow:
    """A bit for each row.

    Args:
        words: (N / 64,) a bit for each row, from the lowest; padded to whole runs of `_WORDS`.
    """

    def __init__(self, words: Words) -> None:
        self._runs = words.reshape(-1, _WORDS)
        self._before = bounds_of(_ones(self._runs).sum(1, dtype=np.int64))  # of each run
        self.count = int(self._before[-1])

    def __getstate__(self) -> dict[str, object]:
        return {"_runs": self._runs, "_before": self._before, "count": self.count}

    @cached_property
    def _unpacked(self) -> Ints:
        return _rows_of(self._runs.reshape(-1), self.count)

    def rows(self, places: Ints) -> Ints:
        if self.count <= _UNPACKED:
            return self._unpacked.take(places)
        run = np.searchsorted(self._before, places, "right") - 1
        words, which = self._runs.take(run, 0), np.arange(len(places))
        left = places - self._before.take(run)
        word, left = _found(_ones(words), left, which)
        octets = words[which, word].view(np.uint8).reshape(-1, 8)
        octet, left = _found(_OCTET_ONES.take(octets), left, which)
        return run * _BITS + word * 64 + octet * 8 + _NTH_ONE[octets[which, octet], left]

    def before(self, rows: Ints) -> Ints:
        run = rows // _BITS
        # One beyond the last run: all come before it.
        words, which = self._runs.take(np.minimum(run, len(self._runs) - 1), 0), np.arange(len(rows))
        word = rows // 64 % _WORDS
        ones = np.cumsum(_ones(words), axis=1, dtype=np.int64)
        earlier = np.where(word > 0, ones[which, word - 1], 0)
        lower = words[which, word] & ((np.uint64(1) << (rows % 64).astype(np.uint64)) - np.uint64(1))
        found = self._before.take(np.minimum(run, len(self._runs))) + earlier + _ones(lower)
        return np.where(run < len(self._runs), found, self.count)

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return self._runs, self._before


def _found(counts: npt.NDArray[np.uint8], left: Ints, which: Ints) -> tuple[Ints, Ints]:
    """In which column the count of ones exceeds what is left, and what is left there.

    Args:
        counts: (B, K) ones.
        left: (B,) how many to pass, fewer than all.
        which: (B,) 0, 1, 2, ...
    """
    ends = np.cumsum(counts, axis=1, dtype=np.int64)
    column = (ends <= left[:, None]).sum(1)
    return column, left - (ends[which, column] - counts[which, column])


def _smallest(total: int, words: Words) -> _Form:
    """The smallest form of the rows whose bits are set."""
    padded = np.zeros(-(-max(1, len(words)) // _WORDS) * _WORDS, np.uint64)
    padded[: len(words)] = words
    bits = _BitPerRow(padded)
    sizes = {
        _Runs: 24 * _num_runs(padded),
        _Listed: (4 if total < 2**32 else 8) * bits.count,
        _BitPerRow: sum(array.nbytes for array in bits.arrays()),
    }
    kind = min(sizes, key=lambda kind: sizes[kind])  # the first of those that are as small
    if kind is _BitPerRow:
        return bits
    if kind is _Listed:
        rows = _rows_of(padded, bits.count)
        return _Listed(rows.astype(np.uint32) if total < 2**32 else rows)
    return _Runs(*_borders(padded))


def _num_runs(words: Words) -> int:
    """How many runs of ones there are."""
    return int(sum(_ones(begins).sum(dtype=np.int64) for _, begins in _begins(words)))


def _begins(words: Words) -> Iterable[tuple[int, Words]]:
    """The bits that follow a zero, some words at a time, and the number of the first of these words."""
    carry = np.uint64(0)
    for start in range(0, len(words), _CHUNK):
        some = words[start : start + _CHUNK]
        before = np.append(carry, some[:-1] >> np.uint64(63))
        yield start, some & ~(some << np.uint64(1) | before)
        carry = some[-1] >> np.uint64(63)


def _borders(words: Words) -> tuple[Ints, Ints]:
    """Where each run of ones begins, and where it has ended."""
    inverted = ~words
    starts = [start * 64 + _ones_at(begins) for start, begins in _begins(words)]
    stops = [start * 64 + _ones_at(begins) for start, begins in _begins(inverted)]
    ends = np.concatenate(stops)
    ends = ends[ends > 0]  # a first zero that follows no one
    begun = np.concatenate(starts)
    return begun, np.append(ends, 64 * len(words))[: len(begun)]


def _rows_of(words: Words, count: int) -> Ints:
    found, done = np.empty(count, np.int64), 0
    for start in range(0, len(words), _CHUNK):
        rows = start * 64 + _ones_at(words[start : start + _CHUNK])
        found[done : done + len(rows)] = rows
        done += len(rows)
    return found


def _ones_at(words: Words) -> Ints:
    return np.flatnonzero(np.unpackbits(words.astype("<u8", copy=False).view(np.uint8), bitorder="little"))


_OCTET_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
_NTH_ONE = np.zeros((256, 8), np.int64)  # where the nth one of an octet is
for _octet in range(256):
    _places = [bit for bit in range(8) if _octet >> bit & 1]
    _NTH_ONE[_octet, : len(_places)] = _places


def ones_of(words: Words) -> npt.NDArray[np.uint8]:
    """The same as `np.bitwise_count`, which NumPy has from 2.0 on."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)
    found: npt.NDArray[np.uint8] = _OCTET_ONES[octets].sum(-1, dtype=np.uint8)
    return found


_ones = getattr(np, "bitwise_count", ones_of)
