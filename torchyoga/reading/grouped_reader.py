"""An open version whose columns lie in files of several groups: a reader for each, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..process.lazy import cached_property
from ..rows.block import Block
from ..rows.data import Data
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints
from ..versions.columns import ColumnGroup
from .reader import Reader

__all__ = ["GroupedReader"]

# Columns of a group, and their places in the block.
_Side: TypeAlias = tuple[Reader, Projection, Sequence[int]]


class GroupedReader:
    """Reads rows of several groups of columns, as a `Reader` does of one.

    A group is opened when a column of it is first wanted.

    Args:
        schema: of the rows.
        groups: of columns.
        opened: makes a reader of one.
    """

    def __init__(
        self, schema: Schema, groups: Sequence[ColumnGroup], opened: Callable[[ColumnGroup], Reader]
    ) -> None:
        self.schema = schema
        self._groups = groups
        self._opened = opened
        self._readers: dict[int, Reader] = {}
        self._places = {
            column: (group, place) for group in groups for place, column in enumerate(group.columns)
        }
        self._known: dict[tuple[int, ...], list[_Side]] = {}

    @cached_property
    def _whole(self) -> Projection:
        return Projection(self.schema, tuple(range(len(self.schema.columns))))

    def _reader(self, group: ColumnGroup) -> Reader:
        found = self._readers.get(group.number)
        if found is None:
            found = self._opened(group)
            found.open()
            self._readers[group.number] = found
        return found

    def _sides(self, of: Projection | None) -> list[_Side]:
        """The groups in which some columns lie, opened."""
        columns = (of or self._whole).columns
        found = self._known.get(columns)
        if found is None:
            found = []
            for group in self._groups:
                wanted = [at for at, column in enumerate(columns) if self._places[column][0] is group]
                numbers = tuple(self._places[columns[at]][1] for at in wanted)
                if wanted:
                    # What a reader gives is taken apart here, so nobody looks at this schema.
                    found.append((self._reader(group), Projection(self.schema, numbers), wanted))
            self._known[columns] = found
        return found

    def has(self, of: Projection | None) -> bool:
        """True if the groups in which some columns lie are open."""
        return (of or self._whole).columns in self._known

    def open(self, of: Projection | None) -> None:
        """Opens the groups in which some columns lie, or all, as `Reader.open`."""
        self._sides(of)

    def take(self, rows: Ints, of: Projection | None = None) -> Block:
        """The rows of these numbers, as `Reader.take`."""
        of = of or self._whole
        data: list[Data | None] = [None] * len(of.columns)
        for reader, some, wanted in self._sides(of):
            found = reader.take(rows, some) if len(rows) else some.block(reader.take(rows))
            for at, part in zip(wanted, found.data, strict=True):
                data[at] = part
        return Block(of.schema, len(rows), tuple(part for part in data if part is not None))

    def lengths(self, rows: Ints, number: int) -> Ints:
        """How many elements rows of a ragged column have, as `Reader.lengths`."""
        group, place = self._places[number]
        return self._reader(group).lengths(rows, place)

    def take_parts(self, rows: Ints, number: int, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, as `Reader.take_parts`."""
        group, place = self._places[number]
        return self._reader(group).take_parts(rows, place, starts, stops)

    def located(self, rows: Ints, of: Projection | None = None) -> None:
        """None: rows are read group by group."""

    def is_cold(self, of: Projection | None = None) -> bool:
        """As `Reader.is_cold`."""
        return any(reader.is_cold(some) for reader, some, _ in self._sides(of))

    def announce(self, rows: Ints, values: bool, of: Projection | None = None) -> None:
        """Asks the kernel to make rows ready, as `Reader.announce`."""
        for reader, some, _ in self._sides(of):
            reader.announce(rows, values, some)

    def probe(self) -> None:
        """As `Reader.probe`, of what is open."""
        for reader in self._readers.values():
            reader.probe()
