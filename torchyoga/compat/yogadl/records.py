"""Rows -> records as yogadl gives them, equal to the elements of `tf.data.Dataset.as_numpy_iterator`."""

from __future__ import annotations

import numpy as np
import torch

from ...compound import RaggedParts, SparseParts, StringParts
from ...rows.block import plain_row
from ...rows.types import Array, Row

__all__ = ["record_of"]


def record_of(row: Row) -> Row:
    """The record of a row: string, ragged and sparse tensors become arrays again, and so does bfloat16.

    Example:
        >>> record_of((StringParts(b"catdoge", np.array([3, 4])), 7))
        (array([b'cat', b'doge'], dtype=object), 7)
    """
    row = plain_row(row)
    if isinstance(row, StringParts):
        return row.to_numpy()
    if isinstance(row, SparseParts):
        return record_of(row.to_dense())
    if isinstance(row, RaggedParts):
        return _ragged(record_of(row.values), row.row_splits)
    if isinstance(row, torch.Tensor) and row.dtype == torch.bfloat16:
        import ml_dtypes  # comes with TensorFlow

        return row.view(torch.int16).numpy().view(ml_dtypes.bfloat16)[()]
    if isinstance(row, dict):
        return {key: record_of(value) for key, value in row.items()}
    if isinstance(row, (tuple, list)):
        items = [record_of(value) for value in row]
        return items if isinstance(row, list) else tuple.__new__(type(row), items)
    return row


def _ragged(values: Array, splits: Array) -> Array:
    """One array if all parts have the same length, else an array of arrays."""
    if len(splits) == 1:
        return values.reshape(0, 0, *values.shape[1:])
    parts = np.split(values, splits[1:-1])
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    found = np.empty(len(parts), object)
    found[:] = parts
    return found
