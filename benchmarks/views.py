"""Views beside the DataRef that they show, each in a fresh process and in turns; called by run.py.

python benchmarks/views.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import verdict
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.views.windows import Anchors

BATCH = 256
SIZES = {"784 B": (784, 400_000), "12 KiB": (12_288, 40_000)}
FILTERED = 50_000_000  # rows
LARGE = (196_608, 2_000)  # bytes and rows
WHOLE = "the DataRef"
EPISODES, STEPS, WINDOW = 500, 400, 64
_GOALS = {
    "784 B": {"slice": 0.85, "list": 0.6, "bits": 0.35},
    "12 KiB": {"slice": 0.9, "list": 0.9, "bits": 0.9, "three views": 0.7},
}


def negated(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    np.invert(columns["image"], out=columns["image"])
    return columns


VIEWS: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    WHOLE: lambda ref: ref,
    "slice": lambda ref: ref[1:-1],
    "list": lambda ref: ref.order_by("label", descending=True),
    "bits": lambda ref: ref.where("label", lambda y: y % 7 != 3),
    "three views": lambda ref: ref[1:].where("label", lambda y: y % 7 != 3).repeat(1),
    "map_batches": lambda ref: ref.map_batches(negated),
}


def child(folder: str, size: str, view: str, workers: int) -> float:
    """Rows per second of the first epoch, shuffled."""
    shown = VIEWS[view](yoga.Storage(folder).fetch(size, "1"))
    return _rate(yoga.DataLoader(shown, BATCH, shuffle=True, seed=1, num_workers=workers))


def _rate(loader: yoga.DataLoader[dict[str, torch.Tensor]]) -> float:
    started = time.perf_counter()
    rows = sum(len(batch["label"]) for batch in loader)
    return rows / (time.perf_counter() - started)


def through_views(folder: Path, repetitions: int) -> list[list[str]]:
    """Rows per second through views; ratios are medians over rounds in which all take turns."""
    table = []
    for size, (row_bytes, count) in SIZES.items():
        rng = np.random.default_rng(0)
        data = {"image": rng.integers(0, 256, (count, row_bytes), np.uint8), "label": np.arange(count)}
        ref = yoga.Storage(folder).submit(data, size, "1", progress=False)
        del data
        for what, rates in {
            "later epochs": later_epochs(ref, repetitions),
            "first epochs": first_epochs(folder, size, repetitions, 0),
            "2 workers, first epochs": first_epochs(folder, size, repetitions, 2),
        }.items():
            for name, found in rates.items():
                pairs = zip(found, rates[WHOLE], strict=True)
                share = statistics.median(one / other for one, other in pairs)
                goal = _GOALS[size].get(name) if what == "later epochs" else None
                rate = f"{statistics.median(found):,.0f} rows/s"
                judged = "" if goal is None else verdict(share, goal)
                table.append([f"views, {size}, {what}", name, rate, f"{share:.2f} of the DataRef", judged])
    return table


def later_epochs(ref: yoga.DataRef, repetitions: int) -> dict[str, list[float]]:
    """Rates of epochs after the first, all in this process."""
    loaders = {name: yoga.DataLoader(make(ref), BATCH, shuffle=True, seed=1) for name, make in VIEWS.items()}
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(2 * repetitions + 1):
        for name, loader in loaders.items():
            rates[name].append(_rate(loader))
    return {name: found[1:] for name, found in rates.items()}


def first_epochs(folder: Path, size: str, repetitions: int, workers: int) -> dict[str, list[float]]:
    """Rates of the first epoch of a process, each in a fresh one."""
    rates: dict[str, list[float]] = {name: [] for name in VIEWS}
    for _ in range(repetitions):
        for name, found in rates.items():
            command = [sys.executable, __file__, "--child", str(folder), size, name, str(workers)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
            found.append(float(printed))
    return rates


def columns(folder: Path) -> list[list[str]]:
    """A small column beside a large one, and alone in a version of its own."""
    row_bytes, count = LARGE
    images = np.zeros((count, row_bytes), np.uint8)
    storage = yoga.Storage(folder)
    both = storage.submit({"image": images, "label": np.arange(count)}, "both", "1", progress=False)
    alone = storage.submit({"label": np.arange(count)}, "alone", "1", progress=False)
    # Several times, for an epoch of so few small rows is over in half a millisecond.
    ways = {"beside 196 KiB": both.columns(["label"]).repeat(100), "alone": alone.repeat(100)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    loaders = {name: yoga.DataLoader(ref, BATCH, shuffle=True, seed=1) for name, ref in ways.items()}
    for _ in range(6):
        for name, loader in loaders.items():
            rates[name].append(_rate(loader))
    pairs = zip(rates["beside 196 KiB"][1:], rates["alone"][1:], strict=True)
    share = statistics.median(one / other for one, other in pairs)
    return [
        [
            "a column of 8 bytes",
            "beside 196 KiB",
            f"{statistics.median(rates['beside 196 KiB'][1:]):,.0f} rows/s",
            f"{share:.2f} of a version of it alone",
            verdict(share, 0.9),
        ]
    ]


def scans(folder: Path) -> list[list[str]]:
    """Filtering, and looking up rows in a selection."""
    ref = yoga.Storage(folder).submit({"x": np.arange(FILTERED)}, "scan", "1", progress=False)
    table = []
    for what in ("first pass, checked", "again"):
        seconds = _timed(lambda: ref.where("x", lambda x: x % 3 == 0))
        rate = FILTERED / seconds / 1e6
        table.append(
            ["where, 50 M of int64", what, f"{rate:,.0f} M rows/s", f"{seconds:.2f} s", verdict(rate, 15)]
        )
    tracemalloc.start()
    ref.where("x", lambda x: x % 3 == 0)
    most = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    reached = "reached" if most < 150 else "MISSED"
    table.append(["where, 50 M of int64", "memory at most", f"{most:,.0f} MB", "", f"{reached} (150 MB)"])
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


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return through_views(folder, repetitions) + columns(folder) + scans(folder) + windows(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4)
    given = parser.parse_args().child
    if given is not None:
        print(child(*given[:3], int(given[3])))
    else:
        for row in measure():
            print("  ".join(row))
