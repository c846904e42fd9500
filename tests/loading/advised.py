"""Programs that wait for data, and what becomes of them when the meter's advice is followed to the letter."""

from __future__ import annotations

import multiprocessing
import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import torchyoga as yoga
from torchyoga.tools.meter_advice import Numbers, Setting, verdict_of


def verdict(last: Numbers, setting: Setting) -> str:
    """What a meter that has counted so says."""
    return verdict_of(last, setting).text


def burn(seconds: float) -> None:
    """Takes a CPU for so long, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Sleeping(Dataset[torch.Tensor]):
    """Rows that wait for something."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows, self.seconds = rows, seconds

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((4,), row)


class Burning(Sleeping):
    """Rows that are computed."""

    def __getitem__(self, row: int) -> torch.Tensor:
        burn(self.seconds)
        return torch.full((4,), row)


class Uneven(Sleeping):
    """Rows of which some take long."""

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(0.3 if row % 44 == 20 else 0.0)
        return torch.full((4,), row)


class Copied(Sleeping):
    """Rows that are copied out of memory, many times more than a cache holds."""

    memory = np.ones(2**23, np.float32)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy((self.memory + row).reshape(2**10, -1).sum(0))


class Large(Sleeping):
    """Rows of 2 MB."""

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((2**19,), float(row))


def slowly(rows: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that takes longer than the rows."""
    burn(0.015)
    return torch.stack(rows)


def consumed(loader: Any, seconds: float = 0.0) -> int:
    """How many batches there were; the loop computes so long with each."""
    count = 0
    for _ in loader:
        time.sleep(seconds)
        count += 1
    return count


@dataclass
class Program:
    """A training script.

    Attributes:
        dataset: its rows.
        epochs: that it runs.
        loop: seconds that it computes with a batch.
        settings: of its loader.
    """

    dataset: Dataset[Any]
    epochs: int
    loop: float
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self) -> tuple[float, str]:
        """Seconds that it waited for a batch, on average over all epochs, and what the meter advises."""
        loader = yoga.DataLoader(self.dataset, **self.settings)
        waited = batches = 0.0
        for _ in range(self.epochs):
            for _ in loader:
                time.sleep(self.loop)
            waited += loader.meter.epoch.waited
            batches += loader.meter.epoch.batches
        return waited / batches, loader.meter.verdict()

    def run_beside(self) -> tuple[float, str]:
        """`run`, in a process of its own."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=self._run_to, args=(theirs,))
        child.start()
        theirs.close()
        try:
            assert ours.poll(200), f"the program did not end: {self}"
            waited, said = ours.recv()
        finally:
            child.join(10)
            child.kill()
            child.join()
        return float(waited), str(said)

    def _run_to(self, pipe: Any) -> None:
        torch.set_num_threads(1)  # OpenMP's threads are not there after a fork, and would be waited for
        pipe.send(self.run())

    def followed(self, said: str) -> Program:
        """The same program with the advice followed, word by word."""
        settings = dict(self.settings)
        if match := re.search(r"(raise|lower) num_workers from (\d+) to (\d+)", said):
            assert int(match[2]) == settings.get("num_workers", 0), said
            settings["num_workers"] = int(match[3])
            if not settings["num_workers"]:
                for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
                    settings.pop(name, None)
        if "set persistent_workers=True" in said:
            assert not settings.get("persistent_workers"), said
            settings["persistent_workers"] = True
        if match := re.search(r"raise prefetch_factor from (\d+) to (\d+)", said):
            assert int(match[1]) == settings.get("prefetch_factor", 2), said
            settings["prefetch_factor"] = int(match[2])
        assert settings != self.settings, said
        return Program(self.dataset, self.epochs, self.loop, settings)
