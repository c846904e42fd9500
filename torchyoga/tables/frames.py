"""Data frames of pandas and polars -> Arrow tables, and back."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import SchemaError
from .buffers import retyped

Frame: TypeAlias = Any  # a DataFrame of pandas or of polars


def table_of_frame(data: object) -> pa.Table | None:
    """A DataFrame of pandas or polars as an Arrow table; None for anything else.

    Raises:
        TypeError: it is a LazyFrame.
        SchemaError: a column holds what Arrow has no type for, such as objects of several types.
    """
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _of_pandas(data)
    if polars is not None and isinstance(data, polars.DataFrame):
        return _of_polars(data)
    if polars is not None and isinstance(data, polars.LazyFrame):
        raise TypeError("a LazyFrame has no rows yet; call collect() and pass the DataFrame")
    return None


def _of_pandas(frame: Frame) -> pa.Table:
    """A table in which NaN of floats stays NaN, and an index that has a name is a column."""
    named = None if any(name is not None for name in frame.index.names) else False
    try:
        table = pa.Table.from_pandas(frame, preserve_index=named)
    except (pa.ArrowException, TypeError, ValueError) as error:
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

    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    types = {
        kind: pandas.api.types.pandas_dtype(str(kind).replace("i", "I").replace("uI", "UI")) for kind in kinds
    }
    types[pa.bool_()] = pandas.BooleanDtype()
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
