"""Python's own iterables -> rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..building.sources import RowSource
from ..rows.types import Row

__all__ = ["IteratorSource", "source_of"]


def source_of(data: object) -> IteratorSource | None:
    """An iterable as a source; None for anything else.

    Example:
        >>> list(source_of(n**2 for n in range(3)).rows(0)), source_of(3)
        ([0, 1, 4], None)
    """
    return IteratorSource(data) if isinstance(data, Iterable) else None


class IteratorSource(RowSource):
    """Rows of an iterable, read once."""

    def __init__(self, data: Iterable[Row]) -> None:
        self.name = getattr(data, "__name__", type(data).__name__)
        self._data = data

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        return iter(self._data)
