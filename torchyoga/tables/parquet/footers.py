"""Parquet files -> their footers, which say what is where; read once in a process as long as a file stays.

A file is known by a digest of its footer. It is the same for the same file elsewhere, and another one if the
file is written again: the footer has the place and the size of each column of each group, and mostly its
smallest and largest value.

pyarrow ends the process when it is asked about a column whose description is damaged or encrypted. So footers
are read here first: in Thrift's compact protocol, and only what is needed.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptError, SchemaError
from ...process.digests import hexdigest
from ...process.forks import renew_in_children
from ...rows.types import Ints
from .places import Identity, Place

__all__ = ["chunks_of", "Footer", "footers_of"]

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_FIRST_READ = 64 * 2**10  # bytes at the end of a file, most of which hold the whole footer
_NOTED, _SET_ASIDE = b"ARROW:schema", b"arrow:schema"  # keys of the types that a writer notes for Arrow
_KEPT_BYTES = 128 * 2**20  # of footers, as they are in files
_THREADS = 16
_log = logging.getLogger("torchyoga")
_MOST_DEPTH = 16
_BYTE_ARRAY = 6  # the type of text and bytes
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
# What is read of a value: a number, some fields of a struct, or of each struct in a list.
Wanted: TypeAlias = "type[int] | dict[int, Wanted] | list[Wanted]"
_NUMBERS: dict[int, Wanted] = {
    1: int,
    6: int,
    7: int,
    9: int,
    11: int,
    12: {3: int},
    16: {1: int, 2: [int], 3: [int]},
}
_CHUNK: dict[int, Wanted] = {3: _NUMBERS, 8: {}}
_FOOTER: dict[int, Wanted] = {2: [{1: int}], 4: [{1: [_CHUNK]}], 8: {}}


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
        """The contents of the footer.

        Raises:
            CorruptError: the file has changed since it was opened.
        """
        return self._read()[1]

    @property
    def chunks(self) -> _Chunks:
        """Where its columns lie; errors as `metadata`."""
        return self._read()[2]

    @property
    def int96_columns(self) -> tuple[int, ...]:
        """The numbers of columns that hold times of 96 bits; errors as `metadata`."""
        return self._read()[3]

    @property
    def odd_columns(self) -> list[int]:
        """The numbers of columns whose type pyarrow cannot read: integers of 128 bits."""
        if _SET_ASIDE not in (self.metadata.metadata or {}):
            return []
        columns = [self.metadata.schema.column(index) for index in range(self.metadata.num_columns)]
        return [
            index
            for index, one in enumerate(columns)
            if one.physical_type == "FIXED_LEN_BYTE_ARRAY"
            and (one.length, one.logical_type.type) == (16, "NONE")
        ]

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
    """The digest of a footer, what it says, and of its columns, and those of 96 bits; read once."""
    key = place.name, identity
    found = _known.get(key)
    if found is None:
        raw = _raw(place, identity.nbytes)
        try:
            chunks = chunks_of(raw[:-8])
            if chunks.are_encrypted:
                raise _is_encrypted(place.name)
            metadata = _metadata(place.name, raw)
            described = [metadata.schema.column(index) for index in range(metadata.num_columns)]
            if not chunks.fit([(one.max_repetition_level, one.max_definition_level) for one in described]):
                raise ValueError("a column has counts of levels that it does not have")
        except SchemaError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise CorruptError(
                f"{place.name}: its footer is damaged: {error}; write the file again"
            ) from error
        int96 = tuple(index for index, one in enumerate(described) if one.physical_type == "INT96")
        found = hexdigest(raw), metadata, chunks, int96
        _known.add(key, found, len(raw))
    return found


def _metadata(name: str, raw: bytes) -> pq.FileMetaData:
    try:
        return pq.read_metadata(pa.BufferReader(_MAGIC + raw))
    except pa.ArrowNotImplementedError as error:
        # Of a type that it lacks pyarrow reads no column at all, unless it does not see what Arrow calls it.
        found = pq.read_metadata(pa.BufferReader(_MAGIC + raw.replace(_NOTED, _SET_ASIDE)))
        _log.warning(
            "%s: pyarrow cannot read the types that its writer noted (%s), so durations come as whole "
            "numbers, and times with a zone in UTC",
            name,
            error,
        )
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


_Read: TypeAlias = "tuple[str, pq.FileMetaData, _Chunks, tuple[int, ...]]"


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


class _Chunks(NamedTuple):
    """The runs of values of each column in each group; arrays are (groups, columns).

    Attributes:
        start: first byte in the file.
        stored: bytes there; `unpacked`: bytes before compression.
        nulls: -1 if it is not known.
        are_encrypted: True if a column is.
        levels: for each column of each group, how many repetition levels and definition levels are counted.
        defined: for each column of each group, how often each definition level occurs; empty if not counted.
    """

    start: Ints
    stored: Ints
    unpacked: Ints
    nulls: Ints
    are_encrypted: bool
    levels: list[list[tuple[int, int]]]
    defined: list[list[Sequence[int]]]

    def fit(self, most: list[tuple[int, int]]) -> bool:
        """True if the columns have counts of levels such as those of the schema, or none.

        Args:
            most: for each column, the highest repetition level and the highest definition level.
        """
        return all(
            count in (0, highest + 1)
            for group in self.levels
            for counts, column in zip(group, most, strict=True)
            for count, highest in zip(counts, column, strict=True)
        )


def chunks_of(footer: bytes) -> _Chunks:
    """Places, sizes and counts of the columns, as a footer has them.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found = _Bytes(footer).struct(_FOOTER)
    except IndexError:
        raise ValueError("it ends in the middle of a value") from None
    types = [element[1] for element in found.get(2, []) if 1 in element]
    groups = [group.get(1, []) for group in found.get(4, [])]
    are_encrypted = 8 in found or any(8 in chunk for group in groups for chunk in group)
    rows, levels, defined = [], [], []
    for number, group in enumerate(groups if not are_encrypted else []):
        described = [chunk.get(3, {}) for chunk in group]
        if [one.get(1) for one in described] != types:
            raise ValueError(f"the columns of row group {number} are not of the types that the file has")
        rows.append([_row(one) for one in described])
        counted = [one.get(16, {}) for one in described]
        levels.append([(len(one.get(2, ())), len(one.get(3, ()))) for one in counted])
        defined.append([one.get(3, ()) for one in counted])
        if any(1 in one and kind != _BYTE_ARRAY for one, kind in zip(counted, types, strict=True)):
            raise ValueError(f"a column of row group {number} has the size of texts, and holds none")
    table = np.array(rows, np.int64).reshape(len(rows), len(types), 4)
    if (table[..., :3] < 0).any():
        raise ValueError("a column begins before the file, or has fewer than 0 bytes")
    return _Chunks(table[..., 0], table[..., 1], table[..., 2], table[..., 3], are_encrypted, levels, defined)


def _row(chunk: dict[int, object]) -> tuple[int, ...]:
    numbers = {field: value for field, value in chunk.items() if isinstance(value, int)}
    start, first = numbers.get(9, 0), numbers.get(11, 0)
    statistics = chunk.get(12)
    nulls = statistics.get(3, -1) if isinstance(statistics, dict) else -1
    return (min(start, first) if first > 0 else start, numbers.get(7, 0), numbers.get(6, 0), nulls)


class _Bytes:
    """Values of Thrift's compact protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0

    def varint(self) -> int:
        """An unsigned number."""
        data, at, found, shift = self.data, self.at, 0, 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return found
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")

    def value(self, kind: int, wanted: Wanted) -> Any:
        """The wanted parts of a value of this kind."""
        if isinstance(wanted, dict) and kind == _STRUCT:
            return self.struct(wanted)
        if isinstance(wanted, list) and kind == _LIST:
            item, count = self.head_of_list()
            return [self.value(item, wanted[0]) for _ in range(count)]
        if wanted is int and _BYTE < kind < _DOUBLE:
            found = self.varint()
            return (found >> 1) ^ -(found & 1)
        raise ValueError("a value is of another kind than it should be")

    def struct(self, wanted: dict[int, Wanted]) -> dict[int, Any]:
        """The wanted fields of a struct."""
        found: dict[int, Any] = {}
        field = 0
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ValueError("it nests too deeply")
        while True:
            head = self.data[self.at]
            self.at += 1
            kind, delta = head & 15, head >> 4
            if kind == _STOP:
                self.depth -= 1
                return found
            if delta:
                field += delta
            else:
                number = self.varint()
                field = (number >> 1) ^ -(number & 1)
            if field in wanted:
                found[field] = self.value(kind, wanted[field])
            else:
                self.skip(kind)

    def head_of_list(self) -> tuple[int, int]:
        """The kind and the number of the items of a list."""
        head = self.data[self.at]
        self.at += 1
        count = head >> 4
        if count == 15:
            count = self.varint()
        if count > len(self.data) - self.at:
            raise ValueError("a list is longer than the footer")
        return head & 15, count

    def skip(self, kind: int) -> None:
        """Goes behind a value."""
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.at += 1
        elif kind < _DOUBLE:
            self.varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            nbytes = self.varint()
            self.at += nbytes
        elif kind in (_LIST, _SET):
            item, count = self.head_of_list()
            for _ in range(count):
                self.skip(_BYTE if item in (_TRUE, _FALSE) else item)
        elif kind == _MAP:
            count = self.varint()
            kinds = self.data[self.at] if count else 0
            self.at += bool(count)
            if count > len(self.data):
                raise ValueError("a map is longer than the footer")
            for _ in range(count):
                self.skip(kinds >> 4)
                self.skip(kinds & 15)
        elif kind == _STRUCT:
            self.struct({})
        else:
            raise ValueError(f"there is no kind {kind} of values")
