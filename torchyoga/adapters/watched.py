"""The rows of a source, some of them read again -> whether a second read gives the same.

Note 62. Rows are read a second time after the build.
They are compared with copies taken as they went by. Reading them before the build would move generators that
datasets have for themselves, and so change what is stored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from ..building.sources import RowSource
from ..errors import SchemaError
from ..process.seeding import generators_put_back
from ..rows.encoding import split
from ..rows.leaf import Leaf
from ..rows.node import Node, leaf_paths
from ..rows.types import Json, Row

__all__ = ["Watched"]

_SECONDS, _SHARE = 1.0, 0.1  # time of the second reading, or its share of the first


class Watched(RowSource):
    """A source that can be read anywhere, of which the first, the middle and the last row are remembered.

    Args:
        source: gives the rows; seekable.
    """

    seekable = True

    def __init__(self, source: RowSource) -> None:
        assert source.seekable
        assert source.length is not None
        self.length = source.length
        self.name, self.schema, self.fingerprint = source.name, source.schema, source.fingerprint
        self.source = source
        self._read: dict[int, tuple[Node, list[Leaf]]] = {}
        self._seconds = 0.0  # what reading took, and all that was done with the rows meanwhile
        self._num_read = 0

    def rows(self, start: int) -> Iterator[Row]:
        """The rows of the source."""
        assert self.length is not None
        watched = {0, self.length // 2, self.length - 1}
        started = time.monotonic()
        for number, row in enumerate(self.source.rows(start), start):
            self._num_read, self._seconds = number + 1 - start, time.monotonic() - started
            if number in watched:
                with contextlib.suppress(SchemaError):  # the build's error says more
                    self._read[number] = split(row)
            yield row

    @property
    def found(self) -> Json:
        """What the source has found."""
        return self.source.found

    def row(self, number: int) -> Row:
        """One row of the source."""
        return self.source.row(number)

    def differ(self) -> bool:
        """True if a remembered row differs when it is read again; the generators are put back after it.

        False where it cannot be read any more, or where that would take long compared with the first reading.
        """
        if self._seconds / max(1, self._num_read) * len(self._read) > max(_SECONDS, _SHARE * self._seconds):
            return False
        with generators_put_back():
            return any(self._differs(number) for number in self._read)

    def _differs(self, number: int) -> bool:
        try:
            row = self.source.row(number)
        except Exception:  # of a source that gives each row once
            return False
        tree, before = self._read[number]
        try:
            now_tree, now = split(row)
        except SchemaError:
            return True
        if _sorted_keys(tree) != _sorted_keys(now_tree):
            return True
        places = {path: leaf for path, leaf in zip(leaf_paths(now_tree), now, strict=True)}
        now = [places[path] for path in leaf_paths(tree)]
        return any(
            (one.kind, one.dtype, one.array.shape, one.array.tobytes())
            != (other.kind, other.dtype, other.array.shape, other.array.tobytes())
            for one, other in zip(before, now, strict=True)
        )


def _sorted_keys(node: Node) -> Node:
    """A tree with the keys of its dicts in one order."""
    children = [_sorted_keys(child) for child in node.children]
    if node.kind != "dict":
        return replace(node, children=tuple(children))
    pairs = sorted(zip(node.keys, children, strict=True), key=lambda pair: repr(pair[0]))
    return replace(node, keys=tuple(key for key, _ in pairs), children=tuple(child for _, child in pairs))
