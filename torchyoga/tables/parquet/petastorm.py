"""Data sets that Petastorm wrote -> rows: Parquet files, with arrays and images in columns of bytes.

Their schema is a pickle, which is read without Petastorm and without running its code: the classes that it
names are replaced by stand-ins that hold what they are given and do nothing.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import CorruptError, NotFoundError, SchemaError
from ...rows.block import Block, Data, bounds_of
from ...rows.column import Codec, Column, Meaning
from ...rows.node import VALID, Node, path_name
from ...rows.schema import Schema
from ...rows.types import Array
from ..npy_header import npy_header
from .condition import Filters
from .files import Conversion, Options
from .footers import footers_of
from .places import within
from .ref import ParquetRef, ref_of

_METADATA = "_common_metadata"
_UNISCHEMA = b"dataset-toolkit.unischema.v1"
_ARRAYS = ("ndarray", "npz")
_MOST_BYTES = 2**31  # of an unpacked array whose shape the schema does not say
_SLACK = 2**16
_CODECS = {
    "NdarrayCodec": "ndarray",
    "CompressedNdarrayCodec": "npz",
    "CompressedImageCodec": "image",
    "ScalarCodec": "scalar",
}
# The types of NumPy that a field may have.
_NUMBERS = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "bool_", "datetime64"),
)
_TEXTS = {"str_": "text", "bytes_": "bytes"}
_MOST_SCHEMA_BYTES = 64 * 2**20  # of a pickle


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
    codec, and for `DataRef.decoded` their channels, bits and size, as far as the schema says them.

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
    found = (footers_of([place])[0].footer.metadata.metadata or {}).get(_UNISCHEMA)
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
    fields = _fields_of(found, place.name)
    return ref_of(path, columns, filters, cache_bytes, storage_options, PetastormOptions(fields=fields))


@dataclass(frozen=True)
class PetastormOptions(Options):
    """How the columns of such files are converted.

    Attributes:
        fields: what Petastorm's schema says of each column.
    """

    fields: Mapping[str, _Field] | None = None

    def conversion(self, fields: pa.Schema) -> Conversion:
        """The conversion of these fields."""
        return _Conversion(fields, self, self.fields or {})


class _Conversion:
    """Turns tables with columns of Petastorm's into blocks."""

    def __init__(self, fields: pa.Schema, options: Options, known: Mapping[str, _Field]) -> None:
        self._names = fields.names
        self._known = known
        self._nullable = {name: path_name((name,)) in options.nulls for name in fields.names}
        self._arrays = [name for name in self._names if name in known and known[name].codec in _ARRAYS]
        others = [name for name in self._names if name not in self._arrays]
        self._others = pa.schema([_stored(fields.field(name), known.get(name)) for name in others])
        self._inner = Options.conversion(options, self._others)
        trees = dict(zip(self._others.names, self._inner.schema.tree.children, strict=True))
        children, columns, left = list[Node](), list[Column](), iter(self._inner.schema.columns)
        for name in self._names:
            if name in self._arrays:
                leaf = Node("leaf")
                children.append(Node("nullable", (), (leaf, leaf)) if self._nullable[name] else leaf)
                columns += self._columns_of(known[name])
            else:
                children.append(trees[name])
                columns += self._with_codec(name, islice(left, trees[name].num_leaves))
        self.schema = Schema(Node("dict", tuple(self._names), tuple(children)), tuple(columns))

    def _columns_of(self, field: _Field) -> list[Column]:
        if field.dtype in ("text", "bytes", "decimal"):
            raise SchemaError(
                f"column {field.name!r} holds arrays of text, which are not supported; leave it out with "
                "columns="
            )
        name, shape = path_name((field.name,)), field.shape
        fixed = None if None in shape else tuple(extent or 0 for extent in shape)
        found = Column(name, "ndarray", field.dtype, fixed, len(shape))
        valid = Column(path_name((field.name, VALID)), "bool", "|b1", (), 0)
        return [found, valid] if self._nullable[field.name] else [found]

    def _with_codec(self, name: str, columns: Iterator[Column]) -> Iterator[Column]:
        """The columns of an inner field; an image's bytes with the name of their codec."""
        field = self._known.get(name)
        if field is None or field.codec != "image":
            return columns
        codec = Meaning(codec=_codec_of(field))
        return (replace(one, meaning=codec) if one.kind == "bytes" else one for one in columns)

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table."""
        others = pa.table(
            [_cast(table.column(one.name), one, where) for one in self._others], schema=self._others
        )
        inner = self._inner.block(others, where)
        data, left = list[Data](), iter(inner.data)
        for name, node in zip(self._names, self.schema.tree.children, strict=True):
            if name not in self._arrays:
                data += islice(left, node.num_leaves)
                continue
            column = table.column(name).combine_chunks()
            is_valid = np.asarray(column.is_valid())
            if not self._nullable[name] and not is_valid.all():
                raise CorruptError(f"{where}: column {name!r} has nulls, of which its footer says nothing")
            data.append(_arrays_of(column, self._known[name], where))
            if self._nullable[name]:
                data.append(Data(is_valid))
        return Block(self.schema, len(table), tuple(data))


def _codec_of(field: _Field) -> Codec:
    """The codec of an image, with its size where the schema says that, and the form of its array where that
    is not (H, W, 3) of bytes."""
    known = [(name, side) for name, side in zip(("height", "width"), field.shape, strict=False) if side]
    size = tuple(known) if len(known) == 2 else ()
    dtype = {"|u1": "uint8", "<u2": "uint16"}.get(field.dtype)
    if dtype is None or len(field.shape) not in (2, 3):
        return Codec(field.image)
    channels = 1 if len(field.shape) == 2 else field.shape[2] or 3
    if channels not in (1, 3, 4) or (dtype, channels) == ("uint8", 3):
        return Codec(field.image, size)
    axes = "hwc"[: len(field.shape)]
    form = (("axes", axes), ("channels", channels), ("dtype", dtype), ("kind", "ndarray"))
    return Codec(field.image, (*form, *size))


def _stored(field: pa.Field, known: _Field | None) -> pa.Field:
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


def _arrays_of(column: pa.Array, field: _Field, where: str) -> Data:
    """The arrays of a column of bytes; zeros, or none, where it is null.

    Args:
        column: of binary values.
        field: which codec they have, and what shape.
        where: the file and the group, for messages.

    Raises:
        CorruptError: a value is damaged, or not such as the schema says; names the row.
    """
    dtype, ndim = np.dtype(field.dtype), len(field.shape)
    arrays: Array | list[Array] = [np.empty((0,) * ndim, dtype)] * len(column)
    if None not in field.shape:
        arrays = np.zeros((len(column), *(extent or 0 for extent in field.shape)), dtype)
    for row, value in enumerate(column.to_pylist()):
        if value is not None:
            place = f"{where}, column {field.name!r}, row {row}"
            arrays[row] = _array(memoryview(value), field, dtype, place)
    if isinstance(arrays, np.ndarray):
        return Data(arrays)
    offsets = bounds_of(array.size for array in arrays)
    values = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, dtype)
    shapes = np.array([array.shape for array in arrays], "<i8").reshape(-1, ndim)
    return Data(values, offsets, shapes if ndim > 1 else None)


def _array(value: memoryview, field: _Field, dtype: np.dtype[np.generic], where: str) -> Array:
    if field.codec == "npz":
        value = _unpacked(value, field, dtype, where)
    parsed = npy_header(value)
    if parsed is None:
        raise CorruptError(f"{where}: not an array as numpy.save writes it")
    start, (found, is_fortran, shape) = parsed
    is_like = len(shape) == len(field.shape) and all(
        want in (None, have) for want, have in zip(field.shape, shape, strict=True)
    )
    if found.newbyteorder("=") != dtype.newbyteorder("=") or not is_like:
        raise CorruptError(
            f"{where}: an array of {found} {shape}, where the schema says {dtype} {field.shape}"
        )
    if len(value) - start != _nbytes(found, shape):
        raise CorruptError(f"{where}: an array of {shape} with {len(value) - start} bytes")
    flat: Array = np.frombuffer(value, found, offset=start)
    return flat.reshape(shape, order="F" if is_fortran else "C").astype(dtype, copy=False)


def _unpacked(value: memoryview, field: _Field, dtype: np.dtype[np.generic], where: str) -> memoryview:
    """The only array of an `.npz` file; refused by the size in its header before it is unpacked."""
    most = _MOST_BYTES
    if None not in field.shape:
        most = _nbytes(dtype, tuple(extent or 0 for extent in field.shape)) + _SLACK
    try:
        with zipfile.ZipFile(io.BytesIO(value)) as packed:
            (info,) = packed.infolist()
            if info.file_size > most:
                raise CorruptError(f"{where}: {info.file_size} bytes unpacked, more than its shape needs")
            with packed.open(info) as file:
                return memoryview(file.read(most + 1))
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"{where}: not an array as numpy.savez_compressed writes it: {error}") from error
    except Exception as error:  # zlib.error
        raise CorruptError(f"{where}: damaged: {error}") from error


def _nbytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * prod(shape)


@dataclass(frozen=True)
class _Field:
    """A field of Petastorm's schema.

    Attributes:
        name: of the column.
        codec: "ndarray", "npz", "image", or "scalar" for values that are stored as they are.
        image: "png" or "jpeg", of an image.
        dtype: of its values, as NumPy names it; or "text", "bytes", "decimal".
        shape: of a value; None for extents that vary.
    """

    name: str
    codec: str
    image: str
    dtype: str
    shape: tuple[int | None, ...]


class _StandIn:
    """Stands in for an object: what its class was, and what was put into it."""

    kind = ""
    arguments: tuple[object, ...]

    def __new__(cls, *arguments: object) -> _StandIn:
        """One that is made of these, also where a pickle calls no `__init__`."""
        made = object.__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: object) -> None:
        self.state = state


def _fields_of(pickled: bytes, where: str) -> dict[str, _Field]:
    """The fields of a pickled Unischema, by name.

    Args:
        pickled: as it lies in the file.
        where: the file, for messages.

    Raises:
        CorruptError: it is damaged, or names something else than Petastorm's schemas do.
        SchemaError: a field has a codec or a type that is not known.
    """
    if len(pickled) > _MOST_SCHEMA_BYTES:
        raise CorruptError(f"{where}: its schema is a pickle of {len(pickled)} bytes, which no schema needs")
    try:
        found = _Restricted(io.BytesIO(pickled)).load()
        listed = found.state["_fields"].values()
    except CorruptError as error:
        raise CorruptError(f"{where}: {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise CorruptError(f"{where}: the pickled schema is damaged: {error!r:.200}") from error
    return {field.name: field for field in (_field(item, where) for item in listed)}


def _field(item: object, where: str) -> _Field:
    values: tuple[Any, ...] = item.arguments if isinstance(item, _StandIn) else ()
    if len(values) not in (4, 5) or not isinstance(values[0], str) or not isinstance(values[2], tuple):
        raise CorruptError(f"{where}: a field of the pickled schema is {values!r:.200}")
    name, dtype, shape, codec = values[:4]
    kind = "scalar" if codec is None else _CODECS.get(getattr(codec, "kind", ""), "")
    if not kind:
        raise SchemaError(
            f"{where}: column {name!r} has the codec {getattr(codec, 'kind', codec)!r:.100}; known are "
            f"{', '.join(_CODECS)}. Read its bytes with from_parquet"
        )
    if not isinstance(dtype, str) or not all(type(extent) in (int, type(None)) for extent in shape):
        raise SchemaError(
            f"{where}: column {name!r} has values of a type or a shape that is not known: {dtype!r:.100} "
            f"{shape!r:.100}"
        )
    state = getattr(codec, "state", {})
    image = state.get("_image_codec", ".png") if isinstance(state, dict) else ".png"
    image = str(image).lstrip(".").replace("jpg", "jpeg")
    return _Field(name, kind, image, dtype, shape)


class _Restricted(pickle.Unpickler):
    """Loads what a Unischema consists of, and refuses everything else before it is made."""

    def find_class(self, module: str, name: str) -> object:
        """A stand-in for a class; CorruptError for one that no Unischema needs."""
        if module in ("petastorm.unischema", "petastorm.codecs"):
            return _stand_in(name)
        if module == "pyspark.sql.types" and name.endswith("Type"):
            return _stand_in(name)
        if module == "pyspark.serializers" and name == "_restore":
            return _restored
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
            if name in _NUMBERS:
                return np.dtype(getattr(np, name)).str
            if name in _TEXTS:
                return _TEXTS[name]
        known = {("collections", "OrderedDict"): OrderedDict, ("decimal", "Decimal"): "decimal"}
        if (module, name) in known:
            return known[module, name]
        raise CorruptError(
            f"the pickled schema wants {module}.{name}, which no schema of Petastorm needs; nothing was run"
        )


def _stand_in(name: str) -> type[_StandIn]:
    """A new class: whatever a pickle does to it is forgotten with it."""
    return type(name, (_StandIn,), {"kind": name})


def _restored(name: str, fields: object, values: tuple[object, ...]) -> _StandIn:
    """Makes namedtuples as pyspark does."""
    return _stand_in(str(name))(*values)
