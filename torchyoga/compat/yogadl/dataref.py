"""yogadl's reference to a cached dataset, over `torchyoga.DataRef`."""

from __future__ import annotations

import secrets

import torch

from ...reading import dataref
from ...reading.stream import Stream as _Stream
from ...rows.block import plain_row
from ...rows.types import Row
from ..yogadl import DataRef, Stream


class CachedStream(Stream):
    """A stream of a cached dataset; `stream` is torchyoga's, which has a state to save.

    Its `output_types` and `output_shapes` are TensorFlow's, which is loaded when they are asked for.
    """

    def __init__(self, stream: _Stream) -> None:
        self.iterator_fn = lambda: map(_record_of, stream)
        self.length = len(stream)
        self.stream = stream

    def __getattr__(self, name: str) -> object:
        if name not in ("output_types", "output_shapes"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        import tensorflow as tf

        from ...adapters.tensorflow import make_tf_dataset

        return getattr(tf.compat.v1.data, f"get_{name}")(make_tf_dataset(self.stream))


class CachedDataRef(DataRef):
    """A cached dataset; `ref` is torchyoga's DataRef."""

    def __init__(self, ref: dataref.DataRef) -> None:
        self.ref = ref

    def stream(
        self,
        start_offset: int = 0,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        shuffle_seed: int | None = None,
        shard_rank: int = 0,
        num_shards: int = 1,
        drop_shard_remainder: bool = False,
    ) -> CachedStream:
        """The records in sequence; see `torchyoga.DataRef.stream`."""
        if shuffle_seed is None and shuffle:
            if not skip_shuffle_at_epoch_end:
                raise ValueError("shuffle=True needs a shuffle_seed, unless skip_shuffle_at_epoch_end=True")
            shuffle_seed = secrets.randbits(63)
        return CachedStream(
            self.ref.stream(
                start_offset=start_offset,
                shuffle=shuffle,
                shuffle_seed=shuffle_seed or 0,
                shard_rank=shard_rank,
                num_shards=num_shards,
                skip_shuffle_at_epoch_end=skip_shuffle_at_epoch_end,
                drop_shard_remainder=drop_shard_remainder,
            )
        )

    def __len__(self) -> int:
        return len(self.ref)


LMDBDataRef = CachedDataRef  # yogadl's name for it, used in annotations


def _record_of(row: Row) -> Row:
    """The record of a row: bfloat16 becomes an array again."""
    row = plain_row(row)
    if isinstance(row, torch.Tensor) and row.dtype == torch.bfloat16:
        import ml_dtypes  # comes with TensorFlow

        return row.view(torch.int16).numpy().view(ml_dtypes.bfloat16)[()]
    if isinstance(row, dict):
        return {key: _record_of(value) for key, value in row.items()}
    if isinstance(row, (tuple, list)):
        items = [_record_of(value) for value in row]
        return items if isinstance(row, list) else tuple.__new__(type(row), items)
    return row
