"""How fast versions are compared.

python benchmarks/differing.py

Called by run.py. Versions of ten million small rows are compared with unrelated ones, and with one that
shares 99 of its 100 files, as an append does.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import torchyoga as yoga
from torchyoga.building.build import BuildOptions, Target
from torchyoga.caching.many import submitted
from torchyoga.reading.version_ref import VersionRef
from torchyoga.versions.columns import fingerprint_of
from torchyoga.versions.file_entry import Listed

ROWS, FILES = 10**7, 100
_RATE = 2e6  # rows a second of each version
_SECONDS = 2.0  # for versions that share files


def most(found: float, goal: float, unit: str = "") -> str:
    """Whether a figure that should be small is."""
    return f"{'reached' if found <= goal else 'MISSED'} ({goal:g}{unit})"


def _versions(folder: Path) -> dict[str, VersionRef]:
    """Versions of ten million rows: two unrelated ones, and two that share 99 files."""
    storage = yoga.Storage(folder / "versions")
    rng = np.random.default_rng(0)
    store = storage._store
    found: dict[str, VersionRef] = {}
    for name in ("old", "unrelated"):
        # The keys of both are the same; the contents are not.
        data = {"id": rng.permutation(ROWS), "x": rng.random(ROWS)}
        options = BuildOptions(progress=False, file_bytes=16 * ROWS // FILES, block_bytes=16 * ROWS // FILES)
        with store.lock("a", name):
            found[name] = submitted(data, Target(store, "a", name), options)
    old = found["old"]
    more = ROWS // FILES
    last = {"id": np.arange(ROWS, ROWS + more), "x": rng.random(more)}
    new = storage.submit(last, "a", "new", progress=False)
    assert isinstance(new, VersionRef)
    files = old.manifest.files[:-1]
    for file in files:
        os.link(Path(old.location.name, file.name), Path(new.location.name, file.name))
    files = Listed((*files, *new.manifest.files))
    schema = old.manifest.schema
    found["sharing"] = VersionRef(
        new.location, replace(new.manifest, files=files, fingerprint=fingerprint_of(schema, files))
    )
    return found


def diffs(folder: Path, repetitions: int) -> list[list[str]]:
    refs = _versions(folder)
    old, unrelated, sharing = refs["old"], refs["unrelated"], refs["sharing"]
    table = []

    def timed(name: str, call: Callable[[], Any], judge: Callable[[float], str]) -> None:
        times = []
        for _ in range(repetitions):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times)
        rate = f"{ROWS / seconds:,.0f} rows/s"
        table.append(["diff, 10^7 rows of 16 B each", name, rate, f"{seconds:.2f} s", judge(seconds)])

    def fast(seconds: float) -> str:
        return f"{'reached' if ROWS / seconds >= _RATE else 'MISSED'} ({_RATE:.0e} rows/s)"

    def short(seconds: float) -> str:
        return most(seconds, _SECONDS, " s")

    def none(seconds: float) -> str:
        return ""

    timed("unrelated", lambda: yoga.diff(old, unrelated), fast)
    timed("unrelated, by key", lambda: yoga.diff(old, unrelated, key="id"), none)
    timed("99 of 100 files shared", lambda: yoga.diff(old, sharing), short)
    timed("99 of 100 files shared, by key", lambda: yoga.diff(old, sharing, key="id"), short)
    timed("equal fingerprints", lambda: yoga.diff(old, old, key="id"), short)
    return table


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        return diffs(Path(name), repetitions)


if __name__ == "__main__":
    for line in measure():
        print("  ".join(line))
