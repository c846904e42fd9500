"""An HDF5 file of any other program -> rows, in place.

HDF5 says once where the chunks of a dataset lie; then rows are copied out of the mapped file, without HDF5.
Values of variable length or of types that HDF5 converts, datasets composed of others, and chunks with filters
are read through HDF5, by a handle of the process.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
from h5py import h5d, h5p, h5t

from ..errors import BusyError, CorruptError, NotFoundError, SchemaError
from ..formats.hdf5 import over_python, require_filters
from ..formats.items import Decoded, Items, Mapped
from ..formats.mapped import Bytes, MappedFile, Memory, Watch
from ..process.buffers import BufferPool, address_of
from ..reading.dataref import DataRef
from ..reading.stored_ref import ColumnsRef
from ..rows.block import Data, bounds_of
from ..rows.column import Column
from ..rows.node import Node, path_name
from ..rows.schema import Schema
from ..rows.types import Array, Ints

Dtype = np.dtype[np.generic]
Columns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"
_MOST_LINKS = 32  # soft links on the way to one dataset
_MOST_NAMED = 20  # datasets in a message
_CACHE_BYTES = 256 * 2**20
_BLOCK_BYTES = 2**20  # of rows converted together, where a dataset has no chunks


def from_hdf5(
    path: str | os.PathLike[str], columns: Columns | None = None, cache_bytes: int = _CACHE_BYTES
) -> DataRef:
    """Datasets of an existing HDF5 file as a DataRef: nothing is copied, nothing is cached.

    Args:
        path: the file.
        columns: the name of a dataset, whose values are the rows; or names, or a dict of names, for rows that
            are dicts; by default all datasets at the root. Rows lie along the first axis.
        cache_bytes: compressed chunks are decompressed as a whole and kept, up to this many bytes a process.

    Contiguous datasets, and chunked ones that are not compressed, are read from the mapped file without HDF5.
    Rows are what `dataset[i]` gives, in this machine's byte order; text is `str`, a compound value a dict.
    The DataRef pickles by its path. A file open in SWMR mode gives the rows present now.

    Raises:
        NotFoundError: there is no such file, or no such dataset in it; the message lists its datasets.
        SchemaError: the datasets have different numbers of rows, or hold what cannot be rows (references,
            say); or lie in another file (external links and storage, which are never followed); or need a
            filter that is not installed.
        CorruptError: it is not an HDF5 file, or is cut.
        BusyError: another process has it open for writing.

    Example:
        >>> import h5py
        >>> with h5py.File(tmp_path / "digits.h5", "w") as file:
        ...     file["train/x"] = np.zeros((5, 28, 28), np.uint8)
        ...     file["train/y"] = np.arange(5)
        >>> ref = from_hdf5(tmp_path / "digits.h5", {"image": "train/x", "label": "train/y"})
        >>> len(ref), ref[3]["label"], ref[3]["image"].shape
        (5, np.int64(3), (28, 28))
    """
    return _opened_as(path, columns, cache_bytes, None)


def _opened_as(
    path: str | os.PathLike[str], columns: Columns | None, cache_bytes: int, identity: tuple[int, int] | None
) -> DataRef:
    place = Path(path).expanduser().absolute()
    with _opened(place) as file:
        if columns is None:
            columns = _at_the_root(file, place)
        names = _named(columns)
        datasets = {key: _find(file, name, place) for key, name in names.items()}
        lengths = {names[key]: _length(dataset, place) for key, dataset in datasets.items()}
        if len(set(lengths.values())) != 1:
            raise SchemaError(
                f"{place}: the datasets have different numbers of rows: {lengths}; rows go along the first "
                "axis"
            )
        opening = _Opening(place, cache_bytes, bool(file.swmr_mode))
        leaves = {key: opening.leaves(dataset) for key, dataset in datasets.items()}
        # Mapped only now: a writer may have made the file longer while its layout was read.
        about = os.stat(place)
        found = about.st_size, about.st_mtime_ns
        if identity not in (None, found):
            raise NotFoundError(f"{place} has changed since this DataRef was made; open it again")
        opening.map()
    tree, flat = _tree(leaves[""] if isinstance(columns, str) else leaves, ())
    schema = Schema(tree, tuple(leaf.column(name) for name, leaf in flat))
    takes = [opening.watched(leaf.take) for _, leaf in flat]
    remade = (_opened_as, (str(place), columns, cache_bytes, found))
    return ColumnsRef(place.name, schema, next(iter(lengths.values())), takes, remade)


def _opened(place: Path) -> h5py.File:
    if not place.exists():
        raise NotFoundError(f"there is no file {place}; pass the path of an HDF5 file")
    if not place.is_file() or not h5py.is_hdf5(place):
        raise CorruptError(f"{place} is not an HDF5 file; pass the path of one")
    try:
        return h5py.File(place, "r", locking="best-effort")
    except OSError as error:
        reason = str(error)
        if "truncated" in reason:
            raise CorruptError(f"{place} is cut: {reason}; copy or write it again") from error
        if "SWMR" not in reason and "lock" not in reason and "open for write" not in reason:
            raise CorruptError(f"{place} cannot be opened as HDF5: {reason}") from error
    try:  # its writer lets others read; they see the rows present now
        return h5py.File(place, "r", swmr=True, locking="best-effort")
    except OSError as error:
        raise BusyError(
            f"{place} is open for writing ({error}); close it in its writer first, or write it in SWMR mode"
        ) from error


# -- names


def _at_the_root(file: h5py.File, place: Path) -> list[str]:
    hard = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
    found = [name for name in hard if isinstance(file[name], h5py.Dataset)]
    if not found:
        raise NotFoundError(f"{place} has no dataset at its root; pass names: {_listing(file)}")
    return found


def _named(columns: Columns) -> dict[str, str]:
    if isinstance(columns, str):
        return {"": columns}
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if not named or not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise SchemaError(
            f"columns must be a name, a list of names, or a dict of names such as {{'image': 'train/x'}}; "
            f"found {columns!r:.200}"
        )
    return named


def _find(file: h5py.File, name: str, place: Path) -> h5py.Dataset:
    """The dataset of this name; through soft links, never into another file."""
    at, left, links = file["/"], [part for part in name.split("/") if part], 0
    while left:
        part = left.pop(0)
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise SchemaError(
                f"{place}: {name!r} leads into another file, {link.filename!r} (an external link), which is "
                "not followed; open that file itself"
            )
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > _MOST_LINKS:
                raise SchemaError(f"{place}: {name!r} leads through more than {_MOST_LINKS} soft links")
            at = file["/"] if link.path.startswith("/") else at
            left = [part for part in link.path.split("/") if part not in ("", ".")] + left
            continue
        if part == ".":
            continue
        if link is None:
            raise NotFoundError(f"{place} has no {name!r}; {_listing(file)}")
        at = at[part]
    if not isinstance(at, h5py.Dataset):
        what = "a group" if isinstance(at, h5py.Group) else "a type"
        raise NotFoundError(f"{place}: {name!r} is {what}, not a dataset; {_listing(file)}")
    return at


def _listing(file: h5py.File) -> str:
    found: list[str] = []

    def note(name: str, thing: h5py.HLObject) -> bool | None:
        if isinstance(thing, h5py.Dataset):
            found.append(f"{name!r} {thing.shape}")
        return True if len(found) > _MOST_NAMED else None

    file.visititems(note)
    more = ", ..." if len(found) > _MOST_NAMED else ""
    return f"its datasets are {', '.join(found[:_MOST_NAMED])}{more}" if found else "it has no datasets"


def _length(dataset: h5py.Dataset, place: Path) -> int:
    if not dataset.shape:
        what = "holds nothing" if dataset.shape is None else "is a single value"
        raise SchemaError(f"{place}: {dataset.name!r} {what}, so it has no rows; pass one with rows first")
    return int(dataset.shape[0])


# -- columns


class _Leaf(NamedTuple):
    """One leaf of each row, and how to read it."""

    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    take: Callable[[Ints], Data]

    def column(self, name: str) -> Column:
        return Column(name, self.kind, self.dtype, self.shape, 1 if self.shape is None else len(self.shape))


_Leaves: TypeAlias = "_Leaf | dict[str, _Leaves]"  # of one row


def _tree(leaves: _Leaves, path: tuple[str, ...]) -> tuple[Node, list[tuple[str, _Leaf]]]:
    if isinstance(leaves, _Leaf):
        return Node("leaf"), [(path_name(path), leaves)]
    parts = [_tree(leaf, (*path, key)) for key, leaf in leaves.items()]
    node = Node("dict", tuple(leaves), tuple(child for child, _ in parts))
    return node, [leaf for _, flat in parts for leaf in flat]


class _Opening:
    """The memory and the cache with which the datasets of one file are read.

    Attributes:
        mapped: the file, once `map` was called.
    """

    mapped: MappedFile

    def __init__(self, place: Path, cache_bytes: int, is_written: bool) -> None:
        self.place, self.is_written = place, is_written
        self.num_decoded = 0  # datasets that share the cache
        self.pool = BufferPool()
        self._cache_bytes = cache_bytes
        self._watch: Watch | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache for one dataset, once all are known."""
        return self._cache_bytes // max(1, self.num_decoded)

    def map(self) -> None:
        """Maps the file as it is now."""
        self.mapped = MappedFile(str(self.place))
        self._watch = Watch.where_needed(str(self.place), self.mapped.data.nbytes)

    def watched(self, take: Callable[[Ints], Data]) -> Callable[[Ints], Data]:
        """Reads as `take` does, but first checks that the file has not been cut, if others may cut it."""
        watch = self._watch
        if watch is None:
            return take

        def look_and_take(rows: Ints) -> Data:
            watch.look()
            return take(rows)

        return look_and_take

    def leaves(self, dataset: h5py.Dataset) -> _Leaves:
        """The leaves that a row of a dataset has: one, or a dict of them for compound values.

        Raises:
            SchemaError: its values cannot be rows; names the dataset.
        """
        where = f"{self.place}: {dataset.name!r}"
        try:
            dtype = dataset.dtype
        except TypeError as error:
            raise SchemaError(f"{where} has values of a type that NumPy does not know: {error}") from error
        properties = dataset.id.get_create_plist()
        _refuse_other_files(dataset, properties, where)
        require_filters(properties, where)
        if dtype.kind == "O":
            return self._of_varying_length(dataset, dtype, where)
        _refuse_objects(dtype, where)
        read = self._read(dataset, dtype, properties, where)
        return _leaves_of(dtype, dataset.id.get_type(), dataset.shape[1:], read, 0, where)

    def _of_varying_length(self, dataset: h5py.Dataset, dtype: Dtype, where: str) -> _Leaf:
        _refuse_references(dtype, where)
        if dataset.ndim != 1:
            raise SchemaError(
                f"{where} has several values of varying length a row, shape {dataset.shape}; one is supported"
            )
        rows_of = _ByHdf5(self, dataset.name)
        if h5py.check_string_dtype(dtype) is not None:
            return _Leaf("str", "|u1", None, lambda rows: _text(rows_of(rows).tolist(), rows, where))
        inner = h5py.check_vlen_dtype(dtype)
        if inner is None or inner.kind not in "biufc" or inner.subdtype:
            raise SchemaError(f"{where} holds values of type {inner or dtype}, which cannot be rows")
        if not inner.isnative:  # h5py 3.16 gives their bytes unswapped, as native numbers
            raise SchemaError(
                f"{where} holds values of varying length in another byte order than this machine's, which "
                "h5py does not read right; write it again in this one"
            )
        return _Leaf("ndarray", inner.str, None, lambda rows: _joined(rows_of(rows).tolist(), inner))

    def _read(self, dataset: h5py.Dataset, dtype: Dtype, properties: h5p.PropDCID, where: str) -> _Read:
        if not dataset.size:
            return lambda rows, offset, size: np.empty(0, np.uint8)
        layout = properties.get_layout()
        count = int(np.prod(dataset.shape[1:], dtype=np.int64))
        if layout == h5d.COMPACT:  # it lies in the dataset's header, less than 64 KiB
            whole = dataset[...]
            return lambda rows, offset, size: _part(whole[rows], dtype.itemsize, offset, size)
        if layout == h5d.VIRTUAL:
            rows_of = _ByHdf5(self, dataset.name)
            return lambda rows, offset, size: _part(rows_of(rows), dtype.itemsize, offset, size)
        if layout == h5d.CONTIGUOUS and not dataset.id.get_storage_size():  # never written
            value = _fill(dataset, dtype, 1, where)
            return lambda rows, offset, size: np.tile(value[offset : offset + size], len(rows) * count)
        chunks = _ChunkTable(dataset, dtype, _ByHdf5(self, dataset.name), where)
        self.num_decoded += chunks.are_decoded
        items = functools.cache(lambda: chunks.items(self.mapped, self.cache_bytes))
        if chunks.hold_rows and count == 1:  # a field of a compound value is read alone
            return lambda rows, offset, size: items().pick(rows, self.pool.empty, offset, size)
        return lambda rows, offset, size: _part(
            chunks.rows(items().pick(rows, self.pool.empty), len(rows)), dtype.itemsize, offset, size
        )


_Read = Callable[[Ints, int, int], Bytes]  # row numbers; which bytes of each value: offset, size


def _refuse_other_files(dataset: h5py.Dataset, properties: h5p.PropDCID, where: str) -> None:
    files = [os.fsdecode(properties.get_external(i)[0]) for i in range(properties.get_external_count())]
    if properties.get_layout() == h5d.VIRTUAL:
        files += [source.file_name for source in dataset.virtual_sources()]
    elsewhere = sorted(set(files) - {"."})
    if elsewhere:
        raise SchemaError(
            f"{where} keeps its values in other files, {elsewhere[:3]} (external storage), which are not "
            "followed; copy it into one file first"
        )


def _refuse_references(dtype: Dtype, where: str) -> None:
    if h5py.check_ref_dtype(dtype) is not None:
        raise SchemaError(f"{where} holds references to other objects; store what they lead to instead")


def _refuse_objects(dtype: Dtype, where: str) -> None:
    for name in dtype.names or ():
        _refuse_objects(dtype.fields[name][0], f"{where}, field {name!r}")  # type: ignore[index]
    if dtype.base.kind == "O":
        _refuse_references(dtype.base, where)
        raise SchemaError(
            f"{where} holds values of varying length inside compound ones, which cannot be rows"
        )


def _is_plain(stored: h5t.TypeID, dtype: Dtype) -> bool:
    """True if the bytes of values in the file are those that NumPy holds."""
    if dtype.fields:
        members = enumerate(dtype.fields[name] for name in dtype.names or ())
        return bool(stored.get_size() == dtype.itemsize) and all(
            stored.get_member_offset(i) == at and _is_plain(stored.get_member_type(i), inner)
            for i, (inner, at, *_) in members
        )
    if dtype.kind in "mM":  # kept as opaque bytes, as HDF5 has no such type
        return bool(stored.get_class() == h5t.OPAQUE and stored.get_size() == dtype.itemsize)
    return bool(stored.equal(h5t.py_create(dtype, logical=True)))


def _leaves_of(
    dtype: Dtype, stored: h5t.TypeID, shape: tuple[int, ...], read: _Read, offset: int, where: str
) -> _Leaves:
    base, shape = dtype.base, (*shape, *dtype.shape)
    if base.fields and not dtype.shape:
        found: dict[str, _Leaves] = {}
        for i, name in enumerate(base.names or ()):
            inner, at, *_ = base.fields[name]
            place = f"{where}, field {name!r}"
            found[name] = _leaves_of(inner, stored.get_member_type(i), shape, read, offset + at, place)
        return found
    if base.kind not in "biufcmMS" or not base.itemsize:
        raise SchemaError(f"{where} holds values of type {dtype}, which cannot be rows")
    size = dtype.itemsize
    if base.kind == "S" and not shape:
        padding = stored.get_strpad()
        return _Leaf(
            "str",
            "|u1",
            None,
            lambda rows: _unpadded(read(rows, offset, size).reshape(-1, size), padding, rows, where),
        )
    native = base.newbyteorder("=")

    def take(rows: Ints) -> Data:
        values = read(rows, offset, size).view(base).reshape(len(rows), *shape)
        return Data(values.astype(native, copy=False))

    return _Leaf("ndarray" if shape else "scalar", native.str, shape, take)


def _part(values: Array, itemsize: int, offset: int, size: int) -> Bytes:
    """Some bytes of each value."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if size == itemsize:
        return data
    return np.ascontiguousarray(data.reshape(-1, itemsize)[:, offset : offset + size]).reshape(-1)


def _fill(dataset: h5py.Dataset, dtype: Dtype, count: int, where: str) -> Bytes:
    """The fill value of `count` values that were never written."""
    try:
        value = np.full((count, *dtype.shape), dataset.fillvalue, dtype.base)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(
            f"{where} has parts that were never written, and no plain fill value: {error}"
        ) from error
    return value.reshape(-1).view(np.uint8)


class _ChunkTable:
    """Where the chunks of a dataset lie; a contiguous dataset is one, or several if HDF5 must convert it.

    Chunks with values that HDF5 must convert, or filters that it must undo, are read through it.

    Attributes:
        are_decoded: their bytes in the file are not those of the values.
        hold_rows: every row lies in one of them, and nothing else in it.
    """

    def __init__(self, dataset: h5py.Dataset, dtype: Dtype, by_hdf5: _ByHdf5, where: str) -> None:
        stored, properties = dataset.id.get_type(), dataset.id.get_create_plist()
        self._where, self._by_hdf5 = where, by_hdf5
        self._itemsize = dtype.itemsize
        self._shape: tuple[int, ...] = dataset.shape
        converts = not _is_plain(stored, dtype)
        chunked = properties.get_layout() == h5d.CHUNKED
        if chunked:
            self._chunk = properties.get_chunk()
        else:
            row_bytes = stored.get_size() * int(np.prod(self._shape[1:], dtype=np.int64))
            length = max(1, _BLOCK_BYTES // row_bytes) if converts else self._shape[0]
            self._chunk = (length, *self._shape[1:])
        self.hold_rows: bool = self._chunk[1:] == self._shape[1:]
        self._grid = tuple(-(-n // c) for n, c in zip(self._shape[1:], self._chunk[1:], strict=True))
        self._pieces = int(np.prod(self._grid, dtype=np.int64))
        self._starts = np.arange(0, self._shape[0], self._chunk[0])
        count = len(self._starts) * self._pieces
        self._offsets, self._nbytes = np.full((2, count), -1)
        if chunked:
            self._note_chunks(dataset)
        else:
            self._offsets[:] = dataset.id.get_offset() + self._starts * row_bytes
            rows = np.minimum(self._chunk[0], self._shape[0] - self._starts)
            self._nbytes[:] = rows * row_bytes
        values = int(np.prod(self._chunk, dtype=np.int64))
        self._fill = _fill(dataset, dtype, values, where) if (self._offsets < 0).any() else None
        has_filters = properties.get_nfilters() > 0
        self.are_decoded = converts or has_filters
        wrong = self._nbytes[self._offsets >= 0] != values * stored.get_size()
        if chunked and not has_filters and wrong.any():
            raise CorruptError(f"{where} has chunks that are not {values * stored.get_size()} bytes long")

    def _note_chunks(self, dataset: h5py.Dataset) -> None:
        found: list[h5d.StoreInfo] = []
        dataset.id.chunk_iter(found.append)
        if not found:
            return
        places = np.array([chunk.chunk_offset for chunk in found], np.int64) // self._chunk
        inside = (places < (len(self._starts), *self._grid)).all(axis=1)
        numbers = np.ravel_multi_index(tuple(places[inside].T), (len(self._starts), *self._grid))
        facts = np.array([(chunk.byte_offset, chunk.size) for chunk in found], np.int64)[inside]
        self._offsets[numbers], self._nbytes[numbers] = facts.T

    def items(self, file: MappedFile, cache_bytes: int) -> Items:
        """The rows of the dataset, in pieces of chunks."""
        there = self._offsets >= 0
        if (self._offsets[there] > file.data.size - self._nbytes[there]).any():
            raise CorruptError(f"{self._where} has chunks beyond the end of the file; it is cut or damaged")
        piece_bytes = int(np.prod(self._chunk, dtype=np.int64)) * self._itemsize
        stride = piece_bytes // self._chunk[0]
        if self.are_decoded:
            return Decoded(
                [self._starts], [self._shape[0]], self._pieces, stride, self._decode, piece_bytes, cache_bytes
            )
        memory, fill = [file.data], 0
        if self._fill is not None:
            memory, fill = [file.data, self._fill], address_of(self._fill)
        addresses = np.where(there, self._offsets + file.address, fill).reshape(-1, self._pieces)
        items = Mapped(self._pieces, stride, Memory(memory))
        items.append(self._starts, self._shape[0], addresses)
        return items

    def _decode(self, block: int, piece: int, out: Bytes) -> None:
        number = block * self._pieces + piece
        if self._offsets[number] < 0:
            assert self._fill is not None
            out[:] = self._fill
            return
        place = np.unravel_index(number, (len(self._starts), *self._grid))
        corner = tuple(int(at) * size for at, size in zip(place, self._chunk, strict=True))
        try:
            out[:] = self._by_hdf5.chunk(corner, self._chunk)
        except CorruptError as error:
            raise CorruptError(f"{self._where}, from row {self._starts[block]} on: {error}") from error

    def rows(self, found: Bytes, num_rows: int) -> Bytes:
        """Rows put together from their pieces; (rows * row bytes,)."""
        if self.hold_rows:
            return found
        inner, rank = self._chunk[1:], len(self._grid)
        pieces = found.reshape(num_rows, *self._grid, *inner, self._itemsize)
        # (rows, piece, place in the piece), axis by axis; chunks may reach beyond the end of an axis.
        axes = [
            axis
            for pair in zip(range(1, rank + 1), range(rank + 1, 2 * rank + 1), strict=True)
            for axis in pair
        ]
        full = pieces.transpose(0, *axes, 2 * rank + 1).reshape(
            num_rows, *(g * c for g, c in zip(self._grid, inner, strict=True)), self._itemsize
        )
        return np.ascontiguousarray(full[tuple(map(slice, (num_rows, *self._shape[1:])))]).reshape(-1)


class _ByHdf5:
    """Reads rows of a dataset through HDF5: over the mapped file, by a handle of this process."""

    def __init__(self, opening: _Opening, name: str) -> None:
        self._opening = opening
        self._name = name
        self._handles: dict[int, h5py.Dataset] = {}

    def __call__(self, rows: Ints) -> Array:
        """(rows, ...) as h5py gives them."""
        wanted, inverse = np.unique(rows, return_inverse=True)
        some = slice(int(wanted[0]), int(wanted[-1]) + 1)
        return self._read(some if some.stop - some.start == len(wanted) else wanted)[inverse]

    def chunk(self, corner: tuple[int, ...], shape: tuple[int, ...]) -> Bytes:
        """The values of a chunk, as bytes; 0 where it reaches beyond the dataset."""
        read = self._read(tuple(slice(at, at + size) for at, size in zip(corner, shape, strict=True)))
        if read.shape[: len(shape)] != shape:
            whole = np.zeros((*shape, *read.shape[len(shape) :]), read.dtype)
            whole[tuple(map(slice, read.shape))] = read
            read = whole
        return read.reshape(-1).view(np.uint8)

    def _read(self, place: object) -> Array:
        dataset = self._handles.get(os.getpid())
        try:
            # HDF5 reads such a file by its own drivers only, and one that stays open as it was at first.
            if self._opening.is_written:
                with _opened(self._opening.place) as file:
                    return np.asarray(file[self._name][place])
            if dataset is None:
                file = over_python(self, _Readable(self._opening.mapped.data), "r")
                dataset = self._handles[os.getpid()] = file[self._name]
            return np.asarray(dataset[place])
        except (OSError, RuntimeError, ValueError) as error:
            raise CorruptError(f"{self._opening.place}: {self._name!r} cannot be read: {error}") from error


class _Readable(io.RawIOBase):
    """Bytes in memory as a file."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._data.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        piece = self._data[self._at : self._at + len(into)]
        into[: len(piece)] = piece.data
        self._at += len(piece)
        return len(piece)


# -- values of varying length


def _joined(values: list[Array], dtype: Dtype) -> Data:
    offsets = bounds_of(map(len, values))
    return Data(np.concatenate([np.empty(0, dtype), *values]).astype(dtype, copy=False), offsets)


def _text(values: list[bytes], rows: Ints, where: str) -> Data:
    offsets = bounds_of(map(len, values))
    return _checked_text(np.frombuffer(b"".join(values), np.uint8), offsets, rows, where)


def _unpadded(values: Bytes, padding: int, rows: Ints, where: str) -> Data:
    width = values.shape[1]
    if padding == h5t.STR_NULLTERM:
        ends = values == 0
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1), width)
    else:
        inside = values != 0
        if padding == h5t.STR_SPACEPAD:
            inside &= values != ord(" ")
        lengths = np.where(inside.any(axis=1), width - inside[:, ::-1].argmax(axis=1), 0)
    offsets = bounds_of(lengths)
    return _checked_text(values[np.arange(width) < lengths[:, None]], offsets, rows, where)


def _checked_text(values: Bytes, offsets: Ints, rows: Ints, where: str) -> Data:
    if values.size and values.max() >= 128:
        data = values.tobytes()
        for row, start, stop in zip(rows.tolist(), offsets.tolist(), offsets[1:].tolist(), strict=False):
            try:
                data[start:stop].decode()
            except UnicodeDecodeError as error:
                raise SchemaError(
                    f"{where}, row {row}: the text is not UTF-8 ({error}); store it as bytes"
                ) from None
    return Data(values, offsets)
