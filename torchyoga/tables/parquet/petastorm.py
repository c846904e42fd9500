"""Data sets that Petastorm wrote -> rows: Parquet files, with arrays and images in columns of bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ...errors import CorruptError, NotFoundError, SchemaError
from ...rows.block import Block
from ...rows.column import Column
from ...rows.data import Data
from ...rows.meaning import Codec, Meaning
from ...rows.node import VALID, Node, leaf_paths, path_name
from ...rows.schema import Schema
from .conversion import Conversion, Options
from .footers import footers_of
from .places import within
from .ref import ParquetRef, ref_of
from .row_filter import Filters
from .stored_arrays import arrays_of
from .unischema import Field, fields_of

__all__ = ["from_petastorm"]

_METADATA = "_common_metadata"
_UNISCHEMA = b"dataset-toolkit.unischema.v1"
_ARRAYS = ("ndarray", "npz")


def from_petastorm(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    *,
    trust_pickle: bool = False,
) -> ParquetRef:
    """A data set that Petastorm wrote, as a DataRef over its Parquet files; see `from_parquet`.

    Arrays (`NdarrayCodec`, `CompressedNdarrayCodec`) come as arrays, scalars in the types that its schema
    says. Images (`CompressedImageCodec`) stay encoded: rows have their bytes, and the schema says with which
    codec.

    Args:
        path: the folder with its `_common_metadata`, local or a URL.
        columns: the only ones to read.
        filters: as `from_parquet` takes them, on the columns as they are stored.
        cache_bytes: of decoded groups that are kept in each process.
        storage_options: for fsspec.
        trust_pickle: the schema beside the files is a pickle. It is read here without Petastorm, and by a
            reader that makes nothing but stand-ins for Petastorm's own classes; pass True if you accept that.

    Raises:
        ValueError: `trust_pickle` is not True.
        NotFoundError: there is no such folder, or no `_common_metadata` in it.
        CorruptError: the schema, or a value, is damaged.
        SchemaError: a column has a codec that is not known.
        KeyError: there is no such column.

    Example:
        >>> ref = yoga.from_petastorm("s3://bucket/frames", trust_pickle=True)  # doctest: +SKIP
    """
    place = within(path, _METADATA, storage_options)
    found = (footers_of([place])[0].metadata.metadata or {}).get(_UNISCHEMA)
    if found is None:
        raise NotFoundError(
            f"{place.name} has no schema of Petastorm's; read the files with yoga.from_parquet, or let "
            "Petastorm's petastorm-generate-metadata write it"
        )
    if trust_pickle is not True:
        raise ValueError(
            f"{place.name} holds Petastorm's schema as a pickle; pass trust_pickle=True if you know who "
            "wrote it. It is read without Petastorm, and can make nothing but descriptions of columns. "
            "yoga.from_parquet reads the files without it: arrays are bytes then"
        )
    fields = fields_of(found, place.name)
    return ref_of(path, columns, filters, cache_bytes, storage_options, PetastormOptions(fields=fields))


@dataclass(frozen=True)
class PetastormOptions(Options):
    """How the columns of such files are converted.

    Attributes:
        fields: what Petastorm's schema says of each column.
    """

    fields: Mapping[str, Field] | None = None

    def conversion(self, fields: pa.Schema) -> Conversion:
        """The conversion of these fields."""
        return _Conversion(fields, self, self.fields or {})


class _Conversion:
    """Turns tables with columns of Petastorm's into blocks."""

    def __init__(self, fields: pa.Schema, options: Options, known: Mapping[str, Field]) -> None:
        self._names = fields.names
        self._known = known
        self._nullable = {name: path_name((name,)) in options.nulls for name in fields.names}
        self._arrays = [name for name in self._names if name in known and known[name].codec in _ARRAYS]
        others = [number for number, name in enumerate(self._names) if name not in self._arrays]
        self._others = pa.schema([_stored(fields.field(n), known.get(fields.field(n).name)) for n in others])
        self._inner = Options.conversion(options, self._others)
        trees = dict(zip(self._others.names, self._inner.schema.tree.children, strict=True))
        columns: list[Column] = []
        self._inner_columns: dict[str, list[int]] = {name: [] for name in self._others.names}
        for number, leaf in enumerate(leaf_paths(self._inner.schema.tree)):
            self._inner_columns[str(leaf[0])].append(number)
        children = []
        for name in self._names:
            if name in self._arrays:
                children.append(self._node_of(name))
                columns += self._columns_of(known[name])
            else:
                children.append(trees[name])
                columns += self._with_codec(name)
        self.schema = Schema(Node("dict", tuple(self._names), tuple(children)), tuple(columns))

    def _node_of(self, name: str) -> Node:
        leaf = Node("leaf")
        return Node("nullable", (), (leaf, leaf)) if self._nullable[name] else leaf

    def _columns_of(self, field: Field) -> list[Column]:
        if field.dtype in ("text", "bytes", "decimal"):
            raise SchemaError(
                f"column {field.name!r} holds arrays of text, which are not supported; leave it out with "
                "columns="
            )
        name, shape = path_name((field.name,)), field.shape
        if shape:
            fixed = None if None in shape else tuple(extent or 0 for extent in shape)
            found = Column(name, "ndarray", field.dtype, fixed, len(shape))
        else:
            found = Column(name, "ndarray", field.dtype, (), 0)
        valid = Column(path_name((field.name, VALID)), "bool", "|b1", (), 0)
        return [found, valid] if self._nullable[field.name] else [found]

    def _with_codec(self, name: str) -> list[Column]:
        """The columns of an inner field; an image's bytes with the name of their codec."""
        columns = [self._inner.schema.columns[number] for number in self._inner_columns[name]]
        field = self._known.get(name)
        if field is None or field.codec != "image":
            return columns
        codec = Meaning(codec=Codec(field.image))
        return [replace(one, meaning=codec) if one.kind == "bytes" else one for one in columns]

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table."""
        others = pa.table(
            [_cast(table.column(one.name), one, where) for one in self._others], schema=self._others
        )
        inner = self._inner.block(others, where)
        data: list[Data] = []
        for name in self._names:
            if name not in self._arrays:
                data += [inner.data[number] for number in self._inner_columns[name]]
                continue
            column = _whole(table.column(name))
            is_valid = np.asarray(column.is_valid())
            if not self._nullable[name] and not is_valid.all():
                raise CorruptError(f"{where}: column {name!r} has nulls, of which its footer says nothing")
            data.append(arrays_of(column, self._known[name], where))
            if self._nullable[name]:
                data.append(Data(is_valid))
        return Block(self.schema, len(table), tuple(data))


def _stored(field: pa.Field, known: Field | None) -> pa.Field:
    """A field of the type that its values have for Petastorm; smaller ones are stored in larger ones."""
    if known is None or known.codec != "scalar" or known.shape or known.dtype == "decimal":
        return field
    if known.dtype == "text":
        wanted = pa.string()
    elif known.dtype == "bytes":
        wanted = pa.binary()
    else:
        wanted = pa.from_numpy_dtype(np.dtype(known.dtype))
        if pa.types.is_temporal(field.type) or pa.types.is_temporal(wanted):
            return field
    return field.with_type(wanted)


def _cast(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise CorruptError(
            f"{where}: column {field.name!r} is not {field.type}, as its schema says: {error}"
        ) from error


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        return found.chunk(0) if found.num_chunks else pa.array([], found.type)
    return found
