"""Shards that all workers shuffle alike, so that each takes its part.

not: rows-twice; same-random-numbers
"""

import random

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self):
        self.rng = random.Random(5)

    def __iter__(self):
        info = get_worker_info()
        shards = list(range(20))
        self.rng.shuffle(shards)
        for shard in shards[info.id :: info.num_workers] if info else shards:
            for row in range(100):
                yield shard * 100 + row


loader = DataLoader(Shards(), batch_size=16, num_workers=2)
