"""torch's datasets are sources; over a cached one its DataLoader gives what default_collate gives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, N, Pair, outcome
from torch.utils.data import DataLoader, Dataset, default_collate

import torchyoga as yoga
from torchyoga.adapters.sources import source_of
from torchyoga.rows.block import Rows
from torchyoga.rows.collector import block_of
from torchyoga.testing import assert_rows_equal


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_default_collate(kind: str, tmp_path: Path) -> None:
    rows = KINDS[kind]
    ref = yoga.Storage(tmp_path).submit(rows, kind, "1")
    for size in (1, 3, 6):
        chunks = [rows[i : i + size] for i in range(0, N, size)]
        expected = outcome(lambda chunks=chunks: [default_collate(chunk) for chunk in chunks])
        for loader in (DataLoader(ref, batch_size=size), yoga.DataLoader(ref, batch_size=size)):
            found = outcome(lambda loader=loader: list(loader))
            if kind == "dates":  # torch has no tensors for arrays of times: ours count as single times do
                assert expected is TypeError
                assert found[0][0].shape == (size, 1)
            elif isinstance(expected, type):
                assert found is expected
            else:
                assert_rows_equal(found, expected)
    expected = outcome(lambda: default_collate(rows[:1]))
    found = outcome(lambda: default_collate([*Rows(block_of(rows))][:1]))  # picked out of a batch
    assert found is expected if isinstance(expected, type) else not assert_rows_equal(found, expected)


def as_pickle(rows: Any) -> bytes:
    return pickle.dumps(list(rows))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_of_the_users_own_sees_rows(tmp_path: Path, workers: int) -> None:
    for kind, base in (("tuple", tuple), ("dict", dict), ("namedtuple", Pair), ("array", np.ndarray)):
        ref = yoga.Storage(tmp_path).submit(KINDS[kind], kind, str(workers))
        for loader in (
            DataLoader(ref, batch_size=4, collate_fn=as_pickle, num_workers=workers),
            yoga.DataLoader(ref, batch_size=4, collate_fn=as_pickle, num_workers=workers),
        ):
            rows = [row for packed in loader for row in pickle.loads(packed)]
            assert all(isinstance(row, base) for row in rows)
            assert len(rows) == N


def test_users_may_write_into_batches(tmp_path: Path) -> None:
    rows = [(np.full(4000, i, np.float32), i) for i in range(64)]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1")
    for loader in (DataLoader(ref, batch_size=8), yoga.DataLoader(ref, batch_size=8)):
        held = []
        for x, y in loader:
            x *= 2
            held.append((x, y))
        for x, y in held:
            assert torch.equal(x, (2 * y)[:, None].expand(8, 4000).float())
    assert_rows_equal(list(ref), rows)


def test_a_plain_loader_reads_ahead_of_its_sampler_and_stays_exact(tmp_path: Path) -> None:
    rows = np.arange(5000)
    ref = yoga.Storage(tmp_path).submit({"x": rows}, "rows", "1")
    for size in (1, 7, 64, 1024):
        sampler = yoga.ResumableSampler(ref, seed=3)
        loader: Any = DataLoader(ref, batch_size=size, sampler=sampler)
        for _ in range(2):
            expected = list(yoga.ResumableSampler(ref, seed=3)) if sampler.epoch == 0 else None
            found = [row for batch in loader for row in batch["x"].tolist()]
            assert sorted(found) == rows.tolist()
            if expected is not None:
                assert found == expected
        iterator = iter(loader)
        next(iterator)
        assert ref[3]["x"] == 3
        assert sampler.state_dict()["position"] == size


def test_a_dataset_without_a_length_is_to_be_iterable() -> None:
    with pytest.raises(TypeError, match="Dataset has no length; pass an iterable"):
        source_of(Dataset())
