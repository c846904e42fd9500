"""What goes into a batch, over tables where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torchyoga as yoga

LISTS = [np.random.default_rng(n).integers(0, 9, n % 30 + 1).tolist() for n in range(120)]


def opened(kind: str, folder: Path) -> yoga.DataRef:
    table = pa.table({"ids": LISTS, "y": list(range(120))})
    if kind == "arrow":
        return yoga.from_arrow(table)
    if kind == "huggingface":
        return yoga.from_huggingface(datasets.Dataset(table))
    pq.write_table(table, folder / "rows.parquet", row_group_size=40)
    return yoga.from_parquet(folder / "rows.parquet")


@pytest.mark.parametrize("kind", ["arrow", "huggingface", "parquet"])
@pytest.mark.filterwarnings("ignore:.*row groups")
def test_tables_are_packed_cut_mixed_and_weighed_where_they_lie(kind: str, tmp_path: Path) -> None:
    ref = opened(kind, tmp_path)
    shuffle: Any = "block" if kind == "parquet" else True
    found = {}
    for batch in yoga.DataLoader(ref.packed("ids", 64), 4, shuffle=shuffle, seed=1):
        begins = batch["cu_seqlens"].tolist()
        for number, row in enumerate(batch["y"].tolist()):
            found[row] = batch["ids"][begins[number] : begins[number + 1]].tolist()
    assert [found[row] for row in range(120)] == LISTS
    flat = [token for tokens in LISTS for token in tokens]
    windows = ref.token_windows("ids", 16)
    assert [window["ids"].tolist() for window in windows] == [
        flat[start : start + 16] for start in range(0, 16 * len(windows), 16)
    ]
    batches = yoga.DataLoader(ref.token_batches("ids", 100), batch_size=None)
    assert sorted(int(row) for batch in batches for row in batch["y"]) == list(range(120))
    mix = yoga.mix({"all": ref, "few": ref[:30]}, {"all": 2, "few": 1}, rows=180)
    rows = [int(row["y"]) for row in mix.columns(["y"]).stream(shuffle=shuffle)]
    assert sorted(rows) == sorted([*range(120), *range(30), *range(30)])
    assert sorted(int(row["y"]) for row in ref.bucketed("ids", batch=8).stream(shuffle=shuffle)) == list(
        range(120)
    )
    heavy = ref.weighted([0] * 110 + [1] * 10, rows=20)
    assert sorted(int(row["y"]) for row in heavy.stream(shuffle=shuffle)) == sorted([*range(110, 120)] * 2)
