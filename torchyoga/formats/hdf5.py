"""Block <-> HDF5 file: a chunked dataset for each part of a column, which any HDF5 tool can read.

    /columns/image             (N, 28, 28)
    /columns/meta/size         (N, 2)         nested columns are in groups
    /columns/text              a group: values, offsets (N + 1), and shapes (N, ndim) where rows have shapes
    /index                     where each chunk lies, for the reader below

Chunks are recorded when the file is finished, and read from the mapped file, without HDF5; those of gzip are
decompressed by zlib.

HDF5 writes through a file object of ours.
After a failed write HDF5 can neither close nor release a file. Our file object keeps the first failure,
swallows the rest, and raises it when HDF5 is done.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z
from h5py._objects import phil

from ..errors import CorruptError, SchemaError
from ..files.checksum import combine_crc32, crc32
from ..process.threads import TaskThread
from ..rows.block import Block
from ..rows.column import Column
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Json
from .checks import unit_bytes_of, unit_checksums
from .contract import Extent, Writeback, read_table, with_units
from .mapped import Bytes

SUFFIX = ".h5"
COMPRESSIONS = ("gzip",)
_PLUGIN = "hdf5plugin"
_GZIP_LEVEL = 4  # HDF5's own default
_HDF5_LOCK = phil  # before h5py 3.16 its direct chunk methods do not take it
_CHUNK_BYTES = 2**20  # HDF5's own cache of chunks holds one of these
_COMPRESSED_CHUNK_BYTES = 2**16  # a row costs the decoding of its chunk
_WIDTH = 5  # numbers of a chunk in the index: offset, bytes, CRC-32, filters left out, CRC-32 of the items
_MOST_WAITING = 16  # chunks
_LARGEST_CHUNK = 2**32 - 1  # HDF5's limit
_MOST_DIMENSIONS = 32  # HDF5's limit, including those of rows and of the elements of text
# Files that HDF5 1.8 can read; older forms would limit attributes, such as the schema, to 64 KiB.
_LIBRARY = ("v108", "v108")


def over_python(owner: object, file: io.RawIOBase, mode: str, **options: object) -> h5py.File:
    """An HDF5 file over a file object of Python, which is closed with its owner, or when Python ends.

    What is open after that is closed by HDF5 itself, by calls of Python, which crash.
    """
    found = h5py.File(file, mode, **options)
    weakref.finalize(owner, found.close)
    return found


class Writer:
    """Writes blocks into a new HDF5 file."""

    def __init__(self, path: str, schema: Schema, compression: str | None = None) -> None:
        self._path = path
        self._schema = schema
        self._rows = 0
        self.compression = compression
        for column in schema.columns:
            _refuse_what_hdf5_cannot_hold(column)
        try:
            self._output = _Output(path)
        except OSError as error:
            raise _explained(error, path) from error
        self.file = over_python(self, self._output, "w", libver=_LIBRARY, track_order=True)
        weakref.finalize(self, self._output.give_up)  # before that: where Python ends now, nobody reads it
        self.file.create_group("columns", track_order=True)
        # One core prepares chunks while another writes; the latter makes all calls of HDF5 but the last ones.
        self._writing = TaskThread("hdf5", _MOST_WAITING)
        self.compressing = ThreadPoolExecutor(os.cpu_count() or 1) if compression == "gzip" else None
        self._properties: dict[tuple[object, ...], h5p.PropDCID] = {}  # shared by datasets that look alike
        self._with_groups = h5p.create(h5p.LINK_CREATE)
        self._with_groups.set_create_intermediate_group(True)
        self._parts = [[_Dataset(self, column, name) for name in column.parts] for column in schema.columns]

    def write(self, block: Block) -> list[int]:
        """Appends a block; returns the CRC-32 of each part. OSError if the disk is full."""
        crcs = []
        with self._output.checked():
            self._writing.settle()  # the caller may now reuse the memory of the previous block
            for parts, data in zip(self._parts, block.data, strict=True):
                elements = parts[0].num_items
                for part in parts:
                    array = data.part(part.name)
                    if part.name == "offsets":  # in the file they count from the file's beginning
                        crcs.append(crc32(np.ascontiguousarray(array).data))
                        part.add(np.asarray(array[min(1, part.num_items) :] + elements, "<i8"))
                    else:
                        crcs.append(part.add(array))
        self._rows += block.num_rows
        return crcs

    def new_dataset(
        self, path: str, layout: _Layout, chunk_items: int, compression: str | None
    ) -> h5py.Dataset:
        """Creates a dataset, reusing properties: to make them takes h5py longer than the rest takes HDF5."""
        look = layout.dtype, layout.item_shape, chunk_items, compression
        properties = self._properties.get(look)
        if properties is None:
            made = self.file.create_dataset(
                path,
                (0, *layout.item_shape),
                h5py.Datatype(layout.type),
                maxshape=(None, *layout.item_shape),
                chunks=(chunk_items, *layout.item_shape),
                compression=compression,
                compression_opts=compression and _GZIP_LEVEL,
                shuffle=compression is not None,
            )
            self._properties[look] = made.id.get_create_plist()
            return made
        space = h5s.create_simple((0, *layout.item_shape), (h5s.UNLIMITED, *layout.item_shape))
        return h5py.Dataset(
            h5d.create(self.file.id, path.encode(), layout.type, space, properties, self._with_groups)
        )

    def later(self, task: Callable[[], None]) -> None:
        """Runs a task soon, after those passed before."""
        self._writing.add(task)

    def close(self) -> Json:
        """Syncs the file and returns plain data with which `read_extents` finds the chunks again."""
        try:
            with self._output.checked():
                index = self._finish()
                self.file.close()
            self._output.sync()
            return index
        finally:
            self.abort()

    def _finish(self) -> Json:
        for parts in self._parts:
            for part in parts:
                part.write_rest()
        self._writing.settle()
        for parts in self._parts:
            for part in parts:
                part.finish()
        attributes = self.file.attrs
        attributes["torchyoga"] = 1
        attributes["rows"] = self._rows
        attributes["schema"] = json.dumps(self._schema.to_json())
        for column, parts in zip(self._schema.columns, self._parts, strict=True):
            about = self.file[f"columns/{column.name}"] if column.is_ragged else parts[0].dataset
            about.attrs["kind"], about.attrs["dtype"] = column.kind, column.dtype
            if column.kind in ("str", "numpy.str"):
                about.attrs["encoding"] = "utf-8"
        table = np.concatenate(
            [np.zeros(0, "<i8"), *(part.places() for parts in self._parts for part in parts)]
        )
        index = self.file.create_dataset("index", data=table.astype("<i8"))
        found = [units for parts in self._parts for part in parts for units in part.units]
        units = self.file.create_dataset("units", data=np.concatenate([np.zeros(0, "<u4"), *found]))
        self.file.flush()
        return {
            "offset": index.id.get_offset() or 0,  # None if there are no chunks
            "nbytes": table.nbytes,
            "crc32": crc32(table.tobytes()),
            "compression": self.compression,
            "units": {"offset": units.id.get_offset() or 0, "nbytes": units.nbytes},
        }

    def abort(self) -> None:
        """Closes the file, complete or not."""
        self._output.give_up()
        self._parts = []  # they refer to this writer; so no reference cycle is left to collect
        self._writing.close()
        if self.compressing is not None:
            self.compressing.shutdown(cancel_futures=True)
        with contextlib.suppress(Exception):  # the file will never be read
            self.file.close()
        self._output.close()


class _Output(io.FileIO):
    """The file under HDF5. HDF5 cannot close it once a write has failed, so to HDF5 no write ever fails.

    The first failure is kept, and all later writes are discarded.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "w+b")
        self._path = path
        self._writeback = Writeback(path)
        self._failure: OSError | None = None

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Raises the first failure at the end, instead of any error that HDF5 raised because of it."""
        try:
            yield
        except Exception:
            self._check()
            raise
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise _explained(self._failure, self._path) from self._failure

    def sync(self) -> None:
        """Waits until the file is on the disk."""
        try:
            os.fsync(self.fileno())
        except OSError as error:
            raise _explained(error, self._path) from error

    def give_up(self) -> None:
        """Writes nothing from now on."""
        self._failure = self._failure or OSError("the file was abandoned")

    def close(self) -> None:
        """Closes the file; nobody writes any more."""
        self._writeback.close()
        super().close()

    def write(self, data: Any) -> int:
        """Writes all of the data, or records why it could not."""
        left = memoryview(data).cast("B")
        while len(left) and self._failure is None:
            try:
                left = left[super().write(left) or 0 :]
            except OSError as error:
                self._failure = error
        nbytes = int(memoryview(data).nbytes)
        self._writeback.grow(nbytes)
        return nbytes

    def truncate(self, size: int | None = None) -> int:
        """Sets the size of the file, or records why it could not."""
        try:
            if self._failure is None:
                super().truncate(size)
        except OSError as error:
            self._failure = error
        return size or 0


def _explained(error: OSError, path: str) -> OSError:
    return type(error)(
        error.errno,
        f"writing failed ({error.strerror or error}); free some space on {os.path.dirname(path)}, or make it "
        "writable, and try again",
        path,
    )


class _Dataset:
    """One dataset being written into the file, chunk by chunk."""

    def __init__(self, writer: Writer, column: Column, name: str) -> None:
        self.name = name
        self.num_items = 0
        self._writer = writer
        self._path = f"columns/{column.name}" + (f"/{name}" if column.is_ragged else "")
        self._layout = _layout_of(column, name)
        # Places are read more often than they take space: only what they lead to is compressed.
        self.compression = writer.compression if name == "values" else None
        self._chunk_items = self._layout.chunk_items(self.compression)
        self.dataset: Any = None
        self._waiting: list[Bytes] = []  # the items of a chunk that is not full yet
        self._num_waiting = 0
        self.units: list[Array] = []  # the checksums of the units of each chunk
        self._chunk_crc = self._whole_crc = 0
        self._crcs: list[int] = []

    def add(self, array: Array) -> int:
        """Appends items; returns the CRC-32 of their bytes."""
        array = self._layout.as_bytes(array)
        crc = start = 0
        while start < len(array):
            stop = min(len(array), start + self._chunk_items - self._num_waiting)
            piece = array[start:stop]
            piece_crc = crc32(piece.data) if piece.nbytes else 0
            crc = combine_crc32(crc, piece_crc, piece.nbytes)
            self._chunk_crc = combine_crc32(self._chunk_crc, piece_crc, piece.nbytes)
            self._waiting.append(piece)
            self._num_waiting += stop - start
            if self._num_waiting == self._chunk_items:
                self._write_chunk()
            start = stop
        if self._waiting:
            # The caller may reuse its memory, so copy the rest, which is less than a chunk.
            self._waiting[-1] = self._waiting[-1].copy()
        self.num_items += len(array)
        self._whole_crc = combine_crc32(self._whole_crc, crc, array.nbytes)
        return crc

    def _write_chunk(self) -> None:
        chunk = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        start, chunk_items = len(self._crcs) * self._chunk_items, self._chunk_items
        if self.compression is None:
            self.units.append(unit_checksums(chunk.reshape(-1), unit_bytes_of(self._layout.item_bytes)))
        stop = start + len(chunk)
        if len(chunk) < chunk_items:
            chunk = np.pad(chunk, ((0, chunk_items - len(chunk)), (0, 0)))
        if self._writer.compressing is not None and self.compression:
            packed = self._writer.compressing.submit(_deflated, chunk, self._layout.dtype.itemsize)
            self._writer.later(lambda: self._store(start, stop, packed.result()))
        else:
            self._writer.later(lambda: self._store(start, stop, chunk))
        self._crcs.append(self._chunk_crc)
        self._waiting, self._num_waiting, self._chunk_crc = [], 0, 0

    def _store(self, start: int, stop: int, chunk: Bytes | bytes) -> None:
        """Writes a chunk, ready to be stored."""
        layout = self._layout
        if self.dataset is None:
            self.dataset = self._writer.new_dataset(self._path, layout, self._chunk_items, self.compression)
        self.dataset.id.set_extent((stop, *layout.item_shape))
        place = (start, *(0,) * len(layout.item_shape))
        with _HDF5_LOCK:
            self.dataset.id.write_direct_chunk(place, chunk)

    def write_rest(self) -> None:
        """Writes the waiting items."""
        if not self._crcs:
            self._chunk_items = max(1, self._num_waiting)  # one chunk, no larger than necessary
        if self._num_waiting and self._layout.item_bytes:
            self._write_chunk()

    def finish(self) -> None:
        """Records the checksum of all values."""
        if self.dataset is None:
            shape = (self.num_items, *self._layout.item_shape)
            self.dataset = self._writer.file.create_dataset(
                self._path, shape, h5py.Datatype(self._layout.type)
            )
        self.dataset.attrs["crc32"] = np.uint32(self._whole_crc)

    def places(self) -> Ints:
        """The numbers of this dataset in the index: chunk length, items, chunks; the place of each chunk."""
        found: list[h5d.StoreInfo] = []
        if self._crcs:
            self.dataset.flush()
            self.dataset.id.chunk_iter(found.append)
            found.sort(key=lambda chunk: chunk.chunk_offset[0])
        assert len(found) == len(self._crcs), "every chunk that was written is found"
        line = [self._chunk_items, self.num_items, len(found)]
        for number, (chunk, crc) in enumerate(zip(found, self._crcs, strict=True)):
            items = min(self._chunk_items, self.num_items - number * self._chunk_items)
            nbytes, stored_crc = items * self._layout.item_bytes, crc
            if self.compression is not None:
                with _HDF5_LOCK:
                    stored = self.dataset.id.read_direct_chunk(chunk.chunk_offset)[1]
                nbytes, stored_crc = len(stored), crc32(stored)
            line += [chunk.byte_offset, nbytes, stored_crc, chunk.filter_mask, crc]
        return np.array(line, "<i8")


class _Layout:
    """How the items of a part look in HDF5."""

    def __init__(self, type: h5t.TypeID, dtype: np.dtype[np.generic], item_shape: tuple[int, ...]) -> None:
        self.type = type
        self.dtype = dtype  # of the same bytes
        self.item_shape = item_shape
        self.item_bytes = dtype.itemsize * int(np.prod(item_shape, dtype=np.int64))

    def chunk_items(self, compression: str | None) -> int:
        """How many items to store together."""
        target = _CHUNK_BYTES if compression is None else _COMPRESSED_CHUNK_BYTES
        return max(1, target // max(1, self.item_bytes))

    def as_bytes(self, array: Array) -> Bytes:
        """(items, item_bytes) the bytes of an array."""
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), self.item_bytes)


def _layout_of(column: Column, part: str) -> _Layout:
    if part == "offsets":
        return _Layout(h5t.STD_I64LE, np.dtype("<i8"), ())
    if part == "shapes":
        return _Layout(h5t.STD_I64LE, np.dtype("<i8"), (column.ndim,))
    shape = column.shape or ()
    dtype = column.storage
    if column.kind == "tensor" and column.dtype == "bfloat16":
        return _Layout(_bfloat16(), dtype, shape)
    if dtype.kind in "mM":  # HDF5 has no type for times: their counts are stored, as `dtype` says
        dtype = np.dtype(f"{dtype.str[0]}i8")
    elif dtype.kind == "U":  # nor one for fixed text other than bytes: its code points are stored
        shape = (*shape, dtype.itemsize // 4)
        dtype = np.dtype(f"{dtype.str[0]}u4")
    return _Layout(h5t.py_create(dtype, logical=True), dtype, shape)


def _bfloat16() -> h5t.TypeID:
    found = h5t.IEEE_F32LE.copy()
    found.set_fields(15, 7, 8, 0, 7)  # sign; exponent, its bits; mantissa, its bits
    found.set_size(2)
    found.set_ebias(127)
    return found


def _refuse_what_hdf5_cannot_hold(column: Column) -> None:
    layout = _layout_of(column, "values")
    is_large = layout.item_bytes > _LARGEST_CHUNK
    if is_large or len(layout.item_shape) + 1 > _MOST_DIMENSIONS:
        advice = "make several rows of each" if is_large else "reshape them, or use format='lmdb'"
        raise SchemaError(
            f"column {column.name!r}: HDF5 holds rows of up to {_MOST_DIMENSIONS - 1} dimensions and 4 GiB, "
            f"found shape {column.shape}; {advice}"
        )


def read_extents(data: Bytes, index: Mapping[str, object], schema: Schema) -> list[Extent]:
    """Where the chunks lie, from the table that `Writer.close` put into the file."""
    compression = index.get("compression")
    if compression is not None and compression not in COMPRESSIONS:
        raise CorruptError(f"the manifest names an unknown compression: {compression!r:.80}")
    table = read_table(data, index)
    extents: list[Extent] = []
    at = 0
    for column in schema.columns:
        elements = 0
        for name in column.parts:
            if len(table) < at + 3:
                raise CorruptError("the index of chunks inside the file is too short")
            chunk_items, num_items, count = table[at : at + 3].tolist()
            lines = table[at + 3 : at + 3 + _WIDTH * max(0, count)]
            lines = lines[: len(lines) // _WIDTH * _WIDTH].reshape(-1, _WIDTH)
            at += 3 + _WIDTH * count
            if (
                count < 0
                or len(lines) != count
                or not 0 < chunk_items < 2**62 // (count + 1)
                or num_items < 0
            ):
                raise CorruptError("the index of chunks inside the file is damaged")
            layout = _layout_of(column, name)
            if chunk_items * layout.item_bytes > max(_LARGEST_CHUNK, layout.item_bytes):
                raise CorruptError("the index of the file names chunks larger than HDF5 allows")
            rows = max(0, num_items - 1) if name == "offsets" else num_items
            if not layout.item_bytes:
                count, lines = 1, np.zeros((1, _WIDTH), np.int64)
                chunk_items = max(1, num_items)
            starts = np.minimum(np.arange(count + 1) * chunk_items, rows)
            starts[-1] = rows
            offsets, nbytes, crcs, _, item_crcs = (np.ascontiguousarray(line) for line in lines.T)
            if name == "offsets":
                lows, highs = np.zeros(count, np.int64), np.full(count, elements)
                extents.append(Extent(starts, offsets, nbytes, crcs, lows, highs))
            elif name == "values" and compression is not None and layout.item_bytes:
                sizes, most = np.diff(starts) * layout.item_bytes, chunk_items * layout.item_bytes
                decode = _Decoder(layout.dtype.itemsize, sizes, item_crcs)
                extents.append(Extent(starts, offsets, nbytes, crcs, block_bytes=most, decode=decode))
            else:
                extents.append(Extent(starts, offsets, nbytes, crcs))
            elements = num_items if name == "values" else elements
    if at != len(table):
        raise CorruptError("the index of chunks inside the file is too long")
    return with_units(extents, data, index, schema)


@dataclass(frozen=True, eq=False)
class _Decoder:
    """Undoes the compression of the chunks of one dataset."""

    element_bytes: int
    nbytes: Ints  # of the items of each chunk
    item_crcs: Ints

    def __call__(self, block: int, stored: Bytes, out: Bytes) -> None:
        found = _inflated(stored, out.nbytes)
        if found.nbytes != out.nbytes:
            raise CorruptError(f"a chunk holds {found.nbytes} bytes instead of {out.nbytes}")
        out[:] = found.reshape(self.element_bytes, -1).T.reshape(-1)
        if crc32(out[: int(self.nbytes[block])].data) != int(self.item_crcs[block]):
            raise CorruptError("what it decompresses to does not match its checksum")


def require_filters(properties: h5p.PropDCID, where: str) -> None:
    """Makes the filters of a dataset available.

    Raises:
        SchemaError: a filter is not installed; names it.
    """
    for i in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(i)
        if not h5z.filter_avail(code):
            with contextlib.suppress(ImportError):
                importlib.import_module(_PLUGIN)  # which knows many
        if not h5z.filter_avail(code):
            raise SchemaError(
                f"{where} is stored with the filter {code} ({name.decode(errors='replace') or 'unnamed'}), "
                f"which is not installed; many are in the package {_PLUGIN}: pip install {_PLUGIN}"
            )


def _deflated(chunk: Bytes, element_bytes: int) -> bytes:
    """A chunk as HDF5 stores it: shuffled, with the first bytes of all elements first, and compressed."""
    return zlib.compress(chunk.reshape(-1, element_bytes).T.tobytes(), _GZIP_LEVEL)


def _inflated(stored: Bytes, most: int) -> Bytes:
    """Decompressed bytes; CorruptError unless they are no more than `most`."""
    engine = zlib.decompressobj()
    try:
        # Bounded: a small chunk must not be able to fill the memory.
        found = engine.decompress(stored.data, most + 1)
    except zlib.error as error:
        raise CorruptError(f"a chunk cannot be decompressed: {error}") from error
    if not engine.eof:
        raise CorruptError(f"a chunk is cut, or decompresses to more than {most} bytes")
    return np.frombuffer(found, np.uint8)
