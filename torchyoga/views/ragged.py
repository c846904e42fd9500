"""Rows of different lengths, one after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..process.lazy import cached_property
from ..rows.data import bounds_of
from ..rows.types import Array, Ints

Mask = npt.NDArray[np.bool_]


class RaggedColumn:
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
        values: (elements of all rows,) the rows, one after the other.
        lengths: (B,) elements of each row.

    Attributes:
        lengths: (B,) elements of each row.

    Raises:
        ValueError: the lengths are not those of the values.

    Example:
        >>> boxes = yoga.RaggedColumn(np.array([7, 8, 9]), [1, 0, 2])
        >>> boxes.offsets.tolist(), boxes.any(boxes.values > 8).tolist()
        ([0, 1, 1, 3], [False, False, True])
    """

    def __init__(self, values: Array, lengths: npt.ArrayLike) -> None:
        self.lengths: Ints = np.asarray(lengths, np.int64)
        found = np.asarray(values)
        total = int(self.lengths.sum()) if self.lengths.ndim == 1 else -1
        if self.lengths.ndim != 1 or found.ndim != 1 or (self.lengths < 0).any() or total != len(found):
            raise ValueError(
                f"the lengths, of shape {self.lengths.shape}, must be at least 0 and sum to the number of "
                f"values; they sum to {total}, the values have shape {found.shape}"
            )
        self._values = found

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def offsets(self) -> Ints:
        """(B + 1,) where each row begins in `values`, and where the last one ends."""
        return bounds_of(self.lengths)

    @property
    def values(self) -> Array:
        """(elements of all rows,) the rows, one after the other."""
        return self._values

    def any(self, are: npt.ArrayLike) -> Mask:
        """(B,) which rows have an element for which `are`, as long as `values`, is True.

        Example:
            >>> rows = [{"boxes": np.arange(n)} for n in (1, 3)]
            >>> schema = yoga.Schema.of(rows[0], ragged=["boxes"])
            >>> ref = storage.submit(rows, "boxes", "1", schema=schema)
            >>> len(ref.where("boxes", lambda y: y.any(y.values == 2)))
            1
        """
        return self._counted(are) > 0

    def all(self, are: npt.ArrayLike) -> Mask:
        """(B,) which rows have only elements for which `are` is True; a row without any, too."""
        found: Mask = self._counted(are) == self.lengths
        return found

    def _counted(self, are: npt.ArrayLike) -> Ints:
        found = np.asarray(are)
        if found.dtype != np.bool_ or found.shape != (int(self.offsets[-1]),):
            raise ValueError(
                f"any() and all() take a bool for each of the {self.offsets[-1]} values, found {found.dtype} "
                f"of shape {found.shape}"
            )
        counts = bounds_of(found)
        return np.diff(counts[self.offsets])
