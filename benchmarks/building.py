"""Building: from arrays beside a raw write, row by row beside LMDB with a pickled row a key, and by workers.

Called by run.py. Everything is synced to the disk, and deleted after its time was taken.
"""

from __future__ import annotations

import os
import pickle
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import numpy as np
import torch.utils.data
from common import ratio, verdict

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS

ROW_SECONDS = 1e-3  # that a row costs, for workers
Way: TypeAlias = Callable[[Path], object]  # builds into a folder


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


def from_arrays(folder: Path, storage: yoga.Storage, size: str, data: dict[str, Any]) -> list[list[Any]]:
    """Builds the same arrays in both formats, in turns with raw writes of as many bytes."""
    nbytes = sum(array.nbytes for array in data.values())
    rates: dict[str, list[float]] = {"raw": [], **{format: [] for format in FORMATS}}
    for repetition in range(5):
        rates["raw"].append(raw_write(folder / "raw-write", data["image"]))
        for format in FORMATS if repetition % 2 else FORMATS[::-1]:  # what comes later finds a busier disk
            if repetition:
                storage.remove(size, format)
                os.sync()  # deleting costs the disk more than writing
            started = time.perf_counter()
            storage.submit(data, size, format, progress=False, format=format)
            rates[format].append(nbytes / (time.perf_counter() - started) / 1e6)
    raw = statistics.median(rates["raw"])
    rows = []
    for format in FORMATS:
        built = statistics.median(rates[format])
        goal = verdict(built / raw, 0.7)
        name = f"building from arrays, synced: {format}"
        rows.append([size, name, f"{built:,.0f} MB/s", f"{built / raw:.2f} of raw", "", "", goal])
    return [*rows, [size, "raw write and fsync", f"{raw:,.0f} MB/s", "", "", "", ""]]


def write_pickled(path: Path, rows: Sequence[Any]) -> None:
    """LMDB with a pickled row a key, in transactions of 1,000, synced once."""
    env, found, number = lmdb.open(str(path), map_size=2**33, sync=False), iter(rows), 0
    while some := list(islice(found, 1000)):
        with env.begin(write=True) as transaction:
            for row in some:
                transaction.put(b"%d" % number, pickle.dumps(row))
                number += 1
    env.sync(True)
    env.close()


def rows_of_each_kind() -> Iterator[tuple[str, list[Any]]]:
    """Rows as a script makes them, in memory."""
    rng = np.random.default_rng(0)
    yield (
        "two ints and tokens",
        [
            {
                "id": number,
                "label": number % 10,
                "tokens": rng.integers(0, 50_000, rng.integers(20, 200), dtype=np.int32),
            }
            for number in range(150_000)
        ],
    )
    yield (
        "JPEG bytes, 21 KiB",
        [
            {"image": rng.bytes(int(rng.integers(12_000, 30_000))), "label": number % 10}
            for number in range(15_000)
        ],
    )


def written(rows: list[dict[str, Any]]) -> Way:
    """Writes only the bytes of the largest column: what the disk allows."""
    (column,) = {"tokens", "image"} & set(rows[0])
    data = np.frombuffer(b"".join(bytes(memoryview(row[column])) for row in rows), np.uint8)
    return lambda folder: raw_write(folder / "raw", data)


class Costly(torch.utils.data.Dataset[Any]):
    """Rows that cost a millisecond of computing each."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        ends = time.thread_time() + ROW_SECONDS
        while time.thread_time() < ends:
            continue
        return {"x": np.full(1000, index, np.float32), "label": index}


def timed(rows: int, act: Way) -> float:
    """Rows per second of one build in a folder of its own."""
    folder = Path(tempfile.mkdtemp())
    try:
        started = time.perf_counter()
        act(folder)
        return rows / (time.perf_counter() - started)
    finally:
        shutil.rmtree(folder)
        os.sync()  # deleting costs the disk more than writing


def in_turns(rows: int, ways: dict[str, Way], repetitions: int) -> dict[str, list[float]]:
    """Rows per second of each way, once a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, act in ways.items():
            found[name].append(timed(rows, act))
    return found


def submitted(data: Any, format: str = "lmdb", num_workers: int = 0) -> Way:
    """Builds from a dataset; a list is passed as a generator, row by row."""

    def act(folder: Path) -> object:
        source = (row for row in data) if isinstance(data, list) else data
        storage = yoga.Storage(folder, format)
        return storage.submit(source, "a", "1", progress=False, num_workers=num_workers)

    return act


def measure(repetitions: int) -> list[list[str]]:
    """A table: what is built, how, rows/s, the ratio, the goal."""
    table = []
    for kind, rows in rows_of_each_kind():
        naive = "LMDB, a pickled row a key"
        ways: dict[str, Way] = {naive: lambda folder, rows=rows: write_pickled(folder, rows)}
        ways |= {format: submitted(rows, format) for format in FORMATS}
        ways["raw write and fsync of the bytes"] = written(rows)
        rates = in_turns(
            len(rows), ways, 1 + repetitions
        )  # the first round finds memory that is new to the system
        rates = {name: found[1:] for name, found in rates.items()}
        for name, found in rates.items():
            share = ratio(found, rates[naive])
            goal = verdict(share, 2) if name == "lmdb" else ""
            shown = f"{share:.2f} x pickled"
            table.append([f"building, {kind}", name, f"{statistics.median(found):,.0f} rows/s", shown, goal])
    ways = {f"num_workers={number}": submitted(Costly(), num_workers=number) for number in (0, 2)}
    rates = in_turns(len(Costly()), ways, repetitions)
    for name, found in rates.items():
        shown = f"{ratio(found, rates['num_workers=0']):.2f} x without"
        table.append(["building, 1 ms a row", name, f"{statistics.median(found):,.0f} rows/s", shown, ""])
    return table


if __name__ == "__main__":
    for line in measure(3):
        print("  ".join(f"{cell:<28}" for cell in line))
