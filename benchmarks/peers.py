"""A shuffled epoch of small images, by the ways in which others read them: the picture of the README.

python benchmarks/peers.py [--draw]        small images, all ways
python benchmarks/peers.py --others [PYTHON]   other rows, beside FFCV, into results.md; and beside Petastorm,
                                               where this Python has it, as it needs an old pyarrow

60,000 rows of 28 x 28 bytes and a label, on a local disk, in batches of 256. Each way runs in a fresh
process: its first epoch, with all imports done and the files in the page cache, and its next; the ways
take turns, three times. Packages that are not installed are left out, and said to be. What each does ahead is
left as its documentation shows it. FFCV has at least one thread; its first epoch has a compilation.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS, BATCH, ROUNDS, LATER = 60_000, 256, 3, 1
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "peers.svg"


def images() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (ROWS, 28, 28), np.uint8), draw.integers(0, 10, ROWS)


# -- each way: what writes its files, and what gives a loader of them


def write_lmdb(folder: Path) -> None:
    from common import write_pickled

    pictures, labels = images()
    rows = ({"image": image, "label": int(label)} for image, label in zip(pictures, labels, strict=True))
    write_pickled(str(folder / "rows.lmdb"), rows, pictures.nbytes)


def lmdb_loader(folder: Path, workers: int) -> Any:
    import torch
    from common import NaiveLmdb

    dataset = NaiveLmdb(str(folder / "rows.lmdb"), ROWS)
    return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def write_hdf5(folder: Path) -> None:
    import h5py

    pictures, labels = images()
    with h5py.File(folder / "rows.h5", "w") as file:
        file["image"], file["label"] = pictures, labels


def hdf5_loader(folder: Path, workers: int) -> Any:
    import h5py
    import torch

    class Rows(torch.utils.data.Dataset[Any]):
        file = None

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, row: int) -> Any:
            if self.file is None:
                self.file = h5py.File(folder / "rows.h5")
            return {"image": self.file["image"][row], "label": int(self.file["label"][row])}

    return torch.utils.data.DataLoader(Rows(), BATCH, shuffle=True, num_workers=workers)


def write_datasets(folder: Path) -> None:
    import datasets

    pictures, labels = images()
    features = datasets.Features(
        {"image": datasets.Array2D((28, 28), "uint8"), "label": datasets.Value("int64")}
    )
    found = datasets.Dataset.from_dict({"image": pictures, "label": labels}, features)
    found.save_to_disk(str(folder / "arrow"))


def datasets_loader(folder: Path, workers: int) -> Any:
    import datasets
    import torch

    found = datasets.load_from_disk(str(folder / "arrow")).with_format("torch")
    return torch.utils.data.DataLoader(found, BATCH, shuffle=True, num_workers=workers)  # type: ignore[arg-type]


def nothing(folder: Path) -> None:
    """There is nothing to write."""


def memory_loader(folder: Path, workers: int) -> Any:
    import torch

    dataset = torch.utils.data.TensorDataset(*map(torch.from_numpy, images()))
    return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def litdata_rows(row: int) -> Any:
    draw = np.random.default_rng(row)
    return {"image": draw.integers(0, 256, (28, 28), np.uint8), "label": row % 10}


def write_litdata(folder: Path) -> None:
    import litdata

    litdata.optimize(
        fn=litdata_rows,
        inputs=list(range(ROWS)),
        output_dir=str(folder / "lit"),
        chunk_bytes="64MB",
        num_workers=2,
    )


def litdata_loader(folder: Path, workers: int) -> Any:
    import litdata

    found = litdata.StreamingDataset(str(folder / "lit"), shuffle=True)
    return litdata.StreamingDataLoader(found, batch_size=BATCH, num_workers=workers)


def write_streaming(folder: Path) -> None:
    import streaming

    columns = {"image": "ndarray:uint8:28,28", "label": "int"}
    with streaming.MDSWriter(out=str(folder / "mds"), columns=columns) as out:
        for image, label in zip(*images(), strict=True):
            out.write({"image": image, "label": int(label)})


def streaming_loader(folder: Path, workers: int) -> Any:
    import streaming
    import torch

    streaming.base.util.clean_stale_shared_memory()
    found = streaming.StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=BATCH)
    return torch.utils.data.DataLoader(found, BATCH, num_workers=workers)


def write_torchyoga(folder: Path) -> None:
    import torchyoga as yoga

    pictures, labels = images()
    storage = yoga.Storage(folder / "storage")
    storage.submit(yoga.from_arrays({"image": pictures, "label": labels}), "rows", "1", progress=False)


def torchyoga_loader(folder: Path, workers: int) -> Any:
    import torchyoga as yoga

    found = yoga.Storage(folder / "storage").fetch("rows", "1")
    return yoga.DataLoader(found, BATCH, shuffle=True, num_workers=workers)


class Rows:
    """Rows by number, for FFCV's writer; it sends them to processes."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row], row % 10


def write_beton(path: Path, rows: Any, field: Any) -> None:
    from ffcv.fields import IntField
    from ffcv.writer import DatasetWriter

    DatasetWriter(str(path), {"x": field, "label": IntField()}, num_workers=2).from_indexed_dataset(
        Rows(rows)
    )


def beton_loader(path: Path, workers: int, decoder: Any) -> Any:
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    return Loader(
        str(path),
        batch_size=BATCH,
        num_workers=workers or 1,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"x": [decoder, ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )


def write_ffcv(folder: Path) -> None:
    from ffcv.fields import NDArrayField

    write_beton(folder / "rows.beton", images()[0], NDArrayField(np.dtype("u1"), (28, 28)))


def ffcv_loader(folder: Path, workers: int) -> Any:
    from ffcv.fields.decoders import NDArrayDecoder

    return beton_loader(folder / "rows.beton", workers, NDArrayDecoder())


# -- other rows, beside FFCV alone

WIDTH, SIDE, PART = 512, 256, 224
ARRAYS, TOKENS, FILLED = (
    "arrays of 12 KiB",
    f"tokens, padded to {WIDTH}",
    "tokens, padded when they were written",
)
WHOLE, PARTS = f"JPEG of {SIDE} x {SIDE}, decoded", f"the same, RandomResizedCrop to {PART}"
OTHERS = [ARRAYS, TOKENS, FILLED, WHOLE, PARTS]
FFCV, OURS = "FFCV", "torchyoga"


def other_rows(kind: str) -> Any:
    """Rows as they are kept: arrays, tokens of any number, pictures."""
    draw = np.random.default_rng(0)
    if kind == ARRAYS:
        return draw.integers(0, 256, (20_000, 12_288), np.uint8)
    if kind in (TOKENS, FILLED):
        return [draw.integers(0, 50_000, length, np.int32) for length in draw.integers(50, WIDTH, 60_000)]
    from decoding import photograph

    return [photograph(number, SIDE, SIDE) for number in range(2_048)]


def write_other(kind: str, folder: Path) -> None:
    """Writes the rows for both, pictures as JPEG of one quality; FFCV's tokens are padded already."""
    from ffcv.fields import NDArrayField, RGBImageField

    import torchyoga as yoga

    rows = other_rows(kind)
    filled = [np.pad(row, (0, WIDTH - len(row))) for row in rows] if kind in (TOKENS, FILLED) else rows
    rows = filled if kind == FILLED else rows
    kept: Any = ({"x": row, "label": number % 10} for number, row in enumerate(rows))
    codecs = {"x": yoga.codecs.jpeg(quality=90)} if kind in (WHOLE, PARTS) else None
    yoga.Storage(folder / "storage").submit(kept, "rows", "1", codecs=codecs, progress=False)
    if kind == ARRAYS:
        field = NDArrayField(np.dtype("u1"), (12_288,))
    elif kind in (TOKENS, FILLED):
        field = NDArrayField(np.dtype("i4"), (WIDTH,))
    else:
        field = RGBImageField(write_mode="jpg", jpeg_quality=90)
    write_beton(folder / "other.beton", filled, field)


def other_loader(kind: str, name: str, folder: Path, workers: int) -> Any:
    if name == FFCV:
        from ffcv.fields import decoders

        decoder = (
            decoders.SimpleRGBImageDecoder()
            if kind == WHOLE
            else decoders.RandomResizedCropRGBImageDecoder((PART, PART))
            if kind == PARTS
            else decoders.NDArrayDecoder()
        )
        return beton_loader(folder / "other.beton", workers, decoder)
    import torchyoga as yoga

    ref = yoga.Storage(folder / "storage").fetch("rows", "1")
    if kind in (WHOLE, PARTS):
        codec = yoga.codecs.image(size=SIDE) if kind == WHOLE else yoga.codecs.image(size=PART, crop="random")
        ref = ref.decoded({"x": codec}, threads=2)
    collate = yoga.padded(width=WIDTH) if kind == TOKENS else None
    return yoga.DataLoader(ref, BATCH, shuffle=True, num_workers=workers, collate_fn=collate)


Way = tuple[str | None, Callable[[Path], None], Callable[[Path, int], Any]]
WAYS: dict[str, Way] = {
    "torch, LMDB with a pickle a row": (None, write_lmdb, lmdb_loader),
    "torch, HDF5": (None, write_hdf5, hdf5_loader),
    "torch, Hugging Face datasets": ("datasets", write_datasets, datasets_loader),
    "MosaicML Streaming": ("streaming", write_streaming, streaming_loader),
    "LitData": ("litdata", write_litdata, litdata_loader),
    "FFCV": ("ffcv", write_ffcv, ffcv_loader),
    "torch, tensors in memory": (None, nothing, memory_loader),
    "torchyoga": (None, write_torchyoga, torchyoga_loader),
}


def measured(name: str, folder: Path, workers: int, kind: str | None = None) -> list[float]:
    """Rows a second, of the first epoch and of later ones; in a process of its own."""
    warnings.simplefilter("ignore")
    if kind is None:
        loader = WAYS[name][2](folder, workers)
    else:
        made_by = numbers_loader if kind in (IN_ORDER, SHUFFLED) else other_loader
        loader = made_by(kind, name, folder, workers)
    found = []
    for _ in range(1 + LATER):
        began, count = time.perf_counter(), 0
        for batch in loader:
            count += len(batch["label"] if isinstance(batch, dict) else batch[1])
        found.append(count / (time.perf_counter() - began))
    return found


Rates = dict[tuple[str, int], tuple[float, float]]  # of each way and number of workers: first epoch, later


def in_turns(ways: list[str], folder: Path, *more: str, pythons: dict[str, str] | None = None) -> Rates:
    """The medians of each way, each time in a fresh process, of a Python of its own if there is one."""
    rates: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(ROUNDS):
        for name in ways:
            for workers in (0, 2):
                python = (pythons or {}).get(name, sys.executable)
                command = [python, __file__, "--measure", name, str(folder), str(workers), *more]
                process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
                if process.returncode:
                    print(f"{name}: {process.stderr.strip().splitlines()[-1]}")
                    continue
                line = process.stdout.strip().splitlines()[-1]
                rates.setdefault((name, workers), []).append(json.loads(line))
    return {
        key: (
            statistics.median(one[0] for one in rounds),
            statistics.median(rate for one in rounds for rate in one[1:]),
        )
        for key, rounds in rates.items()
    }


Line = list[str]


def lines(kind: str, peer: str, rates: Rates) -> list[Line]:
    """Rows a second of first and later epochs, here and there, each at the better number of workers."""
    found = []
    for when, epoch in enumerate(("first epoch", "later")):
        ours, theirs = (max(rates[name, workers][when] for workers in (0, 2)) for name in (OURS, peer))
        found.append([f"{kind}, {epoch}", f"{ours:,.0f}", peer, f"{theirs:,.0f}", f"{ours / theirs:.2f}"])
        print("  ".join(found[-1]), flush=True)
    return found


def beside_ffcv() -> list[Line]:
    """The table of other rows."""
    table = []
    for kind in OTHERS:
        with tempfile.TemporaryDirectory() as text:
            write_other(kind, Path(text))
            table += lines(kind, FFCV, in_turns([OURS, FFCV], Path(text), kind))
    return table


# -- numbers in Parquet files, beside Petastorm alone

IN_ORDER, SHUFFLED = "Parquet, 8 columns of numbers, in order", "Parquet, 8 columns of numbers, shuffled"
PETASTORM, NUMBERS = "Petastorm", 2_000_000


def write_numbers(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    columns = [
        draw.random(NUMBERS, dtype=np.float32) if number % 2 else draw.integers(0, 10**6, NUMBERS)
        for number in range(8)
    ]
    names = ["label", *(f"c{number}" for number in range(1, 8))]
    table = pa.table(dict(zip(names, columns, strict=True)))
    pq.write_table(table, folder / "numbers.parquet", row_group_size=100_000)


class Groups:
    """Petastorm's row groups, each a batch of arrays; anew for each epoch. Its shuffle is one of groups."""

    def __init__(self, folder: Path, workers: int, is_shuffled: bool) -> None:
        self._options = {"workers_count": workers or 1, "shuffle_row_groups": is_shuffled}
        self._url = folder.as_uri()

    def __iter__(self) -> Any:
        from petastorm import make_batch_reader

        with make_batch_reader(self._url, reader_pool_type="thread", num_epochs=1, **self._options) as reader:
            for group in reader:
                yield {"label": group.label}


def numbers_loader(kind: str, name: str, folder: Path, workers: int) -> Any:
    if name == PETASTORM:
        return Groups(folder, workers, kind == SHUFFLED)
    import torchyoga as yoga

    shuffle: Any = "block" if kind == SHUFFLED else False
    return yoga.DataLoader(yoga.from_parquet(folder), 10_000, shuffle, num_workers=workers)


def beside_petastorm(python: str) -> list[Line]:
    """The table of numbers."""
    table = []
    with tempfile.TemporaryDirectory() as text:
        write_numbers(Path(text))
        for kind in (IN_ORDER, SHUFFLED):
            rates = in_turns([OURS, PETASTORM], Path(text), kind, pythons={PETASTORM: python})
            table += lines(kind, PETASTORM, rates)
    return table


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        _, _, name, folder_name, workers, *more = sys.argv
        print("\n" + json.dumps(measured(name, Path(folder_name), int(workers), *more)))
        os._exit(0)  # some peers take seconds to end
    if sys.argv[1:2] == ["--others"]:
        import performance

        table = beside_ffcv() + [line for python in sys.argv[2:3] for line in beside_petastorm(python)]
        heading = ["rows", "torchyoga, rows/s", "beside", "its rows/s", "times as fast"]
        performance.put_tables({"others": performance.as_table([heading, *table])})
        return
    with tempfile.TemporaryDirectory() as text:
        ways = []
        for name, (package, write, _) in WAYS.items():
            if package is not None and importlib.util.find_spec(package) is None:
                print(f"{name}: {package} is not installed, left out")
                continue
            write(Path(text))
            ways.append(name)
        found = in_turns(ways, Path(text))
    print(f"rows/s: {'':26}{'first epoch':>14}{'later':>14}{'first, 2 workers':>20}{'later':>14}")
    for name in ways:
        numbers = [rate for workers in (0, 2) for rate in found.get((name, workers), (0.0, 0.0))]
        print(f"{name:34}{numbers[0]:14,.0f}{numbers[1]:14,.0f}{numbers[2]:20,.0f}{numbers[3]:14,.0f}")
    if "--draw" in sys.argv:
        draw(found, ways)


def draw(found: Rates, ways: list[str]) -> None:
    """The picture: the better of 0 and 2 workers, first epoch and later ones."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from common import save

    mpl.rcParams |= {"svg.hashsalt": "torchyoga", "font.size": 10, "font.family": "sans-serif"}
    figure, axes = plt.subplots(figsize=(9, 3.4))
    for place, name in enumerate(ways):
        best = [max(found.get((name, workers), (0.0, 0.0))[kind] for workers in (0, 2)) for kind in (0, 1)]
        ours = name == OURS
        for shift, rate, colour in (
            (-0.2, best[0], "#1f6feb" if ours else "#8b949e"),
            (0.2, best[1], "#79b8ff" if ours else "#c9d1d9"),
        ):
            axes.barh(place + shift, rate, 0.38, color=colour)
            axes.text(rate * 1.06, place + shift, f"{rate:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(ways)), ways)
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 3)
    axes.set_xlabel("rows a second: first epoch dark, the next one light; the better of 0 and 2 workers")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save(figure, PICTURE, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
