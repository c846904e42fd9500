"""An open version: rows, by number, out of its mapped files."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .buffers import BufferPool
from .columns import Block, Data
from .errors import CorruptError
from .formats import Extent, Format, check_extents, format_named
from .formats.gather import Bytes, MappedFile, Memory
from .formats.items import Decoded, Items, Mapped
from .manifest import FileEntry
from .schema import Column, Schema

__all__ = ["Reader"]

Ints = npt.NDArray[np.int64]
_DECODED_BYTES = 256 * 2**20  # kept by one open version, shared between its compressed columns


class _Opened(NamedTuple):
    """A file that is mapped."""

    file: MappedFile
    extents: Sequence[Extent]  # of each part
    verified: Sequence[npt.NDArray[np.bool_]]  # the blocks of each part
    names: Sequence[str]  # of the parts

    def check(self, part: int, block: int) -> None:
        """Raises CorruptError unless the block is what was written."""
        extent = self.extents[part]
        offset, nbytes = int(extent.offsets[block]), int(extent.nbytes[block])
        if self.file.checksum(offset, nbytes) != int(extent.crcs[block]):
            raise CorruptError(
                f"{self.file.path}: {self.names[part]} of block {block} (bytes {offset} to "
                f"{offset + nbytes}) is damaged: its checksum does not match; remove the version and build "
                "it again"
            )


class _Blocks:
    """The blocks of one part of a column as they are stored, over all files; checked when first touched."""

    def __init__(self, part: int, opened: Sequence[_Opened | None]) -> None:
        self._part = part
        self._opened = opened
        counts = [len(found.extents[part].offsets) if found else 1 for found in opened]
        self._first_block = np.cumsum([0, *counts]).astype(np.int64)
        self._verified = np.concatenate(
            [found.verified[part] if found else np.full(1, False) for found in opened]
        )
        self._all_verified = bool(self._verified.all())

    def touch(self, blocks: Ints) -> None:
        """Checks these blocks, unless that has been done."""
        if not self._all_verified:
            for block in np.unique(blocks[~self._verified[blocks]]).tolist():
                self._stored(block)
            self._all_verified = bool(self._verified.all())

    def _stored(self, block: int) -> tuple[Extent, int, Bytes]:
        """A block as it is stored, checked; its extent, and its number within the file."""
        file = int(self._first_block.searchsorted(block, "right")) - 1
        within = block - int(self._first_block[file])
        opened = self._opened[file]
        assert opened is not None, "a row is read once its file is open"
        if not self._verified[block]:
            opened.check(self._part, within)
            self._verified[block] = opened.verified[self._part][within] = True
        extent = opened.extents[self._part]
        offset = int(extent.offsets[within])
        return extent, within, opened.file.data[offset : offset + int(extent.nbytes[within])]

    def decode(self, block: int, piece: int, out: Bytes) -> None:
        """Writes the items of a block into `out`."""
        extent, within, stored = self._stored(block)
        assert extent.decode is not None
        try:
            extent.decode(within, stored, out[: extent.block_bytes])
        except CorruptError as error:
            raise CorruptError(f"block {block}: {error}; remove the version and build it again") from error


class _Part(NamedTuple):
    """One part of a column, over all files that are open; one that is not is a block nobody reads."""

    items: Items
    blocks: _Blocks  # nothing in it leads back here: a mapped file is let go of as soon as nobody reads it
    nbytes: Ints  # of each block, as it is stored
    lows: Ints  # of each block, as in Extent
    highs: Ints
    cut: bytes  # the same for parts whose blocks begin with the same items


def _joined(
    part: int,
    size: int,
    opened: Sequence[_Opened | None],
    starts: Ints,
    elements: Ints,
    memory: Memory,
    capacity: int,
) -> _Part:
    """A part of a column; `starts` and `elements` are the first item and the first element of each file."""
    columns: list[list[Ints]] = [[], [], [], [], []]
    extents = [found.extents[part] for found in opened if found]
    for file, found in enumerate(opened):
        nothing = np.zeros(len(found.extents[part].offsets) if found else 1, np.int64)
        values: tuple[Ints | None, ...] = (nothing,) * 5
        if found:
            extent = found.extents[part]
            offsets = extent.offsets + found.file.address
            values = extent.starts[:-1], offsets, extent.nbytes, extent.lows, extent.highs
        shifts = starts[file], 0, 0, elements[file], elements[file]
        for column, value, shift in zip(columns, values, shifts, strict=True):
            column.append((nothing if value is None else value) + shift)
    first, addresses, nbytes, lows, highs = map(np.concatenate, columns)
    blocks = _Blocks(part, opened)
    num_items = int(starts[-1])
    items: Items
    if not any(extent.decode for extent in extents):
        items = Mapped(first, num_items, addresses[:, None], size, memory, blocks.touch)
    elif all(extent.decode for extent in extents):
        most = max(extent.block_bytes for extent in extents)
        items = Decoded(first, num_items, 1, size, blocks.decode, most, capacity)
    else:
        raise CorruptError("some of the files are compressed and some are not; no writer does that")
    cut = hashlib.blake2b(first.tobytes(), digest_size=16).digest()
    return _Part(items, blocks, nbytes, lows, highs, cut)


class Reader:
    """Reads rows of some files of one schema; a file is mapped when a row of it is first wanted.

    Every block is checked against its CRC-32 when it is first touched, unless `verify` is False.

    All methods may be called from several threads, and after a fork: files never change once they are opened,
    and opening one twice does no harm.
    """

    def __init__(
        self,
        directory: str,
        schema: Schema,
        files: Sequence[FileEntry],
        verify: bool = True,
        format_of: Callable[[str], Format] = format_named,
    ) -> None:
        self.directory = directory
        self.schema = schema
        self.files = tuple(files)
        self.num_rows = sum(file.rows for file in files)
        self._verify = verify
        self._format_of = format_of
        self._file_starts = np.cumsum([0, *(file.rows for file in files)]).astype(np.int64)
        self._opened: list[_Opened | None] = [None] * len(self.files)
        self._parts: tuple[tuple[_Part, ...], ...] = ()  # of each column, over all open files
        self._unopened = len(self.files)
        self._lock, self._lock_process = threading.Lock(), os.getpid()
        self._pool = BufferPool()

    def open_all(self) -> None:
        """Maps every file."""
        self._open(range(len(self.files)))

    def take(self, rows: Ints) -> Block:
        """The rows of these numbers, each in 0..num_rows-1, in this order, as one block.

        Raises:
            CorruptError: a file is missing, cut or damaged.
        """
        if self._unopened:
            self._open(np.unique(self._file_starts.searchsorted(rows, "right") - 1).tolist())
        if not len(rows):
            return Block(self.schema, 0, tuple(_nothing(column) for column in self.schema.columns))
        data: list[Data] = []
        known: dict[bytes, Ints] = {}  # the blocks of the rows, by how a part is cut into blocks
        for column, parts in zip(self.schema.columns, self._parts, strict=True):
            if column.is_ragged:
                data.append(self._take_ragged(column, parts, rows))
                continue
            blocks = known.get(parts[0].cut)
            if blocks is None:
                blocks = known[parts[0].cut] = parts[0].items.blocks(rows)
            data.append(Data(self._take_fixed(column, parts[0], rows, blocks)))
        return Block(self.schema, len(rows), tuple(data))

    def _take_fixed(self, column: Column, part: _Part, rows: Ints, blocks: Ints) -> npt.NDArray[Any]:
        assert column.shape is not None
        found = part.items.pick(rows, self._pool.empty, blocks=blocks)
        shape = (len(rows), *column.shape)
        return found.view(column.storage).reshape(shape) if found.size else np.empty(shape, column.storage)

    def _take_ragged(self, column: Column, parts: tuple[_Part, ...], rows: Ints) -> Data:
        low, high, limit = self._ends(parts[1], rows)
        lengths = high - low
        if not bool(((lengths >= 0) & (high <= limit)).all()):
            raise CorruptError(
                f"{self.directory}: the offsets of column {column.name!r} point outside their block"
            )
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = parts[0].items.spans(low, high, self._pool.empty).view(column.storage)
        if column.ndim == 1:
            return Data(values, offsets)
        found = parts[2].items.pick(rows, self._pool.empty)
        shapes = found.view("<i8").reshape(len(rows), column.ndim)
        known = np.where(shapes < 0, 1, shapes)
        # In floating point, which does not wrap around, before in integers, which are exact.
        sound = known.astype(float).prod(axis=1) < 2**53
        if not bool(sound.all() and (known.prod(axis=1) == lengths).all()):
            raise CorruptError(
                f"{self.directory}: the shapes of column {column.name!r} do not fit its values"
            )
        return Data(values, offsets, shapes)

    def _ends(self, part: _Part, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """First and last element of each row, and what neither may go beyond."""
        items = part.items
        assert isinstance(items, Mapped), "no format compresses offsets"
        blocks = items.blocks(rows)
        begin = items.addresses[:, 0].take(blocks)
        begin += 8 * (rows - items.starts.take(blocks))
        end = begin + 8
        following = end >= items.addresses[:, 0].take(blocks) + part.nbytes.take(blocks)
        part.blocks.touch(blocks)
        if following.any():
            end[following] = items.addresses[blocks[following] + 1, 0]
            part.blocks.touch(blocks[following] + 1)
        found = items.memory.gather(np.concatenate([begin, end]), 8, self._pool.empty)
        first, last = found.view("<i8").reshape(2, -1).astype(np.int64, copy=False)
        low = part.lows.take(blocks)
        # A hostile number must not wrap around: none of them is near 2**62.
        first, last = np.clip(first, -1, 2**61), np.clip(last, -1, 2**61)
        return low + np.where(first < 0, 2**61, first), low + last, part.highs.take(blocks)

    def verify_all(self) -> list[str]:
        """What is damaged, file by file; empty if nothing is. Reads everything."""
        problems = []
        for number, entry in enumerate(self.files):
            try:
                (opened,) = self._open([number])
                for part, extent in enumerate(opened.extents):
                    for block in range(len(extent.offsets)):
                        opened.check(part, block)
            except (CorruptError, OSError) as error:
                problems.append(f"{entry.name}: {error}")
        return problems

    # -- opening

    def _open(self, numbers: Sequence[int]) -> list[_Opened]:
        if self._lock_process != os.getpid():
            # A thread that held the lock when this process was forked is not here to release it.
            self._lock, self._lock_process = threading.Lock(), os.getpid()
        with self._lock:
            new = [number for number in numbers if self._opened[number] is None]
            for number in new:
                self._opened[number] = self._map(number)
            if new:
                # First what threads read with, then that there is nothing left to open.
                self._parts = self._join()
                self._unopened = self._opened.count(None)
            return [opened for number in numbers if (opened := self._opened[number])]

    def _map(self, number: int) -> _Opened:
        entry = self.files[number]
        file = MappedFile(os.path.join(self.directory, entry.name), entry.nbytes)
        try:
            extents = self._format_of(entry.format).read_extents(file.data, entry.index, self.schema)
            check_extents(extents, self.schema, entry.nbytes, entry.rows)
        except (CorruptError, ValueError) as error:
            raise CorruptError(f"{file.path}: {error}; remove the version and build it again") from error
        names = [f"{column.name}/{part}" for column in self.schema.columns for part in column.parts]
        verified = [np.full(len(extent.offsets), not self._verify) for extent in extents]
        return _Opened(file, extents, verified, names)

    def _join(self) -> tuple[tuple[_Part, ...], ...]:
        """The parts of all columns, over all files."""
        mapped = [opened for opened in self._opened if opened]
        memory = Memory([opened.file.data for opened in mapped])
        parts = [extent for opened in mapped[:1] for extent in opened.extents]
        capacity = _DECODED_BYTES // max(1, sum(extent.decode is not None for extent in parts))
        joined: list[tuple[_Part, ...]] = []
        number = 0
        for column in self.schema.columns:
            counts = [int(opened.extents[number].starts[-1]) if opened else 0 for opened in self._opened]
            elements = np.cumsum([0, *counts]).astype(np.int64) if column.is_ragged else self._file_starts
            sizes = {"values": column.row_bytes, "offsets": 8, "shapes": 8 * column.ndim}
            joined.append(
                tuple(
                    _joined(
                        number + i,
                        sizes[name],
                        tuple(self._opened),
                        elements if name == "values" else self._file_starts,
                        elements,
                        memory,
                        capacity,
                    )
                    for i, name in enumerate(column.parts)
                )
            )
            number += len(column.parts)
        return tuple(joined)


def _nothing(column: Column) -> Data:
    values = np.empty((0, *(column.shape or ())), column.storage)
    if not column.is_ragged:
        return Data(values)
    return Data(
        values, np.zeros(1, np.int64), np.empty((0, column.ndim), np.int64) if column.ndim != 1 else None
    )
