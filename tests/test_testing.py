"""The kits find what they are there to find."""

from __future__ import annotations

import itertools
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchyoga
from torchyoga.testing import assert_rows_equal, check_export, check_source

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x y")

DIFFERENT: list[Any] = [
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    0.0,
    -0.0,
    float("nan"),
    0j,
    complex(0.0, -0.0),
    np.float32(1),
    np.float64(1),
    np.array(1.0),
    np.array([1.0]),
    np.array([[1.0]]),
    np.array([-0.0]),
    np.array([1.0], ">f8"),
    torch.tensor(1.0),
    torch.tensor([1.0]),
    torch.tensor([0.0]),
    torch.tensor([-0.0]),
    torch.tensor([1.0]).bfloat16(),
    torch.zeros(0, 2),
    torch.zeros(2, 0),
    (1, 2),
    [1, 2],
    (1, 2, 3),
    Point(1, 2),
    Other(1, 2),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": 1},
    {"a": {"b": [np.zeros(2)]}},
    {"a": {"b": [np.ones(2)]}},
]


def test_rows_are_equal_only_to_themselves() -> None:
    for a, b in itertools.product(range(len(DIFFERENT)), repeat=2):
        if a == b:
            assert_rows_equal(DIFFERENT[a], DIFFERENT[b])
        else:
            with pytest.raises(AssertionError, match=r"row: |row\["):
                assert_rows_equal(DIFFERENT[a], DIFFERENT[b])


def test_the_message_says_where() -> None:
    with pytest.raises(AssertionError, match=r"row 3\['a'\]\['b'\]\[0\]: found array\(\[1"):
        assert_rows_equal(DIFFERENT[-1], DIFFERENT[-2], "row 3")


def test_a_source_that_is_not_what_it_should_be_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="found 2 rows, expected 3"):
        check_source(lambda: [1, 2], [1, 2, 3], tmp_path / "fewer")
    with pytest.raises(AssertionError, match="row 1: found 3, expected 2"):
        check_source(lambda: [1, 3], [1, 2], tmp_path / "others")
    with pytest.raises(AssertionError, match="row 0: found int, expected float"):
        check_source(lambda: [1], [1.0], tmp_path / "types")
    readings = iter([[1, 2], [1, 3]])
    with pytest.raises(AssertionError, match="twice gave two different contents"):
        check_source(lambda: next(readings), [1, 2], tmp_path / "changing")


def test_an_export_that_is_not_the_stream_is_found() -> None:
    ref = torchyoga.from_arrays(np.arange(12))

    def forgets_the_last(stream: torchyoga.Stream) -> Any:
        return lambda: list(stream)[:-1]

    def repeats_the_epoch(stream: torchyoga.Stream) -> Any:
        rows = list(stream)
        return lambda: rows

    check_export(ref, lambda stream: lambda: list(stream))
    with pytest.raises(AssertionError, match=r"\{\}, epoch 0: found 11 rows, expected 12"):
        check_export(ref, forgets_the_last)
    with pytest.raises(AssertionError, match=r"'start_offset': 4\}, epoch 1: found 8 rows, expected 12"):
        check_export(ref, repeats_the_epoch)
