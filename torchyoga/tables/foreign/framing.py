"""The framing of TFRecord: where the records of a file lie, or these themselves, in order.

A record is its length, the length's CRC-32C, its bytes and theirs. All is little-endian, and CRCs are masked.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import BinaryIO

import numpy as np

from ...errors import CorruptError
from ...files.crc32c import crc32c, crc32c_of_words, masked
from ...files.regular import open_regular
from ...formats.mapped.gather import Bytes
from ...rows.types import Array, Ints
from ...stores.kept_index import FileIndex

__all__ = ["FOOT", "HEAD", "framed", "index_of"]

HEAD, FOOT = 12, 4  # bytes before and after those of a record
_PIECE, _SMALL_PIECE = 2**22, 2**12  # bytes that are read at once, to find records; where these are large
_LONGEST = 2**31  # bytes of a message


def index_of(path: str) -> FileIndex:
    """Where the records of a file lie: `bounds` (N + 1,), and their `crcs` (N,); or that it is compressed."""
    with open(open_regular(path), "rb", 0) as file:
        size = os.fstat(file.fileno()).st_size
        if _is_compressed(file.read(HEAD)):
            return FileIndex({}, {"is_compressed": True})

        def read(at: int, count: int) -> Bytes:
            file.seek(at)
            return np.frombuffer(file.read(count), np.uint8)

        bounds, crcs = _found(read, size, path)
    return FileIndex({"bounds": bounds, "crcs": crcs})


def _is_compressed(head: bytes) -> bool:
    is_packed = head[:2] == b"\x1f\x8b" or (head[:1] == b"\x78" and not int.from_bytes(head[:2], "big") % 31)
    return is_packed and bool(_wrong_heads(np.frombuffer(head.ljust(HEAD, b"\0"), np.uint8)[None]).any())


def _wrong_heads(heads: Bytes) -> Array:
    """(N,) True for heads (N, 12) whose length does not fit its checksum."""
    wrong: Array = masked(crc32c_of_words(heads[:, :8])) != heads[:, 8:].copy().view("<u4")[:, 0]
    return wrong


def _found(read: Callable[[int, int], Bytes], size: int, path: str) -> tuple[Ints, Array]:
    """Where records lie, and their checksums.

    Args:
        read: gives bytes from a place on: so many, unless the file ends there.
        size: of the file.
        path: for messages.
    """
    at, count, wanted = 0, 0, _PIECE
    bounds, crcs = [np.zeros(1, np.int64)], list[Array]()
    length = struct.Struct("<Q").unpack_from
    while at < size:
        begin = max(0, at - FOOT)
        piece = read(begin, wanted)
        place, last, places = at - begin, len(piece) - HEAD, list[int]()
        while place <= last:
            places.append(place)
            place += length(piece.data, place)[0] + HEAD + FOOT
        heads = np.array(places, np.int64)
        wrong = _wrong_heads(piece[heads[:, None] + np.arange(HEAD)])
        if wrong.any():
            nth = int(wrong.argmax())
            what = "it is not of TFRecord, or the" if not at and not nth else "the"
            raise CorruptError(
                f"{path}: {what} length of record {count + nth} at byte {begin + places[nth]} is damaged: it "
                "does not fit its checksum; write the file again"
            )
        end = begin + place
        if not places or end > size:
            nth, begins = count + max(0, len(places) - 1), begin + (places[-1] if places else place)
            raise CorruptError(
                f"{path} is cut: record {nth} begins at byte {begins} and does not end before byte {size}, "
                f"where the file does; write it again, or cut it at byte {begins}"
            )
        feet = heads[heads + begin > 0] - FOOT  # of the records before
        crcs.append(piece[feet[:, None] + np.arange(FOOT)].view("<u4")[:, 0])
        bounds.append(np.append(heads[1:], place) + begin)
        wanted = _PIECE if place - places[-1] < _PIECE // 4 else _SMALL_PIECE
        count, at = count + len(places), end
    if size:
        crcs.append(read(size - FOOT, FOOT).view("<u4"))
    return np.concatenate(bounds), np.concatenate([np.zeros(0, np.uint32), *crcs])


def framed(file: BinaryIO, where: str) -> Iterator[bytes]:
    """The records of a file, compared with their checksums."""
    left, count = bytearray(), 0
    for piece in chain(_inflated(file, where), [b""]):
        left += piece
        at = 0
        while len(left) - at >= HEAD:
            head = np.frombuffer(bytes(left[at : at + HEAD]), np.uint8)
            length = int(head[:8].view("<u8")[0])
            if length > _LONGEST or _wrong_heads(head[None])[0]:
                raise CorruptError(
                    f"{where}: the length of record {count}, {length}, is damaged, or too large"
                )
            stop = at + HEAD + length
            if stop + FOOT > len(left):
                break
            text = bytes(left[at + HEAD : stop])
            if masked(crc32c()(text)) != int.from_bytes(left[stop : stop + FOOT], "little"):
                raise CorruptError(f"{where}: record {count} is damaged: it does not fit its checksum")
            yield text
            at, count = stop + FOOT, count + 1
        del left[:at]
    if left:
        raise CorruptError(f"{where} is cut: it ends within record {count}; write it again")


def _inflated(file: BinaryIO, where: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed if they are compressed, in pieces."""
    is_compressed = _is_compressed(file.read(HEAD))
    file.seek(0)
    if not is_compressed:
        while piece := file.read(_PIECE):
            yield piece
        return
    by, data = zlib.decompressobj(47), b""  # 47: gzip or zlib, as it says
    try:
        while data := data or file.read(_PIECE):
            if by.eof:  # another part follows
                by = zlib.decompressobj(47)
            yield by.decompress(data, _PIECE)
            data = by.unused_data if by.eof else by.unconsumed_tail
    except zlib.error as error:
        raise CorruptError(f"{where} cannot be decompressed: {error}; write it again") from error
    if not by.eof:
        raise CorruptError(f"{where} is cut: its compressed data has no end; write it again")
