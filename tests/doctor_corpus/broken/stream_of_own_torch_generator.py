"""A stream whose workers draw from copies of one torch generator.

says: same-random-numbers
"""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Noisy(IterableDataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, 200, step):
            yield row + torch.rand(2, generator=self.generator)


loader = DataLoader(Noisy(), batch_size=8, num_workers=2)
