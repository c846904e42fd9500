"""Rows -> Arrow tables and Parquet files, block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import SchemaError
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..rows.block import Block, Data, bounds_of
from ..rows.collector import block_of, spans
from ..rows.column import MOST_DIGITS, Column
from ..rows.node import Node
from ..rows.types import Array, Ints

_BYTES = 64 * 2**20
Pieces: TypeAlias = Iterator[tuple[Column, Data]]
_TEXT = {"str": pa.string(), "numpy.str": pa.string(), "bytes": pa.binary(), "numpy.bytes": pa.binary()}
CONTAINERS = ("dict", "list", "tuple", "namedtuple")
_UNITS, _FINER = ("s", "ms", "us", "ns"), ("ps", "fs", "as")


def table_of(ref: DataRef, with_words: bool = True) -> pa.Table:
    """All rows as a table; see `DataRef.to_arrow`.

    Args:
        ref: the rows.
        with_words: True if codes become dictionaries, False if they stay numbers.
    """
    return pa.Table.from_batches(batches_of(ref, _BYTES, with_words), schema_of(ref, with_words))


def schema_of(ref: DataRef, with_words: bool = True) -> pa.Schema:
    """The schema of `table_of`; nothing is read for it."""
    schema = known_schema(ref)
    return pa.schema([]) if schema is None else _batch_of(block_of([], schema), with_words).schema


def batches_of(ref: DataRef, nbytes: int, with_words: bool = True) -> Iterator[pa.RecordBatch]:
    """All rows as record batches of about so many bytes."""
    if ref.schema is None:
        return
    source = in_epoch(ref, 0, 0)

    def block(rows: Ints) -> Block:
        return block_of(source.take(rows), ref.schema)

    for start, stop in spans(len(ref), nbytes, block):
        yield _batch_of(block(np.arange(start, stop)), with_words)


def write_parquet(ref: DataRef, path: str | os.PathLike[str], group_bytes: int) -> None:
    """Writes all rows into a Parquet file; see `DataRef.to_parquet`."""
    import pyarrow.parquet as pq

    schema = schema_of(ref)
    if not len(schema):
        raise SchemaError("rows without columns make no Parquet file")
    target = Path(path).expanduser().absolute()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            for batch in batches_of(ref, group_bytes):
                writer.write_table(pa.Table.from_batches([batch], schema), row_group_size=max(1, len(batch)))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _batch_of(block: Block, with_words: bool = True) -> pa.RecordBatch:
    """The rows of a block as a record batch; its schema follows from the block's alone.

    Args:
        block: the rows.
        with_words: True if codes become dictionaries, False if they stay numbers.

    Raises:
        SchemaError: a column has no type in Arrow.

    Example:
        >>> from torchyoga.rows.collector import block_of
        >>> _batch_of(block_of([{"x": 1, "y": "a"}])).to_pylist()
        [{'x': 1, 'y': 'a'}]
    """
    pieces = zip(block.schema.columns, block.data, strict=True)
    maker = _ArrayMaker(with_words)
    tree = block.schema.tree
    if tree.kind not in CONTAINERS:
        return pa.RecordBatch.from_arrays([maker.rows(tree, pieces, block.num_rows)], names=["value"])
    arrays = [maker.rows(child, pieces, block.num_rows) for child in tree.children]
    return pa.RecordBatch.from_arrays(arrays, names=column_names(tree))


def column_names(node: Node) -> list[str]:
    """The names of the columns that a container of rows becomes."""
    return [str(key) for key in node.keys or range(len(node.children))]


class _ArrayMaker:
    """Makes arrays of columns.

    Args:
        with_words: see `_batch_of`.
    """

    def __init__(self, with_words: bool) -> None:
        self._with_words = with_words

    def rows(self, node: Node, pieces: Pieces, count: int) -> pa.Array:
        """An array of the rows of a part of the tree."""
        if node.kind == "leaf":
            column, data = next(pieces)
            if not column.is_ragged:
                return self._fixed(column, data.values, count)
            if column.kind in _TEXT:
                return _texts(column, data.values, data.part("offsets"))
            return _lists(*self._arrays(column, data))
        if node.kind == "nullable":
            found = self.rows(node.children[0], pieces, count)
            return _nulled(found, next(pieces)[1].values)
        if node.kind == "varying":
            items, counts = self._items(node.children[0], pieces, count)
            return _lists(bounds_of(counts), items)
        arrays = [self.rows(child, pieces, count) for child in node.children]
        return _struct(node, arrays, count)

    def _items(self, node: Node, pieces: Pieces, count: int) -> tuple[pa.Array, Ints]:
        """An array of the items of all rows' lists, and how many each row has."""
        if node.kind == "leaf":
            offsets, items = self._arrays(*next(pieces))
            return items, np.diff(offsets)
        if node.kind == "texts":
            column, data = next(pieces)
            _, lengths = next(pieces)
            return _texts(column, data.values, bounds_of(lengths.values)), np.diff(lengths.part("offsets"))
        if node.kind == "nullable":
            items, counts = self._items(node.children[0], pieces, count)
            return _nulled(items, next(pieces)[1].values), counts
        if node.kind == "varying":
            inner, _ = self._items(node.children[0], pieces, count)
            _, lengths = next(pieces)
            return _lists(bounds_of(lengths.values), inner), np.diff(lengths.part("offsets"))
        found = [self._items(child, pieces, count) for child in node.children]
        counts = found[0][1]
        return _struct(node, [array for array, _ in found], int(counts.sum())), counts

    def _fixed(self, column: Column, values: Array, count: int) -> pa.Array:
        """Values of one shape, as lists of a fixed size."""
        if column.kind == "none":
            return pa.nulls(count)
        array = self._numbers(column, np.ascontiguousarray(values).reshape(-1))
        for extent in reversed(column.shape or ()):
            if not extent:
                raise SchemaError(
                    f"column {column.name!r} has rows of the shape {column.shape}, without values"
                )
            array = pa.FixedSizeListArray.from_arrays(array, extent)
        return array

    def _arrays(self, column: Column, data: Data) -> tuple[Ints, pa.Array]:
        """Arrays that differ in shape as lists in lists: where each row begins, and what is in the rows."""
        array = self._numbers(column, data.values)
        if column.ndim == 1:
            return data.part("offsets"), array
        shapes = data.part("shapes")
        if (shapes < 0).any():
            raise SchemaError(f"column {column.name!r} has rows of different numbers of dimensions")
        counts = shapes.prod(axis=1)
        for axis in range(column.ndim - 1, 0, -1):
            above = shapes[:, :axis].prod(axis=1)
            array = _lists(bounds_of(np.repeat(shapes[:, axis], above)), array)
            counts = above
        return bounds_of(counts), array

    def _numbers(self, column: Column, values: Array) -> pa.Array:
        """(N,) values of a fixed size."""
        kind, dtype, meaning = column.kind, values.dtype, column.meaning
        if kind == "decimal":
            pairs = np.stack([values, values >> 63], axis=1).astype("<i8")
            return pa.Array.from_buffers(
                pa.decimal128(MOST_DIGITS, meaning.scale), len(values), [None, pa.py_buffer(pairs)]
            )
        if kind == "time":
            return pa.array(values.astype("<i8")).view(pa.time64("us"))
        if dtype.kind in "mM":
            return _times(column, values)
        if kind == "tensor" and column.dtype not in (dtype.name, "bool"):
            raise SchemaError(
                f"column {column.name!r} is of {column.dtype}, which Arrow lacks; use map to cast it"
            )
        if dtype.kind in "SU":
            return pa.array(values.tolist(), pa.string() if dtype.kind == "U" else pa.binary())
        if dtype.kind == "c":
            raise SchemaError(f"column {column.name!r} is complex, which Arrow lacks; keep .real and .imag")
        values = values.astype(dtype.newbyteorder("="), copy=False)
        if meaning.words is not None and self._with_words:
            if len(values) and int(values.max()) >= len(meaning.words):
                raise SchemaError(f"column {column.name!r} has the code {values.max()}, which has no word")
            codes = pa.array(values, mask=values < 0) if dtype.kind == "i" else pa.array(values)
            return pa.DictionaryArray.from_arrays(codes, pa.array(meaning.words, pa.string()))
        return pa.array(values)


def _times(column: Column, values: Array) -> pa.Array:
    """(N,) times; of a unit that Arrow lacks, in nanoseconds if that is finer, else in seconds."""
    unit, step = np.datetime_data(values.dtype)
    is_date = values.dtype.kind == "M"
    is_day = is_date and (unit, step) == ("D", 1)
    if not is_day and (unit not in _UNITS or step != 1):
        unit = unit if unit in _UNITS else "ns" if unit in _FINER else "s"
        values = values.astype(f"{values.dtype.kind}8[{unit}]")
    nothing = np.isnat(values)
    held = values.astype(values.dtype.newbyteorder("=")).view(np.int64)
    array = pa.array(held, mask=nothing if nothing.any() else None)
    if is_day:
        return array.cast(pa.int32()).view(pa.date32())
    return array.view(pa.timestamp(unit, column.meaning.timezone) if is_date else pa.duration(unit))


def _texts(column: Column, values: Array, offsets: Ints) -> pa.Array:
    made = pa.Array.from_buffers(
        _TEXT[column.kind],
        len(offsets) - 1,
        [None, _small(offsets), pa.py_buffer(np.ascontiguousarray(values))],
    )
    try:
        made.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"column {column.name!r} holds text that is not UTF-8: {error}") from error
    return made


def _lists(offsets: Ints, items: pa.Array) -> pa.Array:
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, _small(offsets)], children=[items])


def _small(offsets: Ints) -> pa.Buffer:
    if int(offsets[-1]) >= 2**31:
        raise SchemaError(
            f"{offsets[-1]} values are too many for a column of Arrow; export fewer rows at once"
        )
    return pa.py_buffer(offsets.astype("<i4"))


def _nulled(array: pa.Array, valid: Array) -> pa.Array:
    """The array with nulls where a value is not valid."""
    if valid.all():
        return array
    return array.take(pa.array(np.arange(len(valid)), mask=~valid))


def _struct(node: Node, arrays: list[pa.Array], count: int) -> pa.Array:
    if not arrays:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names=column_names(node))
