"""torch's own loaders with a meter: the same batches as without, and the seconds of their workers."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import torchyoga as yoga


class Rows(Dataset[torch.Tensor]):
    """Rows that draw random numbers, take a time, and know the process that made them."""

    def __init__(self, rows: int = 24, seconds: float = 0.0) -> None:
        self.rows, self.seconds = rows, seconds

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([row, float(torch.rand(())), random.random()])


class Many(Rows):
    """Rows that come several at once."""

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        return [self[row] for row in reversed(rows)]


class Endless(IterableDataset[float]):
    """Rows without numbers, split over workers."""

    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None:
            assert type(info.dataset) is Endless
        for row in range(first, 22, step):
            yield float(row + torch.rand(()))


class Place(Dataset[int]):
    """The process that makes each row."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        return os.getpid()


def named(rows: list[torch.Tensor]) -> dict[str, Any]:
    """A collate function of the user's."""
    return {"x": torch.stack(rows), "n": len(rows), "drawn": np.random.default_rng(len(rows)).random()}


def noted(worker: int) -> None:
    """A user's worker_init_fn that changes the dataset of its worker."""
    info = get_worker_info()
    assert info is not None
    info.dataset.rows_seen = worker  # type: ignore[attr-defined]
    torch.manual_seed(worker)


LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"dataset": Rows(), "batch_size": 5, "shuffle": True},
    "drop_last": {"dataset": Rows(), "batch_size": 5, "drop_last": True},
    "many": {"dataset": Many(), "batch_size": 5, "shuffle": True},
    "stream": {"dataset": Endless(), "batch_size": 4},
    "single": {"dataset": Rows(), "batch_size": None},
    "collated": {"dataset": Rows(), "batch_size": 5, "collate_fn": named},
    "batch_sampler": {"dataset": Rows(), "batch_sampler": [[3, 1], [2], [0, 5, 4]]},
}
ONLY_WORKERS = {"worker_init_fn": noted, "prefetch_factor": 3}


def batches_of(loader: Any, epochs: int) -> str:
    """All batches of some epochs, from the same random numbers."""
    torch.manual_seed(5)
    random.seed(5)
    return repr([list(loader) for _ in range(epochs)]) + repr(float(torch.rand(())))


@pytest.mark.quick("*-0", "shuffled-2")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_batches_and_random_numbers_are_those_of_the_loader(name: str, num_workers: int) -> None:
    settings = {**LOADERS[name], "num_workers": num_workers, **(ONLY_WORKERS if num_workers else {})}
    if name == "stream":
        settings.pop("worker_init_fn", None)
    plain = batches_of(DataLoader(**settings), 2)
    loader = yoga.metered(DataLoader(**settings))
    assert batches_of(loader, 2) == plain
    count = len(list(DataLoader(**settings)))
    epoch = loader.meter.epoch
    assert epoch.batches == count
    assert loader.meter.last.batches == 2 * count
    assert loader.meter.last.epochs == 2
    assert epoch.stages["transform"] > 0
    assert epoch.stages["collate"] > 0
    assert (epoch.stages["start-up"] > 0) == bool(num_workers)
    if name != "stream":
        assert len(loader) == len(loader.loader) == count
    assert loader.batch_size == loader.loader.batch_size


def test_persistent_workers_stay() -> None:
    settings: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "persistent_workers": True}
    loader = yoga.metered(DataLoader(Place(), **settings))
    first, second = ({int(one) for batch in loader for one in batch} for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert os.getpid() not in first
    assert loader.meter.epoch.stages["start-up"] == 0.0
    assert loader.meter.last.stages["start-up"] > 0.0
    loader = yoga.metered(DataLoader(Place(), batch_size=2, num_workers=2))
    first, second = ({int(one) for batch in loader for one in batch} for _ in range(2))
    assert not first & second
    assert loader.meter.epoch.stages["start-up"] > 0.0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_known_sleeps_are_found(num_workers: int) -> None:
    loader = yoga.metered(DataLoader(Rows(60, 0.004), batch_size=2, num_workers=num_workers))
    began = time.perf_counter()
    for _ in loader:
        time.sleep(0.005)
    passed = time.perf_counter() - began
    epoch = loader.meter.epoch
    assert epoch.stages["transform"] >= 60 * 0.004
    assert epoch.away >= 30 * 0.005
    assert epoch.waited + epoch.away <= passed
    assert epoch.cpu > 0
    assert "transform" in str(loader.meter)
    assert loader.meter.workers == ("2 processes" if num_workers else "this process")


@pytest.mark.rest
def test_workers_that_are_spawned() -> None:
    settings: dict[str, Any] = {"batch_size": 5, "num_workers": 1, "multiprocessing_context": "spawn"}
    plain = batches_of(DataLoader(Rows(), **settings), 1)
    loader = yoga.metered(DataLoader(Rows(), **settings))
    assert batches_of(loader, 1) == plain
    assert loader.meter.epoch.stages["start-up"] > loader.meter.epoch.stages["transform"] > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_raised_and_waited_for(num_workers: int) -> None:
    class Broken(Rows):
        def __getitem__(self, row: int) -> torch.Tensor:
            if row == 7:
                raise KeyError("seven")
            return super().__getitem__(row)

    loader = yoga.metered(DataLoader(Broken(12, 0.002), batch_size=2, num_workers=num_workers))
    batches = iter(loader)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(KeyError, match="seven"):
        next(batches)
    assert loader.meter.epoch.batches == 3
    assert loader.meter.epoch.waited > 0


def test_loaders_that_iterate_in_their_own_way_are_only_waited_for() -> None:
    class Scaled(DataLoader[torch.Tensor]):
        def __iter__(self) -> Any:
            return (10 * batch for batch in super().__iter__())

    class Counting(DataLoader[torch.Tensor]):
        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def __iter__(self) -> Any:
            self.count = 0
            for batch in super().__iter__():
                self.count += 1
                yield batch

    for kind, factor in ((Scaled, 10), (Counting, 1)):
        loader = yoga.metered(kind(range(8), batch_size=4))  # type: ignore[arg-type]
        assert [batch.tolist() for batch in loader] == [
            [factor * row for row in range(first, first + 4)] for first in (0, 4)
        ]
        assert loader.meter.epoch.batches == 2
        assert sum(loader.meter.epoch.stages.values()) == 0.0
    assert loader.state_dict() == {"count": 2}
    many = yoga.metered(Scaled(range(80), batch_size=2, num_workers=1))  # type: ignore[arg-type]
    assert len(list(many)) == 40
    assert "what this loader's workers do is not measured" in many.meter.verdict()


def test_targets_are_called_within_the_with_statement() -> None:
    shown: list[int] = []
    plain = DataLoader(Rows(), batch_size=2)
    with yoga.metered(plain, every=5, to=[lambda meter: shown.append(meter.epoch.batches)]) as loader:
        assert loader.dataset is plain.dataset
        assert len(list(loader)) == 12
    assert shown == [5, 10, 12]
    assert len(list(loader)) == 12
    assert shown == [5, 10, 12]
    assert loader.meter.over_ranks().slowest == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_the_loader_itself_stays_as_it_is() -> None:
    plain = DataLoader(Place(), batch_size=2, num_workers=1, persistent_workers=True)
    before = dict(vars(plain))
    assert len(list(yoga.metered(plain))) == 4
    assert vars(plain) == before
    assert {type(batch) for batch in plain} == {torch.Tensor}
