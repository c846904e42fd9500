"""Which values of two blocks differ, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.rows.block import Block
from torchyoga.rows.collector import block_of
from torchyoga.rows.comparing import differing, equal_blocks
from torchyoga.rows.schema import Schema

SCHEMA = Schema.of(
    {"x": np.zeros(2), "text": "a", "tokens": np.arange(2), "grid": np.zeros((1, 2))},
    ragged=["tokens", "grid"],
)
ROWS = st.fixed_dictionaries(
    {
        "x": st.sampled_from([(0.0, 1.0), (0.0, math.nan), (-0.0, 1.0)]).map(np.array),
        "text": st.sampled_from(["", "a", "b", "ab"]),
        "tokens": st.lists(st.integers(0, 1), max_size=2).map(lambda found: np.array(found, np.int64)),
        "grid": st.sampled_from([(1, 2), (2, 1), (0, 2)]).map(np.zeros),
    }
)


def bits(value: Any) -> object:
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@given(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=6))
def test_it_is_as_values_one_by_one(pairs: list[tuple[Any, Any]]) -> None:
    one, other = (block_of(list(rows), SCHEMA) for rows in zip(*pairs, strict=True))
    names = [column.name for column in SCHEMA.columns]
    expected = [[bits(mine[name]) != bits(theirs[name]) for name in names] for mine, theirs in pairs]
    assert differing(one, other).tolist() == expected


def test_columns_are_found_by_name() -> None:
    one, other = block_of([{"a": 1, "b": 2}]), block_of([{"b": 2, "a": 3}])
    assert differing(one, other).tolist() == [[True, False]]
    assert differing(one, other.slice(0, 1)).shape == (1, 2)
    assert differing(one.slice(0, 0), other.slice(0, 0)).shape == (0, 2)


def test_blocks_are_equal_if_schema_shapes_and_bytes_are() -> None:
    def of(*rows: Any, ragged: bool = True) -> Block:
        return block_of(list(rows), Schema.of(rows[0], ragged=["value"] if ragged else []))

    flat, across, up = np.zeros((2, 3)), np.zeros((3, 2)), np.ones((2, 3))
    assert equal_blocks(of(flat, up), of(flat, up))
    for other in (of(flat, across), of(flat, flat), of(flat, up, up), of(flat, up, ragged=False)):
        assert not equal_blocks(of(flat, up), other)
    assert not equal_blocks(of(flat, flat), of(flat, across))  # the same bytes
