"""Stored bytes of an HDF5 chunk -> its items.

Deflate, shuffle and Fletcher checksums are undone here, so that reading needs no HDF5 and no handle. Any
other filter, and any type whose bytes are not NumPy's, is left to HDF5: it gets the stored bytes as the only
chunk of a dataset in memory. So its library never sees the file, and has no file open when a process forks.

HDF5 decodes no chunk of a file itself.
Lengths that HDF5 does not check are checked before or after it decodes.

Fletcher's sums are compared modulo 65535.
HDF5's own reduction may or may not tell 0 from 65535. Other filters are left to HDF5, in a file in memory
whose filter parameters are those of the file: a dataset created with these parameters would get others, since
filters change their parameters whenever a dataset is created.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import threading
import zlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z
from h5py._objects import phil

from ..errors import CorruptError, SchemaError
from ..process.lazy import cached_property
from ..rows.types import Json
from .mapped.gather import Bytes

__all__ = [
    "COMPRESSIONS",
    "GZIP_LEVEL",
    "HDF5_LOCK",
    "FilterPipeline",
    "compression_arguments",
    "memory_file",
    "require_filters",
    "shuffled",
]

# Before h5py 3.16 its direct chunk methods do not take this lock, and other threads may be inside HDF5.
HDF5_LOCK = phil
_BY_HAND = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
COMPRESSIONS = ("gzip", "lzf", "blosc", "zstd")
_PLUGIN = "hdf5plugin"
# As registered with The HDF Group.
_BLOSC, _LZ4, _BITSHUFFLE, _ZSTD = 32001, 32004, 32008, 32015
_NOBODY = 0xD3A7  # a number that no filter has, and none of the numbers just below it
_MOST_VALUES = 16  # parameters of a filter that h5py gives; beyond that it only gives their number
# Filters of HDF5 that may have more, and how many of them HDF5 is passed; it finds the others by itself.
_GIVEN_VALUES = {h5z.FILTER_NBIT: 0, h5z.FILTER_SCALEOFFSET: 2}
GZIP_LEVEL = 4  # HDF5's own default


def compression_arguments(name: str) -> Json:
    """The arguments of h5py's `create_dataset` for a compression.

    Raises:
        ValueError: there is no such compression, or the package it needs is not installed.
    """
    if name not in COMPRESSIONS:
        raise ValueError(f"compression={name!r} is not known; choose one of {list(COMPRESSIONS)} or None")
    if name == "gzip":
        return {"compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
    if name == "lzf":
        return {"compression": "lzf", "shuffle": True}
    plugin = _plugin()
    if plugin is None:
        raise ValueError(f"compression={name!r} needs the package {_PLUGIN}; pip install {_PLUGIN}")
    return dict(plugin.Blosc() if name == "blosc" else plugin.Zstd())


def _plugin() -> ModuleType | None:
    try:
        import hdf5plugin
    except ImportError:
        return None
    return hdf5plugin


def require_filters(properties: h5p.PropDCID, where: str) -> None:
    """Makes the filters of a dataset available.

    Raises:
        SchemaError: a filter is not installed, or cannot be used with its parameters in the file; names it.
    """
    for i in range(properties.get_nfilters()):
        code, _, values, name = properties.get_filter(i)
        if len(values) > _MOST_VALUES and code not in _GIVEN_VALUES:
            raise SchemaError(
                f"{where} is stored with the filter {_named(code, name)} and {len(values)} parameters, of "
                f"which h5py gives only {_MOST_VALUES}; write it again with another compression, or in "
                "chunks of fewer dimensions"
            )
        if not h5z.filter_avail(code) and (_plugin() is None or not h5z.filter_avail(code)):
            raise SchemaError(
                f"{where} is stored with the filter {_named(code, name)}, "
                f"which is not installed; many are in the package {_PLUGIN}: pip install {_PLUGIN}"
            )


def _named(code: int, name: bytes) -> str:
    return f"{code} ({name.decode(errors='replace') or 'unnamed'})"


@dataclass(frozen=True)
class FilterPipeline:
    """How the chunks of a dataset are stored.

    Attributes:
        properties: of the dataset's creation: chunk shape, filters and fill value.
        stored: the HDF5 type of the items in the file.
        dtype: the type they are read as.
        converts: False if the bytes of `stored` are those of `dtype`; otherwise HDF5 converts them.
    """

    properties: h5p.PropDCID
    stored: h5t.TypeID
    dtype: np.dtype[np.generic]
    converts: bool = False
    _scratches: dict[object, tuple[threading.Lock, h5d.DatasetID, h5py.File]] = field(default_factory=dict)

    def decode(self, data: Bytes, mask: int, out: Bytes) -> None:
        """Writes the items of a chunk into `out`, as bytes of `dtype`.

        Args:
            data: the chunk as stored.
            mask: bit i is set if filter i was left out for this chunk.
            out: as many bytes as the decoded chunk has.

        Raises:
            CorruptError: the chunk is damaged.
            SchemaError: HDF5 would decode it with parameters other than those in the file.
        """
        used = [i for i in range(len(self._filters)) if not mask >> i & 1]
        kept = self._kept(used)
        hdf5_is_due = bool(kept) or self.converts
        for i in reversed(used):
            if i not in kept:
                data = _undone(self._filters[i], data, out.nbytes)
            elif hdf5_is_due:
                data, hdf5_is_due = self._undone_by_hdf5(data, kept, out.nbytes), False
        if hdf5_is_due:
            data = self._undone_by_hdf5(data, kept, out.nbytes)
        if data.nbytes != out.nbytes:
            raise CorruptError(f"a chunk holds {data.nbytes} bytes instead of {out.nbytes}")
        out[:] = data

    @cached_property
    def _filters(self) -> tuple[_Filter, ...]:
        return _filters_of(self.properties)

    def _kept(self, used: list[int]) -> tuple[int, ...]:
        """The filters that HDF5 undoes: as few as possible, without a gap.

        Undoing shuffle, for one, it reads beyond the end of bytes that an earlier filter made too short.
        """
        codes = [found.code for found in self._filters]
        if self.converts:
            return tuple(used)
        strange = [i for i in used if codes[i] not in _BY_HAND]
        if not strange:
            return ()
        # HDF5 gives out whole chunks, so it must undo all filters that change the length.
        first = next(i for i in used if codes[i] != h5z.FILTER_SHUFFLE)
        return tuple(i for i in used if first <= i <= strange[-1])

    def _undone_by_hdf5(self, data: Bytes, kept: tuple[int, ...], nbytes: int) -> Bytes:
        size = self.stored.get_size() * math.prod(self.properties.get_chunk())
        _check_length(data, [self._filters[i] for i in kept], size)
        key = os.getpid(), kept
        scratch = self._scratches.get(key)
        if scratch is None:
            scratch = self._scratches[key] = (threading.Lock(), *self._make_scratch(kept))
        lock, dataset, _ = scratch
        found = np.empty(self.properties.get_chunk(), self.dtype)
        wanted = h5t.py_create(self.dtype, logical=True) if self.converts else self.stored
        with lock:
            try:
                with HDF5_LOCK:
                    dataset.write_direct_chunk((0,) * found.ndim, data.tobytes())
                dataset.read(h5s.ALL, h5s.ALL, found, mtype=wanted)
            except (OSError, RuntimeError, ValueError) as error:
                raise CorruptError(f"HDF5 cannot decode a chunk: {error}") from error
        return found.reshape(-1).view(np.uint8)

    def _make_scratch(self, kept: tuple[int, ...]) -> tuple[h5d.DatasetID, h5py.File]:
        """A dataset of one chunk, with these filters as they are in the file.

        Filters left out for a chunk are not among them: HDF5 forgets the mask of a chunk just written. Many
        filters change the parameters passed to them whenever a dataset is created, and those of the file
        have been changed already. So the dataset is created with filters that do not exist, whose parameters
        HDF5 leaves alone; then the right numbers of the filters are written over theirs.
        """
        properties = self.properties.copy()
        properties.remove_filter(h5z.FILTER_ALL)
        properties.set_alloc_time(h5d.ALLOC_TIME_INCR)  # nothing is stored with filters that do not exist
        written = []
        for i in kept:
            code, flags, values = self._filters[i]
            if len(values) > _MOST_VALUES:  # a filter of HDF5's own: it finds the same values again
                properties.set_filter(code, flags, values[: _GIVEN_VALUES[code]])
            else:
                properties.set_filter(_NOBODY - i, h5z.FLAG_OPTIONAL, values)
                written.append((_Filter(_NOBODY - i, h5z.FLAG_OPTIONAL, values), self._filters[i]))
        space = h5s.create_simple(properties.get_chunk())
        # The earliest form of files has no checksums over the bytes that are overwritten.
        with h5py.File.in_memory(libver=("earliest", "latest")) as file:
            h5d.create(file.id, b"chunk", self.stored, space, properties)
            file.flush()
            image = file.id.get_file_image()
        for there, wanted in written:
            image = image.replace(there.message, wanted.message)
        file = h5py.File.in_memory(image)
        dataset = h5d.open(file.id, b"chunk")
        found = _filters_of(dataset.get_create_plist())
        if [each.known for each in found] != [self._filters[i].known for i in kept]:
            raise SchemaError(
                f"HDF5 would not decode with the parameters of the file, {[self._filters[i] for i in kept]}, "
                f"but with {list(found)}; write the dataset again with another compression"
            )
        return dataset, file


class _Filter(NamedTuple):
    """A filter of a dataset, and the parameters that it has in the file."""

    code: int
    flags: int
    values: tuple[int, ...]

    @property
    def message(self) -> bytes:
        """Its bytes as HDF5 writes them into a file, without a name: two a number, and four a value."""
        head = self.code, 0, self.flags, len(self.values)
        return struct.pack(f"<4H{len(self.values)}I", *head, *self.values)

    @property
    def known(self) -> tuple[int, int, tuple[int, ...]]:
        """All that h5py reports reliably: the code, the number of values, and the first of them."""
        return self.code, len(self.values), self.values[:_MOST_VALUES]


def _filters_of(properties: h5p.PropDCID) -> tuple[_Filter, ...]:
    """The filters of a dataset, in the order in which a chunk went through them."""
    return tuple(_Filter(*properties.get_filter(i)[:3]) for i in range(properties.get_nfilters()))


def memory_file() -> h5py.File:
    """A new HDF5 file that lies in memory only."""
    return h5py.File(f"in memory {os.getpid()} {next(_names)}", "w", driver="core", backing_store=False)


_names = itertools.count()


def _check_length(data: Bytes, filters: list[_Filter], nbytes: int) -> None:
    """Raises CorruptError for a chunk that HDF5 would read beyond the end of, unchecked."""
    last = filters[-1] if filters else None
    if last is not None and last.code == h5z.FILTER_FLETCHER32 and data.nbytes < 4:
        raise CorruptError("a chunk is shorter than its checksum")
    found: int | None = nbytes
    if not {each.code for each in filters} - {h5z.FILTER_SHUFFLE}:
        found = data.nbytes
    elif last is not None and not {each.code for each in filters[:-1]} - {h5z.FILTER_SHUFFLE}:
        found = _announced(data, last, nbytes)  # other filters inside would change the length again
    if found != nbytes:
        raise CorruptError(f"a chunk holds {found} bytes instead of {nbytes}")


def _announced(data: Bytes, outermost: _Filter, nbytes: int) -> int | None:
    """How many bytes a chunk claims to decompress to; `nbytes` if its filter does not say."""
    if outermost.code == _BLOSC:
        return int.from_bytes(data[4:8].tobytes(), "little")
    if outermost.code == _ZSTD:
        return _announced_by_zstd(data[:18].tobytes())
    if outermost.code == _BITSHUFFLE and not {2, 3} & {*outermost.values[4:5]}:  # neither LZ4 nor Zstandard
        return data.nbytes
    if outermost.code in (_LZ4, _BITSHUFFLE):
        return int.from_bytes(data[:8].tobytes(), "big") if data.nbytes >= 12 else None
    return nbytes


def _announced_by_zstd(head: bytes) -> int | None:
    """The size of its content in the header of a Zstandard frame (RFC 8878, 3.1.1.1)."""
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return None
    flags = head[4]
    single = flags >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size = (single, 2, 4, 8)[flags >> 6]
    return int.from_bytes(head[at : at + size], "little") + 256 * (size == 2) if size else None


def _undone(by: _Filter, data: Bytes, nbytes: int) -> Bytes:
    if by.code == h5z.FILTER_DEFLATE:
        return _inflated(data, 2 * nbytes + 64)  # other filters may be inside
    if by.code == h5z.FILTER_FLETCHER32:
        return _checked(data)
    return _unshuffled(data, by.values[0] if by.values and by.values[0] else 1)


def _inflated(data: Bytes, most: int) -> Bytes:
    engine = zlib.decompressobj()
    try:
        # Bounded: a small chunk must not be able to fill the memory.
        found = engine.decompress(data.data, most + 1)
    except zlib.error as error:
        raise CorruptError(f"a chunk cannot be decompressed: {error}") from error
    if not engine.eof:
        raise CorruptError(f"a chunk is cut, or decompresses to more than {most} bytes")
    return np.frombuffer(found, np.uint8)


def _checked(data: Bytes) -> Bytes:
    """The bytes before the checksum of HDF5's Fletcher filter: sums modulo 65535 of big-endian words."""
    body, stored = data[:-4], data[-4:].tobytes()
    words = np.frombuffer(body.tobytes() + b"\0" * (body.nbytes % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % 65535
    sums = int((words * weights % 65535).sum()) % 65535, int(words.sum()) % 65535
    halves = [int.from_bytes(half, "little") for half in (stored[2:], stored[:2])]
    turned = [int.from_bytes(half, "big") for half in (stored[2:], stored[:2])]  # as HDF5 before 1.6.3 did
    if len(stored) != 4 or sums not in [(a % 65535, b % 65535) for a, b in (halves, turned)]:
        raise CorruptError("a chunk does not match its checksum")
    return body


def shuffled(data: Bytes, size: int) -> Bytes:
    """The first bytes of all elements of `size` bytes, then the second ones, and so on, which pack better."""
    count = data.nbytes // size
    head = data[: count * size].reshape(count, size).T.reshape(-1)
    return np.concatenate([head, data[count * size :]])


def _unshuffled(data: Bytes, size: int) -> Bytes:
    count = data.nbytes // size
    out = np.empty_like(data)
    out[: count * size].reshape(count, size)[:] = data[: count * size].reshape(size, count).T
    out[count * size :] = data[count * size :]
    return out
