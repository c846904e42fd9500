"""The history of a dataset: one that grows to 10,000 versions; the log of 1,000, one of 100 tags, staleness.

Called by run.py; `python benchmarks/history.py` measures what grows, and columns, alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import torchyoga as yoga

VERSIONS, TAGS = 1000, 100
LOG, CALL = "log of 1,000 versions", "a cached function's call, compared and opened"
GOALS = {LOG: 1.0, CALL: 0.01}  # seconds
FACTOR, ROWS = 3, 1_000_000
COUNTS = 10, 100, 1000, 10_000  # versions of a history that grows by ten rows at a time
BESIDE, AS_FIRST = 64 * 2**10, 2.0  # bytes beside the rows of an append; its CPU time, of the first
TOGETHER, FETCH, REMOVE, SWEEP = 50e6, 0.3, 0.1, 20.0  # bytes of all manifests and lists; seconds


def scaled(value: int) -> int:
    """A function that the cached one reaches."""
    return value * FACTOR


def numbers() -> list[int]:
    """The cached one."""
    return [scaled(n) for n in range(10)]


def seconds(call: Callable[[], object], repetitions: int) -> float:
    """The median of some calls, after a first one."""
    times = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def chained(storage: yoga.Storage) -> None:
    """Versions of a row each, each made from the one before."""
    storage.submit([{"x": 1, "y": "text"}], "chain", "0000", message="the first one", progress=False)
    for number in range(1, VERSIONS):
        storage.append([{"x": 1, "y": "text"}], "chain", f"{number:04d}", progress=False)
    for number in range(TAGS):
        storage.tag("chain", f"tag-{number}", f"{number:04d}")


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        storage = yoga.Storage(Path(name) / "history")
        chained(storage)
        cached = storage.cacheable("numbers", "1.0", progress=False)(numbers)
        cached()
        found = {
            LOG: seconds(lambda: str(storage.log("chain")), repetitions),
            "fetch(latest=True) of 1,000 versions": seconds(
                lambda: storage.fetch("chain", latest=True), repetitions
            ),
            "fetch(tag=...), one of 100": seconds(lambda: storage.fetch("chain", tag="tag-7"), repetitions),
            "fetch(version)": seconds(lambda: storage.fetch("numbers", "1.0"), 10 * repetitions),
            CALL: seconds(cached, 10 * repetitions),
        }
    rows = []
    for name, took in found.items():
        goal = (
            f"{'reached' if took <= GOALS[name] else 'MISSED'} ({GOALS[name]:g} s)" if name in GOALS else ""
        )
        rows.append(["history", name, f"{1000 * took:,.1f} ms", "", goal])
    return rows


def grown(counts: tuple[int, ...] = COUNTS) -> list[list[str]]:
    """Lines of the table: what an append, the newest version, the log and a sweep cost as a history grows."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        storage = yoga.Storage(Path(name) / "grown")
        storage.submit(_ten(0), "d", "0", progress=False)
        took: list[float] = []
        for number in range(1, counts[-1] + 1):
            started = time.process_time()
            storage.append(_ten(number), "d", str(number), after=str(number - 1), progress=False)
            took.append(time.process_time() - started)
            if number in counts:
                rows += _at(storage, number, statistics.median(took[-10:]) / statistics.median(took[:10]))
    return rows


def _ten(number: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(10) + 10 * number, "y": np.random.default_rng(number).random(10)}


def _at(storage: yoga.Storage, count: int, as_first: float) -> list[list[str]]:
    """The lines of a history of so many versions, which stays as it is."""
    folder = storage.path / "d"
    beside = [
        sum(file.stat().st_size for file in version.iterdir() if file.suffix in (".json", ".list"))
        for version in folder.iterdir()
    ]
    newest = seconds(lambda: storage.fetch("d", str(count)), 3)
    latest = seconds(lambda: storage.fetch("d", latest=True), 3)
    log = seconds(lambda: storage.log("d", limit=5), 3)
    copy = storage.path.parent / "copy"
    shutil.copytree(folder, copy / "d", copy_function=os.link)
    started = time.perf_counter()
    yoga.Storage(copy).remove("d", str(count // 2))
    remove = time.perf_counter() - started
    started = time.perf_counter()
    yoga.Storage(copy).clean(0, keep_last=5)
    sweep = time.perf_counter() - started
    shutil.rmtree(copy)

    def line(what: str, found: str, value: float, goal: float) -> list[str]:
        reached = f"{'reached' if value <= goal else 'MISSED'} ({goal:g})"
        return [f"{count:,} versions", what, found, "", reached]

    return [
        line("append, CPU", f"{as_first:.2f} of the first", as_first, AS_FIRST),
        line("append, bytes beside the rows", f"{max(beside):,} at most", max(beside), BESIDE),
        line("all manifests and lists", f"{sum(beside) / 1e6:.1f} MB", sum(beside), TOGETHER),
        line("fetch of the newest", f"{1000 * newest:.0f} ms", newest, FETCH),
        line("fetch(latest=True)", f"{1000 * latest:.0f} ms", latest, FETCH),
        line("log(limit=5)", f"{1000 * log:.0f} ms", log, FETCH),
        line("remove of one", f"{1000 * remove:.0f} ms", remove, REMOVE),
        line("clean(keep last 5)", f"{sweep:.2f} s", sweep, SWEEP),
    ]


def columns(repetitions: int = 5) -> list[list[str]]:
    """Lines of the table: what it costs to add a column, and to read it from files of its own."""
    number = np.arange(ROWS)
    with tempfile.TemporaryDirectory() as name:
        storage = yoga.Storage(Path(name) / "columns")
        storage.submit({"x": np.zeros((ROWS, 1024), np.uint8)}, "a", "1", progress=False)
        took: dict[str, list[float]] = {"raw": [], "added": []}
        for turn in range(repetitions):
            started = time.perf_counter()
            with open(Path(name) / "raw", "wb") as file:
                file.write(number.tobytes())
                file.flush()
                os.fsync(file.fileno())
            took["raw"].append(time.perf_counter() - started)
            started = time.perf_counter()
            storage.add_columns({f"n{turn}": number}, "a", f"added {turn}", after="1", progress=False)
            took["added"].append(time.perf_counter() - started)
        raw, added = (statistics.median(times) for times in took.values())
        own = sum(file.stat().st_size for file in (storage.path / "a" / "added 0").iterdir())
        storage.remove("a", "1")
        images = np.random.default_rng(0).integers(0, 256, (20_000, 12_288), np.uint8)
        both = {"image": images, "number": np.arange(20_000)}
        one = storage.submit(both, "one", "1", progress=False)
        storage.submit({"image": images}, "two", "1", progress=False)
        two = storage.add_columns({"number": both["number"]}, "two", "2", progress=False)
        rates: list[list[float]] = [[], []]
        for _ in range(repetitions + 1):
            for ref, times in zip((one, two), rates, strict=True):
                started = time.perf_counter()
                for _batch in yoga.DataLoader(ref, batch_size=64, shuffle=True, seed=1):
                    continue
                times.append(time.perf_counter() - started)
        ratio = statistics.median(rates[0][1:]) / statistics.median(rates[1][1:])

    def line(what: str, found: str, is_reached: bool, goal: str) -> list[str]:
        return ["columns", what, found, "", f"{'reached' if is_reached else 'MISSED'} ({goal})"]

    return [
        line("int64 added to 1,000,000 rows of 1 KiB, bytes", f"{own:,}", own <= 8_200_000, "8.2 MB"),
        line("the same, beside a raw write and fsync", f"{added / raw:.1f}", added <= 2 * raw, "2"),
        line("epoch over two groups, 12 KiB and a number", f"{ratio:.2f} of one", ratio >= 0.9, "0.9"),
    ]


if __name__ == "__main__":
    for line in columns() + grown(COUNTS[: int(sys.argv[1])] if len(sys.argv) > 1 else COUNTS):
        print("  ".join(line))
