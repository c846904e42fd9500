"""What people meet first: `import`, commands, a report, and what the meter costs. Each in fresh processes.

Called by run.py; python benchmarks/tools.py runs it alone.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import meter
import numpy as np
import scale

import torchyoga as yoga

COMMAND_SECONDS, REPORT_BYTES, BATCH_MICROSECONDS = 0.15, 2_000_000, 1.0


def cpu_seconds(*command: str) -> float:
    """Of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def goal(value: float, most: float, text: str) -> str:
    return f"{'reached' if value <= most else 'MISSED'} ({text})"


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    rows = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        storage = yoga.Storage(folder / "storage")
        images = np.random.default_rng(0).integers(0, 256, (10_000, 28, 28), np.uint8)
        arrays = yoga.from_arrays({"image": images, "label": np.arange(10_000) % 10})
        ref = storage.submit(arrays, "images", "1", progress=False)
        ways = {
            "python, nothing imported": [sys.executable, "-c", "0"],
            "import torchyoga": [sys.executable, "-c", "import torchyoga"],
        }
        for name in ("ls", "info", "log"):
            id = [] if name == "ls" else ["images"]
            ways[f"yoga {name}"] = [
                sys.executable,
                "-m",
                "torchyoga",
                name,
                *id,
                "-s",
                str(folder / "storage"),
            ]
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(2 * repetitions + 1):
            for name, command in ways.items():
                taken[name].append(cpu_seconds(*command))
        for name, found in taken.items():
            seconds = statistics.median(found)
            wanted = goal(seconds, COMMAND_SECONDS, "150 ms of CPU") if name.startswith("yoga") else ""
            rows.append(["a fresh process", name, f"{1000 * seconds:.0f} ms of CPU", "", wanted])
        times = []
        for _ in range(repetitions):
            began = time.perf_counter()
            yoga.report(ref, folder / "report.html")
            times.append(time.perf_counter() - began)
        nbytes = os.path.getsize(folder / "report.html")
        shown = f"{statistics.median(times):.2f} s, {nbytes / 1000:,.0f} kB"
        rows.append(["10,000 images", "yoga.report", shown, "", goal(nbytes, REPORT_BYTES, "2 MB")])
        cost = statistics.median(meter.of_empty_batches() for _ in range(repetitions))
        wanted = goal(cost, BATCH_MICROSECONDS, "1 us")
        rows.append(["empty batches", "the meter", f"{cost:.2f} us a batch", "", wanted])
        loader = yoga.DataLoader
        for batch in (32, 256):
            counted, bare, _ = meter.of_an_epoch(lambda batch=batch: loader(ref, batch, True))  # type: ignore[misc]
            cost = counted - bare
            wanted = goal(cost, BATCH_MICROSECONDS, "1 us")
            ratio = f"{counted / bare:.2f} of without"
            rows.append([f"batches of {batch} x 784 B", "the meter", f"{cost:.2f} us a batch", ratio, wanted])
    found = scale.ranks_that_ask()
    ranks = f"{scale.RANKS:,} ranks, simulated"
    rows += [
        [ranks, name, f"{one.seconds:.1f} s", f"{one.requests:,} requests", ""] for name, one in found.items()
    ]
    return rows


if __name__ == "__main__":
    for line in measure():
        print("  ".join(line))
