"""First and later epochs, each way in a fresh process, over five kinds of rows, warm and shuffled.

    python benchmarks/epochs.py              five kinds, all ways; called by run.py

What is made by hand stands for the limits: one thread of `np.take`, or of slices, from a mapped file into a
reused buffer, which checks nothing and is what FFCV's loader does after its compilation; and two processes
that do this into shared memory for a third. The naive way is LMDB with a pickled row a key.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import performance
import torch
import torch.utils.data
from common import NaiveLmdb, save, write_pickled
from torch.utils.data import default_collate

import torchyoga as yoga

LATER = 3  # epochs after the first one
OURS, UNVERIFIED, WORKERS = "torchyoga.DataLoader", "the same, verify=False", "the same, 2 workers"
UNVERIFIED_WORKERS, LIMIT, RING = "2 workers, verify=False", "by hand", "by hand, 2 processes"
NAIVE = "LMDB, a pickle a row"
WAYS = (OURS, UNVERIFIED, WORKERS, UNVERIFIED_WORKERS, LIMIT, RING, NAIVE)


@dataclass(frozen=True)
class Kind:
    """A kind of rows.

    Attributes:
        name: for the tables.
        rows: how many.
        batch: rows of a batch.
        row_bytes: of each row; 0 if they are ragged.
        is_text: rows are byte strings, else integers.
    """

    name: str
    rows: int
    batch: int
    row_bytes: int = 0
    is_text: bool = False


KINDS = [
    Kind("784 B", 600_000, 256, 784),
    Kind("12 KiB", 40_000, 256, 12_288),
    Kind("196 KiB", 2_500, 32, 200_704),
    Kind("JPEG bytes, 21 KiB", 20_000, 64, is_text=True),
    Kind("tokens, ragged", 300_000, 256),
]
_NAMES = [kind.name for kind in KINDS]
# Our goals for ratios of `measure`, for each kind of rows.
GOALS = {
    "first / first unverified": dict.fromkeys(_NAMES, 0.8),
    "first / later unverified": dict(zip(_NAMES, (0.7, 0.6, 0.45, 0.6, 0.7), strict=True)),
    "2 workers, first / first unverified": dict.fromkeys(_NAMES, 0.7),
    "2 workers, later / ring by hand": dict.fromkeys(_NAMES[1:3], 0.9),
    "2 workers, later / without": {_NAMES[3]: 0.9},
}


# -- data


def write(kind: Kind, folder: Path) -> None:
    """The same rows for each way."""
    rng = np.random.default_rng(0)
    storage = yoga.Storage(folder / "storage")
    if kind.row_bytes:
        values = rng.integers(0, 256, (kind.rows, kind.row_bytes), dtype=np.uint8)
        storage.submit({"x": values, "label": np.arange(kind.rows)}, kind.name, "1", progress=False)
        np.save(folder / "values.npy", values)
        rows: Iterator[Any] = iter(values)
    else:
        sizes = rng.integers(12_000, 30_000, kind.rows) if kind.is_text else rng.integers(50, 600, kind.rows)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        dtype = np.uint8 if kind.is_text else np.int32
        values = rng.integers(0, 256 if kind.is_text else 50_000, int(offsets[-1]), dtype=dtype)
        np.save(folder / "values.npy", values)
        np.save(folder / "offsets.npy", offsets)

        def cut() -> Iterator[Any]:
            for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                yield values[start:stop].tobytes() if kind.is_text else values[start:stop]

        storage.submit(({"x": row} for row in cut()), kind.name, "1", progress=False)
        rows = cut()
    numbered = ({"x": row, "label": number} for number, row in enumerate(rows))
    write_pickled(str(folder / "naive"), numbered, values.nbytes)
    os.sync()


# -- the ways, each an endless series of epochs; `next` does one


def loader_epochs(kind: Kind, folder: Path, way: str, step: float = 0.0) -> Callable[[], int]:
    verify = way in (OURS, WORKERS)
    ref = yoga.Storage(folder / "storage").fetch(kind.name, "1", verify=verify)
    workers = 2 if way in (WORKERS, UNVERIFIED_WORKERS) else 0
    collate = default_collate if kind.row_bytes or kind.is_text else yoga.jagged
    loader = yoga.DataLoader(
        ref,
        kind.batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=bool(workers),
        collate_fn=collate,
    )

    def run() -> int:
        for _ in loader:
            if step:
                time.sleep(step)
        return len(ref)

    return run


def by_hand(kind: Kind, folder: Path) -> Callable[[np.ndarray, np.ndarray | None], None]:
    """Copies the rows of a batch from a mapped file into a buffer of a batch, or one that is given."""
    values = np.load(folder / "values.npy", mmap_mode="r")
    if kind.row_bytes:
        own = np.empty((kind.batch, kind.row_bytes), np.uint8)

        def take(numbers: np.ndarray, out: np.ndarray | None) -> None:
            target = own if out is None else out[: own.nbytes].reshape(own.shape)
            np.take(values, numbers, 0, out=target[: len(numbers)], mode="clip")

        return take
    offsets = np.load(folder / "offsets.npy")
    longest = int(np.diff(offsets).max())
    padded = np.zeros((kind.batch, longest), values.dtype)

    def cut(numbers: np.ndarray, out: np.ndarray | None) -> None:
        target = padded if out is None else out[: padded.nbytes].view(values.dtype).reshape(padded.shape)
        starts, stops = offsets[numbers].tolist(), offsets[numbers + 1].tolist()
        for place, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            target[place, : stop - start] = values[start:stop]

    return cut


def batches(kind: Kind, epoch: int) -> list[np.ndarray]:
    """The rows of each whole batch of an epoch."""
    order = np.random.default_rng(epoch).permutation(kind.rows)
    return list(order[: kind.rows // kind.batch * kind.batch].reshape(-1, kind.batch))


def limit_epochs(kind: Kind, folder: Path) -> Callable[[], int]:
    take, numbers = by_hand(kind, folder), iter(range(10**9))

    def run() -> int:
        found = batches(kind, next(numbers))
        for batch in found:
            take(batch, None)
        return len(found) * kind.batch

    return run


def ring_epochs(kind: Kind, folder: Path) -> Callable[[], int]:
    """Two processes fill slots of shared memory in turn, for a third, which only says when it is done."""
    slots, context = 4, multiprocessing.get_context("fork")
    longest = kind.row_bytes or int(np.diff(np.load(folder / "offsets.npy")).max()) * (
        1 if kind.is_text else 4
    )
    memory = shared_memory.SharedMemory(create=True, size=2 * slots * kind.batch * longest)
    slot_bytes = kind.batch * longest
    lines: list[tuple[Any, Any, Any]] = []

    def work(worker: int, wanted: Any, free: Any, filled: Any) -> None:
        take = by_hand(kind, folder)
        buffer = np.frombuffer(memory.buf, np.uint8)
        while (epoch := wanted.get()) is not None:
            for number, batch in enumerate(batches(kind, epoch)[worker::2]):
                free.acquire()
                start = (worker * slots + number % slots) * slot_bytes
                take(batch, buffer[start : start + slot_bytes])
                filled.release()
        del buffer

    for worker in range(2):
        line = context.SimpleQueue(), context.Semaphore(slots), context.Semaphore(0)
        lines.append(line)
        context.Process(target=work, args=(worker, *line), daemon=True).start()
    numbers = iter(range(10**9))

    def run() -> int:
        epoch, count = next(numbers), kind.rows // kind.batch
        for wanted, _, _ in lines:
            wanted.put(epoch)
        for number in range(count):
            _, free, filled = lines[number % 2]
            filled.acquire()
            free.release()
        return count * kind.batch

    return run


def naive_epochs(kind: Kind, folder: Path) -> Callable[[], int]:
    naive = NaiveLmdb(str(folder / "naive"), kind.rows)
    collate = None if kind.row_bytes else list
    loader = torch.utils.data.DataLoader(naive, kind.batch, shuffle=True, collate_fn=collate)
    most = min(kind.rows, 40_000)

    def run() -> int:
        rows = 0
        for _ in loader:
            rows += kind.batch
            if rows >= most:
                break
        return rows

    return run


def run_of(kind: Kind, folder: Path, way: str, step: float = 0.0) -> Callable[[], int]:
    """What reads one epoch, the next one each time, and returns how many rows that were."""
    if way == LIMIT:
        return limit_epochs(kind, folder)
    if way == RING:
        return ring_epochs(kind, folder)
    if way == NAIVE:
        return naive_epochs(kind, folder)
    return loader_epochs(kind, folder, way, step)


def read_into_memory(folder: Path) -> None:
    """Reads all files, so that they are in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(2**22):
                    continue


def rates_in_turn(run: Callable[[], int], later: int) -> list[float]:
    """Rows per second of the first epoch, and of so many later ones."""
    found = []
    for _ in range(1 + later):
        started = time.perf_counter()
        rows = run()
        found.append(rows / (time.perf_counter() - started))
    return found


def measured(kind: Kind, folder: Path, way: str, step: float = 0.0) -> list[float]:
    """Rows per second of the first epoch, and of later ones, in this process."""
    run = run_of(kind, folder, way, step)
    read_into_memory(folder)
    return rates_in_turn(run, 0 if way == NAIVE else LATER)


def in_fresh_process(kind: Kind, folder: Path, way: str) -> list[float]:
    command = [sys.executable, __file__, "--child", kind.name, str(folder), way]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    found: list[float] = json.loads(printed)
    return found


Rates = dict[str, list[tuple[float, float]]]  # of each way: first and later epochs, a pair a round


def rates_of(kind: Kind, folder: Path, repetitions: int, ways: tuple[str, ...] = WAYS) -> Rates:
    """All ways in turns, each in a fresh process."""
    found: Rates = {way: [] for way in ways}
    for _ in range(repetitions):
        for way in ways:
            first, *later = in_fresh_process(kind, folder, way)
            found[way].append((first, statistics.median(later) if later else first))
    return found


def share(rates: Rates, way: str, of: str, when: int, of_when: int | None = None) -> float:
    """The median of the ratios of two ways, round by round; 0 for first epochs, 1 for later ones."""
    other = when if of_when is None else of_when
    pairs = zip(rates[way], rates[of], strict=True)
    return statistics.median(one[when] / two[other] for one, two in pairs)


def measure(repetitions: int) -> list[dict[str, Any]]:
    """For each kind of rows: rows/s of each way, and the ratios that are compared with goals."""
    found = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            write(kind, Path(name))
            rates = rates_of(kind, Path(name), repetitions)
        medians = {
            way: [statistics.median(pair[when] for pair in pairs) for when in (0, 1)]
            for way, pairs in rates.items()
        }
        ratios = {
            "first / first unverified": share(rates, OURS, UNVERIFIED, 0),
            "first / later unverified": share(rates, OURS, UNVERIFIED, 0, 1),
            "first / by hand": share(rates, OURS, LIMIT, 0),
            "later / by hand": share(rates, OURS, LIMIT, 1),
            "later / later unverified": share(rates, OURS, UNVERIFIED, 1),
            "2 workers, first / first unverified": share(rates, WORKERS, UNVERIFIED_WORKERS, 0),
            "2 workers, later / ring by hand": share(rates, WORKERS, RING, 1),
            "2 workers, later / without": share(rates, WORKERS, OURS, 1),
            "first / naive": share(rates, OURS, NAIVE, 0),
        }
        found.append({"kind": kind.name, "rates": medians, "ratios": ratios})
        print(json.dumps(found[-1]), flush=True)
    return found


# -- tables and the picture


def table(found: list[dict[str, Any]]) -> list[list[str]]:
    """What a newcomer wants to know, first epoch first."""
    columns = [(OURS, 0), (OURS, 1), (WORKERS, 1), (LIMIT, 0), (LIMIT, 1), (NAIVE, 0)]
    heading = ["rows of", "first epoch", "later", "2 workers, later", "by hand, first", "later", NAIVE]
    rows = [[each["kind"], *(f"{each['rates'][way][when]:,.0f}" for way, when in columns)] for each in found]
    return [heading, *rows]


def ratio_table(found: list[dict[str, Any]]) -> list[list[str]]:
    """Every ratio, a column a kind of rows; in brackets a goal that was missed."""

    def cell(name: str, number: int) -> str:
        value, goal = found[number]["ratios"][name], GOALS.get(name, {}).get(found[number]["kind"], 0)
        return f"{value:.2f}" if value >= goal else f"{value:.2f} ({goal})"

    rows = [[name, *(cell(name, number) for number in range(len(found)))] for name in found[0]["ratios"]]
    return [["ratio", *(each["kind"] for each in found)], *rows]


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Bars: first and later epochs, and LMDB, as shares of what can be done by hand in later epochs."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "torchyoga"})
    figure, axes = plt.subplots(figsize=(9, 3))
    bars = [
        ("first epoch", OURS, 0, "#f58518"),
        ("later epochs", OURS, 1, "#4c78a8"),
        ("by hand, first epoch", LIMIT, 0, "#bbbbbb"),
        (NAIVE, NAIVE, 0, "#888888"),
    ]
    for number, (label, way, when, colour) in enumerate(bars):
        heights = [each["rates"][way][when] / each["rates"][LIMIT][1] for each in found]
        places = [place + (number - 1.5) * 0.2 for place in range(len(found))]
        axes.bar(places, heights, 0.2, label=label, color=colour)
    axes.axhline(1, color="#555555", linewidth=0.8)
    axes.set_xticks(range(len(found)), [each["kind"] for each in found])
    axes.set_ylabel("share of a loop by hand")
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    save(figure, path)


def write_page(found: list[dict[str, Any]]) -> None:
    """Puts the tables into results.md, and draws the first picture of docs/performance.md."""
    tables = {"first": performance.as_table(table(found)), "ratios": performance.as_table(ratio_table(found))}
    performance.put_tables(tables)
    draw(found, performance.DOCS / "images" / "first.svg")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=3)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.child:
        name, folder, way = arguments.child
        (kind,) = (each for each in KINDS if each.name == name)
        print(json.dumps(measured(kind, Path(folder), way)))
    else:
        write_page(measure(arguments.repetitions))


if __name__ == "__main__":
    main()
