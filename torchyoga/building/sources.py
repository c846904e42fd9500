"""The sources that a build reads: rows one by one, or arrays of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ..rows.block import Block
from ..rows.column import Meaning
from ..rows.schema import Schema
from ..rows.types import Json, Row


class RowSource(ABC):
    """Rows from anywhere; an adapter turns a dataset into one.

    Attributes:
        length: number of rows, or None if that is not known before the end.
        seekable: True if `rows(start)` can begin anywhere at no cost, so that a build can be continued.
        name: what the source is, for messages.
        schema: what every row looks like, where the source says it; else the first rows show it.
        fingerprint: a name for the content, where there is one; a build of other content is not continued.
    """

    length: int | None = None
    seekable: bool = False
    name: str = "the source"
    schema: Schema | None = None
    fingerprint: str | None = None

    @property
    def meanings(self) -> Mapping[str, Meaning]:
        """The meanings of columns, by name; asked for after the first rows were given."""
        return {}

    @property
    def found(self) -> Json:
        """The entries that the info of a version is to have besides; asked for after all rows were given."""
        return {}

    @property
    def pin(self) -> object:
        """Plain data that must be the same for a build to be continued; None if there is nothing."""
        return None

    @abstractmethod
    def rows(self, start: int) -> Iterator[Row]:
        """The rows from number `start` on; `start` is 0 unless `seekable`."""

    def row(self, number: int) -> Row:
        """One row; only called if the source is `seekable`."""
        return next(iter(self.rows(number)))


class PlacedSource(RowSource):
    """Rows made of inputs, each of which gives any number of rows: which row is where is not known before.

    Its builds can be continued, although it is not seekable: it names the places where rows can begin itself.

    Attributes:
        num_inputs: how many inputs there are.
    """

    num_inputs: int

    @abstractmethod
    def place(self, number: int) -> Json:
        """Where row `number` comes, as JSON data: one that was given, or the next one after them.

        A thread asks while rows are given, for numbers that only rise.
        """

    @abstractmethod
    def rows_at(self, place: Json, number: int) -> Iterator[Row]:
        """The rows from a place on; the first one has this number."""

    @abstractmethod
    def rows_of(self, start: int, stop: int) -> Iterator[Row]:
        """The rows of inputs `start` to before `stop`."""


class BlockSource(ABC):
    """Rows that come in arrays, many at once, and are stored without looking at each.

    Attributes:
        length: number of rows, or None if that is not known before the end.
        schema: the schema of every row.
        name: what the source is, for messages.
    """

    length: int | None
    schema: Schema
    name: str = "the arrays"

    @abstractmethod
    def blocks(self, nbytes: int) -> Iterator[Block]:
        """All rows, in order, in blocks of about `nbytes` bytes.

        A thread writes a block while the next ones are asked for: its memory must not change or be used
        again before the build ends.
        """

    def differ(self) -> bool:
        """True if reading the source again would give other rows, as far as a few of them show."""
        return False


class SeekableBlocks(BlockSource):
    """Blocks that can begin at any row at no great cost, so that a build can be continued.

    Attributes:
        fingerprint: a name for the content, where there is one; a build of other content is not continued.
    """

    fingerprint: str | None

    def some(self, numbers: npt.NDArray[np.int64]) -> Block | None:
        """Some rows, to be compared with those of an interrupted build; None if the fingerprint is enough."""
        return None

    @abstractmethod
    def blocks_from(self, start: int, nbytes: int) -> Iterator[Block]:
        """The rows from number `start` on, as `blocks` gives them."""

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """All rows, in order, in blocks of about `nbytes` bytes."""
        return self.blocks_from(0, nbytes)


Source = RowSource | BlockSource
