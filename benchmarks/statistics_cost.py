"""The CPU that statistics add to building, beside building without them, in turns.

python benchmarks/statistics_cost.py
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import torchyoga as yoga

GOAL = 0.05
ROUNDS = 9


def kinds() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    yield "784 bytes, uint8", rng.integers(0, 256, (160_000, 784), dtype=np.uint8)
    yield "4 KB, float32", rng.normal(size=(32_000, 1024)).astype(np.float32)


def cpu(data: Any, stats: bool) -> float:
    """Seconds of CPU of a build, over all threads."""
    folder = Path(tempfile.mkdtemp())
    try:
        started = time.process_time()
        yoga.Storage(folder).submit(data, "a", "1", progress=False, stats=stats)
        return time.process_time() - started
    finally:
        shutil.rmtree(folder)


def measure(rounds: int = ROUNDS) -> list[list[str]]:
    """A table: what is built, how, the share that statistics add, the goal."""
    table = []
    for kind, array in kinds():
        labels = np.arange(len(array)) % 10
        ways = {
            "from arrays": lambda array=array, labels=labels: {"x": array, "label": labels},
            "row by row": lambda array=array, labels=labels: (
                {"x": row, "label": label} for row, label in zip(array, labels.tolist(), strict=True)
            ),
        }
        for way, data in ways.items():
            found: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds + 1):
                for stats in (True, False) if number % 2 else (False, True):
                    seconds = cpu(data(), stats)
                    if number:
                        found[stats].append(seconds)
            with_them, without = (statistics.median(found[stats]) for stats in (True, False))
            share = with_them / without - 1
            goal = f"{'reached' if share <= GOAL else 'MISSED'} ({GOAL:.0%})"
            table.append([f"statistics, {kind}", way, f"{without:.3f} s CPU without", f"{share:+.1%}", goal])
    return table


if __name__ == "__main__":
    for line in measure():
        print("  ".join(f"{cell:<28}" for cell in line))
