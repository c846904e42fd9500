"""What the meter costs: a loop of empty batches, and an epoch with and without its clocks.

python benchmarks/meter.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import torchyoga as yoga
from torchyoga.process import stages
from torchyoga.tools.meter import Meter

ROUNDS = 7
BATCHES = 1_000_000


def of_empty_batches() -> float:
    """CPU microseconds of a meter, a batch."""
    loader = yoga.DataLoader([0])
    meter, batches = loader.meter, iter(loader)
    next(batches)
    empty = Empty(batches.iteration)
    began = time.process_time()
    for _ in range(BATCHES):
        meter(empty)
    return (time.process_time() - began) * 1e6 / BATCHES


@dataclass
class Empty:
    """An iteration that has begun, and whose batches are nothing."""

    iteration: Any

    def following(self) -> None:
        """Nothing."""


class _Nothing:
    """A stage that nobody times."""

    def __init__(self, *arguments: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def seconds(loader: Any) -> float:
    began = time.perf_counter()
    for _ in loader:
        continue
    return time.perf_counter() - began


def of_an_epoch(make: Callable[[], Any]) -> tuple[float, float, int]:
    """Microseconds a batch with the meter, without it, and batches of an epoch."""
    with_it, without = [], []
    loader = make()
    seconds(loader)
    for _ in range(ROUNDS):
        with_it.append(seconds(loader))
        with (
            patch.object(Meter, "__call__", lambda meter, delivery: delivery.following()),
            patch.object(stages.Stopwatch, "running", _Nothing),
        ):
            without.append(seconds(loader))
    count = len(loader)
    return statistics.median(with_it) * 1e6 / count, statistics.median(without) * 1e6 / count, count


def main() -> None:
    print(f"empty batches: {statistics.median(of_empty_batches() for _ in range(3)):.2f} us a batch")
    with tempfile.TemporaryDirectory() as folder:
        rows = np.zeros((60_000, 784), np.uint8)
        ref = yoga.Storage(folder).submit(yoga.from_arrays({"x": rows}), "a", "1")
        for batch in (1, 32, 256):

            def make(batch: int = batch) -> Any:
                return yoga.DataLoader(ref, batch_size=batch, shuffle=True)

            counted, bare, count = of_an_epoch(make)
            print(
                f"batches of {batch}: {counted:.2f} us with the meter, {bare:.2f} us without: "
                f"{counted - bare:+.2f} us ({counted / bare - 1:+.1%}), {count:,} batches"
            )


if __name__ == "__main__":
    main()
