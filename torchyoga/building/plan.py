"""The plan that all builders of a version share, and the parts of a source that it names.

A plan says where parts begin and how they are read and written. A part of a source is a source of its own.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from ..errors import CorruptError, SchemaError
from ..process.digests import hexdigest
from ..process.numbers import spread
from ..process.seeding import GeneratorsPutBack, seeder
from ..rows.block import Block
from ..rows.collector import Collector, block_of
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..stores.contract import Seen
from ..versions.file_entry import is_token
from ..versions.lineage import plain
from ..versions.manifest import FunctionEntry
from .sources import BlockSource, InputSource, RowSource, SeekableBlocks, Source

MOST_PARTS = 10_000
_LARGEST_BOUND = 2**62


@dataclass(frozen=True)
class Plan:
    """How a version is built in parts.

    Attributes:
        token: names the plan, and is the build of the version that comes of it.
        id: which dataset; `version`: which version of it.
        signature: plain data that says what is read and how files are written; all builders have the same.
        schema: what a row looks like; None if no row showed it, because there is none.
        bounds: where each part begins, and where the last one ends.
        of_rows: bounds count rows; False if they count inputs, each of which has any number of rows.
        looks: numbers and digests of some rows, which each builder compares with its own; empty if rows are
            others each time they are read.
        host: the machine that made the plan, and its process.
        info: kept with the version; `function`: what made the rows; `lineage`: how.
        replaces: the version that may be replaced; None if none may.
    """

    token: str
    id: str
    version: str
    signature: Sequence[object]
    schema: Schema | None
    bounds: tuple[int, ...]
    of_rows: bool
    looks: tuple[tuple[int, str], ...] = ()
    host: str = ""
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    lineage: Json = field(default_factory=dict)
    replaces: Seen | None = None

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.bounds) - 1

    def named(self, part: int) -> str:
        """A part, for messages."""
        start, stop = self.bounds[part], self.bounds[part + 1]
        what = "row" if self.of_rows else "input"
        which = f"{what} {start}" if stop - start == 1 else f"{what}s {start} to {stop - 1}"
        return f"part {part} ({which}) of {self.id!r} {self.version!r}"

    def to_json(self) -> Json:
        """Plain data."""
        schema, function = self.schema, self.function
        return {
            **vars(self),
            "schema": schema.to_json() if schema else None,
            "function": function.to_json() if function else None,
        }

    @staticmethod
    def from_json(data: Json) -> Plan:
        """The plan that `to_json` described; CorruptError if it is none."""
        try:
            kept = typed(
                data, token=str, id=str, version=str, host=str, signature=list, of_rows=bool, lineage=dict
            )
            bounds, looks = tuple(data["bounds"]), tuple((number, digest) for number, digest in data["looks"])
            rising = all(type(bound) is int and 0 <= bound < _LARGEST_BOUND for bound in bounds) and all(
                one < other for one, other in itertools.pairwise(bounds)
            )
            if not rising or bounds[:1] != (0,) or len(bounds) - 1 > MOST_PARTS:
                raise ValueError(f"its parts do not follow each other: {bounds!r:.80}")
            if not is_token(data["token"]):
                raise ValueError("it has no token")
            if not all(type(number) is int and isinstance(digest, str) for number, digest in looks):
                raise TypeError("it must compare numbered rows")
            replaces = None if data["replaces"] is None else Seen(*data["replaces"])
            if not all(value is None or isinstance(value, str) for value in replaces or ()):
                raise TypeError("what it replaces must be text")
            return Plan(
                **kept,
                schema=None if data["schema"] is None else Schema.from_json(data["schema"]),
                bounds=bounds,
                looks=looks,
                info=plain(data["info"]),
                function=None if data["function"] is None else FunctionEntry.from_json(data["function"]),
                replaces=replaces,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the plan is damaged: {error}") from error


def typed(data: Json, **kinds: type) -> Json:
    """The entries of these names; TypeError or KeyError unless each is of exactly this type."""
    for name, kind in kinds.items():
        if type(data[name]) is not kind:
            raise TypeError(f"{name} must be a {kind.__name__}, found {data[name]!r:.40}")
    return {name: data[name] for name in kinds}


_ROWS, _SECONDS = 256, 5.0  # at most, to learn a schema of; a slow source shows fewer, but some
_FEWEST = 16
_INPUTS, _ROWS_OF_ONE = 16, 32


def digest_of(block: Block) -> str:
    """A digest of the rows of a block, whatever the memory is like that holds them."""
    return hexdigest(*(part.data for part in block.checked()))


class RowSlice(RowSource):
    """Some rows of a source, or the rows of some of its inputs.

    Attributes:
        number: the row that is being read, counted from the part's beginning.
    """

    def __init__(
        self,
        source: RowSource,
        ask: Callable[[], Iterator[Row]],
        start: int,
        length: int | None,
        schema: Schema,
    ) -> None:
        """The rows that `ask` begins with, as many as `length` says, or all."""
        self.name, self.schema, self.length = source.name, schema, length
        self.number = 0
        self._source, self._ask, self._start = source, ask, start

    @property
    def found(self) -> Json:
        """The entries that the source has found."""
        return self._source.found

    def rows(self, start: int) -> Iterator[Row]:
        """The rows."""
        with _closed(self._ask()) as given:
            for row in islice(given, self.length):
                yield row
                self.number += 1
        if self.length not in (None, self.number):
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, but has {self.length} there "
                "by its length; correct its __len__ or __getitems__"
            )


class BlockSlice(BlockSource):
    """Rows of a source of blocks that can begin at any row; its attributes are those of `RowSlice`."""

    def __init__(self, source: SeekableBlocks, start: int, length: int) -> None:
        self.name, self.schema, self.length = source.name, source.schema, length
        self.number = 0
        self._source, self._start = source, start

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """The rows, in blocks of about `nbytes` bytes."""
        assert self.length is not None
        for block in self._source.blocks_from(self._start, nbytes):
            cut = block.slice(0, min(block.num_rows, self.length - self.number))
            if cut.num_rows:
                self.number += cut.num_rows
                yield cut
            if self.number >= self.length:
                return
        if self.number < self.length:
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, not {self.length}"
            )


Slice = RowSlice | BlockSlice


@dataclass(frozen=True)
class Splits:
    """A source that can be read in parts.

    Attributes:
        source: the source.
        count: how many rows it has, or inputs; `of_rows`: True for rows.
    """

    source: Source
    count: int
    of_rows: bool

    def slice(self, start: int, stop: int, schema: Schema) -> Slice:
        """Some of it, as a source of its own."""
        source = self.source
        if isinstance(source, SeekableBlocks):
            return BlockSlice(source, start, stop - start)
        assert isinstance(source, RowSource)
        if self.of_rows:
            return RowSlice(source, partial(source.rows, start), start, stop - start, schema)
        return RowSlice(source, partial(self._rows_of, start, stop), start, None, schema)

    def _rows_of(self, start: int, stop: int) -> Iterator[Row]:
        """The rows of some inputs."""
        assert isinstance(self.source, InputSource)
        return self.source.rows_of(start, stop)

    def learned(self, schema: Schema | None) -> tuple[Schema | None, float, float]:
        """A schema, if none is given, and the bytes and the seconds of a row or an input, as some show that
        are spread over the source."""
        source, started = self.source, time.monotonic()
        if isinstance(source, SeekableBlocks):
            block = source.some(spread(self.count, _FEWEST)) if self.count else None
            nbytes = block.nbytes / max(1, block.num_rows) if block else 1024.0
            return source.schema, nbytes, (time.monotonic() - started) / _FEWEST
        assert isinstance(source, RowSource)
        collector = Collector(schema or source.schema, lambda: source.meanings)
        nbytes, seen = 0, 0
        with GeneratorsPutBack():
            for number in spread(self.count, _ROWS if self.of_rows else _INPUTS).tolist():
                if seen >= _FEWEST and time.monotonic() - started > _SECONDS:
                    break
                for row in self._rows_at(number):
                    before = collector.nbytes
                    collector.add(row, number)
                    nbytes += max(1, collector.nbytes - before)
                seen += 1
        learned = collector.take().schema if len(collector) else schema or source.schema
        each = max(1, seen)
        return learned, nbytes / each, (time.monotonic() - started) / each

    def _rows_at(self, number: int) -> Iterator[Row]:
        """A row, or the first ones of an input."""
        if self.of_rows:
            assert isinstance(self.source, RowSource)
            yield self.source.row(number)
            return
        with _closed(self._rows_of(number, number + 1)) as rows:
            yield from islice(rows, _ROWS_OF_ONE)

    def digests(self, numbers: Sequence[int], schema: Schema | None, others: bool = False) -> list[str]:
        """Digests of rows of these numbers, as they are read now, of inputs of the first row from there on;
        empty strings where that says nothing.

        With `others` the generators of random numbers give others than before: this shows random rows.
        """
        with GeneratorsPutBack():
            if others:
                seeder()(secrets.randbelow(2**63))  # of which NumPy gets the upper half
            return [self._digest(number, schema) for number in numbers]

    def _digest(self, number: int, schema: Schema | None) -> str:
        if isinstance(self.source, SeekableBlocks):
            block = self.source.some(np.array([number], np.int64))
            return "" if block is None else digest_of(block)
        try:
            for one in range(number, number + 1 if self.of_rows else min(self.count, number + _INPUTS)):
                for row in self._rows_at(one):
                    return digest_of(block_of([row], schema))
        except SchemaError:
            return "it does not fit"
        return ""

    def differing(self, there: Iterable[tuple[int, str]], schema: Schema) -> int | None:
        """The first of these rows, given by number and digest, that is another one here; None if there is
        none. Rows that are others each time they are read do not count."""
        known = [(number, digest) for number, digest in there if digest]
        digests = self.digests([number for number, _ in known], schema)
        for (number, digest), now in zip(known, digests, strict=True):
            if now not in ("", digest) and [now] == self.digests([number], schema, others=True):
                return number
        return None


def _closed(rows: Iterator[Row]) -> AbstractContextManager[Iterator[Row]]:
    """Rows, and what gives them is closed at the end."""
    return closing(rows) if isinstance(rows, Generator) else nullcontext(rows)


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
        "a map-style dataset, or yoga.flat_map(paths, read), whose paths are read one by one"
    )
