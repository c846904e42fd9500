"""Views beside the DataRef that they show, each in turns; called by run.py.

python benchmarks/views.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import verdict
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.views.anchors import Anchors
from torchyoga.views.selection import Selection

BATCH = 256
SIZES = {"784 B": (784, 200_000), "12 KiB": (12_288, 20_000)}
SCANNED, FILTERED = 5_000_000, 50_000_000  # rows
EPISODES, STEPS, WINDOW = 500, 400, 64
_GOALS = {
    "784 B": {"slice": 0.85, "list": 0.6, "bits": 0.35},
    "12 KiB": {"slice": 0.9, "list": 0.9, "bits": 0.9, "three views": 0.7},
}


def views_of(ref: yoga.DataRef) -> dict[str, yoga.DataRef]:
    """The DataRef and views of about as many rows."""
    count = len(ref)
    return {
        "the DataRef": ref,
        "slice": ref[1 : count - 1],
        "list": ref.order_by("label", descending=True),
        "bits": ref.where("label", lambda y: y % 7 != 3),
        "three views": ref[1:].where("label", lambda y: y % 7 != 3).repeat(1),
    }


def through_views(folder: Path, repetitions: int) -> list[list[str]]:
    """Rows per second of later epochs, shuffled, without workers."""
    table = []
    for size, (row_bytes, count) in SIZES.items():
        rng = np.random.default_rng(0)
        data = {"image": rng.integers(0, 256, (count, row_bytes), np.uint8), "label": np.arange(count)}
        ref = yoga.Storage(folder).submit(data, size, "1", progress=False)
        loaders = {
            name: yoga.DataLoader(view, BATCH, shuffle=True, seed=1) for name, view in views_of(ref).items()
        }
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(repetitions + 1):
            for name, loader in loaders.items():
                started = time.perf_counter()
                rows = sum(len(batch["label"]) for batch in loader)
                rates[name].append(rows / (time.perf_counter() - started))
        base = rates["the DataRef"][1:]
        for name, found in rates.items():
            pairs = zip(found[1:], base, strict=True)
            share = statistics.median(one / other for one, other in pairs)
            goal = _GOALS[size].get(name)
            table.append(
                [
                    f"views, {size}",
                    name,
                    f"{statistics.median(found[1:]):,.0f} rows/s",
                    f"{share:.2f} of the DataRef",
                    "" if goal is None else verdict(share, goal),
                ]
            )
    return table


def scans(folder: Path) -> list[list[str]]:
    """Filtering, and looking up rows in a selection."""
    ref = yoga.Storage(folder).submit({"x": np.arange(SCANNED)}, "scan", "1", progress=False)
    table = []
    for what in ("first pass, checked", "again"):
        seconds = _timed(lambda: ref.where("x", lambda x: x % 3 == 0))
        rate = SCANNED / seconds
        table.append(["where, int64", what, f"{rate / 1e6:,.0f} M rows/s", "", verdict(rate / 1e6, 15)])
    mask = np.random.default_rng(0).random(FILTERED) < 0.3
    found = Selection.of_mask(mask)
    places = np.random.default_rng(1).integers(0, len(found), 4096)
    rows = found.rows(places)
    for what, act, goal in (
        ("place -> row", lambda: found.rows(places), 1000),
        ("row -> place", lambda: found.places(rows), 300),
    ):
        nanoseconds = min(_timed(act) for _ in range(50)) / len(places) * 1e9
        reached = "reached" if nanoseconds <= goal else "MISSED"
        table.append(
            ["bits of 50 M rows", what, f"{nanoseconds:,.0f} ns a row", "", f"{reached} ({goal} ns)"]
        )
    return table


def windows(folder: Path) -> list[list[str]]:
    """Windows of 64 rows at random, beside the same rows one by one; and looking up where windows lie."""
    rng = np.random.default_rng(0)
    data = {
        "state": rng.random((EPISODES * STEPS, 14), np.float32),
        "episode": np.repeat(np.arange(EPISODES), STEPS),
    }
    ref = yoga.Storage(folder).submit(data, "episodes", "1", progress=False)
    view = ref.windows(WINDOW, group_by="episode")
    numbers = rng.permutation(len(view))
    rates: dict[str, list[float]] = {"windows": [], "one by one": []}
    for _ in range(5):
        started = time.perf_counter()
        for start in range(0, 4096, BATCH):
            default_collate(view.__getitems__(numbers[start : start + BATCH]))
        rates["windows"].append(4096 / (time.perf_counter() - started))
        started = time.perf_counter()
        for number in view.anchors(numbers[:32]).tolist():
            default_collate([ref[row] for row in range(number, number + WINDOW)])
        rates["one by one"].append(32 / (time.perf_counter() - started))
    fast, slow = (statistics.median(found) for found in rates.values())
    table = [
        [f"windows of {WINDOW} rows", "one by one", f"{slow:,.0f} windows/s", "", ""],
        [
            f"windows of {WINDOW} rows",
            f"batches of {BATCH}",
            f"{fast:,.0f} windows/s",
            f"{fast / slow:,.0f} times as many",
            verdict(fast / slow, 10),
        ],
    ]
    for groups in (1, 10**6):
        anchors = Anchors(np.linspace(0, 10**8, groups + 1).astype(np.int64), 1, 0, 9, repeats=False)
        some = rng.integers(0, len(anchors), 4096)
        nanoseconds = min(_timed(lambda: anchors.spots(some)) for _ in range(50)) / len(some) * 1e9  # noqa: B023
        table.append([f"anchors, groups: {groups}", "window -> row", f"{nanoseconds:,.0f} ns", "", ""])
    return table


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(repetitions: int = 5) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        return through_views(Path(name), repetitions) + scans(Path(name)) + windows(Path(name))


if __name__ == "__main__":
    for row in measure():
        print("  ".join(row))
