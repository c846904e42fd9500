"""Keras sequences, which hold batches -> rows by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from ..building.sources import RowSource
from ..errors import SchemaError
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..rows.types import Array, Batch, Row, mapped
from .map_style import MapSource

_CACHE_BYTES = 256 * 2**20


class Batches(Protocol):
    """Batches by number, as a Keras sequence has them."""

    def __getitem__(self, index: int, /) -> Batch: ...


def source_of(data: object, num_workers: int = 0) -> RowSource | None:
    """A `keras.utils.PyDataset` or `Sequence` as a source; None for anything else."""
    if not _is_sequence(data):
        return None
    ref = _SequenceRef(data, _CACHE_BYTES)
    source = MapSource(ref, num_workers, rows_at_once=max(1, ref.batch_size))
    source.name = type(data).__name__
    return source


def as_dataref(sequence: Batches, cache_bytes: int = _CACHE_BYTES) -> DataRef:
    """The rows of a Keras sequence by number: row n is place n % B of batch n // B. Nothing is kept on disk.

    Args:
        sequence: a `keras.utils.PyDataset` or `Sequence`, of any backend: batches of (x, y[, sample_weight]),
            dicts or any nesting of arrays (B, ...); the last batch may be shorter. Its first and its last
            batch are read at once to count the rows.
        cache_bytes: batches are kept in memory up to so many bytes; the least recently used are dropped.

    Rows are nested as batches are: NumPy rows of NumPy, TensorFlow and JAX arrays, tensors of torch tensors.
    `on_epoch_end` is never called, so that the rows stay what they are.

    Raises:
        ValueError: it has no end, or no length.
        SchemaError: the arrays of a batch differ in length, or a batch before the last is not as long as the
            first; names the batch. Batches in between are checked when they are read.

    Example:
        >>> class Squares:  # or a keras.utils.PyDataset
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         x = np.arange(10)[4 * index : 4 * index + 4]
        ...         return x, x**2
        >>> ref = as_dataref(Squares())
        >>> len(ref), ref[7], ref[-1]
        (10, (np.int64(7), np.int64(49)), (np.int64(9), np.int64(81)))
    """
    return _SequenceRef(sequence, cache_bytes)


class _SequenceRef(DataRef):
    def __init__(self, sequence: Batches, cache_bytes: int) -> None:
        self._sequence = sequence
        self._cache_bytes = cache_bytes
        self._cache: dict[int, Batch] = {}  # the batch used last is the last one
        self._count = _num_batches(sequence)
        self.batch_size = self._length = 0
        if self._count:
            self.batch_size = self._length_of(0, self._batch(0))
            last = self._count - 1
            self._length = last * self.batch_size + self._length_of(last, self._batch(last))
            if not self.batch_size:
                raise SchemaError(f"{self._name(0)} has no rows; make every batch but the last equally long")

    def __len__(self) -> int:
        return self._length

    def _title(self) -> str:
        return f"DataRef over {type(self._sequence).__name__}"

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_cache": {}}

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[Row]:
        """The rows of these numbers; each batch is read once for all of its rows."""
        found: list[Row] = [None] * len(rows)
        batches, places = np.divmod(rows, max(1, self.batch_size))
        for number in np.unique(batches).tolist():
            batch = self._batch(number)
            for at in np.flatnonzero(batches == number).tolist():
                found[at] = _row(batch, int(places[at]))
        return found

    def _batch(self, number: int) -> Batch:
        batch = self._cache.pop(number, None)
        if batch is None:
            with timed(Stage.TRANSFORM):
                batch = mapped(self._sequence[number], lambda leaf: self._plain(number, leaf))
            length = self._length_of(number, batch)
            if self.batch_size and number < self._count - 1 and length != self.batch_size:
                raise SchemaError(
                    f"{self._name(number)} has {length} rows, but batch 0 has {self.batch_size}; only the "
                    "last batch may be shorter"
                )
            if self.batch_size and length > self.batch_size:
                raise SchemaError(
                    f"{self._name(number)} has {length} rows, more than the {self.batch_size} of batch 0"
                )
        self._cache[number] = batch
        while len(self._cache) > 1 and sum(map(_nbytes, list(self._cache.values()))) > self._cache_bytes:
            self._cache.pop(next(iter(list(self._cache))), None)
        return batch

    def _length_of(self, number: int, batch: Batch) -> int:
        lengths = {len(array) for array in _arrays(batch)}
        if len(lengths) != 1:
            raise SchemaError(
                f"{self._name(number)} holds arrays of {sorted(lengths) or 'no'} rows; all arrays of a "
                "batch must have the same number"
            )
        return lengths.pop()

    def _plain(self, number: int, leaf: Row) -> Row:
        """An array of a batch, copied: the sequence may use its memory again."""
        if leaf is None:
            return None
        if isinstance(leaf, dict):
            return mapped(dict(leaf), lambda inner: self._plain(number, inner))
        if not isinstance(leaf, (np.ndarray, torch.Tensor)):
            if not hasattr(leaf, "__array__") or np.ndim(leaf) == 0:
                raise SchemaError(
                    f"{self._name(number)} holds a {type(leaf).__name__}; batches are made of arrays (B, ...)"
                )
            leaf = np.asarray(leaf)
        leaf = leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else np.array(leaf)
        if leaf.ndim == 0:
            raise SchemaError(
                f"{self._name(number)} holds an array without rows; batches are arrays (B, ...)"
            )
        if isinstance(leaf, np.ndarray) and leaf.dtype.name == "bfloat16":
            return torch.from_numpy(leaf.view(np.uint16)).view(torch.bfloat16)  # NumPy itself has no bfloat16
        return leaf

    def _name(self, number: int) -> str:
        return f"{type(self._sequence).__name__}: batch {number}"


def _is_sequence(data: object) -> TypeGuard[Batches]:
    return hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")


def _num_batches(sequence: Any) -> int:
    name = type(sequence).__name__
    try:
        found = sequence.num_batches if hasattr(type(sequence), "num_batches") else len(sequence)
    except (TypeError, NotImplementedError):
        raise ValueError(f"{name} has no length; give it num_batches or __len__") from None
    if found is None or found == float("inf"):
        raise ValueError(
            f"{name} has no end (num_batches is None); give it a length, and rows can be counted"
        )
    return int(found)


def _arrays(batch: Batch) -> Iterator[Array | torch.Tensor]:
    """The arrays of a batch."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for item in batch:
            yield from _arrays(item)
    elif batch is not None:
        yield batch


def _nbytes(batch: Batch) -> int:
    return sum(array.nbytes for array in _arrays(batch))


def _row(batch: Batch, place: int) -> Row:
    """A row of its own: changing it does not change the batch."""

    def part(array: Array | torch.Tensor | None) -> Row:
        if array is None:
            return None
        return array[place].clone() if isinstance(array, torch.Tensor) else array[place, ...].copy()[()]

    return mapped(batch, part)
