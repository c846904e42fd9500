"""Values of other types than their column's: taken as they are, or refused; never changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.rows.block import Rows
from torchyoga.rows.collector import Collector
from torchyoga.testing import assert_rows_equal

FITS: list[tuple[Any, Any, Any]] = [
    (np.int64(1), 5, np.int64(5)),
    (1, np.int8(5), 5),
    (1, True, 1),
    (1.0, 2**53, 2.0**53),
    (1.0, np.float16(0.1), float(np.float16(0.1))),
    (np.float32(1), 0.5, np.float32(0.5)),
    (np.float32(1), float("nan"), np.float32("nan")),
    (np.uint8(1), 255, np.uint8(255)),
    (1j, 2, 2 + 0j),
    (torch.tensor(1), 7, torch.tensor(7)),
    (torch.tensor(1.0, dtype=torch.bfloat16), 256, torch.tensor(256, dtype=torch.bfloat16)),
    (1.5, torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (np.zeros(2, ">i4"), torch.tensor([1, 2]), np.array([1, 2], ">i4")),
    (np.zeros((1, 2)), [[1, 2]], np.array([[1.0, 2.0]])),
    ([1, 2], np.array([3, 4], np.int16), [3, 4]),
    ((1.0, (2, 3)), [4, torch.tensor([5, 6])], (4.0, (5, 6))),
    ("a", np.str_("b"), "b"),
    (np.bytes_(b"a"), b"b", np.bytes_(b"b")),
    (np.datetime64("2020-01-01", "ns"), np.datetime64("2021", "Y"), np.datetime64("2021-01-01", "ns")),
]
LOST: list[tuple[Any, Any]] = [
    (1, 5.0),
    (True, 1),
    (1.0, 1j),
    (1.0, 2**53 + 1),
    (1.0, np.uint64(2**64 - 1)),
    (np.float32(1), 0.1),
    (np.float32(1), 1e300),
    (np.int8(1), 128),
    (np.uint8(1), -1),
    (np.uint64(1), -1),
    (1, np.uint64(2**63)),
    (torch.tensor(1.0, dtype=torch.bfloat16), 257),
    (np.zeros(2, np.float32), [1, 0.1]),
    (np.datetime64("2020", "Y"), np.datetime64("2020-03", "M")),
]


def taken(like: Any, value: Any) -> Any:
    collector = Collector(yoga.Schema.of({"x": like}), converts=True)
    collector.add({"x": value}, 7)
    return Rows(collector.take()).exact()[0]["x"]


@pytest.mark.parametrize(("like", "value", "expected"), FITS, ids=repr)
def test_values_that_fit_are_taken(like: Any, value: Any, expected: Any) -> None:
    assert_rows_equal([taken(like, value)], [expected])


@pytest.mark.filterwarnings("error")
def test_a_float_is_taken_as_complex_without_a_warning() -> None:
    assert taken(1j, 1.5) == 1.5
    assert taken(np.complex64(1), np.float32(0.5)) == 0.5


@pytest.mark.parametrize(("like", "value"), LOST, ids=repr)
def test_values_that_would_change_are_refused(like: Any, value: Any) -> None:
    with pytest.raises(
        SchemaError, match=r"row 7 .*column 'x': expected .*, found .*convert the new rows to "
    ):
        taken(like, value)


@pytest.mark.parametrize(
    ("like", "value"), [(1, "5"), ("5", 5), ([1, 2], [3]), (1, None), ([1, 2], np.zeros(3))]
)
def test_values_without_a_place_are_refused_as_ever(like: Any, value: Any) -> None:
    with pytest.raises(SchemaError, match=r"row 7 does not fit: .*expected"):
        taken(like, value)
