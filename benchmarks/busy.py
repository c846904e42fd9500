"""First and later epochs beside processes that compute, as on a machine that trains; called by run.py.

    python benchmarks/busy.py            into results.md
    python benchmarks/busy.py --quick    prints one ratio, for quick.py

It is a program of its own, as each of its processes imports the module that was started. Each way runs in a
process of its own, which has imported torch but read nothing. The neighbours are held (SIGSTOP) until it has
opened its files, and in between: so they take turns with all ways in each round.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import performance
import torch
from epochs import (
    KINDS,
    LIMIT,
    NAIVE,
    OURS,
    Kind,
    Rates,
    rates_in_turn,
    read_into_memory,
    run_of,
    share,
    write,
)
from PIL import Image

ROUNDS = 3
STEADY = 1.0  # seconds, at least, of later epochs: a process that has slept gets a core at once for a while
SETTLE = 0.05  # seconds in which the neighbours get going
GOALS = {"first": 0.5, "later": 0.8}  # of one thread by hand
HALVES = [replace(kind, rows=kind.rows // 2) for kind in KINDS]  # so that it takes half the time
QUICK = HALVES[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "lmdb", "PIL.Image"])  # not torchyoga, which knows forked children


def compute() -> None:
    """Plain Python, without an end."""
    while True:
        sum(range(1_000))


def multiply() -> None:
    """A model's step, by all threads that torch takes."""
    weights = torch.rand(768, 768)
    while True:
        torch.mm(weights, weights)


def decode() -> None:
    """A picture, again and again, as a worker does."""
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "jpeg")
    while True:
        np.asarray(Image.open(io.BytesIO(file.getvalue())))


NEIGHBOURS: dict[str, list[Callable[[], None]]] = {
    "nothing": [],
    "2 processes": [compute] * 2,
    "4 processes": [compute] * 4,
    "torch's threads": [multiply],
    "2 decoding workers": [decode] * 2,
}


@contextlib.contextmanager
def held(works: list[Callable[[], None]]) -> Iterator[list[BaseProcess]]:
    """Processes that do these for ever, stopped."""
    processes = [_CONTEXT.Process(target=work, daemon=True) for work in works]
    try:
        for process in processes:
            process.start()
        time.sleep(1.0 if processes else 0.0)  # imports
        send(processes, signal.SIGSTOP)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def send(processes: list[BaseProcess], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process.pid or 0, number)


def child(pipe: Connection, kind: Kind, folder: Path, way: str) -> None:
    run = run_of(kind, folder, way)
    pipe.send(None)
    pipe.recv()
    (first,) = rates_in_turn(run, 0)
    rows, began, taken = 0, time.perf_counter(), 0.0
    while way != NAIVE and taken < STEADY:
        rows += run()
        taken = time.perf_counter() - began
    pipe.send((first, rows / taken if rows else first))


def rates_beside(
    neighbours: list[BaseProcess], kind: Kind, folder: Path, once: tuple[str, ...] = ()
) -> Rates:
    """Rows per second of first and later epochs; ours and a loop by hand take turns, others come once."""
    found: Rates = {way: [] for way in (OURS, LIMIT, *once)}
    for number in range(ROUNDS):
        for way in found if not number else (OURS, LIMIT):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=child, args=(theirs, kind, folder, way))
            process.start()
            ours.recv()
            send(neighbours, signal.SIGCONT)
            time.sleep(SETTLE)
            ours.send(None)
            rates = ours.recv()
            send(neighbours, signal.SIGSTOP)
            process.join()
            found[way].append(rates)
    return found


def measure() -> list[list[str]]:
    """A line for each kind of rows and each kind of neighbours."""
    table = []
    with contextlib.ExitStack() as stack:
        beside = {name: stack.enter_context(held(works)) for name, works in NEIGHBOURS.items()}
        for kind in HALVES:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                write(kind, folder)
                read_into_memory(folder)
                for what, neighbours in beside.items():
                    rates = rates_beside(neighbours, kind, folder, (NAIVE,))
                    table.append(line(kind, what, rates))
                    print("  ".join(table[-1]), flush=True)
    return table


HEADING = [
    "rows of",
    "beside",
    "first",
    "later",
    "by hand, first",
    "later",
    NAIVE,
    "first / by hand",
    "later",
]


def line(kind: Kind, what: str, rates: Rates) -> list[str]:
    """Medians, and ratios within rounds; in brackets a goal that was missed."""
    places = [(OURS, 0), (OURS, 1), (LIMIT, 0), (LIMIT, 1), (NAIVE, 0)]
    medians = [statistics.median(pair[when] for pair in rates[way]) for way, when in places]
    shares = [share(rates, OURS, LIMIT, when) for when in (0, 1)]
    judged = [
        f"{found:.2f}" if found >= goal else f"{found:.2f} ({goal})"
        for found, goal in zip(shares, GOALS.values(), strict=True)
    ]
    return [kind.name, what, *(f"{rate:,.0f}" for rate in medians), *judged]


def quick() -> dict[str, float]:
    """One ratio."""
    with tempfile.TemporaryDirectory() as name, held([compute] * 2) as neighbours:
        write(QUICK, Path(name))
        read_into_memory(Path(name))
        rates = rates_beside(neighbours, QUICK, Path(name))
    return {"12 KiB, beside 2 processes: later / by hand": share(rates, OURS, LIMIT, 1)}


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        print(json.dumps(quick()))
    else:
        table = measure()
        performance.put_tables({"busy": performance.as_table([HEADING, *table])})
