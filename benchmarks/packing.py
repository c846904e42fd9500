"""Packs: how long they take to plan, how much of them is padding, and how fast they are read.

python benchmarks/packing.py
python benchmarks/packing.py --documents 1000000000     (two minutes, 12 GB of memory)

Called by run.py. The other ways of packing are the simplest code of each, in this process: next fit, first
fit with some open packs, and best fit decreasing, row by row, in pieces of 1,000 rows.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common import ratio, verdict

import torchyoga as yoga
from torchyoga.views.packs.packed import Long, Request, packing_of
from torchyoga.views.packs.plan import Members, planned

DOCUMENTS, BUDGET = 10**6, 4096
SAMPLE = 100_000  # documents that the other ways are given
_ROW_BYTES = {"784 B": (784, 0.55), "2 KB": (2048, 0.8)}  # of tokens of 4 bytes, on average; the goal
_READ = 60_000  # rows
_PLANS = 0.5  # seconds
_PADDING = 0.01  # %
_PEAK = 16  # bytes a document


def lengths_of(count: int, mean: float = 6.0, most: int = BUDGET, seed: int = 0) -> np.ndarray:
    """Lengths as texts have them."""
    found = np.exp(np.random.default_rng(seed).normal(mean, 1, count))
    return np.clip(found, 1, most).astype(np.int64)


def ours(lengths: np.ndarray, budget: int) -> int:
    costs = lengths[:, None]
    return len(planned(np.arange(len(lengths)), costs, None, len(lengths), np.array([budget]), False))


def next_fit(lengths: np.ndarray, budget: int) -> int:
    packs, room = 0, 0
    for length in lengths.tolist():
        if length > room:
            packs, room = packs + 1, budget
        room -= length
    return packs


def first_fit(lengths: np.ndarray, budget: int, most: int) -> int:
    """Each row into the first of some open packs; if it fits into none, the fullest one is closed."""
    packs, rooms = 0, []
    for length in lengths.tolist():
        for number, room in enumerate(rooms):
            if length <= room:
                rooms[number] = room - length
                break
        else:
            if len(rooms) == most:
                rooms.remove(min(rooms))
            rooms.append(budget - length)
            packs += 1
    return packs


def best_fit_decreasing(lengths: np.ndarray, budget: int, rows: int) -> int:
    """Row by row, in pieces of so many rows."""
    packs = 0
    for start in range(0, len(lengths), rows):
        rooms: list[int] = []
        for length in sorted(lengths[start : start + rows].tolist(), reverse=True):
            place = bisect.bisect_left(rooms, length)
            if place == len(rooms):
                packs += 1
                bisect.insort(rooms, budget - length)
            else:
                bisect.insort(rooms, rooms.pop(place) - length)
    return packs


def plans(repetitions: int) -> list[list[str]]:
    """Seconds of processor time and padding."""
    lengths = lengths_of(DOCUMENTS)
    hard = np.random.default_rng(1).integers(1400, 2801, DOCUMENTS)
    long = lengths_of(DOCUMENTS, mean=7.2, most=8192)
    sample = lengths[:SAMPLE]
    ways: dict[str, tuple[np.ndarray, int, Callable[[np.ndarray, int], int], tuple[bool, bool]]] = {
        "one row a sequence": (lengths, BUDGET, lambda some, _: len(some), (False, False)),
        "packed": (lengths, BUDGET, ours, (True, True)),
        "packed, mean 1,922, budget 8192": (long, 8192, ours, (True, True)),
        "packed, uniform 1400 to 2800": (hard, BUDGET, ours, (True, False)),
        "next fit": (sample, BUDGET, next_fit, (False, False)),
        "first fit, 16 open packs": (sample, BUDGET, lambda s, b: first_fit(s, b, 16), (False, False)),
        "first fit, 64 open packs": (sample, BUDGET, lambda s, b: first_fit(s, b, 64), (False, False)),
        "best fit decreasing, 1,000 rows": (
            sample,
            BUDGET,
            lambda s, b: best_fit_decreasing(s, b, 1000),
            (False, False),
        ),
    }
    table = []
    for name, (some, budget, way, (is_timed, is_judged)) in ways.items():
        seconds = []
        for _ in range(repetitions):
            started = time.process_time()
            packs = way(some, budget)
            seconds.append(time.process_time() - started)
        found = statistics.median(seconds) * DOCUMENTS / len(some)
        padding = 100 * (1 - float(some.sum()) / (packs * budget))
        good = []
        if is_timed:
            good.append(f"{'reached' if found < _PLANS else 'MISSED'} ({_PLANS} s)")
        if is_judged:
            good.append(f"{'reached' if padding <= _PADDING else 'MISSED'} ({_PADDING} %)")
        shown = "" if name.startswith("one row") else f"{found:.2f} s for a million rows"
        table.append(["plans of packs", name, shown, f"{padding:.2g} % padding", ", ".join(good)])
    plan = planned(np.arange(DOCUMENTS), lengths[:, None], None, DOCUMENTS, np.array([BUDGET]), False)
    order = np.random.default_rng(2).permutation(len(plan))
    members = Members(plan, 0, 0)
    started = time.process_time()
    for start in range(0, len(order), 128):
        members.documents(order[start : start + 128])
    nanoseconds = (time.process_time() - started) / DOCUMENTS * 1e9
    table.append(["plans of packs", "pack -> rows, an epoch", f"{nanoseconds:,.0f} ns a row", "", ""])
    return table


def reading(folder: Path, repetitions: int) -> list[list[str]]:
    """Rows per second of tokens, shuffled, beside the plain loader, whose batches are jagged."""
    table = []
    for size, (row_bytes, goal) in _ROW_BYTES.items():
        lengths = lengths_of(_READ, mean=float(np.log(row_bytes / 4)) - 0.5, seed=3)
        tokens = np.random.default_rng(4).integers(0, 50_000, int(lengths.sum())).astype(np.int32)
        cut = np.split(tokens, np.cumsum(lengths)[:-1])
        schema = yoga.Schema.of({"ids": tokens[:3]}, ragged=["ids"])
        rows = ({"ids": ids} for ids in cut)
        ref = yoga.Storage(folder).submit(rows, f"tokens {size}", "1", schema=schema, progress=False)
        packed = ref.packed("ids", BUDGET)
        batch = max(1, round(256 / packed.report().mean))
        options = {"shuffle": True, "seed": 1}
        loaders = {
            "the DataRef, jagged": yoga.DataLoader(ref, 256, collate_fn=yoga.jagged, **options),
            "the DataRef, padded": yoga.DataLoader(ref, 256, collate_fn=yoga.padded(), **options),
            "packed": yoga.DataLoader(packed, batch, **options),
            "packed, without positions": yoga.DataLoader(packed.columns(["ids", "rows"]), batch, **options),
            "packed, with labels": yoga.DataLoader(
                ref.packed("ids", BUDGET, labels="same"), batch, **options
            ),
        }
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        for repetition in range(2 * repetitions + 1):
            for name, loader in loaders.items():
                started = time.perf_counter()
                for found in loader:
                    del found
                if repetition:
                    rates[name].append(_READ / (time.perf_counter() - started))
        whole = rates["the DataRef, jagged"]
        for name, some in rates.items():
            share = ratio(some, whole)
            judged = verdict(share, goal) if name == "packed" else ""
            rate = f"{statistics.median(some):,.0f} rows/s"
            table.append([f"packs, tokens of {size}", name, rate, f"{share:.2f} of the DataRef", judged])
    return table


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name:
        return plans(repetitions) + reading(Path(name), repetitions)


def at_scale(documents: int, ways: Sequence[Long] = ("cut", "split")) -> list[list[str]]:
    """Seconds and bytes a document, of the plan of many, measured in this process."""
    rng, lengths = np.random.default_rng(0), np.empty(documents, np.uint16)
    for start in range(0, documents, 2**20):
        some = np.exp(rng.normal(6.0, 1, min(2**20, documents - start)))
        lengths[start : start + len(some)] = np.clip(some, 0, 2 * BUDGET)
    ref = yoga.from_arrays({"length": lengths})
    table = []
    for long in ways:
        tracemalloc.start()
        started = time.process_time()
        packing = packing_of(ref, Request({"length": BUDGET}, "length", None, long, None, False))
        seconds = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1] / documents
        tracemalloc.stop()
        kept = sum(part.nbytes for part in packing.plan.parts.values()) / documents
        table.append(
            [
                f"a plan of {documents:,} documents",
                f"long={long!r}",
                f"{seconds:.0f} s of processor time, {seconds / documents * 1e9:.0f} ns a document",
                f"{peak:.1f} bytes a document at most, {kept:.1f} kept",
                f"{'reached' if peak <= _PEAK else 'MISSED'} ({_PEAK} bytes)",
            ]
        )
        del packing
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int)
    given = parser.parse_args().documents
    for line in measure() if given is None else at_scale(given):
        print("  ".join(line))
