"""A source of rows -> the same source, with the values of some columns encoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from ..building.sources import PlacedSource, RowSource, SeekableBlocks, Source
from ..errors import CorruptError, SchemaError
from ..reading.dataref import DataRef
from ..rows.block import Rows
from ..rows.column import Codec, Column, Meaning
from ..rows.node import Path, path_name
from ..rows.schema import Schema, unknown_column
from ..rows.types import Json, Row
from ..views.flattened import flattened
from .decoder import form_of
from .decoders import decoder_of
from .encoders import Encoder, encoder_of

_BLOCK_BYTES = 2**22
_AHEAD = 4  # rows that are encoded before they are asked for, for each thread
_MOST_THREADS = 8


def recoded(
    codecs: Mapping[str, Encoder | None], dataset: object
) -> tuple[object, Callable[[Source], Source]]:
    """A dataset with values decoded that are encoded already, and what encodes a source of it.

    Nothing is encoded twice, so what a codec notes of a column is never lost. Of a dataset that does not say
    how its values are encoded, as of a list of rows, bytes are just bytes.

    Args:
        codecs: what is to become of some columns; None for values as they were before they were encoded.
        dataset: whatever a source can be made of.

    Raises:
        KeyError: there is no such column.
    """
    encoders = check_codecs(codecs)
    ref = flattened(dataset)
    forms: dict[str, Codec] = {}
    if ref is not None and ref.schema is not None:
        plain = _unencoded(ref, codecs)
        assert plain.schema is not None
        for column in plain.schema.columns:
            codec = column.meaning.codec
            if column.name in encoders and codec is not None and form_of(codec):
                forms[column.name] = codec
        dataset = dataset if plain is ref else plain

    def encode(source: Source) -> Source:
        if not encoders:
            return source
        if isinstance(source, PlacedSource):
            return _EncodedPlaces(source, encoders, forms)
        return EncodedSource(source, encoders, forms)

    return dataset, encode


def _unencoded(ref: DataRef, codecs: Mapping[str, Encoder | None]) -> DataRef:
    """The rows of a DataRef with what other encoders cannot take decoded."""
    assert ref.schema is not None
    columns = {column.name: column for column in ref.schema.columns}
    decoders = {}
    for name, encoder in codecs.items():
        if name not in columns:
            raise unknown_column(ref.schema, name)
        codec = columns[name].meaning.codec
        decoder = None if codec is None else decoder_of(codec)
        if decoder is None or codec is None:
            continue
        # Files of images and of sound are taken as they are; arrays are only by the codec that they have.
        is_other = form_of(codec) and encoder is not None and encoder.name != codec.name
        if encoder is None or codec.name == "zstd" or is_other:
            decoders[name] = decoder
    return ref.decoded(decoders) if decoders else ref


def check_codecs(codecs: Mapping[str, Encoder | None]) -> dict[str, Encoder]:
    """The codecs that a user passed, but for None; TypeError if they are none."""
    found = {name: encoder for name, encoder in codecs.items() if encoder is not None}
    for name, encoder in found.items():
        if not isinstance(name, str) or not isinstance(encoder, Encoder):
            raise TypeError(
                f"codecs={{{name!r:.80}: {encoder!r:.80}}} must map columns to yoga.codecs.jpeg(), png(), "
                "zstd() or flac(...)"
            )
    return found


def encoded_schema(schema: Schema, codecs: Mapping[str, Encoder]) -> Schema:
    """The schema of rows whose values are encoded; KeyError if it has no such column."""
    for name in codecs:
        if name not in (column.name for column in schema.columns):
            raise unknown_column(schema, name)
    columns = (
        Column(column.name, "bytes", "|u1", None, 1) if column.name in codecs else column
        for column in schema.columns
    )
    return Schema(schema.tree, tuple(columns))


class EncodedSource(RowSource):
    """The rows of a source with some values encoded, by threads.

    Args:
        source: gives the rows.
        codecs: the encoder of each of some columns, by its name.
        forms: of columns that hold files of arrays already, the codec that says how the arrays were.
    """

    def __init__(
        self, source: Source, codecs: Mapping[str, Encoder], forms: Mapping[str, Codec] | None = None
    ) -> None:
        self.source = source
        self.length = source.length
        self.name = source.name
        self.seekable = isinstance(source, SeekableBlocks) or (
            isinstance(source, RowSource) and source.seekable
        )
        self.fingerprint = source.fingerprint if isinstance(source, (RowSource, SeekableBlocks)) else None
        self._forms = {name: form_of(codec) for name, codec in (forms or {}).items()}
        self._encoders = dict(codecs)
        self._paths: dict[str, Path] = {}
        self._found: dict[str, Codec] = {}

    @property
    def meanings(self) -> Mapping[str, Meaning]:
        """The meanings of columns, once the first row was given."""
        columns = self.source.schema.columns if self.source.schema is not None else ()
        others = {column.name: column.meaning for column in columns if column.meaning}
        return {**others, **{name: Meaning(codec=codec) for name, codec in self._found.items()}}

    @property
    def pin(self) -> object:
        """How values are encoded, as plain data: other encoders do not continue a build."""
        return sorted([name, repr(encoder)] for name, encoder in self._encoders.items())

    @property
    def found(self) -> Json:
        """The entries that the source has found."""
        return self.source.found if isinstance(self.source, RowSource) else {}

    def rows(self, start: int) -> Iterator[Row]:
        """The rows from number `start` on."""
        yield from self._encoded(self._plain(start), start)

    def _plain(self, start: int) -> Iterator[Row]:
        if isinstance(self.source, RowSource):
            yield from self.source.rows(start)
            return
        ask = self.source.blocks
        if isinstance(self.source, SeekableBlocks):
            ask = partial(self.source.blocks_from, start)
        for block in ask(_BLOCK_BYTES):
            yield from Rows(block).exact()

    def _path(self, row: Row, name: str) -> Path:
        """Where a column lies; KeyError if rows have no such column."""
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = _path_in(row, name)
        return path

    def _encoded(self, rows: Iterator[Row], start: int) -> Iterator[Row]:
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "torchyoga-encode") as pool:
            ahead: deque[Future[Row]] = deque()
            try:
                for number, row in enumerate(rows, start):
                    if len(self._found) < len(self._encoders):
                        self._look(row)
                    ahead.append(pool.submit(self._one, row, number))
                    while len(ahead) > _AHEAD * threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for left in ahead:
                    left.cancel()

    def _look(self, row: Row) -> None:
        for name, encoder in self._encoders.items():
            value = _value_at(row, self._path(row, name))
            if value is not None and name not in self._found:
                self._found[name] = self._codec(name, encoder, value)

    def _codec(self, name: str, encoder: Encoder, value: Row) -> Codec:
        """The note about a value; of the file of an array, how the array was."""
        found = encoder.codec(value)
        form = self._forms.get(name)
        return Codec(found.name, (*found.parameters, *form)) if form else found

    def _one(self, row: Row, number: int) -> Row:
        for name, encoder in self._encoders.items():
            path = self._path(row, name)
            try:
                value = _value_at(row, path)
                if value is None:
                    continue
                if self._codec(name, encoder, value) != self._found[name]:
                    raise SchemaError(f"it is a {type(value).__name__}, unlike those of the rows before")
                row = _with_value(row, path, encoder.encode(value))
            except (CorruptError, SchemaError) as error:
                file = row.get("path") if isinstance(row, dict) else None
                called = f" ({file:.200})" if isinstance(file, str) else ""
                is_damaged = isinstance(error, CorruptError) and "; " not in str(error)
                advice = "; replace the file, or leave the row out" if is_damaged else ""
                raise SchemaError(f"row {number}{called}, column {name!r}: {error}{advice}") from error
        return row


class _EncodedPlaces(EncodedSource, PlacedSource):
    """The encoded rows of a source that names the places at which they can begin."""

    def __init__(
        self, source: PlacedSource, codecs: Mapping[str, Encoder], forms: Mapping[str, Codec]
    ) -> None:
        super().__init__(source, codecs, forms)
        self._places = source
        self.num_inputs = source.num_inputs

    def place(self, number: int) -> Json:
        """Where the source says that row `number` comes."""
        return self._places.place(number)

    def rows_of(self, start: int, stop: int) -> Iterator[Row]:
        """The rows of some inputs."""
        yield from self._encoded(self._places.rows_of(start, stop), 0)

    def rows_at(self, place: Json, number: int) -> Iterator[Row]:
        """The rows from a place on."""
        yield from self._encoded(self._places.rows_at(place, number), number)


def _path_in(row: Row, name: str) -> Path:
    """Where the column of a name lies in rows such as this one."""
    paths = {path_name(path): path for path in _paths(row, ())}
    if name not in paths:
        raise KeyError(
            f"codecs= names a column {name!r}, but the rows have {', '.join(map(repr, [*paths][:20]))}"
        )
    return paths[name]


def _paths(value: Row, path: Path) -> Iterator[Path]:
    """Where the values of a row lie that are no containers."""
    items: Iterable[tuple[str | int, Row]]
    if isinstance(value, dict):
        items = value.items()
    elif type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(type(value), "_fields")):
        items = zip(getattr(type(value), "_fields", range(len(value))), value, strict=True)
    else:
        yield path
        return
    for key, item in items:
        yield from _paths(item, (*path, key))


def _value_at(row: Row, path: Path) -> Row:
    for key in path:
        try:
            row = getattr(row, str(key)) if hasattr(type(row), "_fields") else row[key]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise SchemaError(f"the row has no {path_name(path)!r}, as those before it have") from None
    return row


def _with_value(row: Row, path: Path, value: Row) -> Row:
    """A row with another value at a place; what is beside it is the same."""
    if not path:
        return value
    key, *rest = path
    if hasattr(type(row), "_fields"):
        return row._replace(**{str(key): _with_value(getattr(row, str(key)), tuple(rest), value)})
    inner = _with_value(row[key], tuple(rest), value)
    if isinstance(row, dict):
        return {**row, key: inner}
    items = list(row)
    items[int(key)] = inner
    return type(row)(items)


def fitted(
    codecs: Mapping[str, Encoder | None], dataset: object, schema: Schema | None
) -> tuple[object, Schema | None, Callable[[Source], Source]]:
    """A dataset to read, the schema that its build is given, and what encodes a source of it.

    Args:
        codecs: what was passed for some columns.
        dataset: the new rows, whatever a source can be made of.
        schema: of the version; None if it has no rows and none is known.

    Raises:
        SchemaError: a column is encoded in a way that is not known here.
        KeyError: there is no such column.
    """
    if schema is None:
        dataset, encode = recoded(codecs, dataset)
        return dataset, None, encode
    own = dataset.schema if isinstance(dataset, DataRef) else None
    have = {} if own is None else {column.name: column.meaning.codec for column in own.columns}
    encoders = dict(codecs)
    for column in schema.columns:
        codec = column.meaning.codec
        if codec is None or column.name in encoders or have.get(column.name) == codec:
            continue
        encoders[column.name] = encoder_of(codec)
        if encoders[column.name] is None:
            raise SchemaError(f"column {column.name!r} is encoded as {codec.name!r}, which is unknown here")
    dataset, encode = recoded(encoders, dataset)
    named = {name: found for name, found in encoders.items() if found is not None}
    return dataset, encoded_schema(schema, named), encode
