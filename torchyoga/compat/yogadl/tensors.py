"""torchyoga's streams -> tf.data, with the tensors that yogadl gives."""

from __future__ import annotations

import tensorflow as tf

from ...adapters.tensorflow import make_tf_dataset
from ...reading.stream import Stream
from ...rows.types import Row

__all__ = ["tensor_records"]


def tensor_records(stream: Stream, one_epoch: bool = False) -> tf.data.Dataset:
    """The rows as a `tf.data.Dataset` of tensors; RaggedTensors only where several dimensions are ragged.

    See `torchyoga.adapters.tensorflow.make_tf_dataset`.
    """
    dataset = make_tf_dataset(stream, one_epoch=one_epoch)
    if all(map(_is_plain, tf.nest.flatten(dataset.element_spec))):
        return dataset
    return dataset.map(lambda *parts: tf.nest.map_structure(_plain, _element(dataset, parts)))


def _is_plain(spec: tf.TypeSpec) -> bool:
    return not isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec))


def _plain(tensor: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    """A plain tensor, where possible; within a map, a ragged tensor of a single row becomes one."""
    return tf.sparse.to_dense(tensor) if isinstance(tensor, tf.SparseTensor) else tensor


def _element(dataset: tf.data.Dataset, parts: tuple[tf.Tensor, ...]) -> Row:
    """An element of a dataset; a map gets its parts separately if it is a tuple."""
    spec = dataset.element_spec
    return tuple.__new__(type(spec), parts) if isinstance(spec, tuple) else parts[0]
