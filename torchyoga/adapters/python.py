"""Python's own collections -> rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..build import RowSource

__all__ = ["IteratorSource"]


class IteratorSource(RowSource):
    """Rows of an iterable, read once."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.name = getattr(data, "__name__", type(data).__name__)
        self._data = data

    def rows(self, start: int) -> Iterator[Any]:
        """All rows."""
        return iter(self._data)
