"""Python's own collections, and arrays -> rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from ..build import BlockSource, RowSource
from ..columns import Block, block_of_arrays
from ..errors import SchemaError
from ..schema import Schema

__all__ = ["ArraySource", "IteratorSource", "is_arrays", "source_of_arrays"]


def is_arrays(data: Any) -> bool:
    """True for an array or a tensor with rows, and for a dict of such."""
    if isinstance(data, dict):
        return bool(data) and all(isinstance(value, (np.ndarray, torch.Tensor)) for value in data.values())
    return isinstance(data, (np.ndarray, torch.Tensor))


def source_of_arrays(data: Any) -> BlockSource | RowSource:
    """Rows along the first axis of an array or tensor, or of a dict of them.

    Raises:
        SchemaError: an array has no rows or another number than the others, or holds something that cannot be
            kept.
    """
    arrays = data if isinstance(data, dict) else {"the array": data}
    for name, array in arrays.items():
        if array.ndim == 0:
            raise SchemaError(
                f"{name!r} has 0 dimensions, so it has no rows; pass one with rows along its first axis"
            )
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            raise SchemaError(
                f"{name!r} is an array of dtype {array.dtype}, which cannot be kept; pass a list of rows"
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(
            f"the arrays have different numbers of rows: {lengths}; rows go along the first axis"
        )
    firsts = {name: _first_row(array) for name, array in arrays.items()}
    schema = Schema.of(firsts if isinstance(data, dict) else firsts["the array"])
    length = next(iter(lengths.values()))
    if any(column.is_ragged for column in schema.columns):  # text, whose length varies
        names, columns = list(arrays), list(arrays.values())
        rows = (tuple(column[i] for column in columns) for i in range(length))
        return IteratorSource(
            dict(zip(names, row, strict=True)) if isinstance(data, dict) else row[0] for row in rows
        )
    return ArraySource(schema, length, [_readable(array) for array in arrays.values()])


class ArraySource(BlockSource):
    """Rows that lie in one array (N, *row) a column."""

    def __init__(self, schema: Schema, length: int, arrays: list[np.ndarray[Any, Any]]) -> None:
        self.schema = schema
        self.length = length
        self.name = "arrays"
        self._arrays = arrays

    def block(self, start: int, stop: int) -> Block:
        """The rows start..stop-1."""
        return block_of_arrays(
            self.schema,
            [
                # A big-endian array has rows of native scalars.
                array[start:stop].astype(column.storage, copy=False)
                for array, column in zip(self._arrays, self.schema.columns, strict=True)
            ],
        )


def _first_row(array: Any) -> Any:
    if len(array):
        return array[0]
    if isinstance(array, torch.Tensor):
        return array.new_zeros(array.shape[1:])
    return np.zeros((1, *array.shape[1:]), array.dtype)[0]


def _readable(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ndarray):
        return array
    array = array.detach().cpu()
    if array.dtype.is_floating_point and array.dtype not in (torch.float16, torch.float32, torch.float64):
        array = array.contiguous().view(torch.uint16 if array.dtype.itemsize == 2 else torch.uint8)
    return array.resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]


class IteratorSource(RowSource):
    """Rows of an iterable, read once."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.name = getattr(data, "__name__", type(data).__name__)
        self._data = data

    def rows(self, start: int) -> Iterator[Any]:
        """All rows."""
        return iter(self._data)
