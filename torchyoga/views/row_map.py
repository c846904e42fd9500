"""Row numbers of a view -> row numbers of the dataset below it.

Note 17. A view is row numbers.
It turns those that it is asked for into those of the dataset below, a batch at once, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..rows.types import Ints

Piece = range | Ints  # or unsigned integers of 32 bits

_CHUNK = 65536  # rows handled at once, so that a pass over all of them takes no memory
_LONG_RUN = 16  # rows of a file that come one after the other; shorter runs are not worth it


class RowMap:
    """The rows of a view: a range, or a list of rows.

    A list whose rows are equally far apart is kept as a range.

    Args:
        piece: a range, or an int64 array of any order; rows may come more than once.

    Example:
        >>> view = RowMap(np.array([7, 3, 3]))
        >>> view.rows(np.array([2, 0])).tolist()
        [3, 7]
        >>> RowMap(np.array([3, 5, 7])).piece
        range(3, 9, 2)
    """

    def __init__(self, piece: Piece) -> None:
        self.piece = _as_range(piece)

    def __reduce__(self) -> tuple[object, ...]:
        return RowMap, (self.piece,)

    def __len__(self) -> int:
        return len(self.piece)

    def rows(self, numbers: Ints) -> Ints:
        """The rows (B,) behind the view's rows of these numbers (each in 0..len - 1)."""
        piece = self.piece
        if isinstance(piece, range):
            return numbers if piece.start == 0 and piece.step == 1 else piece.start + piece.step * numbers
        return piece.take(numbers).astype(np.int64, copy=False)

    def chosen(self, numbers: Piece) -> RowMap:
        """The map of a view over these rows of this view: still one step."""
        if not isinstance(numbers, range):
            return RowMap(self.rows(numbers))
        if not len(numbers):
            return RowMap(range(0))
        stop = numbers[-1] + numbers.step
        return RowMap(self.piece[numbers.start : stop if stop >= 0 else None : numbers.step])

    def counts(self, starts: Ints) -> Ints:
        """How many of the rows lie in each of the parts (parts + 1,) into which all rows are cut."""
        if isinstance(self.piece, range):
            return np.abs(np.diff(_crossings(self.piece, starts)))
        return np.diff(np.searchsorted(np.sort(self.piece), starts))

    def before(self, bounds: Ints) -> Ints:
        """How many of the rows, which ascend, are below each bound (B,)."""
        if isinstance(self.piece, range):
            return _crossings(self.piece, bounds)
        return np.searchsorted(self.piece, bounds)

    def starts(self, file_starts: Ints) -> Ints:
        """The numbers (runs + 1,) at which a run of rows of one file begins, and the length.

        Args:
            file_starts: (files + 1,) the row at which each file begins, and the number of rows.

        If the rows of the files are mixed, so that hardly two of one file come after each other, files do not
            matter: then the runs have 4096 rows.
        """
        piece = self.piece
        if not len(piece):
            return np.zeros(1, np.int64)
        if isinstance(piece, range):
            low, high = np.searchsorted(file_starts, sorted((piece[0], piece[-1])), side="right")
            begun = distinct(np.append(_crossings(piece, file_starts[low:high]), 0))
        else:
            begun = np.concatenate([*_changes(piece, file_starts)])
        if len(begun) > max(len(file_starts) + 1, len(self) // _LONG_RUN):
            return equal_runs(len(self))
        return np.append(begun, len(self))

    @cached_property
    def pin(self) -> str:
        """A name for the rows and their order: the same for the same rows, in every process."""
        piece = self.piece
        if isinstance(piece, range):
            return hexdigest(f"range {piece.start} {piece.step} {len(piece)};")
        return hexdigest(f"rows {len(piece)};", np.ascontiguousarray(piece, "<i8").data)


def end_to_end(parts: Iterable[Ints], total: int) -> Ints:
    """Numbers of rows, some at a time, as one array: in 32 bits if there are no larger ones among so many."""
    kind = np.uint32 if total <= 2**32 else np.int64
    found: Ints = np.concatenate([np.zeros(0, kind), *(part.astype(kind) for part in parts)])
    return found


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
