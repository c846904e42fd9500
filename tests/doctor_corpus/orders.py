"""Set-ups of orders, epochs and ranks."""

import numpy as np
import torch
from corpus import Setup, TwoHundred, shuffled
from torch.utils import data
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def rows_of(count):
    return TensorDataset(torch.rand(count, 3, generator=torch.Generator().manual_seed(0)))


class ShuffledBatches:
    def __len__(self):
        return 25

    def __iter__(self):
        return iter(np.random.default_rng(0).permutation(200).reshape(25, 8).tolist())


class Shuffled(data.Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(np.random.default_rng(0).permutation(self.count).tolist())


class ShuffledAnew(Shuffled):
    def __init__(self, count):
        self.count, self.rng = count, np.random.default_rng(0)

    def __iter__(self):
        return iter(self.rng.permutation(self.count).tolist())


def split_and_joined():
    train, rest = data.random_split(rows_of(600), [400, 200], torch.Generator().manual_seed(0))
    joined = data.ConcatDataset([train, data.Subset(rest, range(0, 200, 2))])
    return DataLoader(joined, batch_size=32, shuffle=True, num_workers=2)


# -- epochs


def set_epoch_forgotten():
    rows = rows_of(200)
    loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
    for _ in range(2):
        for _batch in loader:
            pass
    return loader


def set_epoch_called():
    rows = rows_of(200)
    loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for _batch in loader:
            pass
    return loader


class Augmented(TwoHundred):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, row):
        return torch.rand(3, generator=torch.Generator().manual_seed(1000 * int(self.epoch) + row))


class AugmentedTogether(Augmented):
    def __init__(self):
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)


# -- ranks


def ranks_of_a_job():
    rows = rows_of(200)
    sampler = DistributedSampler(rows, num_replicas=4, rank=1)
    sampler.set_epoch(1)
    return DataLoader(rows, batch_size=8, sampler=sampler)


def evaluated_by_four(count):
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(x, torch.arange(count) // 100)
    sampler = DistributedSampler(rows, num_replicas=4, rank=1, shuffle=False)
    return DataLoader(rows, batch_size=8, sampler=sampler)


SETUPS = [
    Setup(
        "A sampler of batches of the user's own that shuffles alike in each epoch.",
        lambda: DataLoader(rows_of(200), batch_sampler=ShuffledBatches()),
        says="same-order maybe",
        names="Shuffled",
        never="SequentialSampler",
    ),
    Setup(
        "A sampler of the user's own that shuffles alike in each epoch.",
        lambda: DataLoader(rows_of(200), batch_size=8, sampler=Shuffled(200)),
        says="same-order maybe",
        thread="pytorch/pytorch#11324",
    ),
    Setup(
        "A sampler of the user's own that shuffles anew in each epoch.",
        lambda: DataLoader(rows_of(200), batch_size=8, sampler=ShuffledAnew(200)),
        never="same-order",
    ),
    Setup(
        "A WeightedRandomSampler.",
        lambda: DataLoader(
            rows_of(500),
            batch_size=32,
            sampler=data.WeightedRandomSampler((1 + torch.arange(500) % 7).double(), 500),
        ),
    ),
    Setup("Splits and joins of datasets.", split_and_joined),
    Setup(
        "A DistributedSampler whose epoch is never set.",
        set_epoch_forgotten,
        says="same-order maybe",
        names="set_epoch",
        thread="pytorch/pytorch#31771",
    ),
    Setup("A DistributedSampler whose epoch is set.", set_epoch_called, never="same-order"),
    Setup(
        "Rows that depend on the dataset's epoch, with workers that live on and keep their copy of it.",
        lambda: shuffled(Augmented(), persistent_workers=True),
        says="stale-epoch wrong",
        names="dataset.set_epoch",
    ),
    Setup(
        "Rows that depend on the epoch, which lies in memory that all workers share.",
        lambda: shuffled(AugmentedTogether(), persistent_workers=True),
        never="stale-epoch",
    ),
    Setup(
        "Four processes, each of which reads all rows.",
        lambda: shuffled(rows_of(200), num_workers=0),
        says="not-sharded maybe",
        job=4,
    ),
    Setup("One of four ranks, with its part of the rows.", ranks_of_a_job, never="not-sharded", job=4),
    Setup(
        "An evaluation over four ranks, whose sampler gives two rows twice.",
        lambda: evaluated_by_four(402),
        says="padded-evaluation maybe",
        job=4,
        called="test_loader",
    ),
    Setup(
        "Evaluation over four ranks, in order.",
        lambda: evaluated_by_four(400),
        never="same-order; not-sharded",
        job=4,
        called="test_loader",
    ),
]
