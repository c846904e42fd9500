"""One run, one table: torchyoga against the limit of the machine and the naive way.

    make bench        (40 minutes to more than an hour; 5 GB of temporary files, deleted at the end)
    python benchmarks/run.py --only mixtures,packs

Each part writes its table when it is measured.

Everything is interleaved and repeated; figures are medians, ratios are within this run. The limit is one
thread of `np.take` from a memory-mapped file into a reused buffer; the naive ways are a Dataset over LMDB
with one pickled row a key, and one over h5py's `dataset[i]`, both with default_collate.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import appending
import building
import by_many
import decoding
import differing
import epochs
import frameworks
import h5py
import history
import many
import mixtures
import numpy as np
import packing
import parquet
import performance
import remote
import tables
import token_windows
import tools
import torch
import torch.utils.data
import views
from common import BATCH, NaiveLmdb, epoch, interleaved, ratio, take_limit, write_naive

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS
from torchyoga.formats.hdf5 import COMPRESSIONS

SIZES = {"784 B": (784, 200_000), "12 KiB": (12_288, 40_000), "196 KiB": (200_704, 2_500)}
# Our goals: way -> row size -> share of the limit.
GOALS = {
    "torch DataLoader + ResumableSampler": {"784 B": 0.25, "12 KiB": 0.7, "196 KiB": 0.7},
    "torchyoga.DataLoader": {"784 B": 0.5, "12 KiB": 0.85, "196 KiB": 0.85},
    "stream batches": {"784 B": 0.6, "12 KiB": 0.9, "196 KiB": 0.9},
}


class NaiveH5py(torch.utils.data.Dataset[Any]):
    """A dataset that reads `dataset[i]`, as many scripts do."""

    def __init__(self, path: str) -> None:
        self.file = h5py.File(path, "r")
        self.images, self.labels = self.file["image"], self.file["label"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return {"image": self.images[index], "label": self.labels[index]}


def write_h5py(path: Path, images: np.ndarray, labels: np.ndarray, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=images, **options)
        file.create_dataset("label", data=labels, **options)


def loaders(ref: yoga.DataRef, name: str) -> dict[str, Callable[[], int]]:
    """The ways to read a DataRef whole, shuffled."""
    sampler = yoga.ResumableSampler(ref, seed=1)
    plain = torch.utils.data.DataLoader(ref, batch_size=BATCH, sampler=sampler)
    ours = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True, seed=1)
    return {
        f"torch DataLoader + ResumableSampler: {name}": epoch(lambda: iter(plain)),
        f"torchyoga.DataLoader: {name}": epoch(lambda: iter(ours)),
        f"stream batches: {name}": epoch(lambda: ref.stream(shuffle=True).batches(BATCH)),
    }


def reading(folder: Path, size: str, repetitions: int) -> tuple[list[list[Any]], yoga.DataRef]:
    row_bytes, length = SIZES[size]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (length, row_bytes), dtype=np.uint8)
    labels = rng.integers(0, 10, length)
    np.save(folder / "raw.npy", images)
    mapped = np.load(folder / "raw.npy", mmap_mode="r")
    write_naive(str(folder / "naive"), images, labels)
    naive = NaiveLmdb(str(folder / "naive"), length)
    write_h5py(folder / "own.h5", images, labels)
    write_h5py(folder / "chunked.h5", images, labels, chunks=True)  # cuts rows, too
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("image", data=images, chunks=(2**20 // row_bytes, row_bytes))
        file.create_dataset("label", data=labels, chunks=(length // 8,))
    h5 = NaiveH5py(str(folder / "own.h5"))
    storage = yoga.Storage(folder / "storage")
    builds = building.from_arrays(folder, storage, size, {"image": images, "label": labels})
    refs = {format: storage.fetch(size, format) for format in FORMATS}
    workers = yoga.DataLoader(
        refs["lmdb"], batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True
    )
    own = {
        "from_hdf5, contiguous": yoga.from_hdf5(folder / "own.h5"),
        "from_hdf5, chunks of rows": yoga.from_hdf5(folder / "rows.h5"),
        "from_hdf5, chunks=True": yoga.from_hdf5(folder / "chunked.h5"),
        "from_arrays, .npy": yoga.from_arrays({"image": folder / "raw.npy", "label": labels}),
    }
    ways = {
        "limit: np.take from a memmap": take_limit(mapped),
        "naive: LMDB, a pickle a row": epoch(
            lambda: iter(torch.utils.data.DataLoader(naive, batch_size=BATCH, shuffle=True)), most=20_000
        ),
        "naive: h5py, dataset[i]": epoch(
            lambda: iter(torch.utils.data.DataLoader(h5, batch_size=BATCH, shuffle=True)), most=5_000
        ),
    }
    # The formats side by side, one after the other in every round.
    both = [loaders(ref, format) for format, ref in refs.items()]
    for same in zip(*(found.items() for found in both), strict=True):
        ways |= dict(same)
    for name, ref in own.items():
        ways |= {k: v for k, v in loaders(ref, name).items() if k.startswith("torchyoga")}
    ways["torchyoga.DataLoader, 2 workers: lmdb"] = epoch(lambda: iter(workers))
    rates = interleaved(ways, repetitions)
    limit, slow, slower = (rates[name] for name in list(ways)[:3])
    rows: list[list[Any]] = []
    for name, found in rates.items():
        share, times, times_h5py = (ratio(found, other) for other in (limit, slow, slower))
        what, _, where = name.partition(": ")
        goals = []
        goal = GOALS.get(what, {}).get(size) if where in FORMATS else None
        if goal is not None:
            goals.append((share >= goal, f"{goal}"))
        if goal is not None and size == "784 B" and what != "stream batches":
            goals += [(times >= 10, "10 x naive"), (times_h5py >= 30, "30 x h5py")]
        if where == "hdf5":
            of_lmdb = ratio(found, rates[f"{what}: lmdb"])
            goals.append((of_lmdb >= 0.9, f"0.9 of lmdb: {of_lmdb:.2f}"))
        verdict = ", ".join(f"{'reached' if good else 'MISSED'} ({text})" for good, text in goals)
        median = f"{statistics.median(found):,.0f} rows/s"
        rows.append([size, name, median, f"{share:.2f}", f"{times:.1f}", f"{times_h5py:.0f}", verdict])
    for path in ("raw.npy", "naive", "own.h5", "chunked.h5", "rows.h5"):
        (folder / path).unlink()
    return rows + builds, refs["lmdb"]


def compressed(folder: Path, repetitions: int) -> list[list[Any]]:
    """Rows that compress to about half, kept by a cache that holds all of them, or an eighth."""
    length, row_bytes = 40_000, 784
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (length, row_bytes), dtype=np.uint8)
    images[:, ::2] = 0
    data = {"image": images, "label": rng.integers(0, 10, length)}
    rows: list[list[Any]] = []
    storage = yoga.Storage(folder / "storage")
    for compression in (None, *COMPRESSIONS):
        started = time.perf_counter()
        ref = storage.submit(
            data, "compressed", str(compression), progress=False, format="hdf5", compression=compression
        )
        seconds = time.perf_counter() - started
        (path,) = (storage.path / "compressed" / str(compression)).glob("*.h5")
        share = path.stat().st_size / images.nbytes
        names = {"image": "columns/image", "label": "columns/label"}
        ways = {
            "cached": (ref, length),
            "cache of 1/8": (yoga.from_hdf5(path, names, cache_bytes=2 * images.nbytes // 8), 8_000),
        }
        text = f"{compression or 'uncompressed'}, {share:.2f} of the size"
        building = images.nbytes / seconds / 1e6
        rows.append(["784 B", f"building: {text}", f"{building:,.0f} MB/s", "", "", "", ""])
        for name, (each, most) in ways.items():
            if compression is None and name != "cached":
                continue
            loader = yoga.DataLoader(each, batch_size=BATCH, shuffle=True)
            rates = interleaved({"": epoch(lambda loader=loader: iter(loader), most)}, repetitions)[""]
            median = f"{statistics.median(rates):,.0f} rows/s"
            rows.append(["784 B", f"torchyoga.DataLoader, {name}: {text}", median, "", "", "", ""])
    return rows


def first_batch(ref: yoga.DataRef) -> list[list[Any]]:
    """From pickled reference to first batch, from the start of an epoch and from its half, interleaved."""
    pickled = pickle.dumps(ref)
    half = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True).state_dict()
    half["position"] = len(ref) // 2 // BATCH * BATCH
    del half["proof"]  # which is of another position
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
        ["784 B", "first batch, cold (opens, verifies)", f"{cold * 1e3:.1f} ms", "", "", "", ""],
        [
            "784 B",
            "first batch, resumed at half an epoch",
            f"{resumed * 1e3:.1f} ms",
            "",
            "",
            "",
            f"{verdict} (cold)",
        ],
    ]


def states() -> list[list[Any]]:
    """What a state costs in mid-epoch, of the last of eight ranks, and with batches that came early."""
    rows = []
    for length in (10**5, 10**9):
        loader = yoga.DataLoader(range(length), BATCH, True, num_replicas=8, rank=7)
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        costs = [_microseconds(loader.state_dict) for _ in range(5)]
        found, size = statistics.median(costs), len(json.dumps(loader.state_dict()))
        verdict = "reached" if found < 20 and size < 1024 else "MISSED"
        what = f"state_dict() in mid-epoch: {size} bytes"
        rows.append([f"{length:.0e}", what, f"{found:.1f} us", "", "", "", f"{verdict} (20 us, 1 KB)"])
        receipt = statistics.median(_microseconds(loader.receipt) for _ in range(5))
        rows.append([f"{length:.0e}", "receipt() in mid-epoch", f"{receipt:.1f} us", "", "", "", ""])
    return rows


def _microseconds(call: Callable[[], Any], times: int = 2000) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times * 1e6


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
            "",
            "reached" if found < 1 else "MISSED",
        ],
        [
            "10^9",
            "order: peak memory of 100,000",
            f"{peak:.1f} MB",
            "",
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
    return [["-", "seed_rows: cost of a row", f"{cost:.1f} us", "", "", "", ""]]


def machine_of(_: int) -> str:
    return performance.machine() + "."


def curve(repetitions: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        return performance.curve(Path(name), few(repetitions))


def engine(repetitions: int) -> list[list[Any]]:
    found: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for measure in (performance.cold, performance.ragged, performance.workers, performance.sizes):
            found += measure(folder, few(repetitions))
        found += performance.many_files(folder, few(repetitions)) + many.measure(folder, few(repetitions))
    return found


def both_formats(repetitions: int) -> list[list[Any]]:
    """Every way to read, with LMDB and HDF5."""
    table: list[list[Any]] = [["rows of", "what", "median", "of limit", "x naive", "x h5py", "goal"]]
    with tempfile.TemporaryDirectory() as folder:
        refs = []
        for size in SIZES:
            rows, ref = reading(Path(folder), size, repetitions)
            table += rows
            refs.append(ref)
        table += first_batch(refs[0])
        table += compressed(Path(folder), min(3, repetitions))
    return table + states() + order_of_a_billion() + seeding()


def of_versions(repetitions: int) -> list[list[Any]]:
    parts = (history.measure(few(repetitions)), history.grown(), history.columns(), by_many.measure(3))
    return [row for part in parts for row in part]


def busy(_: int) -> None:
    """The table of busy machines, which a process of its own writes."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("busy.py"))], check=True)


def few(repetitions: int) -> int:
    return max(3, repetitions // 2)


# By the name of its table in results.md; the first one before this process has read anything.
PARTS: dict[str, Callable[[int], Any]] = {
    "epochs": lambda n: epochs.measure(few(n)),
    "machine": machine_of,
    "curve": curve,
    "engine": engine,
    "reading": both_formats,
    "building": lambda n: building.measure(few(n)) + appending.measured(few(n)),
    "frameworks": lambda n: frameworks.in_processes(few(n)),
    "remote": lambda n: remote.measure(few(n)),
    "views": lambda n: views.measure(few(n)) + token_windows.measure(few(n)),
    "packs": lambda n: packing.measure(few(n)),
    "differing": lambda n: differing.measure(few(n)),
    "mixtures": lambda n: mixtures.measure(few(n)),
    "history": of_versions,
    "tables": lambda n: tables.measure(few(n)) + parquet.measure(few(n)),
    "codecs": decoding.measure,
    "tools": lambda n: tools.measure(few(n)),
    "busy": busy,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.only.split(",") if name]
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in wanted or PARTS:
        started = time.perf_counter()
        found = PARTS[name](arguments.repetitions)
        write(name, found)
        print(f"{name}: {time.perf_counter() - started:.0f} s\n", flush=True)


def write(name: str, found: Any) -> None:
    """Puts what a part has found into results.md, and draws its picture; prints a table."""
    if name == "epochs":
        epochs.write_page(found)
    elif name == "curve":
        performance.write_curve(found)
    elif name == "machine":
        performance.put_tables({name: found})
    elif name != "busy":
        table = found if name == "reading" else [performance.HEADING, *found]
        performance.put_tables({name: performance.as_table(table)})
        show(table)


def show(table: list[list[Any]]) -> None:
    """Prints a table."""
    widths = [max(len(str(row[i])) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


if __name__ == "__main__":
    main()
