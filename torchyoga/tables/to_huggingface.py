"""Rows -> a dataset of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import datasets
import datasets.table
import pyarrow as pa

from ..errors import SchemaError
from ..reading.dataref import DataRef
from ..rows.column import Column
from ..rows.image_formats import ENDINGS
from ..rows.node import VALID, Node
from .arrow import plan_of
from .huggingface import meanings_of
from .written import CONTAINERS, table_of

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
        tree, left, known = ref.schema.tree, iter(ref.schema.columns), _known(ref)
        nodes = tree.children if tree.kind in CONTAINERS else (tree,)
        for name, node in zip(table.column_names, nodes, strict=True):
            columns = list(islice(left, node.num_leaves))
            if name in known and _looks(name, known[name]) == _without_masks(columns):
                features[name] = known[name]
            else:
                features[name] = _feature(features[name], node, iter(columns))
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


def _looks(name: str, feature: Feature) -> list[Column] | None:
    """The columns that rows of a feature have; None if they have none."""
    try:
        schema = datasets.Features({name: feature}).arrow_schema
        return list(plan_of(schema, meanings=dict(meanings_of((name,), feature))).schema.columns)
    except (SchemaError, pa.ArrowException):
        return None


def _without_masks(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if not column.name.endswith(VALID)]


def _feature(found: Feature, node: Node, columns: Iterator[Column]) -> Feature:
    """The feature of a part of the rows: as Arrow says, with what its columns stand for.

    Args:
        found: what Arrow says.
        node: the part of the tree.
        columns: its columns, and those that follow.
    """
    if node.kind in ("leaf", "texts"):
        column = next(columns)
        if node.kind == "texts":
            next(columns)
        meaning = column.meaning
        encoded = _ENCODED.get(meaning.codec.name, "") if meaning.codec is not None else ""
        if hasattr(datasets, encoded):
            return getattr(datasets, encoded)()
        return found if meaning.words is None else _labels(found, datasets.ClassLabel(names=[*meaning.words]))
    if node.kind == "nullable":
        made = _feature(found, node.children[0], columns)
        next(columns)
        return made
    if node.kind == "varying":
        item = _feature(_item(found), node.children[0], columns)
        if len(node.children) == 2:
            next(columns)
        return _list_of(found, item)
    pairs = zip(found.items(), node.children, strict=True)
    return {name: _feature(inner, child, columns) for (name, inner), child in pairs}


def _labels(found: Feature, label: Feature) -> Feature:
    """Labels, or lists of such, where Arrow says numbers."""
    inner = _item(found)
    return label if inner is None else _list_of(found, _labels(inner, label))


def _item(feature: Feature) -> Feature:
    """The feature of the items of lists; None for anything else."""
    return feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)


def _list_of(found: Feature, item: Feature) -> Feature:
    """Lists of items, of the kind that Arrow says."""
    return [item] if isinstance(found, list) else type(found)(item, length=found.length)
