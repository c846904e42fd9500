"""From an S3 server on this machine: first and later epochs, and a cache of a quarter of the data.

    python benchmarks/remote.py --repetitions 3 --write

`make bench` runs it, and results.md has its table. The limit of a first epoch is s3fs itself,
downloading the same objects in the faster of two ways; of a later one, the same files in a local directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import ratio

import torchyoga as yoga
from torchyoga.adapters.arrays import from_arrays
from torchyoga.adapters.sources import RefSource
from torchyoga.building.build import BuildOptions, Target, build
from torchyoga.stores.downloads import Downloads

SERVER = Path(__file__).parents[1] / "tests" / "remote" / "programs" / "s3.py"
BUCKET = "benchmark"
ROW_BYTES, NUM_ROWS = 49_152, 5_376  # 264 MB
BLOCK_BYTES, FILE_BYTES = 2**20, 2**22 - 2**18  # the last block takes a file a little beyond
BATCH = 64
LATER = 5  # of them in every round
FIRST_GOAL, LATER_GOAL, DOWNLOADS_GOAL = 2.0, 0.9, 1.1
SHARE = 4  # of the dataset, the small cache holds one part
FEW = 6  # batches of a full shuffle from it
SHUFFLES: dict[str, bool | str] = {"shuffle=True": True, 'shuffle="block"': "block"}


@contextlib.contextmanager
def server() -> Iterator[dict[str, Any]]:
    """Moto in a process of its own, with a bucket; gives s3fs's options."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
        client = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        options = {"key": "testing", "secret": "testing", "client_kwargs": client}
        bare(options).call_s3("create_bucket", Bucket=BUCKET)
        yield options
    finally:
        process.kill()
        process.communicate(timeout=30)


def bare(options: dict[str, Any]) -> Any:
    """A filesystem of its own, as each storage has one."""
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **options)


def images() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (NUM_ROWS, ROW_BYTES), np.uint8),
        "label": rng.integers(0, 10, NUM_ROWS),
    }


def publish(
    storage: yoga.Storage, arrays: dict[str, np.ndarray], file_bytes: int = FILE_BYTES
) -> yoga.DataRef:
    """What `submit` does, in smaller files."""
    data = from_arrays(arrays)
    versions = storage._store
    assert data.schema is not None
    with versions.lock("images", "1", 60):
        options = BuildOptions(
            progress=False, block_bytes=min(BLOCK_BYTES, file_bytes), file_bytes=file_bytes
        )
        build(RefSource(data, data.schema), Target(versions, "images", "1"), options)
    return storage.fetch("images", "1")


def rows_of(loader: yoga.DataLoader) -> int:
    """One epoch."""
    return sum(len(batch["label"]) for batch in loader)


class Clock:
    """MB/s of each way, one after the other in every round."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timing(self, way: str, nbytes: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.rates.setdefault(way, []).append(nbytes / (time.perf_counter() - started) / 1e6)


class Store:
    """The dataset in the store, and folders to read it into."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        self.options = options
        self.url = f"s3://{BUCKET}/data"

    def storage(self, cache: Path, cache_bytes: int | None = None) -> yoga.Storage:
        return yoga.Storage(self.url, storage_options=self.options, cache_dir=cache, cache_bytes=cache_bytes)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Path(name)

    def objects(self) -> list[str]:
        return sorted(
            name for name in bare(self.options).find(f"{BUCKET}/data/images") if "manifest" not in name
        )


def epochs(store: Store, local: yoga.DataRef, repetitions: int) -> list[list[str]]:
    """First and later epochs, beside s3fs and a local directory."""
    keys = store.objects()
    fs = bare(store.options)
    nbytes = sum(fs.info(key)["size"] for key in keys)
    data = NUM_ROWS * (ROW_BYTES + 8)
    clock = Clock()
    near = {name: yoga.DataLoader(local, BATCH, kind, seed=1) for name, kind in SHUFFLES.items()}  # type: ignore[arg-type]
    for loader in near.values():
        rows_of(loader)
    for _ in range(repetitions):
        with store.scratch() as folder:
            fs = bare(store.options)
            fs.info(keys[0])  # connected, as a storage is once it has fetched
            with clock.timing("s3fs: get(all)", nbytes):
                fs.get(keys, [str(folder / Path(key).name) for key in keys])
        with clock.timing("s3fs: cat_file, one by one", nbytes):
            for key in keys:
                fs.cat_file(key)
        for name, kind in SHUFFLES.items():
            with store.scratch() as folder:
                ref = store.storage(folder).fetch("images", "1")
                loader = yoga.DataLoader(ref, BATCH, kind, seed=1)  # type: ignore[arg-type]
                with clock.timing(f"first epoch, {name}", nbytes):
                    assert rows_of(loader) == NUM_ROWS
                os.sync()  # what was downloaded is still being written
                rows_of(loader)
                ways = {"local directory": near[name], "later epoch": loader}
                for index in range(LATER):  # they are short
                    for way in list(ways)[:: 1 if index % 2 else -1]:
                        with clock.timing(f"{way}, {name}", data):
                            assert rows_of(ways[way]) == NUM_ROWS
    return _rows(clock.rates, f"S3, {len(keys)} files of {nbytes / len(keys) / 1e6:.1f} MB")


def _rows(rates: dict[str, list[float]], what: str) -> list[list[str]]:
    ways = [name for name in rates if name.startswith("s3fs")]
    limit = rates[max(ways, key=lambda way: statistics.median(rates[way]))]
    table = []
    for name, found in rates.items():
        kind, _, shuffle = name.partition(", ")
        row = [what, name, f"{statistics.median(found):,.0f} MB/s", "", ""]
        if kind == "first epoch":
            share = ratio(found, limit)
            row[3:] = [f"{share:.2f} of s3fs", _verdict(share >= FIRST_GOAL, FIRST_GOAL)]
        elif kind == "later epoch":
            share = ratio(found, rates[f"local directory, {shuffle}"])
            row[3:] = [f"{share:.2f} of local", _verdict(share >= LATER_GOAL, LATER_GOAL)]
        table.append(row)
    return table


def _verdict(is_good: bool, goal: float) -> str:
    return f"{'reached' if is_good else 'MISSED'} ({goal:g})"


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each file is downloaded meanwhile."""
    counts: Counter[str] = Counter()
    original = Downloads._download

    def download(self: Downloads, entry: Any, path: Path) -> None:
        counts[entry.name] += 1
        original(self, entry, path)

    with mock.patch.object(Downloads, "_download", download):
        yield counts


def small_cache(store: Store) -> list[list[str]]:
    """Three epochs of a block shuffle, and a few batches of a full one, from a cache of a quarter."""
    names = [Path(key).name for key in store.objects()]
    what = f"S3, cache of 1/{SHARE}"
    limit = NUM_ROWS * ROW_BYTES // SHARE
    table = []
    with store.scratch() as folder, counted() as counts:
        loader = yoga.DataLoader(store.storage(folder, limit).fetch("images", "1"), BATCH, "block", seed=1)
        for epoch in range(1, 4):
            counts.clear()
            started = time.perf_counter()
            assert rows_of(loader) == NUM_ROWS
            rate = NUM_ROWS / (time.perf_counter() - started)
            mean, most = counts.total() / len(names), max(counts.values())
            table.append(
                [
                    what,
                    f'shuffle="block", epoch {epoch}',
                    f"{rate:,.0f} rows/s",
                    f"{mean:.2f} downloads of a file, {most} at most",
                    _verdict(mean <= DOWNLOADS_GOAL, DOWNLOADS_GOAL),
                ]
            )
    with store.scratch() as folder, counted() as counts, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*files are downloaded again")
        loader = yoga.DataLoader(store.storage(folder, limit).fetch("images", "1"), BATCH, True, seed=1)
        started = time.perf_counter()
        batches = iter(loader)
        for _ in range(FEW):
            next(batches)
        rate = FEW * BATCH / (time.perf_counter() - started)
        share = counts.total() / FEW / len(names)
        name = f"shuffle=True, {FEW} batches"
        table.append([what, name, f"{rate:,.0f} rows/s", f"{share:.2f} of all files for each batch", ""])
    return table


def measure(repetitions: int) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as name, server() as options:
        store = Store(Path(name), options)
        with store.scratch() as built:
            publish(store.storage(built), images())
        local = publish(yoga.Storage(Path(name) / "local"), images())
        found = epochs(store, local, repetitions) + small_cache(store)
        del local
        shutil.rmtree(Path(name) / "local")
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into results.md")
    arguments = parser.parse_args()
    table = measure(arguments.repetitions)
    for row in table:
        print("  ".join(row))
    if arguments.write:
        import performance

        performance.put_tables({"remote": performance.as_table([performance.HEADING, *table])})


os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

if __name__ == "__main__":
    main()
