"""Set-ups of memory that rows share, keep, copy or change."""

import functools

import numpy as np
import torch
from corpus import Setup, TwoHundred, shuffled
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset


class Buffered(TwoHundred):
    def __init__(self):
        self.buffer = np.zeros(64, np.float32)

    def __getitem__(self, row):
        self.buffer[:] = np.arange(64) + row
        return self.buffer


class BufferedAtOnce(Buffered):
    def __getitems__(self, rows):
        return [self[row] for row in rows]


class Gathered(Dataset):
    def __init__(self):
        self.x = np.arange(8000, dtype=np.float32).reshape(1000, 8)
        self.buffer = np.empty((32, 8), np.float32)

    def __len__(self):
        return 1000

    def __getitem__(self, row):
        return self.x[row]

    def __getitems__(self, rows):
        return list(np.take(self.x, rows, axis=0, out=self.buffer[: len(rows)]))


class OneDict(IterableDataset):
    def __iter__(self):
        row = {}
        for number in range(200):
            row["x"] = number
            yield row


class Batches(IterableDataset):
    def __iter__(self):
        buffer = torch.empty(16, 4)
        for n in range(100):
            torch.arange(64.0, out=buffer.view(-1)).add_(n)
            yield buffer


class Windows(TwoHundred):
    def __init__(self):
        self.data = torch.rand(1000, generator=torch.Generator().manual_seed(0))

    def __getitem__(self, row):
        return self.data[row : row + 100]


def first_of_many(rows):
    many = torch.zeros(64, len(rows), 2000)
    many[0] = torch.stack([row for (row,) in rows])
    return many[0]


# -- changed in place


class Images(Dataset):
    def __init__(self):
        self.images = 255 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.seen = np.zeros(64, np.int64)

    def __len__(self):
        return 64


class Scaled(Images):
    def __getitem__(self, row):
        image = self.images[row]
        image /= 255
        return image


class Copied(Images):
    def __getitem__(self, row):
        self.seen[row] += 1
        image = self.images[row].clone()
        image += torch.rand(3, 8, 8)
        return image


# -- kept, and copied by workers


class Cached(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 2000

    def __getitem__(self, row):
        if row not in self.cache:
            self.cache[row] = np.full(1000, row)
        return self.cache[row]


@functools.cache
def load(row):
    return np.random.default_rng(row).random(100)


class Files(TwoHundred):
    def __getitem__(self, row):
        return load(row)


@functools.lru_cache(maxsize=16)
def load_again(row):
    return np.random.default_rng(row).random(100)


class FilesReadAgain(TwoHundred):
    def __getitem__(self, row):
        return load_again(row)


class Annotated(Dataset):
    def __init__(self):
        self.data_infos = [{"id": row, "boxes": [row, row + 1], "name": str(row)} for row in range(60_000)]

    def __len__(self):
        return len(self.data_infos)

    def __getitem__(self, row):
        return self.data_infos[row]["id"]


class Listed(Dataset):
    def __init__(self, count):
        self.infos = [f"images/{row:032d}.jpg" for row in range(count)]

    def __len__(self):
        return len(self.infos)

    def __getitem__(self, row):
        return len(self.infos[row]) + row


SETUPS = [
    Setup(
        "Rows written into one array: all rows of a batch are the last one.",
        lambda: DataLoader(Buffered(), batch_size=16, shuffle=True),
        says="shared-buffer wrong",
    ),
    Setup(
        "Rows of a batch made at once, and each of them is the one buffer.",
        lambda: DataLoader(BufferedAtOnce(), batch_size=16, shuffle=True),
        says="shared-buffer wrong",
    ),
    Setup(
        "Rows of a batch gathered at once into a buffer that is kept; default_collate copies them.",
        lambda: DataLoader(Gathered(), batch_size=32, shuffle=True),
    ),
    Setup(
        "A stream that changes one dict and gives it again.",
        lambda: DataLoader(OneDict(), batch_size=16),
        says="shared-buffer wrong",
    ),
    Setup(
        "A stream of whole batches, each used before the next one is written over it.",
        lambda: DataLoader(Batches(), batch_size=None),
    ),
    Setup(
        "Rows that are parts of one large tensor, and share its memory.",
        lambda: DataLoader(Windows(), batch_size=16, shuffle=True),
        never="shared-buffer",
    ),
    Setup(
        "Batches that are cut out of a tensor made for many of them: workers send all of it each time.",
        lambda: shuffled(
            TensorDataset(torch.rand(64, 2000, generator=torch.Generator().manual_seed(0))),
            num_workers=1,
            collate_fn=first_of_many,
        ),
        says="wasted-shm maybe",
        never="small-shm",
    ),
    Setup(
        "Stored images that each epoch divides once more.",
        lambda: shuffled(Scaled(), num_workers=0),
        says="changed-in-place wrong",
        names="dataset.images",
        never="shared-buffer",
    ),
    Setup(
        "Rows that are changed in place, in copies, and counted as they are made.",
        lambda: shuffled(Copied(), num_workers=0),
        never="changed-in-place",
    ),
    Setup(
        "Rows kept in a dict: each worker keeps its own, and throws it away after the epoch.",
        lambda: shuffled(Cached()),
        says="growing-memory maybe",
        names="dataset.cache",
    ),
    Setup(
        "A function of the dataset that keeps all that it has ever read.",
        lambda: shuffled(Files(), num_workers=0),
        says="growing-memory",
        names="load",
    ),
    Setup(
        "A function of the dataset that keeps the last few things that it has read.",
        lambda: shuffled(FilesReadAgain(), num_workers=0),
        never="growing-memory",
    ),
    Setup(
        "Annotations as a list of dicts.",
        lambda: shuffled(Annotated(), num_workers=4),
        says="copied-memory maybe",
        names="dataset.data_infos",
        thread="tier4/autoware-ml#78",
    ),
    Setup(
        "A list of strings that each worker copies as it touches them.",
        lambda: shuffled(Listed(500_000), num_workers=4),
        says="copied-memory maybe",
        names="dataset.infos",
        thread="pytorch/pytorch#20433",
    ),
    Setup(
        "A list of ten thousand paths: little enough for each worker to have its own.",
        lambda: shuffled(Listed(10_000)),
        never="copied-memory",
    ),
]
