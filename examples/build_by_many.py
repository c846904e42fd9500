"""A version built by workers, of which one is killed; then it grows, is tagged, and tells its history.

Needs nothing but torchyoga; with Dask installed, a local cluster of Dask builds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import torchyoga as yoga

ROWS = 600


class Pictures:
    """Slow rows, as decoding gives; each worker leaves the number of its process in a folder."""

    def __init__(self, workers: Path) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, object]:
        if not 0 <= number < ROWS:
            raise IndexError(number)
        (self.workers / str(os.getpid())).touch()
        time.sleep(0.005)
        picture = np.random.default_rng(number).integers(0, 256, (28, 28), np.uint8)
        return {"image": picture, "label": number % 10}


def kill_one(workers: Path) -> None:
    """Kills the first worker that has begun to read rows."""
    for _ in range(600):
        for found in workers.iterdir():
            if int(found.name) != os.getpid():
                os.kill(int(found.name), getattr(signal, "SIGKILL", signal.SIGTERM))
                print("killed a worker", flush=True)
                return
        time.sleep(0.05)


@contextmanager
def engine() -> Iterator[Executor | Callable[[], Executor]]:
    """Dask, or a function that makes a pool of processes, since a pool is spent when one of them dies."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        context = multiprocessing.get_context("spawn")
        yield lambda: ProcessPoolExecutor(2, context)
        return
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        yield client.get_executor(pure=False)


def main() -> None:
    """The story."""
    with tempfile.TemporaryDirectory() as name:
        workers = Path(name) / "workers"
        workers.mkdir()
        storage = yoga.Storage(Path(name) / "storage", lease_seconds=5)
        data = Pictures(workers)
        killer = threading.Thread(target=kill_one, args=[workers])
        killer.start()
        with engine() as executor:
            many = storage.submit(data, "pictures", "1.0", executor=executor, message="by two workers")
        killer.join()
        one = storage.submit(data, "pictures", "alone", message="by one process")
        print(f"{len(many)} rows; the same as one process gives: {many.fingerprint == one.fingerprint}")

        new = [data[number] for number in range(20)]
        grown = storage.append(new, "pictures", "1.1", after="1.0", message="more of May")
        storage.tag("pictures", "prod", "1.1")
        print(f"{len(grown)} rows as {storage.tags('pictures')}")
        storage.remove("pictures", "alone")
        print(storage.log("pictures"))


if __name__ == "__main__":
    main()
