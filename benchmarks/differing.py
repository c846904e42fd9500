"""Row hashes: their share of a build; and how fast versions are compared by them.

python benchmarks/differing.py

Called by run.py. Builds with and without row hashes take turns. Versions of ten million small rows are
compared with unrelated ones, and with one that shares 99 of its 100 files, as an append does.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import ratio

import torchyoga as yoga
from torchyoga.building.build import BuildOptions, Target
from torchyoga.caching.row_hashes import with_hashes
from torchyoga.caching.submission import submitted
from torchyoga.reading.version_ref import VersionRef
from torchyoga.stores.refs import store_of
from torchyoga.versions.columns import fingerprint_of

ROWS, FILES = 10**7, 100
_SHARE = 0.15  # of a build
_RATE = 2e6  # rows a second of each version
_SECONDS = 2.0  # for versions that share files


class Images:
    """Rows that are made one by one, as decoding makes them; numbers only, so the least work there is."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        return {"image": self.images[number], "label": number}


def most(found: float, goal: float, unit: str = "") -> str:
    """Whether a figure that should be small is."""
    return f"{'reached' if found <= goal else 'MISSED'} ({goal:g}{unit})"


def builds(folder: Path, repetitions: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (250_000, 784), np.uint8)
    large = rng.integers(0, 256, (12_000, 12_288), np.uint8)
    text = "a text of some words, as captions are: "
    sources: dict[str, Any] = {
        "arrays, 784 B": {"image": images, "label": np.arange(len(images))},
        "arrays, 12 KiB": {"image": large, "label": np.arange(len(large))},
        "arrays, 16 B": {"id": np.arange(4_000_000), "x": rng.random(4_000_000)},
        "rows of a Dataset, 784 B": Images(images[:100_000]),
        "rows of text, 100 B": [{"id": n, "text": text * (1 + n % 4)} for n in range(100_000)],
    }
    table = []
    for name, data in sources.items():
        seconds: dict[bool, list[float]] = {False: [], True: []}
        busy: dict[bool, list[float]] = {False: [], True: []}  # of all processors
        for number in range(2 * repetitions + 1):
            for hashes in (number % 2 == 0, number % 2 == 1):
                storage = yoga.Storage(folder / "builds")
                os.sync()
                started, used = time.perf_counter(), time.process_time()
                storage.submit(data, "a", "1", progress=False, row_hashes=hashes)
                if number:
                    seconds[hashes].append(time.perf_counter() - started)
                    busy[hashes].append(time.process_time() - used)
                shutil.rmtree(folder / "builds")
        length = len(data if not isinstance(data, dict) else next(iter(data.values())))
        share = max(0.0, 1 - ratio(seconds[False], seconds[True]))
        own = (statistics.median(busy[True]) - statistics.median(busy[False])) / length * 1e9
        rate = f"{length / statistics.median(seconds[True]):,.0f} rows/s"
        shown = f"{share:.0%} of the build, {own:.0f} ns a row of processors"
        table.append(["row hashes at build", name, rate, shown, most(share, _SHARE)])
    return table


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
    files = (*files, *new.manifest.files)
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

    timed("unrelated, no hashes kept", lambda: yoga.diff(old, unrelated), none)
    for ref in (old, unrelated):
        with_hashes(ref, store_of(ref.location, ref.manifest))
    timed("unrelated, hashes kept", lambda: yoga.diff(old, unrelated), fast)
    timed("unrelated, hashes kept, by key", lambda: yoga.diff(old, unrelated, key="id"), none)
    timed("99 of 100 files shared", lambda: yoga.diff(old, sharing), short)
    timed("99 of 100 files shared, by key", lambda: yoga.diff(old, sharing, key="id"), short)
    timed("equal fingerprints", lambda: yoga.diff(old, old, key="id"), short)
    return table


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        return builds(Path(name), repetitions) + diffs(Path(name), repetitions)


if __name__ == "__main__":
    for line in measure():
        print("  ".join(line))
