"""Arrays of a Zarr group -> rows by number, by zarr-python: chunks are decoded once, and kept while there is
room."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import CorruptError, NotFoundError, RemoteError, SchemaError
from ...process.digests import json_digest
from ...process.lazy import cached_property
from ...process.numbers import spread
from ...process.stages import Stage, timed
from ...reading.dataref import DataRef
from ...reading.readahead import Prefetch
from ...reading.stored_ref import StoredRef, Threads
from ...rows.block import Block, Data, bounds_of
from ...rows.schema import Projection, Schema
from ...rows.types import Array, Ints, Json
from ...stores.address import directory_of, is_url
from ...stores.objects import Objects
from ..groups import GroupWords, RowGroups, contiguous

if TYPE_CHECKING:
    import zarr

Columns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"
Place: TypeAlias = "zarr.Group | zarr.Array[Any] | Objects | str"
_MOST_GROUPS = 2**20  # chunks of an array; of more, several are read as one, for each takes memory
_MOST_NAMED = 20  # arrays in a message
_MOST_LOOKED, _DEEPEST = 200, 8  # arrays whose names are compared, and groups within each other
_SAMPLES = 4  # rows of each array, for a name of the content
_THREADS = 8
_WORDS = GroupWords("chunk", "chunks", "from_zarr")
_KINDS = {"VariableLengthUTF8": "T", "VariableLengthBytes": "O"}  # of types of Zarr's own
_PICKLES = re.compile(r'"(id|name)": "[^"]*pickle')


def from_zarr(
    group: zarr.Group | zarr.Array[Any] | str | os.PathLike[str],
    columns: Columns | None = None,
    *,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> DataRef:
    """Arrays of a Zarr group as a DataRef, read where they lie by zarr-python: formats 2 and 3.

    A chunk is decoded as a whole when a row of it is wanted, and kept while there is room. So
    `shuffle="block"` and reading in order decode each chunk once an epoch; a full shuffle of more than fits
    decodes one for nearly every row, and warns.

    Args:
        group: a path, a URL of fsspec such as s3://, or a group or array that is open. Each process opens a
            path or URL by itself.
        columns: the name of an array, whose values are the rows; or names, or a dict of names, for rows that
            are dicts; by default all arrays of the group, or the array itself. Rows lie along the first axis.
        cache_bytes: of decoded chunks that are kept in each process; by default a quarter of the memory that
            its control group has left, which workers and ranks share.
        storage_options: for fsspec's filesystem.

    Rows are what `array[i]` gives, in this machine's byte order; text is `str`, a compound value a dict.
    A chunk that is not there has the fill value, as the format says; whether a damaged one is noticed is up
    to its codecs: gzip and crc32c have checksums, blosc and zstd mostly do not.

    Raises:
        NotFoundError: there is no such group or array; the message lists those that there are.
        SchemaError: the arrays have different numbers of rows, or hold what cannot be rows; or objects, which
            pickle writes.
        CorruptError: their metadata is damaged. When rows are read: a chunk is damaged.
        ValueError: when rows are read: a chunk is larger than `cache_bytes`.
        RemoteError: the store cannot be reached.
        ImportError: zarr is not installed.
    """
    place: Place
    if isinstance(group, (str, os.PathLike)):
        text = os.fspath(group)
        place = Objects(text, storage_options) if is_url(text) else str(directory_of(text))
    else:
        place = group
    return ZarrRef(_ZarrArrays(place, columns, cache_bytes, None))


class ZarrRef(StoredRef):
    """Rows of some arrays.

    Args:
        source: reads them.
        of: the columns; all by default.
    """

    def __init__(self, source: _ZarrArrays, of: Projection | None = None) -> None:
        schema = source.schema if of is None else of.schema
        super().__init__(source.name, schema, int(source.starts[-1]))
        self._source, self._of = source, of
        self._columns = tuple(range(len(schema.columns))) if of is None else of.columns

    def __reduce__(self) -> tuple[object, ...]:
        return ZarrRef, (self._source, self._of)

    def _block(self, rows: Ints) -> Block:
        with timed(Stage.READ):
            return Block(self._schema, len(rows), tuple(self._source.gather(rows, self._columns)))

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        return ZarrRef(self._source, of if self._of is None else self._of.then(of))

    @property
    def file_starts(self) -> Ints:
        """The row at which each chunk begins."""
        return self._source.starts

    @property
    def fingerprint(self) -> str:
        """A name for the content."""
        return self._source.content if self._of is None else self._of.pinned(self._source.content)

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row of the arrays that it has columns of."""
        return sum(part.row_bytes for part in {self._source._owners[number][0] for number in self._columns})

    @property
    def _prefetch(self) -> Prefetch | None:
        """The thread that decodes the next chunk, where there are several."""
        return self._source.prefetch


def _opened(place: Place) -> Any:
    """The group or array at a place."""
    try:
        import zarr
    except ImportError:
        raise ImportError("from_zarr needs zarr; pip install 'torchyoga[zarr]'") from None
    if not isinstance(place, (str, Objects)):
        return place
    options = None
    if isinstance(place, Objects):
        options = dict(place.options) or None
        place = place.url
    elif not os.path.exists(place):
        raise NotFoundError(f"there is no {place}; pass the path of a Zarr group or array")
    try:
        return zarr.open(store=place, mode="r", storage_options=options)
    except FileNotFoundError as error:
        raise NotFoundError(f"{place} is not a Zarr group or array: {error}") from error
    except OSError as error:
        raise RemoteError(f"{place} cannot be read: {error}") from error
    except Exception as error:
        raise CorruptError(f"{place} is not a Zarr group or array, or is damaged: {error}") from error


def _listing(root: Any, name: str = "") -> str:
    """The arrays in a group and in those within it, those of similar names first."""
    arrays = dict(islice(_within(root), _MOST_LOOKED))
    close = get_close_matches(name, arrays, _MOST_NAMED)
    there = [f"{one!r} {arrays[one]}" for one in dict.fromkeys([*close, *arrays])]
    more = ", ..." if len(there) > _MOST_NAMED else ""
    return f"its arrays are {', '.join(there[:_MOST_NAMED])}{more}" if there else "it has no arrays"


def _within(group: Any, before: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of the arrays in a group, then those of the groups in it."""
    yield from ((before + name, array.shape) for name, array in sorted(group.arrays()))
    for name, inner in sorted(group.groups()) if before.count("/") < _DEEPEST else []:
        yield from _within(inner, f"{before}{name}/")


def _arrays_of(root: Any, columns: Columns | None, title: str) -> dict[str, Any]:
    """The arrays by key; the key is "" where an array's values are the rows."""
    import zarr

    if isinstance(root, zarr.Array):
        if columns is not None:
            raise SchemaError(f"{title} is an array, so it has no columns to choose; pass its group")
        return {"": root}
    try:
        if columns is None:
            arrays = dict(sorted(root.arrays()))
            if not arrays:
                name = next((name for name, _ in _within(root)), "")
                if not name:
                    raise NotFoundError(f"{title} has no arrays")
                raise NotFoundError(
                    f"the arrays of {title} lie in groups: name one of these, as in "
                    f"{title.rstrip('/')}/{name.rpartition('/')[0]}, or arrays, as in "
                    f"columns={{'x': {name!r}}}; {_listing(root)}"
                )
            return arrays
        if isinstance(columns, str):
            named = {"": columns}
        else:
            named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
        if not named or not all(isinstance(text, str) for pair in named.items() for text in pair):
            raise SchemaError(f"columns must be a name, names, or a dict of names; found {columns!r:.200}")
        arrays = {}
        for key, name in named.items():
            if any(part in ("", ".", "..") for part in name.split("/")):
                raise NotFoundError(f"{title} has no {name!r}; {_listing(root, name)}")
            try:
                arrays[key] = root[name]
            except KeyError:
                raise NotFoundError(f"{title} has no {name!r}; {_listing(root, name)}") from None
            if not isinstance(arrays[key], zarr.Array):
                raise NotFoundError(f"{title}: {name!r} is a group, not an array; {_listing(root, name)}")
    except (NotFoundError, SchemaError):
        raise
    except (ValueError, TypeError, KeyError) as error:
        if "pickle" in str(error):
            raise SchemaError(
                f"{title} has an array of objects that pickle has written, which can run code ({error}); "
                "pass columns= without it, or write it again as text or numbers"
            ) from error
        raise CorruptError(f"{title} cannot be read: {error}") from error
    return arrays


class _ZarrArrays:
    """The rows of some arrays, which each process opens by itself; several threads may call it.

    Args:
        place: where they are.
        columns: as of `from_zarr`.
        cache_bytes: as of `from_zarr`.
        known: a digest of what describes the arrays, which may not have changed since; None at first.
    """

    def __init__(
        self, place: Place, columns: Columns | None, cache_bytes: int | None, known: str | None
    ) -> None:
        self._given = place, columns, cache_bytes
        root = _opened(place)
        self.name = place if isinstance(place, str) else getattr(place, "url", None) or str(root.store_path)
        arrays = _arrays_of(root, columns, self.name)
        self._described = json_digest([[key, _description(array)] for key, array in arrays.items()])
        if known not in (None, self._described):
            raise NotFoundError(f"{self.name} has changed since this DataRef was made; open it again")
        lengths = {key: array.shape[0] if array.shape else -1 for key, array in arrays.items()}
        if len(set(lengths.values())) != 1 or -1 in lengths.values():
            raise SchemaError(
                f"{self.name}: the arrays have different numbers of rows: {lengths}; rows go along the first "
                "axis, so name in columns= those that belong together"
            )
        self._opened: tuple[int, dict[str, Any]] = os.getpid(), arrays
        threads = Threads(_THREADS)
        share = None if cache_bytes is None else cache_bytes // len(arrays)
        self._parts = [_Part(self, key, array, share, threads) for key, array in arrays.items()]
        largest = max(self._parts, key=lambda part: part.row_bytes)
        self.starts, self.prefetch = largest.starts, largest.groups if len(largest.starts) > 1 else None
        rows = {part.key: part.example for part in self._parts}
        self.schema = Schema.of(rows.get("", rows))
        self._owners = [(part, nth) for part in self._parts for nth in range(part.num_columns)]

    prefetch: Prefetch | None

    def __reduce__(self) -> tuple[object, ...]:
        return _ZarrArrays, (*self._given, self._described)

    @property
    def is_remote(self) -> bool:
        """True if it lies behind a URL."""
        return isinstance(self._given[0], Objects)

    @cached_property
    def content(self) -> str:
        """A name made of what describes the arrays, and of some rows."""
        rows = spread(int(self.starts[-1]), _SAMPLES)
        some = [self._described, len(rows)]
        if len(rows):
            every = self.gather(rows, range(len(self._owners)))
            for data, column in zip(every, self.schema.columns, strict=True):
                some += [np.ascontiguousarray(data.part(part)).tobytes().hex() for part in column.parts]
        return json_digest(some)

    def gather(self, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns; no other arrays are read."""
        blocks: dict[str, Block] = {}
        for part, _ in map(self._owners.__getitem__, columns):
            if part.key not in blocks:
                blocks[part.key] = part.groups.take(rows)
        return [blocks[part.key].data[nth] for part, nth in map(self._owners.__getitem__, columns)]

    def array(self, key: str) -> Any:
        """An array, opened by this process if it has been named by a path or URL."""
        pid, arrays = self._opened
        if pid != os.getpid() and isinstance(self._given[0], (str, Objects)):
            arrays = _arrays_of(_opened(self._given[0]), self._given[1], self.name)
            self._opened = os.getpid(), arrays
        return arrays[key]


def _description(array: Any) -> Json:
    """The description of an array, as JSON without its attributes; SchemaError if its values are pickled."""
    said = {key: value for key, value in array.metadata.to_dict().items() if key != "attributes"}
    text = json.dumps(said, default=str)
    if _PICKLES.search(text):
        raise SchemaError(f"{array.store_path} is written by pickle, which can run code; write it again")
    return {"description": text}


class _Part:
    """One array: its columns, and its chunks along the first axis.

    Attributes:
        key: of its values in a row.
        example: a row of it; `row_bytes`: its size.
        starts: where groups begin: rows of a chunk, or of several.
    """

    def __init__(self, owner: _ZarrArrays, key: str, array: Any, share: int | None, threads: Threads) -> None:
        self.key, self._owner = key, owner
        self._where = f"{owner.name}: array {array.name or key!r}"
        length, inner = int(array.shape[0]), tuple(map(int, array.shape[1:]))
        dtype = np.dtype(array.dtype)
        kind = "T" if type(array.dtype).__name__ == "StringDType" else dtype.kind
        if kind == "O":
            kind = _KINDS.get(type(array.metadata.dtype).__name__, "")
        self._fields = dtype.names if kind == "V" else None
        try:
            if self._fields:
                self.example: Any = {
                    name: _example(dtype[name].base.kind, dtype[name].base, (*inner, *dtype[name].shape))
                    for name in self._fields
                }
            else:
                self.example = _example(kind, dtype, inner)
            self._schema = Schema.of(self.example)
        except ValueError as error:
            raise SchemaError(
                f"{self._where} has values of {array.metadata.dtype} and the shape {inner}, which cannot be "
                f"rows: {error}"
            ) from error
        self.num_columns = len(self._schema.columns)
        self.row_bytes = dtype.itemsize * int(np.prod(inner, dtype=np.float64))
        step = max(1, min(int(array.chunks[0]), length))
        step *= max(1, -(-length // (step * _MOST_GROUPS)))
        self.starts = np.append(np.arange(0, length, step), length)
        nbytes = np.full(len(self.starts) - 1, step * self.row_bytes)
        self.groups = RowGroups(self._where, self.starts, nbytes, self._decoded, share, _WORDS, threads)

    def _decoded(self, group: int) -> Block:
        start, stop = int(self.starts[group]), int(self.starts[group + 1])
        try:
            values = self._owner.array(self.key)[start:stop]
        except (MemoryError, NotFoundError, RemoteError):
            raise
        except Exception as error:  # of any codec
            if isinstance(error, OSError) and self._owner.is_remote:
                raise RemoteError(f"{self._where} cannot be read: {error}") from error
            raise CorruptError(
                f"{self._where}: rows {start} to {stop - 1} cannot be read; their chunk is damaged: {error!r}"
            ) from error
        parts: Iterable[Array] = [values[name] for name in self._fields] if self._fields else [values]
        columns = self._schema.columns
        data = [
            _data(part, column.is_ragged, column.storage) for part, column in zip(parts, columns, strict=True)
        ]
        return contiguous(Block(self._schema, stop - start, tuple(data)))


def _example(kind: str, dtype: np.dtype[Any], inner: tuple[int, ...]) -> object:
    """A row of such values; ValueError if there is none."""
    if kind in "UTSO" and kind:
        if inner:
            raise ValueError("several texts a row")
        return "" if kind in "UT" else b""
    if not kind or kind not in "biufcmM":
        raise ValueError("they are neither numbers, nor times, text or bytes")
    zero = np.zeros((), dtype.newbyteorder("="))
    return np.broadcast_to(zero, inner) if inner else zero[()]


def _data(values: Array, is_ragged: bool, dtype: np.dtype[np.generic]) -> Data:
    if not is_ragged:
        return Data(np.ascontiguousarray(values, values.dtype.newbyteorder("=")).astype(dtype, copy=False))
    texts = [bytes(value) if isinstance(value, bytes) else str(value).encode() for value in values.tolist()]
    return Data(np.frombuffer(bytearray().join(texts), np.uint8), bounds_of(map(len, texts)))
