"""Chunks of LitData -> rows by number, where they lie; litdata is not needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa

from ...errors import CorruptError, SchemaError
from ...process.digests import json_digest
from ...reading.dataref import DataRef
from ...reading.in_place_ref import InPlaceRef
from ...rows.block import bounds_of
from ...rows.column import Codec, Meaning, exactly
from ...rows.learning import Learner
from ...rows.node import Node, Path, path_name
from ...rows.schema import Schema
from ...rows.types import Json, Row
from ...stores.downloads import FRAMED, StoredShard
from ..arrow_ref import KeptColumns, ref_over
from . import records
from .named_files import IndexedFile, IndexedFolder, is_below

_INDEX = "index.json"
_TORCH = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 4: "<c8", 5: "<c8", 6: "<c16", 7: "<c16", 8: "<f2"}
_TORCH |= {9: "<f2", 11: "|u1", 12: "|i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8"}
_TORCH |= {18: "<i8", 19: "|b1", 20: "<u2"}
_BFLOAT16 = 10
_NUMPY = {0: "|i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "|u1", 5: "<u2", 6: "<u4", 7: "<u8", 8: "<f2", 9: "<f4"}
_NUMPY |= {10: "<f8", 11: "<c8", 12: "<c16", 13: "|b1"}
_TABLE = b"LDARW01\0"  # ends a chunk that ends with an Arrow file
_MOST_BYTES = 2**32  # of a chunk: its offsets have 32 bits
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, StopIteration)
_FILES = {"bytes", "file", "video", "audio", "tifffile", "tiff", "pdf", "mesh", "nifti"}
_AT_ONCE = 32  # requests
_IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tiff": "tiff"}


def from_litdata(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """A dataset that LitData has optimized as a DataRef, read where it lies: in a folder or behind a URL.

    Local chunks that are not compressed are mapped. Others are downloaded when they are needed, or some time
    before, into a folder of bounded size, and decompressed there.

    Args:
        path: the folder or URL that has its `index.json`.
        columns: keys of the rows to keep, in this order, if rows are dicts; all by default.
        storage_options: for fsspec's filesystem.
        cache_dir: where downloaded chunks are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Rows nest as they did. Images and other files come as their bytes, which `ref.decoded()` decodes; Pillow's
    images come as arrays, and values that LitData keeps as JSON as lists. A dataset for `TokensLoader` has
    rows `{"tokens": tensor}`, one for each item, which `token_windows` cuts into blocks. Local chunks whose
    rows lie in an Arrow file at their end are read as `from_arrow` does. Items have no checksums; sizes that
    contradict each other are an error. Of items for `TokensLoader` only the first place, the last one and the
    sum are known twice: damage that moves the end of an item between them goes unnoticed.

    Raises:
        NotFoundError: there is no index.
        CorruptError: it is damaged, or a chunk has another size than it says. When read: an item is damaged.
        SchemaError: there are pickles, or chunks that are encrypted or whose items are compressed one by one
            (`compression_level="sample"`), or ones behind a URL that end with an Arrow file.
        RemoteError: the store cannot be reached.
    """
    source = IndexedFolder.of(path, storage_options, cache_dir, cache_bytes)
    index = source.json(_INDEX)
    try:
        config, chunks = exactly(dict, index["config"]), exactly(list, index["chunks"])
        _refuse(config, source.name)
        formats = [exactly(str, name) for name in config["data_format"]]
        are_tokens = config.get("item_loader") == "TokensLoader"
        spec = json.loads(config["data_spec"])[1]
        places: list[tuple[str, str]] = []
        keys = ["tokens"] if are_tokens else _keys(spec) if _kind(spec) == "dict" else []
        tree = _tree(spec, iter(formats), (), places, None if are_tokens else columns)
        stored = [_chunk(chunk, config.get("compression")) for chunk in chunks]
        if config.get("compression") and config.get("compression_level") == "batch":
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                stored = list(pool.map(lambda file: _framed(source, file), stored))
        if not stored or len(dict(places)) < len(places):
            raise ValueError(f"{len(stored)} chunks of {[name for name, _ in places]!r:.200}")
        if len(places) != len(formats) or (are_tokens and len(formats) != 1) or not formats:
            raise ValueError(f"{len(formats)} formats for {len(places)} values")
    except (SchemaError, CorruptError):
        raise
    except _DAMAGE as error:
        raise CorruptError(
            f"{source.where(_INDEX)} is no index of LitData, or is damaged: {error}"
            + ("; it has shards of MDS, for from_mds" if "shards" in index else "")
        ) from error
    unknown = [name for name in columns or () if name not in keys]
    if unknown or (columns is not None and not columns):
        raise KeyError(f"{source.name} has no columns {unknown}; it has {keys or 'rows that are no dicts'}")
    if not stored[0].stored.compression and _has_table(source, stored[0]):
        if source.folder is None:
            raise SchemaError(
                f"{source.name}: its rows lie in Arrow files at the ends of chunks, which are read from "
                "local files only; copy the folder to this machine, and pass its path"
            )
        paths = tuple(source.where(file.name) for file in stored)
        ref: DataRef = _of_tables(paths, None if columns is None else tuple(dict.fromkeys(columns)))
        return ref if columns is None else ref.columns(columns)
    values = {name: _value(name, how, source.name) if how else None for name, how in places}
    for chunk, file in zip(chunks, stored, strict=True):
        (run,) = values.values() if are_tokens else (None,)
        left, dim = file.stored.nbytes - 4 * (file.rows + 2), chunk.get("dim")
        if isinstance(run, records.RunValue) and dim is not None and dim * run.itemsize != left:
            raise CorruptError(
                f"{source.where(_INDEX)} says {dim} tokens in {left} bytes of {file.name}; write it again"
            )
    files, _, digests = source.files(stored, False)
    starts = bounds_of(file.rows for file in stored)
    content = json_digest([chunks, config["data_format"], config["data_spec"], columns, digests])
    if are_tokens:
        tree = Node("dict", ("tokens",), (tree,))
    learn = dict[str, Callable[[records.ValuePart], records.RecordValue]]()
    for name, value in values.items():
        if isinstance(value, records.ArrayValue):
            learn[name] = partial(value.learned, source.name, name, None, None)
        elif isinstance(value, records.DecodedValue) and value.function is _json:
            learn[name] = partial(_learned_json, source.name, name)
    sizes = (None,) * len(values)
    layout = records.Records(
        source.name, files, starts, records.UNKNOWN, content, values, sizes, (), are_tokens
    )
    ref = InPlaceRef(layout.rows_of(tree, learn))
    if columns is None or isinstance(columns, str):
        return ref if columns is None else ref.columns(columns)
    return ref.columns([path_name((name,)) for name in columns])


def _has_table(source: IndexedFolder, file: IndexedFile) -> bool:
    """True for a chunk whose rows lie in an Arrow file at its end."""
    nbytes = file.stored.nbytes
    return source.runs(file.name, [(max(0, nbytes - len(_TABLE)), nbytes)], nbytes) == [_TABLE]


def _of_tables(paths: tuple[str, ...], columns: Sequence[str] | None) -> DataRef:
    """The rows of Arrow files at the ends of chunks."""
    tables = []
    for path in paths:
        try:
            with pa.memory_map(path) as source:
                whole = source.read_buffer()
            end = whole.size - len(_TABLE) - 4
            start = end - int.from_bytes(whole[end : end + 4].to_pybytes(), "little") if end > 0 else -1
            if start < 0 or whole[end + 4 :].to_pybytes() != _TABLE:
                raise CorruptError(
                    f"{path} has no Arrow file at its end, as others have; write the dataset again"
                )
            table = pa.ipc.open_file(pa.BufferReader(whole.slice(start, end - start))).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{path}: its Arrow file is damaged, or gone: {error}") from error
        tables.append(table if columns is None else table.select(list(columns)))
    try:
        joined = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"{os.path.dirname(paths[0])}: its chunks have no schema that holds all values: {error}; write "
            "all of them with one schema"
        ) from error
    folder, remade = os.path.dirname(paths[0]), (_of_tables, (paths, columns))
    return ref_over(folder, joined.to_batches(), joined.schema, remade, KeptColumns())


def _refuse(config: Json, name: str) -> None:
    """Raises SchemaError for what cannot be read here."""
    problem = ""
    if config.get("encryption"):
        problem = "its chunks are encrypted"
    elif config.get("compression") and config.get("compression_level") == "sample":
        problem = "its items are compressed one by one"
    elif config.get("item_loader") not in ("PyTreeLoader", "TokensLoader", None):
        problem = f"it is for {config['item_loader']!r:.40}"
    elif str(config.get("compression") or "zstd").partition(":")[0] != "zstd":
        problem = f"its chunks are compressed by {config['compression']!r:.40}"
    if problem:
        raise SchemaError(
            f"{name}: {problem}, which is not read in place; submit litdata's own dataset to a storage"
        )


def _chunk(chunk: Json, compression: str | None) -> IndexedFile:
    name, rows, nbytes = is_below(chunk["filename"]), chunk["chunk_size"], chunk["chunk_bytes"]
    if not 0 < exactly(int, rows) < exactly(int, nbytes) <= _MOST_BYTES:
        raise ValueError(f"{rows} items in {nbytes} bytes")
    if not compression:
        return IndexedFile(name, rows, StoredShard(name, nbytes, 0))
    return IndexedFile(name.replace(".zstd.bin", ".bin"), rows, StoredShard(name, nbytes, 0, "zstd"))


def _framed(source: IndexedFolder, file: IndexedFile) -> IndexedFile:
    """A chunk whose items are compressed some at a time; its head says their size."""
    name, sent = file.stored.name, file.stored.nbytes
    low = FRAMED.size + 4 * (file.rows + 1)
    (head,) = source.runs(name, [(0, low)], sent) if low < sent else [b""]
    nbytes = 4 * (file.rows + 2) + int.from_bytes(head[low - 4 : low], "little")
    if not file.rows < nbytes <= _MOST_BYTES or len(head) < low:
        raise ValueError(f"{file.rows} items in {sent} bytes of {name}")
    return IndexedFile(f"{name}.raw", file.rows, StoredShard(name, nbytes, sent, "frames"))


def _kind(spec: Json) -> str:
    """What a tree of torch's is; "leaf" for a value."""
    return "leaf" if spec["type"] is None else exactly(str, spec["type"]).rpartition(".")[2]


def _keys(spec: Json) -> list[str | int]:
    """The keys of a dict; ValueError if there are others than texts and ints, or one of them twice."""
    keys = exactly(list, json.loads(spec["context"]))
    if not all(isinstance(key, (str, int)) for key in keys) or len({*keys}) < len(keys):
        raise ValueError(f"a dict with the keys {keys!r:.80}")
    return keys


def _tree(
    spec: Json,
    formats: Iterator[str],
    path: Path,
    places: list[tuple[str, str]],
    columns: Sequence[str] | None,
) -> Node:
    """How rows nest.

    Args:
        spec: of a tree of torch's.
        formats: of its leaves, and of those that follow.
        path: of the tree.
        places: takes the name and the format of each leaf; no format for those that are left out.
        columns: the keys that are kept, of the outermost tree; all by default.
    """
    kind = _kind(spec)
    if kind == "leaf":
        places.append((path_name(path) if path else "the item", next(formats)))
        return Node("leaf")
    if kind not in ("dict", "list", "tuple"):
        raise SchemaError(f"rows hold a {spec['type']}; submit litdata's own StreamingDataset to a storage")
    keys = _keys(spec) if kind == "dict" else range(len(spec["children_spec"]))
    kept = dict[str | int, Node]()
    for key, child in zip(keys, spec["children_spec"], strict=True):
        first = len(places)
        node = _tree(child, formats, (*path, key), places, None)
        if columns is None or key in columns:
            kept[key] = node
        else:
            places[first:] = [(name, "") for name, _ in places[first:]]
    return Node(kind, tuple(kept) if kind == "dict" else (), tuple(kept.values()))


def _learned_json(where: str, name: str, part: records.ValuePart) -> records.DecodedValue:
    """How values that lie as JSON are read, as some of them show it: lists are of any length."""
    learner, values = Learner(), [_json(text) for text in part.runs().texts()]
    are_lists = all(type(value) is list for value in values)
    try:
        for value in values if any(values) or not are_lists else [[0]]:  # of no items nothing is known
            learner.add(value)
        tree, columns, _ = learner.learned(["value"] if are_lists else ())
    except SchemaError as error:
        raise SchemaError(f"{where}: {name!r} holds JSON: {error}. Pass columns= without it") from error
    return records.DecodedValue(Schema(tree, columns), _json)


def _json(text: bytes) -> Row:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it nests too deep: {text[:40]!r}") from error


def _value(name: str, how: str, where: str) -> records.RecordValue:
    """How the values of a leaf lie."""
    kind, _, detail = how.partition(":")
    numbers = {"int": ("int", "<i8"), "float": ("float", "<f8"), "bool": ("bool", "|b1")}
    if kind in numbers:
        return records.FixedValue(records.leaf(*numbers[kind]))
    if kind in ("str", "text"):
        return records.RunValue(records.leaf("str", "|u1", None, 1))
    if kind in ("jpeg", "image"):
        codec = _IMAGES.get(detail, "jpeg")
        return records.RunValue(records.leaf("bytes", "|u1", None, 1, Meaning(codec=Codec(codec))))
    if kind in _FILES:
        return records.RunValue(records.leaf("bytes", "|u1", None, 1))
    code = int(detail) if detail.isdecimal() else -1
    if kind == "no_header_tensor" and code in _TORCH:
        return records.RunValue(records.leaf("tensor", np.dtype(_TORCH[code]).name, None, 1))
    if kind == "no_header_numpy" and code in _NUMPY:
        return records.RunValue(records.leaf("ndarray", _NUMPY[code], None, 1))
    if kind == "tensor":
        return records.ArrayValue(records.leaf("tensor", "uint8", None, 2), partial(_heads, ">u4"))
    if kind == "numpy":
        return records.ArrayValue(records.leaf("ndarray", "|u1", None, 2), partial(_heads, "<u4"))
    if kind == "pil":
        return records.ArrayValue(records.leaf("ndarray", "|u1", None, 3), records.pixels)
    if kind == "jpeg_array":
        return records.images(0)
    if kind == "json":
        return records.DecodedValue(records.UNKNOWN, _json)
    what = "pickles, which can run code" if kind == "pickle" else f"the format {how!r:.40}"
    raise SchemaError(
        f"{where}: {name!r} holds {what}, which is not read in place. Pass columns= without it; or, if you "
        "trust whoever wrote it, submit litdata's own StreamingDataset to a storage"
    )


def _heads(numbers: str, part: records.ValuePart) -> Iterator[records.ArrayGroup]:
    """The heads of arrays: their dtype, the number of dimensions, and these, as numbers of one dtype."""
    heads = part.head(np.arange(len(part.addresses)), 0, 8, numbers).astype(np.int64)
    keys = heads[:, 0] << 32 | heads[:, 1]
    for key in np.unique(keys).tolist():
        places = np.flatnonzero(keys == key)
        code, ndim = key >> 32, key & 0xFFFFFFFF
        dtype = (_TORCH if numbers == ">u4" else _NUMPY).get(code)
        if code == _BFLOAT16 and numbers == ">u4":
            raise SchemaError("tensors of bfloat16, which are not supported; write them as float32")
        if dtype is None or ndim > 32:
            raise records.BadValue(
                int(places[0]), f"an array of dtype {code} and {ndim} dimensions; write the chunk again"
            )
        shapes = part.head(places, 8, 4 * ndim, numbers).astype(np.int64)
        yield records.ArrayGroup(places, dtype, 8 + 4 * ndim, shapes)
