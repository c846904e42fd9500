"""Stored bytes of an HDF5 chunk -> its items.

Deflate and shuffle are undone here, so that reading needs no HDF5 and no handle. All other filters are left
to HDF5.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from h5py import h5p, h5z
from h5py._objects import phil

from ..errors import CorruptError, SchemaError
from ..rows.types import Json
from .mapped.gather import Bytes

# Before h5py 3.16 its direct chunk methods do not take this lock, and other threads may be inside HDF5.
HDF5_LOCK = phil
_BY_HAND = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE}
COMPRESSIONS = ("gzip", "lzf", "blosc", "zstd")
_PLUGIN = "hdf5plugin"
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
        SchemaError: a filter is not installed; names it.
    """
    for i in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(i)
        if not h5z.filter_avail(code) and (_plugin() is None or not h5z.filter_avail(code)):
            raise SchemaError(
                f"{where} is stored with the filter {code} ({name.decode(errors='replace') or 'unnamed'}), "
                f"which is not installed; many are in the package {_PLUGIN}: pip install {_PLUGIN}"
            )


class Filter(NamedTuple):
    """A filter that is undone by hand, and the bytes of an element for shuffle."""

    code: int
    size: int = 1


def filters_of(properties: h5p.PropDCID) -> tuple[Filter, ...] | None:
    """The filters of a dataset in the order of their use; None if HDF5 must undo one."""
    found = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    if not {code for code, *_ in found} <= _BY_HAND:
        return None
    return tuple(Filter(code, values[0] if values and values[0] else 1) for code, _, values, _ in found)


def decoded(filters: Sequence[Filter], data: Bytes, mask: int, nbytes: int) -> Bytes:
    """The items of a chunk, as bytes.

    Args:
        filters: of the dataset.
        data: the chunk as stored.
        mask: bit i is set if filter i was left out for this chunk.
        nbytes: as many bytes as the decoded chunk has.

    Raises:
        CorruptError: the chunk is damaged.
    """
    for i in reversed(range(len(filters))):
        if mask >> i & 1:
            continue
        code, size = filters[i]
        is_deflate = code == h5z.FILTER_DEFLATE  # another one may be inside
        data = _inflated(data, 2 * nbytes + 64) if is_deflate else _unshuffled(data, size)
    if data.nbytes != nbytes:
        raise CorruptError(f"a chunk holds {data.nbytes} bytes instead of {nbytes}")
    return data


def announced(compression: str, data: Bytes) -> int | None:
    """How many bytes a chunk claims to decompress to; None if it does not say, or is damaged.

    HDF5 would read beyond the end of a chunk that decompresses to less.
    """
    if compression == "blosc":
        return int.from_bytes(data[4:8].tobytes(), "little")
    return _announced_by_zstd(data[:18].tobytes()) if compression == "zstd" else _size_of_lzf(data.tobytes())


def _size_of_lzf(data: bytes) -> int | None:
    """The size of what an LZF stream decompresses to; None if it is damaged, which h5py does not look at."""
    at = size = 0
    while at < len(data):
        control = data[at]
        is_run, is_long = control < 32, control >= 224  # of literals; a copy whose length has another byte
        count = control + 1 if is_run else (control >> 5) + 2
        after = at + (count + 1 if is_run else 2 + is_long)
        if after > len(data):
            return None
        if not is_run and (control & 31) << 8 | data[after - 1] >= size:  # begins before what there is
            return None
        at, size = after, size + count + (data[at + 1] if is_long else 0)
    return size


def _announced_by_zstd(head: bytes) -> int | None:
    """The size of its content in the header of a Zstandard frame (RFC 8878, 3.1.1.1)."""
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return None
    flags = head[4]
    single = flags >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size = (single, 2, 4, 8)[flags >> 6]
    return int.from_bytes(head[at : at + size], "little") + 256 * (size == 2) if size else None


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
