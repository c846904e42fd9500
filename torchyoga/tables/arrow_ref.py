"""Arrow tables, data frames and files as DataRefs, read where they lie."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import CorruptError, NotFoundError, SchemaError
from ..formats.items import Numbering
from ..process.buffers import BufferPool
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import spread
from ..reading.dataref import DataRef
from ..reading.stored_ref import StoredRef, projected_again
from ..rows.block import Block, Data, bounds_of
from ..rows.schema import Projection
from ..rows.types import Ints, Json
from .arrow import ArrowPlan, Decimals, found_in, plan_of
from .buffers import retyped
from .in_place import GatheredPart, part_of

Frame: TypeAlias = Any  # a DataFrame of pandas or of polars


def _of_pandas(frame: Frame) -> pa.Table:
    """A table in which NaN of floats stays NaN, and an index that has a name is a column."""
    has_name = any(name is not None for name in frame.index.names)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=has_name)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        names = list(map(str, frame.columns))
        twice = sorted({name for name in names if names.count(name) > 1})
        do = f"rename one of the columns {twice[:5]}" if twice else "give the column one type, with astype"
        raise SchemaError(f"the DataFrame cannot be kept: {error}; {do}") from error
    for name, dtype in zip(map(str, frame.columns), frame.dtypes, strict=True):
        if isinstance(dtype, np.dtype) and dtype.kind == "f" and table.column(name).null_count:
            values = frame.iloc[:, table.column_names.index(name)].to_numpy()
            table = table.set_column(
                table.column_names.index(name), name, pa.array(values, from_pandas=False)
            )
    return table.replace_schema_metadata(None)


def _of_polars(frame: Frame) -> pa.Table:
    import polars

    level = polars.CompatLevel.oldest()
    kinds = frame.schema
    odd = [name for name, kind in kinds.items() if kind == polars.Object]  # Arrow would have addresses
    try:
        table = frame.to_arrow(compat_level=level)
    except pa.ArrowException:
        odd += [column.name for column in frame if not _has_arrow_type(column, level)]
        if not odd:
            raise
    if odd:
        raise SchemaError(
            f"column {odd[0]!r} is of the type {kinds[odd[0]]}, which Arrow lacks; cast it, as to Int64 or "
            f"String, or leave it out: frame.drop({odd[0]!r})"
        )
    return table


def _has_arrow_type(column: Any, level: Any) -> bool:
    try:
        column[:0].to_arrow(compat_level=level)
    except pa.ArrowException:
        return False
    return True


def frame_of(table: pa.Table) -> Frame:
    """A table as a pandas DataFrame; whole numbers and bools with nulls keep their values, as Int64 and such.

    Pandas would make floats of them, in which not every int64 has a value, or objects. Those within lists and
    dicts are objects where there are nulls.
    """
    import pandas

    names = ["boolean", *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))]
    types = {pa.type_for_alias(name.lower()): pandas.api.types.pandas_dtype(name) for name in names}
    rest, converted = table, {}
    for place, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if column.null_count and field.type in types:
            converted[place] = column.to_pandas(types_mapper=types.get)
            rest = rest.set_column(place, field.name, pa.nulls(len(table)))
    found = rest.to_pandas(integer_object_nulls=True)
    for place, values in converted.items():
        found.isetitem(place, values)
    return found


def polars_frame_of(table: pa.Table) -> Frame:
    """A table as a polars DataFrame; times in zones that polars does not know, such as +05:30, are in UTC."""
    import polars

    @cache
    def in_known_zone(kind: pa.DataType) -> pa.DataType:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            return kind
        try:
            polars.from_arrow(pa.array([], kind))
        except polars.exceptions.ComputeError:
            return pa.timestamp(kind.unit, "UTC")
        return kind

    fields = [field.with_type(retyped(field.type, in_known_zone)) for field in table.schema]
    return polars.from_arrow(table.cast(pa.schema(fields)))


Tabular: TypeAlias = Any  # a table, record batches, or whatever gives an Arrow stream
_SAMPLE = 64


class ArrowRef(StoredRef):
    """Rows of Arrow chunks that stay where they are.

    Args:
        name: what this is, for messages.
        plan: says what rows look like.
        batches: the chunks.
        remade: a function that makes this DataRef again, and its arguments, for pickling.
        info: what is known besides the rows.
    """

    def __init__(
        self,
        name: str,
        plan: ArrowPlan,
        batches: Sequence[pa.RecordBatch],
        remade: tuple[Callable[..., DataRef], tuple[object, ...]],
        info: Json | None = None,
    ) -> None:
        self._batches = [batch for batch in batches if len(batch)]
        self._starts = bounds_of(map(len, self._batches))
        super().__init__(name, plan.schema, int(self._starts[-1]))
        self._numbering = Numbering()
        if self._batches:
            self._numbering.append(self._starts[:-1], len(self))
        self._remade, self._info = remade, info or {}
        self._alike: DataRef | None = None  # with its columns as they were: the content is the same
        pool = BufferPool()
        self._parts: list[tuple[GatheredPart, list[tuple[int, int]]]] = []
        first = 0
        for name, form in zip(plan.names, plan.form.fields, strict=True):
            arrays = [batch.column(batch.schema.get_field_index(name)) for batch in self._batches]
            numbers = range(first, first + len(form.columns))
            # Of each part, which columns are wanted, and where they go.
            self._parts.append((part_of(form, arrays, pool.empty), list(enumerate(numbers))))
            first = numbers.stop

    def _block(self, rows: Ints) -> Block:
        chunks = self._numbering.blocks(rows)
        places = rows - self._starts.take(chunks)
        data: list[Data] = [Data(None)] * len(self._schema.columns)
        for part, wanted in self._parts:
            found = part.take(chunks, places, None)
            for nth, number in wanted:
                data[number] = found[nth]
        return Block(self._schema, len(rows), tuple(data))

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; other fields are not touched."""
        ref = ArrowRef.__new__(ArrowRef)
        ref.__dict__.update(self.__getstate__())
        for of_all in ("fingerprint", "_row_bytes"):
            ref.__dict__.pop(of_all, None)
        ref._schema = of.schema
        target = {number: place for place, number in enumerate(of.columns)}
        kept = [
            (part, [(nth, target[number]) for nth, number in wanted if number in target])
            for part, wanted in self._parts
        ]
        ref._parts = [(part, wanted) for part, wanted in kept if wanted]
        ref._alike = None if of.in_schema_order is of else self._projected(of.in_schema_order)
        ref._remade = projected_again, (*self._remade, of)
        return ref

    def _some(self) -> Block:
        """Rows that are spread over the table."""
        return self._block(spread(len(self), _SAMPLE))

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of an average row, as a few rows show."""
        if not len(self):
            return 0
        return max(1, self._some().nbytes // min(_SAMPLE, len(self)))

    @property
    def file_starts(self) -> Ints:
        """Where each chunk begins."""
        return self._starts

    @property
    def info(self) -> Json:
        """Information from the source of the table."""
        return dict(self._info)

    @cached_property
    def fingerprint(self) -> str | None:
        """A name made of the schema, the length and 64 rows spread over the table."""
        if self._alike is not None:
            return self._alike.fingerprint
        pieces = [piece.data for piece in self._some().checked()] if len(self) else []
        return hexdigest(f"{len(self)} {json.dumps(self._schema.to_json())}", *pieces)

    def __reduce__(self) -> tuple[object, ...]:
        return self._remade


def from_arrow(
    data: Tabular | str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    words: bool = False,
    decimals: Decimals = "error",
) -> DataRef:
    """A table, data frame or Arrow file as a DataRef; what can be read in place is not copied.

    Args:
        data: a `pyarrow.Table`, record batches, a DataFrame of pandas or polars, anything else that gives an
            Arrow stream, or the path of a file of Arrow's IPC format (`.arrow`, `.feather`; a file or a
            stream). A file is mapped, and a DataRef over it pickles by its path; one that is compressed is
            decompressed into memory.
        columns: names of the columns to keep, all by default.
        words: True gives the words of columns that are dictionaries, such as categories and enums of data
            frames; by default rows have their codes, and the schema has the words.
        decimals: decimals of more than 18 digits are an "error", "float" or "text".

    Numbers, times, text, bytes, lists of numbers, arrays of a fixed shape, and structs of these are read from
    where they lie; other columns are converted as they are read. Lists of numbers are arrays, maps are lists
    of dicts with `key` and `value`. Each chunk is a file to a block shuffle.

    A named index of a pandas DataFrame is a column, too. NaN in a column of floats stays NaN; `None`, `NaT`
    and `pandas.NA` are nulls.

    Raises:
        NotFoundError: there is no such file, or it has changed since it was pickled.
        CorruptError: it is not a file of Arrow's, or is damaged.
        SchemaError: a column cannot be kept; it is named, with a cast that works.

    Example:
        >>> import pyarrow as pa
        >>> ref = from_arrow(pa.table({"ids": [[1, 2], [3]], "label": [5, None]}))
        >>> ref[1]["ids"], [int(row["label"]) for row in ref.filled({"label": -1})]
        (array([3]), [5, -1])
    """
    how = KeptColumns(None if columns is None else tuple(columns), words, decimals)
    if isinstance(data, (str, os.PathLike)):
        return _of_file(Path(data).expanduser().absolute(), how)
    return _of_table(table_of(data), how)


def table_of(data: Tabular) -> pa.Table:
    """Any tabular data as an Arrow table.

    Raises:
        TypeError: it is not a table, or a LazyFrame.
        SchemaError: a column of a frame holds what Arrow has no type for, such as objects of several types.
    """
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _of_pandas(data)
    if polars is not None and isinstance(data, polars.DataFrame):
        return _of_polars(data)
    if polars is not None and isinstance(data, polars.LazyFrame):
        raise TypeError("a LazyFrame has no rows yet; call collect() and pass the DataFrame")
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, Iterable) and not isinstance(data, (dict, str, bytes)):
        batches = list(data)
        if batches and all(isinstance(batch, pa.RecordBatch) for batch in batches):
            return pa.Table.from_batches(batches)
    raise TypeError(
        "from_arrow takes a pyarrow.Table, record batches, a DataFrame or the path of an Arrow file, found "
        f"{data!r:.80}"
    )


class KeptColumns(NamedTuple):
    """The columns of a table that are kept, None for all, and how; see `from_arrow`."""

    columns: tuple[str, ...] | None = None
    words: bool = False
    decimals: Decimals = "error"


def _of_table(table: pa.Table, how: KeptColumns) -> ArrowRef:
    return ref_over("table", table.to_batches(), table.schema, (_of_table, (table, how)), how)


def ref_over(
    name: str,
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    remade: tuple[Callable[..., DataRef], tuple[object, ...]],
    how: KeptColumns,
) -> ArrowRef:
    """A DataRef over batches; see `ArrowRef`."""
    columns = how.columns
    if columns is not None:
        unknown = [column for column in columns if column not in schema.names]
        if unknown:
            raise KeyError(f"there are no columns {unknown}; there are {schema.names[:20]}")
        schema = pa.schema([schema.field(column) for column in columns])
        batches = [batch.select(list(columns)) for batch in batches]
    found = found_in(batches)
    plan = plan_of(schema, found.nulls, None if how.words else found.words, how.decimals)
    return ArrowRef(name, plan, batches, remade)


def _of_file(path: Path, how: KeptColumns, identity: tuple[int, int] | None = None) -> ArrowRef:
    try:
        about = os.stat(path)
        schema, batches = _read(path)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; pass the path of an Arrow file") from None
    now = about.st_size, about.st_mtime_ns
    if identity not in (None, now):
        raise NotFoundError(f"{path} has changed since this DataRef was made; open it again")
    return ref_over(str(path), batches, schema, (_of_file, (path, how, now)), how)


def _read(path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema and the batches of a file, which is mapped."""
    source = pa.memory_map(str(path))
    try:
        try:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except pa.ArrowInvalid as error:
            source.seek(0)
            try:
                reader = pa.ipc.open_stream(source)
            except (pa.ArrowInvalid, OSError):
                raise error from None
            batches = list(reader)
        for batch in batches:
            batch.validate()
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"{path} has columns that pyarrow cannot read: {error}; cast them, or leave them out, "
            "and write the file again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{path} cannot be read as an Arrow file, or is damaged: {error}") from error
    return reader.schema, batches
