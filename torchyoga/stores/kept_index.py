"""Where things lie in a file of another library: found out once, and kept in the cache for other processes.

An index is a few arrays of numbers and a little JSON, kept under the place of its file, so that the index of
a file that was written anew replaces the older one. It is believed only if it is whole, and of the file as it
is now; whatever is wrong with it, or with the cache, it is made anew, and nothing is said.

A kept index is the magic, a uint32 of the bytes of its head, the head in JSON, the arrays one after the
other, each of them from a multiple of 8 bytes on, and the CRC-32 of all before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import YogaError
from ..files.checksum import crc32
from ..files.regular import open_regular
from ..process.digests import hexdigest
from ..rows.types import Array, Json
from .address import is_url
from .cache import Cache, default_folder
from .kinds import Found

_MAGIC = b"yogaidx1"
_MOST_HEAD = 2**26  # bytes
_NUMBERS = re.compile(r"[<|][iuf][1248]")
_MOST = 16  # bytes of an index for each of its file: none is larger, so what claims to be is damaged
_ALIGNED = 8


@dataclass(frozen=True)
class FileIndex:
    """An index of a file.

    Attributes:
        arrays: numbers, by name: signed, unsigned or floats, of any shape; read only if they were kept.
        info: whatever else it says, as JSON has it.
    """

    arrays: Mapping[str, Array]
    info: Json = field(default_factory=dict)


@dataclass(frozen=True)
class IndexOf:
    """Which file an index is of.

    Attributes:
        where: its path or URL.
        nbytes: its size.
        tag: what tells it from later contents of its name and size; None if nothing does, and then no index
            of it is kept.
        kind: the kind of index and its version, such as "tfrecord 1": another one is another index.
    """

    where: str
    nbytes: int
    tag: str | None
    kind: str

    @staticmethod
    def file(path: str | os.PathLike[str], kind: str) -> IndexOf:
        """Of a file of this machine as it is now; OSError if there is none."""
        about = os.stat(path)
        # The second time also changes where a copy has got the first one of its original.
        return IndexOf(os.path.abspath(path), about.st_size, f"{about.st_mtime_ns} {about.st_ctime_ns}", kind)

    @staticmethod
    def remote(url: str, about: Found, nbytes: int, kind: str) -> IndexOf:
        """Of an object of a store, as the store describes it."""
        return IndexOf(url, nbytes, about.state, kind)

    @property
    def key(self) -> str:
        """The name of the index in a cache."""
        return f"{hexdigest(self.kind, chr(0), os.fsencode(self.where))}.index"

    def is_still_so(self) -> bool:
        """False if a file of this machine has changed since."""
        return is_url(self.where) or self == IndexOf.file(self.where, self.kind)


def cache_of(cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None) -> Cache:
    """The cache of these arguments, by default that of the user; nothing is made there."""
    return Cache(
        default_folder() if cache_dir is None else Path(cache_dir).expanduser().absolute(), cache_bytes
    )


def kept_index(
    of: IndexOf,
    make: Callable[[], FileIndex],
    cache: Cache,
    check: Callable[[FileIndex], object] = lambda _: None,
) -> FileIndex:
    """The index of a file: as it is kept in a cache, or made now and kept there.

    Any number of processes may ask for it: each of those that find none makes it. One that is damaged, of
    another kind or of the file as it was before is made anew; a cache that cannot be read or written is no
    error. If the file changes while the index is made, that is not kept.

    Args:
        of: the file, as it was found: `IndexOf.file(path, kind)`, `IndexOf.remote(url, about, nbytes, kind)`.
        make: reads the file; its errors are passed on, and nothing is kept then.
        cache: `cache_of(cache_dir, cache_bytes)`, or that of `ShardDownloads`. An index counts
            among its files.
        check: raises a ValueError, TypeError or KeyError for an index that `make` cannot have made.

    Example:
        >>> _ = (tmp_path / "x.txt").write_text("one\\ntwo")
        >>> of = IndexOf.file(tmp_path / "x.txt", "ends of lines 1")
        >>> made = lambda: FileIndex({"ends": np.array([3, 7])}, {"lines": 2})
        >>> for _ in range(2):  # the second one is read
        ...     index = kept_index(of, made, cache_of(tmp_path / "cache", None))
        >>> index.arrays["ends"].tolist(), index.info
        ([3, 7], {'lines': 2})
    """
    if of.tag is None:
        return make()
    with contextlib.suppress(
        OSError, YogaError, ValueError, TypeError, KeyError, OverflowError, RecursionError
    ):
        path = cache.find(of.key)
        if path is not None:
            with open(open_regular(path), "rb") as file:
                kept = _read(file, of)
            check(kept)
            return kept
    made = make()
    check(made)
    with contextlib.suppress(OSError, YogaError):
        if of.is_still_so():
            _keep(of, made, cache)
    return made


def _read(file: BinaryIO, of: IndexOf) -> FileIndex:
    """The index in a file; ValueError, TypeError or KeyError if it is damaged, or not of this."""
    nbytes = os.fstat(file.fileno()).st_size
    if not len(_MAGIC) + 8 <= nbytes <= _MOST_HEAD + _MOST * of.nbytes:
        raise ValueError("an index of another size")
    data = memoryview(file.read(nbytes))
    (crc,) = struct.unpack("<I", data[-4:])
    if data[: len(_MAGIC)] != _MAGIC or len(data) != nbytes or crc32(data[:-4]) != crc:
        raise ValueError("a damaged index")
    (length,) = struct.unpack_from("<I", data, len(_MAGIC))
    at = len(_MAGIC) + 4 + length
    head = json.loads(bytes(data[at - length : at]))
    if head["of"] != asdict(of):
        raise ValueError("an index of another file")
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if not _NUMBERS.fullmatch(dtype):
            raise ValueError(f"numbers of {dtype!r:.20}")
        count = int(np.prod([1, *shape], dtype=object))
        if count < 0:
            raise ValueError(f"an array of {count} numbers")
        arrays[name] = np.frombuffer(data[:-4], dtype, count, at).reshape(shape)
        at += arrays[name].nbytes + -arrays[name].nbytes % _ALIGNED
    return FileIndex(arrays, dict(head["info"]))


def _keep(of: IndexOf, index: FileIndex, cache: Cache) -> None:
    arrays = {name: np.asarray(array, order="C") for name, array in index.arrays.items()}
    told = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    if not all(_NUMBERS.fullmatch(array.dtype.str) for array in arrays.values()):
        raise TypeError(f"an index of arrays of numbers can be kept, not of {told!r:.200}")
    head = json.dumps({"of": asdict(of), "arrays": told, "info": index.info}).encode()
    head += b" " * (-(len(_MAGIC) + 4 + len(head)) % _ALIGNED)
    pieces: list[bytes | memoryview] = [_MAGIC + struct.pack("<I", len(head)) + head]
    for array in arrays.values():
        pieces += [array.reshape(-1).view("u1").data, bytes(-array.nbytes % _ALIGNED)]
    if len(head) > _MOST_HEAD or sum(map(len, pieces)) > _MOST_HEAD + _MOST * of.nbytes:
        return
    crc = 0
    name = f"parts/{of.key.partition('.')[0]}-{secrets.token_hex(4)}.index"
    try:
        with cache.root.in_folder(name, cache.root.create) as file:
            for piece in pieces:
                file.write(piece)
                crc = crc32(piece, crc)
            file.write(struct.pack("<I", crc))
        cache.adopt(of.key, name)
        cache.delete_old_indices()
    finally:
        cache.root.unlink(name)
