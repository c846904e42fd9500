"""Rows in files, for the orders that depend on files; and where they lie in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import torchyoga as yoga
from torchyoga.formats.contract import Extent, format_named
from torchyoga.formats.mapped import MappedFile
from torchyoga.reading.reader import Reader
from torchyoga.rows.block import Block
from torchyoga.versions.file_entry import FileEntry

SIZES = (4, 7, 0, 5, 1, 6)  # rows of each file, 23 in all


class InFiles(yoga.DataRef):
    """A DataRef of files of these sizes; each row is its number."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.starts = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def file_starts(self) -> Any:
        return self.starts

    def take(self, rows: Any) -> list[int]:
        return [int(row) for row in rows]


def cells_of(files: Sequence[Sequence[int]], window: int) -> list[list[int]]:
    """The rows that a block shuffle mixes with each other: a part each of up to `window` files."""
    found: list[list[int]] = [[] for _ in range(len(files) + window - 1 if files else 0)]
    for first, rows in enumerate(files):
        for part in range(window):
            found[first + part][:0] = rows[len(rows) * part // window : len(rows) * (part + 1) // window]
    return found


def written(path: Path, *blocks: Block, compression: str | None = None) -> FileEntry:
    """The entry of a new file of these blocks."""
    format = "hdf5" if path.suffix == ".h5" else "lmdb"
    writer = format_named(format).Writer(str(path), blocks[0].schema, compression)
    for block in blocks:
        writer.write(block)
    index, num_rows = writer.close(), sum(block.num_rows for block in blocks)
    return FileEntry(path.name, format, num_rows, path.stat().st_size, index, ())


def extents_of(reader: Reader) -> list[Extent]:
    """Where each part of each column lies in the first file of a reader."""
    (entry, *_) = reader.files
    data = MappedFile(reader.where.path(entry), entry.nbytes).data
    return list(format_named(entry.format).read_extents(data, entry.index, reader.schema))
