"""Words of many rows, in a temporary file once they are many: read in order, or by the first bits of a hash.

Rows are dealt to parts by the first bits of their hashes, so memory is bounded.
Equal rows are in the same part, whichever dataset they are of, so each part is compared by itself. A chunk is
sorted by part and written as one run, so there is one file, however many parts there are.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...rows.data import bounds_of
from ...rows.hashing import Hashes
from ...rows.types import Array

__all__ = ["MEMORY_BYTES", "PART_ROWS", "Parts", "Spool"]

PART_ROWS = 2**21  # of both datasets in a part, about: unless a row occurs more often than that
MEMORY_BYTES = 2**26  # that a spool keeps in memory; more goes to a temporary file
_MOST_BITS = 16


class Spool:
    """Words of rows, appended and read again.

    Args:
        width: words of 64 bits of each row.
    """

    def __init__(self, width: int) -> None:
        self.num_rows = 0
        self._width = width
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # closed with the spool
        weakref.finalize(self, self._file.close)

    def append(self, words: Array) -> None:
        """Adds rows (N, width) of uint64.

        Raises:
            OSError: the disk is full.
        """
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(words, np.uint64).data.cast("B") if words.size else b"")
        self.num_rows += len(words)

    def read(self, start: int, stop: int) -> Hashes:
        """(N, width) the rows from start to before stop."""
        step = 8 * self._width
        self._file.seek(start * step)
        found = np.frombuffer(self._file.read((stop - start) * step), np.uint64)
        return found.reshape(-1, self._width)


class Parts:
    """Rows of a dataset, dealt to parts by the first bits of the first of their words.

    Args:
        width: words of each row.
        num_rows: of all datasets that are compared, about; it says how many parts there are.
    """

    def __init__(self, width: int, num_rows: int) -> None:
        self._bits = min(_MOST_BITS, max(0, (num_rows - 1) // PART_ROWS).bit_length())
        self._width = width
        self._spool = Spool(width)
        self._runs: list[npt.NDArray[np.int64]] = []  # of each chunk, where its rows of each part begin

    def __len__(self) -> int:
        return 1 << self._bits

    def __iter__(self) -> Iterator[Hashes]:
        """The rows of each part (N, width), in the order in which they were added."""
        for part in range(len(self)):
            found = [self._spool.read(*run[part : part + 2].tolist()) for run in self._runs]
            yield np.concatenate(found) if found else np.empty((0, self._width), np.uint64)

    def append(self, words: Hashes) -> None:
        """Adds rows (N, width).

        Raises:
            OSError: the disk is full.
        """
        first = self._spool.num_rows
        if not self._bits:
            self._spool.append(words)
            self._runs.append(np.array([first, first + len(words)]))
            return
        part = (words[:, 0] >> np.uint64(64 - self._bits)).astype(np.uint16)
        self._spool.append(words[np.argsort(part, kind="stable")])
        counts = np.bincount(part, minlength=len(self))
        self._runs.append(first + bounds_of(counts))
