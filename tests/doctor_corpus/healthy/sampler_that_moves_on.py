"""A sampler of the user's own that shuffles anew in each epoch.

not: same-order
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Shuffled(Sampler):
    def __init__(self, count):
        self.count, self.rng = count, np.random.default_rng(0)

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.rng.permutation(self.count).tolist())


rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_size=8, sampler=Shuffled(200))
