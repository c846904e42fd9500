"""Shards of another library behind a URL, or compressed, downloaded into the cache and decompressed there.

What their index says about them is checked when they arrive: sizes, and hashes where it has some.
"""

from __future__ import annotations

import bz2
import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from ..errors import CorruptError
from ..files.root import open_regular, read_regular
from ..process.digests import hexdigest
from ..rows.types import Ints
from ..versions.location import Progress
from .cache import Cache
from .downloads import Downloads
from .objects import Remote

AS_IT_BEGINS = "as it begins"
HEAD = 2**16  # bytes of a file that show how it is compressed
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"
_ANY_ZLIB, _LEAST_ZLIB = 47, 8  # what zlib calls gzip or its own format; bytes of either at least
_RUN = 2**22  # bytes of a part of a file that are requested at once
_PYARROW = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}  # what pyarrow calls a compression
FRAMED = struct.Struct(
    "<8s2H3I"
)  # of LitData's frames: a magic, the version, 0, items, items of a frame, frames
_FRAMED_MAGIC, _FRAME = b"LDFZ01\0\0", struct.Struct("<IIQII")
_XXHASHES = {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"}


@dataclass(frozen=True)
class StoredShard:
    """A file of rows, as an index of another library describes it.

    Attributes:
        name: its path below the folder.
        nbytes: its size when it can be read; where that shows only once it is unpacked, as `sent`.
        sent: its size in the store, where it may be compressed.
        compression: what it is decompressed with: zstd, br, snappy, gz or bz2, or "frames", LitData's frames
            of zstd; `AS_IT_BEGINS` for gzip, zlib or zstd, if it begins so; None if it is not compressed.
        hashes: of the file in the store, pairs of an algorithm and hex digits.
        raw_hashes: of what can be read.
        tag: by which the store tells it from later contents, see `objects.Found.state`; None if it has none.
        begin, whole: if it is a part of the file in the store, which byte is its first, and how many the file
            has; it is not compressed then.
    """

    name: str
    nbytes: int
    sent: int
    compression: str | None = None
    hashes: tuple[tuple[str, str], ...] = ()
    raw_hashes: tuple[tuple[str, str], ...] = ()
    tag: str | None = None
    begin: int = 0
    whole: int | None = None


class ShardDownloads(Downloads[int]):
    """Shards by number, downloaded into the cache of this machine; pickles by the URL.

    Args:
        remote: the folder.
        shards: below it.
        cache: where they are kept.
        nbytes: the size of each, decompressed, as far as more is known than the shards say.

    Attributes:
        nbytes: the size of each, decompressed.
    """

    _advice = "write the dataset again"
    _smaller = "write smaller files of about {nbytes} bytes"

    def __init__(
        self, remote: Remote, shards: Sequence[StoredShard], cache: Cache, nbytes: Sequence[int] = ()
    ) -> None:
        self._shards = tuple(shards)
        self.nbytes = list(nbytes or (shard.nbytes for shard in shards))
        super().__init__(remote, cache)

    def __reduce__(self) -> tuple[object, ...]:
        return ShardDownloads, (self.remote, self._shards, self.cache, self.nbytes)

    @property
    def name(self) -> str:
        """The URL of the folder."""
        return self.remote.url

    def head(self, number: int, count: int) -> bytes:
        """The first bytes of a shard that is not compressed; the others are not downloaded."""
        shard = self._shards[number]
        return self.remote.read_ranges(shard.name, [(0, count)], shard.nbytes)[0][:count]

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Downloads shards ahead of time, in the order in which rows of them will be read."""
        self._download_ahead(range(len(self._shards)), order, progress)

    def key(self, number: int) -> str:
        """The name of a shard in the cache."""
        return f"{hexdigest(f'{self.where(number)} {self._shards[number]!r}')}.shard"

    def _name_of(self, number: int) -> str:
        return self._shards[number].name

    def _size(self, number: int) -> int:
        return self.nbytes[number]

    def _sent(self, number: int) -> int:
        return self._shards[number].sent

    def _append(self, name: str, number: int, file: BinaryIO) -> int:
        shard = self._shards[number]
        if shard.hashes or shard.raw_hashes:
            return self._appended(name, number, file)
        # Nothing but the store can tell that all of it is of one writing, and of the one that was indexed.
        before = shard.tag
        if before is None:
            file.truncate(0)
            found = self.remote.find_one(name)
            before = None if found is None else found.state
        crc = self._appended(name, number, file)
        if not self._is_still(name, before):
            file.truncate(0)
            raise CorruptError(f"{self.where(number)} has changed since it was opened; open it again")
        return crc

    def _is_still(self, name: str, state: str | None) -> bool:
        """True if a file is as it was."""
        found = self.remote.find_one(name)
        if found is not None and found.state != state:
            # Some stores tell the same object in another way where they list a folder.
            folder, _, last = name.rpartition("/")
            found = self.remote.find(folder).get(last)
        return found is not None and found.state == state

    def _appended(self, name: str, number: int, file: BinaryIO) -> int:
        shard = self._shards[number]
        if shard.whole is None:
            return super()._append(name, number, file)
        at = file.seek(0, os.SEEK_END)
        if at > shard.sent:
            at = file.truncate(file.seek(0))
        try:
            while at < shard.sent:
                run = shard.begin + at, shard.begin + min(at + _RUN, shard.sent)
                (data,) = self.remote.read_ranges(name, [run], shard.whole)
                # A server that knows no ranges sends all.
                at += file.write(data if len(data) == run[1] - run[0] else data[slice(*run)])
        except FileNotFoundError:
            self._raise_what_happened(number)
        file.flush()
        return 0

    def _load(self, entries: Sequence[int]) -> None:
        for name in {self._shards[number].compression for number in entries} & {*_PYARROW, "frames"}:
            _pyarrow(str(name))

    def _check_size(self, number: int) -> None:
        """Leaves it to the download, which says as much."""

    def _raise_what_happened(self, number: int) -> None:
        raise CorruptError(f"{self.where(number)} is missing though the index names it; {self._advice}")

    def _arrived(self, number: int, crc: int, path: Path) -> str | None:
        shard = self._shards[number]
        if shard.compression == AS_IT_BEGINS:
            return self._unpack(number, path)
        if not (shard.compression or shard.hashes or shard.raw_hashes):
            return None
        try:
            data = read_regular(path, shard.sent)
            check_hashes(data, shard.hashes)
            if shard.compression:
                data = decompressed(data, shard.compression, shard.nbytes)
                with self.cache.part(self.key(number)) as file:
                    file.truncate(0)
                    file.write(data)
            check_hashes(data, shard.raw_hashes)
        except CorruptError as error:
            return str(error)
        return None

    def _unpack(self, number: int, path: Path) -> str | None:
        """Puts its contents in the place of a file that is compressed; returns what is wrong with it."""
        key = self.key(number)
        unfinished = f"{key.partition('.')[0]}-{0:08}.shard"
        with open(open_regular(path), "rb") as packed:
            how = packing_of(packed.read(HEAD))
            if how is None:
                return None
            packed.seek(0)
            try:
                with self.cache.root.create_anew(f"parts/{unfinished}") as file:
                    file.writelines(unpacked(packed, how))
            except CorruptError as error:
                self.cache.drop(unfinished)
                return str(error)
        self.cache.root.move(f"parts/{unfinished}", f"parts/{key}")
        return None


def packing_of(head: bytes) -> str | None:
    """How a file that begins with these bytes is compressed, "zlib" for gzip, too; None if it is not."""
    if head.startswith(_ZSTD):
        return "zstd"
    if head.startswith(_GZIP):
        return "zlib"
    if head[:1] != b"x" or len(head) < _LEAST_ZLIB:
        return None
    try:  # other data may begin so, too
        zlib.decompressobj(_ANY_ZLIB).decompress(head, HEAD)
    except zlib.error:
        return None
    return "zlib"


def unpacked(file: BinaryIO, how: str) -> Iterator[bytes]:
    """The contents of a compressed file, in pieces; CorruptError if it is cut or damaged."""
    if how == "zstd":
        try:
            with _pyarrow(how).input_stream(file, compression=how) as stream:
                while piece := stream.read(_RUN):
                    yield piece
        except OSError as error:
            raise CorruptError(f"it is cut or damaged: {error}") from error
        return
    by, left = zlib.decompressobj(_ANY_ZLIB), b""
    try:
        while left := left or file.read(_RUN):
            if by.eof:  # another part follows
                by = zlib.decompressobj(_ANY_ZLIB)
            yield by.decompress(left, _RUN)
            left = by.unused_data if by.eof else by.unconsumed_tail
    except zlib.error as error:
        raise CorruptError(f"it is damaged: {error}") from error
    if not by.eof:
        raise CorruptError("it is cut: its compressed data has no end")


def check_hashes(data: bytes | memoryview, hashes: Sequence[tuple[str, str]]) -> None:
    """Raises CorruptError unless bytes have these hashes, pairs of an algorithm and hex digits."""
    for algorithm, expected in hashes:
        if algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake"):
            digits = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
        elif algorithm not in _XXHASHES:
            raise CorruptError(
                f"the index has hashes by {algorithm!r:.40}, not a known one; see verify=False"
            )
        else:
            digits = getattr(xxhash, algorithm)(data).hexdigest()
        if digits != expected.lower():
            raise CorruptError(f"its {algorithm} is {digits}, the index says {expected}")


def decompressed(data: bytes, name: str, nbytes: int) -> bytes:
    """So many bytes that were compressed by zstd, br, snappy, gz, bz2 or in LitData's frames.

    Raises:
        CorruptError: they are damaged, or decompress to another number of bytes; no more are kept in memory.
        ImportError: pyarrow is not installed.
    """
    try:
        if name == "br":  # whole buffers are given back however little was written to them
            pa = _pyarrow(name)
            with pa.input_stream(pa.BufferReader(data), compression="brotli") as stream:
                left, pieces = nbytes + 1, list[bytes]()
                while left > 0 and (piece := stream.read(min(left, _RUN))):
                    left -= len(piece)
                    pieces.append(piece)
                raw = b"".join(pieces)
        elif name == "frames":
            raw = _without_frames(data, nbytes)
        elif name == "snappy" and _snappy_size(data) != nbytes:
            raw = b""
        elif name in _PYARROW:
            raw = bytes(_pyarrow(name).decompress(data, decompressed_size=nbytes, codec=_PYARROW[name]))
        else:
            by = bz2.BZ2Decompressor() if name == "bz2" else zlib.decompressobj(wbits=31)
            raw = by.decompress(data, nbytes + 1)
            raw = raw if by.eof else b""
    except (OSError, ValueError, IndexError, struct.error, zlib.error, MemoryError) as error:
        raise CorruptError(f"it cannot be decompressed by {name}: {error}") from error
    if len(raw) != nbytes:
        raise CorruptError(f"decompressed by {name} it does not have the {nbytes} bytes that the index says")
    return raw


def _without_frames(data: bytes, nbytes: int) -> bytes:
    """A chunk of LitData's whose items were compressed some at a time, as it is without compression."""
    magic, version, _, items, _, frames = FRAMED.unpack_from(data)
    if magic != _FRAMED_MAGIC or version != 1:
        raise ValueError(f"it begins with {data[:10]!r}")
    ends = np.frombuffer(data, "<u4", items + 1, FRAMED.size).astype(np.int64)
    head = 4 * (items + 2)
    pieces = [struct.pack("<I", items), (ends + head).astype("<u4").tobytes()]
    at, done, left = FRAMED.size + ends.size * 4, 0, nbytes - head
    for number in range(frames):
        first, count, start, size, raw = _FRAME.unpack_from(data, at + number * _FRAME.size)
        left -= raw
        is_cut = left < 0 or start + size > len(data)
        if is_cut or first != done or ends[first + count] - ends[first] != raw:
            raise ValueError(f"its frame {number} is not the one of items {done} and those behind")
        done += count
        frame = data[start : start + size]
        pieces.append(bytes(_pyarrow("zstd").decompress(frame, decompressed_size=raw, codec="zstd")))
    if done != items:
        raise ValueError(f"its frames hold {done} of {items} items")
    return b"".join(pieces)


def _snappy_size(data: bytes) -> int:
    """How many bytes snappy says that it has compressed, in 7 bits of each byte; -1 if it says none."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            return size
    return -1


def _pyarrow(name: str) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError:
        raise ImportError(
            f"shards compressed by {name} need pyarrow; pip install 'torchyoga[arrow]'"
        ) from None
