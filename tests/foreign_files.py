"""Files of each format that is read where it lies: what writes some, and what reads them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from golden.foreign_rows import FOREIGN
from mds_files import encoded, write
from PIL import Image

import torchyoga as yoga

COUNT = 60
TABLE = pa.table(
    {
        "n": range(COUNT),
        "ids": [list(range(n % 5)) for n in range(COUNT)],
        "text": [None if n % 7 == 3 else "é" * (n % 4) for n in range(COUNT)],
    }
)


class Format(NamedTuple):
    """Writes some files of a format into a folder, and reads them; some columns are looked at alone."""

    write: Callable[[Path], object]
    read: Callable[..., yoga.DataRef]
    columns: tuple[str, ...] = ("text", "n")
    lists: str = "ids"


def write_lines(folder: Path, count: int = COUNT, each: int = 25, blanks: int = 0) -> None:
    rows = [{**row, "n": n} for n, row in zip(range(count), cycle(TABLE.to_pylist()), strict=False)]
    for number, start in enumerate(range(0, count, each)):
        lines = (json.dumps(row) + " " * blanks for row in rows[start : start + each])
        (folder / f"{number:02}.jsonl").write_text("\n".join(lines))


def write_tar(folder: Path, count: int = COUNT, each: int = 20) -> None:
    for number, start in enumerate(range(0, count, each)):
        with tarfile.open(folder / f"{number:02}.tar", "w") as archive:
            for n in range(start, start + each):
                members = {"cls": b"%d" % n, "png": b"an image" * (n % 4), "txt": "é".encode()}
                for name in [*members][: 3 if n % 10 == 0 else 2]:
                    header = tarfile.TarInfo(f"{n:05}.{name}")
                    header.size = len(members[name])
                    archive.addfile(header, io.BytesIO(members[name]))


def write_arrow(folder: Path) -> None:
    with pa.ipc.new_file(folder / "x.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=25)


def write_parquet(folder: Path) -> None:
    pq.write_table(TABLE, folder / "x.parquet", row_group_size=7)


def write_zarr(folder: Path) -> None:
    group = zarr.open_group(folder, mode="w")
    group.create_array("n", data=np.arange(COUNT), chunks=(7,))
    text = group.create_array("text", shape=(COUNT,), chunks=(33,), dtype=str)
    text[:] = np.array(["é" * (n % 4) for n in range(COUNT)], object)


def write_hdf5(folder: Path) -> None:
    with h5py.File(folder / "x.h5", "w") as file:
        file["n"] = np.arange(COUNT)
        file.create_dataset(
            "text", data=["é" * (n % 4) for n in range(COUNT)], chunks=(7,), compression="gzip"
        )


def write_images(folder: Path) -> None:
    for n in range(COUNT):
        path = folder / "abc"[n % 3] / f"{n}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (2, 2), n).save(path)


def copy(name: str) -> Callable[[Path], object]:
    compressed = shutil.ignore_patterns("zipped*")
    return lambda folder: shutil.copytree(FOREIGN / name, folder, ignore=compressed, dirs_exist_ok=True)


def below(read: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Reads a file of a folder."""
    return lambda folder, **options: read(f"{folder}/{name}", **options)


def huggingface(folder: Path, **_: Any) -> yoga.DataRef:
    return yoga.from_huggingface(datasets.load_from_disk(str(folder)).shuffle(seed=1))


BEHIND_URLS = {
    "jsonl": Format(write_lines, yoga.from_jsonl),
    "mds": Format(lambda folder: write(folder, encoded(COUNT), 9, {"n": 8}), yoga.from_mds, ("y", "n")),
    "litdata": Format(copy("litdata/items"), yoga.from_litdata, ("text", "x", "list")),
    "tfrecord": Format(copy("tfrecord"), below(yoga.from_tfrecord, "x.tfrecord-*"), ("label", "ids")),
    "webdataset": Format(write_tar, yoga.webdataset, ("png", "cls")),
    "parquet": Format(write_parquet, lambda path, cache_dir=None: yoga.from_parquet(path)),
    "zarr": Format(write_zarr, lambda path, cache_dir=None: yoga.from_zarr(path)),
}
FORMATS = BEHIND_URLS | {
    "mds, every encoding": Format(copy("mds/all"), yoga.from_mds, ("text", "tokens", "number"), "tokens"),
    "litdata, tables": Format(copy("litdata/tables"), yoga.from_litdata, ("text", "x")),
    "steps": Format(copy("tfrecord"), below(yoga.from_tfrecord, "steps.tfrecord"), ("texts", "id")),
    "megatron": Format(copy("megatron"), below(yoga.from_megatron, "uint16"), ("tokens",), "tokens"),
    "arrow": Format(write_arrow, below(yoga.from_arrow, "x.arrow")),
    "huggingface": Format(lambda folder: datasets.Dataset(TABLE).save_to_disk(folder), huggingface),
    "hdf5": Format(write_hdf5, below(yoga.from_hdf5, "x.h5")),
    "npy": Format(
        lambda folder: np.save(folder / "x.npy", np.arange(3 * COUNT).reshape(COUNT, 3)),
        lambda folder: yoga.from_arrays({"x": folder / "x.npy", "y": np.arange(COUNT)}),
        ("y",),
    ),
    "images": Format(write_images, yoga.image_folder, ("path", "label")),
}
