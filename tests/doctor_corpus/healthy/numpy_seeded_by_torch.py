"""NumPy's global generator, which torch seeds in each worker.

not: same-random-numbers
"""

import random

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + np.random.random(4) + random.random(), row % 3


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
