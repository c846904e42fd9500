"""Datasets with something wrong, for the doctor; in a module, so that workers that are spawned find them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from torchyoga.tools.doctor.diagnosis import Check
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.trial import tried

PATIENCE = 120.0  # seconds, for a step of a test


class Slow(Dataset[torch.Tensor]):
    """Rows that wait."""

    def __init__(self, seconds: float = 0.004, shape: tuple[int, ...] = (4,)) -> None:
        self.seconds, self.shape = seconds, shape

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full(self.shape, float(row))


class Held(Slow):
    """Rows beside an object that the dataset holds."""

    def __init__(self, held: object) -> None:
        super().__init__(0.0)
        self.held = held


class Drawing(Dataset[float]):
    """Rows of random numbers of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        own = {"own": np.random.default_rng(0), "own random": random.Random(0)}
        self.generator: Any = {**own, "own torch": torch.Generator().manual_seed(0)}.get(kind, 0)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> float:
        if self.kind in ("own", "own random"):
            return float(self.generator.random())
        if self.kind == "own torch":
            return float(torch.rand((), generator=self.generator))
        if self.kind == "coin":  # that falls alike in all workers at first, by chance
            self.generator += 1
            return float(torch.rand(())) if self.generator > 4 else float(self.generator % 2)
        draws: dict[str, Callable[[], float]] = {"numpy": np.random.random, "random": random.random}
        return draws[self.kind]() if self.kind in draws else float(torch.rand(()))


class Hanging(Slow):
    """Rows that never come in a worker; in the process that made the dataset they do."""

    def __init__(self, everywhere: bool = False) -> None:
        super().__init__(0.0)
        self.everywhere = everywhere

    def __getitem__(self, row: int) -> torch.Tensor:
        if self.everywhere or torch.utils.data.get_worker_info() is not None:
            threading.Event().wait()
        return super().__getitem__(row)


class Sharded(Slow):
    """Rows of one part of several."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(0.0)
        self.rank, self.world_size = rank, world_size


def seeded_alike(worker: int) -> None:
    """A worker_init_fn that gives all workers the same random numbers."""
    np.random.seed(0)
    random.seed(0)


def in_trial(check: Check, patient: Patient) -> list[Any]:
    """The findings of a check of the doctor's, and what it has measured of a patient."""
    outcome = tried(partial(check.measure, patient, PATIENCE), PATIENCE)
    assert not outcome.problem, outcome
    return [*check.judge(patient, outcome.value, {})]
