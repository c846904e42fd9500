"""Rows of another DataRef that were selected, in the order in which they are there."""

from __future__ import annotations

import numpy as np

from ..order.by_file import equal_runs
from ..process.digests import hexdigest
from ..process.distinct import distinct
from ..reading.dataref import DataRef, RowView
from ..rows.types import Ints
from .selection import Selection

__all__ = ["SelectedRef"]

_FEW_ROWS = 256  # of a file; more would take the files of a whole window out of a small cache


class SelectedRef(RowView):
    """Some rows of another DataRef, in ascending order: what `ref.where(...)` is.

    Args:
        whole: the other DataRef.
        selection: which of its rows.
        splits: the splits by a key whose parts it is of, and which part of each.
    """

    def __init__(self, whole: DataRef, selection: Selection, splits: tuple[str, ...] = ()) -> None:
        super().__init__(whole, selection, splits)
        self.selection = selection
        self.splits = splits

    def __len__(self) -> int:
        return len(self.selection)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind these rows."""
        return self.selection.rows(numbers)

    def places_of(self, rows: Ints) -> Ints:
        """Where rows of the whole come here; -1 for those that were not selected."""
        return self.selection.places(rows)

    @property
    def file_starts(self) -> Ints:
        """Where the rows of each file begin; files of which few rows are selected are together with the next.

        A block shuffle mixes a few of these runs at a time, so it would mix hardly any rows of a sparse
        selection. Without files the runs are of 4096 rows, as those of the whole are.
        """
        whole = self.whole.file_starts
        if np.array_equal(whole, equal_runs(len(self.whole))):
            return equal_runs(len(self))
        starts = distinct(np.append(self.selection.before(whole), 0))
        # The first of those in each stretch of so many rows; all, where the runs are longer.
        stretch = max(1, min(_FEW_ROWS, len(self.whole) // (2 * max(1, len(whole) - 1))))
        is_first = np.diff(starts[:-1] // stretch, prepend=-1) > 0
        return np.append(starts[:-1][is_first], len(self))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and of which rows are selected."""
        return hexdigest(f"{whole} selected {self.selection.pin}")

    def __repr__(self) -> str:
        return f"<{len(self)} rows selected of {self.whole!r}>"
