"""Stored bytes of an HDF5 chunk -> its items.

Deflate, shuffle and Fletcher checksums are undone here, so that reading needs no HDF5 and no handle. Any
other filter, and any type whose bytes are not NumPy's, is left to HDF5: it gets the stored bytes as the one
chunk of a dataset in memory. So its library never sees the file, and none is open when a process forks.
"""

from __future__ import annotations

import itertools
import os
import threading
import zlib
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z

from ..errors import CorruptError, SchemaError
from .gather import Bytes

__all__ = [
    "COMPRESSIONS",
    "GZIP_LEVEL",
    "Pipeline",
    "compression_arguments",
    "memory_file",
    "require_filters",
    "shuffled",
]

_BY_HAND = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
COMPRESSIONS = ("gzip", "lzf", "blosc", "zstd")
_PLUGIN = "hdf5plugin"
_BLOSC, _ZSTD = 32001, 32015  # as registered with The HDF Group
GZIP_LEVEL = 4  # HDF5's own default


def compression_arguments(name: str) -> dict[str, Any]:
    """What h5py's `create_dataset` takes for a compression.

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


def _plugin() -> Any:
    try:
        import hdf5plugin
    except ImportError:
        return None
    return hdf5plugin


def require_filters(properties: h5p.PropDCID, where: str) -> None:
    """Makes the filters of a dataset available.

    Raises:
        SchemaError: one is not installed; names it.
    """
    for i in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(i)
        if not h5z.filter_avail(code) and (_plugin() is None or not h5z.filter_avail(code)):
            raise SchemaError(
                f"{where} is stored with the filter {code} ({name.decode(errors='replace') or 'unnamed'}), "
                f"which is not installed; many are in the package {_PLUGIN}: pip install {_PLUGIN}"
            )


@dataclass(frozen=True)
class Pipeline:
    """How the chunks of a dataset are stored.

    Attributes:
        properties: of the dataset's creation: chunk shape, filters and fill value.
        stored: the HDF5 type of the items as they lie in the file.
        dtype: what they are read as.
        converts: False if the bytes of `stored` are those of `dtype`; else HDF5 converts them.
    """

    properties: h5p.PropDCID
    stored: h5t.TypeID
    dtype: np.dtype[Any]
    converts: bool = False
    _scratches: dict[tuple[int, int], tuple[threading.Lock, h5d.DatasetID, Any]] = field(default_factory=dict)

    def decode(self, data: Bytes, mask: int, out: Bytes) -> None:
        """Writes the items of a chunk into `out`, as bytes of `dtype`.

        Args:
            data: the chunk as it is stored.
            mask: bit i is set if filter i was left out for this chunk.
            out: as many bytes as the chunk has.

        Raises:
            CorruptError: the chunk is damaged.
        """
        filters = [self.properties.get_filter(i) for i in range(self.properties.get_nfilters())]
        used = [(code, values) for i, (code, _, values, _) in enumerate(filters) if not mask >> i & 1]
        if self.converts or not {code for code, _ in used} <= _BY_HAND:
            _check_length(data, [code for code, _ in used], out.nbytes)
            self._decode_by_hdf5(data, mask, out)
            return
        for code, values in reversed(used):
            if code == h5z.FILTER_DEFLATE:
                data = _inflated(data, out.nbytes + 4)  # a checksum may be inside
            elif code == h5z.FILTER_FLETCHER32:
                data = _checked(data)
            else:
                data = _unshuffled(data, values[0] if values else self.dtype.itemsize)
        if data.nbytes != out.nbytes:
            raise CorruptError(f"a chunk holds {data.nbytes} bytes instead of {out.nbytes}")
        out[:] = data

    def _decode_by_hdf5(self, data: Bytes, mask: int, out: Bytes) -> None:
        key = os.getpid(), mask
        scratch = self._scratches.get(key)
        if scratch is None:
            scratch = self._scratches[key] = (threading.Lock(), *self._make_scratch(mask))
        lock, dataset, _ = scratch
        found = np.ndarray(self.properties.get_chunk(), self.dtype, out.data)
        wanted = h5t.py_create(self.dtype, logical=True) if self.converts else self.stored
        with lock:
            try:
                dataset.write_direct_chunk((0,) * found.ndim, data.tobytes())
                dataset.read(h5s.ALL, h5s.ALL, found, mtype=wanted)
            except (OSError, RuntimeError, ValueError) as error:
                raise CorruptError(f"HDF5 cannot decode a chunk: {error}") from error

    def _make_scratch(self, mask: int) -> tuple[h5d.DatasetID, Any]:
        # A dataset without the filters that were left out: HDF5 forgets the mask of a chunk just written.
        properties = self.properties.copy()
        for i in range(self.properties.get_nfilters()):
            if mask >> i & 1:
                properties.remove_filter(self.properties.get_filter(i)[0])
        file = memory_file()
        space = h5s.create_simple(properties.get_chunk())
        return h5d.create(file.id, b"chunk", self.stored, space, properties), file


def memory_file() -> Any:
    """A new HDF5 file that lies in memory only."""
    return h5py.File(f"in memory {os.getpid()} {next(_names)}", "w", driver="core", backing_store=False)


_names = itertools.count()


def _check_length(data: Bytes, codes: list[int], nbytes: int) -> None:
    """Raises CorruptError for what HDF5 would read beyond the end of, without looking."""
    if codes and codes[-1] == h5z.FILTER_FLETCHER32 and data.nbytes < 4:
        raise CorruptError("a chunk is shorter than its checksum")
    if codes[-1:] == [_BLOSC]:
        announced: int | None = int.from_bytes(data[4:8].tobytes(), "little")
    elif codes[-1:] == [_ZSTD]:
        announced = _announced_by_zstd(data[:18].tobytes())
    else:
        return
    if announced != nbytes:
        raise CorruptError(f"a chunk decompresses to {announced} bytes instead of {nbytes}")


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


def _checked(data: Bytes) -> Bytes:
    """What stands before the checksum of HDF5's Fletcher filter: sums modulo 65535 of big-endian words."""
    body, stored = data[:-4], data[-4:].tobytes()
    words = np.frombuffer(body.tobytes() + b"\0" * (body.nbytes % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % 65535
    sums = int((words * weights % 65535).sum()) % 65535, int(words.sum()) % 65535
    halves = [int.from_bytes(half, "little") for half in (stored[2:], stored[:2])]
    turned = [int.from_bytes(half, "big") for half in (stored[2:], stored[:2])]  # by HDF5 before 1.6.3
    if len(stored) != 4 or sums not in [(a % 65535, b % 65535) for a, b in (halves, turned)]:
        raise CorruptError("a chunk does not match its checksum")
    return body


def shuffled(data: Bytes, size: int) -> Bytes:
    """The first bytes of all elements of `size` bytes, then the second ones, and so on: packs better."""
    count = data.nbytes // size
    head = data[: count * size].reshape(count, size).T.reshape(-1)
    return np.concatenate([head, data[count * size :]])


def _unshuffled(data: Bytes, size: int) -> Bytes:
    count = data.nbytes // size
    out = np.empty_like(data)
    out[: count * size].reshape(count, size)[:] = data[: count * size].reshape(size, count).T
    out[count * size :] = data[count * size :]
    return out
