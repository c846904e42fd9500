"""Files of JSON lines -> rows by number: lines are found once, and parsed when they are taken."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...errors import CorruptError, SchemaError
from ...files.checksum import crc32
from ...files.root import open_regular
from ...formats.mapped import Memory
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import spread
from ...reading.dataref import DataRef
from ...reading.in_place_ref import FileLayout, InPlaceRef, MappedShards, files_of
from ...rows.block import Block, Data, bounds_of
from ...rows.collector import Collector
from ...rows.column import Column
from ...rows.node import Node
from ...rows.schema import Schema
from ...rows.types import Array, Ints, Row
from ...stores.cache import FileIndex
from .named_files import NamedFiles

_KIND = "json lines 2"
_PIECE = 2**22  # bytes in which lines are looked for at once
_SAMPLE = 1000  # rows from which it is learned what all look like
_LONGEST = 2**28  # bytes of a line
# What is kept as it is, by the kind of a dtype.
_EXACT: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "c": {int, float}}
_BLANK = b" \t\r\n"
_IS_BLANK = np.isin(np.arange(256), list(_BLANK))
_DEEPEST = 80  # lists and dicts in each other that are looked into: rows cannot nest that deep


def from_jsonl(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: Schema | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """Files of JSON lines as a DataRef, read where they lie: only the places of lines are kept.

    Lines are found once, by reading the files; 16 bytes for each are kept in the cache, until a file changes.
    Files of this machine are mapped, those of a store are downloaded when they are needed, or some time
    before, into a folder of bounded size. Files that gzip or zstd has compressed are decompressed into it.

    Args:
        files: a path or URL, which may have wildcards; a folder, for all its files with `.jsonl` in their
            names; or a list of these.
        schema: the types of a row; by default 1,000 rows show them: spread over the files, or from the first
            file if files are in a store or compressed. Keys that some of these rows lack, or whose value is
            `null`, may be None. Lists whose lengths differ may have any length, others always have the length
            shown. A column of numbers is of floats if some have a fraction. Only fractions are rounded: any
            other number, text or `null` that a column cannot hold exactly is an error.
        storage_options: for fsspec's filesystem.
        cache_dir: where places of lines, and downloaded and decompressed files are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Rows are what `json.loads` gives, with all keys; a row may be any value. Blank lines are skipped.

    Raises:
        NotFoundError: there is no such file.
        ValueError: some files are of this machine, and some of a store.
        SchemaError: rows cannot be kept, or there are none. When read: a row does not fit the schema; the
            message names file and line.
        CorruptError: when read: a line is not JSON, or a file has changed since.
        RemoteError: the store cannot be reached.

    Example:
        >>> _ = (tmp_path / "notes.jsonl").write_text('{"text": "one", "ids": [1, 2]}\\n{"text": "two"}\\n')
        >>> ref = from_jsonl(tmp_path / "notes.jsonl", cache_dir=tmp_path / "cache")
        >>> ref[1], ref["ids"][0]
        ({'text': 'two', 'ids': None}, [1, 2])
    """
    named = NamedFiles.of(files, "*.jsonl*", storage_options, cache_dir, cache_bytes)
    lines, crcs, own = list[Ints](), list[int](), schema
    for number, index in enumerate(named.indices(_KIND, _lines)):
        lines.append(index.arrays["places"])
        crcs.append(index.info["crc"])
        if named.files.is_remote and own is None and len(lines[-1]):  # while the file is here
            own = _schema_of(named, [*[lines[-1][:0]] * number, lines[-1]])
    if not sum(map(len, lines)):
        raise SchemaError(f"{named.name}: there are no rows")
    own = own or _schema_of(named, lines)
    facts = json.dumps([own.to_json(), list(named.files.nbytes), crcs])
    places = np.concatenate(lines)
    content = hexdigest(facts, places.tobytes())
    starts = bounds_of(map(len, lines))
    return InPlaceRef(_LinesOfJson(named.name, named.files, starts, own, content, places))


def _schema_of(named: NamedFiles, lines: Sequence[Ints]) -> Schema:
    """The schema that some rows show, spread over files with these lines."""
    starts, places = bounds_of(map(len, lines)), np.concatenate(lines)
    text = _LinesOfJson(named.name, named.files, starts, Schema.of(""), "", places)
    rows = spread(len(places), _SAMPLE)
    values, seen = text.parsed(MappedShards(named.files, text.check), rows), _SeenKeys()
    for value in values:
        seen.add(value, ())
    return text.block(rows, values, None, lambda value: seen.fitted(value, ())).schema


def _lines(path: str) -> FileIndex:
    """(N, 2) `places` where the lines of a file that are not blank begin and end, and the `crc` of it all."""
    found, crc, done, begin, is_blank = [np.empty((0, 2), np.int64)], 0, 0, 0, True
    piece = b" "
    with open(open_regular(path), "rb") as file:
        while piece:
            piece = file.read(_PIECE)
            crc = crc32(piece, crc)
            data = np.frombuffer(piece or b"\n", np.uint8)  # the end of a file ends its last line
            ends = np.flatnonzero(data == 10)
            if len(ends):
                firsts = np.append(0, ends[:-1] + 1)
                blank = _IS_BLANK[data[firsts]]
                if blank.any():
                    solid = np.flatnonzero(~_IS_BLANK[data[: ends[-1]]])
                    blank &= solid.searchsorted(firsts) == solid.searchsorted(ends)
                blank[0] &= is_blank
                places = np.stack([firsts, ends], 1) + done
                places[0, 0] = begin
                found.append(places[~blank])
                begin, is_blank = int(places[-1, 1]) + 1, True
            is_blank = is_blank and bool(_IS_BLANK[data[max(begin - done, 0) :]].all())
            done += len(piece)
    every = np.concatenate(found)
    if (every[:, 1] - every[:, 0]).max(initial=0) > _LONGEST:
        raise CorruptError(f"{path} has a line of more than {_LONGEST} bytes; is it one of JSON lines?")
    return FileIndex({"places": every}, {"crc": crc})


@dataclass(frozen=True, eq=False)
class _LinesOfJson(FileLayout):
    """Rows that are lines.

    Attributes:
        places: (rows, 2) where each line begins and ends in its file.
    """

    places: Ints

    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory, Ints, Ints]:
        """Where lines lie in memory."""
        memory, origins = shards.hold(files_of(self.starts, rows))
        first, last = self.places[rows].T
        return memory, origins + first, last - first

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """Parsed rows, as columns."""
        data = self.block(rows, self.parsed(shards, rows), self.schema, self._fit).data
        return [data[number] for number in columns]

    def parsed(self, shards: MappedShards, rows: Ints) -> list[Row]:
        """The values on some lines."""
        memory, addresses, nbytes = self.spans(shards, rows)
        values = []
        for row, text in zip(rows.tolist(), memory.texts(addresses, nbytes), strict=True):
            try:
                values.append(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise CorruptError(f"{self.where(row)}: this is not JSON: {error}") from error
        return values

    def block(
        self, rows: Ints, values: Sequence[Row], schema: Schema | None, fit: Callable[[Row], Row]
    ) -> Block:
        """The block of values as JSON has them; SchemaError says where one is that does not fit."""
        collector, place = Collector(schema), 0
        try:
            for place, value in enumerate(values):
                collector.add(fit(value), place)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            problem = str(error).removeprefix(f"row {place} does not fit: ")
            raise SchemaError(
                f"{self.where(int(rows[place]))}: {problem}; pass a schema= that it fits"
            ) from error
        return collector.take()

    def where(self, row: int) -> str:
        """The file and the line of a row, for messages."""
        file = int(self.starts.searchsorted(row, "right")) - 1
        with open(self.files.path(file), "rb") as data:
            left, line = int(self.places[row, 0]), 1
            while left and (piece := data.read(min(left, _PIECE))):
                left, line = left - len(piece), line + piece.count(b"\n")
        return f"{self.files.where(file)}, line {line}"

    @cached_property
    def _fit(self) -> Callable[[Row], Row]:
        return _fitting(self.schema.tree, iter(self.schema.columns))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_fit"}


class _SeenKeys:
    """The keys of dicts, and which numbers have fractions, by their paths."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], dict[str, None]] = {}
        self._floats: set[tuple[str, ...]] = set()

    def add(self, value: Row, path: tuple[str, ...]) -> None:
        """Looks at a value."""
        if len(path) > _DEEPEST:
            return
        if isinstance(value, dict):
            keys = self._keys.setdefault(path, {})
            for key, one in value.items():
                keys[key] = None
                self.add(one, (*path, key))
        elif isinstance(value, list):
            for one in value:
                self.add(one, (*path, "[]"))
        elif isinstance(value, float):
            self._floats.add(path)

    def fitted(self, value: Row, path: tuple[str, ...]) -> Row:
        """A value with all keys, and floats where others have them."""
        if len(path) > _DEEPEST:
            return value
        if isinstance(value, dict):
            return {key: self.fitted(value.get(key), (*path, key)) for key in self._keys[path]}
        if isinstance(value, list):
            return [self.fitted(one, (*path, "[]")) for one in value]
        return _float(value) if path in self._floats else value


def _fitting(node: Node, columns: Iterator[Column]) -> Callable[[Row], Row]:
    """A function of values as JSON has them to values of a schema."""
    if node.kind == "nullable":
        child = _fitting(node.children[0], columns)
        next(columns)
        return lambda value: None if value is None else child(value)
    if node.kind == "varying":
        item = _fitting(node.children[0], columns)
        for _ in range(node.num_leaves - node.children[0].num_leaves):
            next(columns)
        return lambda value: [item(one) for one in _of(list, value)]
    if node.kind in ("leaf", "texts"):
        column = next(columns)
        for _ in range(node.num_leaves - 1):
            next(columns)
        if column.kind in ("ndarray", "scalar"):
            end = ... if column.kind == "ndarray" else ()
            return lambda value: _numbers(value, np.dtype(column.dtype))[end]
        return _float if column.kind == "float" else lambda value: value
    children = [_fitting(child, columns) for child in node.children]
    if node.kind != "dict":
        return lambda value: [f(v) for f, v in zip(children, _of(list, value, len(children)), strict=True)]
    pairs = list(zip(node.keys, children, strict=True))
    known = set(node.keys)

    def fitted(value: Row) -> Row:
        if not known.issuperset(_of(dict, value)):
            raise ValueError(f"keys {sorted(set(value) - known)[:3]}, which rows before it have not")
        return {key: child(value.get(key)) for key, child in pairs}

    return fitted


def _float(value: Row) -> Row:
    """A value, and as a float if it is an int; ValueError if no float is that int."""
    if type(value) is not int:
        return value
    if float(value) != value:
        raise ValueError(f"{value} has too many digits for a float")
    return float(value)


def _numbers(value: Row, dtype: np.dtype[Any]) -> Array:
    """Numbers as JSON has them, nested or not, as an array; ValueError unless it has the same: fractions may
    be rounded, nothing else."""
    flat = [value]
    while list in (kinds := {type(one) for one in flat}):
        flat = [*chain.from_iterable(_of(list, one) for one in flat)]
    wrong = kinds - _EXACT.get(dtype.kind, {str})
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype) if not wrong else np.empty(0)
    if wrong or not all(map(_is_kept, flat, array.reshape(-1).tolist())):
        raise ValueError(f"{value!r:.80} cannot be kept as {dtype} without a change")
    return array


def _is_kept(value: Row, kept: Row) -> bool:
    return value == kept or (type(value) is float and (value != value or abs(kept) != math.inf))


def _of(kind: type[Any], value: Row, count: int | None = None) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected a {kind.__name__}, found {value!r:.40}")
    if count is not None and len(value) != count:
        raise ValueError(
            f"expected a list of {count}, as in rows before it, found one of {len(value)}; if its length "
            "varies, name it in ragged= of Schema.of"
        )
    return value
