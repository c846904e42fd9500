"""A stream without end whose workers draw from torch's generator.

not: rows-twice; same-random-numbers
"""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Noise(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(4)


loader = DataLoader(Noise(), batch_size=16, num_workers=2)
