"""Numbers of windows -> the rows at which they lie: arithmetic on the borders of groups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...rows.data import bounds_of
from ...rows.types import Ints

Mask = npt.NDArray[np.bool_]


class Spots(NamedTuple):
    """Where B windows lie.

    Attributes:
        anchors: (B,) the row of each to which offsets are added.
        firsts: (B,) the first row of its group; None where no offset leads out of a group.
        lasts: (B,) the last one.
    """

    anchors: Ints
    firsts: Ints | None = None
    lasts: Ints | None = None

    def members(self, offsets: Ints) -> Ints:
        """(B, L) the rows at these offsets (L,); beyond its group, the first or last row of that."""
        found: Ints = self.anchors[:, None] + offsets
        if self.firsts is None or self.lasts is None:
            return found
        return np.clip(found, self.firsts[:, None], self.lasts[:, None])

    def are_repeated(self, offsets: Ints) -> Mask:
        """(B, L) True where an offset leads out of the group."""
        found: Mask = self.members(offsets) != self.anchors[:, None] + offsets
        return found


class Anchors:
    """The rows at which windows lie: in each group every `stride` rows, as far as offsets allow.

    Without `repeats` all offsets of a window lead to rows of its group; with it, the first anchor is the
    first row of a group, and offsets may lead beyond its borders.

    Args:
        starts: (G + 1,) the row at which each group begins, and the number of rows.
        stride: rows between two anchors of a group.
        low: the lowest offset, or 0.
        high: the highest offset, or 0.
        repeats: True if offsets may lead out of a group.

    Example:
        >>> anchors = Anchors(np.array([0, 5, 7, 11]), stride=2, low=-1, high=1, repeats=False)
        >>> len(anchors), anchors.spots(np.arange(3)).anchors.tolist()
        (3, [1, 3, 8])
    """

    def __init__(self, starts: Ints, stride: int, low: int, high: int, repeats: bool) -> None:
        self._arguments = starts, stride, low, high, repeats
        self._starts = starts
        self._stride = stride
        self._repeats = repeats
        self._lead = 0 if repeats else -low  # rows of a group before its first anchor
        span = 0 if repeats else min(high - low, int(starts[-1]))  # more fits into no group
        counts = np.maximum(0, (np.diff(starts) - span + stride - 1) // stride)
        self._ends = bounds_of(counts)  # how many anchors come before each group

    def __reduce__(self) -> tuple[object, ...]:
        return Anchors, self._arguments

    def __len__(self) -> int:
        return int(self._ends[-1])

    def spots(self, numbers: Ints) -> Spots:
        """Where the windows of these numbers (B,), each in 0..len - 1, lie."""
        if len(self._starts) == 2:
            group = np.zeros(len(numbers), np.int64)
            anchors = int(self._starts[0]) + self._lead + self._stride * numbers
        else:
            group = np.searchsorted(self._ends, numbers, "right") - 1
            anchors = self._starts[group] + self._lead + self._stride * (numbers - self._ends[group])
        if not self._repeats:
            return Spots(anchors)
        return Spots(anchors, self._starts[group], self._starts[group + 1] - 1)

    def before(self, rows: Ints) -> Ints:
        """How many anchors come before each of these rows (B,), which may be the number of rows, too."""
        group = self._group(rows)
        places = -((self._starts[group] + self._lead - rows) // self._stride)
        return np.clip(self._ends[group] + places, self._ends[group], self._ends[group + 1])

    def _group(self, rows: Ints) -> Ints:
        return np.clip(np.searchsorted(self._starts, rows, "right") - 1, 0, len(self._starts) - 2)

    @cached_property
    def pin(self) -> str:
        """A name for them: the same for the same anchors in the same groups, in every process."""
        starts, *others = self._arguments
        return hexdigest(f"{others};", np.ascontiguousarray(starts, "<i8").data)
