"""Hashes of rows: the same for the same row only, wherever and however it lies."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from kinds import KINDS

import torchyoga as yoga
from torchyoga.rows.block import Block, Data, joined
from torchyoga.rows.collector import block_of
from torchyoga.rows.comparing import alike, row_hashes
from torchyoga.rows.schema import Schema

MIXED = Schema.of(
    {"id": 1, "text": "a", "tokens": np.arange(2), "ids": [1, 2], "box": {"at": (1.0, 2.0)}, "names": ["a"]},
    ragged=["tokens", "ids", "names"],
    nullable=["text", "id", "box"],
)
VALUES = st.fixed_dictionaries(
    {
        "id": st.sampled_from([None, 0, 1]),
        "text": st.sampled_from([None, "", "a", "\0", "a\0"]),
        "tokens": st.lists(st.integers(0, 1), max_size=2).map(lambda found: np.array(found, np.int64)),
        "ids": st.lists(st.integers(0, 1), max_size=2),
        "box": st.sampled_from([None, {"at": (0.0, 0.0)}, {"at": (-0.0, 0.0)}, {"at": (float("nan"), 1.0)}]),
        "names": st.lists(st.sampled_from(["", "a", "aa"]), max_size=2),
    }
)


def hashes(rows: list[Any], schema: Schema | None = None) -> list[tuple[int, ...]]:
    return [tuple(found) for found in row_hashes(block_of(rows, schema)).tolist()]


def told(value: Any) -> Any:
    """A value as something that is equal for equal bits only, whatever the order of keys."""
    if isinstance(value, dict):
        return tuple(sorted((key, told(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *map(told, value)
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    return type(value).__name__, value


@given(st.lists(VALUES, min_size=1, max_size=8), st.integers(0, 8))
def test_rows_have_one_hash_if_they_are_equal_and_only_then(rows: list[Any], cut: int) -> None:
    found = hashes(rows, MIXED)
    for (one, mine), (other, theirs) in itertools.combinations(zip(rows, found, strict=True), 2):
        assert (told(one) == told(other)) == (mine == theirs)
    whole = block_of(rows, MIXED)
    cut = min(cut, len(rows))
    parts = [part for part in (whole.slice(0, cut), whole.slice(cut, len(rows))) if part.num_rows]
    assert np.concatenate([row_hashes(part) for part in parts]).tolist() == row_hashes(whole).tolist()
    assert row_hashes(joined(parts)).tolist() == row_hashes(whole).tolist()


@pytest.mark.slow("hdf5-*")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
def test_formats_files_and_blocks_do_not_count(kind: str, format: str, tmp_path: Path) -> None:
    expected = row_hashes(block_of(KINDS[kind]))
    assert expected.shape == (len(KINDS[kind]), 2)
    ref = yoga.Storage(tmp_path / "s", format).submit(KINDS[kind], "a", "1", progress=False)
    for rows in (np.arange(len(ref)), np.arange(len(ref))[::-1].copy()):
        taken = ref.take(rows)
        assert row_hashes(taken.block).tolist() == expected[rows].tolist()
    alone = [
        hash for row in KINDS[kind] for hash in row_hashes(block_of([row], block_of(KINDS[kind]).schema))
    ]
    assert np.array(alone).tolist() == expected.tolist()


def test_types_that_hold_the_same_values_are_alike() -> None:
    same = [{"x": 1}, {"x": np.int64(1)}, {"x": np.array(1)}, {"x": torch.tensor(1)}]
    assert len({hashes([row])[0] for row in same}) == 1
    bits = torch.tensor(1.0, dtype=torch.bfloat16), np.uint16(16256)
    others: list[Any] = [
        {"x": value} for value in (1.0, np.int32(1), np.array([1]), True, "a", b"a", None, *bits)
    ]
    others += [{"y": 1}, {"x": 1, "y": None}, {}, 1, (1,)]
    assert len({hashes([row])[0] for row in [*same, *others]}) == len(others) + 1


def test_shapes_and_neighbours_count() -> None:
    schema = Schema.of({"x": np.zeros((1, 2)), "y": np.zeros(1)}, ragged=["x", "y"])
    sizes = {(1, 2): 0, (2, 1): 0, (2,): 0, (0, 2): 2, (0, 1): 2, (0,): 2, (1, 1): 1}
    rows = [{"x": np.zeros(shape), "y": np.zeros(size)} for shape, size in sizes.items()]
    assert len(set(hashes(rows, schema))) == len(rows)


def test_long_values_and_columns_without_bytes() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 2000), np.uint8)
    rows = [{"image": images[i], "none": np.zeros((0, 3)), "label": i} for i in (0, 1, 0)]
    rows[2]["label"] = 0
    found = hashes(rows)
    assert found[0] == found[2] != found[1]
    assert len(set(hashes([{"a": ()}] * 3))) == 1
    empty = block_of(rows).slice(0, 0)
    assert row_hashes(empty).shape == (0, 2)


def test_the_definition_does_not_change() -> None:
    # Hashes that are kept beside versions were made by it.
    assert hashes([{"x": 1, "y": "a"}]) == [(2705526978036731703, 4459339884331438552)]
    looks = [["x", ["array", "<i8", [], 0, {}]], ["y", ["text", "|u1", None, 1, {}]]]
    text = json.dumps(["xxh3-128 of columns by name, 1", looks])
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    message = struct.pack("<qq", 1, 1) + xxhash.xxh3_128_digest(b"a")
    expected = struct.unpack("<QQ", xxhash.xxh3_128_digest(message, seed))
    assert hashes([{"y": "a", "x": 1}]) == [expected]


def test_arrays_of_another_byte_order_are_hashed_as_they_would_be_stored() -> None:
    block = block_of([{"x": np.arange(3)}, {"x": np.arange(3, 6)}])
    swapped = Block(block.schema, 2, (Data(block.data[0].values.astype(">i8")),))
    assert row_hashes(swapped).tolist() == row_hashes(block).tolist()


def test_containers_inside_values_count() -> None:
    one, other = (Schema.of({"x": held}, nullable=["x"]) for held in ({0: 1}, (1,)))
    assert [column.name for column in one.columns] == [column.name for column in other.columns]
    assert alike(one, other) == []
