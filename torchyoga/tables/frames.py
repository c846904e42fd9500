"""Data frames of pandas and polars as DataRefs."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import SchemaError
from ..reading.dataref import DataRef
from .arrow import Decimals
from .arrow_ref import Nulls, from_table
from .buffers import retyped

__all__ = ["Frame", "frame_of", "from_pandas", "from_polars", "polars_frame_of"]

Frame: TypeAlias = Any  # a DataFrame of pandas or of polars


def from_pandas(
    frame: Frame, *, nulls: Nulls = None, words: bool = False, decimals: Decimals = "error"
) -> DataRef:
    """A pandas DataFrame as a DataRef; a row is a dict of its columns.

    Args:
        frame: the DataFrame. An index that has a name is a column, too.
        nulls: see `from_arrow`.
        words: see `from_arrow`; a categorical column has codes and words.
        decimals: see `from_arrow`.

    NaN in a column of floats stays NaN; `None`, `NaT` and `pandas.NA` are nulls.

    Raises:
        SchemaError: a column holds objects that Arrow has no type for, such as values of several types.

    Example:
        >>> import pandas as pd
        >>> ref = from_pandas(pd.DataFrame({"x": [0.5, 1.5], "name": ["a", "b"]}))
        >>> ref[1]
        {'x': np.float64(1.5), 'name': 'b'}
    """
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
    return from_table(table.replace_schema_metadata(None), nulls, words, decimals)


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


def from_polars(
    frame: Frame, *, nulls: Nulls = None, words: bool = False, decimals: Decimals = "error"
) -> DataRef:
    """A polars DataFrame as a DataRef; a row is a dict of its columns.

    Args:
        frame: the DataFrame; a LazyFrame has to be collected first.
        nulls: see `from_arrow`.
        words: see `from_arrow`; columns of categories and enums have codes and words.
        decimals: see `from_arrow`.

    Raises:
        SchemaError: a column cannot be kept.

    Example:
        >>> import polars as pl
        >>> ref = from_polars(pl.DataFrame({"x": [0.5, 1.5], "tags": [["a"], []]}))
        >>> ref[0]
        {'x': np.float64(0.5), 'tags': ['a']}
    """
    if not hasattr(frame, "to_arrow"):
        raise TypeError(
            f"from_polars takes a DataFrame, found a {type(frame).__name__}; call collect() first"
        )
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
    return from_table(table, nulls, words, decimals)


def _has_arrow_type(column: Any, level: Any) -> bool:
    try:
        column[:0].to_arrow(compat_level=level)
    except pa.ArrowException:
        return False
    return True
