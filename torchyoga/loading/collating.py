"""Rows of some batches -> those batches, by torch's collate function, ours or the user's."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import default_collate

from ..process.seeding import seeder
from ..reading.stream import Window
from ..rows.block import Rows
from ..rows.collate import Collation, is_ours, stacked
from ..rows.types import Batch, Collate, Row

__all__ = ["Collating"]


class Collating:
    """Collates the batches of a window, all in one go where that is default_collate's work."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate
        self._collated = stacked if collate is default_collate else collate
        self._takes_rows = is_ours(collate)
        self._collation: Collation | None = None

    def of(self, rows: Sequence[Row], window: Window, seeds: Sequence[int] | None = None) -> list[Batch]:
        """Each batch, collated; before a user's function the generators are seeded by these seeds, if any."""
        if self.collate is not default_collate or not isinstance(rows, Rows):
            return self.of_parts(self.parts(rows, window), seeds)
        if self._collation is None or self._collation.schema is not rows.block.schema:
            self._collation = Collation(rows.block.schema)
        return self._collation.batches(rows.block, window.bounds)

    def of_parts(self, parts: Sequence[Row], seeds: Sequence[int] | None) -> list[Batch]:
        """Each batch, collated from its rows; or from a single row."""
        if seeds is None:
            return [self._collated(part) for part in parts]
        seed_all, found = seeder(), []
        for part, seed in zip(parts, seeds, strict=True):
            seed_all(seed)
            found.append(self._collated(part))
        return found

    def parts(self, rows: Sequence[Row], window: Window) -> list[Sequence[Row]]:
        """The rows of each batch; a list, as torch's loader gives it, if the function is the user's."""
        found = [rows] if len(window.ends) == 1 else [rows[start:stop] for start, stop in window.bounds]
        return found if self._takes_rows else list(map(list, found))
