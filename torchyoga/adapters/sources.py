"""Any data -> a source of its rows: which framework's data it is, and the adapter that reads it.

A framework is known by the modules in which the data's classes were made, so it is loaded already, and its
adapter is loaded only for data of its own.
"""

from __future__ import annotations

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..building.sources import BlockSource, RowSource, Source
from ..reading.dataref import DataRef
from ..rows.schema import Schema
from ..tables.recognised import recognised
from ..views.flattened import flattened
from . import files, flat_map, python, ref, torch, webdataset
from .arrays import from_arrays, is_arrays

__all__ = ["dataset_and_source", "source_of"]

_NO_DATASETS = (str, bytes, bytearray, dict, set, frozenset)


def dataset_and_source(
    data: object, num_workers: int = 0, schema: Schema | None = None
) -> tuple[object, Source]:
    """A dataset, and a source of its rows; the dataset is what a function returns, if `data` is one.

    Args:
        data: whatever `Storage.submit` takes.
        num_workers: processes that read it, if its rows are read by number.
        schema: the rows' schema, if it is known.

    Raises:
        TypeError: no rows can be read from it.
        ValueError, SchemaError: as the adapter of its framework raises them.

    Example:
        >>> dataset, source = dataset_and_source(lambda: [1, 2])
        >>> dataset, list(source.rows(0))
        ([1, 2], [1, 2])
    """
    source = source_of(data, num_workers, schema)
    while source is None:
        if not callable(data):
            raise TypeError(
                f"no rows can be read from a {type(data).__name__}; pass a Dataset, an array or an iterable"
            )
        data = data()
        source = source_of(data, num_workers, schema)
    return data, source


def source_of(data: object, num_workers: int = 0, schema: Schema | None = None) -> Source | None:
    """A source of the rows of any data, made by the adapter that knows it; None if it has no rows.

    Args:
        data: whatever `Storage.submit` takes, but for functions, which have no rows themselves.
        num_workers: processes that read it, if its rows are read by number.
        schema: the rows' schema, if it is known.

    Raises:
        TypeError: it seems a dataset, but is not: text, a dict that is not of arrays, several datasets.
        ValueError, SchemaError: as the adapter of its framework raises them.

    Example:
        >>> print(source_of({"x": np.arange(3)}).schema)
        x: scalar <i8 [scalar]
    """
    _refuse_several(data)
    if isinstance(data, (RowSource, BlockSource)):
        return data
    if is_arrays(data):
        data = from_arrays(data)
    table = recognised(data)
    data = data if table is None else table
    source = (
        files.source_of(data, schema)
        or webdataset.source_of(data)
        or flat_map.source_of(data, lambda inner: _by_number(inner, num_workers))
        or _of_framework(data, num_workers)
    )
    if source is not None:
        return source
    flat = flattened(data)
    data = data if flat is None else flat
    source = ref.source_of(data, schema)
    if source is not None:
        return source
    _refuse_no_dataset(data)
    return torch.source_of(data, num_workers) or python.source_of(data)


def _by_number(data: object, num_workers: int) -> Source:
    """A source of any data, whose rows can begin anywhere if the data has rows by number."""
    _, source = dataset_and_source(data, num_workers)
    if isinstance(source, ref.RefSource) and not source.ref.is_random:
        return torch.source_of(source.ref, num_workers) or source
    return source


def _of_framework(data: object, num_workers: int) -> Source | None:
    """Data of a framework that need not be installed as a source; None for anything else."""
    frameworks = {cls.__module__.partition(".")[0] for cls in type(data).__mro__}
    if "tensorpack" in frameworks:
        from . import dataflow

        return dataflow.source_of(data)
    if frameworks & {"keras", "tf_keras"}:
        from . import keras_sequence

        return keras_sequence.source_of(data, num_workers)
    if "tensorflow" in frameworks:
        from . import tensorflow

        return tensorflow.source_of(data)
    return None


def _refuse_several(data: object) -> None:
    """Raises TypeError for a tuple, a list or a dict of datasets, whose rows it would be."""
    several = list(data.values()) if isinstance(data, dict) else data
    if (
        isinstance(several, (list, tuple))
        and several
        and all(isinstance(item, (Dataset, DataRef, DataLoader)) for item in several)
    ):
        raise TypeError(
            f"a {type(data).__name__} of {len(several)} datasets was passed, but a version holds one; give "
            'each a version of its own. With cacheable, let an argument choose, as in "mnist-{split}", and '
            "return the dataset that it names"
        )


def _refuse_no_dataset(data: object) -> None:
    """Raises TypeError for what can be indexed or iterated, but does not give rows then."""
    if isinstance(data, _NO_DATASETS) and not isinstance(data, IterableDataset):
        raise TypeError(
            f"a {type(data).__name__} is not a dataset; pass a list, dict of arrays, Dataset or iterable"
            + (f". {_odd_one(data)}" if isinstance(data, dict) and data else "")
        )


def _odd_one(data: dict[object, object]) -> str:
    """The value because of which a dict is not one of arrays, for a message."""
    key, value = next((k, v) for k, v in data.items() if isinstance(v, dict) or not is_arrays(v))
    return f"{key!r:.80} is a {type(value).__name__}; numpy.asarray makes an array of it"
