"""Rows -> a dataset of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import datasets
import datasets.table
import pyarrow as pa
import pyarrow.compute as pc

from ..reading.dataref import DataRef
from ..rows.column import Column
from ..rows.image_formats import ENDINGS
from ..rows.node import Node
from .buffers import storage_type
from .written import table_of

Feature: TypeAlias = Any  # a feature, or a dict or a list of such
_ENCODED = {
    **dict.fromkeys(("image", *ENDINGS), "Image"),
    **dict.fromkeys(("audio", "flac", "wav"), "Audio"),
    "video": "Video",
    "pdf": "Pdf",
}


def dataset_of(ref: DataRef) -> datasets.Dataset:
    """All rows as a dataset in memory; see `DataRef.to_huggingface`."""
    table = table_of(ref, with_words=False)
    features = datasets.Features.from_arrow_schema(table.schema)
    if ref.schema is not None:
        tree, columns, known = ref.schema.tree, iter(ref.schema.columns), _known(ref)
        nodes = tree.children if tree.kind in ("dict", "list", "tuple", "namedtuple") else (tree,)
        for name, node in zip(table.column_names, nodes, strict=True):
            features[name] = _feature(features[name], known.get(name), table[name], node, columns)
        if not len(table):  # which cannot be cast
            return datasets.Dataset.from_dict({name: [] for name in features}, features)
        table = datasets.table.table_cast(table, features.arrow_schema)
    return datasets.Dataset(datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=features))


def _known(ref: DataRef) -> Mapping[str, Feature]:
    """The features of the dataset that the rows are from, if they are from one."""
    try:
        return dict(datasets.Features.from_dict(ref.info["features"]))
    except Exception:  # of any kind: `info` may hold whatever a user wrote
        return {}


def _feature(
    found: Feature, known: Feature, array: pa.ChunkedArray, node: Node, columns: Iterator[Column]
) -> Feature:
    """The feature of a part of the rows: what its columns stand for, as the known one has it if that fits.

    Args:
        found: what Arrow says.
        known: what the part was in the dataset that it is from; None if nothing is known.
        array: the values.
        node: the part of the tree.
        columns: its columns, and those that follow.
    """
    if node.kind in ("leaf", "texts"):
        column = next(columns)
        if node.kind == "texts":
            next(columns)
        return _of_column(found, known, array, column)
    if node.kind == "nullable":
        made = _feature(found, known, array, node.children[0], columns)
        next(columns)
        return made
    if node.kind == "varying":
        item = _feature(_item(found), _item(known), pc.list_flatten(array), node.children[0], columns)
        if len(node.children) == 2:
            next(columns)
        return _list_of(item, found, known, array)
    fields = known if isinstance(known, dict) else {}
    made = {
        name: _feature(inner, fields.get(name), pc.struct_field(array, i), child, columns)
        for i, ((name, inner), child) in enumerate(zip(found.items(), node.children, strict=True))
    }
    is_flat = isinstance(known, (datasets.Translation, datasets.TranslationVariableLanguages))
    return known if is_flat and known.flatten() == made else made


def _of_column(found: Feature, known: Feature, array: pa.ChunkedArray, column: Column) -> Feature:
    meaning = column.meaning
    encoded = _ENCODED.get(meaning.codec.name, "") if meaning.codec is not None else ""
    if hasattr(datasets, encoded):
        kind = getattr(datasets, encoded)
        return known if isinstance(known, kind) else kind()
    label = None if meaning.words is None else datasets.ClassLabel(names=list(meaning.words))
    return _of_values(found, known, array, label)


def _of_values(found: Feature, known: Feature, array: pa.ChunkedArray, label: Feature | None) -> Feature:
    """The feature of numbers and texts, or of lists of such; `label` is that of the numbers, if not None."""
    inner = _item(found)
    if inner is None:
        return label or (known if _is_alike(found, known, array) else found)
    if hasattr(known, "shape") and label is None:
        return known if _has_shape(array, known.shape, known.dtype) else found
    return _list_of(_of_values(inner, _item(known), pc.list_flatten(array), label), found, known, array)


def _item(feature: Feature) -> Feature:
    """The feature of the items of lists; None for anything else."""
    return feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)


def _list_of(item: Feature, found: Feature, known: Feature, array: pa.ChunkedArray) -> Feature:
    """Lists of items, of the kind that is known if these are of its length."""
    if isinstance(found, list):
        return [item]
    if isinstance(known, datasets.LargeList):
        return datasets.LargeList(item)
    length = getattr(known, "length", -1)
    return type(found)(item, length=length if _has_extent(array, length) else found.length)


def _has_extent(array: pa.ChunkedArray, extent: int | None) -> bool:
    lengths = pc.list_value_length(array)
    return extent is None or bool(pc.all(pc.equal(lengths, extent)).as_py() is not False)


def _has_shape(array: pa.ChunkedArray, shape: tuple[int | None, ...], dtype: str) -> bool:
    """True if lists in lists are arrays of a shape, None for any extent, and of a dtype."""
    for extent in shape:
        if not (pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
            return False
        if not _has_extent(array, extent):
            return False
        array = pc.list_flatten(array)
    return bool(array.type == datasets.Value(dtype).pa_type)


def _is_alike(found: Feature, known: Feature, array: pa.ChunkedArray) -> bool:
    """True if a known feature of single values holds these as well."""
    if type(known).__name__ not in ("Value", "Json"):
        return False
    one, other, types = found.pa_type, storage_type(known.pa_type), pa.types
    texts = types.is_string, types.is_large_string, types.is_string_view
    data = types.is_binary, types.is_large_binary, types.is_binary_view
    for kinds in (texts, data, (types.is_date,), (types.is_time,), (types.is_decimal,)):
        if all(any(is_kind(kind) for is_kind in kinds) for kind in (one, other)):
            try:
                array.cast(other)
            except pa.ArrowInvalid:  # a decimal of too many digits, a time of too fine a unit
                return False
            return True
    return False
