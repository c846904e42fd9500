"""One run, one table: torchyoga against the limit of the machine and the naive way.

    make bench        (about two minutes; 2 GB of temporary files, deleted at the end)

Everything is interleaved and repeated; figures are medians, ratios are within this run. The limit is one
thread of `np.take` from a memory-mapped file into a reused buffer; the naive way is a Dataset over LMDB with
one pickled row a key and default_collate.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
import torch.utils.data

import torchyoga as yoga
from torchyoga.columns import Rows

BATCH = 256
SIZES = {"784 B": (784, 200_000), "12 KiB": (12_288, 40_000)}
# What we hold ourselves to: way -> row size -> share of the limit.
GOALS = {
    "torch DataLoader + ResumableSampler": {"784 B": 0.20, "12 KiB": 0.5},
    "torchyoga.DataLoader": {"784 B": 0.30, "12 KiB": 0.7},
}


class NaiveLmdb(torch.utils.data.Dataset[Any]):
    """One pickled row a key."""

    def __init__(self, path: str, length: int) -> None:
        self.env = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with self.env.begin(buffers=True) as transaction:
            return pickle.loads(transaction.get(b"%d" % index))


def write_naive(path: str, images: np.ndarray, labels: np.ndarray) -> None:
    env = lmdb.open(path, subdir=False, map_size=4 * images.nbytes, sync=False, lock=False)
    with env, env.begin(write=True) as transaction:
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            transaction.put(b"%d" % i, pickle.dumps({"image": image, "label": label}))


def take_limit(images: np.ndarray) -> Callable[[], int]:
    out = np.empty((BATCH, images.shape[1]), np.uint8)
    rng = np.random.default_rng(0)

    def run() -> int:
        order = rng.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            np.take(images, order[start : start + BATCH], 0, out=out, mode="clip")
        return len(order) // BATCH * BATCH

    return run


def epoch(batches: Callable[[], Iterator[Any]], most: int | None = None) -> Callable[[], int]:
    def run() -> int:
        rows = 0
        for batch in batches():
            rows += len(batch) if isinstance(batch, Rows) else len(batch["label"])
            if most is not None and rows >= most:
                break
        return rows

    return run


def interleaved(ways: dict[str, Callable[[], int]], repetitions: int) -> dict[str, list[float]]:
    """Rows per second of each way, once a round; the first round only warms up."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(repetitions + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            rows = way()
            if repetition:
                rates[name].append(rows / (time.perf_counter() - started))
    return rates


def raw_write(path: Path, data: np.ndarray) -> float:
    started = time.perf_counter()
    with open(path, "wb") as file:
        for start in range(0, data.nbytes, 2**22):
            file.write(data.reshape(-1)[start : start + 2**22].data)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return data.nbytes / seconds / 1e6


def reading(folder: Path, size: str, repetitions: int) -> tuple[list[list[Any]], yoga.DataRef]:
    row_bytes, length = SIZES[size]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (length, row_bytes), dtype=np.uint8)
    labels = rng.integers(0, 10, length)
    images.tofile(folder / "raw")
    mapped = np.memmap(folder / "raw", np.uint8, "r", shape=images.shape)
    write_naive(str(folder / "naive"), images, labels)
    naive = NaiveLmdb(str(folder / "naive"), length)
    storage = yoga.Storage(folder / "storage")
    builds, raws = [], []
    for repetition in range(3):
        raws.append(raw_write(folder / "raw-write", images))
        started = time.perf_counter()
        ref = storage.submit(
            {"image": images, "label": labels}, size, "1", overwrite=repetition > 0, progress=False
        )
        builds.append((images.nbytes + labels.nbytes) / (time.perf_counter() - started) / 1e6)
    sampler = yoga.ResumableSampler(ref, seed=1)
    plain = torch.utils.data.DataLoader(ref, batch_size=BATCH, sampler=sampler)
    ours = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True, seed=1)
    workers = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    ways = {
        "limit: np.take from a memmap": take_limit(mapped),
        "naive: LMDB, a pickle a row": epoch(
            lambda: iter(torch.utils.data.DataLoader(naive, batch_size=BATCH, shuffle=True)), most=20_000
        ),
        "torch DataLoader + ResumableSampler": epoch(lambda: iter(plain)),
        "torchyoga.DataLoader": epoch(lambda: iter(ours)),
        "torchyoga.DataLoader, 2 workers": epoch(lambda: iter(workers)),
        "stream batches": epoch(lambda: ref.stream(shuffle=True).batches(BATCH)),
    }
    rates = interleaved(ways, repetitions)
    limit, slow = (rates[name] for name in list(ways)[:2])
    rows: list[list[Any]] = []
    for name, found in rates.items():
        share = statistics.median(a / b for a, b in zip(found, limit, strict=True))
        times = statistics.median(a / b for a, b in zip(found, slow, strict=True))
        goal = GOALS.get(name, {}).get(size)
        verdict = "" if goal is None else f"{'reached' if share >= goal else 'MISSED'} ({goal})"
        rows.append(
            [size, name, f"{statistics.median(found):,.0f} rows/s", f"{share:.2f}", f"{times:.1f}", verdict]
        )
        if name.startswith("torch DataLoader") and size == "784 B":
            rows[-1][-1] += f", {'reached' if times >= 10 else 'MISSED'} (10 x naive)"
    built, raw = statistics.median(builds), statistics.median(raws)
    verdict = f"{'reached' if built >= 500 else 'MISSED'} (500 MB/s)"
    rows.append(
        [size, "building from arrays, synced", f"{built:,.0f} MB/s", f"{built / raw:.2f} of raw", "", verdict]
    )
    rows.append([size, "raw write and fsync", f"{raw:,.0f} MB/s", "", "", ""])
    (folder / "raw").unlink()
    (folder / "naive").unlink()
    return rows, ref


def first_batch(ref: yoga.DataRef) -> list[list[Any]]:
    """From pickled reference to first batch, from the start of an epoch and from its half, interleaved."""
    pickled = pickle.dumps(ref)
    half = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True).state_dict()
    half["position"] = len(ref) // 2 // BATCH * BATCH
    seconds: dict[str, list[float]] = {"cold": [], "resumed": []}
    for _ in range(9):
        for way in seconds:
            started = time.perf_counter()
            loader = yoga.DataLoader(pickle.loads(pickled), batch_size=BATCH, shuffle=True)
            if way == "resumed":
                loader.load_state_dict(half)
            next(iter(loader))
            seconds[way].append(time.perf_counter() - started)
    cold, resumed = (statistics.median(found) for found in seconds.values())
    verdict = "reached" if resumed <= 1.1 * cold else "MISSED"
    return [
        ["784 B", "first batch, cold (opens, verifies)", f"{cold * 1e3:.1f} ms", "", "", ""],
        [
            "784 B",
            "first batch, resumed at half an epoch",
            f"{resumed * 1e3:.1f} ms",
            "",
            "",
            f"{verdict} (cold)",
        ],
    ]


def order_of_a_billion() -> list[list[Any]]:
    times = []
    for seed in range(9):
        started = time.perf_counter()
        iterator = iter(yoga.ResumableSampler(10**9, seed=seed))
        for _ in range(1000):
            next(iterator)
        times.append(time.perf_counter() - started)
    tracemalloc.start()
    iterator = iter(yoga.ResumableSampler(10**9, seed=99))
    for _ in range(100_000):
        next(iterator)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    found = statistics.median(times) * 1e3
    return [
        [
            "10^9",
            "order: to the first 1,000 indices",
            f"{found:.2f} ms",
            "",
            "",
            "reached" if found < 1 else "MISSED",
        ],
        [
            "10^9",
            "order: peak memory of 100,000",
            f"{peak:.1f} MB",
            "",
            "",
            "reached" if peak < 10 else "MISSED",
        ],
    ]


def seeding() -> list[list[Any]]:
    """What `seed_rows` costs for a dataset that does nothing."""
    data = list(range(20_000))
    ways = {flag: yoga.DataLoader(data, batch_size=BATCH, seed_rows=flag) for flag in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        for flag, loader in ways.items():
            started = time.perf_counter()
            for _ in loader:
                pass
            times[flag].append((time.perf_counter() - started) / len(data) * 1e6)
    cost = statistics.median(times[True]) - statistics.median(times[False])
    return [["-", "seed_rows: cost of a row", f"{cost:.1f} us", "", "", ""]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    table = [["rows of", "what", "median", "of limit", "x naive", "goal"]]
    with tempfile.TemporaryDirectory() as folder:
        first = None
        for size in SIZES:
            rows, ref = reading(Path(folder), size, repetitions)
            table += rows
            first = first or ref
        assert first is not None
        table += first_batch(first)
    table += order_of_a_billion() + seeding()
    widths = [max(len(str(row[i])) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "latest.json").write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
