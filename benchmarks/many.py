"""Many of everything: small files, columns, versions, and rows to order. Each figure in fresh processes.

    .venv/bin/python benchmarks/many.py        (two minutes)

Called by run.py, too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from performance import HEADING, LOADER, printed_by
from sparse import write_sparse

from torchyoga.formats.contract import FORMATS

SEVERAL = 9  # processes for a figure that each needs a moment for

PASS = """
import sys, time, torchyoga as yoga
loader = yoga.DataLoader(yoga.Storage(sys.argv[1]).fetch(sys.argv[2], "1"), batch_size=256)
for epoch in range(3):
    started = time.perf_counter()
    rows = sum(len(batch["x"]) for batch in loader)
    print(rows / (time.perf_counter() - started))
"""

COLUMNS = """
import sys, time, torchyoga as yoga
rows = [{f"column {i}": i + row for i in range(4096)} for row in range(2)]
storage = yoga.Storage(sys.argv[1], format=sys.argv[2])
times = [time.perf_counter()]
storage.submit(rows, "columns", sys.argv[2], overwrite=True, progress=False)
times.append(time.perf_counter())
ref = storage.fetch("columns", sys.argv[2])
assert list(ref) == rows
times.append(time.perf_counter())
print(times[1] - times[0], times[2] - times[1])
"""

VERSIONS = """
import sys, time, torchyoga as yoga
storage = yoga.Storage(sys.argv[1])
times = [time.perf_counter()]
versions = storage.list()
times.append(time.perf_counter())
storage.clean()
times.append(time.perf_counter())
for id, version in versions:
    storage.check(id, version)
times.append(time.perf_counter())
print(*(after - before for before, after in zip(times, times[1:])))
"""

ORDER = """
import time, torch, torchyoga as yoga
next(iter(yoga.ResumableSampler(10, shuffle=True)))  # loads what it needs
started = time.perf_counter()
indices = iter(yoga.ResumableSampler(10**12, shuffle=True, seed=7))
for _ in range(1000):
    next(indices)
print((time.perf_counter() - started) * 1000)
"""


def small_files(folder: Path, repetitions: int) -> list[list[str]]:
    """10,000 files of 10 rows, in order."""
    write_sparse(folder, "small files", 784, 100_000, 10_000)
    first, *later = printed_by(PASS, folder, "small files", repetitions)
    again = statistics.median(later)
    shown = f"first epoch {first:,.0f} rows/s"
    return [
        ["10,000 files of 10 rows", LOADER, f"{again:,.0f} rows/s", shown, at_least(200_000, again, "rows/s")]
    ]


def columns(folder: Path, repetitions: int) -> list[list[str]]:
    """4,096 columns x 2 rows, in each format."""
    table = []
    for format in FORMATS:
        built, read = printed_by(COLUMNS, folder, format, repetitions)
        shown = f"building {built:.2f} s, opening and reading {read:.2f} s"
        found = [f"4,096 columns x 2 rows: {format}", "list(ref)", f"{built + read:.2f} s", shown]
        table.append([*found, at_most(2, built + read, "s")])
    return table


def versions(folder: Path, repetitions: int) -> list[list[str]]:
    """Listing, cleaning and checking 5,000 versions."""
    for number in range(5000):
        write_sparse(folder / "versions", f"version {number}", 8, 10, 1)
    names = ("list()", "clean()", "check() of each")
    found = printed_by(VERSIONS, folder / "versions", "", repetitions)
    return [
        ["5,000 versions", name, f"{seconds:.2f} s", "", at_most(5, seconds, "s")]
        for name, seconds in zip(names, found, strict=True)
    ]


def first_indices(folder: Path, repetitions: int) -> list[list[str]]:
    """The first 1,000 indices of 10^12 rows, once in a process."""
    (found,) = printed_by(ORDER, folder, "", max(SEVERAL, repetitions))
    return [["10^12 rows", "the first 1,000 indices", f"{found:.2f} ms", "", at_most(1, found, "ms")]]


def at_least(goal: float, found: float, unit: str) -> str:
    return f"{'reached' if found >= goal else 'MISSED'} ({goal:,} {unit})"


def at_most(goal: float, found: float, unit: str) -> str:
    return f"{'reached' if found <= goal else 'MISSED'} ({goal:,} {unit})"


def measure(folder: Path, repetitions: int) -> list[list[str]]:
    """The lines of the table."""
    table = []
    for part in (small_files, columns, versions, first_indices):
        table += part(folder, repetitions)
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=3)
    with tempfile.TemporaryDirectory() as name:
        for line in [HEADING, *measure(Path(name), parser.parse_args().repetitions)]:
            print("  ".join(line))


if __name__ == "__main__":
    main()
