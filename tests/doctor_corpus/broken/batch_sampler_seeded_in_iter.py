"""A sampler of batches of the user's own that shuffles alike in each epoch.

says: same-order maybe
names: Shuffled
not: SequentialSampler
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


class Shuffled:
    def __len__(self):
        return 25

    def __iter__(self):
        return iter(np.random.default_rng(0).permutation(200).reshape(25, 8).tolist())


rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_sampler=Shuffled())
