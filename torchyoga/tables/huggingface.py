"""Datasets of Hugging Face as DataRefs, read from their own Arrow files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..rows.column import Codec, Meaning
from ..rows.node import ITEMS, Path, path_name
from ..rows.types import Ints, Row
from .arrow import Decimals, found_in, plan_of
from .arrow_ref import ArrowRef

HuggingFace: TypeAlias = Any  # a datasets.Dataset
_ENCODED = {"Image": "image", "Audio": "audio", "Video": "video", "Pdf": "pdf"}


def from_huggingface(dataset: HuggingFace, *, words: bool = False, decimals: Decimals = "error") -> DataRef:
    """A `datasets.Dataset` as a DataRef, read from the Arrow files that it has mapped.

    Args:
        dataset: the dataset. What `select`, `shuffle`, `filter` and the columns of its format leave is kept;
            formats such as "torch" change nothing else, because batches are tensors anyway. A dataset with
            a transform is read row by row through it.
        words: see `from_arrow`.
        decimals: see `from_arrow`.

    A `ClassLabel` is a number, whose words are in the schema. An `Image`, an `Audio` and the like are their
    encoded bytes; those that are kept as paths are read from their files. `Array2D` and the like are arrays.

    Raises:
        TypeError: it is a DatasetDict, or an IterableDataset.
        SchemaError: a column cannot be kept.

    Example:
        >>> import datasets
        >>> names = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"])})
        >>> ref = from_huggingface(datasets.Dataset.from_dict({"label": [0, 1, 1]}, names).select([2, 0]))
        >>> [int(row["label"]) for row in ref], ref.schema.columns[0].meaning.words
        ([1, 0], ('cat', 'dog'))
    """
    if isinstance(dataset, Mapping):
        raise TypeError(f"from_huggingface takes one dataset; pass one of the splits {sorted(dataset)}")
    if not hasattr(dataset, "data"):
        raise TypeError(
            f"from_huggingface takes a datasets.Dataset, found a {type(dataset).__name__}; for a stream, "
            "pass it to Storage.submit"
        )
    if dataset.format["type"] == "custom":
        return HuggingFaceRef(dataset)
    whole, rows = _of_dataset(_plain(dataset), words, decimals), dataset._indices
    return whole if rows is None else whole.select(rows.column(0).to_numpy().astype(np.int64))


def _of_dataset(dataset: HuggingFace, words: bool, decimals: Decimals) -> ArrowRef:
    """The rows of a dataset that has no row numbers."""
    table = dataset.data.table.select(_columns(dataset))
    meanings: dict[str, Meaning] = {}
    for name in table.column_names:
        meanings.update(meanings_of((name,), dataset.features[name]))
    encoded = [place for place, meaning in meanings.items() if meaning.codec]
    batches = table.to_batches()
    found = found_in(batches)
    within = {f"{place}/{part}" for place in encoded for part in ("bytes", "path")}
    plan = plan_of(table.schema, found.nulls - within, None if words else found.words, decimals, meanings)
    labels = [meaning.words for meaning in meanings.values() if meaning.words]
    info = {"features": dataset.features.to_dict()}
    if len(labels) == 1:
        info["classes"] = list(labels[0])
    return ArrowRef("huggingface", plan, batches, (_of_dataset, (dataset, words, decimals)), info)


def _columns(dataset: HuggingFace) -> list[str]:
    """The columns that its rows have."""
    chosen: list[str] = list(dataset.format["columns"])
    if dataset.format["output_all_columns"]:
        chosen += [name for name in dataset.column_names if name not in chosen]
    return chosen


def _plain(dataset: HuggingFace) -> HuggingFace:
    """The dataset without its row numbers, which the view of it has."""
    if dataset._indices is None:
        return dataset
    import datasets

    return datasets.Dataset(dataset.data, info=dataset.info, split=dataset.split).with_format(
        columns=_columns(dataset)
    )


def meanings_of(path: Path, feature: object) -> Iterator[tuple[str, Meaning]]:
    """The meaning of the values of a feature, for each place in it where Arrow does not say it."""
    kind = type(feature).__name__
    if kind == "ClassLabel":
        yield path_name(path), Meaning(words=tuple(feature.names))  # type: ignore[attr-defined]
    elif kind in _ENCODED:
        yield path_name(path), Meaning(codec=Codec(_ENCODED[kind]))
    elif isinstance(feature, dict):
        for name, inner in feature.items():
            yield from meanings_of((*path, name), inner)
    elif isinstance(feature, list):
        yield from meanings_of((*path, ITEMS), feature[0])
    elif kind == "Sequence" and isinstance(feature.feature, dict):  # type: ignore[attr-defined]
        for name, inner in feature.feature.items():  # type: ignore[attr-defined]
            yield from meanings_of((*path, name, ITEMS), inner)
    elif hasattr(feature, "feature"):
        yield from meanings_of((*path, ITEMS), feature.feature)


class HuggingFaceRef(DataRef):
    """The rows of a dataset after its own transform, each made when it is read.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: HuggingFace) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, one by one."""
        with timed(Stage.TRANSFORM):
            return [self._dataset[row] for row in rows.tolist()]

    @property
    def _is_random(self) -> bool:
        """True, because a transform may be."""
        return True
