"""A part of a source -> a source of its own, which remembers its first and its last row."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

import numpy as np

from ...errors import SchemaError
from ...process.seeding import generators_put_back, seeder
from ...rows.block import Block
from ...rows.collector import Collector, block_of
from ...rows.schema import Schema
from ...rows.types import Json, Row
from ..sources import BlockSource, InputSource, RowSource, SeekableBlocks, Source

__all__ = ["Slice", "Splits", "splits_of"]

_ROWS, _SECONDS = 256, 5.0  # at most, to learn a schema of; a slow source shows fewer, but some
_FEWEST = 16
_INPUTS, _ROWS_OF_ONE = 16, 32


class Slice:
    """What a part's source remembers.

    Attributes:
        ends: digests of the first and the last row; empty before there are any.
        number: the row that is being read, counted from the part's beginning.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._schema = schema
        self.ends: list[str] = []
        self.number = 0

    def see(self, row: Row) -> None:
        """Remembers a row as the first, or as the last so far."""
        self.see_block(block_of([row], self._schema))

    def see_block(self, block: Block) -> None:
        """Remembers a block of one row."""
        self.ends[1:] = [Splits.digest(block)]
        if len(self.ends) == 1:
            self.ends *= 2


class _RowSlice(RowSource, Slice):
    """Rows `start` to before `stop` of a source that can be read from anywhere."""

    def __init__(self, source: RowSource, start: int, stop: int, schema: Schema) -> None:
        Slice.__init__(self, schema)
        self.name, self.schema, self.length = source.name, schema, stop - start
        self._source, self._start, self._stop = source, start, stop

    @property
    def found(self) -> Json:
        """What the source has found."""
        return self._source.found

    def rows(self, start: int) -> Iterator[Row]:
        """The rows."""
        assert self.length is not None
        given = self._source.rows(self._start)
        last = self.length - 1
        try:
            for row in islice(given, self.length):
                yield row
                if self.number in (0, last):
                    self.see(row)
                self.number += 1
        finally:
            if isinstance(given, Generator):
                given.close()
        if self.number != self.length:
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, but has {self.length} there "
                "by its length; correct its __len__ or __getitems__"
            )


class _BlockSlice(BlockSource, Slice):
    """Rows `start` to before `stop` of a source of blocks that can begin at any row."""

    def __init__(self, source: SeekableBlocks, start: int, stop: int) -> None:
        Slice.__init__(self, source.schema)
        self.name, self.schema, self.length = source.name, source.schema, stop - start
        self._source, self._start = source, start

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """The rows, in blocks of about `nbytes` bytes."""
        assert self.length is not None
        for block in self._source.blocks_from(self._start, nbytes):
            cut = block.slice(0, min(block.num_rows, self.length - self.number))
            if cut.num_rows:
                if not self.number:
                    self.see_block(cut.slice(0, 1))
                self.see_block(cut.slice(cut.num_rows - 1, cut.num_rows))
                self.number += cut.num_rows
                yield cut
            if self.number >= self.length:
                return
        if self.number < self.length:
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, not {self.length}"
            )


class _InputSlice(RowSource, Slice):
    """The rows of inputs `start` to before `stop`."""

    def __init__(self, source: InputSource, start: int, stop: int, schema: Schema) -> None:
        Slice.__init__(self, schema)
        assert isinstance(source, RowSource)
        self.name, self.schema = source.name, schema
        self._source, self._start, self._stop = source, start, stop

    @property
    def found(self) -> Json:
        """What the source has found."""
        assert isinstance(self._source, RowSource)
        return self._source.found

    def rows(self, start: int) -> Iterator[Row]:
        """The rows."""
        row: Row = None
        for row in self._source.rows_of(self._start, self._stop):
            yield row
            if not self.number:
                self.see(row)
            self.number += 1
        if self.number:
            self.see(row)


class Splits:
    """A source that can be read in parts.

    Attributes:
        source: the source.
        count: how many rows it has, or inputs; `of_rows`: True for rows.
    """

    def __init__(self, source: Source, count: int, of_rows: bool) -> None:
        self.source = source
        self.count = count
        self.of_rows = of_rows

    def slice(self, start: int, stop: int, schema: Schema) -> Source:
        """Some of it, as a source which is a `Slice`."""
        source = self.source
        if isinstance(source, SeekableBlocks):
            return _BlockSlice(source, start, stop)
        if self.of_rows:
            assert isinstance(source, RowSource)
            return _RowSlice(source, start, stop, schema)
        assert isinstance(source, InputSource)
        return _InputSlice(source, start, stop, schema)

    def learned(self, schema: Schema | None) -> tuple[Schema | None, float, float]:
        """A schema, if none is given, and the bytes and the seconds of a row or an input, as some show that
        are spread over the source."""
        source = self.source
        started = time.monotonic()
        if isinstance(source, SeekableBlocks):
            block = source.some(self._spread(_FEWEST)) if self.count else None
            seconds = (time.monotonic() - started) / _FEWEST
            return source.schema, block.nbytes / max(1, block.num_rows) if block else 1024.0, seconds
        assert isinstance(source, RowSource)
        collector = Collector(schema or source.schema, lambda: source.meanings)
        nbytes, seen = 0, 0
        with generators_put_back():
            for number in self._spread(_ROWS if self.of_rows else _INPUTS).tolist():
                if seen >= _FEWEST and time.monotonic() - started > _SECONDS:
                    break
                for row in self._rows_at(number):
                    before = collector.nbytes
                    collector.add(row, number)
                    nbytes += max(1, collector.nbytes - before)
                seen += 1
        found = collector.take().schema if len(collector) else schema or source.schema
        each = max(1, seen)
        return found, nbytes / each, (time.monotonic() - started) / each

    def _spread(self, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Numbers from the first to the last, at most so many."""
        return np.unique(np.linspace(0, self.count - 1, min(most, self.count)).astype(np.int64))

    def _rows_at(self, number: int) -> Iterator[Row]:
        if self.of_rows:
            assert isinstance(self.source, RowSource)
            yield self.source.row(number)
            return
        assert isinstance(self.source, InputSource)
        rows = self.source.rows_of(number, number + 1)
        try:
            yield from islice(rows, _ROWS_OF_ONE)
        finally:
            if isinstance(rows, Generator):
                rows.close()

    def first(self, schema: Schema) -> str:
        """A digest of the first row; empty if the first inputs have none."""
        with generators_put_back():
            for number in range(min(_INPUTS, self.count)):
                for row in self._rows_at(number):
                    return self.digest(block_of([row], schema))
        return ""

    @staticmethod
    def digest(block: Block) -> str:
        """A digest of the rows of a block, whatever the memory is like that holds them."""
        found = blake2b(digest_size=16)
        for part in block.checked():
            found.update(part.data)
        return found.hexdigest()

    def digests(self, numbers: Sequence[int], schema: Schema, others: bool = False) -> list[str]:
        """Digests of rows of these numbers, as they are read now; empty strings where that says nothing.

        With `others` the generators of random numbers give others than before: this shows random rows.
        """
        source = self.source
        found = []
        with generators_put_back():
            if others:
                seeder()(secrets.randbelow(2**31))
            for number in numbers:
                if isinstance(source, SeekableBlocks):
                    block = source.some(np.array([number], np.int64))
                    found.append("" if block is None else Splits.digest(block))
                elif self.of_rows:
                    assert isinstance(source, RowSource)
                    try:
                        found.append(Splits.digest(block_of([source.row(number)], schema)))
                    except SchemaError:
                        found.append("it does not fit")
                else:
                    found.append("")
        return found


def splits_of(source: Source) -> Splits:
    """A source as one that can be read in parts.

    Raises:
        TypeError: it can only be read from its beginning.
    """
    if isinstance(source, SeekableBlocks) and source.length is not None:
        return Splits(source, source.length, True)
    if isinstance(source, RowSource) and source.seekable and source.length is not None:
        return Splits(source, source.length, True)
    if isinstance(source, InputSource):
        return Splits(source, source.num_inputs, False)
    raise TypeError(
        f"{source.name} can only be read from its beginning, so parts of it cannot be built by several: pass "
        "a map-style dataset, or yoga.shards(read, inputs), whose inputs are read one by one"
    )
