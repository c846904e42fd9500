"""What an append, a deletion of rows and a compaction cost, beside a build of all rows; called by run.py.

python benchmarks/appending.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import verdict

import torchyoga as yoga

ROWS, ROW_BYTES, SHARE = 200_000, 1024, 100
ROUNDS = 5
BUILD, APPEND, NOTHING = "build of all rows", "append of 1 %", "append of no rows"
DELETE, COMPACT = "delete_rows of 1 %", "compact"
_GOAL = 50.0  # appends of 1 % for the CPU time of a build, less what a version costs whatever its size


def measure(folder: Path, rounds: int) -> dict[str, tuple[float, int]]:
    """CPU seconds and written bytes of each way, medians of rounds in which they take turns."""
    rows = np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)
    storage = yoga.Storage(folder)
    new = ROWS // SHARE
    storage.submit({"x": rows[:-new]}, "grown", "old", progress=False)
    ways: dict[str, Callable[[str], object]] = {
        BUILD: lambda name: storage.submit({"x": rows}, "built", name, progress=False),
        APPEND: lambda name: storage.append({"x": rows[-new:]}, "grown", name, after="old", progress=False),
        NOTHING: lambda name: storage.append({"x": rows[:0]}, "grown", name, after="old", progress=False),
        DELETE: lambda name: storage.delete_rows(
            "grown", "old", rows=np.arange(0, ROWS - new, SHARE), to=name
        ),
        COMPACT: lambda name: storage.convert("grown", "old", to=name, progress=False),
    }
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, run in ways.items():
            name, id = f"{way} {number}", "built" if way == BUILD else "grown"
            started = time.process_time()
            run(name)
            seconds = time.process_time() - started
            manifest = storage.fetch(id, name).manifest
            found[way].append((seconds, sum(file.nbytes for file in manifest.own_files)))
            storage.remove(id, name)
    return {way: (statistics.median(s for s, _ in each), each[0][1]) for way, each in found.items()}


def measured(rounds: int = ROUNDS) -> list[list[str]]:
    """Lines of the table: what, which way, CPU seconds, shares of a build, and whether a goal was reached."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), rounds)
    (whole, nbytes), table = found[BUILD], []
    for way, (seconds, size) in found.items():
        shares = f"{seconds / whole:.1%} of a build's CPU, {size / nbytes:.1%} of its bytes"
        goal = verdict(whole / max(1e-9, seconds - found[NOTHING][0]), _GOAL) if way == APPEND else ""
        table.append([f"{ROWS} rows of {ROW_BYTES} B", way, f"{seconds:.3f} s of CPU", shares, goal])
    return table


def main() -> None:
    """Measures and prints."""
    for line in measured():
        print("  ".join(line))


if __name__ == "__main__":
    main()
