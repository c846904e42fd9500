"""Rows of tables in random batches, each in a fresh process and in turns; called by run.py.

python benchmarks/tables.py
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import verdict

import torchyoga as yoga

BATCH = 256
ROWS = 200_000  # of 264 bytes: 64 floats and a label
CACHE, ARROW, OURS, THEIRS = "the cache", "from_arrow", "from_huggingface", "datasets, torch format"
_GOALS = {(OURS, THEIRS): 3.0, (ARROW, CACHE): 0.8}


def child(folder: str, what: str) -> float:
    """Rows per second of random batches, the second epoch."""
    read = _reader(folder, what)
    gc.collect()  # what imports have left takes 0.1 s, in an epoch of any of them
    rng = np.random.default_rng(1)
    count = ROWS if what != THEIRS else ROWS // 10
    for _ in range(2):
        order = rng.permutation(ROWS)[:count]
        started = time.perf_counter()
        for start in range(0, count, BATCH):
            read(order[start : start + BATCH])
        seconds = time.perf_counter() - started
    return count / seconds


def _reader(folder: str, what: str) -> Callable[[np.ndarray], object]:
    if what in (OURS, THEIRS):
        import datasets

        dataset = datasets.load_from_disk(f"{folder}/hf")
        if what == THEIRS:
            shown = dataset.with_format("torch")
            return lambda rows: shown[rows.tolist()]
        ref = yoga.from_huggingface(dataset)
    elif what == ARROW:
        ref = yoga.from_arrow(f"{folder}/rows.arrow")
    else:
        ref = yoga.Storage(folder).fetch("rows", "1")
    return lambda rows: torch.utils.data.default_collate(ref.__getitems__(rows.tolist()))


def make(folder: Path) -> None:
    """Writes the same rows for all."""
    import datasets
    import pyarrow as pa

    x = np.random.default_rng(0).random((ROWS, 64), np.float32)
    table = pa.table(
        {"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 64), "label": np.arange(ROWS)}
    )
    datasets.disable_progress_bars()
    features = datasets.Features(
        {"x": datasets.Sequence(datasets.Value("float32"), length=64), "label": datasets.Value("int64")}
    )
    datasets.Dataset(datasets.table.InMemoryTable(table.cast(features.arrow_schema))).save_to_disk(
        str(folder / "hf"), max_shard_size="1GB"
    )
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        for batch in table.to_batches(max_chunksize=1000):
            writer.write_batch(batch)
    yoga.Storage(folder).submit({"x": x, "label": np.arange(ROWS)}, "rows", "1", progress=False)


def measure(repetitions: int = 3) -> list[list[str]]:
    """Rows per second; ratios are medians over rounds in which all take turns."""
    names = (CACHE, ARROW, OURS, THEIRS)
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        for _ in range(repetitions):
            for name in names:
                command = [sys.executable, __file__, "--child", folder, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
                rates[name].append(float(done.stdout))
    lines = []
    for name in names:
        base = THEIRS if name == OURS else CACHE
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates[base], strict=True))
        goal = _GOALS.get((name, base))
        shown = "" if name in (CACHE, THEIRS) else f"{ratio:.2f} of {base}"
        rate = f"{statistics.median(rates[name]):,.0f} rows/s"
        lines.append(["tables, 264 B a row", name, rate, shown, "" if goal is None else verdict(ratio, goal)])
    return lines


def main() -> None:
    """Prints the table, or is a child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=2)
    given = parser.parse_args()
    if given.child:
        print(child(*given.child))
        return
    for line in measure():
        print("  ".join(line))


if __name__ == "__main__":
    main()
