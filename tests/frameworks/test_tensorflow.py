"""tf.data into a version and back."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from kits import check_export
from own import Made

import torchyoga as yoga
from torchyoga.adapters.tensorflow import TensorflowSource, make_tf_dataset
from torchyoga.errors import SchemaError
from torchyoga.testing import assert_rows_equal, check_source

Point = namedtuple("Point", "x y")
N = 70  # more than TensorFlow passes at once if rows vary
slices = tf.data.Dataset.from_tensor_slices


def varying(i: int) -> np.ndarray:
    return np.arange(i % 5, dtype=np.int32)


def from_rows(row: Callable[[int], Any], spec: Any) -> Any:
    return tf.data.Dataset.from_generator(lambda: map(row, range(N)), output_signature=spec)


def ragged(rows: list[Any]) -> Any:
    return slices(tf.ragged.constant(rows))


# The datasets that go in, and the rows that come out.
NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBERS += ["float16", "float32", "float64", "complex64", "complex128", "bool"]
SOURCES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    **{
        name: (lambda name=name: slices(np.arange(N).astype(name)), list(np.arange(N).astype(name)))
        for name in NUMBERS
    },
    "range": (lambda: tf.data.Dataset.range(N), list(np.arange(N))),
    "images": (
        lambda: slices(np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3)),
        list(np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3)),
    ),
    "bfloat16": (
        lambda: slices(tf.cast(np.arange(N * 2).reshape(N, 2), tf.bfloat16)),
        list(torch.arange(N * 2).reshape(N, 2).bfloat16()),
    ),
    "text": (
        lambda: slices([f"é{i}" * (i % 3) for i in range(N)]),
        [f"é{i}".encode() * (i % 3) for i in range(N)],
    ),
    "nested": (
        lambda: tf.data.Dataset.range(N).map(
            lambda i: {"z": (i, Point(i, {"a": i})), "b": None, "a": (2 * i,)}
        ),
        [{"z": (i, Point(i, {"a": i})), "b": None, "a": (2 * i,)} for i in np.arange(N)],
    ),
    "unknown length": (
        lambda: tf.data.Dataset.range(2 * N).filter(lambda i: i % 2 == 0),
        list(np.arange(0, 2 * N, 2)),
    ),
    "varying": (lambda: from_rows(varying, tf.TensorSpec([None], tf.int32)), [varying(i) for i in range(N)]),
    "varying bfloat16": (
        lambda: from_rows(varying, tf.TensorSpec([None], tf.int32)).map(lambda x: tf.cast(x, tf.bfloat16)),
        [torch.from_numpy(varying(i)).bfloat16() for i in range(N)],
    ),
    "varying images": (
        lambda: from_rows(
            lambda i: np.full((i % 3, 2, i % 2), i, np.uint8), tf.TensorSpec([None, 2, None], tf.uint8)
        ),
        [np.full((i % 3, 2, i % 2), i, np.uint8) for i in range(N)],
    ),
    "ragged rows": (lambda: ragged([varying(i).tolist() for i in range(N)]), [varying(i) for i in range(N)]),
    "nothing in them": (
        lambda: slices((np.zeros((N, 0, 3), np.float32), np.arange(N))),
        [(np.zeros((0, 3), np.float32), i) for i in np.arange(N)],
    ),
    "empty": (lambda: tf.data.Dataset.range(0), []),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_dataset_goes_in_and_comes_back(name: str, tmp_path: Path) -> None:
    make, expected = SOURCES[name]
    check_source(make, expected, tmp_path)


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in ("empty", "nothing in them")])
def test_exported_elements_equal_those_that_went_in(name: str, tmp_path: Path) -> None:
    make, _ = SOURCES[name]
    ref = yoga.Storage(tmp_path).submit(make(), "x", "1")
    before = make()
    after = make_tf_dataset(ref)
    for spec, found in zip(
        tf.nest.flatten(before.element_spec), tf.nest.flatten(after.element_spec), strict=True
    ):
        if isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec)):
            assert spec.dtype == found.dtype
            # For rows of several dimensions, it is not stored which extents vary.
            assert spec.shape.rank == found.shape.rank
            assert spec.shape == found.shape or not spec.shape.is_fully_defined()
    for row, found in zip(before, after, strict=True):
        for a, b in zip(tf.nest.flatten(row), tf.nest.flatten(found), strict=True):
            assert_tensors_equal(a, b)
    assert int(after.cardinality()) == N
    for a, b in zip(before.ragged_batch(16), make_tf_dataset(ref, batch_size=16), strict=True):
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
            assert_batches_equal(x, y)


def assert_tensors_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if a is None:
        return
    assert a.dtype == b.dtype
    if isinstance(a, tf.RaggedTensor):
        assert a.to_list() == b.to_list()
    else:
        assert a.shape == b.shape
        assert np.array_equal(a.numpy(), b.numpy())


def assert_batches_equal(a: Any, b: Any) -> None:
    if isinstance(a, tf.RaggedTensor) and isinstance(b, tf.RaggedTensor):
        # If an extent is fixed, one is uniform and the other is not: the rows are the same.
        assert a.dtype == b.dtype
        assert a.to_list() == b.to_list()
    else:
        assert_tensors_equal(a, b)


def rows(dataset: Any) -> Iterator[Any]:
    return dataset.as_numpy_iterator()


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    data = [{"x": np.full((2, 3), i, np.float32), "y": np.int64(i), "t": b"%d" % i} for i in range(23)]
    return yoga.Storage(tmp_path).submit(data, "rows", "1")


def test_epochs_shards_and_offsets_are_those_of_the_stream(ref: yoga.DataRef) -> None:
    for view in (ref, ref.columns(["x", "y"]).map_batches(noisy)[::-1].repeat(2)):
        check_export(view, lambda stream: make_tf_dataset(stream).as_numpy_iterator)


def noisy(c: Any, draw: Any) -> Any:
    return {**c, "x": c["x"] + draw.normal(size=c["x"].shape)}


@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches(ref: yoga.DataRef, batch_size: int, drop_last: bool) -> None:
    options: dict[str, Any]
    for options in ({"start_offset": 22, "num_shards": 3, "shard_rank": 1}, {"start_offset": 21}, {}):
        stream, again = (ref.stream(shuffle=True, shuffle_seed=3, **options) for _ in range(2))
        dataset = make_tf_dataset(stream, batch_size, drop_last)
        for _ in range(2):
            expected = [[row["y"] for row in batch] for batch in again.batches(batch_size, drop_last)]
            assert [batch["y"].tolist() for batch in rows(dataset)] == expected
    assert int(dataset.cardinality()) == len(expected)
    assert int(dataset.repeat(3).cardinality()) == 3 * len(expected)
    shorter = make_tf_dataset(ref.stream(start_offset=10))  # in its first epoch
    assert int(shorter.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    static = batch_size if drop_last else None
    assert dataset.element_spec["x"] == tf.TensorSpec([static, 2, 3], tf.float32)
    assert dataset.element_spec["t"] == tf.TensorSpec([static], tf.string)


@pytest.mark.parametrize("stop", [1, 3, 5, 6, 7, 12, 20])
def test_it_resumes_by_the_state_of_the_stream(ref: yoga.DataRef, stop: int) -> None:
    def made(state: Any) -> tuple[yoga.Stream, Any]:
        stream = ref.stream(shuffle=True, shuffle_seed=5)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        return stream, make_tf_dataset(stream, batch_size=4).repeat()

    _, dataset = made(None)
    whole = [batch["y"].tolist() for batch in rows(dataset.take(30))]
    stream, dataset = made(None)
    before = [batch["y"].tolist() for batch in rows(dataset.prefetch(8).take(stop))]
    stream, dataset = made(stream.state_after(stop, batch_size=4))
    more = [batch["y"].tolist() for batch in rows(dataset.prefetch(8).take(4))]
    _, dataset = made(stream.state_after(4, batch_size=4))
    rest = [batch["y"].tolist() for batch in rows(dataset.take(30 - stop - 4))]
    assert before + more + rest == whole


def take(dataset: Any, count: int = -1) -> list[list[int]]:
    """The rows of `count` batches of one iteration."""
    return [batch["y"].tolist() for batch in rows(dataset.take(count))]


def epochs_of(ref: yoga.DataRef, count: int, **options: Any) -> list[list[list[int]]]:
    stream = ref.stream(shuffle=True, shuffle_seed=5, **options)
    return [[[int(row["y"]) for row in batch] for batch in stream.batches(4)] for _ in range(count)]


@pytest.mark.parametrize("look", ["plain", "ragged"])
@pytest.mark.parametrize("stop", range(7))
def test_an_iteration_counts_once_its_last_batch_is_asked_for(tmp_path: Path, look: str, stop: int) -> None:
    data = [
        {"y": np.int64(i), "r": varying(i)} if look == "ragged" else {"y": np.int64(i)} for i in range(23)
    ]
    ref = yoga.Storage(tmp_path).submit(data, "rows", "1")
    first, second = epochs_of(ref, 2)
    stream = ref.stream(shuffle=True, shuffle_seed=5)
    dataset = make_tf_dataset(stream, 4)
    assert take(dataset, stop) == first[:stop]
    assert stream.epoch == (stop == 6)
    assert take(dataset) == (second if stop == 6 else first)
    assert stream.state_dict() == stream.state_after(12 if stop == 6 else 6, 4)  # the trained rows, whole


def test_iterators_at_the_same_time_belong_to_one_epoch(ref: yoga.DataRef) -> None:
    stream = ref.stream(shuffle=True, shuffle_seed=5)
    dataset = make_tf_dataset(stream, 4)
    first, second = epochs_of(ref, 2)
    left, right = rows(dataset), rows(dataset)
    assert [next(left)["y"].tolist(), next(right)["y"].tolist()] == [first[0]] * 2
    assert [batch["y"].tolist() for batch in left] == first[1:]
    assert stream.epoch == 1
    assert [batch["y"].tolist() for batch in right] == first[1:]
    assert stream.epoch == 1  # once
    pairs = tf.data.Dataset.zip((dataset, dataset)).as_numpy_iterator()
    assert [a["y"].tolist() for a, b in pairs if (a["y"] == b["y"]).all()] == second
    kept, others = rows(dataset), rows(dataset)
    kept_first = next(kept)["y"].tolist()
    list(others)
    list(rows(dataset))
    assert stream.epoch == 4
    assert [kept_first] + [batch["y"].tolist() for batch in kept] == epochs_of(ref, 3)[2]
    assert stream.epoch == 4  # it moves nothing back


@pytest.mark.parametrize("batch_size", [3, 4, 7, 11])
def test_rows_batched_with_the_remainder_dropped_are_an_epoch(ref: yoga.DataRef, batch_size: int) -> None:
    # As Keras reads them: as many batches as there are, without asking whether there is another.
    stream = ref.stream(shuffle=True, shuffle_seed=5)
    dataset = make_tf_dataset(stream).batch(batch_size, drop_remainder=True)
    for epoch in range(3):
        assert stream.epoch == epoch
        steps = int(dataset.cardinality())
        place = stream.state_after((epoch + 1) * steps, batch_size, drop_last=True)
        assert len(take(dataset, steps)) == steps == 23 // batch_size
        assert place == stream.state_dict()
    assert len(take(make_tf_dataset(stream), 11)) == 11
    assert stream.epoch == 3  # less than half of the rows


@pytest.mark.parametrize(("stop", "again"), [(0, 6), (1, 3), (5, 1), (6, 3), (13, 0)])
def test_a_training_with_looks_is_resumed_exactly(ref: yoga.DataRef, stop: int, again: int) -> None:
    whole = sum(epochs_of(ref, 4), [])

    def run(state: Any, steps: int) -> tuple[list[list[int]], Any]:
        stream = ref.stream(shuffle=True, shuffle_seed=5)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        found: list[list[int]] = []
        while len(found) < steps:
            dataset = make_tf_dataset(stream, 4, one_epoch=True)
            left = int(dataset.cardinality())
            take(dataset, min(2, left - 1))
            found += take(dataset, steps - len(found))
            assert len(found) == steps or left == 6 or state is not None
        return found, stream.state_after(steps, 4)

    before, state = run(None, stop)
    more, state = run(state, again)
    rest, state = run(state, 24 - stop - again)
    assert before + more + rest == whole
    assert (state["epoch"], state["position"]) == (4, 0)


def test_one_epoch_gives_what_is_left_of_it_and_nothing_else(ref: yoga.DataRef) -> None:
    stream = ref.stream(shuffle=True, shuffle_seed=5, start_offset=8)
    first, second = epochs_of(ref, 2)
    dataset = make_tf_dataset(stream, 4, one_epoch=True)
    assert int(dataset.cardinality()) == 4
    assert take(dataset, 1) == first[2:3]
    assert take(dataset) == first[2:]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="made with one_epoch=True for epoch 0 from position 8 on, but"
    ):
        take(dataset)
    assert take(make_tf_dataset(stream, 4, one_epoch=True)) == second
    for batch_size, drop_last, left in [(None, False, 8), (4, True, 2), (5, False, 2), (9, True, 2)]:
        stream = ref.stream(start_offset=15)
        dataset = make_tf_dataset(stream, batch_size, drop_last, one_epoch=True)
        assert int(dataset.cardinality()) == left == len(list(dataset))
        assert stream.epoch == (2 if batch_size == 9 else 1)  # if less than a batch is left, the next one


def test_set_epoch_says_which_is_next(ref: yoga.DataRef) -> None:
    stream = ref.stream(shuffle=True, shuffle_seed=5)
    dataset = make_tf_dataset(stream, 4)
    epochs = epochs_of(ref, 4)
    for epoch in (0, 1, 3):
        stream.set_epoch(epoch)
        assert take(dataset, 3) == epochs[epoch][:3]


def test_the_same_rows_again_and_again_give_a_warning(ref: yoga.DataRef) -> None:
    dataset = make_tf_dataset(ref.stream(shuffle=True, shuffle_seed=5), 4)
    for _ in range(3):
        take(dataset, 3)
    with pytest.raises(tf.errors.UnknownError, match="UserWarning: make_tf_dataset: 3 iterations of this da"):
        take(dataset, 3)
    plain = make_tf_dataset(ref.stream(), 4)
    assert take(plain, 1) == take(plain, 1) == take(plain, 1) == [[0, 1, 2, 3]]


def test_a_shard_is_not_sharded_again(ref: yoga.DataRef) -> None:
    off = tf.data.experimental.AutoShardPolicy.OFF
    whole, part = (make_tf_dataset(ref.stream(num_shards=n), 4).options() for n in (1, 2))
    assert part.experimental_distribute.auto_shard_policy == off
    assert whole.experimental_distribute.auto_shard_policy != off


def test_reading_fails_at_the_batch_that_cannot_be_read() -> None:
    class Broken(Made):
        def take(self, rows: Any) -> Any:
            if 9 in rows and len(rows) < 12:
                raise OSError("row 9 cannot be read")
            return super().take(rows)

    stream = Broken(12, lambda row: {"y": np.int64(row)}).stream()
    found = rows(make_tf_dataset(stream, 4))
    assert [next(found)["y"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(tf.errors.UnknownError, match="row 9 cannot be read"):
        next(found)
    assert stream.epoch == 0


def test_a_state_loaded_too_late_is_refused(ref: yoga.DataRef) -> None:
    stream = ref.stream()
    dataset = make_tf_dataset(stream)
    stream.load_state_dict(stream.state_after(3))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="StateError: a state was loaded after make_tf_dataset"
    ):
        list(dataset)


def test_refusals(ref: yoga.DataRef, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    with pytest.raises(ValueError, match=r"has no end, as after .repeat"):
        storage.submit(tf.data.Dataset.range(3).repeat(), "x", "1")
    with pytest.raises(ValueError, match="more than max_rows=2"):
        storage.submit(tf.data.Dataset.range(3), "x", "1", max_rows=2)
    with pytest.raises(ValueError, match="more than max_rows=2"):
        storage.submit(tf.data.Dataset.range(3).filter(lambda i: i >= 0), "x", "1", max_rows=2)
    with pytest.raises(SchemaError, match="at 'a/1': tensors of qint8 cannot be kept; map them"):
        storage.submit(slices({"a": ([1], tf.quantization.quantize([1.0], 0.0, 1.0, tf.qint8)[0])}), "x", "1")
    with pytest.raises(SchemaError, match="at 'value': DatasetSpec cannot be kept"):
        storage.submit(tf.data.Dataset.range(3).window(2), "x", "1")
    for given, problem in (
        (from_rows(lambda i: np.zeros(1), tf.TensorSpec(None, tf.float64)), "unknown rank .*tf.ensure_shape"),
        (slices([["ab", "c"]]), "several strings .*tf.strings.reduce_join"),
        (ragged([["a"], []]), "several strings"),
        (ragged([[[1], [2, 3]], []]), r"RaggedTensorSpec cannot be kept; map .*x.to_tensor\(\)"),
        (slices(tf.sparse.from_dense(np.eye(3))), "SparseTensorSpec cannot .*tf.sparse.to_dense"),
    ):
        with pytest.raises(SchemaError, match=f"at 'value': .*{problem}"):
            storage.submit(given, "x", "1")

    @tf.function
    def inside() -> Any:
        storage.submit(tf.data.Dataset.range(3), "x", "1")

    with pytest.raises(ValueError, match=r"inside a tf.function or a graph"):
        inside()
    assert storage.list() == [("rows", "1")]

    with pytest.raises(TypeError, match="expected a Stream or a DataRef, found list"):
        make_tf_dataset([1, 2])
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        make_tf_dataset(ref, 0)
    with pytest.raises(ValueError, match="the dataset is empty"):
        make_tf_dataset(storage.submit([], "none", "1"))
    with pytest.raises(SchemaError, match="column 'value': TensorFlow has no <M8"):
        make_tf_dataset(storage.submit([np.datetime64("2020-01-01")], "date", "1"))
    empty = storage.submit([np.zeros((0, 3))] * 5, "nothing", "1")
    assert [batch.shape for batch in make_tf_dataset(empty, 3)] == [(3, 0, 3), (2, 0, 3)]
    with pytest.raises(SchemaError, match="column 'value' holds arrays without values"):
        make_tf_dataset(empty)
    mixed = storage.submit([np.zeros(1), np.zeros((1, 1))], "mixed", "1")
    with pytest.raises(SchemaError, match="expected rows of 1 dimensions, as the first ones have, found one"):
        make_tf_dataset(mixed)
    with pytest.raises(SchemaError, match="column 'value': TensorFlow has no float8_e5m2"):
        make_tf_dataset(storage.submit([torch.zeros(2, dtype=torch.float8_e5m2)], "f8", "1"))


def test_a_failing_dataset_publishes_nothing(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    broken = tf.data.Dataset.range(5).map(lambda i: tf.ensure_shape(tf.zeros(i), [0]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        storage.submit(broken, "x", "1")
    assert storage.list() == []


def test_rows_of_a_ref_without_a_schema_cross_too() -> None:
    squares = Made(100, lambda row: (row**2, f"{row}"))
    dataset = make_tf_dataset(squares.stream(), batch_size=64)
    found = [(x, t) for xs, ts in rows(dataset) for x, t in zip(xs, ts, strict=True)]
    assert found == [(i**2, b"%d" % i) for i in range(100)]


def test_rows_whose_dimensions_differ_only_later_are_refused(tmp_path: Path) -> None:
    data = [np.zeros((1 + i % 2, 1)) for i in range(90)] + [np.zeros(1)]
    schema = yoga.Schema.of(data[0], ragged=["value"])
    ref = yoga.Storage(tmp_path).submit(data, "x", "1", schema=schema)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="expected rows of 2 dimensions, as the first ones have, found"
    ):
        list(make_tf_dataset(ref))


def test_blocks_are_of_the_size_asked_for() -> None:
    source = TensorflowSource(tf.data.Dataset.range(1000).map(lambda i: tf.fill([i % 7], i)))
    sizes = [block.num_rows for block in source.blocks(2000)]
    assert sum(sizes) == 1000
    assert min(sizes[:-1]) >= 32
    assert len(sizes) > 5
    assert_rows_equal([b.num_rows for b in TensorflowSource(tf.data.Dataset.range(10)).blocks(32)], [4, 4, 2])


def test_lists_cross_as_ragged_tensors_and_none_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"ids": list(range(n % 3)), "age": n if n else None} for n in range(5)]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    with pytest.raises(SchemaError, match=r"column 'age' may be None.*filled.*masked"):
        make_tf_dataset(ref, batch_size=5)
    (batch,) = make_tf_dataset(ref.filled({"age": -1}), batch_size=5, one_epoch=True)
    assert batch["ids"].to_list() == [row["ids"] for row in rows]
    assert batch["age"].numpy().tolist() == [-1, 1, 2, 3, 4]
    for value in (["text"], [[1]], [None, 1]):
        other = yoga.Storage(tmp_path).submit([{"x": value}, {"x": []}], repr(value), "1", progress=False)
        with pytest.raises(SchemaError, match="column 'x' holds lists of"):
            make_tf_dataset(other, batch_size=2)
    with pytest.raises(SchemaError, match="column 'x': TensorFlow has no decimal"):
        make_tf_dataset(yoga.Storage(tmp_path).submit([{"x": Decimal(1)}], "d", "1", progress=False))
