"""Programs as yogadl's documentation shows them, with their imports changed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import torchyoga as yoga
import torchyoga.compat.yogadl as yogadl
import torchyoga.compat.yogadl.storage
import torchyoga.compat.yogadl.tensorflow


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


def test_cacheable(storage: yogadl.Storage) -> None:
    calls = []

    @storage.cacheable("range", "2.0")
    def make_records() -> Any:
        calls.append(1)
        return tf.data.Dataset.range(10).map(lambda x: 2 * x)

    for _ in range(2):
        records = yogadl.tensorflow.make_tf_dataset(make_records().stream())
        assert [int(x) for x in records.repeat(2)] == [*range(0, 20, 2)] * 2
    assert calls == [1]


def test_digits_from_the_middle_of_an_epoch(
    storage: yogadl.Storage, mnist: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = mnist
    batch_size = 32

    @storage.cacheable("mnist", "1.0")
    def make_data() -> Any:
        def normalize_img(image: Any, label: Any) -> Any:
            return tf.cast(image, tf.float32) / 255.0, label

        return tf.data.Dataset.from_tensor_slices((images[..., None], labels)).map(normalize_img)

    dataref = make_data()
    batches_to_skip = math.ceil(len(dataref) / batch_size) // 2
    stream = dataref.stream(start_offset=batches_to_skip * batch_size, shuffle=True, shuffle_seed=777)
    dataset = yogadl.tensorflow.make_tf_dataset(stream)
    assert dataset.element_spec == (tf.TensorSpec([28, 28, 1], tf.float32), tf.TensorSpec([], tf.uint8))
    weights = tf.Variable(tf.zeros([784, 10]))
    losses = []
    for batch, targets in dataset.batch(batch_size).prefetch(tf.data.experimental.AUTOTUNE):
        with tf.GradientTape() as tape:
            logits = tf.reshape(batch, [-1, 784]) @ weights
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), logits)
            )
        weights.assign_sub(0.5 * tape.gradient(loss, weights))
        losses.append(float(loss))
    assert len(losses) == math.ceil(len(dataref) / batch_size) - batches_to_skip
    assert np.mean(losses[-20:]) < 0.6 < 2.2 < losses[0]


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
        "texts": tf.stack([tf.strings.as_string(i), ""]),
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


def test_padded_batches_of_rows_of_any_length(storage: yogadl.Storage) -> None:
    data = tf.data.Dataset.range(9).map(lambda i: (tf.range(i % 4), tf.fill([i % 3, 2], i), i))
    storage.submit(data, "varying", "1.0")
    records = yogadl.tensorflow.make_tf_dataset(storage.fetch("varying", "1.0").stream())
    shapes = ([None], [None, 2], [])
    for expected, found in zip(data.padded_batch(4, shapes), records.padded_batch(4, shapes), strict=True):
        for a, b in zip(expected, found, strict=True):
            assert a.numpy().tolist() == b.numpy().tolist()
    alone = tf.data.Dataset.range(5).map(tf.range)  # a record that is one tensor
    storage.submit(alone, "alone", "1.0")
    records = yogadl.tensorflow.make_tf_dataset(storage.fetch("alone", "1.0").stream())
    assert [batch.shape for batch in records.padded_batch(3)] == [(3, 2), (2, 4)]


def test_sparse_and_ragged_records(storage: yogadl.Storage) -> None:
    sparse = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(4, 3)))
    storage.submit(sparse, "sparse", "1.0")
    stream = storage.fetch("sparse", "1.0").stream()
    assert np.array_equal(list(stream), np.eye(4, 3))
    records = yogadl.tensorflow.make_tf_dataset(stream)
    assert np.array_equal(next(iter(records.batch(4))), np.eye(4, 3))
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[[1], [2, 3]], [[4]], []]))
    storage.submit(ragged, "ragged", "1.0")
    found = list(storage.fetch("ragged", "1.0").stream())
    assert [[part.tolist() for part in row] for row in found] == [[[1], [2, 3]], [[4]], []]


def test_the_rest_of_an_epoch_knows_its_length(storage: yogadl.Storage) -> None:
    storage.submit(tf.data.Dataset.range(10), "range", "1.0")
    stream = storage.fetch("range", "1.0").stream(start_offset=4)
    records = yogadl.tensorflow.make_tf_dataset(stream, one_epoch=True).batch(4)
    assert int(records.cardinality()) == 2 == len(list(records))
    own = yogadl.Stream(lambda: iter("ab"), 2, tf.string, tf.TensorShape([]))
    with pytest.raises(ValueError, match="one_epoch=True is for streams of cached datasets"):
        yogadl.tensorflow.make_tf_dataset(own, one_epoch=True)


def test_files_that_yogadl_wrote_are_read(tmp_path: Path) -> None:
    import pickle

    import lmdb

    rows = list(tf.data.Dataset.range(5).map(lambda i: (i, tf.strings.as_string(i))).as_numpy_iterator())
    with lmdb.open(str(tmp_path / "cache.mdb"), subdir=False) as env, env.begin(write=True) as file:
        keys = [f"{i:08}".encode("ascii") for i in range(5)]
        for key, row in zip(keys, rows, strict=True):
            file.put(key, pickle.dumps(row, protocol=-1))
        for name, value in {
            "keys": keys,
            "shapes": (tf.TensorShape([]),) * 2,
            "types": (tf.int64, tf.string),
        }.items():
            file.put(f"__{name}__".encode(), pickle.dumps(value, protocol=-1))
    assert list(yoga.from_lmdb(tmp_path / "cache.mdb", "yogadl", trust_pickle=True)) == rows
