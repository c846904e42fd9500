"""The rows of another DataRef, several times."""

from __future__ import annotations

import numpy as np

from ..order.full import as_int
from ..process.digests import hexdigest
from ..reading.dataref import DataRef, RowView
from ..rows.types import Ints

__all__ = ["RepeatedRef"]

_MOST_ROWS = 2**62
_MOST_RUNS = 2**20  # about; each takes 8 bytes wherever the order is known


class RepeatedRef(RowView):
    """All rows of another DataRef, so many times: what `ref.repeat(times)` is.

    Args:
        whole: the other DataRef.
        times: how often; 0 or more.
    """

    def __init__(self, whole: DataRef, times: int) -> None:
        super().__init__(whole, times)
        self.times = as_int("times", times, low=0)
        if len(whole) * self.times > _MOST_ROWS:
            raise ValueError(f"{times} times {len(whole)} rows are more than 2**62")

    def __len__(self) -> int:
        return len(self.whole) * self.times

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind these rows."""
        return numbers % len(self.whole)

    def places_of(self, rows: Ints) -> Ints:
        """Where rows of the whole come first: at the same numbers."""
        are_there = (rows >= 0) & (rows < len(self.whole)) & (self.times > 0)
        return np.where(are_there, rows, -1)

    @property
    def file_starts(self) -> Ints:
        """Those of the whole, for each time; of a million or more, some neighbours together."""
        begins, times = self.whole.file_starts[:-1], self.times
        begins = begins[:: max(1, -(-len(begins) * times // _MOST_RUNS))]
        step = max(1, -(-times // _MOST_RUNS))
        found = np.arange(0, times, step)[:, None] * len(self.whole) + begins
        return np.append(found.reshape(-1), len(self))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and how often."""
        return hexdigest(f"{whole} times {self.times}")

    def _title(self) -> str:
        return f"{super()._title()} {self.times} times"
