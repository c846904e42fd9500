"""Code that all benchmarks share: the limit, the naive way, and rounds in which all ways take turns."""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
import torch.utils.data

from torchyoga.rows.block import Rows

BATCH = 256


class NaiveLmdb(torch.utils.data.Dataset[Any]):
    """A dataset with one pickled row for each key."""

    def __init__(self, path: str, length: int) -> None:
        self.env = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with self.env.begin(buffers=True) as transaction:
            return pickle.loads(transaction.get(b"%d" % index))


def save(figure: Any, path: Path, **options: Any) -> None:
    """Saves a picture in docs/images, and gives it its colours for dark pages."""
    import matplotlib.pyplot as plt

    figure.savefig(path, metadata={"Date": None}, **options)
    plt.close(figure)
    add = "import pictures; pictures.add_dark_colours()"
    subprocess.run([sys.executable, "-c", add], cwd=path.parents[1], check=True)


def write_naive(path: str, images: np.ndarray, labels: np.ndarray) -> None:
    pairs = zip(images, labels, strict=True)
    write_pickled(path, ({"image": image, "label": label} for image, label in pairs), images.nbytes)


def write_pickled(path: str, rows: Iterable[Any], nbytes: int) -> None:
    """LMDB with one pickled row for each key; `nbytes` of all rows, about."""
    env = lmdb.open(path, subdir=False, map_size=4 * nbytes, sync=False, lock=False)
    with env, env.begin(write=True) as transaction:
        for number, row in enumerate(rows):
            transaction.put(b"%d" % number, pickle.dumps(row))


def take_limit(images: np.ndarray, batch: int = BATCH) -> Callable[[], int]:
    out = np.empty((batch, images.shape[1]), np.uint8)
    rng = np.random.default_rng(0)

    def run() -> int:
        order = rng.permutation(len(images))
        for start in range(0, len(order) - batch + 1, batch):
            np.take(images, order[start : start + batch], 0, out=out, mode="clip")
        return len(order) // batch * batch

    return run


def epoch(batches: Callable[[], Iterator[Any]], most: int | None = None) -> Callable[[], int]:
    def run() -> int:
        rows = 0
        for batch in batches():
            rows += len(batch) if isinstance(batch, Rows) else len(batch["label"])
            if most is not None and rows >= most:
                break
        return rows

    return run


def interleaved(
    ways: dict[str, Callable[[], int]], repetitions: int, before: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Rows per second of each way, once a round after `before`; the first round only warms up."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(repetitions + 1):
        for name, way in ways.items():
            before()
            started = time.perf_counter()
            rows = way()
            if repetition:
                rates[name].append(rows / (time.perf_counter() - started))
    return rates


def ratio(found: list[float], other: list[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(found, other, strict=True))


def verdict(share: float, goal: float) -> str:
    """Whether a goal was reached, for the table."""
    return f"{'reached' if share >= goal else 'MISSED'} ({goal:g})"
