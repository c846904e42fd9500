"""TensorPack's DataFlows, and the files that its LMDBSerializer writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.dataflow import (
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    LMDBSerializer,
    MapData,
    MultiProcessRunner,
    RepeatedData,
    RNGDataFlow,
)

import torchyoga as yoga
from torchyoga.testing import assert_rows_equal, check_source

POINTS = [[np.full((2, 3), i, np.uint8), i, f"{i}"] for i in range(40)]
DICTS = [{"x": np.arange(i % 4), "y": float(i)} for i in range(40)]


class Rough(DataFlow):
    """A flow whose length is not accurate."""

    def __iter__(self) -> Iterator[Any]:
        return iter(POINTS)

    def __len__(self) -> int:
        return 7


FLOWS: dict[str, tuple[Callable[[], DataFlow], list[Any]]] = {
    "lists": (lambda: DataFromList(POINTS, shuffle=False), POINTS),
    "dicts": (lambda: DataFromList(DICTS, shuffle=False), DICTS),
    "mapped": (
        lambda: MapData(DataFromList(POINTS, shuffle=False), lambda p: [p[0], 2 * p[1], p[2]]),
        [[x, 2 * y, t] for x, y, t in POINTS],
    ),
    "without a length": (lambda: DataFromGenerator(lambda: iter(POINTS)), POINTS),
    "of a rough length": (Rough, POINTS),
}


@pytest.mark.parametrize("kind", FLOWS)
def test_points_come_back(kind: str, tmp_path: Path) -> None:
    check_source(*FLOWS[kind], tmp_path)


def test_reset_state_is_called_once(tmp_path: Path) -> None:
    class Counting(RNGDataFlow):
        count = 0

        def reset_state(self) -> None:
            super().reset_state()
            self.count += 1

        def __iter__(self) -> Iterator[Any]:
            yield [int(self.rng.randint(10))]

    flow = Counting()
    storage = yoga.Storage(tmp_path)
    for version in "123":
        storage.submit(flow, "x", version)
    assert flow.count == 1


def test_a_dataflow_with_processes(tmp_path: Path) -> None:
    flow = MultiProcessRunner(DataFromList(POINTS[:5], shuffle=False), num_prefetch=4, num_proc=1)
    ref = yoga.Storage(tmp_path).submit(FixedSizeData(flow, 5), "x", "1")
    assert sorted(row[1] for row in ref) == list(range(5))


def test_without_an_end_it_is_refused(tmp_path: Path) -> None:
    storage, flow = yoga.Storage(tmp_path), DataFromList([[1], [2]], shuffle=False)
    endless = MapData(RepeatedData(flow, -1), lambda point: point)
    with pytest.raises(ValueError, match="MapData repeats its data without end; cache it before"):
        storage.submit(endless, "x", "1")
    assert list(storage.submit(RepeatedData(flow, 2), "x", "1")) == [[1], [2], [1], [2]]
    assert list(storage.submit(FixedSizeData(endless, 3), "x", "2")) == [[1], [2], [1]]


@pytest.mark.parametrize("folder", [False, True])
def test_what_its_serializer_wrote_is_read(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "old.lmdb"
    if folder:
        path.mkdir()
    LMDBSerializer.save(DataFromList(POINTS, shuffle=False), str(path))
    ref = yoga.from_lmdb(path, format="tensorpack", trust_pickle=True)
    assert len(ref) == len(POINTS)
    for found, expected in zip(ref[[39, 0, 7]], [POINTS[39], POINTS[0], POINTS[7]], strict=True):
        assert_rows_equal(found, expected)
    check_source(lambda: yoga.from_lmdb(path, "tensorpack", trust_pickle=True), POINTS, tmp_path / "cached")
