"""Windows of tokens beside slices of a memmap and rows of one size; padding of batches by method.

python benchmarks/token_windows.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import verdict

import torchyoga as yoga

BATCH = 256
ROWS = {1024: 40_000, 512: 60_000, 196: 150_000}  # windows by their tokens, of int32, of an epoch
SIZES = {512: "2 KB", 1024: "4 KB", 196: "784 B"}
BUDGET, CAP, DOCUMENTS = 65_536, 4096, 10**6
POOLS = (2_048, 8_192, 65_536)
PLAIN, WINDOWS, LABELS = "rows of one size", "token_windows", "token_windows with labels"
LONG, NANO = "one long document", "memmap, torch.stack of slices"
_GOALS = {512: 0.8, 196: 0.55}


def lengths_of_documents(count: int = DOCUMENTS) -> np.ndarray:
    """Log-normal, as texts are: 646 tokens on average, 4,096 at most."""
    found = np.random.default_rng(0).lognormal(6.0, 1.0, count)
    return np.clip(found, 1, CAP).astype(np.int64)


def _open(folder: str, what: str, size: int) -> Callable[[], Iterator[object]]:
    """Makes an epoch of batches."""
    storage = yoga.Storage(folder)
    if what == NANO:
        tokens = np.memmap(f"{folder}/tokens.bin", np.int32, "r")

        def slices() -> Iterator[object]:
            rng = np.random.default_rng(1)
            for _ in range(ROWS[size] // BATCH):
                starts = rng.integers(0, len(tokens) - size - 1, BATCH).tolist()
                yield torch.stack([torch.from_numpy(np.array(tokens[i : i + size])) for i in starts])
                torch.stack([torch.from_numpy(np.array(tokens[i + 1 : i + 1 + size])) for i in starts])

        return slices
    if what == PLAIN:
        ref: yoga.DataRef = storage.fetch(f"rows{size}", "1")
    else:
        name = "long" if what == LONG else "documents"
        ref = storage.fetch(name, "1").token_windows(
            "ids", size, labels="shifted" if what == LABELS else None
        )
    part = ref[: ROWS[size]]
    loader = yoga.DataLoader(part, BATCH, shuffle=True, seed=1)
    return lambda: iter(loader)


def child(folder: str, what: str, size: int) -> float:
    """Rows per second of CPU in random batches, the second epoch."""
    epoch = _open(folder, what, size)
    seconds = 0.0
    for _ in range(2):
        started, count = time.process_time(), 0
        for _ in epoch():
            count += BATCH
        seconds = time.process_time() - started
    return count / seconds


def make(folder: Path) -> None:
    """Writes the same tokens as documents, as one document, as rows, and as a file of tokens."""
    storage = yoga.Storage(folder)
    most = max(size * rows for size, rows in ROWS.items()) + 10**6
    lengths = lengths_of_documents(most // 500)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), most)) + 1]
    tokens = np.random.default_rng(1).integers(0, 50_000, int(lengths.sum()), np.int32)
    tokens.tofile(folder / "tokens.bin")
    schema = yoga.Schema.of({"ids": tokens[:2]}, ragged=["ids"])
    documents = [{"ids": found} for found in np.split(tokens, np.cumsum(lengths)[:-1])]
    storage.submit(documents, "documents", "1", schema=schema, progress=False)
    storage.submit([{"ids": tokens}], "long", "1", schema=schema, progress=False)
    for size, rows in ROWS.items():
        ids = tokens[: size * rows].reshape(rows, size)
        storage.submit({"ids": ids}, f"rows{size}", "1", progress=False)


def windows(repetitions: int) -> list[list[str]]:
    """Rows per second of CPU; ratios are medians over rounds in which all take turns."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        for size in ROWS:
            names = [PLAIN, WINDOWS, LABELS, LONG, NANO]
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(repetitions):
                for name in names:
                    command = [sys.executable, __file__, "--child", folder, name, str(size)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
                    rates[name].append(float(done.stdout))
            for name in names:
                ratio = statistics.median(a / b for a, b in zip(rates[name], rates[PLAIN], strict=True))
                goal = _GOALS.get(size) if name == WINDOWS else None
                lines.append(
                    [
                        f"windows of {SIZES[size]}",
                        name,
                        f"{statistics.median(rates[name]):,.0f} rows/c-s",
                        "" if name == PLAIN else f"{ratio:.2f} of {PLAIN}",
                        "" if goal is None else verdict(ratio, goal),
                    ]
                )
    return lines


class _Documents(yoga.DataRef):
    """Rows of which only lengths are asked."""

    def __len__(self) -> int:
        return DOCUMENTS

    def take(self, rows: np.ndarray) -> list[int]:
        return rows.tolist()


def batches() -> list[list[str]]:
    """The padding of batches of equal budget by how rows are sorted, and the time to plan them."""
    lengths = lengths_of_documents()
    rng = np.random.default_rng(2)
    order, places, area = lengths[rng.permutation(len(lengths))].tolist(), 0, 0
    longest = rows = 0
    for length in order:  # as they come, until the next would not fit
        if max(longest, length) * (rows + 1) > BUDGET:
            area, places = area + longest * rows, places + 1
            longest = rows = 0
        longest, rows = max(longest, length), rows + 1
    padding = 1 - lengths.sum() / (area + longest * rows)
    lines = [["token_batches, 1 M rows", "random", f"{padding:.1%} padding", f"{places + 1:,} batches", ""]]
    for pool in (*POOLS, None):
        started = time.process_time()
        view = _Documents().token_batches(lengths, BUDGET, pool=pool)
        seconds = time.process_time() - started
        report = view.report()
        lines.append(
            [
                "token_batches, 1 M rows",
                "all sorted" if pool is None else f"pool={pool:,}",
                f"{report.padding:.2%} padding",
                f"{report.batches:,} batches, planned in {seconds:.2f} c-s",
                "",
            ]
        )
    numbers = np.random.default_rng(3).permutation(len(view))[:512]
    view.members(numbers[:64])
    started = time.process_time()
    counts = sum(int(view.members(numbers[i : i + 1])[0].sum()) for i in range(len(numbers)))
    nanoseconds = (time.process_time() - started) / counts * 1e9
    lines.append(["token_batches, 1 M rows", "batch -> rows", f"{nanoseconds:,.0f} ns a row", "", ""])
    return lines


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    return windows(repetitions) + batches()


def main() -> None:
    """Prints the table, or is a child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=3)
    given = parser.parse_args()
    if given.child:
        print(child(given.child[0], given.child[1], int(given.child[2])))
        return
    for line in measure():
        print("  ".join(line))


if __name__ == "__main__":
    main()
