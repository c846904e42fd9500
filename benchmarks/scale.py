"""Many ranks that start at once: requests of real processes to a store on loopback, and of simulated ones.

python benchmarks/scale.py

The first table is measured: 64 processes on nodes with caches of their own, which fetch a version of 16 files
from an S3 server behind a proxy that counts. The second is a simulation of 10,000 ranks on 1,250 nodes that
ask a store for a manifest that refuses, with 503, what is more than it takes in a second. It calls the very
functions that draw the pauses. All caches are cold.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torchyoga.stores.retry import first_pause, pause_after

RANKS, NODES = 10_000, 1_250
RATE, TRIES = 5500.0, 20  # requests a second that the store takes, and tries until an error
SEEDS = 3
ROWS, FILE_ROWS, PROCESSES = 1280, 80, 64


class Simulated(NamedTuple):
    requests: int
    refused: int
    errors: int
    seconds: float  # until the last one has it
    most: int  # requests in a second


def simulated(
    asking: int, start: Callable[[float], float], pause: Callable[[int, float], float], seed: int
) -> Simulated:
    """So many processes ask for one object each until they have it.

    The store has a bucket of tokens: it is filled at RATE, and holds those of a tenth of a second.
    """
    draw = random.Random(seed)
    events = [(start(draw.random()), rank, 1) for rank in range(asking)]
    heapq.heapify(events)
    tokens, before = RATE / 10, 0.0
    requests = refused = errors = 0
    end, by_second = 0.0, dict[int, int]()
    while events:
        now, rank, tries = heapq.heappop(events)
        tokens, before = min(RATE / 10, tokens + (now - before) * RATE), now
        requests += 1
        by_second[int(now)] = by_second.get(int(now), 0) + 1
        if tokens >= 1:
            tokens -= 1
            end = max(end, now)
        elif tries == TRIES:
            errors += 1
        else:
            refused += 1
            heapq.heappush(events, (now + pause(tries, draw.random()), rank, tries + 1))
    return Simulated(requests, refused, errors, end, max(by_second.values()))


def ranks_that_ask() -> dict[str, Simulated]:
    """All ranks at once, as a program without jitter does it, and as torchyoga does it; medians of SEEDS."""

    def at_once(chance: float) -> float:
        return chance / 100  # clocks of machines that start together

    def doubling(tries: int, chance: float) -> float:
        return min(20.0, 0.5 * 2 ** (tries - 1))

    def spread(chance: float) -> float:
        return first_pause(RANKS, chance)

    def jitter(tries: int, chance: float) -> float:
        return pause_after(tries, chance, is_busy=True)

    ways = {
        "each rank, equal pauses that double": (RANKS, at_once, doubling),
        "each rank, full jitter": (RANKS, at_once, jitter),
        "each rank, full jitter, first requests spread": (RANKS, spread, jitter),
    }
    found = {}
    for name, (asking, start, pause) in ways.items():
        runs = [simulated(asking, start, pause, seed) for seed in range(SEEDS)]
        found[name] = Simulated(*map(statistics.median_low, zip(*runs, strict=True)))
    return found


def many_ranks() -> None:
    """A table of them."""
    print(f"{RANKS:,} ranks on {NODES:,} nodes, a store that takes {RATE:,.0f} requests a second (simulated)")
    print(f"{'':46} {'requests':>9} {'refused':>9} {'errors':>7} {'seconds':>8} {'most in 1 s':>12}")
    for name, one in ranks_that_ask().items():
        print(
            f"{name:46} {one.requests:9,} {one.refused:9,} {one.errors:7,} {one.seconds:8.2f} {one.most:12,}"
        )


def real_processes() -> None:
    """PROCESSES processes, by the servers of the tests."""
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root / "tests"), str(root / "tests" / "remote")]
    import multiprocessing

    import numpy as np
    from jobs import Job, done
    from servers import faulty, s3_server
    from smallfiles import make_files_of

    import torchyoga as yoga

    multiprocessing.set_forkserver_preload(["torch", "torchyoga", "s3fs"])
    print(f"{PROCESSES} processes, a version of {ROWS // FILE_ROWS} files (measured)")
    print(f"{'':46} {'manifest':>9} {'files':>7} {'most of a file':>15} {'fetch, median':>14} {'slowest':>8}")
    with s3_server() as server, faulty(server.endpoint) as proxy, tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        url = f"s3://{server.new_bucket()}/p"
        storage = yoga.Storage(url, storage_options=server.storage_options, cache_dir=folder / "builder")
        make_files_of(FILE_ROWS)
        storage.submit(({"x": np.full(100, n), "n": n} for n in range(ROWS)), "a", "1", progress=False)
        for name, nodes, distributed in (
            ("64 nodes, torch.distributed is up", 64, True),
            ("8 nodes of 8, torch.distributed is up", 8, True),
            ("8 nodes of 8, without torch.distributed", 8, False),
        ):
            proxy.clear()
            caches = folder / name
            ranks = done(Job(url, proxy.storage_options, nodes, PROCESSES, distributed, caches))
            assert sorted(row for rank in ranks for row in rank.rows) == list(range(ROWS))
            seen = [one for one in proxy.requests if one.method == "GET" and one.status in (200, 206)]
            files = [one.path for one in seen if ".mdb" in one.path]
            manifests = sum("manifest" in one.path for one in seen)
            most = max(map(files.count, set(files)))
            seconds = sorted(rank.seconds for rank in ranks)
            print(
                f"{name:46} {manifests:9} {len(files):7} {most:15} "
                f"{statistics.median(seconds):12.2f} s {seconds[-1]:6.2f} s"
            )


def main() -> None:
    real_processes()
    print()
    many_ranks()


if __name__ == "__main__":
    main()
