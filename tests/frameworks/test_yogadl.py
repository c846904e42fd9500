"""Programs as yogadl's documentation shows them, with their imports changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import torchyoga.compat.yogadl as yogadl


@pytest.fixture
def storage(tmp_path: Path) -> yogadl.Storage:
    os.makedirs(tmp_path, exist_ok=True)
    lfs_config = yogadl.storage.LFSConfigurations(str(tmp_path))
    return yogadl.storage.LFSStorage(lfs_config, tensorflow_config=None)


def test_the_walkthrough(storage: yogadl.Storage) -> None:
    storage.submit(tf.data.Dataset.range(10), "range", "1.0")
    dataref = storage.fetch("range", "1.0")
    stream = dataref.stream(start_offset=5, shuffle=True, shuffle_seed=777)
    records = yogadl.tensorflow.make_tf_dataset(stream)
    batches = [batch.numpy().tolist() for batch in records.repeat(3).batch(5)]
    assert [len(batch) for batch in batches] == [5] * 5  # two and a half epochs
    first, second, third = batches[0], batches[1] + batches[2], batches[3] + batches[4]
    assert sorted(second) == sorted(third) == list(range(10))
    assert second != third
    whole = list(dataref.stream(shuffle=True, shuffle_seed=777))
    assert first == whole[5:]
    rest = yogadl.tensorflow.make_tf_dataset(dataref.stream(start_offset=4), one_epoch=True).batch(4)
    assert int(rest.cardinality()) == 2 == len(list(rest))


class RandomDataRef(yogadl.DataRef):
    """Random uint32 values."""

    def __len__(self) -> int:
        return 10

    def stream(
        self,
        start_offset: int = 0,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        shuffle_seed: int | None = None,
        shard_rank: int = 0,
        num_shards: int = 1,
        drop_shard_remainder: bool = False,
    ) -> yogadl.Stream:
        first_epoch = True

        def iterator_fn() -> Iterator[int]:
            nonlocal first_epoch
            start = start_offset + shard_rank if first_epoch else shard_rank
            first_epoch = False
            for _ in range(start, len(self), num_shards):
                r = os.urandom(4)
                yield r[0] + (r[1] << 8) + (r[2] << 16) + (r[3] << 24)

        return yogadl.Stream(iterator_fn, len(self), output_types=tf.uint32, output_shapes=tf.TensorShape([]))


def test_a_custom_data_ref() -> None:
    records = yogadl.tensorflow.make_tf_dataset(RandomDataRef().stream(start_offset=3))
    assert records.element_spec == tf.TensorSpec([], tf.uint32)
    assert [len(batch) for batch in records.repeat(2).batch(5)] == [5, 5, 5, 2]


def test_streams_over_generators_of_nested_records() -> None:
    rows = [({"a": 1, "b": "x"}, [1.0, 2.0]), ({"a": 2, "b": "y"}, [3.0])]
    types = ({"a": tf.int16, "b": tf.string}, tf.float32)
    shapes = ({"a": tf.TensorShape([]), "b": tf.TensorShape([])}, tf.TensorShape([None]))
    for said in (shapes, None):
        dataset = yogadl.tensorflow.make_tf_dataset(yogadl.Stream(lambda: iter(rows), 2, types, said))
        found = [(int(x["a"]), x["b"].numpy(), y.numpy().tolist()) for x, y in dataset]
        assert found == [(1, b"x", [1.0, 2.0]), (2, b"y", [3.0])]
    assert dataset.element_spec[1].shape.rank is None
    listed = yogadl.Stream(lambda: iter([(1, 2.0)]), 1, [tf.int16, tf.float32], [tf.TensorShape([])] * 2)
    assert [(int(a), float(b)) for a, b in yogadl.tensorflow.make_tf_dataset(listed)] == [(1, 2.0)]
    with pytest.raises(ValueError, match="the stream has no output_types"):
        yogadl.tensorflow.make_tf_dataset(yogadl.Stream(lambda: iter(rows), 2))
    with pytest.raises(ValueError, match="one_epoch=True is for streams of cached datasets"):
        yogadl.tensorflow.make_tf_dataset(listed, one_epoch=True)


def test_a_cached_stream_says_its_types_and_resumes(storage: yogadl.Storage) -> None:
    storage.submit(tf.data.Dataset.range(10).map(lambda i: {"n": i, "t": tf.strings.as_string(i)}), "x", "1")
    stream = storage.fetch("x", "1").stream(shuffle=True, shuffle_seed=3)
    assert stream.output_types == {"n": tf.int64, "t": tf.string}
    assert stream.output_shapes == {"n": tf.TensorShape([]), "t": tf.TensorShape([])}
    state = stream.stream.state_after(4)
    again = storage.fetch("x", "1").stream(shuffle=True, shuffle_seed=3)
    again.stream.load_state_dict(state)
    assert [row["n"] for row in again] == [row["n"] for row in stream][4:]


def element(i: Any) -> dict[str, Any]:
    return {
        "tokens": tf.range(i % 4),
        "half": tf.cast(i, tf.bfloat16),
        "nested": (i, {"image": tf.fill([i % 3, 2], i)}),
    }


def test_records_are_what_tensorflow_gave(storage: yogadl.Storage) -> None:
    data = tf.data.Dataset.range(9).map(element)
    storage.submit(data, "records", "1.0")
    stream = storage.fetch("records", "1.0").stream()
    for expected, found in zip(data.as_numpy_iterator(), stream, strict=True):
        tf.nest.assert_same_structure(expected, found)
        for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
            assert type(a) is type(b)
            assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())
    records = yogadl.tensorflow.make_tf_dataset(stream)
    assert stream.output_types == tf.compat.v1.data.get_output_types(data)
    for expected, found in zip(data, records, strict=True):
        for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
            assert isinstance(b, tf.Tensor)
            assert (a.dtype, a.numpy().tolist()) == (b.dtype, b.numpy().tolist())
