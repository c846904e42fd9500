"""Lance by its own map-style dataset: the loader and `submit` take batches of a version.

It is here because a process that has loaded it is warned at each fork, also of other tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torchyoga as yoga
from torchyoga.testing import check_resume

pa = pytest.importorskip("pyarrow")
lance = pytest.importorskip("lance")

N = 200


def table(first: int = 0) -> Any:
    numbers = range(first, first + N)
    return pa.table({"id": pa.array(numbers, pa.int32()), "text": [f"t{n}" for n in numbers]})


def test_loader_and_submit_take_its_dataset(tmp_path: Path) -> None:
    from lance.torch.data import SafeLanceDataset

    path = str(tmp_path / "x.lance")
    lance.write_dataset(table(), path, max_rows_per_file=60)
    lance.write_dataset(table(1000), path, mode="append")
    rows = SafeLanceDataset(path, dataset_options={"version": 1})
    assert len(rows) == N
    check_resume(lambda: yoga.DataLoader(rows, 16, shuffle=True, seed=7), 4)
    loader = yoga.DataLoader(rows, 32, shuffle=True, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(int(n) for batch in loader for n in batch["id"]) == list(range(N))
    storage = yoga.Storage(tmp_path / "storage")
    assert list(storage.submit(rows, "of-lance", "1.0", progress=False)) == table().to_pylist()
    both = storage.submit(SafeLanceDataset(path), "of-lance", "1.1", progress=False)
    assert [row["id"] for row in both[[199, 200]]] == [199, 1000]
