"""Block <-> LMDB file: one value for each part of each column of a block, under `block/column/part`.

Note 4. Values of at least a page lie in overflow pages, contiguous and never moved once committed. So their
places in the file are recorded when it is finished, and reading maps the file without LMDB: a damaged tree
cannot crash the reader.

A write that got less space than it asked for asks again.
LMDB reports a short write as an input/output error. So we ask the system to grow the file, which will never
be read, by as much, and its answer to that is the reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..files.checksum import crc32
from ..process.threads import Errand, TaskThread
from ..rows.block import Block, bounds_of
from ..rows.schema import Schema
from ..rows.types import Json
from .checks import unit_bytes_of, unit_checksums
from .contract import Extent, Writeback, read_table, with_units
from .mapped import Bytes

SUFFIX = ".mdb"
COMPRESSIONS = ()
_PAGE_HEADER = 16  # bytes in front of a value in overflow pages: page number (u64), pad, flags, page count
_OVERFLOW = 0x04
_FIRST_MAP = 64 * 2**20
_MOST_WAITING = 8  # tasks
_INDEX_KEY, _UNITS_KEY = b"index", b"units"


class Writer:
    """Writes blocks into a new LMDB file, one transaction each."""

    def __init__(self, path: str, schema: Schema, compression: str | None = None) -> None:
        assert compression is None, "LMDB files are not compressed"
        self._path = path
        self._schema = schema
        self._rows: list[int] = []
        self._crcs: list[list[int]] = []
        self._sizes: list[list[int]] = []
        self._units: list[list[npt.NDArray[np.uint32]]] = []
        self._unit_bytes = [unit_bytes_of(size) for c in schema.columns for size in c.part_bytes]
        self._checksums = TaskThread("checksums", _MOST_WAITING)
        # Nothing has to be durable before close() syncs, since nothing is listed earlier; so no sync in
        # between. Not writemap: a full disk would then end the process with SIGBUS instead of an error. Not
        # without meminit: the rest of a page would hold whatever this process has had in its memory.
        try:
            self._env = lmdb.open(
                path, subdir=False, map_size=_FIRST_MAP, lock=False, sync=False, metasync=False
            )
        except lmdb.Error as error:
            raise _as_os_error(error, path, 0) from error
        self._page_size = self._env.stat()["psize"]
        self._writeback = Writeback(path)

    def write(self, block: Block) -> list[int]:
        """Appends a block; returns the CRC-32 of each part. OSError if the disk is full."""
        parts: list[tuple[bytes, npt.NDArray[np.uint8]]] = []
        for column, data in zip(self._schema.columns, block.data, strict=True):
            for name in column.parts:
                array = np.ascontiguousarray(data.part(name)).reshape(-1)
                key = b"%010d/%s/%s" % (len(self._rows), column.name.encode(), name.encode())
                has_bytes = array.size and array.dtype.itemsize
                parts.append((key, array.view(np.uint8) if has_bytes else np.empty(0, np.uint8)))
        # One core copies and writes while another computes; both release Python's lock.
        errand = Errand(self._checksums, partial(self._add_checksums, [data for _, data in parts]))
        self._put(parts)
        self._rows.append(block.num_rows)
        self._sizes.append([data.nbytes for _, data in parts])
        errand.finish()
        self._checksums.add(partial(self._writeback.grow, sum(self._sizes[-1])))
        return self._crcs[-1]

    def _add_checksums(self, parts: list[npt.NDArray[np.uint8]]) -> None:
        self._crcs.append([crc32(data.data) for data in parts])
        sizes = zip(parts, self._unit_bytes, strict=True)
        self._units.append([unit_checksums(data, size) for data, size in sizes])

    def _put(self, parts: list[tuple[bytes, npt.NDArray[np.uint8]]]) -> None:
        needed = sum(data.nbytes + 4 * self._page_size for _, data in parts)
        for _ in range(40):  # doublings: from 64 MiB past any disk
            try:
                # The whole block in one transaction: if the map is full, all of it is written again.
                with self._env.begin(write=True) as transaction:
                    for key, data in parts:
                        transaction.put(key, self._padded(data))
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * max(self._env.info()["map_size"], needed))
            except lmdb.BadValsizeError:
                what = f"a row has about {needed} bytes, and LMDB holds less than 4 GiB"
                raise SchemaError(f"{what}; make several rows of it") from None
            except lmdb.Error as error:
                raise _as_os_error(error, self._path, needed) from error
        raise OSError(f"{self._path}: LMDB does not grow beyond {self._env.info()['map_size']} bytes")

    def _padded(self, data: npt.NDArray[np.uint8]) -> bytes | memoryview:
        # Smaller values would lie in the tree itself, where they move.
        return data.data if data.nbytes >= self._page_size else data.tobytes().ljust(self._page_size, b"\0")

    def close(self) -> Json:
        """Syncs the file and returns plain data with which `read_extents` finds the blocks again."""
        try:
            return self._close()
        finally:
            self.abort()

    def _close(self) -> Json:
        places = self._places()
        count = len(self._rows)
        shape = (count, -1) if count else (0, 0)
        table = np.concatenate(
            [
                np.reshape(np.asarray(rows, "<i8"), shape)
                for rows in (self._rows, places, self._sizes, self._crcs)
            ],
            axis=1,
        )
        index = np.frombuffer(table.astype("<i8").tobytes(), np.uint8)
        found = [units for part in zip(*self._units, strict=True) for units in part]
        units = np.concatenate([np.zeros(0, "<u4"), *found]).view(np.uint8)
        self._put([(_INDEX_KEY, index), (_UNITS_KEY, units)])
        offset = self._place(_INDEX_KEY)
        checks = {"offset": self._place(_UNITS_KEY), "nbytes": units.nbytes}
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise _as_os_error(error, self._path, 0) from error
        crc = crc32(index.data)
        return {"offset": offset, "nbytes": index.nbytes, "crc32": crc, "units": checks}

    def abort(self) -> None:
        """Closes the file, complete or not."""
        self._checksums.close()
        self._writeback.close()
        self._env.close()

    def _places(self) -> list[list[int]]:
        names = [(c.name.encode(), part.encode()) for c in self._schema.columns for part in c.parts]
        return [[self._place(b"%010d/%s/%s" % (i, *name)) for name in names] for i in range(len(self._rows))]

    def _place(self, key: bytes) -> int:
        with self._env.begin(buffers=True) as transaction:
            found: Any = transaction.get(key)
            value = np.frombuffer(found, np.uint8)
            header = ctypes.string_at(value.ctypes.data - _PAGE_HEADER, _PAGE_HEADER)
            # Our own file, written a moment ago: the bytes in front of the value are its page's header.
            assert header[10] & _OVERFLOW, "a value of a page or more lies in overflow pages"
            return int.from_bytes(header[:8], "little") * self._page_size + _PAGE_HEADER


def _as_os_error(error: Exception, path: str, wanted: int) -> OSError:
    """The system's error; for a short write, the error that writing the rest would give.

    Args:
        error: as LMDB raised it.
        path: of the file.
        wanted: about how many bytes were being written.
    """
    said = str(error)
    code = next((code for code in errno.errorcode if said.endswith(os.strerror(code))), None)
    if code == errno.EIO:
        code = _refusal(path, wanted) or code
    reason = os.strerror(code) if code else said
    return OSError(
        code or errno.EIO,
        f"writing failed ({reason}); free some space on {os.path.dirname(path)}, or make it writable, and "
        "try again",
        path,
    )


def _refusal(path: str, wanted: int) -> int | None:
    """Why a discarded file cannot grow by so many bytes; None if it can, or if that is unknown."""
    try:
        handle = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, os.fstat(handle).st_size, max(1, wanted))
            elif shutil.disk_usage(os.path.dirname(path)).free < wanted:
                return errno.ENOSPC
        finally:
            os.close(handle)
    except OSError as refused:
        # A file system that cannot reserve space says so, which says nothing about the disk.
        return None if refused.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS) else refused.errno
    return None


def read_extents(data: Bytes, index: Mapping[str, object], schema: Schema) -> list[Extent]:
    """Where the blocks lie, from the table that `Writer.close` put into the file."""
    num_parts = sum(len(column.parts) for column in schema.columns)
    table = read_table(data, index)
    width = 1 + 3 * num_parts
    if len(table) % width:
        raise CorruptError("the index of blocks inside the file is damaged")
    table = table.reshape(-1, width)
    starts = bounds_of(table[:, 0])
    offsets, sizes, crcs = (np.ascontiguousarray(part.T) for part in np.split(table[:, 1:], 3, axis=1))
    extents: list[Extent] = []
    for column in schema.columns:
        for name in column.parts:
            i = len(extents)
            if name == "values" and column.is_ragged:
                elements = bounds_of(sizes[i] // column.row_bytes)
                extents.append(Extent(elements, offsets[i], sizes[i], crcs[i]))
            elif name == "offsets":  # offsets count from the first element of their block
                lows, highs = elements[:-1], elements[1:]
                extents.append(Extent(starts, offsets[i], sizes[i], crcs[i], lows, highs))
            else:
                extents.append(Extent(starts, offsets[i], sizes[i], crcs[i]))
    return with_units(extents, data, index, schema)
