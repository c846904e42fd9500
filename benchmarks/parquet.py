"""Parquet files read where they lie, beside `datasets` streaming and beside the cache; called by run.py.

    python benchmarks/parquet.py        (a minute)

Small rows of 264 bytes: 64 floats and a label; groups of 1,000 rows, snappy. All ways give batches of 256 as
tensors, and take turns; the time is that of all threads of the process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import BATCH, epoch, ratio

import torchyoga as yoga

FILES, GROUP = 4, 1000
IN_PLACE, STREAMED = "in place, block shuffle", "datasets, streaming, shuffle buffer"
GOAL = 0.4e6  # rows per second of CPU, under a block shuffle
SMALL_CACHE = 32 * 2**20  # less than the rows, so that each epoch decodes every group


def write_parquet(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(FILES):
        values = rng.random((rows // FILES, 64), dtype=np.float32)
        table = pa.table(
            {
                "x": pa.FixedSizeListArray.from_arrays(values.reshape(-1), 64),
                "label": np.arange(len(values)) % 1000,
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP, compression="snappy")


def streamed(folder: Path) -> Callable[[], Any]:
    """`datasets` over the same files, with a shuffle buffer of as many rows as a block shuffle mixes."""
    import datasets

    datasets.disable_progress_bars()
    found = datasets.load_dataset(
        "parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True, cache_dir=str(folder)
    )
    shuffled = found.shuffle(seed=0, buffer_size=8 * GROUP).with_format("torch")
    return lambda: shuffled.iter(BATCH)


def converted(ref: yoga.DataRef, storage: yoga.Storage) -> Callable[[], int]:
    def run() -> int:
        return len(storage.submit(ref, "converted", "1", overwrite=True, progress=False))

    return run


def by_cpu(ways: dict[str, Callable[[], int]], repetitions: int) -> dict[str, list[float]]:
    """Rows per second of CPU of each way, once a round; the first round only warms up."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(repetitions + 1):
        for name, way in ways.items():
            started = time.process_time()
            rows = way()
            if repetition:
                rates[name].append(rows / (time.process_time() - started))
    return rates


def measure(repetitions: int = 3, rows: int = 400_000) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), rows, repetitions)


def _measure(folder: Path, rows: int, repetitions: int) -> list[list[str]]:
    write_parquet(folder, rows)
    pattern = str(folder / "*.parquet")
    here = yoga.from_parquet(pattern, cache_bytes=SMALL_CACHE)
    storage = yoga.Storage(folder / "storage")
    cached = storage.submit(here, "rows", "1", progress=False)
    few = rows // 10  # of the way that is slow
    block: dict[str, Any] = {"shuffle": "block", "seed": 0}
    ways = {
        IN_PLACE: epoch(lambda: iter(yoga.DataLoader(here, BATCH, **block))),
        "in place, in order": epoch(lambda: iter(yoga.DataLoader(here, BATCH))),
        STREAMED: epoch(streamed(folder), few),
        "the cache, block shuffle": epoch(lambda: iter(yoga.DataLoader(cached, BATCH, **block))),
        "the cache, full shuffle": epoch(lambda: iter(yoga.DataLoader(cached, BATCH, shuffle=True, seed=0))),
        "storage.submit(from_parquet(...))": converted(here, storage),
    }
    rates = by_cpu(ways, repetitions)
    table = []
    for name, found in rates.items():
        middle = statistics.median(found)
        goal = (
            f"{'reached' if middle >= GOAL else 'MISSED'} ({GOAL:,.0f} rows/s of CPU)"
            if name == IN_PLACE
            else ""
        )
        times = "" if name == STREAMED else f"{ratio(found, rates[STREAMED]):.1f} of datasets, streaming"
        table.append(["Parquet, 264 B a row", name, f"{middle:,.0f} rows/s of CPU", times, goal])
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    for line in measure(options.repetitions, options.rows):
        print("  ".join(line))
