"""Row numbers in the order in which they will be wanted; their source is told of them some time before.

Note 9. A sampler announces to its DataRef what it will hand out.
So a plain DataLoader reads small batches several at once, too. A wrong guess costs a comparison.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError

__all__ = ["Announced", "Announcer", "announced"]

Ints = npt.NDArray[np.int64]
_AHEAD_BYTES = 16 * 2**20  # on their way from the disk at once
_MOST_ROWS = 4096
_PAGE = 4096
_PROBE = 64  # windows after which a source that is read elsewhere is asked again whether it is cold


class Announced(Protocol):
    """A source of rows that can be told of them before they are taken."""

    @property
    def is_cold(self) -> bool:
        """True as long as telling it is worth while."""

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row; 0 if that is not known."""

    def announce(self, rows: Ints, values: bool) -> None:
        """These rows will be taken: first told without the values of ragged columns, later of those alone."""

    def probe(self) -> None:
        """Makes it find out anew whether it is cold, when it is next told of rows."""


class Announcer:
    """Tells a source of windows of rows: of the far ones where they lie, of the near ones what they hold.

    The values of a ragged row lie where its offsets say, so those must be there first.
    """

    def __init__(self, source: Announced) -> None:
        self._source = source

    def depth(self, num_rows: int) -> int:
        """How many windows of so many rows to be ahead."""
        rows = min(_MOST_ROWS, _AHEAD_BYTES // max(_PAGE, self._source.row_bytes))
        return max(1, -(-rows // max(1, num_rows)))

    def tell(self, rows: Ints, values: bool) -> None:
        """Tells of one window. Who takes rows that cannot be read will hear of it then."""
        with contextlib.suppress(CorruptError, OSError):
            self._source.announce(rows, values)


def announced(source: Any, windows: Iterable[Ints], read_here: bool = True) -> Iterator[Ints]:
    """The windows of rows, in order; the source, if it can be told, has been told of some that follow.

    Args:
        source: `Announced`, or anything else.
        windows: rows as they will be taken.
        read_here: False if other processes take them: then it cannot be seen here whether they wait.
    """
    if not hasattr(source, "announce"):
        yield from windows
        return
    announcer = Announcer(source)
    numbers = iter(windows)
    waiting: deque[tuple[Ints, bool]] = deque()  # windows, and whether all has been told of them
    step = told = 0  # of the windows that wait, the first ones have been told of
    while True:
        if not read_here and step % _PROBE == 0:
            source.probe()
        step += 1
        if source.is_cold:
            depth = 1 + announcer.depth(len(waiting[0][0]) if waiting else 1)
            while len(waiting) < depth and (rows := next(numbers, None)) is not None:
                waiting.append((rows, False))
                depth = 1 + announcer.depth(len(rows))
            for index in range(told, len(waiting)):
                announcer.tell(waiting[index][0], values=False)
            told = len(waiting)
            for index in range(1 + len(waiting) // 2):
                if index < len(waiting) and not waiting[index][1]:
                    announcer.tell(waiting[index][0], values=True)
                    waiting[index] = waiting[index][0], True
        elif not waiting:
            rows = next(numbers, None)
            if rows is not None:
                waiting.append((rows, False))
        if not waiting:
            return
        told = max(0, told - 1)
        yield waiting.popleft()[0]
