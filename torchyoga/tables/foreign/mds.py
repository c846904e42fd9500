"""Shards of MosaicML Streaming (MDS) -> rows by number, where they lie; streaming is not needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ...errors import CorruptError, SchemaError
from ...process.digests import json_digest
from ...reading.dataref import DataRef
from ...reading.in_place_ref import InPlaceRef
from ...rows.block import bounds_of
from ...rows.column import Codec, Meaning, exactly
from ...rows.node import Node
from ...rows.schema import Schema
from ...rows.types import Json
from ...stores.downloads import StoredShard
from . import records
from .named_files import IndexedFile, IndexedFolder, is_below

_INDEX = "index.json"
_SCALARS = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {"float8"}
_CODES = {8: "|u1", 9: "|i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
_CODES |= {64: "<u8", 65: "<i8", 66: "<f8"}
_MOST_RAW = 2**32  # bytes of a shard: its offsets have 32 bits


def from_mds(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    ndims: Mapping[str, int] | None = None,
    verify: bool = True,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """A dataset of MosaicML Streaming as a DataRef, read where it lies: a folder or URL with an `index.json`.

    Shards of this machine that are not compressed are mapped. Others are downloaded when they are needed, or
    some time before, into a folder of bounded size, and decompressed there.

    Args:
        path: the folder, or the URL of one; a split is a folder of its own. For several streams make a
            DataRef of each, and `concat` or `mix` these.
        columns: names of the columns to keep; all by default.
        dtypes: the dtypes of columns in which each array carries its own, such as `{"x": "float32"}`; by
            default one that holds the values of 64 arrays.
        ndims: the most dimensions of columns in which each array carries its own shape; by default those of
            64 arrays.
        verify: compare files with the hashes that the index has; of local ones when a process first maps
            them.
        storage_options: for fsspec's filesystem.
        cache_dir: where downloaded shards are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Rows are dicts. Images come as their bytes, which `ref.decoded()` decodes, those of `pil` as arrays;
    `json` and `str_decimal` are text; `str_int` is read if it has 64 bits at most. Records have no checksums;
    sizes that contradict each other are an error. A dataset without a sample is empty, and has no columns.

    Raises:
        NotFoundError: there is no index.
        CorruptError: it is damaged, or a shard has another size than it says. When read: a record is damaged.
        SchemaError: shards differ in their columns, a column is of pickles, or of arrays that differ.
        RemoteError: the store cannot be reached.
    """
    source = IndexedFolder.of(path, storage_options, cache_dir, cache_bytes)
    index = source.json(_INDEX)
    try:
        if exactly(int, index["version"]) != 2:
            raise ValueError(f"version {index['version']}; only 2 is known")
        shards = [_shard(entry) for entry in exactly(list, index["shards"])]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(
            f"{source.where(_INDEX)} is not an index of MDS, or is damaged: {error}"
            + ("; it has chunks of LitData, for from_litdata" if "chunks" in index else "")
        ) from error
    # A writer that was given no sample names no shard, and so no columns.
    _, names, encodings, sizes = shards[0] if shards else (None, (), (), ())
    for stored, *others in shards:
        if others != [names, encodings, sizes]:
            raise SchemaError(
                f"{source.where(stored.name)} has columns {others[:2]}, the first shard "
                f"{[names, encodings]}; make a DataRef of each kind of shards, and concat them"
            )
    columns, dtypes, ndims = columns if shards else None, dtypes or {}, ndims or {}
    wanted = list(names) if columns is None else list(columns)
    unknown = [name for name in wanted if name not in names]
    if unknown or (shards and not wanted):
        raise KeyError(f"{source.name} has no columns {unknown}; it has {', '.join(names)}")
    values = {
        name: _value(name, encoding, source.name) if name in wanted else None
        for name, encoding in zip(names, encodings, strict=True)
    }
    files, hashes, digests = source.files([stored for stored, *_ in shards], verify)
    starts = bounds_of(stored.rows for stored, *_ in shards)
    content = json_digest(
        [[index["shards"]], digests, wanted, {name: np.dtype(one).str for name, one in dtypes.items()}]
    )
    layout = records.Records(source.name, files, starts, records.UNKNOWN, content, values, sizes, hashes)
    learn = {
        name: partial(value.learned, source.name, name, dtypes.get(name), ndims.get(name))
        for name, value in values.items()
        if isinstance(value, records.ArrayValue)
    }
    of_none = [name for name in {**dtypes, **ndims} if name not in learn and values.get(name, 0) is not None]
    if of_none:
        raise KeyError(
            f"{source.name} has no arrays {of_none} that say themselves what they are; it has {[*learn]}"
        )
    shown = tuple(name for name in names if name in wanted)
    tree = Node("dict", shown, (Node("leaf"),) * len(shown))
    ref: DataRef = InPlaceRef(layout.rows_of(tree, learn))
    return ref if columns is None else ref.columns(columns)


def _shard(entry: Json) -> tuple[IndexedFile, tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    """A shard, the names, encodings and sizes of its columns; ValueError, TypeError or KeyError if it is
    none."""
    if entry["format"] != "mds":
        raise ValueError(f"shards of format {entry['format']!r:.20}; read those by their own library")
    raw, zipped = entry["raw_data"], entry.get("zip_data")
    rows, nbytes = (exactly(int, number) for number in (entry["samples"], raw["bytes"]))
    if not 0 <= rows < nbytes <= _MOST_RAW or 4 * (rows + 2) > nbytes:
        raise ValueError(f"{rows} samples in {nbytes} bytes")
    columns = [tuple(exactly(list, entry[f"column_{of}"])) for of in ("names", "encodings", "sizes")]
    names, encodings, sizes = columns
    texts = all(type(text) is str for text in (*names, *encodings))
    are_alike = 0 < len(names) == len(encodings) == len(sizes)
    if not texts or not are_alike or len(set(names)) < len(names):
        raise ValueError(f"columns {names!r:.200} of encodings {encodings!r:.200}")
    if not all(size is None or (type(size) is int and 0 <= size <= nbytes) for size in sizes):
        raise ValueError(f"columns of sizes {sizes!r:.200}")
    name, hashes = is_below(raw["basename"]), _hashes(raw)
    stored = StoredShard(name, nbytes, nbytes, hashes=hashes)
    if zipped:
        how, sent = exactly(str, entry["compression"]).partition(":")[0], exactly(int, zipped["bytes"])
        stored = StoredShard(is_below(zipped["basename"]), nbytes, sent, how, _hashes(zipped), hashes)
    # Zero stands for a size that records say, as in their own reader.
    return IndexedFile(name, rows, stored), names, encodings, tuple(size or None for size in sizes)


def _hashes(entry: Json) -> tuple[tuple[str, str], ...]:
    hashes = exactly(dict, entry["hashes"] or {})
    return tuple((exactly(str, name), exactly(str, digits)) for name, digits in hashes.items())


def _value(name: str, encoding: str, where: str) -> records.RecordValue:
    """How the values of a column lie."""
    kind, _, how = encoding.partition(":")
    if kind in _SCALARS:
        return records.FixedValue(records.leaf("scalar", np.dtype(kind).str))
    if kind == "ndarray":
        try:
            return _array(how)
        except SchemaError as error:
            raise SchemaError(f"{where}: column {name!r} holds {error}; pass columns= without it") from error
    if kind in ("jpeg", "png"):
        return records.RunValue(records.leaf("bytes", "|u1", None, 1, Meaning(codec=Codec(kind))))
    if kind in ("bytes", "str", "json", "str_decimal"):
        return records.RunValue(records.leaf("bytes" if kind == "bytes" else "str", "|u1", None, 1))
    if kind == "int":
        return records.FixedValue(records.leaf("int", "<i8"))
    if kind == "pil":
        return records.ArrayValue(records.leaf("ndarray", "|u1", None, 3), records.pixels)
    if kind in ("str_int", "str_float"):
        return records.DecodedValue(
            Schema.of(0 if kind == "str_int" else 0.0), _int if kind == "str_int" else float
        )
    if kind in ("list[jpeg]", "list[png]", "jpeg_array", "jpegarray"):
        return records.images(4 if kind.startswith("list") else 0)
    if kind == "pkl":
        raise SchemaError(
            f"{where}: column {name!r} holds pickles, which can run code. Pass columns= without it; or, "
            "if you trust whoever wrote them, read the dataset by StreamingDataset(allow_unsafe_types=True), "
            "and write it again by MDSWriter with another encoding, such as json"
        )
    raise SchemaError(
        f"{where}: column {name!r} has the encoding {encoding!r:.40}, which is not known; pass "
        "columns= without it"
    )


def _int(text: bytes) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{text[:40]!r} does not fit an int of 64 bits; pass columns= without it")
    return value


def _array(how: str) -> records.RecordValue:
    """Arrays: of a dtype, of a dtype and a shape, or that say both of themselves."""
    dtype, _, extents = how.partition(":")
    if dtype not in ("", *_SCALARS):
        raise SchemaError(f"arrays of {dtype!r:.20}")
    own = np.dtype(dtype or "uint8").str
    if extents:
        try:
            fixed = records.FixedValue(records.leaf("ndarray", own, tuple(map(int, extents.split(",")))))
        except ValueError as error:
            raise SchemaError(f"arrays of the shape {extents!r:.40}: {error}") from error
        if not fixed.size:
            raise SchemaError(f"arrays of the shape {extents!r:.40}, which have no elements")
        return fixed
    return records.ArrayValue(records.leaf("ndarray", own, None, 1), partial(_heads, own if dtype else None))


def _heads(shared: str | None, part: records.ValuePart) -> Iterator[records.ArrayGroup]:
    """The heads of arrays: a byte for the dtype, unless all have one; a byte for the dimensions, and these.

    Args:
        shared: the dtype of all; None if each says its own.
        part: some arrays.
    """
    every = np.arange(len(part.addresses))
    before = int(shared is None)
    bytes_ = part.head(every, 0, 1 + before, "u1")
    keys = bytes_[:, 0].astype(np.int64) << 8 | bytes_[:, -1] if before else bytes_[:, 0].astype(np.int64)
    for key in np.unique(keys).tolist():
        places = np.flatnonzero(keys == key)
        dtype = shared or _CODES.get(key >> 8)
        ndim, width = (key & 255) >> 2, 1 << (key & 3)
        if dtype is None:
            raise records.BadValue(
                int(places[0]), f"an array of an unknown dtype, {key >> 8}; write the file again"
            )
        shapes = part.head(places, 1 + before, ndim * width, f"<u{width}")
        yield records.ArrayGroup(places, dtype, 1 + before + ndim * width, shapes)
