"""Row numbers of a view -> row numbers of the dataset below it.

Note 17. A view is row numbers.
It turns those that it is asked for into those of the dataset below, a batch at once, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.distinct import distinct
from ..process.lazy import cached_property
from ..rows.data import bounds_of
from ..rows.types import Ints

__all__ = ["RowMap"]

Piece = range | Ints  # or unsigned integers of 32 bits

_CHUNK = 65536  # rows handled at once, so that a pass over all of them takes no memory
_LONG_RUN = 16  # rows of a file that come one after the other; shorter runs are not worth it


class RowMap:
    """The rows of a view: pieces, end to end, each a range or a list of rows.

    A piece whose rows are equally far apart is kept as a range, and pieces that continue each other are one.

    Args:
        pieces: ranges, and int64 arrays of any order; rows may come more than once.

    Example:
        >>> view = RowMap([range(10, 14), np.array([7, 3, 3])])
        >>> view.rows(np.array([0, 3, 4, 6])).tolist()
        [10, 13, 7, 3]
        >>> RowMap([range(2), range(2, 5)]).pieces
        (range(0, 5),)
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        kept: list[Piece] = []
        for piece in pieces:
            piece = _as_range(piece)
            if not len(piece):
                continue
            if kept and isinstance(piece, range) and isinstance(kept[-1], range):
                both = _continued(kept[-1], piece)
                if both is not None:
                    kept[-1] = both
                    continue
            kept.append(piece)
        # The start of each piece, and the length.
        self._starts = bounds_of(map(len, kept))
        # A row of a range is `first + step * place`; of a list, the same is its place in all lists together.
        lists = [piece for piece in kept if not isinstance(piece, range)]
        self._listed = lists[0] if len(lists) == 1 else np.concatenate([np.empty(0, np.int64), *lists])
        places = bounds_of(map(len, lists)).tolist()
        self._is_listed = np.array([not isinstance(piece, range) for piece in kept], np.bool_)
        self._steps = np.array([piece.step if isinstance(piece, range) else 1 for piece in kept], np.int64)
        self._firsts = np.zeros(len(kept), np.int64)
        for number, piece in enumerate(kept):
            if isinstance(piece, range):
                self._firsts[number] = piece.start
            else:
                self._firsts[number] = first = places.pop(0)
                kept[number] = self._listed[first : first + len(piece)]  # not a copy
        self.pieces: tuple[Piece, ...] = tuple(kept)

    def __reduce__(self) -> tuple[object, ...]:
        return RowMap, (self.pieces,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, numbers: Ints) -> Ints:
        """The rows (B,) behind the view's rows of these numbers (each in 0..len - 1)."""
        if len(self.pieces) == 1:
            (piece,) = self.pieces
            if isinstance(piece, range):
                return numbers if piece.start == 0 and piece.step == 1 else piece.start + piece.step * numbers
            return piece.take(numbers).astype(np.int64, copy=False)
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        found: Ints = self._firsts[which] + self._steps[which] * (numbers - self._starts[which])
        listed = self._is_listed[which]
        if listed.any():
            found[listed] = self._listed[found[listed]]
        return found

    def places(self, rows: Ints) -> Ints:
        """Where rows (B,) come for the first time; -1 for those that do not."""
        rows = rows.astype(np.int64, copy=False)
        found = np.full(len(rows), -1)
        for start, piece, (ascending, order) in reversed(
            list(zip(self._starts.tolist(), self.pieces, self._orders, strict=False))
        ):
            if isinstance(piece, range):
                places, rest = np.divmod(rows - piece.start, piece.step)
                is_here = (rest == 0) & (places >= 0) & (places < len(piece))
            else:
                # In the type of the list, which would be converted as a whole otherwise.
                wanted = np.clip(rows, 0, int(ascending[-1])).astype(ascending.dtype)
                nth = np.searchsorted(ascending, wanted)
                is_here, places = ascending.take(nth) == rows, order.take(nth)
            found[is_here] = start + places[is_here]
        return found

    @cached_property
    def _orders(self) -> list[tuple[Ints, Ints]]:
        """For each list of rows, these in ascending order, and where each is."""
        nothing = np.zeros(0, np.int64)
        orders = [
            (nothing, nothing) if isinstance(piece, range) else (piece, np.argsort(piece, kind="stable"))
            for piece in self.pieces
        ]
        return [(piece.take(order), order) for piece, order in orders]

    def chosen(self, numbers: Piece) -> RowMap:
        """The map of a view over these rows of this view: still one step."""
        if not isinstance(numbers, range):
            return RowMap([self.rows(numbers)])
        return RowMap(list(self._cut(numbers)))

    def _cut(self, numbers: range) -> Iterator[Piece]:
        """The pieces of a range of rows."""
        bounds = list(zip(self._starts.tolist(), self._starts[1:].tolist(), self.pieces, strict=False))
        for start, stop, piece in bounds if numbers.step > 0 else reversed(bounds):
            # Where a range passes through the piece, its numbers in the piece come one after the other.
            first, last = sorted(_crossings(numbers, np.array([start, stop])).tolist())
            within = numbers[first:last]
            if len(within):
                end = within[-1] - start + within.step
                yield piece[within[0] - start : end if end >= 0 else None : within.step]

    def counts(self, starts: Ints) -> Ints:
        """How many of the rows lie in each of the parts (parts + 1,) into which all rows are cut."""
        found = np.zeros(len(starts) - 1, np.int64)
        for piece in self.pieces:
            if isinstance(piece, range):
                found += np.abs(np.diff(_crossings(piece, starts)))
            else:
                found += np.diff(np.searchsorted(np.sort(piece), starts))
        return found

    def starts(self, file_starts: Ints) -> Ints:
        """The numbers (runs + 1,) at which a run of rows of one file begins, and the length.

        Args:
            file_starts: (files + 1,) the row at which each file begins, and the number of rows.

        If the rows of the files are mixed, so that hardly two of one file come after each other, files do not
            matter: then the runs have 4096 rows.
        """
        found = [np.zeros(0, np.int64)]
        for start, piece in zip(self._starts.tolist(), self.pieces, strict=False):
            if isinstance(piece, range):
                low, high = np.searchsorted(file_starts, sorted((piece[0], piece[-1])), side="right")
                crossings = _crossings(piece, file_starts[low:high])
                found.append(start + distinct(np.append(crossings, 0)))
            else:
                found += (start + changes for changes in _changes(piece, file_starts))
        begun = np.concatenate(found)
        if len(begun) > max(len(file_starts) + len(self.pieces), len(self) // _LONG_RUN):
            return equal_runs(len(self))
        return np.append(begun, len(self))

    @cached_property
    def pin(self) -> str:
        """A name for the rows and their order: the same for the same pieces, in every process."""
        parts: list[str | memoryview] = []
        for piece in self.pieces:
            if isinstance(piece, range):
                parts.append(f"range {piece.start} {piece.step} {len(piece)};")
            else:
                parts += [f"rows {len(piece)};", np.ascontiguousarray(piece, "<i8").data]
        return hexdigest(*parts)


def _as_range(piece: Piece) -> Piece:
    """A piece as a range, if it is one; it ends where the next number would be."""
    count = len(piece)
    if isinstance(piece, range):
        if count == 1:
            return range(piece[0], piece[0] + 1)
        return range(piece.start, piece.start + piece.step * count, piece.step)
    if count == 0:
        return range(0)
    first, last = int(piece[0]), int(piece[-1])
    if count == 1:
        return range(first, first + 1)
    step = int(piece[1]) - first
    if step and last - first == step * (count - 1) and bool((np.diff(piece.astype(np.int64)) == step).all()):
        return range(first, last + step, step)
    return piece


def _continued(one: range, other: range) -> range | None:
    """Two ranges as one, if the second goes on where the first ends."""
    step = one.step if len(one) > 1 else other.step if len(other) > 1 else other.start - one.start
    if step == 0 or other.start - one[-1] != step or (len(other) > 1 and other.step != step):
        return None
    return range(one.start, other[-1] + step, step)


def _crossings(numbers: range, bounds: Ints) -> Ints:
    """For each bound, how many numbers of a range come before one reaches it, or falls below it."""
    if numbers.step > 0:
        counts = -((numbers.start - bounds) // numbers.step)
    else:
        counts = (numbers.start - bounds) // -numbers.step + 1
    return np.clip(counts, 0, len(numbers))


def _changes(rows: Ints, file_starts: Ints) -> Iterator[Ints]:
    """The places in a list of rows at which the next one is of another file, thousands of rows at a time."""
    last = -1
    for start in range(0, len(rows), _CHUNK):
        files = np.searchsorted(file_starts, rows[start : start + _CHUNK], side="right")
        yield start + np.flatnonzero(np.diff(files, prepend=last))
        last = int(files[-1])
