"""Set-ups whose rows draw random numbers."""

import random

import numpy as np
import torch
from corpus import Rows, Setup, TwoHundred, shuffled
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import torchyoga as yoga

RNG = np.random.default_rng(0)


class GlobalNoise(TwoHundred):
    def __getitem__(self, row):
        return jitter(row), row % 3


def jitter(x):
    return x + RNG.random(4)


def begin_with_another_global(worker):
    global RNG
    RNG = np.random.default_rng(torch.initial_seed())


class OwnNoise(TwoHundred):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, row):
        return row + self.rng.random(4), row % 3


def begin_with_another(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


class OwnRandom(TwoHundred):
    def __init__(self):
        self.rng = random.Random(3)

    def __getitem__(self, row):
        return row + self.rng.random()


class Split(TwoHundred):
    def __init__(self, data):
        self.data = data
        self.rng = np.random.default_rng(0)
        self.rows = self.rng.permutation(len(data))[:200]

    def __getitem__(self, row):
        return self.data[self.rows[row]]


class Shift:
    def __init__(self):
        self.R = np.random.RandomState(0)

    def __call__(self, x):
        return x + self.R.uniform()


class Transformed(TwoHundred):
    def __init__(self, transforms):
        self.transforms = transforms

    def __getitem__(self, row):
        x = np.full(4, row, np.float32)
        for one in self.transforms:
            x = one(x)
        return x


class NoisyStream(IterableDataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, 200, step):
            yield row + torch.rand(2, generator=self.generator)


class EndlessNoise(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(4)


class Seeding(TwoHundred):
    def __init__(self, seed_of):
        self.seed_of = seed_of

    def __getitem__(self, row):
        random.seed(self.seed_of(row))
        return row + random.random()


def nought(row):
    return 0


class NumpyNoise(TwoHundred):
    def __getitem__(self, row):
        return row + np.random.random(4), row % 3


def begin_alike(worker):
    np.random.seed(0)


def begin_by_number(worker):
    np.random.seed(worker)


SETUPS = [
    Setup(
        "A generator that is a global of the module.",
        lambda: shuffled(GlobalNoise()),
        says="same-random-numbers wrong",
        names="RNG",
        thread="pytorch/pytorch#31246",
    ),
    Setup(
        "A global generator that worker_init_fn makes again.",
        lambda: shuffled(GlobalNoise(), worker_init_fn=begin_with_another_global),
        never="same-random-numbers",
    ),
    Setup(
        "A generator of the dataset's own, which each worker has a copy of.",
        lambda: shuffled(OwnNoise()),
        says="same-random-numbers wrong",
        thread="wolny/pytorch-3dunet#32",
    ),
    Setup(
        "The doctor's own advice: the generator made again in worker_init_fn.",
        lambda: shuffled(OwnNoise(), worker_init_fn=begin_with_another),
        never="same-random-numbers",
    ),
    Setup(
        "One worker, started again for each epoch with the generator as it was.",
        lambda: shuffled(OwnRandom(), num_workers=1),
        says="same-random-numbers wrong",
        thread="pytorch/pytorch#41329",
    ),
    Setup(
        "A generator that was used to split the rows, and by no row.",
        lambda: shuffled(Split(torch.rand(500, 3, generator=torch.Generator().manual_seed(0)))),
        never="same-random-numbers",
    ),
    Setup(
        "A transform that holds a RandomState, as MONAI's do.",
        lambda: shuffled(Transformed([Shift()])),
        says="same-random-numbers wrong",
        names="dataset.transforms[0].R",
        thread="Project-MONAI/MONAI#1068",
    ),
    Setup(
        "A stream whose workers draw from copies of one torch generator.",
        lambda: DataLoader(NoisyStream(), batch_size=8, num_workers=2),
        says="same-random-numbers",
    ),
    Setup(
        "A stream without end whose workers draw from torch's generator.",
        lambda: DataLoader(EndlessNoise(), batch_size=16, num_workers=2),
        never="rows-twice; same-random-numbers",
    ),
    Setup(
        "Each row seeds the global generator with the same number.",
        lambda: shuffled(Seeding(nought)),
        says="same-random-numbers",
        thread="pytorch/pytorch#5059",
    ),
    Setup(
        "Rows that seed the global generator with their number.",
        lambda: shuffled(Seeding(int)),
        never="same-random-numbers",
    ),
    Setup(
        "A generator made of the row's number: the same in each epoch, as it is meant.",
        lambda: shuffled(Rows(lambda row: np.random.default_rng([7, row]).random(4))),
        never="same-random-numbers",
    ),
    Setup(
        "A worker_init_fn that gives NumPy the same seed in each worker.",
        lambda: shuffled(NumpyNoise(), worker_init_fn=begin_alike),
        says="same-random-numbers wrong",
        thread="xingyizhou/CenterNet#233",
    ),
    Setup(
        "A dataset of the user's own in torchyoga's loader, which seeds each row.",
        lambda: yoga.DataLoader(NumpyNoise(), batch_size=8, shuffle=True, seed=3, num_workers=2),
        never="same-random-numbers",
    ),
    Setup(
        "NumPy's global generator, which torch seeds in each worker.",
        lambda: shuffled(Rows(lambda row: row + np.random.random(4) + random.random())),
        never="same-random-numbers",
    ),
    Setup(
        "A loader for validation whose rows have the same noise in each epoch, by intent.",
        lambda: DataLoader(NumpyNoise(), batch_size=8, num_workers=2, worker_init_fn=begin_by_number),
        never="same-random-numbers",
        called="val_loader",
    ),
]
