"""Rows -> a dataset of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import datasets
import datasets.table

from ..reading.dataref import DataRef
from ..rows.column import Column
from ..rows.node import Node, path_name
from ..rows.schema import Schema
from .written import table_of

__all__ = ["dataset_of"]

Feature: TypeAlias = Any  # a feature, or a dict of such
_ENCODED = {
    "image": "Image",
    "jpeg": "Image",
    "png": "Image",
    "webp": "Image",
    "audio": "Audio",
    "video": "Video",
}


def dataset_of(ref: DataRef) -> datasets.Dataset:
    """All rows as a dataset in memory; see `DataRef.to_huggingface`."""
    table = table_of(ref, with_words=False)
    features = datasets.Features.from_arrow_schema(table.schema)
    if ref.schema is not None:
        for name, feature in _features(ref.schema, features):
            features[name] = feature
        table = datasets.table.table_cast(table, features.arrow_schema)
    return datasets.Dataset(datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=features))


def _features(schema: Schema, found: datasets.Features) -> Iterator[tuple[str, Feature]]:
    """The features of columns that stand for more than Arrow says."""
    columns = {column.name: column for column in schema.columns}
    tree = schema.tree
    named = zip(map(str, tree.keys or range(len(tree.children))), tree.children, strict=True)
    places = named if tree.kind in ("dict", "list", "tuple", "namedtuple") else iter([("value", tree)])
    for name, node in places:
        key = path_name((name,)) if tree.kind == "dict" else name
        column = columns.get(key)
        made = None if column is None or not _is_value(node) else _feature(column)
        if made is not None:
            yield name, made


def _is_value(node: Node) -> bool:
    return (node.children[0] if node.kind == "nullable" else node).kind == "leaf"


def _feature(column: Column) -> Feature | None:
    meaning = column.meaning
    if meaning.words is not None and not column.is_ragged:
        return datasets.ClassLabel(names=list(meaning.words))
    if meaning.codec is not None and meaning.codec.name in _ENCODED:
        return getattr(datasets, _ENCODED[meaning.codec.name])()
    return None
