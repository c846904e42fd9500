"""The reading engine: rows/s against row size, cold files, ragged rows, worker processes, size and files.

Called by run.py; writes benchmarks/results.md and the picture of docs/performance.md.
"""

from __future__ import annotations

import gc
import mmap
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from common import BATCH, NaiveLmdb, interleaved, ratio, save, take_limit, verdict, write_naive
from sparse import write_sparse

import torchyoga as yoga
from torchyoga.formats.mapped import usage

HEADING = ["what", "way", "median", "ratio", "goal"]
CURVE = (1, 16, 128, 784, 4096, 12_288, 65_536, 200_704, 2**20, 6 * 2**20)  # bytes of a row
DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).with_name("results.md")
PLAIN, LOADER, STREAM = "torch DataLoader + ResumableSampler", "torchyoga.DataLoader", "stream batches"


def machine() -> str:
    """The machine and the versions that were measured."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    cpu = names[0].split(":")[1].strip() if names else platform.machine()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GiB, {system}; {versions}"


def rows_per_second(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} rows/s"


# -- warm


def curve(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """Warm rows of every size, by each way, and the limit; full shuffle."""
    points = []
    for row_bytes in CURVE:
        length = max(60, min(300_000, 200 * 2**20 // row_bytes))
        batch = min(BATCH, max(4, length // 8))
        rows = np.random.default_rng(0).integers(0, 256, (length, row_bytes), dtype=np.uint8)
        np.save(folder / "curve.npy", rows)
        mapped = np.load(folder / "curve.npy", mmap_mode="r")
        name = f"curve {row_bytes}"
        ref = yoga.Storage(folder).submit({"x": rows}, name, "1", progress=False)
        del rows
        sampler = yoga.ResumableSampler(ref)
        plain = torch.utils.data.DataLoader(ref, batch_size=batch, sampler=sampler)
        loader = yoga.DataLoader(ref, batch_size=batch, shuffle=True)
        stream = ref.stream(shuffle=True)
        ways: dict[str, Callable[[], int]] = {
            "limit": take_limit(mapped, batch),
            PLAIN: counted(plain, "x"),
            LOADER: counted(loader, "x"),
            STREAM: lambda stream=stream, batch=batch: sum(len(rows) for rows in stream.batches(batch)),
        }
        rates = interleaved(ways, repetitions)
        points.append(
            {"row_bytes": row_bytes, "batch": batch} | {k: statistics.median(v) for k, v in rates.items()}
        )
        del ref, mapped, ways, plain, loader, stream, sampler
        yoga.Storage(folder).remove(name, "1")
        (folder / "curve.npy").unlink()
    return points


def counted(loader: Any, column: str, most: int | None = None) -> Callable[[], int]:
    def run() -> int:
        rows = 0
        for batch in loader:
            rows += len(batch[column])
            if most is not None and rows >= most:
                break
        return rows

    return run


# -- cold


def drop(paths: list[Path]) -> None:
    """Takes files out of the page cache, and makes sure by reading that they are gone."""
    gc.collect()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        before, size = usage(), os.fstat(descriptor).st_size
        for i in range(8):
            os.pread(descriptor, 1, size * i // 8)
        os.close(descriptor)
        assert usage().blocks - before.blocks >= 64, f"{path} is still in the page cache"


def advised(path: Path, order: np.ndarray, row_bytes: int) -> Callable[[], int]:
    """The hand-written loop: it announces the rows of the next four batches to the kernel."""

    def run() -> int:
        mapped = np.load(path, mmap_mode="r")
        pages: mmap.mmap = mapped._mmap
        pages.madvise(mmap.MADV_RANDOM)
        offset = mapped.offset % mmap.ALLOCATIONGRANULARITY
        out = np.empty((BATCH, row_bytes), np.uint8)
        batches = [order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]

        def advise(batch: np.ndarray) -> None:
            for place in (batch * row_bytes + offset).tolist():
                start = place & ~4095
                pages.madvise(mmap.MADV_WILLNEED, start, place + row_bytes - start)

        for batch in batches[:4]:
            advise(batch)
        for i, batch in enumerate(batches):
            if i + 4 < len(batches):
                advise(batches[i + 4])
            np.take(mapped, batch, 0, out=out, mode="clip")
        return len(batches) * BATCH

    return run


def cold(folder: Path, repetitions: int) -> list[list[str]]:
    """12 KiB rows from files that are not in the page cache, each epoch by a process that has read none."""
    row_bytes, length, few = 12_288, 80_000, 2_000
    rows = np.random.default_rng(0).integers(0, 256, (length, row_bytes), dtype=np.uint8)
    labels = np.arange(length)
    np.save(folder / "cold.npy", rows)
    write_naive(str(folder / "cold.naive"), rows, labels)
    storage = yoga.Storage(folder)
    storage.submit({"image": rows, "label": labels}, "cold", "1", progress=False)
    del rows
    files = [folder / "cold.npy", folder / "cold.naive", *(folder / "cold" / "1").glob("*.mdb")]
    seeds = iter(range(10**6))

    def fresh() -> yoga.DataRef:
        return yoga.Storage(folder).fetch("cold", "1")  # maps its files anew, and has checked nothing

    def hand() -> int:
        order = np.random.default_rng(next(seeds)).permutation(length)
        return advised(folder / "cold.npy", order, row_bytes)()

    def plain() -> int:
        ref = fresh()
        sampler = yoga.ResumableSampler(ref, seed=next(seeds))
        return counted(torch.utils.data.DataLoader(ref, batch_size=BATCH, sampler=sampler), "label")()

    def loader(num_workers: int = 0) -> int:
        options: Any = {"num_workers": num_workers, "shuffle": True, "seed": next(seeds)}
        return counted(yoga.DataLoader(fresh(), batch_size=BATCH, **options), "label")()

    def naive() -> int:
        data = NaiveLmdb(str(folder / "cold.naive"), length)
        return counted(torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True), "label", few)()

    def stream() -> int:
        batches = fresh().stream(shuffle=True, shuffle_seed=next(seeds)).batches(BATCH)
        return sum(len(batch) for batch in batches)

    ways: dict[str, Callable[[], int]] = {
        "hand-written advice loop": hand,
        "naive LMDB Dataset": naive,
        PLAIN: plain,
        LOADER: loader,
        f"{LOADER}, 2 workers": lambda: loader(2),
        STREAM: stream,
    }
    rates = interleaved(ways, repetitions, before=lambda: drop(files))
    by_hand, slow = rates["hand-written advice loop"], rates["naive LMDB Dataset"]
    table = []
    for name, found in rates.items():
        share, times = ratio(found, by_hand), ratio(found, slow)
        goal = f"{verdict(share, 0.8)}, {verdict(times, 15)} x naive" if name in (LOADER, STREAM) else ""
        shown = f"{share:.2f} of by hand, {times:.1f} x naive"
        table.append(["cold, 12 KiB", name, rows_per_second(found), shown, goal])
    storage.remove("cold", "1")
    for path in files[:2]:
        path.unlink()
    return table


# -- ragged


def ragged(folder: Path, repetitions: int) -> list[list[str]]:
    """Tokens of 16 to 1,024, packed and padded; and byte strings of 10 to 40 KiB."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 50_000, n, dtype=np.int32) for n in rng.integers(16, 1025, 60_000)]
    schema = yoga.Schema.of({"tokens": tokens[0], "label": 0}, ragged=["tokens"])
    storage = yoga.Storage(folder)
    rows = ({"tokens": row, "label": i} for i, row in enumerate(tokens))
    ref = storage.submit(rows, "tokens", "1", schema=schema, progress=False)
    starts = np.cumsum([0, *map(len, tokens)])
    np.concatenate(tokens).tofile(folder / "tokens.raw")
    values = np.memmap(folder / "tokens.raw", np.int32, "r")
    del tokens

    def spans(starts: np.ndarray) -> Iterator[list[tuple[int, int]]]:
        order = rng.permutation(len(starts) - 1)
        for i in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[i : i + BATCH]
            yield list(zip(starts[batch].tolist(), starts[batch + 1].tolist(), strict=True))

    def packed_by_hand() -> int:
        out, offsets, count = np.empty(BATCH * 1024, np.int32), np.zeros(BATCH + 1, np.int64), 0
        for batch in spans(starts):
            done = 0
            for i, (start, stop) in enumerate(batch):
                out[done : done + stop - start] = values[start:stop]
                done += stop - start
                offsets[i + 1] = done
            torch.from_numpy(out[:done]), torch.from_numpy(offsets)
            count += len(batch)
        return count

    def padded_by_hand() -> int:
        out, count = np.empty((BATCH, 1024), np.int32), 0
        for batch in spans(starts):
            out[:] = 0
            for i, (start, stop) in enumerate(batch):
                out[i, : stop - start] = values[start:stop]
            torch.from_numpy(out)
            count += len(batch)
        return count

    def loader_of(data: Any, collate: Any = None) -> Callable[[], int]:
        return counted(yoga.DataLoader(data, BATCH, shuffle=True, collate_fn=collate), "label")

    lengths = rng.integers(10 * 1024, 40 * 1024, 20_000)
    images = ({"jpeg": rng.bytes(int(n)), "label": i} for i, n in enumerate(lengths))
    jpeg = storage.submit(images, "jpeg", "1", progress=False)
    places = np.cumsum([0, *lengths])
    with open(folder / "jpeg.raw", "wb") as file:
        for row in jpeg:
            file.write(row["jpeg"])
    with open(folder / "jpeg.raw", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def sliced(places: np.ndarray) -> Iterator[list[bytes]]:
        for batch in spans(places):
            yield [mapped[start:stop] for start, stop in batch]

    def slices_by_hand() -> int:
        return sum(len(batch) for batch in sliced(places))

    rates = interleaved(
        {
            "packed by hand": packed_by_hand,
            "collate_fn=jagged": loader_of(ref, yoga.jagged),
            "padded by hand": padded_by_hand,
            "collate_fn=padded()": loader_of(ref, yoga.padded()),
            "slices of a mapping": slices_by_hand,
            LOADER: loader_of(jpeg),
        },
        repetitions,
    )
    table = []
    names = list(rates)
    for what, goal, (by_hand, ours) in (
        ("tokens, values and offsets", 0.8, names[:2]),
        ("tokens, padded", 0.8, names[2:4]),
        ("JPEG-like bytes", 0.9, names[4:]),
    ):
        share = ratio(rates[ours], rates[by_hand])
        table.append([what, by_hand, rows_per_second(rates[by_hand]), "", ""])
        table.append(
            [what, ours, rows_per_second(rates[ours]), f"{share:.2f} of by hand", verdict(share, goal)]
        )
    mapped.close()
    for name in ("tokens", "jpeg"):
        storage.remove(name, "1")
    for name in ("tokens.raw", "jpeg.raw"):
        (folder / name).unlink(missing_ok=True)
    return table


# -- worker processes


class InMemory(torch.utils.data.Dataset[Any]):
    """Tensors in memory, by row or by batch."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return {"image": self.images[index], "label": self.labels[index]}


def workers(folder: Path, repetitions: int) -> list[list[str]]:
    """Two worker processes, against torch's over the same rows in memory."""
    table = []
    for size, row_bytes, length, goal in (("784 B", 784, 200_000, 5), ("12 KiB", 12_288, 40_000, 3)):
        rows = np.random.default_rng(0).integers(0, 256, (length, row_bytes), dtype=np.uint8)
        labels = np.arange(length)
        ref = yoga.Storage(folder).submit({"image": rows, "label": labels}, "workers", size, progress=False)
        data = InMemory(torch.from_numpy(rows), torch.from_numpy(labels))
        sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), BATCH, False)
        two: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
        torchs = torch.utils.data.DataLoader(data, batch_size=None, sampler=sampler, **two)
        by_row = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, **two)
        ours = yoga.DataLoader(ref, batch_size=BATCH, shuffle=True, **two)
        rates = interleaved(
            {
                "torch, batch_size=None": counted(torchs, "label"),
                "torch, row by row": counted(by_row, "label", 20_000),
                LOADER: counted(ours, "label"),
            },
            repetitions,
        )
        found = rates[LOADER]
        times, by_rows = (ratio(found, rates[name]) for name in list(rates)[:2])
        goals = verdict(times, goal) + (f", {verdict(by_rows, 10)} x row by row" if row_bytes == 784 else "")
        for name, each in rates.items():
            shown = f"{times:.1f} x torch's, {by_rows:.1f} x row by row" if name == LOADER else ""
            what = f"2 workers, {size}"
            table.append([what, name, rows_per_second(each), shown, goals if name == LOADER else ""])
        del torchs, by_row, ours, ref
        yoga.Storage(folder).remove("workers", size)
    return table


# -- size

PASS = """
import sys, threading, time, torchyoga as yoga
peaks = {"RssAnon": 0, "RssFile": 0}
def look():
    for line in open("/proc/self/status"):
        name, _, text = line.partition(":")
        if name in peaks:
            peaks[name] = max(peaks[name], int(text.split()[0]))
def watch():
    while True:
        look()
        time.sleep(0.02)
ref = yoga.Storage(sys.argv[1]).fetch(sys.argv[2], "1")
threading.Thread(target=watch, daemon=True).start()
started, rows = time.perf_counter(), 0
for batch in yoga.DataLoader(ref, batch_size=256, shuffle=True):
    rows += len(batch["x"])
seconds = time.perf_counter() - started
assert rows == len(ref)
look()
print(peaks["RssAnon"] / 1024, peaks["RssFile"] / 1024, rows / seconds)
"""


def printed_by(program: str, folder: Path, name: str, repetitions: int) -> list[float]:
    """The medians of the numbers that a program prints about a version, in processes of its own."""
    command, found = [sys.executable, "-c", program, str(folder), name], []
    for _ in range(repetitions):
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found.append([float(text) for text in printed.split()])
    return [statistics.median(column) for column in zip(*found, strict=True)]


def sizes(folder: Path, repetitions: int) -> list[list[str]]:
    """A pass over 1, 4 and 16 GB: memory of the process, and the page cache that it has mapped."""
    table = []
    for gigabytes in (1, 4, 16):
        name = f"{gigabytes} GB"
        write_sparse(folder, name, 12_288, gigabytes * 10**9 // 12_288 // 16 * 16, 16)
        anonymous, mapped, rate = printed_by(PASS, folder, name, repetitions)
        shown = f"{mapped:,.0f} MB of page cache mapped"
        table.append([f"a pass over {name}", f"{rate:,.0f} rows/s", f"{anonymous:,.0f} MB", shown, ""])
        yoga.Storage(folder).remove(name, "1")
    growth = float(table[-1][2].split()[0].replace(",", "")) / float(table[0][2].split()[0].replace(",", ""))
    table[-1][-1] = f"{'reached' if growth < 1.1 else 'MISSED'} (no growth: x {growth:.2f})"
    return table


OPEN = """
import sys, time, torchyoga as yoga
def memory():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous"):
            return int(line.split()[1]) / 1024
storage = yoga.Storage(sys.argv[1])
before, started = memory(), time.perf_counter()
ref = storage.fetch(sys.argv[2], "1")
ref[len(ref) // 2]
seconds, opened = time.perf_counter() - started, memory() - before
loader = yoga.DataLoader(ref, batch_size=256, shuffle=True)
rows = 0
for batch in loader:
    rows += 256
    if rows == 256 * 400:
        started = time.perf_counter()
    if rows == 256 * 2400:
        break
print(seconds * 1000, opened, (rows - 256 * 400) / (time.perf_counter() - started))
"""


def many_files(folder: Path, repetitions: int) -> list[list[str]]:
    """10^9 rows of 8 bytes in 10, 100 and 1,000 files: opening, and the rate once all are open."""
    table = []
    for files in (10, 100, 1000):
        name = f"{files} files"
        write_sparse(folder, name, 8, 10**9, files)
        milliseconds, opened, rate = printed_by(OPEN, folder, name, repetitions)
        fast = f"{'reached' if milliseconds < 100 else 'MISSED'} (100 ms)"
        small = f"{'reached' if opened < 50 else 'MISSED'} (50 MB)"
        shown = f"{milliseconds:.0f} ms and {opened:.0f} MB to open and read a row"
        table.append([f"10^9 rows in {name}", LOADER, f"{rate:,.0f} rows/s", shown, f"{fast}, {small}"])
        yoga.Storage(folder).remove(name, "1")
    return table


# -- the page


def write_curve(found: list[dict[str, Any]]) -> None:
    """Puts the rates of each size of a row into results.md, and draws the picture of docs/performance.md."""
    columns = ["limit", PLAIN, LOADER, STREAM]
    points = [["bytes of a row", "batch", *columns]]
    for point in found:
        shares = [f"{point[way]:,.0f} ({point[way] / point['limit']:.2f})" for way in columns[1:]]
        points.append([f"{point['row_bytes']:,}", str(point["batch"]), f"{point['limit']:,.0f}", *shares])
    put_tables({"curve": as_table(points)})
    draw(found)


def put_tables(tables: dict[str, str]) -> None:
    """Puts tables into results.md, each where its name is."""
    text = RESULTS.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name}: written by ", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        writer = rest.partition("\n")[0]
        text = before + begin + writer + "\n" + content + "\n" + end + rest.partition(end)[2]
    RESULTS.write_text(text)


def as_table(rows: list[list[Any]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def draw(points: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "torchyoga"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    sizes = [point["row_bytes"] for point in points]
    colours = {"limit": "#888888", PLAIN: "#4c78a8", LOADER: "#f58518", STREAM: "#54a24b"}
    for way, colour in colours.items():
        style = {
            "color": colour,
            "marker": "o",
            "markersize": 3,
            "label": way if way != "limit" else "np.take",
        }
        left.loglog(sizes, [point[way] for point in points], **style)
        right.semilogx(
            sizes, [point[way] * size / 1e9 for point, size in zip(points, sizes, strict=True)], **style
        )
    left.set_ylabel("rows/s")
    right.set_ylabel("GB/s")
    for axes in (left, right):
        axes.set_xlabel("bytes of a row")
        axes.grid(alpha=0.3)
    left.legend(fontsize=7)
    figure.tight_layout()
    save(figure, DOCS / "images" / "performance.svg")
