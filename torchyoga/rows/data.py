"""The rows of one column of a block.

Ragged values stay where they lie until somebody wants them.
Byte strings, packed and padded batches are then made by one copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ..process.buffers import fresh
from .types import Array, Ints


def bounds_of(lengths: Array | Iterable[int]) -> Ints:
    """(N + 1,) where each of several runs begins, laid end to end, and where the last one ends.

    Args:
        lengths: N of the runs; of an array, of any shape.

    Example:
        >>> bounds_of([2, 0, 3]).tolist()
        [0, 2, 2, 5]
    """
    if not isinstance(lengths, np.ndarray):
        lengths = np.fromiter(lengths, np.int64)
    found = np.zeros(lengths.size + 1, np.int64)
    lengths.cumsum(dtype=np.int64, out=found[1:])
    return found


class Runs(Protocol):
    """Runs of bytes that lie somewhere, one a row."""

    nbytes: Ints

    def slice(self, start: int, stop: int) -> Runs:
        """The runs start..stop-1."""

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        """Writes each into `out` where `starts` says; one after the other by default."""

    def texts(self) -> list[bytes]:
        """Each run as bytes."""


class _JoinedRuns:
    """Runs that are several others each.

    Args:
        runs: the others.
        bounds: (N + 1,) where those of each begin.
    """

    def __init__(self, runs: Runs, bounds: Ints) -> None:
        self._runs = runs
        self._bounds = bounds
        self.nbytes = np.diff(bounds_of(runs.nbytes)[bounds])

    def slice(self, start: int, stop: int) -> Runs:
        bounds = self._bounds[start : stop + 1]
        first, last = bounds[[0, -1]].tolist() if len(bounds) else (0, 0)
        return _JoinedRuns(self._runs.slice(first, last), bounds - first)

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        if starts is None:
            self._runs.copy(out)
            return
        each = self._runs.nbytes
        before = bounds_of(each)
        shift = np.fromiter(starts, np.int64) - before[self._bounds[:-1]]
        self._runs.copy(out, (before[:-1] + np.repeat(shift, np.diff(self._bounds))).tolist())

    def texts(self) -> list[bytes]:
        found, ends = self._runs.texts(), self._bounds.tolist()
        return [b"".join(found[start:stop]) for start, stop in itertools.pairwise(ends)]


class Data:
    """The rows of one column.

    Fixed: `values` has shape (N, *row). Ragged: row i is `values[offsets[i]:offsets[i + 1]]`, reshaped to the
    entries of `shapes[i]` (N, ndim) that are not -1, where the column keeps shapes.

    Args:
        values: all values; or None, if they still lie in `runs` and are copied when they are wanted.
        runs: the values of each row of a ragged column.
        dtype: dtype of the values in the runs.
        empty: makes memory for the copies.
    """

    __slots__ = ("_dtype", "_empty", "_values", "offsets", "runs", "shapes")

    def __init__(
        self,
        values: Array | None,
        offsets: Array | None = None,
        shapes: Array | None = None,
        *,
        runs: Runs | None = None,
        dtype: np.dtype[np.generic] | None = None,
        empty: Callable[[int], Array] | None = None,
    ) -> None:
        self.offsets = offsets
        self.shapes = shapes
        self.runs = runs
        self._values = values
        self._dtype = dtype
        self._empty = empty or fresh

    def __reduce__(self) -> tuple[object, ...]:
        # Runs are addresses in memory of this process.
        return Data, (self.values, self.offsets, self.shapes)

    @property
    def values(self) -> Array:
        """The values of all rows."""
        if self._values is None:
            assert self.runs is not None
            assert self.offsets is not None
            assert self._dtype is not None
            out = self._empty(int(self.offsets[-1]) * self._dtype.itemsize)
            self.runs.copy(out)
            self._values = out.view(self._dtype)
        return self._values

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the values."""
        dtype = self._dtype if self._values is None else self._values.dtype
        assert dtype is not None
        return dtype

    def padded(self, width: int, fill: object) -> Array:
        """(N, width) the values of each row of a ragged column, cut or filled up."""
        assert self.offsets is not None
        num_rows = len(self.offsets) - 1
        dtype = self.dtype
        out = self._empty(num_rows * width * dtype.itemsize).view(dtype).reshape(num_rows, width)
        lengths = np.diff(self.offsets)
        if self.runs is not None and int(lengths.max(initial=0)) <= width:
            step = width * dtype.itemsize
            out[...] = fill
            self.runs.copy(out.reshape(-1).view(np.uint8), [row * step for row in range(num_rows)])
            return out
        out[...] = fill
        for i, (start, length) in enumerate(zip(self.offsets.tolist(), lengths.tolist())):  # noqa: B905
            length = min(length, width)
            out[i, :length] = self.values[start : start + length]
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        values = self._values.nbytes if self._values is not None else int(self.runs.nbytes.sum())  # type: ignore[union-attr]
        return values + sum(part.nbytes for part in (self.offsets, self.shapes) if part is not None)

    def slice(self, start: int, stop: int) -> Data:
        """The rows start..stop-1, over the same memory."""
        if self.offsets is None:
            return Data(self.values[start:stop])
        offsets = self.offsets[start : stop + 1]
        shapes = None if self.shapes is None else self.shapes[start:stop]
        runs = None if self.runs is None else self.runs.slice(start, stop)
        values = None if self._values is None else self._values[offsets[0] : offsets[-1]]
        return Data(values, offsets - offsets[0], shapes, runs=runs, dtype=self._dtype, empty=self._empty)

    def joined(self, bounds: Ints) -> Data:
        """As many rows as there are between bounds (N + 1,), each of what these rows hold, end to end.

        It is for a column of one dimension; nothing is copied.
        """
        offsets = self.part("offsets")
        runs = None
        if self._values is None:
            assert self.runs is not None
            runs = _JoinedRuns(self.runs, bounds)
        return Data(self._values, offsets[bounds], runs=runs, dtype=self._dtype, empty=self._empty)

    def shared(self) -> SharedData:
        """The same rows, for two columns that are made of them."""
        values, runs, empty = self._values, self.runs, self._empty
        return SharedData(values, self.offsets, self.shapes, runs=runs, dtype=self._dtype, empty=empty)

    def row(self, i: int) -> Array:
        """The values of one row of a ragged column; the others are not copied for it."""
        assert self.offsets is not None
        if self._values is None:
            return self.slice(i, i + 1).values
        return self._values[self.offsets[i] : self.offsets[i + 1]]

    def copy(self, out: Array, starts: Iterable[int]) -> None:
        """Writes the bytes of each row of a ragged column into `out` (uint8) where `starts` says."""
        if self.runs is not None:
            self.runs.copy(out, starts)
            return
        assert self.offsets is not None
        data = self.values.reshape(-1).view(np.uint8)
        ends = itertools.pairwise((self.offsets * self.values.itemsize).tolist())
        for to, (start, stop) in zip(starts, ends, strict=True):
            out[to : to + stop - start] = data[start:stop]

    def texts(self) -> list[bytes]:
        """The bytes of each row of a ragged column."""
        if self.runs is not None:
            return self.runs.texts()
        assert self.offsets is not None
        data, ends = (
            self.values.reshape(-1).view(np.uint8).data,
            (self.offsets * self.values.itemsize).tolist(),
        )
        return [bytes(data[start:stop]) for start, stop in itertools.pairwise(ends)]

    def part(self, name: str) -> Array:
        """One of `Column.parts`."""
        found = getattr(self, name)
        assert isinstance(found, np.ndarray)
        return found


class SharedData(Data):
    """The rows of a column whose values are wanted twice, and read once: its last slice is kept."""

    __slots__ = ("_last",)

    _last: tuple[int, int, Data]

    def slice(self, start: int, stop: int) -> Data:
        """The rows start..stop-1, over the same memory."""
        kept = getattr(self, "_last", None)
        if kept is not None and kept[:2] == (start, stop):
            found: Data = kept[2]
            return found
        found = super().slice(start, stop)
        self._last = start, stop, found
        return found


_LONG = 64  # elements of an average run, from which on slices beat a fancy index


def numbered_within(sizes: Ints) -> Ints:
    """0, 1, 2, ... within each of several runs, end to end.

    Args:
        sizes: (N,) of the runs.

    Example:
        >>> numbered_within(np.array([2, 0, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def taken_runs(values: Array, first: Ints, last: Ints) -> Array:
    """The elements from `first[i]` to before `last[i]` of each run, end to end; a copy.

    Example:
        >>> taken_runs(np.arange(9), np.array([5, 0]), np.array([7, 1])).tolist()
        [5, 6, 0]
    """
    sizes = last - first
    if int(sizes.sum()) > _LONG * len(sizes):
        slices = zip(first.tolist(), last.tolist(), strict=True)
        return np.concatenate([values[start:stop] for start, stop in slices])
    found: Array = values[np.repeat(first, sizes) + numbered_within(sizes)]
    return found


def joined_runs(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The same runs, those that continue each other as one; all of one size if that can be.

    Args:
        first: (N,) the first element of each.
        last: (N,) the element after its last.

    Example:
        >>> joined_runs(np.array([5, 7, 0, 9, 13]), np.array([7, 9, 4, 13, 17]))
        (array([ 5,  0,  9, 13]), array([ 9,  4, 13, 17]))
    """
    some = last > first
    first, last = first[some], last[some]
    most = len(first)
    if most < 2:
        return first, last
    is_begun = np.append(True, first[1:] != last[:-1])
    first, last = first[is_begun], last[np.append(is_begun[1:], True)]
    sizes = last - first
    size = int(sizes.min())
    counts, rest = np.divmod(sizes, size)
    if len(counts) > 1 and not rest.any() and len(counts) < int(counts.sum()) <= most:
        first = np.repeat(first, counts) + size * numbered_within(counts)
        last = first + size
    return first, last


def put_runs(out: Array, starts: Ints, values: Array, sizes: Ints) -> None:
    """Writes runs that lie end to end in `values` to their `starts` in `out`.

    Example:
        >>> out = np.zeros(5, np.int64)
        >>> put_runs(out, np.array([3, 0]), np.array([7, 8, 9]), np.array([2, 1]))
        >>> out.tolist()
        [9, 0, 0, 7, 8]
    """
    if len(values) > _LONG * len(sizes):
        done = 0
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            out[start : start + size] = values[done : done + size]
            done += size
        return
    out[np.repeat(starts, sizes) + numbered_within(sizes)] = values


def check_parts(rows: Ints, lengths: Ints, starts: Ints, stops: Ints) -> None:
    """Raises IndexError unless each row (N,) of so many elements has those from its start to its stop."""
    wrong = (starts < 0) | (stops < starts) | (stops > lengths)
    if wrong.any():
        nth = int(np.flatnonzero(wrong)[0])
        raise IndexError(
            f"elements {starts[nth]} to {stops[nth]} of row {rows[nth]}, which has {lengths[nth]} elements"
        )
