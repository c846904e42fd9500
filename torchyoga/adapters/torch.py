"""torch datasets, and objects like them -> rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from torch.utils.data import Dataset, IterableDataset

from ..building.sources import RowSource
from ..reading.dataref import DataRef
from ..rows.types import MapStyle, Row
from .map_style import MapSource

__all__ = ["IterableSource", "source_of"]


def source_of(data: object, num_workers: int = 0) -> RowSource | None:
    """A torch IterableDataset, or anything with rows by number, as a source; None for anything else.

    A torch Dataset has rows by number, and so has whatever has a length and is indexed, as a list is. The
    caller must know whether rows are what it holds, and not the letters of a text.

    Raises:
        TypeError: it has no length.
        ValueError: several processes are to read an IterableDataset.

    Example:
        >>> source = source_of(["a", "b", "c"])
        >>> source.length, list(source.rows(1)), source_of(iter("abc"))
        (3, ['b', 'c'], None)
    """
    if isinstance(data, IterableDataset):
        return IterableSource(data, num_workers)
    return MapSource(data, num_workers) if _is_map_style(data) else None


def _is_map_style(data: object) -> TypeGuard[MapStyle]:
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return is_indexed or isinstance(data, (Dataset, DataRef))  # which may lack a length


class IterableSource(RowSource):
    """The rows of a torch IterableDataset, read once, in this process."""

    def __init__(self, dataset: IterableDataset[Row], num_workers: int = 0) -> None:
        if num_workers:
            raise ValueError(
                f"num_workers={num_workers} for {type(dataset).__name__}: an IterableDataset would give each "
                "worker all its rows; use num_workers=0, or a map-style dataset"
            )
        self.name = type(dataset).__name__
        self._dataset = dataset

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        return iter(self._dataset)
