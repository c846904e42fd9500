"""The history of a dataset: the log of 1,000 versions, the newest one, one of 100 tags, and staleness.

Called by run.py.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torchyoga as yoga
from torchyoga.versions.parent import Parent

VERSIONS, TAGS = 1000, 100
LOG, CALL = "log of 1,000 versions", "a cached function's call, compared and opened"
GOALS = {LOG: 1.0, CALL: 0.01}  # seconds
FACTOR = 3


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
    first = storage.path / "chain" / "0000"
    manifest = storage.fetch("chain", "0000").manifest  # type: ignore[attr-defined]
    for number in range(1, VERSIONS):
        folder = storage.path / "chain" / f"{number:04d}"
        folder.mkdir()
        for file in manifest.files:
            (folder / file.name).hardlink_to(first / file.name)
        parent = Parent(f"{number - 1:04d}", manifest.fingerprint, 1, True)
        other = replace(manifest, version=folder.name, parents=(parent,))
        (folder / "manifest.json").write_bytes(other.to_bytes())
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


if __name__ == "__main__":
    for line in measure():
        print("  ".join(line))
