"""Parquet files -> their footers, which say what is where; parsed once on a machine as long as a file stays.

A file is known by a digest of its footer. It is the same for the same file elsewhere, and another one if the
file is written again: the footer has the place and the size of each column of each group, and mostly its
smallest and largest value.

A value of Parquet's has a definition level: how many of the places above it that may be null, or hold any
number of items, do hold something. So how often a footer counts each level tells null lists from empty ones,
which the count of nulls does not (https://parquet.apache.org/docs/file-format/nestedencoding/).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptError, SchemaError
from ...process.digests import hexdigest
from ...process.threads import renew_in_children
from ...rows.block import bounds_of
from ...rows.node import ITEMS, Path, path_name
from ...rows.types import Array, Ints
from ...stores.cache import FileIndex, IndexOf, cache_of, kept_index
from ..buffers import is_list, num_leaves, storage_type, type_without_views
from .places import Place
from .thrift import described

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_FIRST_READ = 64 * 2**10  # bytes at the end of a file, most of which hold the whole footer
INT96_UNIT = "us"  # of times of 96 bits: it is Spark's, and has room for all years
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
    identity: IndexOf
    digest: str

    @property
    def metadata(self) -> pq.FileMetaData:
        """The contents of the footer.

        Raises:
            CorruptError: the file has changed since it was opened.
        """
        return self._read(self.identity)

    def check(self) -> None:
        """Raises CorruptError if the file is another one by now."""
        now = self.place.identity()
        if now.nbytes != self.identity.nbytes:
            raise self.changed()
        if now != self.identity:
            self._read(now)

    def changed(self) -> CorruptError:
        """An error that says so."""
        return CorruptError(f"{self.place.name} has changed since it was opened; open the files anew")

    def _read(self, identity: IndexOf) -> pq.FileMetaData:
        """The contents of the footer of a file as it is now, if it is the one that was parsed before."""
        key = identity, self.digest
        found = _known.get(key)
        if found is None:
            raw = _raw(self.place, identity.nbytes)
            if hexdigest(raw) != self.digest:
                raise self.changed()
            found = _metadata(raw)
            _known.add(key, found, len(raw))
        return found


class FileFields(NamedTuple):
    """The fields of a file.

    Attributes:
        schema: Arrow's.
        owners: (columns,) for each of Parquet's columns, the name of the field that it belongs to.
    """

    schema: pa.Schema
    owners: Sequence[str]

    def columns_of(self, name: str) -> Ints:
        """The numbers of the columns that hold a field."""
        return np.array([number for number, owner in enumerate(self.owners) if owner == name], np.int64)


class FooterIndex(NamedTuple):
    """What a footer says of groups and columns; arrays are (groups, columns).

    Attributes:
        footer: the file.
        fields: of the file.
        rows: (groups,) of each group.
        unpacked: bytes of the values, before compression.
        nulls: -1 if it is not known.
        counts: how many definition levels are counted; `defined`: how often each of them occurs, end to end.
    """

    footer: Footer
    fields: FileFields
    rows: Ints
    unpacked: Ints
    nulls: Ints
    counts: Ints
    defined: Ints

    def levels(self, column: int) -> Ints | None:
        """How often each definition level of a column occurs, in all groups; None if they are not counted."""
        counts = self.counts[:, column]
        if not counts.all() or len({*counts.tolist()}) != 1:
            return None
        starts = bounds_of(self.counts.reshape(-1))[:-1].reshape(self.counts.shape)[:, column]
        found: Ints = self.defined[starts[:, None] + np.arange(counts[0])].sum(axis=0)
        return found


def footers_of(places: Sequence[Place]) -> list[FooterIndex]:
    """What the footers of files say, read several at once.

    Raises:
        CorruptError: a file is empty, cut, or not a Parquet file.
        SchemaError: it is encrypted, or pyarrow cannot read its schema.
        RemoteError: it cannot be read.
    """
    if len(places) == 1:
        return [_index_of(places[0])]
    with ThreadPoolExecutor(min(_THREADS, len(places)), thread_name_prefix="torchyoga-footers") as pool:
        return list(pool.map(_index_of, places))


def _index_of(place: Place) -> FooterIndex:
    identity, found = place.identity(), list[FooterIndex]()
    kept_index(
        identity,
        lambda: _made(place, identity),
        cache_of(None, None),
        lambda index: found.append(_read(place, identity, index)),
    )
    return found[-1]


def _read(place: Place, identity: IndexOf, index: FileIndex) -> FooterIndex:
    """The footer that an index describes; ValueError, TypeError, KeyError or Arrow's if it describes none."""
    arrays, info = index.arrays, index.info
    fields = _fields_of(arrays["schema"].tobytes())
    rows, defined = arrays["rows"], arrays["defined"]
    unpacked, nulls, counts = arrays["unpacked"], arrays["nulls"], arrays["counts"]
    shape = (*rows.shape, len(fields.owners))
    is_sound = rows.ndim == 1 and unpacked.shape == nulls.shape == counts.shape == shape
    is_sound = is_sound and all(one.dtype == np.int64 for one in (rows, defined, unpacked, nulls, counts))
    is_sound = is_sound and rows.min(initial=0) >= 0 <= counts.min(initial=0)
    is_sound = is_sound and counts.sum() == defined.size
    if not is_sound or type(info["digest"]) is not str:
        raise ValueError("the arrays do not fit each other")
    footer = Footer(place, identity, info["digest"])
    return FooterIndex(footer, fields, rows, unpacked, nulls, counts, defined)


@lru_cache(256)
def _fields_of(schema: bytes) -> FileFields:
    """The fields of a serialized schema; one object for many files."""
    try:
        found = pa.ipc.read_schema(pa.py_buffer(schema))
    except pa.ArrowException as error:  # of a schema that was kept by another pyarrow
        raise ValueError(str(error)) from error
    return FileFields(found, [one.name for one in found for _ in range(num_leaves(one.type))])


def _made(place: Place, identity: IndexOf) -> FileIndex:
    """The index of a footer, which is parsed before pyarrow is asked about its columns."""
    name, raw = place.name, _raw(place, identity.nbytes)
    try:
        parsed = described(raw[:-8])
        if parsed is None:
            raise _is_encrypted(name)
        metadata = _metadata(raw)
        columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        levels = [(one.max_repetition_level + 1, one.max_definition_level + 1) for one in columns]
        if ((parsed.counts != 0) & (parsed.counts != np.array(levels, np.int64).reshape(-1, 2))).any():
            raise ValueError("a column has counts of levels that it does not have")
        # Some writers leave the number of all rows at 0.
        if parsed.rows.min(initial=0) < 0 or parsed.num_rows not in (0, parsed.rows.sum()):
            raise ValueError(f"its row groups have {parsed.rows.sum()} rows, but it says {parsed.num_rows}")
    except SchemaError:
        raise
    except pa.ArrowNotImplementedError as error:
        raise _is_unknown(name, error) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptError(f"{name}: its footer is damaged: {error}; write the file again") from error
    try:
        schema = metadata.schema.to_arrow_schema()
        if any(one.physical_type == "INT96" for one in columns):
            source = pa.BufferReader(b"")
            file = pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit=INT96_UNIT)
            schema = file.schema_arrow
    except (pa.ArrowException, NotImplementedError) as error:
        raise _is_unknown(name, error) from error
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaError(f"{place.name} has several columns called {twice[0]!r}; rename them")
    plain = pa.schema([field.with_type(type_without_views(field.type)) for field in schema])
    arrays: dict[str, Array] = {
        "schema": np.frombuffer(plain.serialize(), np.uint8),
        "rows": parsed.rows,
        "unpacked": parsed.unpacked,
        "nulls": parsed.nulls,
        "counts": parsed.counts[..., 1],
        "defined": parsed.defined,
    }
    info = {"digest": hexdigest(raw)}
    _known.add((identity, info["digest"]), metadata, len(raw))
    return FileIndex(arrays, info)


def _is_unknown(name: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"{name}: pyarrow cannot read its schema: {error}; write the file again with columns of other types"
    )


def _metadata(raw: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(_MAGIC + raw))


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


class _Known:
    """The footers that this process has read, as many as fit."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, tuple[pq.FileMetaData, int]] = OrderedDict()
        self._nbytes = 0
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes a new lock, in a forked child."""
        self._lock = threading.Lock()

    def get(self, key: object) -> pq.FileMetaData | None:
        """A footer; None if it is not known."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def add(self, key: object, found: pq.FileMetaData, nbytes: int) -> None:
        """Keeps a footer; the ones used least recently make room."""
        with self._lock:
            if key not in self._found:
                self._nbytes += nbytes
            self._found[key] = found, nbytes
            while self._nbytes > _KEPT_BYTES and len(self._found) > 1:
                _, (_, dropped) = self._found.popitem(last=False)
                self._nbytes -= dropped


_known = _Known()


_MOST_LOOKED_AT = 8  # groups


def nulls_below(name: str, files: Sequence[FooterIndex]) -> set[str] | None:
    """The places of a nested field that have nulls, if all files with it count levels; else None."""
    places = set[str]()
    for file in files:
        schema = file.fields.schema
        if name not in schema.names or pa.types.is_null(schema.field(name).type):
            continue
        if not is_nested(schema.field(name).type):
            return None
        counted = [file.levels(column) for column in file.fields.columns_of(name).tolist()]
        known = [levels for levels in counted if levels is not None]
        found = nulls_at(schema.field(name), known) if len(known) == len(counted) else None
        if found is None:
            return None
        places |= found
    return places


def some_groups(counts: Ints) -> list[int]:
    """Groups that show where a nested field has nulls.

    For each of its columns these are the first group that has some and the one that has the most; and the one
    in which all of its columns have some, as they do below a null.

    Args:
        counts: (groups, columns) nulls and empty lists in each; below 0 if that is not known.

    Example:
        >>> some_groups(np.array([[0, 0], [2, 0], [5, 1], [0, 9]]))
        [1, 2, 3]
    """
    known = np.where(counts < 0, np.iinfo(np.int64).max, counts)
    found = set()
    for column in [*known.T, known.min(axis=1)]:
        if column.any():
            found |= {int(np.flatnonzero(column)[0]), int(column.argmax())}
    return sorted(found)[:_MOST_LOOKED_AT]


def is_nested(of: pa.DataType) -> bool:
    """True for values that hold others."""
    return bool(pa.types.is_nested(storage_type(of)))


def nulls_at(field: pa.Field, columns: Sequence[Ints]) -> set[str] | None:
    """The places of a field that have nulls; None if the counts do not fit it.

    Args:
        field: Arrow's, as the file's schema says.
        columns: for each of its columns in the file, how often each definition level occurs.

    Example:
        >>> field = pa.field("tags", pa.list_(pa.string()))  # None, [], [None], ["a", "b"]
        >>> sorted(nulls_at(field, [np.array([1, 1, 1, 2])]))
        ['tags', 'tags{items}']
    """
    found = set[str]()
    try:
        left = _count(field, (field.name,), 0, list(columns), found)[0]
    except ValueError:
        return None
    return None if left else found


def _count(
    field: pa.Field, path: Path, level: int, columns: list[Ints], found: set[str]
) -> tuple[list[Ints], Ints]:
    """Finds nulls at a place and below; gives the columns that come next, and the first of its own."""
    here = level if field.nullable else None
    level += field.nullable
    kind = storage_type(field.type)
    inner: list[tuple[pa.Field, Path]] = []
    if pa.types.is_map(kind):
        level += 1
        inner = [(kind.key_field, (*path, ITEMS, "key")), (kind.item_field, (*path, ITEMS, "value"))]
    elif is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        level += 1
        inner = [(kind.value_field, (*path, ITEMS))]
    elif pa.types.is_struct(kind):
        inner = [(kind.field(i), (*path, kind.field(i).name)) for i in range(kind.num_fields)]
    firsts = []
    for one, below in inner:
        columns, first = _count(one, below, level, columns, found)
        firsts.append(first)
    if not inner:
        if not columns or len(columns[0]) != level + 1:
            raise ValueError("there are other columns, or other levels")
        firsts, columns = columns[:1], columns[1:]
    if here is not None and firsts[0][here]:
        found.add(path_name(path))
    return columns, firsts[0]
