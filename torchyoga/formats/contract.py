"""Block <-> file. One contract for every format; `check_format` in the tests tests any implementation.

A format is a module with `SUFFIX`, `COMPRESSIONS`, a `Writer`, and `read_extents`, which says where in a
finished file each run of bytes lies; `items` and `gather` then read all formats alike.

Note 4. A format says where runs of bytes lie, part by part, and what turns a stored run into its values.
So one reader serves LMDB, whose blocks are blocks of rows, HDF5, which cuts each dataset into chunks of its
own, and compressed chunks.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..files.checksum import crc32
from ..rows.block import Block
from ..rows.schema import Schema
from ..rows.types import Ints, Json
from .checks import num_units, unit_bytes_of
from .mapped import Bytes

FORMATS = ("lmdb", "hdf5")


@dataclass(frozen=True)
class Extent:
    """Where the items of one part of a column lie in a file: in blocks of consecutive items.

    An item is a row or, for the values of a ragged column, an element.

    Attributes:
        starts: (blocks + 1,) first item of each block within the file, and the number of items.
        offsets: (blocks,) byte offset in the file of each block.
        nbytes: (blocks,) length in bytes of each block, as stored.
        crcs: (blocks,) CRC-32 of the bytes of each block, as stored.
        lows: (blocks,) for the offsets of a ragged column, the element of the file that 0 stands for.
        highs: (blocks,) for the same, the element of the file that no offset of the block goes beyond.
        block_bytes: bytes of the largest block, decoded; 0 if blocks are stored as they are.
        units: CRC-32 of each unit of each block, block after block; None if only blocks have checksums.
        unit_bytes: bytes of a unit; the last one of a block may be shorter.
        first_unit: (blocks,) the first unit of each block.
        decode: writes block b, given its stored bytes, into an array of `block_bytes`; None if blocks are
            stored as they are.
    """

    starts: Ints
    offsets: Ints
    nbytes: Ints
    crcs: Ints
    lows: Ints | None = None
    highs: Ints | None = None
    units: npt.NDArray[np.uint32] | None = None
    unit_bytes: int = 0
    first_unit: Ints | None = None
    block_bytes: int = 0
    decode: Callable[[int, Bytes, Bytes], None] | None = None


def check_extents(extents: Sequence[Extent], schema: Schema, file_bytes: int, num_rows: int) -> None:
    """Raises CorruptError unless every part lies in the file and has the size that its rows need."""
    found = iter(extents)
    sound = 0 <= num_rows < 2**62 and len(extents) == sum(len(column.parts) for column in schema.columns)
    for column in schema.columns if sound else ():
        values = next(found)
        count = int(values.starts[-1]) if column.is_ragged else num_rows
        sound = sound and _is_sound(values, column.row_bytes, count, file_bytes)
        if not column.is_ragged:
            continue
        offsets = next(found)
        # A block begins with the place of its first row's values; the last row's end is in it or the next.
        sound = sound and _is_sound(offsets, 8, num_rows, file_bytes, ends=True)
        lows, highs = offsets.lows, offsets.highs
        sound = sound and lows is not None and highs is not None and bool((lows >= 0).all())
        sound = sound and bool((lows <= highs).all() and (highs <= count).all())  # type: ignore[operator,union-attr]
        if "shapes" in column.parts:
            sound = sound and _is_sound(next(found), 8 * column.ndim, num_rows, file_bytes)
    if not sound:
        raise CorruptError("the index of the file does not fit its rows and its size")


def _is_sound(extent: Extent, size: int, count: int, file_bytes: int, ends: bool = False) -> bool:
    starts, offsets, nbytes = extent.starts, extent.offsets, extent.nbytes
    sound = (
        len(starts) == len(offsets) + 1 == len(nbytes) + 1 == len(extent.crcs) + 1
        and starts[0] == 0
        and starts[-1] == count
        # Compared, not subtracted: hostile numbers must not wrap around.
        and bool((starts[1:] >= starts[:-1]).all())
        and bool(((offsets >= 0) & (nbytes >= 0) & (offsets <= file_bytes)).all())
        and bool((nbytes <= file_bytes - offsets).all())
        and (not size or count < 2**62 // size)
    )
    if not sound:
        return False
    needed = (starts[1:] - starts[:-1]) * size
    if extent.decode is not None:
        return bool((needed <= extent.block_bytes).all())
    if not ends:
        return bool((nbytes == needed).all())
    # The end of a block's last row is in the block, or it is the beginning of the next one.
    own_end = nbytes == needed + 8
    followed = np.append(nbytes[1:] >= 8, False)
    return bool((own_end | ((nbytes == needed) & followed)).all())


def read_table(data: Bytes, index: Mapping[str, object]) -> Ints:
    """The table of numbers that a writer put into its file, where the manifest says it lies.

    Raises:
        CorruptError: it is not what was written there.
    """
    found: list[Any] = [index.get(key) for key in ("offset", "nbytes", "crc32")]
    if not all(type(number) is int and number >= 0 for number in found):
        raise CorruptError(f"the manifest's index entry is damaged: {dict(index)!r:.200}")
    offset, nbytes, crc = found
    blob = data[offset : offset + nbytes]
    if blob.nbytes != nbytes or nbytes % 8 or crc32(blob.data) != crc:
        raise CorruptError("the index of blocks inside the file is damaged")
    return np.frombuffer(blob.tobytes(), "<i8").astype(np.int64)


def with_units(
    extents: Sequence[Extent], data: Bytes, index: Mapping[str, object], schema: Schema
) -> list[Extent]:
    """The extents with the checksums of their units.

    Raises:
        CorruptError: they do not fit the extents.
    """
    entry = index.get("units")
    place: list[Any] = [entry.get(key) if isinstance(entry, dict) else None for key in ("offset", "nbytes")]
    if not all(type(number) is int and 0 <= number <= data.nbytes for number in place):
        raise CorruptError(f"the manifest's entry of checksums is damaged: {entry!r:.200}")
    units = data[place[0] : place[0] + place[1] // 4 * 4].view("<u4")
    sizes = [size for column in schema.columns for size in column.part_bytes]
    found, used = [], 0
    for extent, size in zip(extents, sizes, strict=True):
        if extent.decode is None:
            unit_bytes = unit_bytes_of(size)
            counts = num_units(np.maximum(extent.nbytes, 0), unit_bytes)
            ends = counts.cumsum() + used
            used = int(ends[-1]) if len(ends) else used
            extent = replace(extent, units=units, unit_bytes=unit_bytes, first_unit=ends - counts)
        found.append(extent)
    if used != len(units):
        raise CorruptError("the checksums inside the file do not fit its index")
    return found


class Writer(Protocol):
    """Writes blocks into one new file."""

    def write(self, block: Block) -> list[int]:
        """Appends a block; returns the CRC-32 of each part of each column, in schema order.

        Raises:
            OSError: the disk is full.
        """
        ...

    def close(self) -> Json:
        """Syncs the file and returns plain data with which `read_extents` finds the blocks again."""

    def abort(self) -> None:
        """Closes the file, complete or not."""


class Format(Protocol):
    """All that a module in this folder provides; its suffix is one of `versions.names.SUFFIXES`, too."""

    SUFFIX: str
    COMPRESSIONS: tuple[str, ...]

    def Writer(self, path: str, schema: Schema, compression: str | None = None) -> Writer:
        """A writer of a new file."""

    def read_extents(self, data: Bytes, index: Mapping[str, object], schema: Schema) -> Sequence[Extent]:
        """The place of each part of each column in the bytes of a file, not yet checked.

        Raises:
            CorruptError: the table of places is damaged.
        """


def format_named(name: str, compression: str | None = None) -> Format:
    """The module of a format.

    Raises:
        ValueError: there is no such format, or it has no such compression.
    """
    if name not in FORMATS:
        raise ValueError(f"format={name!r} is not known; choose one of {list(FORMATS)}")
    found = cast(Format, importlib.import_module(f"{__package__}.{name}"))
    if compression is not None and compression not in found.COMPRESSIONS:
        raise ValueError(
            f"format={name!r} has no compression={compression!r}; choose one of "
            f"{[None, *found.COMPRESSIONS]}" + ("" if found.COMPRESSIONS else ", or format='hdf5'")
        )
    return found


def _loaded() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_STRETCH = 8 * 2**20  # bytes
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_sync_range = _loaded()  # takes a descriptor, where to begin, how many bytes, and what to do


class Writeback:
    """Asks the system now and then to begin writing a growing file to the disk; only Linux can be asked.

    Nothing is durable because of this: it saves time when the file is synced.

    Args:
        path: of the file, which is empty.
    """

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if _sync_range else None
        self._asked = self._grown = 0

    def grow(self, nbytes: int) -> None:
        """Takes note of about so many more bytes in the file."""
        self._grown += nbytes
        if self._handle is not None and _sync_range is not None and self._grown >= _STRETCH:
            end = os.fstat(self._handle).st_size
            _sync_range(self._handle, self._asked, end - self._asked, _START_WRITING)
            self._asked, self._grown = end, 0

    def close(self) -> None:
        """Closes its descriptor of the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
