"""Data of every format where it lies: the kits, forks, versions; and behind a URL, through a small cache."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from behind_urls import in_memory
from children import status_of_child
from golden.foreign_rows import FOREIGN
from kinds import outcome
from mds_files import encoded
from mds_files import write as write_mds
from PIL import Image
from starts import FRESH_STARTS
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.rows.block import exact_rows
from torchyoga.testing import assert_rows_equal, check_dataref, check_view

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


def write_lines(folder: Path, count: int = COUNT, each: int = 25) -> None:
    rows = [{**row, "n": n} for n, row in zip(range(count), cycle(TABLE.to_pylist()), strict=False)]
    for number, start in enumerate(range(0, count, each)):
        lines = map(json.dumps, rows[start : start + each])
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
    "mds": Format(lambda folder: write_mds(folder, encoded(COUNT), 9, {"n": 8}), yoga.from_mds, ("y", "n")),
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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    (tmp_path / "files").mkdir()


@pytest.mark.parametrize("name", FORMATS)
def test_each_keeps_the_contract(name: str, tmp_path: Path) -> None:
    write, read, columns, lists = FORMATS[name]
    write(tmp_path / "files")
    ref = read(tmp_path / "files")
    check_dataref(ref)
    check_view(lambda base: base[1:].columns(columns), read(tmp_path / "files"))
    assert read(tmp_path / "files").fingerprint == ref.fingerprint is not None
    rows, some = list(ref), ref.columns(columns)
    for row in range(0, len(ref), 5):  # a batch of one row is collated as any other
        alone, taken = some.__getitems__([row]), some.take(np.array([row]))
        expected = outcome(lambda taken=taken: default_collate(taken))
        found = outcome(lambda alone=alone: default_collate(alone))
        assert found is expected if isinstance(expected, type) else not assert_rows_equal(found, expected)

    def read_again() -> None:
        assert_rows_equal(list(ref), rows, "in a forked child")

    assert status_of_child(read_again) == 0
    kept = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    assert kept.schema == ref.schema
    assert_rows_equal(list(kept), rows, "as a version")
    if lists in ref.schema.tree.keys:
        for view in (lambda of: of.token_windows(lists, 8), lambda of: of.packed(lists, 500)):
            assert_rows_equal(list(view(ref.columns([lists]))), list(view(kept.columns([lists]))))


@pytest.mark.quick("webdataset", "huggingface")
@pytest.mark.parametrize("name", FORMATS)
def test_a_process_that_is_started_anew_reads_it(name: str, tmp_path: Path) -> None:
    write, read, *_ = FORMATS[name]
    write(tmp_path / "files")
    ref = read(tmp_path / "files")
    as_they_are: Any = {"multiprocessing_context": FRESH_STARTS[0], "collate_fn": exact_rows}
    loader: Any = TorchLoader(ref, 20, num_workers=1, **as_they_are)
    assert_rows_equal([row for batch in loader for row in batch], list(ref))


@pytest.mark.parametrize("name", BEHIND_URLS)
def test_behind_a_url_rows_are_the_same(name: str, tmp_path: Path) -> None:
    write, read, *_ = BEHIND_URLS[name]
    write(tmp_path / "files")
    here = read(tmp_path / "files")
    url = in_memory(tmp_path / "files")
    there = read(url, cache_dir=tmp_path / "cache")
    assert_rows_equal(list(there), list(here))
    assert there.file_starts.tolist() == here.file_starts.tolist()
    assert there.fingerprint == here.fingerprint
    check_dataref(there)
    if name in ("jsonl", "webdataset"):  # whose files are named
        for pattern in (f"{tmp_path}/files/*", f"{url}/*"):
            assert read(pattern, cache_dir=tmp_path / "cache").fingerprint == here.fingerprint


@pytest.mark.parametrize("name", ["jsonl", "mds", "litdata", "tfrecord", "megatron", "webdataset"])
def test_files_that_change_later_are_errors(name: str, tmp_path: Path) -> None:
    write, read, *_ = FORMATS[name]
    write(tmp_path / "files")
    ref = read(tmp_path / "files")
    path = max(path for path in (tmp_path / "files").iterdir() if path.suffix not in (".json", ".idx"))
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 1)
    with pytest.raises(CorruptError, match=rf"{path.name} has {len(whole) - 1} bytes where {len(whole)}"):
        ref.take(np.arange(len(ref)))
    path.write_bytes(whole)
    os.utime(path, (1, 1))
    with pytest.raises(CorruptError, match="has changed since it was opened"):
        ref[-1]
    path.unlink()
    with pytest.raises(CorruptError, match=rf"{path.name} is missing; put it back"):
        ref[-1]


def write_many_records(folder: Path) -> None:
    for number in range(20):
        name = f"x.tfrecord-{number % 2:05}-of-00002"
        shutil.copy(FOREIGN / "tfrecord" / name, folder / f"{number:02}.tfrecord")


MANY = {
    "jsonl": Format(lambda folder: write_lines(folder, 600, 30), yoga.from_jsonl),
    "mds": Format(lambda folder: write_mds(folder, encoded(600), 50, {"n": 8}), yoga.from_mds),
    "tfrecord": Format(write_many_records, yoga.from_tfrecord),
    "webdataset": Format(lambda folder: write_tar(folder, 600, 30), yoga.webdataset),
}


@pytest.mark.parametrize("name", MANY)
def test_a_cache_of_a_third_is_enough_and_indices_are_kept(name: str, tmp_path: Path) -> None:
    write, read, *_ = MANY[name]
    write(tmp_path / "files")
    files = sorted(path for path in (tmp_path / "files").iterdir() if path.suffix != ".json")
    url, third = in_memory(tmp_path / "files"), sum(path.stat().st_size for path in files) // 3
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": third}
    ref = read(url, **options)
    rows = sorted(repr(row) for row in read(tmp_path / "files"))
    loader = yoga.DataLoader(ref, 4, shuffle="block", shuffle_window=1, seed=1, collate_fn=exact_rows)
    for _ in range(2):  # a warning, which is an error here, would say that a file was downloaded twice
        assert sorted(repr(row) for batch in loader for row in batch) == rows
    kept = tmp_path / "cache" / "files"
    assert sum(path.stat().st_size for path in kept.iterdir()) <= third
    for path in kept.glob("*.shard"):
        path.unlink()
    again = read(url, **options)
    assert (again.schema, again.fingerprint, len(again)) == (ref.schema, ref.fingerprint, len(rows))
    assert not list(kept.glob("*.shard"))
    assert repr(again[0]) == repr(read(tmp_path / "files")[0])
    assert len(list(kept.glob("*.shard"))) == 1
    if name != "mds":  # whose index says what its files hold
        fsspec.filesystem("memory").pipe_file(f"{url}/{files[-1].name}", files[0].read_bytes())
        assert repr(read(url, **options)[-1]) == repr(read(files[0])[-1])
