"""Rows whose bytes lie in many files -> rows in order; some files are read while others are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from ..building.sources import RowSource
from ..reading.files_ref import FilesRef
from ..rows.block import Rows
from ..rows.schema import Schema
from ..rows.types import Row

__all__ = ["FilesSource", "source_of"]

_PIECE_BYTES, _PIECE_ROWS = 4 * 2**20, 1024  # read at once
_PIECES_AHEAD = 2


def source_of(data: object, schema: Schema | None = None) -> FilesSource | None:
    """Rows that lie in files as a source; None for anything else.

    Also None if the rows are to have another schema: then each is looked at, as in any other dataset.
    """
    if not isinstance(data, FilesRef) or schema not in (None, data.schema):
        return None
    return FilesSource(data)


class FilesSource(RowSource):
    """The rows of a FilesRef, in order; the next files are read while the last ones are written."""

    seekable = True

    def __init__(self, ref: FilesRef) -> None:
        self.length = len(ref)
        self.name = ref.held.name
        self.schema = ref.schema
        self.fingerprint = ref.fingerprint
        self._ref = ref

    def rows(self, start: int) -> Iterator[Row]:
        """The rows from `start` on."""
        assert self.length is not None
        step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // max(1, self._ref.row_bytes)))
        begun: deque[Callable[[], Rows]] = deque()
        for first in range(start, self.length, step):
            begun.append(self._ref.begin(np.arange(first, min(first + step, self.length))))
            if len(begun) > _PIECES_AHEAD:
                yield from begun.popleft()().exact()
        while begun:
            yield from begun.popleft()().exact()

    def row(self, number: int) -> Row:
        """One row."""
        return self._ref[number]
