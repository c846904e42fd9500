"""A sampler of the user's own that shuffles alike in each epoch.

says: same-order maybe
thread: pytorch/pytorch#11324
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Shuffled(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(np.random.default_rng(0).permutation(self.count).tolist())


rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_size=8, sampler=Shuffled(200))
