"""Set-ups of streams, and which part of them each worker and each rank reads."""

import random

import torch
from corpus import Setup
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, first, end):
        self.first, self.end = first, end

    def __iter__(self):
        yield from range(self.first, self.end)


def begin_with_a_part(worker):
    info = get_worker_info()
    each = 2000 // info.num_workers
    info.dataset.first, info.dataset.end = worker * each, (worker + 1) * each


class Noisy(IterableDataset):
    def __iter__(self):
        for row in range(2000):
            yield {"id": row, "x": torch.rand(3)}


class Parts(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, self.count, info.num_workers) if info else range(self.count)


class AsksItsWorker(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for row in range(worker.id, 4000, worker.num_workers):
            yield torch.tensor(row)


class TwoShards(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        if worker is not None and worker.num_workers != 2:
            raise ValueError("as many workers as shards, which are 2")
        for row in range(0 if worker is None else worker.id, 4000, 2):
            yield torch.tensor(row)


class ShuffledShards(IterableDataset):
    def __init__(self):
        self.rng = random.Random(5)

    def __iter__(self):
        info = get_worker_info()
        shards = list(range(20))
        self.rng.shuffle(shards)
        for shard in shards[info.id :: info.num_workers] if info else shards:
            for row in range(100):
                yield shard * 100 + row


class Warmed(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from map(torch.tensor, range(20))
        yield from map(torch.tensor, range(1000 + first, 5000, step))


class Resumed(IterableDataset):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 96:
            self.at += 1
            yield torch.tensor(self.at)
        self.at = 0


SETUPS = [
    Setup(
        "A stream that each worker gives as a whole.",
        lambda: DataLoader(Lines(0, 2000), batch_size=16, num_workers=2),
        says="rows-twice wrong",
        thread="huggingface/datasets#3423",
    ),
    Setup(
        "A stream whose part worker_init_fn sets, as torch's documentation has it.",
        lambda: DataLoader(Lines(0, 2000), batch_size=16, num_workers=2, worker_init_fn=begin_with_a_part),
        never="rows-twice",
    ),
    Setup(
        "A stream with noise that each worker gives as a whole: the numbers differ, the ids do not.",
        lambda: DataLoader(Noisy(), batch_size=16, num_workers=2),
        says="rows-twice",
        thread="huggingface/finetrainers#394",
    ),
    Setup(
        "A stream of which each worker gives its part.",
        lambda: DataLoader(Parts(2000), batch_size=16, num_workers=2),
        never="rows-twice",
    ),
    Setup(
        "A stream that is split over workers, but not over the four processes.",
        lambda: DataLoader(Parts(2000), batch_size=16, num_workers=2),
        says="not-sharded maybe",
        job=4,
        thread="huggingface/datasets#5360",
    ),
    Setup(
        "Each worker drops its last batch, which is its only one.",
        lambda: DataLoader(Parts(40), batch_size=32, num_workers=2, drop_last=True),
        says="no-batches",
        thread="pytorch/pytorch#33413",
    ),
    Setup(
        "A stream that runs in workers only: it asks which of them it is in.",
        lambda: DataLoader(AsksItsWorker(), batch_size=8, num_workers=2),
        never="broken-rows",
    ),
    Setup(
        "Two shards for two workers; with more of them, which nobody asked for, it would raise.",
        lambda: DataLoader(TwoShards(), batch_size=8, num_workers=2),
    ),
    Setup(
        "Shards that all workers shuffle alike, so that each takes its part.",
        lambda: DataLoader(ShuffledShards(), batch_size=16, num_workers=2),
        never="rows-twice; same-random-numbers",
    ),
    Setup(
        "A stream whose workers begin with the same rows to warm up, and then read their own parts.",
        lambda: DataLoader(Warmed(), batch_size=8, num_workers=2),
    ),
    Setup(
        "A stream that goes on where it was left; a row of it taken away is a batch less.",
        lambda: DataLoader(Resumed(), batch_size=96, drop_last=True),
    ),
]
