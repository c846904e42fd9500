"""Files of JSON lines -> rows by number: lines are found once, and parsed when they are taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptError, NotFoundError, SchemaError
from ...files.regular import open_regular
from ...formats.mapped.gather import Bytes
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...reading.dataref import DataRef
from ...reading.in_place_ref import InPlaceRef, files_of
from ...reading.shards import LocalShards, MappedShards
from ...rows.collector import block_of
from ...rows.column import Column
from ...rows.data import Data, bounds_of
from ...rows.node import Node
from ...rows.schema import Schema
from ...rows.types import Ints, Row
from ...stores.address import directory_of, is_url

__all__ = ["from_jsonl"]

_PIECE = 2**24  # bytes in which lines are looked for at once
_SAMPLE = 1000  # rows from which it is learned what all look like
_LONGEST = 2**28  # bytes of a line
_BLANK = frozenset(b" \t\r\n")


def from_jsonl(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], schema: Schema | None = None
) -> DataRef:
    """Files of JSON lines as a DataRef, read where they lie: only the places of lines are kept.

    For each line 16 bytes are kept.

    Args:
        files: the path of a file, or a list of such. Those that are compressed have no rows by number: a
            generator that reads them can be submitted.
        schema: what a row looks like; by default 1,000 rows spread over the files show it. Keys that some of
            them lack, or have `null` in, may be None; numbers some of which have a fraction are floats.

    Rows are what `json.loads` gives, with all keys; a row may be any value. Empty lines are no rows.

    Raises:
        NotFoundError: there is no such file.
        ValueError: a file is compressed, or behind a URL.
        SchemaError: rows cannot be kept, or there are none. When read: a row does not fit the schema; names
            file and line.
        CorruptError: when read: a line is not JSON, or a file has changed since.

    Example:
        >>> _ = (tmp_path / "notes.jsonl").write_text('{"text": "one", "ids": [1, 2]}\\n{"text": "two"}\\n')
        >>> ref = from_jsonl(tmp_path / "notes.jsonl")
        >>> ref[1], ref["ids"][0]
        ({'text': 'two', 'ids': None}, [1, 2])
    """
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not given:
        raise ValueError("from_jsonl was given no files")
    paths, sizes, lines = [], [], []
    for one in given:
        path = os.fspath(one)
        if is_url(path):
            raise ValueError(
                f"{path!r} is a URL; copy it to this machine, or submit a generator that reads it"
            )
        paths.append(str(directory_of(path)))
        lines.append(_lines(paths[-1]))
        sizes.append(os.stat(paths[-1]).st_size)
    starts = bounds_of(map(len, lines))
    places = np.concatenate(lines)
    name = paths[0] if len(paths) == 1 else f"{len(paths)} files of JSON lines, {paths[0]} the first"
    if not len(places):
        raise SchemaError(f"{name}: there are no rows")
    held = LocalShards(name, tuple(paths), tuple(sizes))
    text = _LinesOfJson(name, held, starts, places, Schema.of(""), "")
    rows = np.unique(np.linspace(0, len(places) - 1, min(_SAMPLE, len(places))).astype(np.int64))
    shards = MappedShards(held, text.check)
    sample = text.parsed(shards, rows)
    if schema is None:
        seen = _SeenKeys()
        for row in sample:
            seen.add(row, ())
        schema = block_of([seen.fitted(row, ()) for row in sample]).schema
    content = hexdigest(json.dumps([schema.to_json(), sizes]), places.tobytes(), json.dumps(sample[:64]))
    return InPlaceRef(_LinesOfJson(name, held, starts, places, schema, content))


def _lines(path: str) -> Ints:
    """(N, 2) where the lines of a file that are not empty begin and end."""
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; see that the path is right") from None
    ends, done = [], 0
    with open(handle, "rb") as file:
        while piece := file.read(_PIECE):
            if not done and piece[:2] == b"\x1f\x8b":
                raise ValueError(f"{path} is compressed; decompress it, or submit a generator that reads it")
            ends.append(np.flatnonzero(np.frombuffer(piece, np.uint8) == 10) + done)
            done += len(piece)
    stops = np.concatenate([*ends, [done]]).astype(np.int64)
    begins = np.append(0, stops[:-1] + 1)
    some = stops > begins
    if (stops - begins).max() > _LONGEST:
        raise CorruptError(f"{path} has a line of more than {_LONGEST} bytes; is it one of JSON lines?")
    places = np.stack([begins, stops], 1)[some]
    short = np.flatnonzero(places[:, 1] - places[:, 0] < 8)  # of blanks only, as some editors leave them
    with open(open_regular(path), "rb") as file:
        blank = []
        for number in short.tolist():
            file.seek(int(places[number, 0]))
            if _BLANK.issuperset(file.read(int(places[number, 1] - places[number, 0]))):
                blank.append(number)
    return np.delete(places, blank, 0)


@dataclass(frozen=True, eq=False)
class _LinesOfJson:
    """Rows that are lines: a `reading.in_place_ref.FileLayout`.

    Attributes:
        name: for messages.
        files: where they are.
        starts: (files + 1,) the row at which each file begins.
        places: (rows, 2) where each line begins and ends in its file.
        schema: of a row.
        content: a name for the content.
    """

    name: str
    files: LocalShards
    starts: Ints
    places: Ints
    schema: Schema
    content: str
    only_copies = False

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.nbytes)

    def check(self, number: int, data: Bytes) -> None:
        """Takes any bytes for lines."""

    def reach(self, shards: MappedShards, rows: Ints) -> tuple[Ints, Ints]:
        """Where lines lie in memory."""
        _, origins = shards.hold(files_of(self.starts, rows))
        first, last = self.places[rows].T
        return origins + first, last - first

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """Parsed rows, as columns."""
        fitted = []
        for row, value in zip(rows.tolist(), self.parsed(shards, rows), strict=True):
            try:
                fitted.append(self._fit(value))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise SchemaError(f"{self._where(row)}: {error}; pass a schema= that it fits") from error
        try:
            data = block_of(fitted, self.schema).data
        except SchemaError:
            for row, value in zip(rows.tolist(), fitted, strict=True):
                try:
                    block_of([value], self.schema)
                except SchemaError as error:
                    raise SchemaError(f"{self._where(row)}: {error}; pass a schema= that it fits") from error
            raise
        return [data[number] for number in columns]

    def alone(self, shards: MappedShards, columns: Sequence[int]) -> None:
        """None: to parse takes longest."""

    def parsed(self, shards: MappedShards, rows: Ints) -> list[Row]:
        """The values on some lines."""
        memory, origins = shards.hold(files_of(self.starts, rows))
        first, last = self.places[rows].T
        parsed = []
        for row, text in zip(rows.tolist(), memory.texts(origins + first, last - first), strict=True):
            try:
                parsed.append(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise CorruptError(f"{self._where(row)}: this is not JSON: {error}") from error
        return parsed

    @cached_property
    def _fit(self) -> Callable[[Row], Row]:
        return _fitting(self.schema.tree, iter(self.schema.columns))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_fit"}

    def _where(self, row: int) -> str:
        file = int(self.starts.searchsorted(row, "right")) - 1
        with open(self.files.path(file), "rb") as data:
            line = data.read(int(self.places[row, 0])).count(b"\n") + 1
        return f"{self.files.where(file)}, line {line}"


class _SeenKeys:
    """The keys of dicts, and which numbers have fractions, by their paths."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], dict[str, None]] = {}
        self._floats: set[tuple[str, ...]] = set()

    def add(self, value: Row, path: tuple[str, ...]) -> None:
        """Looks at a value."""
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
        if isinstance(value, dict):
            return {key: self.fitted(value.get(key), (*path, key)) for key in self._keys[path]}
        if isinstance(value, list):
            return [self.fitted(one, (*path, "[]")) for one in value]
        return float(value) if type(value) is int and path in self._floats else value


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
        if column.kind == "ndarray":
            return lambda value: np.asarray(value, column.dtype)
        if column.kind == "scalar":
            return np.dtype(column.dtype).type
        return (lambda v: float(v) if type(v) is int else v) if column.kind == "float" else lambda v: v
    children = [_fitting(child, columns) for child in node.children]
    if node.kind != "dict":
        return lambda value: [f(v) for f, v in zip(children, _of(list, value), strict=True)]
    pairs = list(zip(node.keys, children, strict=True))
    known = set(node.keys)

    def fitted(value: Row) -> Row:
        if not known.issuperset(_of(dict, value)):
            raise ValueError(f"keys {sorted(set(value) - known)[:3]}, which rows before it have not")
        return {key: child(value.get(key)) for key, child in pairs}

    return fitted


def _of(kind: type, value: Row) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected a {kind.__name__}, found {value!r:.40}")
    return value
