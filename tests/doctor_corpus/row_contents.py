"""Set-ups of what rows hold, of rows that raise, and of how many batches and workers there are."""

import os
import signal
import time
import warnings
from collections import namedtuple

import numpy as np
import torch
from corpus import Rows, Setup, TwoHundred, shuffled
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

import torchyoga as yoga

Row = namedtuple("Row", ["image", "caption", "boxes", "about"])


class Lines(TwoHundred):
    def __getitem__(self, row):
        raise ValueError("row 17 has 3 fields\nsee the manual")


class Long(Dataset):
    def __init__(self):
        self.rows = list(range(1999))

    def __len__(self):
        return 2000

    def __getitem__(self, row):
        return self.rows[row]


class Files(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        if row == 63:
            raise ValueError("this file is cut short")
        return torch.tensor(row)


class Partly(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, row):
        if row % 2 == 0:
            raise OSError(f"row {row} is damaged")
        return row


def padded(rows):
    return pad_sequence([row["ids"] for row in rows], batch_first=True), [row["text"] for row in rows]


def batches_of_one_length():
    texts = Rows(lambda row: {"ids": torch.arange(row % 9 + 1) + row, "text": f"text {row}"})
    sampler = BatchSampler(RandomSampler(texts), 16, False)
    return DataLoader(texts, batch_sampler=sampler, collate_fn=padded)


class Sentences(TwoHundred):
    def __getitem__(self, row):
        tokens = torch.randint(0, 100, (8,), generator=torch.Generator().manual_seed(row))
        return tokens, torch.zeros(8).masked_fill(torch.arange(8) > row % 8, float("-inf"))


class Captions(TwoHundred):
    def __getitem__(self, row):
        image = np.random.default_rng(row).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        boxes = [[row, row + 1.0]] * (row % 3)
        return Row(image, f"caption {row}", boxes, {"source": None, "id": row})


def in_memory():
    x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.arange(500) % 7)


def version():
    rows = [{"x": np.full(50, row, np.float32), "label": row % 7} for row in range(500)]
    return yoga.Storage("storage").submit(rows, "digits", "1", progress=False)


def more_workers_than_cpus():
    warnings.simplefilter("ignore")
    rows, many = TensorDataset(torch.arange(64.0)), 8 * (os.cpu_count() or 1)
    return DataLoader(rows, batch_size=8, shuffle=True, num_workers=many, persistent_workers=True)


def begin_slowly(worker):
    time.sleep(0.8)


SETUPS = [
    Setup(
        "An error whose first line says what is wrong, and its last one where to read more.",
        lambda: shuffled(Lines(), num_workers=1),
        says="broken-rows wrong",
        names="ValueError: row 17 has 3 fields",
    ),
    Setup(
        "A length that counts rows which are not there.",
        lambda: shuffled(Long(), num_workers=0),
        says="broken-rows wrong",
    ),
    Setup(
        "One row of many raises.",
        lambda: DataLoader(Files(), batch_size=8, num_workers=2),
        says="broken-rows wrong",
        names="loader.dataset[63]",
        never="loader.peek()",
    ),
    Setup(
        "A sampler of batches that leaves out rows which cannot be read.",
        lambda: DataLoader(Partly(), batch_sampler=[[1, 3, 5, 7], [9, 11, 13, 15]] * 25),
    ),
    Setup(
        "A row that ends its process, as the system does where memory runs out.",
        lambda: shuffled(Rows(lambda row: os.kill(os.getpid(), signal.SIGKILL)), num_workers=0),
        says="broken-rows wrong",
        names="it ended the process",
        never="KeyError",
    ),
    Setup(
        "Rows of different lengths, and no collate_fn for them.",
        lambda: shuffled(Rows(lambda row: torch.arange(row % 5 + 1)), num_workers=0),
        says="broken-rows wrong",
        thread="pytorch/pytorch#1512",
    ),
    Setup(
        "A sampler of batches, rows of many lengths, and a collate_fn that pads them.",
        batches_of_one_length,
        never="broken-rows; shared-buffer",
    ),
    Setup(
        "A column in which some values are NaN.",
        lambda: shuffled(
            Rows(lambda row: {"x": torch.tensor([row - 100.0]).log(), "label": row % 7}), num_workers=0
        ),
        says="not-finite maybe",
        names="x",
    ),
    Setup(
        "A mask that is added before a softmax.",
        lambda: shuffled(Sentences(), num_workers=0),
        never="not-finite",
    ),
    Setup(
        "Rows as named tuples with texts, None and nested values, and a collate_fn that keeps them.",
        lambda: DataLoader(Captions(), batch_size=16, shuffle=True, collate_fn=list),
    ),
    Setup(
        "Rows that are sparse tensors, which have no number of bytes.",
        lambda: shuffled(
            Rows(lambda row: (torch.eye(3) * row).to_sparse()), num_workers=0, collate_fn=torch.stack
        ),
    ),
    Setup(
        "Tensors in memory, without workers.", lambda: DataLoader(in_memory(), batch_size=32, shuffle=True)
    ),
    Setup(
        "Tensors in memory, with workers that persist.",
        lambda: DataLoader(in_memory(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True),
    ),
    Setup(
        "A version, in torchyoga's loader.",
        lambda: yoga.DataLoader(version(), batch_size=50, shuffle=True, seed=3),
    ),
    Setup(
        "A version, in torch's loader with workers.",
        lambda: DataLoader(version(), batch_size=50, shuffle=True, num_workers=2),
    ),
    Setup(
        "Fewer rows than a batch has, and drop_last: an epoch without a batch.",
        lambda: DataLoader(TensorDataset(torch.arange(30.0)), batch_size=32, shuffle=True, drop_last=True),
        says="no-batches",
        thread="open-mmlab/mmengine#945",
    ),
    Setup("Eight workers for each CPU.", more_workers_than_cpus, says="few-cpus"),
    Setup(
        "Workers that load a model as they start, and epochs that are shorter than that.",
        lambda: shuffled(TensorDataset(torch.arange(64.0)), worker_init_fn=begin_slowly),
        says="short-epochs slow",
        names="persistent_workers",
        thread="open-mmlab/mmpretrain#196",
    ),
]
