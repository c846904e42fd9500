"""Parquet files -> their footers, which say what is where; read once in a process as long as a file stays.

A file is known by a digest of its footer. It is the same for the same file elsewhere, and another one if the
file is written again: the footer has the place and the size of each column of each group, and mostly its
smallest and largest value.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptError, SchemaError
from ...process.forks import renew_in_children
from .places import Identity, Place
from .thrift import Chunks, chunks_of

__all__ = ["Footer", "footers_of"]

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_FIRST_READ = 64 * 2**10  # bytes at the end of a file, most of which hold the whole footer
_KEPT_BYTES = 128 * 2**20  # of footers, as they are in files
_THREADS = 16


@dataclass(frozen=True)
class Footer:
    """A file, and what its footer was when it was opened.

    Attributes:
        place: the file.
        identity: its size and time then.
        digest: of the bytes of the footer.
    """

    place: Place
    identity: Identity
    digest: str

    @property
    def metadata(self) -> pq.FileMetaData:
        """What the footer says.

        Raises:
            CorruptError: the file has changed since it was opened.
        """
        return self._read()[1]

    @property
    def chunks(self) -> Chunks:
        """Where its columns lie; errors as `metadata`."""
        return self._read()[2]

    def _read(self) -> _Read:
        found = _read(self.place, self.identity)
        if found[0] != self.digest:
            raise self.changed()
        return found

    def check(self) -> None:
        """Raises CorruptError if the file is another one by now."""
        now = self.place.identity()
        if now == self.identity:
            return
        if now.nbytes != self.identity.nbytes or _read(self.place, now)[0] != self.digest:
            raise self.changed()

    def changed(self) -> CorruptError:
        """An error that says so."""
        return CorruptError(f"{self.place.name} has changed since it was opened; open the files anew")


def footers_of(places: Sequence[Place]) -> list[Footer]:
    """The footers of files, read several at once.

    Raises:
        CorruptError: a file is empty, cut, or not a Parquet file.
        SchemaError: it is encrypted.
        RemoteError: it cannot be read.
    """
    if len(places) == 1:
        return [_footer_of(places[0])]
    with ThreadPoolExecutor(min(_THREADS, len(places)), thread_name_prefix="torchyoga-footers") as pool:
        return list(pool.map(_footer_of, places))


def _footer_of(place: Place) -> Footer:
    identity = place.identity()
    return Footer(place, identity, _read(place, identity)[0])


def _read(place: Place, identity: Identity) -> _Read:
    """The digest of a footer, what it says, and of its columns; read if this process does not know it."""
    key = place.name, identity
    found = _known.get(key)
    if found is None:
        raw = _raw(place, identity.nbytes)
        try:
            chunks = chunks_of(raw[:-8])
            if chunks.are_encrypted:
                raise _is_encrypted(place.name)
            metadata = pq.read_metadata(pa.BufferReader(_MAGIC + raw))
            described = [metadata.schema.column(index) for index in range(metadata.num_columns)]
            if not chunks.fit([(one.max_repetition_level, one.max_definition_level) for one in described]):
                raise ValueError("a column has counts of levels that it does not have")
        except SchemaError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise CorruptError(
                f"{place.name}: its footer is damaged: {error}; write the file again"
            ) from error
        found = hashlib.blake2b(raw, digest_size=16).hexdigest(), metadata, chunks
        _known.add(key, found, len(raw))
    return found


def _raw(place: Place, nbytes: int) -> bytes:
    """The bytes of a footer, with its length and the magic number at its end."""
    name = place.name
    if not nbytes:
        raise CorruptError(f"{name} is empty, it has 0 bytes; write it again, or leave it out")
    (tail,) = place.read([(max(0, nbytes - _FIRST_READ), nbytes)], nbytes)
    magic, length = tail[-4:], int.from_bytes(tail[-8:-4], "little") + 8
    if magic == _ENCRYPTED:
        raise _is_encrypted(name)
    if magic != _MAGIC or len(tail) < 12:
        (head,) = place.read([(0, min(4, nbytes))], nbytes)
        if head == _MAGIC:
            raise CorruptError(
                f"{name} is cut: it begins as a Parquet file and does not end as one; write it again"
            )
        raise CorruptError(
            f"{name} is not a Parquet file; pass Parquet files only, as by a pattern *.parquet"
        )
    if length > nbytes - 4:
        raise CorruptError(
            f"{name} is damaged: its footer has {length} bytes, the file {nbytes}; write it again"
        )
    if length > len(tail):
        (tail,) = place.read([(nbytes - length, nbytes)], nbytes)
    return tail[-length:]


def _is_encrypted(name: str) -> SchemaError:
    return SchemaError(f"{name} is encrypted, which is not supported; write a copy that is not")


_Read: TypeAlias = "tuple[str, pq.FileMetaData, Chunks]"


class _Known:
    """The footers that this process has read, as many as fit."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, tuple[_Read, int]] = OrderedDict()
        self._nbytes = 0
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child."""
        self._lock = threading.Lock()

    def get(self, key: object) -> _Read | None:
        """A digest and a footer; None if it is not known."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def add(self, key: object, found: _Read, nbytes: int) -> None:
        """Keeps a footer; the ones used least recently make room."""
        with self._lock:
            if key not in self._found:
                self._nbytes += nbytes
            self._found[key] = found, nbytes
            while self._nbytes > _KEPT_BYTES and len(self._found) > 1:
                _, (_, dropped) = self._found.popitem(last=False)
                self._nbytes -= dropped


_known = _Known()
