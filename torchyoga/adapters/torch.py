"""torch datasets -> rows; rows -> what torch's default_collate makes of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..build import RowSource
from ..columns import ROW_TYPES, Data, Rows, leaf_values, plain_row
from ..dataref import DataRef
from ..schema import Column, Node

__all__ = ["IterableSource", "MapSource", "is_map_style"]

_TORCH_TYPES = {
    "|b1",
    "|u1",
    "|i1",
    "<i2",
    "<i4",
    "<i8",
    "<u2",
    "<u4",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
    "<c8",
    "<c16",
}
_TENSOR_KINDS = ("ndarray", "scalar", "tensor", "int", "float", "bool")
_READ_AHEAD = 64  # rows asked for at once


def is_map_style(data: Any) -> bool:
    """True for anything with rows by number: a torch Dataset, or an object like one."""
    if isinstance(data, IterableDataset):
        return False
    return isinstance(data, (Dataset, DataRef)) or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))


class MapSource(RowSource):
    """The rows of a map-style dataset, read by `num_workers` processes if that is more than 0."""

    seekable = True

    def __init__(self, dataset: Any, num_workers: int = 0) -> None:
        try:
            self.length = len(dataset)
        except TypeError:
            raise TypeError(
                f"{type(dataset).__name__} has no length; pass an iterable instead, for example a generator"
            ) from None
        self.name = type(dataset).__name__
        self._dataset = dataset
        self._num_workers = num_workers

    def rows(self, start: int) -> Iterator[Any]:
        """The rows from `start` on, in order."""
        assert self.length is not None
        if self._num_workers == 0:
            for first in range(start, self.length, _READ_AHEAD):
                yield from self._many(range(first, min(first + _READ_AHEAD, self.length)))
            return
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=_Ranges(start, self.length, 16),
            num_workers=self._num_workers,
            collate_fn=pickle.dumps,  # as bytes: tensors by themselves would each take a file descriptor
            generator=torch.Generator(),
        )
        for packed in loader:
            yield from pickle.loads(packed)

    def row(self, number: int) -> Any:
        """One row."""
        return self._dataset[number]

    def _many(self, numbers: range) -> Iterator[Any]:
        if isinstance(self._dataset, DataRef):
            yield from self._dataset[list(numbers)]
        elif getattr(self._dataset, "__getitems__", None):
            yield from self._dataset.__getitems__(list(numbers))
        else:
            yield from (self._dataset[number] for number in numbers)


class _Ranges:
    """Consecutive batches of row numbers."""

    def __init__(self, start: int, stop: int, size: int) -> None:
        self._starts = range(start, stop, size)
        self._stop, self._size = stop, size

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, min(first + self._size, self._stop))) for first in self._starts)


class IterableSource(RowSource):
    """The rows of a torch IterableDataset, read once, in this process."""

    def __init__(self, dataset: IterableDataset[Any], num_workers: int = 0) -> None:
        if num_workers:
            raise ValueError(
                f"num_workers={num_workers} for {type(dataset).__name__}: an IterableDataset would give each "
                "worker all its rows; use num_workers=0, or a map-style dataset"
            )
        self.name = type(dataset).__name__
        self._dataset = dataset

    def rows(self, start: int) -> Iterator[Any]:
        """All rows."""
        return iter(self._dataset)


def collate_rows(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """What `default_collate` gives for these rows, made from their block without taking it apart."""
    if not isinstance(batch, Rows):
        # Somebody has picked the rows out of their batch; they are ordinary rows then.
        return default_collate([plain_row(row) for row in batch])
    block = batch.block
    columns = iter(zip(block.schema.columns, block.data, strict=True))
    return _collate(block.schema.tree, columns, len(batch), in_dict=True)


def _collate(node: Node, columns: Iterator[tuple[Column, Data]], num_rows: int, in_dict: bool) -> Any:
    if node.kind == "leaf":
        return _collate_column(*next(columns), num_rows, in_dict)
    children = [_collate(child, columns, num_rows, node.kind == "dict") for child in node.children]
    if node.kind == "dict":
        return dict(zip(node.keys, children, strict=True))
    return tuple.__new__(node.row_type, children) if node.kind == "namedtuple" else children


def _collate_column(column: Column, data: Data, num_rows: int, in_dict: bool) -> Any:
    values, ragged = data.values, column.is_ragged
    if ragged and column.kind in ("ndarray", "tensor") and data.shapes is None:
        assert data.offsets is not None
        lengths = np.diff(data.offsets)
        if (lengths == lengths[0]).all():
            values = values.reshape(num_rows, int(lengths[0]))
            ragged = False
    if not ragged and column.kind in _TENSOR_KINDS and values.dtype.str in _TORCH_TYPES:
        tensor = torch.from_numpy(values)
        return _as_torch(tensor, column.dtype) if column.kind == "tensor" else tensor
    listed = leaf_values(column, data, num_rows)
    # Inside a tuple default_collate hands on the tuples that zip() makes, inside a dict lists.
    batch: Any = listed if in_dict else tuple(listed)
    return default_collate(batch)


def _as_torch(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    wanted = getattr(torch, dtype)
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


def _register() -> None:
    # torch's own extension point: an exact type here comes before everything else default_collate would do.
    for cls in ROW_TYPES:
        default_collate_fn_map[cls] = collate_rows


_register()
