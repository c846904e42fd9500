"""A generator of the dataset's own, which each worker has a copy of.

says: same-random-numbers wrong
thread: wolny/pytorch-3dunet#32
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + self.rng.random(4), row % 3


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
