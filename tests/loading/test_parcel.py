"""What of a batch lies in a slot, and what is pickled beside it."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.loading.parcel import Parcel, packed
from torchyoga.loading.shared_memory import Ring

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no such memory here")


def sent(batch: Any) -> tuple[Any, int]:
    """A batch as it arrives, and the bytes that are pickled for it."""
    ring = Ring(1)
    parcel = packed(batch, ring.key, 0, ring.place(0))
    pickled = pickle.dumps(parcel)
    arrived = pickle.loads(pickled)
    return (arrived.unpacked() if isinstance(arrived, Parcel) else arrived), len(pickled)


@given(st.lists(st.binary(max_size=50), max_size=12), st.booleans())
def test_lists_of_bytes_arrive_as_they_were(items: list[bytes], is_tuple: bool) -> None:
    items = [*items, *(item * 2000 for item in items)]
    batch = tuple(items) if is_tuple else items
    arrived, _ = sent({"x": batch, "n": 1})
    assert type(arrived["x"]) is type(batch)
    assert arrived == {"x": batch, "n": 1}


def test_long_lists_of_bytes_lie_in_the_slot() -> None:
    item = b"\x00\xff" * 500
    batch = {"images": [item + item[:number] for number in range(96)], "labels": torch.arange(64)}
    arrived, pickled = sent(batch)
    assert pickled < 500
    assert arrived["images"] == batch["images"]
    assert torch.equal(arrived["labels"], torch.arange(64))


def test_bytes_that_are_held_keep_no_slot() -> None:
    batch = [[b"%d" % number * 20_000 for number in range(8)], ["x" * 20_000] * 4]
    ring = Ring(1)
    parcel = packed(batch, ring.key, ring.send(), ring.place(0))
    assert isinstance(parcel, Parcel)
    arrived = parcel.unpacked()
    ring.arrived()
    assert ring.send() == 0  # although the batch is held
    assert arrived == batch


def test_bytes_that_come_many_times_are_sent_once() -> None:
    item, other = b"system prompt " * 1000, b"x" * 90_000
    arrived, pickled = sent([[item] * 1000, [other] * 5, [b""] * 9])
    assert pickled < 150_000
    assert arrived == [[item] * 1000, [other] * 5, [b""] * 9]
    assert len(set(map(id, arrived[0]))) == 1


def test_what_is_in_a_batch_twice_is_twice_in_what_arrives() -> None:
    text = [b"x%d" % number * 30_000 for number in range(5)]
    tensors = [torch.arange(float(count)) for count in range(1, 7)]
    once = torch.arange(3)
    batch = {"a": text, "b": [text, text], "c": tensors, "d": (tensors,), "e": [once] * 5, "f": tensors[0]}
    arrived, _ = sent(batch)
    assert arrived["a"] is arrived["b"][0] is arrived["b"][1]
    assert [*map(id, arrived["c"])] == [*map(id, arrived["d"][0])]
    assert len({id(tensor) for tensor in arrived["e"]}) == 1
    assert arrived["f"] is arrived["c"][0]
    assert arrived["a"] == text
    assert all(map(torch.equal, arrived["c"], tensors))


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_list_of_one_dtype_lies_in_the_slot(kind: str) -> None:
    found: list[Any] = [torch.rand(count % 5 + 1, 400) for count in range(64)]
    if kind == "arrays":
        found = [tensor.numpy() for tensor in found]
    arrived, pickled = sent(found)
    assert pickled < 48 * 64
    assert all(np.array_equal(one, other) for one, other in zip(arrived, found, strict=True))
    assert {type(one) for one in arrived} == {type(found[0])}


def test_tensors_that_lie_beside_each_other_arrive_one_by_one() -> None:
    parts = list(torch.arange(40).split(8))
    arrived, _ = sent(parts)
    assert all(map(torch.equal, arrived, parts))
    assert len({tensor.untyped_storage().data_ptr() for tensor in arrived}) == 5


def test_bytes_that_do_not_fit_are_pickled() -> None:
    ring = Ring(1)
    place = ring.place(0)
    place.used = place.memory.size - 1000
    batch = [b"%d" % number * 30_000 for number in range(5)]
    arrived = pickle.loads(pickle.dumps(packed(batch, ring.key, 0, place)))
    assert (arrived.unpacked() if isinstance(arrived, Parcel) else arrived) == batch
