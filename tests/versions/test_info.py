"""Info about a dataset: it comes back as JSON gives it, and anything else is refused."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.versions.lineage import MOST_BYTES, MOST_DEPTH, plain

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


@given(info=st.dictionaries(TEXTS, VALUES))
def test_info_comes_back_as_from_json(info: dict[str, Any]) -> None:
    found = plain(info)
    assert found == info == json.loads(json.dumps(found, allow_nan=False))
    assert found is not info


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    pass


def test_values_of_subclasses_become_their_base_types() -> None:
    given = OrderedDict(a=(1, [Level.HIGH]), b=np.float64(0.5), c=Name("x"), d=True)
    found = plain(given)
    assert found == {"a": [1, [3]], "b": 0.5, "c": "x", "d": True}
    values = found, found["a"][1][0], found["b"], found["c"]
    assert [*map(type, values)] == [dict, int, float, str]


def test_arrays_are_lists_and_their_scalars_are_plain() -> None:
    pairs: list[tuple[Any, Any]] = [
        (np.arange(4, dtype=np.uint8).reshape(2, 2), [[0, 1], [2, 3]]),
        ((np.int64(3), np.bool_(True), np.float32(0.5), np.str_("x")), [3, True, 0.5, "x"]),
        (np.array(["cat", "dog"]), ["cat", "dog"]),
        (np.array(["cat", None], object), ["cat", None]),
        (np.array(5), 5),
        (np.zeros((0, 3)), []),
    ]
    for value, expected in pairs:
        found = plain({"a": value})
        assert found == {"a": expected} == json.loads(json.dumps(found))


@pytest.mark.slow("info20-*")
@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        ({"a": {"b": [0, {1}]}}, TypeError, r"info\['a'\]\['b'\]\[1\] is a set, which JSON does not have"),
        ({"a": torch.zeros(2)}, TypeError, r"info\['a'\] is a Tensor.*for a tensor pass .tolist\(\)"),
        ({"a": np.longdouble(2)}, TypeError, r"info\['a'\] is a longdouble"),
        ({"a": np.zeros(2, np.longdouble)}, TypeError, r"info\['a'\]\[0\] is a longdouble"),
        ({"a": np.datetime64("2020-01-01", "ns")}, TypeError, r"info\['a'\] is a datetime64"),
        ({"a": np.zeros(2, "M8[ns]")}, TypeError, r"info\['a'\] is an array of datetime64\[ns\]"),
        ({"a": np.zeros(2, [("x", "i4")])}, TypeError, r"info\['a'\] is an array of "),
        ({"a": np.array([0.0, np.nan])}, ValueError, r"info\['a'\]\[1\] is nan"),
        ({"a": np.array([{1}])}, TypeError, r"info\['a'\]\[0\] is a set"),
        ({"a": np.zeros(2, complex)}, TypeError, r"info\['a'\]\[0\] is a complex"),
        ({"a": np.broadcast_to(np.int8(0), (2**40,))}, ValueError, "info is longer than"),
        ({"a": np.zeros((2**40, 0))}, ValueError, "info is longer than"),
        ({"a": {3: 1}}, TypeError, r"info\['a'\] has the key 3, but keys of JSON are text; use str\(3\)"),
        ([("a", 1)], TypeError, "info must be a dict, found a list"),
        ({"a": [float("nan")]}, ValueError, r"info\['a'\]\[0\] is nan, which JSON does not have; use None"),
        ({"a": 2**63}, ValueError, r"info\['a'\] is an int that does not fit 64 bits; keep it as text"),
        ({"a": 10**5000}, ValueError, r"info\['a'\] is an int that does not fit 64 bits"),
        ({"a": "\ud800"}, ValueError, r"info\['a'\] is not valid text"),
        ({"\udfff": 1}, ValueError, "info is not valid text"),
        ({"a": "x" * MOST_BYTES}, ValueError, "info is longer than 1048576 bytes of JSON, at info"),
        ({"a": [[]] * MOST_BYTES}, ValueError, "info is longer than 1048576 bytes"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(info: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        plain(info)
    assert len(str(caught.value)) < 500


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(MOST_DEPTH):
        deep = {"a": deep}
    assert plain(deep) == deep
    with pytest.raises(ValueError, match="info nests deeper than 32, at info"):
        plain({"a": deep})
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    with pytest.raises(ValueError, match="info nests deeper than 32"):
        plain({"a": round_and_round})
    itself = np.empty((), object)
    itself[()] = itself
    with pytest.raises(ValueError, match="info nests deeper than 32"):
        plain({"a": itself})
