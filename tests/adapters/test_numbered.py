"""Batches by number, compared with a stream read from its start."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from own import Made

import torchyoga as yoga
from torchyoga.adapters.numbered import NumberedBatches, sample_of
from torchyoga.errors import SchemaError
from torchyoga.order.full import Order
from torchyoga.order.place import Place, Shard
from torchyoga.testing import assert_rows_equal


@given(
    length=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    world=st.integers(1, 4),
    offset=st.integers(0, 29),
    epoch=st.integers(0, 2),
    drop_last=st.booleans(),
    remainder=st.sampled_from(["keep", "drop"]),
)
@example(9000, 500, 1, 0, 1, False, "keep")  # the order of 8,192 rows is computed at once
def test_batches_equal_those_of_the_stream(
    length: int, batch_size: int, world: int, offset: int, epoch: int, drop_last: bool, remainder: str
) -> None:
    ref = yoga.from_arrays(np.arange(length))
    start = Place(epoch, offset % length)
    for rank in range(world):
        order, shard = Order(length, 5), Shard(world, rank, remainder)
        made = NumberedBatches(ref, order, shard, batch_size, drop_last, None, None)
        made = pickle.loads(pickle.dumps(made))
        stream = ref.stream(
            start_offset=epoch * length + start.position,
            shuffle=True,
            shuffle_seed=5,
            num_shards=world,
            shard_rank=rank,
            drop_shard_remainder=remainder == "drop",
        )
        expected = [[int(row) for row in batch] for batch in stream.batches(batch_size, drop_last)]
        if made.steps(start):  # otherwise the stream goes on to the next epoch
            assert len(expected) == made.steps(start)
        for index in reversed(range(made.steps(start))):
            assert made.batch(start, index)[0].tolist() == expected[index]


def test_batches_are_arrays_of_native_numpy_types(tmp_path: Path) -> None:
    rows = [
        {
            "big": np.array([i], ">i4"),
            "bits": torch.full((2,), float(i), dtype=torch.bfloat16),
            "ragged": torch.arange(i).bfloat16(),
            "flag": i % 2 == 0,
            "none": None,
            "nested": [(i, 1.5 * i)],
        }
        for i in range(4)
    ]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1")
    made = NumberedBatches(ref, Order(4, shuffle=False), Shard(), 3, False, None, -2.0)
    batch = made.batch(Place(0, 0), 0)
    assert list(batch) == list(rows[0])
    assert_rows_equal(batch["big"], np.array([[0], [1], [2]], "=i4"))
    assert batch["bits"].dtype.name == batch["ragged"].dtype.name == "bfloat16"
    assert batch["ragged"].astype(float).tolist() == [[-2, -2], [0, -2], [0, 1]]
    assert_rows_equal(batch["flag"], np.array([True, False, True]))
    assert batch["none"] is None
    assert_rows_equal(batch["nested"][0][1], np.array([0, 1.5, 3]))
    some = NumberedBatches(ref, Order(4, shuffle=False), Shard(), 3, False, ("flag", "bits"), None)
    assert [array.shape for array in some.batch(Place(0, 3), 0)] == [(1,), (1, 2)]


def test_a_sample_needs_rows() -> None:
    assert sample_of(yoga.from_arrays(np.arange(100))).num_rows == 64
    with pytest.raises(ValueError, match="the dataset is empty"):
        sample_of(yoga.from_arrays(np.arange(0)))


def test_the_schema_is_learned_from_rows_if_the_source_has_none() -> None:
    made = NumberedBatches(
        Made(10, lambda row: {"square": row**2}), Order(10, shuffle=False), Shard(), 4, False, None, None
    )
    batch = made.batch(Place(0, 0), 2)
    assert_rows_equal(batch, {"square": np.array([64, 81])})


def test_lists_are_padded_and_what_may_be_none_is_refused_unless_left_out(tmp_path: Path) -> None:
    rows = [{"ids": list(range(n)), "age": n or None, "y": n} for n in range(4)]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    order, shard = Order(4, shuffle=False), Shard()
    ids, y = NumberedBatches(ref, order, shard, 4, False, ("ids", "y"), -1).batch(Place(0, 0), 0)
    assert ids.tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert y.tolist() == [0, 1, 2, 3]
    for fields in (None, ("age", "y")):
        with pytest.raises(SchemaError, match=r"column 'age' may be None, which Keras does not have.*filled"):
            NumberedBatches(ref, order, shard, 4, False, fields, -1)
    texts = yoga.Storage(tmp_path).submit([{"x": ["a"]}, {"x": []}], "texts", "1", progress=False)
    with pytest.raises(SchemaError, match="column 'x' holds lists of text"):
        NumberedBatches(texts, Order(2, shuffle=False), shard, 2, False, None, -1)
