"""A generator that is a global of the module.

says: same-random-numbers wrong
names: RNG
thread: pytorch/pytorch#31246
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset

RNG = np.random.default_rng(0)


def jitter(x):
    return x + RNG.random(4)


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return jitter(row), row % 3


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
