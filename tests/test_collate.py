"""Batches of ragged rows, as values and offsets or padded: the same from a block and from plain rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

import torchyoga as yoga
from torchyoga.columns import Collector, Rows
from torchyoga.formats import FORMATS

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=9)


def rows_of(lengths: list[int]) -> list[Any]:
    return [
        {
            "tokens": np.arange(n, dtype=np.int32) + i,
            "half": torch.full((n,), i, dtype=torch.bfloat16),
            "label": i,
            "text": "x" * n,
        }
        for i, n in enumerate(lengths)
    ]


def block_of(rows: list[Any]) -> Rows:
    collector = Collector(yoga.Schema.of(rows[0], ragged=["tokens", "half"]))
    for number, row in enumerate(rows):
        collector.add(row, number)
    return Rows(collector.take())


@given(LENGTHS)
def test_jagged(lengths: list[int]) -> None:
    rows = rows_of(lengths)
    for batch in (block_of(rows), rows):
        found = yoga.jagged(batch)
        for name in ("tokens", "half"):
            values, offsets = found[name]
            assert offsets.tolist() == np.cumsum([0, *lengths]).tolist()
            assert torch.equal(values, torch.cat([torch.as_tensor(row[name]) for row in rows]))
        assert values.dtype == torch.bfloat16
        assert found["label"].tolist() == list(range(len(lengths)))
        assert found["text"] == ["x" * n for n in lengths]


@given(LENGTHS, st.sampled_from([0, -1, 7]))
def test_padded(lengths: list[int], padding: int) -> None:
    rows = rows_of(lengths)
    for batch in (block_of(rows), rows):
        found = yoga.padded(padding)(batch)
        for name in ("tokens", "half"):
            expected = pad_sequence([torch.as_tensor(row[name]) for row in rows], True, padding)
            values, told = found[name]
            assert torch.equal(values, expected)
            assert values.dtype == expected.dtype
            assert told.tolist() == lengths


@pytest.mark.parametrize("format", FORMATS)
def test_from_files_with_and_without_workers(tmp_path: Path, format: str) -> None:
    lengths = [(7 * i) % 5 for i in range(40)]
    ref = yoga.Storage(tmp_path, format).submit(
        rows_of(lengths), "ragged", "1", schema=block_of(rows_of(lengths)).block.schema, progress=False
    )
    for collate in (yoga.jagged, yoga.padded(-1)):
        expected = [collate(rows_of(lengths)[i : i + 8]) for i in range(0, 40, 8)]
        for workers in (0, 2):
            found = list(yoga.DataLoader(ref, batch_size=8, collate_fn=collate, num_workers=workers))
            for one, other in zip(found, expected, strict=True):
                assert all(map(torch.equal, one["tokens"], other["tokens"]))
                assert all(map(torch.equal, one["half"], other["half"]))
                assert one["text"] == other["text"]


def test_rows_of_two_dimensions_stay_a_list_or_are_refused_as_by_torch() -> None:
    rows = [{"x": np.ones((i + 1, 2))} for i in range(3)]
    with pytest.raises(RuntimeError, match="equal size"):
        yoga.jagged(rows)


def test_a_batch_of_many_columns_nests_as_its_rows() -> None:
    found = yoga.jagged([(np.arange(2), {"a": [np.arange(i)]}) for i in range(3)])
    assert found[0].offsets.tolist() == [0, 2, 4, 6]
    assert found[1]["a"][0].offsets.tolist() == [0, 0, 1, 3]
