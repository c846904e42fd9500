"""Mixtures, weights and buckets beside the plain loader, each in a fresh process; called by run.py.

python benchmarks/mixtures.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import ratio, verdict

import torchyoga as yoga
from torchyoga.order.full import Order
from torchyoga.order.mixed import MixOrder
from torchyoga.order.mixture import MixStage, Mixture, Source
from torchyoga.order.weighted import RowWeights, WeightedOrder, whole_ends

BATCH = 256
SIZES = {"784 B": (np.uint8, 784, 200_000, 0.55), "tokens, 2 KB": (np.int32, 512, 100_000, 0.8)}
PLAIN, VERSIONS = "the plain loader", "mix of 4 versions"
ORDERED = 2**20  # positions of an order


def _parts(ref: yoga.DataRef, count: int) -> dict[str, yoga.DataRef]:
    """A DataRef cut into sources of different sizes."""
    ends = np.linspace(0, 1, count + 1) ** 1.5 * len(ref)
    return {f"part {n}": ref[int(ends[n]) : int(ends[n + 1])] for n in range(count)}


WAYS: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    PLAIN: lambda ref: ref,
    VERSIONS: lambda ref: ref,  # see `child`
    "mix of 4": lambda ref: yoga.mix(_parts(ref, 4), {f"part {n}": n + 1 for n in range(4)}, rows=len(ref)),
    "mix of 64": lambda ref: yoga.mix(
        _parts(ref, 64), {f"part {n}": n + 1 for n in range(64)}, rows=len(ref)
    ),
    "weighted": lambda ref: ref.weighted(np.arange(1, len(ref) + 1)),
    "balanced": lambda ref: ref.balanced("label", batch=BATCH),
    "bucketed": lambda ref: ref.bucketed(np.arange(len(ref)) % 1009, batch=BATCH),
}


def child(folder: str, size: str, way: str) -> list[float]:
    """Rows per second of the first epoch of a process, and of the one after it."""
    storage = yoga.Storage(folder)
    ref = WAYS[way](storage.fetch(size, "1"))
    if way == VERSIONS:
        versions = {str(n): storage.fetch(size, f"part {n}") for n in range(4)}
        ref = yoga.mix(versions, {str(n): n + 1 for n in range(4)}, rows=len(ref))
    loader = yoga.DataLoader(ref, BATCH, shuffle=True, seed=1)
    return [_rate(loader), _rate(loader)]


def _bring(folder: Path) -> None:
    """Reads all files, so that all ways find them in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def _rate(loader: yoga.DataLoader[dict[str, torch.Tensor]]) -> float:
    started = time.perf_counter()
    rows = sum(len(batch["label"]) for batch in loader)
    return rows / (time.perf_counter() - started)


def through_loaders(folder: Path, repetitions: int) -> list[list[str]]:
    """Rows per second through each; ratios are medians over rounds in which all take turns."""
    table = []
    for size, (dtype, width, count, goal) in SIZES.items():
        rng = np.random.default_rng(0)
        data = {"x": rng.integers(0, 100, (count, width), dtype), "label": np.arange(count) % 10}
        storage = yoga.Storage(folder)
        storage.submit(data, size, "1", progress=False)
        for n in range(4):
            part = {name: values[n::4] for name, values in data.items()}
            storage.submit(part, size, f"part {n}", progress=False)
        del data
        rates: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for _ in range(repetitions):
            for way, found in rates.items():
                _bring(folder)
                command = [sys.executable, __file__, "--child", str(folder), size, way]
                printed = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=600
                ).stdout
                found.append(list(map(float, printed.split())))
        for epoch, which in enumerate(("first epochs", "second epochs")):
            plain = [pair[epoch] for pair in rates[PLAIN]]
            for way, found in rates.items():
                own = [pair[epoch] for pair in found]
                share = ratio(own, plain)
                judged = verdict(share, goal) if way.startswith("mix") else ""
                rate = f"{statistics.median(own):,.0f} rows/s"
                table.append([f"mixtures, {size}, {which}", way, rate, f"{share:.2f} of the loader", judged])
    return table


def orders(repetitions: int) -> list[list[str]]:
    """CPU time for the row number at a position, of orders over a million rows a source."""
    weights = np.random.default_rng(0).pareto(1.5, 10**7)
    made = {
        "plain": (Order(10**9, 1), None),
        "mix of 4": (_mixed(4), 250.0),
        "mix of 64": (_mixed(64), 1000.0),
        "weighted, 10^7 rows": (WeightedOrder(RowWeights.of(whole_ends(weights)), 10**7, 1), None),
    }
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(repetitions + 1):
        for name, (order, _) in made.items():
            started = time.process_time()
            for start in range(0, ORDERED, 2**16):
                order.rows(0, np.arange(start, start + 2**16))
            times[name].append((time.process_time() - started) / ORDERED * 1e9)
    table = []
    for name, (_, goal) in made.items():
        found = statistics.median(times[name][1:])
        judged = "" if goal is None else f"{'reached' if found <= goal else 'MISSED'} ({goal:.0f})"
        table.append(["orders, CPU", name, f"{found:.0f} ns a row", "", judged])
    return table


def _mixed(count: int) -> MixOrder:
    sources = tuple(Source(str(number), 10**6) for number in range(count))
    return MixOrder(Mixture(sources, (MixStage.first(tuple(range(1, count + 1))),), 10**9), 1)


def off_the_weights() -> list[list[str]]:
    """How many rows a prefix is off its weights, at most, beside a source drawn at random for each row."""
    order, share = _mixed(4), np.arange(1, 5) / 10
    rows = 10**6
    numbers = order.rows(0, np.arange(rows)) - 2**61
    ours = np.cumsum((numbers % 4)[:, None] == np.arange(4), axis=0)
    drawn = np.random.default_rng(0).choice(4, rows, p=share)
    theirs = np.cumsum(drawn[:, None] == np.arange(4), axis=0)
    exact = np.arange(1, rows + 1)[:, None] * share
    ends = np.abs(ours - exact)[63::64].max()
    return [
        ["rows off the weights", "mix, anywhere", f"{np.abs(ours - exact).max():.1f}", "", ""],
        [
            "rows off the weights",
            "mix, ends of cells",
            f"{ends:.2f}",
            "",
            "reached" if ends <= 1.24 else "MISSED",
        ],
        ["rows off the weights", "drawn at random", f"{np.abs(theirs - exact).max():.0f}", "", ""],
    ]


def measure(repetitions: int) -> list[list[str]]:
    """All tables: what, way, figure, ratio, verdict."""
    with tempfile.TemporaryDirectory() as folder:
        return orders(repetitions) + off_the_weights() + through_loaders(Path(folder), repetitions)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=3)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.child:
        print(*child(*arguments.child))
        return
    for line in measure(arguments.repetitions):
        print(" | ".join(line))


if __name__ == "__main__":
    main()
