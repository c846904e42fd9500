"""An open version: rows, by number, out of its mapped files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .buffers import BufferPool
from .columns import Block, Data
from .errors import CorruptError
from .formats import Extents, format_named
from .formats.gather import MappedFile, Memory
from .manifest import FileEntry
from .schema import Column, Schema

__all__ = ["Reader"]

Ints = npt.NDArray[np.int64]


class Reader:
    """Reads rows of some files of one schema; a file is mapped when a row of it is first wanted.

    Every block is checked against its CRC-32 when it is first touched, unless `verify` is False.

    All methods may be called from several threads, and after a fork: files never change once they are opened,
    and opening one twice does no harm.
    """

    def __init__(
        self, directory: str, schema: Schema, files: Sequence[FileEntry], verify: bool = True
    ) -> None:
        self.directory = directory
        self.schema = schema
        self.files = tuple(files)
        self.num_rows = sum(file.rows for file in files)
        blocks = sum(file.blocks for file in files)
        parts = [part for column in schema.columns for part in column.parts]
        self._first_part = np.cumsum([0, *(len(column.parts) for column in schema.columns)]).tolist()
        self._file_starts = np.cumsum([0, *(file.rows for file in files)]).astype(np.int64)
        self._first_block = np.cumsum([0, *(file.blocks for file in files)]).astype(np.int64)
        # Blocks of files that are not open yet begin where their file does: sorted, so that it can be
        # searched.
        self._block_starts: Ints = np.repeat(self._file_starts[:-1], [file.blocks for file in files])
        self._addresses: Ints = np.zeros((len(parts), blocks), np.int64)
        # Where row 0 of the whole version would lie, were every block of a fixed column as long as it takes.
        self._row_zero: Ints = np.zeros((len(parts), blocks), np.int64)
        self._sizes: Ints = np.zeros((len(parts), blocks), np.int64)
        self._mapped: list[tuple[MappedFile, Extents] | None] = [None] * len(self.files)
        self._unopened = len(self.files)
        self._lock, self._lock_process = threading.Lock(), os.getpid()
        self._block_rows = 0  # of every block but the last, once that is known to be so
        self._verified = np.full(blocks, not verify)
        self._all_verified = not verify
        self._memory: Memory | None = None
        self._pool = BufferPool()

    def open_all(self) -> None:
        """Maps every file."""
        for number in range(len(self.files)):
            self._open(number)

    def take(self, rows: Ints) -> Block:
        """The rows of these numbers, each in 0..num_rows-1, in this order, as one block.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """
        if self._unopened:
            self._open_for(rows)
        memory = self._memory
        assert memory is not None or not len(rows)
        if self._block_rows:
            blocks = rows // self._block_rows
        else:
            blocks = self._block_starts.searchsorted(rows, "right") - 1
        if not self._all_verified:
            self._verify(blocks)
        data = tuple(
            self._take_ragged(memory, column, part, blocks, rows - self._block_starts.take(blocks))
            if column.is_ragged
            else Data(self._take_fixed(memory, column, part, blocks, rows))
            for column, part in zip(self.schema.columns, self._first_part, strict=False)
        )
        return Block(self.schema, len(rows), data)

    def _take_fixed(
        self, memory: Any, column: Column, part: int, blocks: Ints, rows: Ints
    ) -> npt.NDArray[Any]:
        size = column.row_bytes
        assert column.shape is not None
        shape = (len(blocks), *column.shape)
        if not size or not len(blocks):
            return np.empty(shape, column.storage)
        addresses = rows * size
        addresses += self._row_zero[part].take(blocks)
        found: npt.NDArray[np.uint8] = memory.gather(addresses, size, self._pool.empty)
        return found.view(column.storage).reshape(shape)

    def _take_ragged(self, memory: Any, column: Column, part: int, blocks: Ints, places: Ints) -> Data:
        count, size = len(blocks), column.row_bytes
        # Begin and end of a row's values are neighbours in the offsets.
        ends = memory.gather(self._addresses[part + 1][blocks] + 8 * places, 16, self._pool.empty)
        first, last = ends.view("<i8").reshape(count, 2).astype(np.int64, copy=False).T
        lengths = last - first
        if not bool(((first >= 0) & (lengths >= 0) & (last <= self._sizes[part][blocks] // size)).all()):
            raise CorruptError(
                f"{self.directory}: the offsets of column {column.name!r} point outside their block"
            )
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out = self._pool.empty(int(offsets[-1]) * size)
        if len(out):
            memory.gather_runs(self._addresses[part][blocks] + first * size, lengths * size, out)
        values = out.view(column.storage)
        if column.ndim == 1:
            return Data(values, offsets)
        size = 8 * column.ndim
        found = memory.gather(self._addresses[part + 2][blocks] + size * places, size, self._pool.empty)
        shapes = found.view("<i8").reshape(count, column.ndim)
        known = np.where(shapes < 0, 1, shapes)
        # In floating point, which does not wrap around, before in integers, which are exact.
        sound = known.astype(float).prod(axis=1) < 2**53
        if not bool(sound.all() and (known.prod(axis=1) == lengths).all()):
            raise CorruptError(
                f"{self.directory}: the shapes of column {column.name!r} do not fit its values"
            )
        return Data(values, offsets, shapes)

    def verify_all(self) -> list[str]:
        """What is damaged, file by file; empty if nothing is. Reads everything."""
        problems = []
        for number, entry in enumerate(self.files):
            try:
                file, extents = self._open(number)
                for block in range(len(extents.starts) - 1):
                    _check_block(file, extents, block, self.schema)
            except (CorruptError, OSError) as error:
                problems.append(f"{entry.name}: {error}")
        return problems

    def _open_for(self, rows: Ints) -> None:
        for number in np.unique(self._file_starts.searchsorted(rows, "right") - 1).tolist():
            self._open(number)

    def _open(self, number: int) -> tuple[MappedFile, Extents]:
        if self._lock_process != os.getpid():
            # A thread that held the lock when this process was forked is not here to release it.
            self._lock, self._lock_process = threading.Lock(), os.getpid()
        with self._lock:
            opened = self._mapped[number]
            if opened is None:
                opened = self._mapped[number] = self._opened(number)
                self._unopened -= 1
            return opened

    def _opened(self, number: int) -> tuple[MappedFile, Extents]:
        entry = self.files[number]
        file = MappedFile(os.path.join(self.directory, entry.name), entry.nbytes)
        try:
            extents = format_named(entry.format).read_extents(file.data, entry.index, self.schema)
            extents.check(self.schema, entry.nbytes, entry.rows)
            if len(extents.starts) - 1 != entry.blocks:
                raise CorruptError(
                    f"it has {len(extents.starts) - 1} blocks, the manifest says {entry.blocks}"
                )
        except (CorruptError, ValueError) as error:
            raise CorruptError(f"{file.path}: {error}; remove the version and build it again") from error
        # First the memory, then the addresses in it: other threads are reading.
        self._memory = Memory([file, *(found[0] for found in self._mapped if found)])
        first, last = self._first_block[number], self._first_block[number + 1]
        starts = extents.starts[:-1] + self._file_starts[number]
        self._block_starts[first:last] = starts
        self._addresses[:, first:last] = extents.offsets + file.address
        self._sizes[:, first:last] = extents.nbytes
        for column, part in zip(self.schema.columns, self._first_part, strict=False):
            self._row_zero[part, first:last] = self._addresses[part, first:last] - starts * column.row_bytes
        if self._unopened == 1:
            self._block_rows = self._even_block_rows()
        return file, extents

    def _even_block_rows(self) -> int:
        lengths = np.diff(self._block_starts, append=self.num_rows)
        even = bool((lengths[:-1] == lengths[0]).all()) and lengths[-1] <= lengths[0]
        return int(lengths[0]) if even else 0

    def _verify(self, blocks: Ints) -> None:
        touched = np.unique(blocks)
        for block in touched[~self._verified[touched]].tolist():
            number = int(self._first_block.searchsorted(block, "right")) - 1
            file, extents = self._open(number)
            _check_block(file, extents, block - int(self._first_block[number]), self.schema)
            self._verified[block] = True
        self._all_verified = bool(self._verified.all())


def _check_block(file: MappedFile, extents: Extents, block: int, schema: Schema) -> None:
    names = [f"{column.name}/{part}" for column in schema.columns for part in column.parts]
    for part, name in enumerate(names):
        offset, nbytes = int(extents.offsets[part, block]), int(extents.nbytes[part, block])
        if file.checksum(offset, nbytes) != int(extents.crcs[part, block]):
            raise CorruptError(
                f"{file.path}: {name} of block {block} (bytes {offset} to {offset + nbytes}) is damaged: "
                "its checksum does not match; remove the version and build it again"
            )
