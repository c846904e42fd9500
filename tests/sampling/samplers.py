"""Samplers of other libraries' kinds, and loaders of rows that draw random numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import torchyoga as yoga

ROWS = 23
WEIGHTS = torch.arange(1.0, ROWS + 1)


class Noisy(Dataset[Any]):
    """Rows that draw random numbers, and hold their own number."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Any:
        return int(index), random.random(), np.random.rand(), torch.rand(())


class Tasks(Sampler[list[int]]):
    """Few-shot tasks, drawn one after the other from all generators there are."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(6):
            classes = torch.randperm(5)[:2].tolist()
            rows = [5 * one + int(np.random.randint(0, 3)) for one in classes for _ in range(2)]
            yield [*rows, random.randrange(ROWS)]


class Endless(Tasks):
    """A sampler of the same tasks without a length."""

    __len__: Any = None


class ByLength(Sampler[int]):
    """Rows of similar length together, in an order that depends on the epoch, as with `group_by_length`."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(17 + self.epoch)
        rows = torch.randperm(ROWS, generator=generator).tolist()
        for start in range(0, ROWS, 8):
            yield from sorted(rows[start : start + 8], key=lambda row: (row * 7) % 11)


class Reordered(Sampler[int]):
    """A sampler that draws from its own generator while it iterates, and once more at the end."""

    def __init__(self, generator: Any) -> None:
        self.rng = generator

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[int]:
        for _ in range(14):
            yield self._drawn()
        self._drawn()

    def _drawn(self) -> int:
        if isinstance(self.rng, torch.Generator):
            return int(torch.randint(ROWS, (), generator=self.rng))
        return int((self.rng.integers if hasattr(self.rng, "integers") else self.rng.randint)(0, ROWS - 1))


class Stateful(Sampler[int]):
    """A sampler with a state of its own, which it begins from."""

    def __init__(self) -> None:
        self.begun = self.at = 0

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        if self.at == 11:
            self.at, self.begun = 0, self.begun + 1
        while self.at < 11:
            self.at += 1
            yield (self.at * (self.begun + 3)) % ROWS
        # The next iteration begins another epoch.

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun, self.at = state["begun"], state["at"]


Options = dict[str, Any]


SAMPLERS: dict[str, Callable[[], Options]] = {
    "weighted": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 18), "batch_size": 4},
    "replacement": lambda: {"sampler": RandomSampler(range(ROWS), True, 70), "batch_size": 12},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(3, 20)), "batch_size": 4, "drop_last": True},
    "tasks": lambda: {"batch_sampler": Tasks()},
    "no length": lambda: {"batch_sampler": Endless()},
    "by length": lambda: {"sampler": ByLength(), "batch_size": 5},
    "a generator": lambda: {
        "sampler": RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(5)),
        "batch_size": 5,
    },
    "lazily": lambda: {"sampler": Reordered(torch.Generator().manual_seed(5)), "batch_size": 4},
    "NumPy's": lambda: {"sampler": Reordered(np.random.default_rng(5)), "batch_size": 4},
    "NumPy's old": lambda: {"sampler": Reordered(np.random.RandomState(5)), "batch_size": 4},
    "Python's": lambda: {"sampler": Reordered(random.Random(5)), "batch_size": 4},
    "a state": lambda: {"sampler": Stateful(), "batch_size": 3},
    "torchdata's": lambda: {"sampler": StatefulDistributedSampler(range(ROWS), 2, 1), "batch_size": 3},  # type: ignore[arg-type]
    "a list": lambda: {"sampler": [3, 1, 2, 1, 1, 5, 6, -1], "batch_size": 3},
    "batches": lambda: {"batch_sampler": [[1, 2, 3], np.array([4, 5]), torch.tensor([6])]},
    "within": lambda: {"batch_sampler": Halves(WeightedRandomSampler(WEIGHTS, 18))},
    "ours within": lambda: {"batch_sampler": Halves(yoga.ResumableSampler(ROWS, 1, 0))},
    "singly": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 7), "batch_size": None},
}


class Halves(BatchSampler):
    """A foreign batch sampler: long and short batches in turn."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return -(-len(self.sampler) // 6) * 2

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self.sampler)
        while batch := list(itertools.islice(rows, 6)):
            yield batch[:4]
            yield batch[4:] or batch[:1]


def loader_of(name: str, dataset: Any = None, **options: Any) -> yoga.DataLoader[Any]:
    options = {**SAMPLERS[name](), **options}
    return yoga.DataLoader(Noisy() if dataset is None else dataset, **options)


def seed_all(seed: int = 1) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def drawn() -> Any:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def plain(batch: Any) -> Any:
    return [column.tolist() if hasattr(column, "tolist") else column for column in batch]


def rows_of(loader: Any) -> list[int]:
    """The numbers of the rows of an epoch, in their order."""
    return [row for batch in loader for row in batch[0].tolist()]


def endlessly(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class ByEpoch(ByLength):
    """Asks itself for each row which epoch it is; every epoch is longer than the one before."""

    def __len__(self) -> int:
        return 6 * (self.epoch + 1)

    def __iter__(self) -> Iterator[int]:
        for row in range(len(self)):
            yield row * (self.epoch + 2) % ROWS
