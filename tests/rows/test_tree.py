"""Batches rebuilt with other leaves."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

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
