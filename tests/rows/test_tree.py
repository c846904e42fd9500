"""Batches rebuilt with other leaves, and tensors of several parts."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from torchyoga.rows.node import RaggedParts, SparseParts, StringParts
from torchyoga.rows.schema import Schema
from torchyoga.rows.types import mapped


class Pair(NamedTuple):
    one: Any
    other: Any


def doubled(leaf: Any) -> Any:
    return leaf * 2 if isinstance(leaf, int) else leaf


def test_containers_keep_their_types_and_others_are_leaves() -> None:
    batch = {"a": [1, (2, Pair(3, None))], "b": OrderedDict(c=4)}
    found = mapped(batch, doubled)
    assert found == {"a": [2, (4, Pair(6, None))], "b": OrderedDict(c=4)}
    assert type(found["a"][1][1]) is Pair
    assert found["b"] is batch["b"]


def test_an_object_that_occurs_twice_is_one_object_in_the_result() -> None:
    part = [1]
    found = mapped([part, {"again": part}, (part,)], doubled)
    assert found[0] is found[1]["again"] is found[2][0]
    assert mapped([(), (), [], []], doubled) == [(), (), [], []]


def test_a_batch_that_contains_itself_is_refused() -> None:
    batch: list[Any] = [1]
    batch.append({"all": batch})
    with pytest.raises(RecursionError, match="a list in the batch contains itself"):
        mapped(batch, doubled)


def test_a_namedtuple_may_be_a_leaf() -> None:
    found = mapped([Pair(1, 2), (1, 2)], lambda leaf: "leaf", lambda found: type(found) is Pair)
    assert found == ["leaf", ("leaf", "leaf")]


def test_only_the_caller_holds_the_result() -> None:
    gc.disable()
    try:
        found = mapped({"x": [1, (2,)]}, lambda leaf: torch.tensor(leaf))
        tensor = weakref.ref(found["x"][1][0])
        del found
        assert tensor() is None
    finally:
        gc.enable()


# -- tensors of several parts


TEXTS = StringParts(b"abbccc", np.array([1, 2, 3, 0]))
SPLITS = np.array([0, 1, 1, 4])


def test_ragged_lists() -> None:
    assert RaggedParts(np.arange(4), SPLITS).to_list() == [[0], [], [1, 2, 3]]
    assert RaggedParts(torch.arange(4).bfloat16(), SPLITS).to_list() == [[0.0], [], [1.0, 2.0, 3.0]]
    assert RaggedParts(TEXTS, SPLITS).to_list() == [[b"a"], [], [b"bb", b"ccc", b""]]
    inner = RaggedParts(np.arange(5), np.array([0, 2, 2, 3, 5]))
    assert RaggedParts(inner, SPLITS).to_list() == [[[0, 1]], [], [[], [2], [3, 4]]]


def test_sparse_arrays() -> None:
    indices, shape = np.array([[0, 1], [1, 0], [1, 2], [2, 2]]), np.array([3, 3])
    expected = [[0, 1, 0], [2, 0, 3], [0, 0, 4]]
    assert SparseParts(indices, np.arange(1, 5), shape).to_dense().tolist() == expected
    bits = SparseParts(indices, torch.arange(1, 5).bfloat16(), shape).to_dense()
    assert bits.dtype == torch.bfloat16
    assert bits.tolist() == expected
    texts = SparseParts(indices, TEXTS, shape).to_dense()
    assert texts.tolist() == [[b"", b"a", b""], [b"bb", b"", b"ccc"], [b"", b"", b""]]
    nothing = SparseParts(np.empty((0, 2), np.int64), np.empty(0), shape).to_dense()
    assert nothing.tolist() == [[0.0] * 3] * 3


def test_arrays_of_texts() -> None:
    square = StringParts(TEXTS.data, TEXTS.lengths.reshape(2, 2)).to_numpy()
    assert square.tolist() == [[b"a", b"bb"], [b"ccc", b""]]
    assert StringParts(b"", np.empty((0, 3), np.int64)).to_numpy().shape == (0, 3)


def test_manifests_call_them_as_ever() -> None:
    schema = Schema.of(RaggedParts(np.arange(4), SPLITS), ragged=["values", "row_splits"])
    assert schema.tree.type_name == "torchyoga.compound:RaggedParts"
    assert Schema.from_json(schema.to_json()).tree.row_type is RaggedParts
