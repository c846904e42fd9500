"""Parquet files of any other program -> rows, where they lie.

A row group is decoded as a whole, and counts as a file: a block shuffle needs a few of them at a time. A row
alone costs as much as its group, so a full shuffle is for the cache: `storage.submit(from_parquet(...))`
reads group by group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..process.buffers import BufferPool
from ..process.distinct import distinct
from ..process.lazy import cached_property
from ..reading.dataref import DataRef
from ..reading.readahead import ReadAhead
from ..rows.block import Block, Rows, interleaved, joined
from ..rows.data import Data
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Row
from .conversion import Nulls, Options
from .gathered import gathered
from .groups import Groups
from .parquet_files import ParquetFiles, opened
from .places import Paths, found_at
from .row_filter import Filters, filtered

__all__ = ["ParquetRef", "from_parquet", "ref_of"]

Ints = npt.NDArray[np.int64]
_LARGE_GROUP = 128 * 2**20  # bytes; a build reads groups from this size on in pieces


class ParquetRef(DataRef):
    """The rows of Parquet files. Pickles by their paths, and survives fork, spawn and threads.

    Args:
        files: the files, and what is read of them.
        of: the columns of what is read that a row has.
        cache_bytes: of decoded row groups to keep; None for as many as a block shuffle needs.
    """

    is_thread_safe = True

    def __init__(self, files: ParquetFiles, of: Projection, cache_bytes: int | None = None) -> None:
        self._files, self._of = files, of
        self._cache_bytes = cache_bytes
        self._pool = BufferPool()
        sizes = files.nbytes.sum(axis=1)
        fixed = sum(c.row_bytes for c in of.schema.columns if not c.is_ragged) * files.sizes
        self._group_bytes = np.maximum(sizes, fixed)
        self._groups = Groups(self._name, files.starts, self._group_bytes, self._decoded, cache_bytes)

    @property
    def _name(self) -> str:
        names = [footer.place.name for footer in self._files.footers]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _decoded(self, group: int) -> Block:
        return self._of.block(self._files.block(group))

    def __len__(self) -> int:
        return int(self._files.starts[-1])

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        if not len(rows):
            return []
        starts = self._files.starts
        group = np.searchsorted(starts, rows, side="right") - 1
        wanted = distinct(group)
        turns = list(self._groups.turns(wanted))
        if len(turns) == 1:
            return Rows(self._taken(wanted, group, rows - starts[group]))
        pieces = []
        for turn in turns:
            places = np.flatnonzero(np.isin(group, turn))
            found = self._taken(turn, group[places], rows[places] - starts[group[places]])
            pieces.append((places, _copied(found)))
        return Rows(interleaved(pieces, self._pool.empty))

    def _taken(self, wanted: Ints, group: Ints, rows: Ints) -> Block:
        blocks = [self._groups.get(number) for number in wanted.tolist()]
        return gathered(blocks, np.searchsorted(wanted, group), rows, self._pool)

    def blocks(self, start: int, nbytes: int) -> Iterator[Block]:
        """All rows from `start` on, in order, in blocks of about so many bytes, each group decoded once.

        What is read is not kept: this is for a single pass over everything.
        """
        starts, waiting, held = self._files.starts, list[Block](), 0
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for group in range(first, len(starts) - 1):
            for block in self._pieces(group, max(0, start - int(starts[group])), nbytes):
                waiting.append(block)
                held += block.nbytes
                if held >= nbytes:
                    yield from _cut(joined(waiting), nbytes)
                    waiting, held = [], 0
        if waiting:
            yield joined(waiting)

    def _pieces(self, group: int, start: int, nbytes: int) -> Iterator[Block]:
        size, rows = int(self._group_bytes[group]), int(self._files.sizes[group])
        if size < _LARGE_GROUP:
            block = self._decoded(group)
            yield block.slice(start, block.num_rows) if start else block
            return
        most = max(1, rows * nbytes // size)
        yield from map(self._of.block, self._files.blocks(group, start, most))

    @property
    def file_starts(self) -> Ints:
        """(groups + 1,) the row at which each row group begins, and the number of rows."""
        return self._files.starts

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of an average row, as the footers say."""
        return int(self._group_bytes.sum()) // max(1, len(self))

    @cached_property
    def readahead(self) -> ReadAhead:
        """What decodes the next row group before its rows are taken."""
        return ReadAhead(self.row_bytes, self._groups)

    @property
    def schema(self) -> Schema:
        """What a row looks like."""
        return self._of.schema

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the files' footers and the columns."""
        return self._of.pinned(self._files.fingerprint)

    def projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        files, part = self._files.projected(self._of.then(of))
        return ParquetRef(files, part, self._cache_bytes)

    def __repr__(self) -> str:
        columns = ", ".join(map(str, self.schema.columns))
        groups = len(self._files.sizes)
        return f"<DataRef {self._name}: {len(self)} rows in {groups} row groups; {columns}>"

    def __reduce__(self) -> tuple[object, ...]:
        return ParquetRef, (self._files, self._of, self._cache_bytes)


def _copied(block: Block) -> Block:
    """A block that holds nothing but its own rows."""
    data = tuple(Data(held.values, held.offsets, held.shapes) for held in block.data)
    return Block(block.schema, block.num_rows, data)


def _cut(block: Block, nbytes: int) -> Iterator[Block]:
    """A block in pieces of about so many bytes."""
    count = max(1, round(block.nbytes / max(1, nbytes)))
    step = -(-block.num_rows // count)
    for start in range(0, block.num_rows, step):
        yield block.slice(start, min(start + step, block.num_rows)) if count > 1 else block


def from_parquet(
    paths: Paths,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    nulls: Nulls = "nullable",
    words: bool = False,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> ParquetRef:
    """TODO."""
    return ref_of(paths, columns, filters, cache_bytes, storage_options, Options(nulls, words))


def ref_of(
    paths: Paths,
    columns: Sequence[str] | None,
    filters: Filters | None,
    cache_bytes: int | None,
    storage_options: Mapping[str, object] | None,
    options: Options,
) -> ParquetRef:
    """A DataRef over Parquet files; see `from_parquet`."""
    if isinstance(columns, str):
        raise TypeError(f"columns are named by a list, as in columns=[{columns!r}]")
    files, all_fields = opened(found_at(paths, storage_options), columns, options)
    if filters is not None:
        files = filtered(files, filters, all_fields)
    if columns is None:
        of = Projection(files.schema, tuple(range(len(files.schema.columns))))
    else:
        of = Projection.of(files.schema, columns)
    return ParquetRef(files, of, cache_bytes)
