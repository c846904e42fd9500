"""yogadl's streams -> tf.data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...adapters import tensorflow as _ours
from ...reading.stream import Stream as _Stream
from ..yogadl import Stream


def make_tf_dataset(stream: Stream, *, one_epoch: bool = False) -> tf.data.Dataset:
    """A stream as a `tf.data.Dataset` of records; each iteration of it is the next epoch.

    Streams of cached datasets pass into TensorFlow in blocks; those over a generator record by record, with
    the `output_types` and `output_shapes` that they were made with.

    Args:
        stream: of a DataRef.
        one_epoch: for a cached dataset, only the rest of the current epoch; it knows its length, which Keras
            needs where training begins within an epoch.

    Raises:
        ValueError: a stream over a generator has no `output_types`.
    """
    ours = getattr(stream, "stream", None)  # of a CachedStream, whose file imports this one
    if isinstance(ours, _Stream):
        return _ours.make_tf_dataset(ours, one_epoch=one_epoch)
    if one_epoch:
        raise ValueError("one_epoch=True is for streams of cached datasets; others have no known place")
    if stream.output_types is None:
        raise ValueError("the stream has no output_types; pass them, and output_shapes, to Stream")
    signature = _signature(stream.output_types, stream.output_shapes)
    return tf.data.Dataset.from_generator(stream.iterator_fn, output_signature=signature)


def _signature(types: Any, shapes: Any) -> Any:
    """The specs of tensors of these dtypes and shapes, nested alike; of any shape if none is passed."""
    if isinstance(types, dict):
        return {key: _signature(types[key], None if shapes is None else shapes[key]) for key in types}
    if isinstance(types, list):  # which tf.data takes for one tensor
        types = tuple(types)
    if isinstance(types, tuple):
        items = [_signature(dtype, None if shapes is None else shapes[i]) for i, dtype in enumerate(types)]
        return tuple.__new__(type(types), items)
    return tf.TensorSpec(shapes, types)
