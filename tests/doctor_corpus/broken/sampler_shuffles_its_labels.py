"""A sampler of the user's own that shuffles an attribute in place, as MPerClassSampler does.

says: changing-sampler maybe
names: labels
"""

import numpy as np
import torch
from torch.utils.data import Sampler, TensorDataset

import torchyoga as yoga


class PerClass(Sampler):
    def __init__(self, count):
        self.labels = np.arange(count)

    def __len__(self):
        return len(self.labels)

    def __iter__(self):
        np.random.shuffle(self.labels)
        return iter(self.labels.tolist())


rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = yoga.DataLoader(rows, batch_size=8, sampler=PerClass(200))
