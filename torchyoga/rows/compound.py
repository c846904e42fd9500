"""Ragged, sparse and string tensors into the plain arrays that rows keep.

A tensor of several parts is a namedtuple of plain columns.
Ragged, sparse and string tensors need no kind of column of their own, and rows that are read without
TensorFlow say what they are.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ..process.lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt


class RaggedParts(NamedTuple):
    """A tensor whose rows differ in length: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    Example:
        >>> RaggedParts(np.array([3, 1, 4]), np.array([0, 2, 2, 3])).to_list()
        [[3, 1], [], [4]]
    """

    values: Any  # an array, StringParts, or RaggedParts where rows differ in several dimensions
    row_splits: npt.NDArray[np.int64]

    def to_list(self) -> list[Any]:
        """The rows as nested lists."""
        if isinstance(self.values, StringParts):
            values = self.values.to_numpy().tolist()
        else:
            values = self.values.to_list() if isinstance(self.values, RaggedParts) else self.values.tolist()
        return [values[start:stop] for start, stop in pairwise(self.row_splits.tolist())]


# TensorFlow takes a class named SparseTensorValue for its own.
class SparseParts(NamedTuple):
    """A tensor that is zero but for `values` at `indices`.

    Example:
        >>> SparseParts(np.array([[0, 1]]), np.array([5]), np.array([2, 2])).to_dense()
        array([[0, 5],
               [0, 0]])
    """

    indices: npt.NDArray[np.int64]  # (values, dimensions)
    values: Any  # an array (values,), or StringParts
    dense_shape: npt.NDArray[np.int64]

    def to_dense(self) -> Any:
        """The values as a dense array or tensor; missing strings are empty."""
        shape = tuple(self.dense_shape.tolist())
        if isinstance(self.values, StringParts):
            dense, values = np.full(shape, b"", object), self.values.to_numpy()
        elif isinstance(self.values, np.ndarray):
            dense, values = np.zeros(shape, self.values.dtype), self.values
        else:
            dense, values = self.values.new_zeros(shape), self.values
        dense[tuple(self.indices.T)] = values
        return dense


class StringParts(NamedTuple):
    """A tensor of byte strings, joined; `lengths` has the shape of the tensor.

    Example:
        >>> StringParts(b"catdoge", np.array([3, 4])).to_numpy()
        array([b'cat', b'doge'], dtype=object)
    """

    data: bytes
    lengths: npt.NDArray[np.int64]

    def to_numpy(self) -> npt.NDArray[np.object_]:
        """The strings as an array of bytes objects."""
        ends = accumulate(self.lengths.reshape(-1).tolist(), initial=0)
        texts = np.empty(self.lengths.size, object)
        texts[:] = [self.data[start:stop] for start, stop in pairwise(ends)]
        return texts.reshape(self.lengths.shape)
