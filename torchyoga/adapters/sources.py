"""Any data -> a source of its rows: which framework's data it is, and the adapter that reads it.

Note 3. A framework is known by the modules in which the data's classes were defined.
So it is loaded already, and its adapter is loaded only for data of its own. Sources that need no other
framework are here: of DataRefs, files, torch's datasets, Python's iterables, and TensorPack's DataFlows,
which are read without it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeGuard

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..building.sources import BlockSource, RowSource, SeekableBlocks, Source
from ..process.numbers import spread
from ..reading.dataref import DataRef
from ..reading.stored_ref import ColumnsRef, FilesRef
from ..reading.stream import in_epoch
from ..rows.block import Block, Rows
from ..rows.collector import block_of, spans
from ..rows.comparing import equal_blocks
from ..rows.schema import Schema
from ..rows.types import Ints, MapStyle, Row
from ..tables.interchange import is_table, recognised
from ..views.flattened import flattened
from . import flat_map
from .arrays import from_arrays, is_arrays
from .map_style import MapSource

_NO_DATASETS = (str, bytes, bytearray, dict, set, frozenset)
_PIECE_BYTES, _PIECE_ROWS = 4 * 2**20, 1024  # read at once
_PIECES_AHEAD = 2
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}


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
                f"no rows can be read from {data!r:.99}; pass a Dataset, array or iterable, or return one"
            )
        function, data = data, data()
        if data is None:
            name = getattr(function, "__qualname__", type(function).__name__)
            raise TypeError(f"{name}() returned None; let it return the dataset, or yield its rows")
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
        >>> print(source_of({"x": np.arange(3)}).schema.exact)
        x: scalar <i8 [scalar]
    """
    _refuse_several(data)
    if isinstance(data, (RowSource, BlockSource)):
        return data
    data = as_ref(data)
    # Rows that are to have another schema are each looked at, as in any other dataset.
    if isinstance(data, DataRef) and data.schema is not None and schema in (None, data.schema):
        return _FilesSource(data) if isinstance(data, FilesRef) else RefSource(data, data.schema)
    source: Source | None = flat_map.source_of(data, lambda inner: _by_number(inner, num_workers))
    source = source or _of_framework(data, num_workers)
    if source is not None:
        return source
    _refuse_no_dataset(data)
    return _torch_source(data, num_workers) or (IteratorSource(data) if isinstance(data, Iterable) else None)


def as_ref(data: object) -> object:
    """Arrays, tables and torch's subsets of DataRefs as DataRefs; anything else as it is."""
    if is_arrays(data):
        return from_arrays(data)
    found = recognised(data)
    found = flattened(data) if found is None else found
    return data if found is None else found


def _by_number(data: object, num_workers: int) -> Source:
    """A source of any data, whose rows can begin anywhere if the data has rows by number."""
    _, source = dataset_and_source(data, num_workers)
    if isinstance(source, RefSource) and not source.ref._is_random:
        return _torch_source(source.ref, num_workers) or source
    return source


def _of_framework(data: object, num_workers: int) -> Source | None:
    """Data of a framework that need not be installed as a source; None for anything else."""
    frameworks = {cls.__module__.partition(".")[0] for cls in type(data).__mro__}
    if "tensorpack" in frameworks:
        is_dataflow = hasattr(data, "reset_state") and hasattr(data, "__iter__")
        return DataflowSource(data) if is_dataflow else None
    if frameworks & {"keras", "tf_keras"}:
        from . import keras_sequence

        return keras_sequence.source_of(data, num_workers)
    if "tensorflow" in frameworks:
        from . import tensorflow

        return tensorflow.source_of(data)
    return None


def _refuse_several(data: object) -> None:
    """Raises TypeError for several datasets at once, whose rows they would be.

    They are a list or a dict of nothing else, or a dict of splits; or a tuple, as `return train, test` makes
    it, that holds one.
    """
    several = list(data.values()) if type(data) is dict else data  # a DatasetDict has an error of its own
    if not isinstance(several, (list, tuple)) or isinstance(data, Dataset) or not several:
        return
    are_splits = isinstance(data, dict) and _are_splits(data)
    are_several = (
        any(map(_has_rows, several)) if isinstance(several, tuple) else all(map(_is_dataset, several))
    )
    if are_several or are_splits:
        kinds = ", ".join(type(item).__name__ for item in several[:4])
        raise TypeError(
            f"a {type(data).__name__} of {len(several)} datasets ({kinds}) was passed, but a version holds "
            'one; give each an id of its own. With cacheable, let an argument choose, as in "mnist-{split}", '
            "and return the dataset that it names"
            + (
                '. Arrays whose rows belong together are passed as a dict, {"x": x, "y": y}, and items that '
                "are rows as a list"
                if isinstance(data, tuple) or are_splits
                else ""
            )
        )


def _are_splits(data: dict[object, object]) -> bool:
    """True for a dict of rows by names of splits, or of lists of several lengths, which are no columns."""
    if len(data) < 2 or not all(map(_has_rows, data.values())):
        return False
    sizes = {len(some) for some in data.values() if isinstance(some, Sized) and not isinstance(some, dict)}
    are_named = {str(name).lower() for name in data} <= _SPLITS
    return are_named and len(sizes) > 1 if is_arrays(data) else are_named or len(sizes) > 1


def _is_dataset(item: object) -> bool:
    return isinstance(item, (Dataset, DataRef, DataLoader)) or is_table(item)


def _has_rows(item: object) -> bool:
    """True for what a tuple of rows holds seldom: a dataset, a list, an array, a tuple or a dict of such."""
    if isinstance(item, (tuple, dict)):
        return bool(item) and all(map(_has_rows, item.values() if isinstance(item, dict) else item))
    is_many = isinstance(item, (list, range, Iterator)) or (is_arrays(item) and getattr(item, "ndim", 0) > 0)
    return is_many or _is_dataset(item)


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


class IteratorSource(RowSource):
    """Rows of an iterable, read once.

    Example:
        >>> list(IteratorSource(n**2 for n in range(3)).rows(0))
        [0, 1, 4]
    """

    def __init__(self, data: Iterable[Row]) -> None:
        self.name = getattr(data, "__name__", type(data).__name__)
        self._data = data

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        return iter(self._data)


def _torch_source(data: object, num_workers: int = 0) -> RowSource | None:
    """A torch IterableDataset, or anything with rows by number, as a source; None for anything else.

    A torch Dataset has rows by number, and so has whatever has a length and is indexed, as a list is. The
    caller must know whether rows are what it holds, and not the letters of a text.

    Raises:
        TypeError: it has no length.
        ValueError: several processes are to read an IterableDataset.

    Example:
        >>> source = _torch_source(["a", "b", "c"])
        >>> source.length, list(source.rows(1)), _torch_source(iter("abc"))
        (3, ['b', 'c'], None)
    """
    if isinstance(data, IterableDataset):
        if num_workers:
            raise ValueError(
                f"num_workers={num_workers} for {type(data).__name__}: an IterableDataset would give each "
                "worker all its rows; use num_workers=0, or a map-style dataset"
            )
        return IteratorSource(data)
    return MapSource(data, num_workers) if _is_map_style(data) else None


def _is_map_style(data: object) -> TypeGuard[MapStyle]:
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return is_indexed or isinstance(data, (Dataset, DataRef))  # which may lack a length


class RefSource(SeekableBlocks):
    """The rows of a DataRef with a schema, many at once.

    A DataRef with a fingerprint may read all rows once by a method `blocks(start, nbytes)` of its own.

    Args:
        ref: a DataRef; if it is random, its rows are those of epoch 0 with seed 0.
        schema: its schema.
    """

    def __init__(self, ref: DataRef, schema: Schema) -> None:
        self.length = len(ref)
        self.schema = schema
        self.name = type(ref).__name__
        self.fingerprint = ref.fingerprint
        self.ref = ref
        # Of the class: an entry of `info` may have that name.
        self._own_blocks = getattr(type(ref), "blocks", None) if ref.fingerprint is not None else None

    def some(self, numbers: Ints) -> Block | None:
        """Some rows; None if all follow from the fingerprint."""
        return self._block(numbers) if self._own_blocks is None else None

    def blocks_from(self, start: int, nbytes: int) -> Iterator[Block]:
        """The rows from number `start` on; some of all show how many make a block."""
        if self._own_blocks is not None:
            yield from self._own_blocks(self.ref, start, nbytes)
            return
        for first, stop in spans(len(self.ref), nbytes, self._block, start):
            if isinstance(self.ref, ColumnsRef):  # arrays in memory are written from where they lie
                yield self.ref.run(first, stop)
            else:
                yield self._block(np.arange(first, stop))

    def differ(self) -> bool:
        """True if rows would be others in the next epoch, as the first, middle and last one show."""
        if not self.ref._is_random or not len(self.ref):
            return False
        numbers = spread(len(self.ref), 3)
        one, other = (block_of(in_epoch(self.ref, epoch, 0).take(numbers), self.schema) for epoch in (0, 1))
        return not equal_blocks(one, other)

    def _block(self, numbers: Ints) -> Block:
        return block_of(in_epoch(self.ref, 0, 0).take(numbers), self.schema)


class _FilesSource(RowSource):
    """The rows of a FilesRef, in order; the next files are read while the last ones are written."""

    seekable = True

    def __init__(self, ref: FilesRef) -> None:
        self.length = len(ref)
        self.name = ref.name
        self.schema = ref.schema
        self.fingerprint = ref.fingerprint
        self._ref = ref

    def rows(self, start: int) -> Iterator[Row]:
        """The rows from `start` on."""
        assert self.length is not None
        step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // max(1, self._ref._row_bytes)))
        begun: deque[Callable[[], Rows]] = deque()
        for first in range(start, self.length, step):
            begun.append(self._ref.begin(np.arange(first, min(first + step, self.length))))
            if len(begun) > _PIECES_AHEAD:
                yield from begun.popleft()().exact()
        while begun:
            yield from begun.popleft()().exact()

    def row(self, number: int) -> Row:
        """One row."""
        return self._ref[number]


# The process in which each DataFlow was readied: a second reset_state would start its worker processes anew.
_ready: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


class DataflowSource(RowSource):
    """The datapoints of a DataFlow, lists or dicts, read once; `reset_state` is called here.

    Its length is TensorPack's, which is a rough one: the rows end where the DataFlow ends.

    Raises:
        ValueError: it is repeated without end.
    """

    def __init__(self, dataflow: Any) -> None:
        self.name = type(dataflow).__name__
        if _is_endless(dataflow):
            raise ValueError(
                f"{self.name} repeats its data without end; cache it before it is repeated, or bound it with "
                "FixedSizeData"
            )
        # What TensorPack and its DataFromGenerator raise if there is no length.
        with contextlib.suppress(NotImplementedError, TypeError):
            self.length = len(dataflow)
        self._dataflow = dataflow

    def rows(self, start: int) -> Iterator[Row]:
        """All datapoints."""
        if _ready.get(self._dataflow) != os.getpid():
            self._dataflow.reset_state()
            _ready[self._dataflow] = os.getpid()
        return iter(self._dataflow)


def _is_endless(dataflow: object) -> bool:
    """True if one of the DataFlows this one draws from is repeated for ever, and none before it bounds it."""
    seen = 0
    while dataflow is not None and seen < 1000:
        name = type(dataflow).__name__
        if name == "FixedSizeData":
            return False
        if name == "RepeatedData" and getattr(dataflow, "num", None) == -1:
            return True
        dataflow, seen = getattr(dataflow, "ds", None), seen + 1
    return False
