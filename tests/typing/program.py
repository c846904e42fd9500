"""A user's program, for type checkers: each line marked as wrong is an error, and no other line is."""

# pyright: strict
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ProcessGroup
from torch.utils.data import Dataset, RandomSampler, Subset, TensorDataset, random_split
from typing_extensions import assert_type

import torchyoga as yoga
from torchyoga.compat.yogadl import storage as yogadl_storage
from torchyoga.compat.yogadl.dataref import CachedDataRef
from torchyoga.rows.block import Rows


class Squares(yoga.DataRef[int]):
    def __len__(self) -> int:
        return 10

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[int]:
        return [row**2 for row in rows.tolist()]


class Anything(yoga.DataRef):
    def __len__(self) -> int:
        return 10

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[dict[str, int]]:
        return [{"x": row} for row in rows.tolist()]


class Texts(yoga.DataRef[str]):
    def __len__(self) -> int:
        return 1

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[int]:  # wrong: rows are text
        return [1 for _ in rows]


def rows_of_a_dataset() -> None:
    squares = Squares()
    assert_type(squares[3], int)
    assert_type(squares[np.int64(3)], int)
    assert_type(squares[1:3], yoga.DataRef[int])
    assert_type(squares[[1, 2]], list[int])
    assert_type(squares[np.array([1, 2])], list[int])
    assert_type(squares[torch.tensor([1, 2])], list[int])
    assert_type(squares[5:][::2][0], int)
    assert_type(list(squares), list[int])
    assert_type(next(iter(squares.stream(shuffle=True))), int)
    for batch in squares.stream().batches(3):
        assert_type(batch, Rows[int])
        rows: Sequence[int] = batch
        assert_type(batch.block.num_rows, int)
        print(batch.block.data[0].values.shape, rows)
    assert_type(Anything()[3], Any)
    assert_type(squares["x"], yoga.DataRef)
    assert_type(squares.where("value", lambda y: y > 3)[3], int)
    assert_type(squares.select([3])[0], int)
    assert_type(squares.split([0.5, 0.5])[0][0], int)
    assert_type(squares.columns(["value"])[3], Any)
    squares.columns(3)  # wrong: columns have names
    squares[1.5]  # wrong: rows have numbers
    squares.stream(shuffle="rows")  # wrong: True, False or "block"
    text: str = squares[3]  # wrong: a row is an int
    squares[1:3].append(4)  # wrong: a slice is a DataRef
    print(text)


def as_a_dataset_of_torch(ref: yoga.DataRef) -> None:
    squares: Dataset[int] = Squares()
    texts: Dataset[str] = Squares()  # wrong: rows are numbers
    for part in random_split(Squares(), [0.5, 0.5]):
        assert_type(part, Subset[int])
        yoga.DataLoader(part, batch_size=4)
    assert_type(Subset(ref, [0, 2])[1], Any)
    plain = torch.utils.data.DataLoader(Squares(), batch_size=4, sampler=yoga.ResumableSampler(Squares()))
    assert_type(plain, torch.utils.data.DataLoader[int])
    for batch in torch.utils.data.DataLoader(ref, batch_size=4, shuffle=True):
        print(batch["x"], squares, texts)


def without_annotations(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(ref, batch_size=4)
    assert_type(loader, yoga.DataLoader[Any])
    for batch in loader:
        print(batch["x"].shape)
    first = loader.peek()
    loader.meter.every(100, lambda meter: print(meter.last.share, meter.verdict()))
    for batch in yoga.to_device(loader, "cpu"):
        print(batch, first["x"])
    for batch in ref.stream().batches(4):
        print(batch.block.data[0].values.mean(), batch[0]["x"])
    kept = ref.where("x", lambda x: x > 1).map(lambda row: {**row, "y": 1})
    changed = kept.map_batches(lambda columns: {"x": columns["x"] / 2})
    drawn = ref.map_batches(lambda columns, draw: {"x": draw.normal(columns["x"])})
    print(changed[3]["x"], drawn[0], ref.windows(3).anchors(np.arange(2)).tolist())
    print(ref.token_batches("x", 9).in_epoch(2).report(), ref.token_windows("x", 9).in_epoch(1)[0])
    mixed = yoga.mix({"a": ref, "b": kept}, {"a": 1, "b": 2})
    print(mixed.counts(9), [part[0]["x"] for part in mixed.split([0.5, 0.5])])
    print(yoga.flat_map(ref, lambda row: [row["x"]]), loader.meter.epoch.waited, ref.info["classes"])


def build(folder: Path) -> yoga.DataRef:
    storage = yoga.Storage(folder, format="hdf5")

    @storage.cacheable("numbers", "1.0")
    def numbers(count: int) -> list[dict[str, int]]:
        return [{"x": i} for i in range(count)]

    storage.submit([1, 2], "numbers")  # wrong: the version is missing
    yoga.Storage(3)  # wrong: a path or a URL
    assert_type(len(storage.submit([1, 2], "numbers", "2.0")), int)
    return storage.fetch("numbers", "1.0")


def load(ref: yoga.DataRef) -> None:
    loader: yoga.DataLoader[Any] = yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=1, num_workers=0)
    for batch in loader:
        print(batch["x"])
    state = loader.state_dict()
    resumed: yoga.DataLoader[Any] = yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    resumed.load_state_dict(3)  # wrong: a state is a dict
    yoga.DataLoader(ref, batch_size="4")  # wrong: an int
    assert_type(state, dict[str, Any])
    assert_type(yoga.prove([loader.receipt()]).rows, int)
    sampler = yoga.ResumableSampler(ref, shuffle="block", shuffle_window=4)
    assert_type(next(iter(sampler)), int)
    try:
        sampler.load_state_dict(state)
    except yoga.errors.StateError as error:
        print(error)


def load_anything(ref: yoga.DataRef, group: ProcessGroup) -> None:
    rows: list[dict[str, int]] = [{"x": 1}, {"x": 2}]
    tensors = TensorDataset(torch.arange(4))
    for dataset in (ref, rows, range(4), torch.arange(4), np.arange(4), tensors, Subset(tensors, [1])):
        loader: yoga.DataLoader[Any] = yoga.DataLoader(dataset, sampler=[1, 0], worker_init_fn=print)
        assert_type(loader.remainder, int | Literal["keep", "drop", "pad"])
    yoga.DataLoader(rows, collate_fn=list, batch_sampler=[[0], [1]])
    yoga.DataLoader(rows, collate_fn=lambda batch: [row["x"] for row in batch], group=group)
    loader = yoga.DataLoader(rows, sampler=RandomSampler(rows), multiprocessing_context="fork")
    loader.prove(group)
    for batch in yoga.to_device(loader, "cpu"):
        print(batch)
    yoga.DataLoader(5)  # wrong: a dataset
    yoga.DataLoader(rows, sampler=5)  # wrong: indices
    yoga.DataLoader(rows, collate_fn=5)  # wrong: a function
    yoga.DataLoader(rows, group="dp")  # wrong: a group
    yoga.to_device(loader, None)  # wrong: a device
    loader.prove("dp")  # wrong: a group


def arrays(folder: Path) -> None:
    columns = {"x": np.zeros((3, 2)), "y": np.arange(3)}
    assert_type(len(yoga.from_arrays(columns)), int)
    yoga.from_arrays({"x": np.zeros(3), "y": torch.zeros(3), 0: folder / "z.npy"})
    yoga.from_arrays([1, 2])  # wrong: a list is not an array
    yoga.from_arrays({"x": [1, 2]})  # wrong: nor is this one
    yoga.from_hdf5(folder / "x.h5", ["x", "y"], cache_bytes=0)
    yoga.from_hdf5(folder / "x.h5", 3)  # wrong: names of datasets


def files(folder: Path, storage: yoga.Storage) -> None:
    ref = yoga.image_folder(folder, classes=["cat", "dog"], max_bad=0)
    assert_type(ref.left_out[0].reason, str)
    yoga.image_folder(folder, max_bad="1%")  # wrong: a share is a number
    shards = yoga.webdataset(
        [folder, "s3://x/{00..03}.tar"], parse={"cls": int, "json": json.loads, "txt": str}
    )
    yoga.DataLoader(shards, 4, shuffle="block")
    yoga.webdataset(folder, parse={"cls": 3})  # wrong: not a function
    storage.submit(yoga.flat_map(shards, lambda row: [row, row]), "twice", "1.0")
    yoga.flat_map([1, 2], 3)  # wrong: not a function


def old_program(folder: str) -> None:
    storage = yogadl_storage.LFSStorage(yogadl_storage.LFSConfigurations(folder))

    @storage.cacheable("numbers", "1.0")
    def numbers(count: int) -> list[int]:
        return list(range(count))

    assert_type(numbers(3), CachedDataRef)
    numbers("3")  # wrong: an int
